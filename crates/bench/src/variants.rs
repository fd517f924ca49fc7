//! The variants that experiments compare.
//!
//! Functions, redirects and programs forward only packets to the server. Replies pass a tc redirect
//! to the peer; at a chain's port, the front door does the same for unmatched packets. A cable, a
//! bridge and a router forward both directions in the same way.

use std::any::Any;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use myelin_api::{ApiError, ChainUp, HostInfo};
use myelin_kernel::Hook;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{link, neighbour, route, sysctl};

use crate::agents::{self, EmbeddedAgent};
use crate::network::{self, CLIENT_LINK, MiddleNamespace, Network, SERVER_LINK, sockets};
use crate::reference::{ForwardingOptions, Reference, RunningReference};
use crate::variant::{Variant, polling_core};
use crate::{Error, Findings, Row, ebpf};

/// Batch of one frame, because the probe has one packet in flight.
pub(crate) const BATCH: u16 = 1;
/// Batch for the highest rate.
pub(crate) const BEST_BATCH: u16 = 32;

pub(crate) const AS_PUBLISHED: &str = "centralized, as published";
pub(crate) const AT_ITS_BEST: &str = "centralized, at its best";

/// Objects of a variant, in their order of removal.
type Parts = Vec<Box<dyn Any + Send>>;

/// A variant of a network and the objects in it. The objects are removed before the links.
fn network_variant(
    name: &str,
    about: &str,
    network: Network,
    mut parts: Parts,
    pollers: Vec<u32>,
) -> Result<Variant, Error> {
    let sockets = network.sockets()?;
    parts.push(Box::new(network));
    Variant::new(name, about, sockets, pollers, parts)
}

/// A veth pair from client to server.
pub(crate) fn direct() -> Result<Variant, Error> {
    let (client, server) = network::create_cable()?;
    let about = "veth pair between the two hosts";
    let sockets = sockets(
        (&client.netns, client.address),
        (&server.netns, server.address),
    )?;
    let parts: Parts = vec![Box::new((client, server))];
    Variant::new("direct", about, sockets, Vec::new(), parts)
}

/// A Linux bridge with the kernel's defaults.
pub(crate) fn bridge() -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let middle = &network.middle;
    let mut netlink = Netlink::open_in(&middle.netns)?;
    netlink.apply([link::create_bridge("bridge")?])?;
    let bridge = netlink.link("bridge")?.id();
    netlink.apply([
        link::enslave(&middle.client, &bridge),
        link::enslave(&middle.server, &bridge),
        link::set_up(&bridge),
    ])?;
    let about = "Linux bridge in a namespace, both ways";
    network_variant("bridge", about, network, Vec::new(), Vec::new())
}

/// A namespace between the hosts that forwards as a Linux router does.
pub(crate) fn kernel_router() -> Result<Network, Error> {
    let network = Network::create(true)?;
    let middle = &network.middle;
    middle.netns.enter(|| {
        for link in ["all", CLIENT_LINK, SERVER_LINK] {
            sysctl::set_rp_filter(link, 0)?;
        }
        sysctl::set("net/ipv4/ip_forward", "1")?;
        let sides = [
            (&middle.client, &network.client),
            (&middle.server, &network.server),
        ];
        Netlink::open()?.apply(sides.into_iter().flat_map(|(link, end)| {
            [
                neighbour::add_permanent(link, end.address, end.mac),
                route::add_on_link(link, end.address, 32),
            ]
        }))
    })??;
    Ok(network)
}

/// The kernel's IP forwarding.
pub(crate) fn kernel_forwarding() -> Result<Variant, Error> {
    let about = "kernel IP forwarding through a namespace, both ways";
    let network = kernel_router()?;
    network_variant("kernel-forwarding", about, network, Vec::new(), Vec::new())
}

/// A bare redirect in both directions, the lower limit of a chain at tcx.
pub(crate) fn tc_redirect() -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let there = attach_redirect(&network.middle, Hook::Tcx, true)?;
    let parts: Parts = vec![Box::new(there), redirect_replies(&network)?];
    let about = "bare bpf_redirect_peer at tcx, both ways";
    network_variant("tc-redirect", about, network, parts, Vec::new())
}

/// A bare XDP redirect to the server.
pub(crate) fn xdp_redirect() -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let there = attach_redirect(&network.middle, Hook::Xdp, true)?;
    let parts: Parts = vec![Box::new(there), redirect_replies(&network)?];
    network.server.enable_napi()?;
    let about = "bare bpf_redirect at XDP to the server, replies redirected at tcx";
    network_variant("xdp-redirect", about, network, parts, Vec::new())
}

