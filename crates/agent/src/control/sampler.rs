//! Reads all chains once a second for the SLA monitor, and keeps each worker on its core.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use myelin_linux::netlink::Netlink;
use myelin_linux::procfs::{self, CpuTimes};
use myelin_policy::sla::{Binding, CoreLoad, Round, SlaMonitor};

use crate::control::{actuator, reading};
use crate::node::Node;
use crate::pool::lock;

/// Time between two readings of a chain.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time between the end of the node and the end of the thread.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum age of a chain in a round, s. The next round includes a younger chain.
const MIN_AGE_S: f64 = 0.2;

/// The SLA monitor, shared with the requests that read it.
pub(crate) type SharedMonitor = Arc<Mutex<SlaMonitor>>;

/// Starts the thread that reads all chains once a second until the node is dropped.
pub(crate) fn start(node: &Arc<Node>) -> SharedMonitor {
    let node: Weak<Node> = Arc::downgrade(node);
    let monitor = SharedMonitor::default();
    let shared = Arc::clone(&monitor);
    std::thread::spawn(move || {
        let mut netlink = Netlink::open()
            .inspect_err(
                |error| tracing::warn!(%error, "cannot open netlink: the SLA monitor does not count packets lost at interfaces"),
            )
            .ok();
        let mut next = Instant::now() + READ_INTERVAL;
        let mut bindings = BTreeMap::new();
        let mut cores = Vec::new();
        loop {
            std::thread::sleep(
                END_CHECK_INTERVAL.min(next.saturating_duration_since(Instant::now())),
            );
            let Some(node) = node.upgrade() else {
                return;
            };
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + READ_INTERVAL;
            let mut round = read_round(&node, netlink.as_mut(), &mut cores);
            drop(node);
            bindings = bind_workers(&mut round, bindings);
            let verdicts = lock(&shared).add_round(round);
            // No controller acts on them yet.
            for verdict in verdicts.iter().filter(|verdict| !verdict.terms.is_empty()) {
                tracing::debug!(chain = verdict.chain, terms = ?verdict.terms, "a second violates the contract");
            }
        }
    });
    monitor
}

/// Reads all chains. `cores` holds the CPU times of the previous round; the function updates them.
fn read_round(node: &Node, mut netlink: Option<&mut Netlink>, cores: &mut Vec<CpuTimes>) -> Round {
    let running = node.chains.all();
    // Without CPU times, the monitor names no core as a cause.
    let times = procfs::cpu_times().unwrap_or_default();
    let mut round = Round {
        running: running
            .iter()
            .map(|running| (running.name.clone(), running.spi))
            .collect(),
        readings: Vec::new(),
        cores: compute_core_loads(&times, cores),
        end: SystemTime::now(),
    };
    *cores = times;
    for running in &running {
        let reading = reading::read_chain(running, &node.parts.plane, netlink.as_deref_mut());
        if reading.up_s > MIN_AGE_S {
            round.readings.push(reading);
        }
    }
    round
}

/// Computes the load of each core between two readings.
fn compute_core_loads(now: &[CpuTimes], before: &[CpuTimes]) -> Vec<CoreLoad> {
    let loads = now.iter().filter_map(|now| {
        let before = before.iter().find(|before| before.cpu == now.cpu)?;
        let spent = now.since(before);
        let total = spent.total().as_secs_f64();
        (total > 0.0).then(|| CoreLoad {
            core: now.cpu as u32,
            steal: spent.steal.as_secs_f64() / total,
            softirq: spent.softirq.as_secs_f64() / total,
            idle: spent.idle.as_secs_f64() / total,
        })
    });
    loads.collect()
}

/// A worker's binding at the last check.
struct WorkerBinding {
    chain: String,
    core: u32,
    binding: Binding,
}

