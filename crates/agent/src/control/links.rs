//! Follows the interfaces of chains: says in `ps` which one changed, and deploys a chain again when
//! its interfaces are back.
//!
//! One thread waits for link events and judges all chains (`node::port_state`). It waits for no
//! request. A second thread deploys chains, which may take seconds.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use myelin_linux::link_events::LinkEvents;
use myelin_linux::netlink::Netlink;
use myelin_policy::sla::LossPlace;
use myelin_spec::Hook;

use crate::api::ChainStatus;
use crate::control::link_reader::LinkReader;

use crate::deploy;
use crate::node::Node;
use crate::node::chains::{Generation, RunningChain};
use crate::node::port_state::{self, ChainLinks, LinkState, PortView};
use crate::node::ports::Port;
use crate::node::waiting::{NamedLinks, WaitingChain};
use crate::node::wire::{self, Wires};
use crate::pool::lock;

/// Longest wait for an event. No event reports a changed number of queues.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time in which the thread collects the events of one change.
const BURST: Duration = Duration::from_millis(50);
/// Time to the next judgement without events, in case that the kernel reports a change late.
const JUDGE_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum age of a deployment that the agent replaces, so that a link that changes all the time
/// does not keep the agent busy.
const MIN_AGE: Duration = Duration::from_secs(1);

/// Time to the next attempt to subscribe to link events.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Chains to take down, to guard and to deploy again.
#[derive(Default)]
struct Task {
    /// Running chains, by name and service path identifier.
    running: Vec<(String, u32)>,
    waiting: Vec<String>,
}

/// Starts the threads. They end with the node. `read_status` reads the status of a chain that is
/// about to go down.
pub(crate) fn start(
    node: &Arc<Node>,
    read_status: impl Fn(&Node, &RunningChain) -> ChainStatus + Send + 'static,
) {
    let (send, receive) = sync_channel(1);
    let watched = Arc::downgrade(node);
    let redeployed = Weak::clone(&watched);
    std::thread::spawn(move || {
        while let Err(error) = watch(&watched, &send) {
            tracing::error!(%error, "cannot follow link events; trying again");
            std::thread::sleep(RETRY_INTERVAL);
            if watched.strong_count() == 0 {
                return;
            }
        }
    });
    std::thread::spawn(move || redeploy_chains(&redeployed, &read_status, &receive));
}

fn watch(node: &Weak<Node>, tasks: &SyncSender<Task>) -> myelin_linux::Result<()> {
    let mut events = LinkEvents::open()?;
    let mut links = LinkReader::open()?;
    let mut netlink = Netlink::open()?;
    let (mut judged_at, mut is_pending) = (Instant::now(), false);
    loop {
        let mut changes = events.wait(CHECK_INTERVAL)?;
        if changes.any {
            std::thread::sleep(BURST);
            changes.removed.extend(events.wait(Duration::ZERO)?.removed);
        }
        let Some(node) = node.upgrade() else {
            return Ok(());
        };
        wire::refresh_exits(&node.parts, &mut netlink);
        let is_due = changes.any
            || is_pending
            || judged_at.elapsed() > JUDGE_INTERVAL
            || node.chains.all().iter().any(|chain| is_new(chain));
        if !is_due && node.chains.all_waiting().is_empty() {
            continue;
        }
        judged_at = Instant::now();
        let task = judge_chains(&node, &mut links, &changes.removed, &mut is_pending);
        if !task.running.is_empty() || !task.waiting.is_empty() {
            // While the other thread is busy, the next judgement finds the same chains.
            let _ = tasks.try_send(task);
            is_pending = true;
        }
    }
}

/// Whether the interfaces of this chain were never judged. The agent may have read the events of a
/// change before the chain was in the list.
fn is_new(running: &RunningChain) -> bool {
    running.generation().ports.kernel_ports().is_ok() && lock(&running.links).names.is_empty()
}

/// Judges the interfaces of all chains. Sets `is_pending` if the next judgement cannot wait for an
/// event.
fn judge_chains(
    node: &Node,
    links: &mut LinkReader,
    removed: &[u32],
    is_pending: &mut bool,
) -> Task {
    let mut task = Task::default();
    *is_pending = false;
    for (_, port) in node.parts.ports.members() {
        if removed.contains(&port.ifindex) {
            port.mark_removed();
        }
    }
    // List the chains before the links are read, so that the links of each chain exist by then.
    for running in node.chains.all() {
        let judged = match judge_running(&running, links, is_pending) {
            Ok(Some(judged)) => judged,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(chain = running.name, %error, "cannot read the interfaces of a chain");
                continue;
            }
        };
        if judged.must_redeploy {
            *is_pending = true;
            if running.started.elapsed() > MIN_AGE {
                task.running.push((running.name.clone(), running.spi));
            }
        }
        let before = std::mem::replace(&mut *lock(&running.links), judged.clone());
        if before.faults != judged.faults {
            tracing::warn!(
                chain = running.name,
                faults = judged.faults.join("; "),
                "the interfaces of a chain changed"
            );
        }
    }
    for waiting in node.chains.all_waiting() {
        let found = find_links(&waiting, links);
        if found
            .is_some_and(|(named, is_ready)| is_ready || waiting.needs_guard(named[0].1.as_ref()))
        {
            task.waiting.push(waiting.chain.name.clone());
        }
    }
    task
}

