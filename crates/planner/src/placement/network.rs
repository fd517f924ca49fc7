//! Nodes with their free capacity, and the links between them.

use std::collections::{BTreeMap, BTreeSet};

use myelin_spec::Sla;

use crate::admission::{CoreLoad, Ledger, Platform};
use crate::calculus::{ArrivalCurve, RateLatency};

/// Nodes, other vertices (hosts and switches), and links.
///
/// Vertices have numbers: first the nodes in their order, then all others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// The cores. Several nodes may share one.
    pub cores: Vec<CoreRoom>,
    /// The nodes.
    pub nodes: Vec<NodeRoom>,
    /// Number of vertices that are no nodes.
    pub others: usize,
    /// The links.
    pub links: Vec<LinkRoom>,
    /// Vertices that forward no frames: a path begins or ends there.
    pub ends: BTreeSet<usize>,
    /// The paths between two nodes that only routers join, by the numbers of both.
    pub routed: BTreeMap<(usize, usize), Vec<Hop>>,
}

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The number of the link.
    pub link: usize,
    /// The number of the end where the direction begins, 0 or 1.
    pub from: usize,
}

/// A core and its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreRoom {
    /// The core's number on its machine.
    pub number: u32,
    /// The core's service for chains: work in fs of its time, and its longest stall.
    pub service: RateLatency,
    /// Work of the admitted chains, in fs of the core's time.
    pub load: ArrivalCurve,
    /// Longest delay at the core with which all promises to admitted chains hold, fs; `None`
    /// without promises.
    pub longest_fs: Option<u128>,
}

/// A node and its free capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRoom {
    /// The name.
    pub name: String,
    /// Its cores, as indices of [`Network::cores`].
    pub cores: Vec<usize>,
    /// Free memory, bytes.
    pub memory_bytes: u64,
}

/// A link and its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRoom {
    /// The name.
    pub name: String,
    /// The numbers of its two vertices.
    pub ends: [usize; 2],
    /// Propagation delay, fs.
    pub delay_fs: u128,
    /// Rate, bits a second; `None`: not limited.
    pub rate_bps: Option<u64>,
    /// Bits of the admitted chains in each direction: from the first end, and from the second.
    pub load: [ArrivalCurve; 2],
}

impl CoreRoom {
    /// Adds the admitted chains of a ledger, for a chain with this contract. A core has no room for
    /// both a promise and a chain without a rate.
    #[must_use]
    pub(super) fn with_load(self, ledger: &Ledger, platform: &Platform, sla: &Sla) -> Self {
        let is_unlimited = sla.policing_profile().is_unlimited();
        let (load, longest_fs) = match ledger.core_load(self.number, platform) {
            Some(CoreLoad { load, longest_fs }) if is_unlimited => (load, longest_fs.map(|_| 0)),
            Some(CoreLoad { load, longest_fs }) => (load, longest_fs),
            None => (self.load, sla.latency_ns.map(|_| 0)),
        };
        Self {
            load,
            longest_fs,
            ..self
        }
    }

    /// Creates a whole core with the admitted chains of a ledger; `None` if no chain with a promise
    /// may use the core.
    pub fn of_ledger(ledger: &Ledger, number: u32, platform: &Platform) -> Option<Self> {
        let CoreLoad { load, longest_fs } = ledger.core_load(number, platform)?;
        Some(Self {
            number,
            service: RateLatency::core(platform.stall_fs(number)),
            load,
            longest_fs,
        })
    }
}

impl Network {
    /// Returns the number of vertices.
    pub fn vertices(&self) -> usize {
        self.nodes.len().saturating_add(self.others)
    }

    /// Returns the number of the node with this name.
    pub(super) fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// Returns the problem with the numbers of cores and vertices.
    pub(super) fn find_fault(&self) -> Option<String> {
        if self.nodes.is_empty() {
            return Some("the network has no node".to_owned());
        }
        let cores = |node: &&NodeRoom| node.cores.iter().any(|core| *core >= self.cores.len());
        if let Some(node) = self.nodes.iter().find(cores) {
            return Some(format!("the node `{}` has an unknown core", node.name));
        }
        let ends = |link: &&LinkRoom| link.ends.iter().any(|end| *end >= self.vertices());
        let link = self.links.iter().find(ends)?;
        Some(format!("the link `{}` has an unknown end", link.name))
    }
}
