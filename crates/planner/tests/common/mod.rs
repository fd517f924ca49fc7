//! Chains for tests.

pub(crate) mod node;

use std::fmt::Write as _;

use myelin_planner::{Costs, Machine, Plan, plan};
use myelin_spec::{NoFiles, ServiceChain, Source, Space, parse};

pub(crate) const FIREWALL: &str =
    "kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }";
pub(crate) const XOR: &str = "kind: xor, config: { key: 1 }";
pub(crate) const FORWARD: &str = "kind: forward";

/// Makes a chain of these functions. `more` contains additional lines of the `spec`.
pub(crate) fn chain(functions: &[&str], more: &str) -> ServiceChain {
    named("tried", functions, more)
}

/// Like [`chain`], with another name.
pub(crate) fn named(name: &str, functions: &[&str], more: &str) -> ServiceChain {
    let mut text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\n\
         spec:\n  match: {{}}\n  functions:\n",
    );
    for (position, function) in functions.iter().enumerate() {
        let _ = writeln!(text, "    - {{ name: f{position}, {function} }}");
    }
    text += more;
    let chains = parse(&text, &Source::new("tried.yaml"), &NoFiles);
    chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

pub(crate) fn machine() -> Machine {
    Machine::with_end_hosts(2)
}

pub(crate) fn planned(functions: &[&str], more: &str) -> Plan {
    plan(&chain(functions, more), &Costs::default(), &machine()).unwrap()
}

pub(crate) fn pinned(function: &str, space: Space) -> String {
    format!("{function}, space: {space}")
}

pub(crate) fn refused(functions: &[&str], more: &str) -> String {
    plan(&chain(functions, more), &Costs::default(), &machine())
        .unwrap_err()
        .to_string()
}

pub(crate) fn spaces(plan: &Plan) -> Vec<Space> {
    plan.hops.iter().map(|hop| hop.space).collect()
}

/// Checks that the predicted cost is the sum of its parts.
pub(crate) fn assert_adds_up(plan: &Plan) {
    let hops: f64 = plan.hops.iter().map(myelin_planner::Hop::total_ns).sum();
    let sum = plan.door.cost_ns + hops + plan.egress.cost_ns;
    assert!(
        (plan.predicted_ns - sum).abs() < 1e-6,
        "{} against {sum}",
        plan.predicted_ns
    );
}

pub(crate) const EXTERNAL: &str = "kind: external, config: { command: [box] }";
