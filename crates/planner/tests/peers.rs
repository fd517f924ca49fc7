//! Tests that the bookings of other agents on the same cores count.

#[allow(dead_code)]
mod common;

use common::node::plan_on_node;
use common::{XOR, machine, named, pinned};
use myelin_planner::Plan;
use myelin_planner::admission::{Booking, Ledger};
use myelin_spec::Space;

const PEER: &str = "node line/n1";

/// Plans a chain of a user function between two interfaces, which all agents call the same.
fn plan(ledger: &Ledger, name: &str, more: &str) -> (Plan, Booking) {
    let ports = "  ports: { ingress: eth0, egress: eth1 }\n";
    let chain = named(
        name,
        &[&pinned(XOR, Space::User)],
        &format!("{ports}{more}"),
    );
    plan_on_node(ledger, &chain, &machine())
}

fn of_peer(name: &str, more: &str) -> Ledger {
    let (plan, booking) = plan(&Ledger::default(), name, more);
    assert!(plan.admitted, "{:?}", plan.refusal);
    // The booking goes to the other agent as JSON.
    let text = serde_json::to_string(&booking).unwrap();
    let mut ledger = Ledger::default();
    ledger.insert(serde_json::from_str::<Booking>(&text).unwrap());
    assert_eq!(ledger.get(name), Some(&booking));
    let mut others = Ledger::default();
    others.insert(booking.of_peer(PEER));
    others
}

#[test]
fn chains_of_another_agent_share_the_core_only() {
    let sla = "  sla: { rate: 1kpps, burst: 8, latency: 100ms }\n";
    let others = of_peer("same", sla);
    // The name is free, and the worker is another one.
    let (plan, booking) = self::plan(&others, "same", sla);
    assert!(plan.admitted, "{:?}", plan.refusal);
    let alone = self::plan(&Ledger::default(), "same", sla).0;
    let bound = |plan: &Plan| plan.bound.as_ref().unwrap().bound_ns;
    assert!(bound(&plan) > bound(&alone) + 4_000_000, "a slice more");
    assert!(booking.cores().eq([1]) && !booking.is_of_peer(PEER));
    assert!(others.get("same on node line/n1").unwrap().is_of_peer(PEER));
    // On another core, the chain does not wait.
    let other = format!("{sla}  worker: {{ cores: [0] }}\n");
    assert_eq!(
        bound(&self::plan(&others, "other", &other).0),
        bound(&alone)
    );
}

#[test]
fn promises_of_another_agent_are_kept() {
    let sla = "  sla: { rate: 10kpps, burst: 8, latency: 2ms }\n";
    let sleeps = "  worker: { idle: sleep }\n";
    let others = of_peer("owed", sla);
    let refusal = plan(&others, "free", sleeps).0.refusal.unwrap();
    assert!(
        refusal.contains("promise to chain `owed on node line/n1`"),
        "{refusal}"
    );
    assert!(refusal.contains("on core 1"), "{refusal}");
}

#[test]
fn an_agent_hands_a_core_over_among_its_own_workers() {
    let turns = "  sla: { rate: 10kpps, burst: 8 }\n  worker: { sharing: cooperative }\n";
    let refusal = plan(&of_peer("there", turns), "here", turns).0.refusal;
    let refusal = refusal.unwrap();
    assert!(
        refusal.contains("`there on node line/n1` of another agent"),
        "{refusal}"
    );
}
