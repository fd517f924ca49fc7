//! The running chains over nodes of topologies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use myelin_manager::Deployment;
use myelin_manager::deployment::NewPart;
use myelin_packet::meta::MAX_SPI;
use myelin_planner::Plan;
use myelin_spec::ServiceChain;
use myelin_spec::part::FIRST_PATH;

use crate::pool::lock;

/// A running chain over nodes.
pub(crate) struct RunningSpan {
    /// The whole.
    pub(crate) chain: ServiceChain,
    /// The plan of the whole.
    pub(crate) plan: Plan,
    /// The topology of the nodes.
    pub(crate) topology: String,
    /// The service path identifier of the whole.
    pub(crate) path: u32,
    pub(crate) generation: u16,
    /// The parts as the nodes got them.
    pub(crate) parts: Vec<NewPart>,
    /// The names of the functions of each part.
    pub(crate) functions: Vec<Vec<String>>,
    pub(crate) deployment: Deployment,
    /// The time since which the first generation is up.
    pub(crate) since: Instant,
}

/// The running chains over nodes, by name.
#[derive(Default)]
pub(crate) struct Spans {
    running: Mutex<BTreeMap<String, Arc<RunningSpan>>>,
    next_path: AtomicU32,
}

impl Spans {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<RunningSpan>> {
        lock(&self.running).get(name).cloned()
    }

    /// Returns all chains, by name.
    pub(crate) fn all(&self) -> Vec<Arc<RunningSpan>> {
        lock(&self.running).values().cloned().collect()
    }

    pub(crate) fn insert(&self, span: Arc<RunningSpan>) {
        lock(&self.running).insert(span.chain.name.clone(), span);
    }

    pub(crate) fn remove(&self, name: &str) -> Option<Arc<RunningSpan>> {
        lock(&self.running).remove(name)
    }

    /// Returns an unused identifier of a path. The identifier of an earlier generation is not
    /// reused, so a late packet cannot enter another one.
    pub(crate) fn take_path(&self) -> u32 {
        let number = self.next_path.fetch_add(1, Ordering::Relaxed);
        FIRST_PATH + number % (MAX_SPI - FIRST_PATH + 1)
    }
}
