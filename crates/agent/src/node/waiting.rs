//! Chains that the agent took down because an interface is gone, until it can deploy them again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_spec::ServiceChain;

use crate::api::{ChainSource, ChainState, ChainStatus};
use crate::node::port_state::LinkState;
use crate::pool::lock;

/// Time to the next attempt if no interface of the chain changes.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The interfaces that have the names in the chain file: ingress, then egress.
pub(crate) type NamedLinks = [(String, Option<LinkState>); 2];

/// A chain without a deployment. It keeps its name and its booking in the ledger.
pub(crate) struct WaitingChain {
    pub(crate) chain: ServiceChain,
    /// The chain file.
    pub(crate) source: Arc<ChainSource>,
    /// Whether the chain was deployed against admission (`--force`).
    pub(crate) is_forced: bool,
    /// The status at the end of the deployment.
    last: ChainStatus,
    wait: Mutex<Wait>,
}

/// Why a chain waits.
#[derive(Default)]
struct Wait {
    faults: Vec<String>,
    failure: Option<Failure>,
}

/// A failed attempt to deploy the chain.
struct Failure {
    text: String,
    at: Instant,
    links: NamedLinks,
}

impl WaitingChain {
    /// Creates a chain that has waited for nothing yet. `last` is the chain's status.
    pub(crate) fn new(chain: ServiceChain, source: Arc<ChainSource>, last: ChainStatus) -> Self {
        let faults = last.port_faults.clone();
        Self {
            chain,
            source,
            is_forced: last.plan.best_effort,
            last,
            wait: Mutex::new(Wait {
                faults,
                failure: None,
            }),
        }
    }

    /// Records the faults of the chain's interfaces. Returns whether the agent should deploy the
    /// chain now: all interfaces are there, and none is as it was at a recent failure.
    pub(crate) fn update(&self, faults: Vec<String>, links: &NamedLinks) -> bool {
        let mut wait = lock(&self.wait);
        let is_due = faults.is_empty()
            && wait.failure.as_ref().is_none_or(|failure| {
                failure.links != *links || failure.at.elapsed() > RETRY_INTERVAL
            });
        wait.faults = faults;
        is_due
    }

    /// Records that the deployment failed with this error, between these interfaces.
    pub(crate) fn record_failure(&self, error: &str, links: NamedLinks) {
        lock(&self.wait).failure = Some(Failure {
            text: format!("cannot deploy the chain again, and the agent tries again: {error}"),
            at: Instant::now(),
            links,
        });
    }

    /// The status of the chain: the counters at the end of its deployment, and why it waits.
    pub(crate) fn status(&self) -> ChainStatus {
        let wait = lock(&self.wait);
        let failure = wait.failure.as_ref().filter(|_| wait.faults.is_empty());
        let mut port_faults = wait.faults.clone();
        port_faults.extend(failure.map(|failure| failure.text.clone()));
        drop(wait);
        ChainStatus {
            state: ChainState::Waiting,
            port_faults,
            worker: None,
            more_workers: Vec::new(),
            rings: Vec::new(),
            sla: None,
            up_s: 0.0,
            ..self.last.clone()
        }
    }
}