/// Binds each worker to its core, once for all chains that it serves, and records failures. Returns
/// the binding of each worker by process number.
fn bind_workers(
    round: &mut Round,
    before: BTreeMap<u32, WorkerBinding>,
) -> BTreeMap<u32, WorkerBinding> {
    let mut bindings: BTreeMap<u32, WorkerBinding> = BTreeMap::new();
    for reading in &mut round.readings {
        for worker in &mut reading.workers {
            let (pid, Some(core)) = (worker.pid, worker.core) else {
                continue;
            };
            let checked = bindings.entry(pid).or_insert_with(|| {
                // A new process binds itself, unless the core is already lost.
                let is_lost =
                    |earlier: &&WorkerBinding| earlier.core == core && earlier.binding.is_lost();
                let was = before
                    .get(&pid)
                    .or_else(|| before.values().find(is_lost))
                    .map(|earlier| earlier.binding);
                let binding = was.map_or(Binding::Kept, |was| {
                    // A lost core stays lost after its worker has ended.
                    let ended = Some(was).filter(|was| was.is_lost());
                    actuator::keep_on_core(pid, core)
                        .or(ended)
                        .unwrap_or_default()
                });
                if binding != was.unwrap_or_default() {
                    tracing::warn!(
                        chain = reading.name,
                        worker = pid,
                        core,
                        ?binding,
                        "the binding of a worker to its core changed"
                    );
                }
                WorkerBinding {
                    chain: reading.name.clone(),
                    core,
                    binding,
                }
            });
            worker.binding = checked.binding;
        }
    }
    // A worker under SCHED_IDLE may be too slow for its chain to be read. Bind that worker too.
    for (pid, mut worker) in before {
        let is_read = round
            .readings
            .iter()
            .any(|reading| reading.name == worker.chain);
        let mut running = round.running.iter();
        let is_up = running.any(|(name, _)| *name == worker.chain);
        if is_up && !is_read && !bindings.contains_key(&pid) {
            if worker.binding.is_lost() {
                worker.binding = actuator::keep_on_core(pid, worker.core).unwrap_or(worker.binding);
            }
            bindings.insert(pid, worker);
        }
    }
    bindings
}

#[cfg(test)]
mod tests {
    use myelin_linux::affinity;
    use myelin_policy::sla::{Reading, WorkerTimes};

    use super::*;

    fn round(running: &[&str]) -> Round {
        let running = running.iter().map(|name| ((*name).to_owned(), 1));
        Round {
            running: running.collect(),
            readings: Vec::new(),
            cores: Vec::new(),
            end: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_worker_of_an_unread_chain_gets_its_core_back() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let core = affinity::get(0).unwrap()[0];
                let thread = nix::unistd::gettid().as_raw().cast_unsigned();
                let lost = WorkerBinding {
                    chain: "c".to_owned(),
                    core: core as u32,
                    binding: Binding::Forbidden,
                };
                let bindings = bind_workers(&mut round(&["c"]), BTreeMap::from([(thread, lost)]));
                assert!(!bindings[&thread].binding.is_lost());
                assert_eq!(affinity::get(0).unwrap(), [core]);
                assert!(bind_workers(&mut round(&["another"]), bindings).is_empty());
            });
        });
    }

    #[test]
    fn a_lost_core_stays_lost_while_its_worker_is_replaced() {
        const MISSING_CORE: u32 = 1000;
        let read = |pid: u32, before: BTreeMap<u32, WorkerBinding>| {
            let mut round = round(&["c"]);
            round.readings.push(Reading {
                name: "c".to_owned(),
                workers: vec![WorkerTimes {
                    pid,
                    core: Some(MISSING_CORE),
                    ..WorkerTimes::default()
                }],
                ..Reading::default()
            });
            let bindings = bind_workers(&mut round, before);
            (round.readings[0].workers[0].binding, bindings)
        };
        let ended = u32::MAX >> 1;
        let lost = WorkerBinding {
            chain: "c".to_owned(),
            core: MISSING_CORE,
            binding: Binding::Offline,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let next = nix::unistd::gettid().as_raw().cast_unsigned();
                assert_eq!(read(next, BTreeMap::new()).0, Binding::Kept);
                let (binding, bindings) = read(ended, BTreeMap::from([(ended, lost)]));
                assert_eq!(binding, Binding::Offline);
                let (binding, bindings) = read(next, bindings);
                assert_eq!(binding, Binding::Offline);
                assert_eq!(bindings.len(), 1);
            });
        });
    }
}