/// A tc redirect of packets from the server.
fn redirect_replies(network: &Network) -> Result<Box<dyn Any + Send>, Error> {
    Ok(Box::new(attach_redirect(
        &network.middle,
        Hook::Tcx,
        false,
    )?))
}

/// C programs that forward single frames to the server (program, name, description), and a row for
/// each that was not built.
pub(crate) fn start_references(
    wanted: &[(Reference, &str, &str)],
) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let (mut made, mut skipped) = (Vec::new(), Vec::new());
    for (program, name, about) in wanted {
        match start_reference(*program, name, about, BATCH) {
            Ok(variant) => made.push(variant),
            Err(Error::Reference(reason @ crate::reference::Error::Absent { .. })) => {
                skipped.push(Findings::skipped_row("variant", *name, &reason));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((made, skipped))
}

/// A C program that forwards to the server, up to `batch` frames at once. An error if it was not
/// built.
pub(crate) fn start_reference(
    reference: Reference,
    name: &str,
    about: &str,
    batch: u16,
) -> Result<Variant, Error> {
    let forwarding = forwarding_options(batch, true)?;
    start_forwarder(reference, name, about, &forwarding)
}

/// A C program that forwards to the server and reorders pairs of frames.
pub(crate) fn start_reordering_forwarder(name: &str) -> Result<Variant, Error> {
    let about = "packet sockets that swap pairs of frames";
    let forwarding = ForwardingOptions {
        swap: true,
        ..forwarding_options(BATCH, true)?
    };
    start_forwarder(Reference::Packet, name, about, &forwarding)
}

fn start_forwarder(
    reference: Reference,
    name: &str,
    about: &str,
    forwarding: &ForwardingOptions<'_>,
) -> Result<Variant, Error> {
    reference.check_built()?;
    let network = Network::create(false)?;
    let netns = &network.middle.netns;
    let running = netns.enter(|| reference.start(forwarding))??;
    program_variant(name, about, network, running)
}

/// Options of a reference program.
fn forwarding_options(batch: u16, poll: bool) -> Result<ForwardingOptions<'static>, Error> {
    Ok(ForwardingOptions {
        ingress: CLIENT_LINK,
        egress: SERVER_LINK,
        batch,
        core: Some(polling_core()?),
        both: false,
        poll,
        swap: false,
    })
}

fn program_variant(
    name: &str,
    about: &str,
    network: Network,
    running: RunningReference,
) -> Result<Variant, Error> {
    let pollers = vec![running.pid()];
    // The program is removed before its links.
    let parts: Parts = vec![Box::new(running), redirect_replies(&network)?];
    network_variant(name, about, network, parts, pollers)
}

/// CALVIN's centralized approach in two forms: [`AS_PUBLISHED`] and [`AT_ITS_BEST`].
pub(crate) fn centralized_variants() -> Result<[Variant; 2], Error> {
    let published = "sleeping process, kernel routing between TAP devices, one frame at once";
    let best = "the same, polling, up to 32 frames at once, long queues";
    Ok([
        centralized(AS_PUBLISHED, published, false)?,
        centralized(AT_ITS_BEST, best, true)?,
    ])
}

/// Both functions in one process, with the kernel's stack in between. It sleeps as published, or
/// polls and takes several packets at once.
fn centralized(name: &str, about: &str, poll: bool) -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let forwarding = forwarding_options(if poll { BEST_BATCH } else { BATCH }, poll)?;
    let running = network.middle.netns.enter(|| {
        let running = Reference::Centralized.start(&forwarding)?;
        let mut netlink = Netlink::open()?;
        let (first, second) = (
            netlink.link("central0")?.id(),
            netlink.link("central1")?.id(),
        );
        // The kernel only receives packets to its own address, so the link has the server's
        // address.
        netlink.apply([
            link::set_mac(&first, network.server.mac),
            link::disable_ipv6_autoconfiguration(&first),
            link::disable_ipv6_autoconfiguration(&second),
            link::set_up(&first),
            link::set_up(&second),
        ])?;
        for link in ["all", "central0"] {
            sysctl::set_rp_filter(link, 0)?;
        }
        sysctl::set("net/ipv4/ip_forward", "1")?;
        netlink.apply([
            neighbour::add_permanent(&second, network.server.address, network.server.mac),
            route::add_on_link(&second, network.server.address, 32),
        ])?;
        Ok::<_, Error>(running)
    })??;
    program_variant(name, about, network, running)
}

