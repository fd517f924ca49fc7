//! Starts workers, the processes behind them and black boxes again when they die, and gives up those that keep dying.
//!
//! The supervision skips a worker that a request holds, so no request delays the restart of another worker.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::control::binding;
use crate::node::Node;
use crate::node::black_box;
use crate::node::stages::Death;
use crate::node::workers::Worker;

/// How often processes are looked at: a dead one is back within 100 ms.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Supervises until the node is gone. The start of a DPDK environment takes a fraction of a second, and that of a container may take
/// seconds: each kind has a thread of its own.
pub(crate) fn start(node: &Arc<Node>) {
    spawn(node, |node| {
        workers(node, |worker| worker.devices.is_none());
    });
    spawn(node, |node| {
        workers(node, |worker| worker.devices.is_some());
    });
    spawn(node, black_boxes);
}

fn spawn(node: &Arc<Node>, look: impl Fn(&Node) + Send + 'static) {
    let node: Weak<Node> = Arc::downgrade(node);
    std::thread::spawn(move || {
        while let Some(node) = node.upgrade() {
            look(&node);
            drop(node);
            std::thread::sleep(LOOK_EVERY);
        }
    });
}

fn workers(node: &Node, is_wanted: impl Fn(&Worker) -> bool) {
    for (key, worker) in node.parts.workers.members() {
        if !is_wanted(&worker) {
            continue;
        }
        for death in revive(&worker) {
            if death == Death::Restarted {
                tracing::warn!(
                    owner = key.owner,
                    circuit = key.circuit,
                    "a worker died and was started again"
                );
                continue;
            }
            tracing::error!(
                owner = key.owner,
                circuit = key.circuit,
                "a worker keeps dying and is given up"
            );
            fail_chains(node, &worker, &death);
        }
    }
}

/// Starts a dead worker again, and dead processes behind it. Returns what became of those that were dead.
fn revive(worker: &Worker) -> Vec<Death> {
    let Some(mut entry) = worker.idle_entry() else {
        return Vec::new();
    };
    if worker.has_failed() {
        return Vec::new();
    }
    let mut deaths = entry.revive_stages();
    if entry.handle().is_alive() {
        return deaths;
    }
    worker.log_memory_limit();
    if entry.deaths.record_death(Instant::now()) {
        worker.give_up();
        deaths.push(Death::GivenUp);
        return deaths;
    }
    if let Err(error) = entry.handle().restart() {
        tracing::error!(owner = worker.key.owner, circuit = worker.key.circuit, %error, "a worker did not come up again");
        if entry.deaths.record_failed_start() {
            worker.give_up();
            deaths.push(Death::GivenUp);
        }
        return deaths;
    }
    entry.deaths.record_start();
    if let Some(core) = worker.facts.core() {
        // Without its core it is to give way to others from its first packet on, since it may poll.
        binding::hold(worker.facts.pid(), core);
    }
    deaths.push(Death::Restarted);
    deaths
}

/// A process was given up: the chains that it served have failed.
fn fail_chains(node: &Node, worker: &Worker, death: &Death) {
    for running in node.chains.all() {
        let form = running.form();
        let mut workers = form.layout.workers().into_iter();
        let is_hit = workers.any(|one| one.key == worker.key)
            && match *death {
                Death::StageGivenUp { spi, generation } => {
                    (running.spi, form.generation) == (spi, generation)
                }
                Death::Restarted | Death::GivenUp => true,
            };
        if is_hit {
            running.fail();
        }
    }
}

fn black_boxes(node: &Node) {
    for (key, black_box) in node.parts.black_boxes.members() {
        if black_box.look_after() {
            fail_chain_of(node, key);
        }
    }
}

/// The program of a black box keeps ending.
fn fail_chain_of(node: &Node, key: black_box::Key) {
    let chains = node.chains.all();
    let mut chains = chains.iter();
    let of_box = chains.find(|one| (one.spi, one.form().generation) == (key.spi, key.generation));
    if let Some(running) = of_box {
        running.fail();
    }
}