/// Judges the interfaces of a running chain. Returns `None` for a chain between DPDK devices.
fn judge_running(
    running: &RunningChain,
    links: &mut LinkReader,
    needs_polling: &mut bool,
) -> myelin_linux::Result<Option<ChainLinks>> {
    let generation = running.generation();
    let Ok((circuit, ingress, egress)) = generation.ports.kernel_ports() else {
        return Ok(None);
    };
    let (chain, plan) = (&generation.chain, &generation.plan);
    let named = chain.ports.as_ref();
    // At the side of a neighbour, the port is an internal link.
    let ends = named.map(|ports| {
        let ingress = chain.from().is_none().then_some(&ports.ingress);
        [ingress, chain.to().is_none().then_some(&ports.egress)]
    });
    let ends = ends.unwrap_or_default();
    let mut views = [
        view_port(ingress, ends[0], links)?,
        view_port(egress, ends[1], links)?,
    ];
    views[0].limits_mtu = plan.hook == Hook::Xdp && chain.from().is_none();
    views[0].bounds_mtu = plan.admitted && plan.bound.is_some() && chain.from().is_none();
    views[0].needs_all_queues = plan.hook == Hook::Xdp && !plan.entry_link;
    *needs_polling |= views[0].needs_all_queues && named.is_some();
    let missing = find_missing_link(&generation, [ingress, egress], links)?;
    let mut judged = port_state::judge(&views, missing);
    if let (Some(ports), Some(wires)) = (named, &circuit.wires) {
        judged.names = vec![ports.ingress.clone(), ports.egress.clone()];
        let fault = find_wire_fault(wires, links)?;
        judged.is_waiting |= fault.is_some();
        judged.faults.extend(fault);
    }
    Ok(Some(judged))
}

fn view_port(
    port: &Port,
    named: Option<&String>,
    links: &mut LinkReader,
) -> myelin_linux::Result<PortView> {
    let namesake = match named {
        Some(name) => links.by_name(name)?,
        None => None,
    };
    let now = match &namesake {
        Some(link) if link.index == port.ifindex => namesake.clone(),
        _ => links.by_index(port.ifindex)?,
    };
    Ok(PortView {
        named: named.cloned(),
        deployed: LinkState {
            index: port.ifindex,
            name: port.name.clone(),
            is_up: true,
            has_carrier: port.record_carrier(now.as_ref().is_some_and(|link| link.has_carrier)),
            mtu: port.mtu,
            queues: port.queues,
        },
        was_removed: port.was_removed(),
        now,
        namesake,
        limits_mtu: false,
        needs_all_queues: false,
        bounds_mtu: false,
    })
}

/// Names an internal link of the chain that somebody removed or set down.
fn find_missing_link(
    generation: &Generation,
    [ingress, egress]: [&Port; 2],
    links: &mut LinkReader,
) -> myelin_linux::Result<Option<String>> {
    if let Some(entrance) = &generation.entrance
        && let Some(near) = entrance.near()
    {
        for index in [near, entrance.door.ifindex] {
            if !links.by_index(index)?.is_some_and(|link| link.is_up) {
                let (name, index) = (&ingress.name, ingress.ifindex);
                return Ok(Some(format!(
                    "the entry link of interface {name} (index {index})"
                )));
            }
        }
    }
    for counter in generation.layout.loss_counters() {
        let (LossPlace::Inner { interface } | LossPlace::Sockets { interface, .. }) = counter.place
        else {
            continue;
        };
        let is_port = [ingress.ifindex, egress.ifindex].contains(&interface);
        if !is_port && links.by_index(interface)?.is_none() {
            return Ok(Some(format!("the internal link with index {interface}")));
        }
    }
    Ok(None)
}

/// Describes an interface of a part that somebody removed or set down.
fn find_wire_fault(wires: &Wires, links: &mut LinkReader) -> myelin_linux::Result<Option<String>> {
    for (name, index) in wires.interfaces() {
        if !links.by_index(index)?.is_some_and(|link| link.is_up) {
            return Ok(Some(format!(
                "interface {name} (index {index}) is gone or down: set it up with `ip link set {name} up`; if it is gone, \
                 make it again and deploy the part again with `myelin down` and `myelin up`"
            )));
        }
    }
    Ok(None)
}

/// Judges the interfaces of a waiting chain. Returns them, and whether the agent should deploy the
/// chain now.
fn find_links(waiting: &WaitingChain, links: &mut LinkReader) -> Option<(NamedLinks, bool)> {
    let ports = waiting.chain.ports.as_ref()?;
    let mut find = |name: &String| {
        let state = links.by_name(name);
        let state = state.inspect_err(|error| tracing::warn!(%error, "cannot read an interface"));
        Some((name.clone(), state.ok()?))
    };
    let named = [find(&ports.ingress)?, find(&ports.egress)?];
    let is_ready = waiting.judge(&named);
    Some((named, is_ready))
}

/// Deploys the chains of each task, until the other thread ends.
fn redeploy_chains(
    node: &Weak<Node>,
    read_status: &impl Fn(&Node, &RunningChain) -> ChainStatus,
    tasks: &Receiver<Task>,
) {
    while let Ok(task) = tasks.recv() {
        let Some(node) = node.upgrade() else {
            return;
        };
        let mut links = match LinkReader::open() {
            Ok(links) => links,
            Err(error) => {
                tracing::warn!(%error, "cannot read links to deploy chains again");
                continue;
            }
        };
        let read_status = |running: &Arc<RunningChain>| read_status(&node, running);
        let find_links = |waiting: &WaitingChain| find_links(waiting, &mut links);
        deploy::redeploy(&node, &task.running, &task.waiting, read_status, find_links);
    }
}
