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

/// The other agent's file may be of another version, or broken.
#[test]
fn a_booking_with_impossible_values_is_refused() {
    let has_two = |core| core < 2;
    let sla = "  sla: { rate: 1kpps, burst: 8, latency: 100ms, enforce: policer }\n";
    let turns = "  worker: { sharing: cooperative, batch: 16 }\n";
    let all = [
        plan(&Ledger::default(), "own", sla),
        plan(&Ledger::default(), "free", ""),
        plan(&Ledger::default(), "turns", &format!("{sla}{turns}")),
        plan(
            &Ledger::default(),
            "rounds",
            &format!("{sla}{turns}  mapping: pipeline\n"),
        ),
    ];
    for (plan, booking) in &all {
        assert_eq!(booking.check(&has_two), Ok(()), "{:?}", plan.chain);
    }
    let (_, booking) = &all[2];
    let whole = serde_json::to_value(booking).unwrap();
    let too_many = (whole["hops"].as_array().unwrap().len() + 1).to_string();
    let long_fs = "18000000000000000001";
    let worker = "/visits/1/resource/Worker";
    for (place, value, expected) in [
        ("/chain", r#""""#, "is no name"),
        ("/chain", r#""a\nb""#, "is no name"),
        ("/part", r#"["", 1]"#, "is no name"),
        ("/core_uses/0/core", "2", "core 2 does not exist"),
        (&format!("{worker}/core"), "4000000000", "does not exist"),
        (&format!("{worker}/wake_up_fs"), long_fs, "longer than five"),
        (&format!("{worker}/rings/0"), "16777217", "above"),
        (
            &format!("{worker}/turn/Reads/switch_fs"),
            long_fs,
            "longer than five",
        ),
        ("/visits/1/work/packet_fs", long_fs, "longer than five"),
        ("/visits/0/growth/scale", "1", "no growth of traffic"),
        ("/visits/0/growth/longest", "59", "no longest frame"),
        ("/visits/0/growth/bytes", "16777217", "above"),
        ("/visits", "[]", "no server"),
        ("/hops/0/visit", "9", "server 9"),
        ("/hold/for_fs", long_fs, "longer than five"),
        ("/hold/times", &too_many, "more than its"),
        ("/rounds", &too_many, "more than its"),
        ("/stages/processes", &too_many, "more than its"),
    ] {
        let mut changed = whole.clone();
        let at = changed
            .pointer_mut(place)
            .unwrap_or_else(|| panic!("{place}: {whole}"));
        *at = serde_json::from_str(value).unwrap();
        let hostile: Booking = serde_json::from_value(changed).unwrap();
        let problem = hostile.check(&has_two).unwrap_err();
        assert!(problem.contains(expected), "{place}: {problem}");
    }
    // Two paths in opposite directions would wait for each other.
    let mut turned = whole.clone();
    turned["visits"].as_array_mut().unwrap().reverse();
    let mut twice = whole.clone();
    let worker = twice["visits"][1].clone();
    twice["visits"].as_array_mut().unwrap().push(worker);
    for changed in [turned, twice] {
        let hostile: Booking = serde_json::from_value(changed).unwrap();
        let problem = hostile.check(&has_two).unwrap_err();
        assert!(problem.contains("order of a path"), "{problem}");
    }
}
