//! Reads all chains once a second.
//!
//! The node is locked for one chain at a time, and a chain whose worker somebody works with is left out until the next second, so nobody waits for
//! the monitor longer than it takes to read one chain.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use myelin_linux::netlink::Netlink;
use myelin_linux::procfs;

use crate::binding::{self, Binding};
use crate::chains::State;
use crate::roster::lock;
use crate::sla::account::Reading;
use crate::sla::{Round, SlaMonitor, reading};

/// Time between two readings of a chain.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon the end of the engine is noticed.
const LOOK: Duration = Duration::from_millis(50);
/// A chain that has just come up waits for the next round.
const YOUNG_S: f64 = 0.2;

/// The monitor, for who asks it.
pub(crate) type Shared = Arc<Mutex<SlaMonitor>>;

type Guarded = Mutex<Option<State>>;

/// Reads until the engine is gone.
pub(crate) fn start(state: Weak<Guarded>) -> Shared {
    let monitor = Shared::default();
    let taker = Arc::clone(&monitor);
    std::thread::spawn(move || {
        let mut netlink = Netlink::open()
            .inspect_err(
                |error| tracing::warn!(%error, "what interfaces lose is not seen by the SLA monitor"),
            )
            .ok();
        let mut next = Instant::now() + INTERVAL;
        let mut bindings = BTreeMap::new();
        loop {
            std::thread::sleep(LOOK.min(next.saturating_duration_since(Instant::now())));
            let Some(state) = state.upgrade() else {
                return;
            };
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + INTERVAL;
            let mut round = read(&state, netlink.as_mut());
            drop(state);
            bindings = hold_cores(&mut round.readings, &bindings);
            lock(&taker).take(round);
        }
    });
    monitor
}

fn read(state: &Guarded, mut netlink: Option<&mut Netlink>) -> Round {
    let running = with(state, |state| {
        let chains = state.chains.iter();
        let chains = chains.map(|(name, deployed)| (name.clone(), deployed.spi));
        let devices = state.node.devices.running();
        chains.chain(devices).collect()
    });
    let mut round = Round {
        running: running.unwrap_or_default(),
        readings: Vec::new(),
        // A machine that does not tell them has no cores to blame.
        cores: procfs::cpu_times().unwrap_or_default(),
        end: SystemTime::now(),
    };
    for (name, _) in &round.running {
        let read = with(state, |state| read_one(state, name, netlink.as_deref_mut()));
        let reading = read.flatten();
        round
            .readings
            .extend(reading.filter(|reading| reading.up_s > YOUNG_S));
    }
    round
}

/// Sees to it that each worker has its core, once for all chains that it serves, and notes where that fails. Returns how each worker stands, by
/// process.
fn hold_cores(readings: &mut [Reading], before: &BTreeMap<u32, Binding>) -> BTreeMap<u32, Binding> {
    let mut bindings = BTreeMap::new();
    for reading in readings {
        for worker in &mut reading.workers {
            let (pid, Some(core)) = (worker.pid, worker.core) else {
                continue;
            };
            worker.binding = *bindings.entry(pid).or_insert_with(|| {
                // One that has just been started binds itself.
                let Some(before) = before.get(&pid).copied() else {
                    return Binding::Kept;
                };
                let binding = binding::hold(pid, core);
                if binding != before {
                    tracing::warn!(chain = reading.name, worker = pid, core, ?binding, "core");
                }
                binding
            });
        }
    }
    bindings
}

fn read_one(state: &State, name: &str, netlink: Option<&mut Netlink>) -> Option<Reading> {
    let node = &state.node;
    let Some(deployed) = state.chains.get(name) else {
        return node.devices.reading(name);
    };
    let mut workers = deployed.form.layout.workers().into_iter();
    let is_free = workers.all(|key| node.workers.is_free(key));
    is_free.then(|| reading::of(deployed, node, netlink))
}

/// Works with the node, unless the engine is ending.
fn with<T>(state: &Guarded, work: impl FnOnce(&State) -> T) -> Option<T> {
    lock(state).as_ref().map(work)
}
