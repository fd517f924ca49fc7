//! The worker of a chain.

use myelin_spec::{Mapping, ServiceChain, Space};
use serde::{Deserialize, Serialize};

use super::Plan;
use crate::machine::Machine;

/// The worker that runs a chain's user functions. Chains with the same owner and circuit share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerPlan {
    /// The owner.
    pub owner: String,
    /// What the worker serves: the chain that makes the end hosts, also for its reverse chain;
    /// both DPDK devices, sorted; `replay` and the chain, for ports in memory; `super-packets`;
    /// empty for all other named interfaces. In mapping `distributed` the whole chain and a dot, to
    /// which each function's worker adds the function.
    pub circuit: String,
    /// The core.
    pub core: u32,
}

impl WorkerPlan {
    /// Names the worker of a planned chain; `None` without user functions.
    pub(crate) fn of(plan: &Plan, chain: &ServiceChain, machine: &Machine) -> Option<Self> {
        if !plan.uses(Space::User) {
            return None;
        }
        let circuit = match &chain.ports {
            _ if plan.mapping == Mapping::Distributed => format!("{}.", chain.whole()),
            Some(ports) if chain.is_over_dpdk() => {
                let (ingress, egress) = (&ports.ingress, &ports.egress);
                format!("{} {}", ingress.min(egress), ingress.max(egress))
            }
            Some(_) if chain.replay().is_some() => format!("replay {}", chain.name),
            Some(_) if chain.worker.super_packets => "super-packets".to_owned(),
            Some(_) => String::new(),
            None => machine
                .circuit
                .clone()
                .unwrap_or_else(|| first_of_pair(chain).to_owned()),
        };
        Some(Self {
            owner: chain.owner().to_owned(),
            circuit,
            core: chain
                .worker
                .core()
                .unwrap_or_else(|| machine.default_core()),
        })
    }

    /// Returns the name of the worker on its node.
    pub fn name(&self) -> String {
        format!("{}@{}", self.owner, self.circuit)
    }
}

/// Returns the name of a chain or of its reverse chain, which share two links.
pub(crate) fn first_of_pair(chain: &ServiceChain) -> &str {
    let reverse = chain.reverse.as_ref();
    reverse.map_or(&chain.name, |reverse| reverse.min(&chain.name))
}
