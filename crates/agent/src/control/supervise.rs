//! Restarts dead workers, pipeline stages, black boxes and delay lines. Stops restarting processes
//! that end too often.
//!
//! The supervisor skips a worker that a request holds, so no request delays other restarts.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::control::binding;
use crate::node::Node;
use crate::node::black_box;
use crate::node::delay_line::LineCheck;
use crate::node::stages::RestartOutcome;
use crate::node::workers::Worker;

/// Time between two checks: a dead process is restarted within 100 ms.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Supervises until the node is dropped. A DPDK environment takes a fraction of a second to start,
/// and a container may take seconds, so each kind has its own thread.
pub(crate) fn start(node: &Arc<Node>) {
    spawn_loop(node, |node| {
        restart_workers(node, |worker| worker.devices.is_none());
    });
    spawn_loop(node, |node| {
        restart_workers(node, |worker| worker.devices.is_some());
    });
    spawn_loop(node, restart_black_boxes);
    spawn_loop(node, restart_delay_lines);
}

fn spawn_loop(node: &Arc<Node>, check: impl Fn(&Node) + Send + 'static) {
    let node: Weak<Node> = Arc::downgrade(node);
    std::thread::spawn(move || {
        while let Some(node) = node.upgrade() {
            check(&node);
            drop(node);
            std::thread::sleep(CHECK_INTERVAL);
        }
    });
}

fn restart_workers(node: &Node, is_wanted: impl Fn(&Worker) -> bool) {
    for (key, worker) in node.parts.workers.members() {
        if !is_wanted(&worker) {
            continue;
        }
        for outcome in restart_dead_processes(&worker) {
            if outcome == RestartOutcome::Restarted {
                tracing::warn!(
                    owner = key.owner,
                    circuit = key.circuit,
                    "a worker died and was restarted"
                );
                continue;
            }
            tracing::error!(
                owner = key.owner,
                circuit = key.circuit,
                "a worker ended too often and is no longer restarted: the worker's chains are `failed` until `myelin down`"
            );
            fail_chains(node, &worker, &outcome);
        }
    }
}

/// Restarts a dead worker and its dead pipeline stages. Returns the outcome for each dead process.
fn restart_dead_processes(worker: &Worker) -> Vec<RestartOutcome> {
    let Some(mut state) = worker.try_lock_state() else {
        return Vec::new();
    };
    if worker.has_failed() {
        return Vec::new();
    }
    let mut outcomes = state.restart_dead_stages();
    if state.handle().is_alive() {
        return outcomes;
    }
    worker.log_oom_kill();
    if state.deaths.record_death(Instant::now()) {
        worker.mark_failed();
        outcomes.push(RestartOutcome::WorkerFailed);
        return outcomes;
    }
    if let Err(error) = state.handle().restart() {
        tracing::error!(owner = worker.key.owner, circuit = worker.key.circuit, %error, "cannot restart a worker");
        if state.deaths.record_failed_start() {
            worker.mark_failed();
            outcomes.push(RestartOutcome::WorkerFailed);
        }
        return outcomes;
    }
    state.deaths.record_start();
    if let Some(core) = worker.facts.core() {
        // The new worker may poll. Without its core, the worker must run under SCHED_IDLE from its
        // first packet on.
        binding::restore(worker.facts.pid(), core);
    }
    outcomes.push(RestartOutcome::Restarted);
    outcomes
}

/// Fails the chains of a process that is no longer restarted.
fn fail_chains(node: &Node, worker: &Worker, outcome: &RestartOutcome) {
    for running in node.chains.all() {
        let current = running.generation();
        let mut workers = current.layout.workers().into_iter();
        let uses_process = workers.any(|lease| lease.key == worker.key)
            && match *outcome {
                RestartOutcome::StageFailed { spi, generation } => {
                    (running.spi, current.number) == (spi, generation)
                }
                RestartOutcome::Restarted | RestartOutcome::WorkerFailed => true,
            };
        if uses_process {
            running.fail();
        }
    }
}

fn restart_black_boxes(node: &Node) {
    for (key, black_box) in node.parts.black_boxes.members() {
        if black_box.restart_if_ended() {
            fail_chain_of_box(node, key);
        }
    }
}

fn restart_delay_lines(node: &Node) {
    for topology in node.topologies.all() {
        let Some(line) = topology.line.get() else {
            continue;
        };
        let topology = &topology.declared.name;
        match line.restart_if_dead() {
            LineCheck::Alive => {}
            LineCheck::Restarted => {
                tracing::warn!(topology, "a delay line died and was restarted");
            }
            LineCheck::Failed => tracing::error!(
                topology,
                "a delay line ended too often and is no longer restarted: its links drop all packets until `myelin down`"
            ),
        }
    }
}

/// Fails the chain of a black box that is no longer restarted.
fn fail_chain_of_box(node: &Node, key: black_box::Key) {
    let chains = node.chains.all();
    let mut chains = chains.iter();
    let user = chains
        .find(|running| (running.spi, running.generation().number) == (key.spi, key.generation));
    if let Some(running) = user {
        running.fail();
    }
}
