//! The chain to place: costs, profile and contract.

use myelin_packet::traffic::Profile;
use myelin_spec::{Cost, Effect, ServiceChain, Space};

use crate::admission::{Work, worst_case_work};
use crate::costs::Costs;
use crate::plan::Plan;

/// A chain to place.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The functions, in order.
    pub functions: Vec<Demand>,
    /// The profile of the policed traffic; without a rate, delays are those of a single packet.
    pub profile: Profile,
    /// The agreed latency, ns.
    pub latency_ns: Option<u64>,
    /// Worst-case cost of a part besides its functions: front door and egress.
    pub part: Work,
    /// Worst-case cost of a change to user space and back.
    pub crossing: Work,
    /// The vertex where packets arrive.
    pub ingress: usize,
    /// The vertex where packets leave: the host of the service application.
    pub egress: usize,
    /// Nodes that may run the first function, and those that may run the last; `None`: all nodes.
    pub end_nodes: [Option<Vec<usize>>; 2],
}

/// A function to place.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// The name.
    pub name: String,
    /// Worst-case cost of a packet.
    pub work: Work,
    /// The space.
    pub space: Space,
    /// The effect on the traffic behind the function.
    pub effect: Effect,
    /// Memory that the function needs, bytes.
    pub memory_bytes: u64,
    /// The node that must run the function.
    pub node: Option<String>,
    /// Functions with the same name run on different nodes.
    pub anti_affinity: Option<String>,
}

impl Request {
    /// Creates the request of a planned chain between two vertices. The plan of the whole chain
    /// gives the spaces.
    pub fn of(
        chain: &ServiceChain,
        plan: &Plan,
        costs: &Costs,
        [ingress, egress]: [usize; 2],
    ) -> Self {
        let work = |parts: &[Cost]| {
            let parts = parts.iter().map(|cost| worst_case_work(costs, *cost));
            parts.fold(Work::default(), Work::plus)
        };
        let steps = &costs.steps;
        let functions = chain.functions.iter().zip(&plan.hops);
        let functions = functions.map(|(function, hop)| {
            let own = costs.function_cost(&function.config, hop.space);
            let call = match hop.space {
                Space::Kernel => steps.hop,
                Space::User => steps.dispatch,
            };
            Demand {
                name: function.name.clone(),
                work: work(&[own.unwrap_or_default(), call]),
                space: hop.space,
                effect: function.config.effect(),
                memory_bytes: function.sandbox.limits.memory_bytes.unwrap_or(0),
                node: function.node.clone(),
                anti_affinity: function.anti_affinity.clone(),
            }
        });
        Self {
            functions: functions.collect(),
            profile: chain.sla.policing_profile(),
            latency_ns: chain.sla.latency_ns,
            part: work(&[steps.door_tcx, steps.egress_redirect]),
            crossing: work(&[steps.enter_user, steps.user_egress]),
            ingress,
            egress,
            end_nodes: [None, None],
        }
    }
}
