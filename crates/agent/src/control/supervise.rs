//! Restarts dead workers, pipeline stages, black boxes and delay lines. Stops restarting processes
//! that end too often.
//!
//! The supervisor skips a worker that a request holds, so no request delays other restarts.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::control::actuator;
use crate::node::Node;
use crate::node::black_box;
use crate::node::delay_line::LineCheck;
use crate::node::stages::RestartOutcome;
use crate::node::workers::Worker;

/// Time between two checks: a dead process is restarted within 100 ms.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Supervises until the node is dropped. A container may take seconds to start, so black boxes have
/// their own thread, and so has each restart of a worker.
pub(crate) fn start(node: &Arc<Node>) {
    spawn_loop(node, restart_workers);
    spawn_loop(node, |node| restart_black_boxes(node));
    spawn_loop(node, |node| restart_delay_lines(node));
    spawn_loop(node, |node| node.parts.cores.restart_preemptors());
    spawn_loop(node, |node| shorten_outputs(node));
}

fn spawn_loop(node: &Arc<Node>, check: impl Fn(&Arc<Node>) + Send + 'static) {
    let node: Weak<Node> = Arc::downgrade(node);
    std::thread::spawn(move || {
        while let Some(node) = node.upgrade() {
            check(&node);
            drop(node);
            std::thread::sleep(CHECK_INTERVAL);
        }
    });
}

/// Starts a thread for each worker with a dead process, so that no slow start delays the others.
fn restart_workers(node: &Arc<Node>) {
    for (_, worker) in node.parts.workers.members() {
        if !has_dead_process(&worker) || worker.is_restarting.swap(true, Ordering::AcqRel) {
            continue;
        }
        let (node, restarted) = (Arc::clone(node), Arc::clone(&worker));
        let started = std::thread::Builder::new().spawn(move || {
            restart_worker(&node, &restarted);
            restarted.is_restarting.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start a thread that restarts a worker; trying again");
            worker.is_restarting.store(false, Ordering::Release);
        }
    }
}

fn has_dead_process(worker: &Worker) -> bool {
    let state = worker.try_lock_state();
    state.is_some_and(|mut state| {
        !worker.has_failed() && (!state.handle().is_alive() || state.has_dead_stage())
    })
}

fn restart_worker(node: &Node, worker: &Worker) {
    let key = &worker.key;
    let outcomes = restart_dead_processes(worker);
    if outcomes.contains(&RestartOutcome::Restarted)
        && let Err(error) = worker.cores.replace_process(worker)
    {
        tracing::error!(owner = key.owner, %error, "the tasks of a core no longer take turns");
    }
    for outcome in outcomes {
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
        fail_chains(node, worker, &outcome);
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
        actuator::keep_on_core(worker.facts.pid(), core);
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

/// A container that floods its output must not fill the disk.
fn shorten_outputs(node: &Node) {
    for topology in node.topologies.all() {
        topology.containers.truncate_logs();
    }
}

fn restart_delay_lines(node: &Node) {
    for topology in node.topologies.all() {
        let Some(line) = topology.line.get() else {
            continue;
        };
        let topology = &topology.name;
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
