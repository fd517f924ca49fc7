//! Chains that the agent took down because an interface is gone, until it can deploy them again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_spec::{OnFailure, ServiceChain};

use crate::api::{ChainSource, ChainState, ChainStatus};
use crate::node::Parts;
use crate::node::chains::Generation;
use crate::node::ingress_block::IngressBlock;
use crate::node::port_state::{self, LinkState};
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
    /// Indices of the interfaces of that deployment: ingress, then egress.
    indices: [u32; 2],
    /// Whether the chain's packets are dropped meanwhile (`onFailure: drop`).
    must_drop: bool,
    guard: Mutex<Guard>,
    wait: Mutex<Wait>,
}

/// Drops the packets of a waiting chain at its ingress interface.
#[derive(Default)]
struct Guard {
    block: Option<IngressBlock>,
    /// The ingress interface at the last attempt to make the block.
    tried_at: Option<LinkState>,
    /// Packets that earlier blocks dropped.
    dropped: u64,
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
    /// Creates a waiting chain. `last` is the chain's status, `indices` are those of its
    /// interfaces.
    pub(crate) fn new(
        generation: &Generation,
        last: ChainStatus,
        indices: [u32; 2],
        block: Option<IngressBlock>,
    ) -> Self {
        let faults = last.port_faults.clone();
        Self {
            chain: generation.chain.clone(),
            source: Arc::clone(&generation.source),
            is_forced: generation.plan.best_effort,
            last,
            indices,
            must_drop: generation.plan.on_failure == OnFailure::Drop,
            guard: Mutex::new(Guard {
                block,
                ..Guard::default()
            }),
            wait: Mutex::new(Wait {
                faults,
                failure: None,
            }),
        }
    }

    /// Judges the chain's interfaces. Returns whether the agent should deploy the chain now: all
    /// interfaces are there, and a recent failure is not of the same interfaces.
    pub(crate) fn judge(&self, links: &NamedLinks) -> bool {
        let faults = port_state::judge_waiting(links, self.indices);
        let mut wait = lock(&self.wait);
        let is_due = faults.is_empty()
            && wait.failure.as_ref().is_none_or(|failure| {
                failure.links != *links || failure.at.elapsed() > RETRY_INTERVAL
            });
        wait.faults = faults;
        is_due
    }

    /// Whether [`guard`](Self::guard) has work at this ingress interface.
    pub(crate) fn needs_guard(&self, ingress: Option<&LinkState>) -> bool {
        self.must_drop && ingress.is_some() && lock(&self.guard).tried_at.as_ref() != ingress
    }

    /// Drops the chain's packets at its present ingress interface from now on. Frees the port of an
    /// interface that was removed or changed, because a chain is not deployed on such a port.
    pub(crate) fn guard(&self, parts: &Parts, ingress: Option<&LinkState>) {
        if !self.must_drop {
            return;
        }
        let mut guard = lock(&self.guard);
        let fits = |block: &IngressBlock| ingress.is_some_and(|link| block.is_at(link));
        if !guard.block.as_ref().is_some_and(fits) {
            guard.dropped += guard.block.take().map_or(0, |block| block.dropped());
            if let Some(link) = ingress {
                let opened = IngressBlock::open(parts, link.index, self.chain.matches);
                let opened = opened.inspect_err(|error| {
                    tracing::warn!(chain = self.chain.name, %error, "cannot drop the packets of a waiting chain");
                });
                guard.block = opened.ok();
            }
        }
        guard.tried_at = ingress.cloned();
    }

    /// Records that the deployment failed with this error, between these interfaces.
    pub(crate) fn record_failure(&self, error: &str, links: NamedLinks) {
        if let Some(block) = &lock(&self.guard).block {
            block.renew();
        }
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
        let mut last = self.last.clone();
        let guard = lock(&self.guard);
        let dropped = guard.block.as_ref().map_or(0, IngressBlock::dropped) + guard.dropped;
        drop(guard);
        if dropped > 0 {
            last.packets_in += dropped;
            last.account.packets_in += dropped;
            *last.account.lost.entry("door".to_owned()).or_default() += dropped;
        }
        ChainStatus {
            state: ChainState::Waiting,
            port_faults,
            worker: None,
            more_workers: Vec::new(),
            rings: Vec::new(),
            sla: None,
            up_s: 0.0,
            ..last
        }
    }
}
