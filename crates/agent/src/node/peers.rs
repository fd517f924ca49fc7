//! The agents of one machine: its own, and those of the nodes of its topologies. They share the
//! cores.
//!
//! Each agent writes its bookings to a file in its run directory, and reads those of the others. It
//! decides under a lock on the directory of the machine's agent, so two agents never promise the
//! same time of a core. The kernel frees the lock of a killed agent. The bookings of an agent count
//! as long as it holds the lock on its own run directory, so those of a killed agent are free at
//! once. Without a readable file of a running agent, nothing is admitted. The file may be of
//! another version, so the agent checks each value before the planner computes with it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use myelin_linux::affinity;
use myelin_linux::journal::{Journal, Resource};
use myelin_planner::admission::{Booking, Ledger, peer_of_node};
use nix::fcntl::{Flock, FlockArg};

use crate::api::{ApiError, RunDir};

/// Longest time that another agent may take for a decision. A decision takes milliseconds, so only
/// an agent that is stopped holds the lock longer. Meanwhile this agent keeps its own lock: it can
/// decide nothing without the bookings of the others.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// The name of the machine's own agent among the others.
const MACHINE: &str = "the machine itself";

/// The other agents of this agent's machine.
pub(crate) struct Peers {
    own: RunDir,
    /// The name of this agent among the others.
    name: String,
    /// The run directory of the machine's agent.
    machine: RunDir,
    journal: Journal,
    /// Whether the journal has the file.
    is_recorded: AtomicBool,
}

/// While it exists, no other agent decides or publishes.
pub(crate) struct PeersGuard<'a> {
    peers: &'a Peers,
    _lock: Flock<File>,
}

impl Peers {
    pub(crate) fn new(run_dir: &RunDir, journal: &Journal) -> Self {
        let (machine, name) = match run_dir.machine_of_node() {
            Some((machine, topology, node)) => (machine, peer_of_node(topology, node)),
            None => (run_dir.clone(), MACHINE.to_owned()),
        };
        Self {
            own: run_dir.clone(),
            name,
            machine,
            journal: journal.clone(),
            is_recorded: AtomicBool::new(false),
        }
    }

    /// Whether other agents may run: this is the agent of a node, or nodes exist.
    pub(crate) fn may_run(&self) -> bool {
        self.own != self.machine || self.machine.nodes().exists()
    }

    /// Waits until no other agent decides.
    ///
    /// # Errors
    /// An agent decides for too long, or the directory cannot be locked.
    pub(crate) fn hold(&self) -> Result<PeersGuard<'_>, ApiError> {
        let path = self.machine.path();
        let failed = |error: io::Error| {
            ApiError::failed(format!(
                "{}: cannot lock the bookings of the machine's agents: {error}",
                path.display()
            ))
        };
        let mut directory = File::open(path).map_err(failed)?;
        let start = Instant::now();
        loop {
            match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => {
                    return Ok(PeersGuard {
                        peers: self,
                        _lock: lock,
                    });
                }
                Err((back, _)) if start.elapsed() < LOCK_TIMEOUT => directory = back,
                Err((_, error)) => return Err(failed(error.into())),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The run directories of the other agents that run, each with its name.
    fn running(&self) -> Result<Vec<(String, RunDir)>, ApiError> {
        let nodes = self.machine.nodes();
        let entries = match fs::read_dir(&nodes) {
            Ok(entries) => entries.collect::<Result<Vec<_>, _>>(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let entries = entries.map_err(|error| unreadable(&nodes, &error.to_string()))?;
        let nodes = entries.into_iter().filter_map(|entry| {
            let name = entry.file_name();
            let (topology, node) = name.to_str()?.split_once('.')?;
            let run_dir = self.machine.of_node(topology, node);
            Some((peer_of_node(topology, node), run_dir))
        });
        let all = nodes.chain([(MACHINE.to_owned(), self.machine.clone())]);
        Ok(all
            .filter(|(_, run_dir)| *run_dir != self.own && run_dir.is_served())
            .collect())
    }
}

impl PeersGuard<'_> {
    /// Returns the bookings of the other agents, as they count here.
    ///
    /// # Errors
    /// The file of a running agent cannot be read.
    pub(crate) fn read(&self) -> Result<Vec<Booking>, ApiError> {
        let mut all = Vec::new();
        for (name, run_dir) in self.peers.running()? {
            let path = run_dir.bookings();
            let text = match fs::read(&path) {
                Ok(text) => text,
                // The agent has admitted nothing yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(&path, &error.to_string())),
            };
            let bookings = read_bookings(&text).map_err(|error| unreadable(&path, &error))?;
            let bookings = bookings.into_iter();
            all.extend(bookings.map(|booking| booking.of_peer(&name)));
        }
        Ok(all)
    }

    /// Writes the bookings of this agent for the others.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn publish(self, ledger: &Ledger) -> Result<(), ApiError> {
        let path = self.peers.own.bookings();
        let failed = |error: &dyn std::fmt::Display| {
            ApiError::failed(format!(
                "{}: cannot write the bookings for the other agents of the machine: {error}",
                path.display()
            ))
        };
        if !self.peers.is_recorded.load(Ordering::Relaxed) {
            let path = path.clone();
            let recorded = self.peers.journal.record_intent(&Resource::File { path });
            recorded.map_err(|error| failed(&error))?;
            self.peers.is_recorded.store(true, Ordering::Relaxed);
        }
        let bookings: Vec<&Booking> = ledger.bookings().collect();
        let text = serde_json::to_vec(&bookings).map_err(|error| failed(&error))?;
        // A killed agent may leave a part; nobody reads the file of an agent that has ended.
        fs::write(&path, text).map_err(|error| failed(&error))
    }

    /// Describes the other agents' chains on the cores of a booking, after a refusal.
    pub(crate) fn describe_sharers(&self, own: &Booking, others: &[Booking]) -> Option<String> {
        let mut cores = own.cores();
        let (core, chains) = cores.find_map(|core| {
            let there = others
                .iter()
                .filter(|other| other.cores().any(|other| other == core));
            let chains: Vec<_> = there.map(|other| format!("`{}`", other.chain)).collect();
            (!chains.is_empty()).then_some((core, chains))
        })?;
        Some(format!(
            "; core {core} of {} also serves {}",
            self.peers.name,
            chains.join(", ")
        ))
    }
}

/// Reads the bookings of an agent, and checks their values.
fn read_bookings(text: &[u8]) -> Result<Vec<Booking>, String> {
    let bookings: Vec<Booking> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut names = BTreeSet::new();
    for (index, booking) in bookings.iter().enumerate() {
        let checked = booking.check(&affinity::is_present);
        checked.map_err(|problem| format!("booking {index}: {problem}"))?;
        if !names.insert(&booking.chain) {
            let chain = &booking.chain;
            return Err(format!("booking {index}: a second one of `{chain}`"));
        }
    }
    Ok(bookings)
}

fn unreadable(path: &Path, error: &str) -> ApiError {
    ApiError::failed(format!(
        "{}: cannot read the bookings of another agent on this machine's cores, so no chain is admitted: {error}; \
         `myelin down --all` removes all agents",
        path.display()
    ))
}
