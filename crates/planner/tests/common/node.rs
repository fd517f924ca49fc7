//! Plans chains on a node with other chains.

use myelin_planner::admission::{Booking, Ledger, Node, Site, review};
use myelin_planner::{Bound, Costs, Machine, Plan, plan};
use myelin_spec::ServiceChain;

use super::named;

pub(crate) const PORTS: &str = "  ports: { ingress: eth1, egress: eth2 }\n";

/// Plans a chain on a node with the chains of the ledger.
pub(crate) fn plan_on_node(
    ledger: &Ledger,
    chain: &ServiceChain,
    machine: &Machine,
) -> (Plan, Booking) {
    plan_at(ledger, chain, machine, &Site::planned(chain, machine))
}

/// Like [`plan_on_node`], at a given site.
pub(crate) fn plan_at(
    ledger: &Ledger,
    chain: &ServiceChain,
    machine: &Machine,
    site: &Site,
) -> (Plan, Booking) {
    let costs = Costs::default();
    let mut planned = plan(chain, &costs, machine).unwrap();
    let node = Node {
        costs: &costs,
        machine,
        ledger,
    };
    let booking = review(&mut planned, chain, &node, site);
    (planned, booking)
}

/// Makes a chain between the two interfaces of [`PORTS`], which all such chains share.
pub(crate) fn chain_on_shared_ports(name: &str, functions: &[&str], more: &str) -> ServiceChain {
    named(name, functions, &format!("{PORTS}{more}"))
}

pub(crate) fn bound(plan: &Plan) -> &Bound {
    plan.bound
        .as_ref()
        .unwrap_or_else(|| panic!("{:?}", plan.no_bound))
}