/// Redirects all frames from the client to the server, or in the other direction.
fn attach_redirect(
    middle: &MiddleNamespace,
    hook: Hook,
    to_server: bool,
) -> Result<OwnedFd, Error> {
    let (from, to) = if to_server {
        (&middle.client, &middle.server)
    } else {
        (&middle.server, &middle.client)
    };
    middle.netns.enter(|| {
        let program = ebpf::load_redirect(hook, to.index)?;
        ebpf::attach(program.as_fd(), hook, from.index)
    })?
}

/// A deployed chain. `functions` are (kind and configuration, space), `more` are further lines of
/// `spec`.
pub(crate) fn deploy_chain(
    agent: &Arc<EmbeddedAgent>,
    name: &str,
    about: &str,
    functions: &[(&str, &str)],
    more: &str,
) -> Result<Variant, Error> {
    let text = agents::chain_text(&agent.dir.chain_name(name), functions, more);
    deploy_variant(agent, name, about, text)
}

/// As [`deploy_chain`]. Replies pass the same functions in the same order.
pub(crate) fn deploy_chain_both_ways(
    agent: &Arc<EmbeddedAgent>,
    name: &str,
    about: &str,
    functions: &[(&str, &str)],
    more: &str,
) -> Result<Variant, Error> {
    let text = agents::chain_text_both_ways(&agent.dir.chain_name(name), functions, more);
    deploy_variant(agent, name, about, text)
}

fn deploy_variant(
    agent: &Arc<EmbeddedAgent>,
    name: &str,
    about: &str,
    text: String,
) -> Result<Variant, Error> {
    let chain = agent.dir.chain_name(name);
    let all = agent.up_all(text)?;
    let up = all.iter().find(|up| up.chain == chain);
    let up = up.ok_or_else(|| ApiError::failed(format!("the agent did not deploy {chain}")))?;
    let (client, server) = (open_host(up, "client")?, open_host(up, "server")?);
    let sockets = sockets((&client.0, client.1), (&server.0, server.1))?;
    let parts: Parts = vec![Box::new(Arc::clone(agent))];
    Variant::new(name, about, sockets, agent.workers(&chain)?, parts)
}

/// A chain of one function between DPDK devices, with the same driver, links and core as
/// [`Reference::Dpdk`].
pub(crate) fn deploy_dpdk_chain(
    program: &Path,
    name: &str,
    about: &str,
    function: &str,
    batch: u16,
) -> Result<Variant, Error> {
    let network = Network::create(false)?;
    let middle = &network.middle;
    // The links of all such chains have the same names, so each chain has a separate agent.
    let agent = EmbeddedAgent::open(program)?;
    let chain = agent.dir.chain_name(name);
    let device =
        |number, link| format!("{{ dpdk: \"net_af_xdp{number},iface={link},busy_budget=0\" }}");
    let more = format!(
        "  ports: {{ ingress: {}, egress: {} }}\n{}",
        device(0, CLIENT_LINK),
        device(1, SERVER_LINK),
        worker("spin", batch)?
    );
    let text = agents::chain_text(&chain, &[(function, "user")], &more);
    // A worker starts in the namespace of the caller.
    middle.netns.enter(|| {
        agent.up_all(text)?;
        // Replies pass the redirect, as with the reference program.
        ebpf::detach_xdp(middle.server.index)
    })??;
    let pollers = agent.workers(&chain)?;
    // The worker is removed before its links.
    let parts: Parts = vec![Box::new(agent), redirect_replies(&network)?];
    network_variant(name, about, network, parts, pollers)
}

/// `spec` lines for a worker that polls on the polling core and takes single packets, as the
/// reference programs do.
pub(crate) fn spinning_worker() -> Result<String, Error> {
    worker("spin", BATCH)
}

/// `spec` lines for a worker on the polling core.
pub(crate) fn worker(idle: &str, batch: u16) -> Result<String, Error> {
    Ok(format!(
        "  worker: {{ batch: {batch}, idle: {idle}, core: {} }}\n",
        polling_core()?
    ))
}

fn open_host(up: &ChainUp, role: &str) -> Result<(Netns, IpAddr), Error> {
    let is = |host: &&HostInfo| host.role == role;
    let missing = || ApiError::failed(format!("chain {} has no host `{role}`", up.chain));
    let host = up.hosts.iter().find(is).ok_or_else(missing)?;
    Ok((
        Netns::open(&host.netns)?,
        host.address.parse().map_err(|_| missing())?,
    ))
}
