//! Where on a node a chain stands, and what the node's cores do beside it.

use std::collections::BTreeMap;

use myelin_spec::ServiceChain;

use super::way::Resource;
use crate::calculus::SECOND;
use crate::costs::Costs;
use crate::frame::{self, LONGEST};
use crate::machine::Machine;

/// Femtoseconds of a nanosecond.
pub(crate) const NS: u128 = SECOND / 1_000_000_000;

/// Where a chain stands: what it shares with others of the same names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The interface or device where its packets come in.
    pub ingress: String,
    /// Receive queues of that interface.
    pub queues: u32,
    /// Where they leave.
    pub egress: String,
    /// The worker of its user functions, by a name that those who share it have in common.
    pub worker: String,
    /// The core that the worker is bound to.
    pub core: u32,
    /// Speed of the egress link, bits a second, where it has one.
    pub egress_bps: Option<u64>,
    /// The longest IP packet that comes in, bytes: the MTU of the ingress interface, 1500 where that is not known.
    pub ingress_mtu: Option<u32>,
}

impl Site {
    /// The site of a chain that has not been deployed: the interfaces that its file names or ones of its own, and the core that the agent
    /// would choose.
    pub fn planned(chain: &ServiceChain, machine: &Machine) -> Self {
        // A chain and its reverse lie on the same two links.
        let circuit = chain
            .reverse
            .as_ref()
            .map_or(&chain.name, |reverse| reverse.min(&chain.name));
        let (ingress, egress, worker) = chain.ports.as_ref().map_or_else(
            || {
                let ends = (format!("{circuit}: ingress"), format!("{circuit}: egress"));
                let (ingress, egress) = if *circuit == chain.name {
                    ends
                } else {
                    (ends.1, ends.0)
                };
                (ingress, egress, format!("{}@{circuit}", chain.owner()))
            },
            |ports| {
                // All named interfaces of an owner have one worker, and each pair of devices has one.
                let pair = if chain.is_over_dpdk() {
                    let (one, other) = (&ports.ingress, &ports.egress);
                    format!("{} {}", one.min(other), one.max(other))
                } else {
                    String::new()
                };
                (
                    ports.ingress.clone(),
                    ports.egress.clone(),
                    format!("{}@{pair}", chain.owner()),
                )
            },
        );
        Self {
            worker,
            core: chain.worker.core.unwrap_or_else(|| machine.default_core()),
            egress_bps: machine.egress_bps,
            ingress_mtu: machine.ingress_mtu,
            ingress,
            queues: 1,
            egress,
        }
    }

    /// The longest frame that comes in, without frame check sequence, bytes.
    pub(super) fn longest(&self) -> u64 {
        self.ingress_mtu
            .map_or(LONGEST, |mtu| frame::longest(mtu.into()))
    }

    /// The kernel's part where its packets come in.
    pub(super) fn port(&self) -> Resource {
        Resource::Port {
            name: self.ingress.clone(),
            queues: self.queues,
        }
    }
}

/// What the bound needs to know of the node beside the costs of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    stalls_fs: BTreeMap<u32, u128>,
    default_stall_fs: u128,
    pub(super) slice_fs: u128,
}

impl Platform {
    /// The node that these costs were measured on.
    pub fn new(costs: &Costs) -> Self {
        let stalls = costs.stalls.iter();
        let stalls_fs: BTreeMap<_, _> = stalls
            .map(|(core, stall)| (*core, u128::from(stall.stall_ns) * NS))
            .collect();
        let default_stall_fs = stalls_fs.values().copied().max();
        Self {
            stalls_fs,
            default_stall_fs: default_stall_fs
                .unwrap_or(u128::from(crate::costs::DEFAULT_STALL_NS) * NS),
            slice_fs: u128::from(costs.slice_ns) * NS,
        }
    }

    /// For how long this core may stand still, fs.
    pub(super) fn stall_fs(&self, core: u32) -> u128 {
        self.stalls_fs
            .get(&core)
            .copied()
            .unwrap_or(self.default_stall_fs)
    }

    /// The same of a core that is not known.
    pub(super) fn worst_stall_fs(&self) -> u128 {
        self.default_stall_fs
    }
}
