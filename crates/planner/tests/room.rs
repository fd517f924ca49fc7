//! Tests that admission refuses chains whose packets do not fit into the rings or shapers.

#[allow(dead_code)]
mod common;

use common::node::{chain_on_shared_ports, plan_at, plan_on_node};
use common::{XOR, machine, pinned, planned};
use myelin_planner::admission::{Ledger, Site};
use myelin_spec::Space;

/// At 20 kpps a packet is due every 50 us. If the bucket holds only two packets, a worker that is
/// 69.5 us late sends fewer packets.
#[test]
fn late_shaper_gives_a_warning() {
    let user = pinned(XOR, Space::User);
    let warning = |sla: &str, more: &str| {
        let plan = planned(&[&user], &format!("  sla: {{ {sla} }}\n{more}"));
        let mut warnings = plan.warnings.into_iter();
        warnings.find(|warning| warning.contains("more credit than its burst holds"))
    };
    let found = warning("rate: 20kpps, burst: 2", "").unwrap();
    assert!(
        found.contains(" us late")
            && found.contains("burst of at least 3 packets, or `shaper: { tolerance: ")
            && found.ends_with("us }`, or write `worker: { idle: spin }`"),
        "{found}"
    );
    assert_eq!(warning("rate: 20kpps, burst: 3", ""), None);
    // The lateness is about 70 us, of which the bucket of 2 holds 50.
    for (tolerance, warned) in [("80us", false), ("30us", false), ("15us", true)] {
        let found = warning(
            &format!("rate: 20kpps, burst: 2, shaper: {{ tolerance: {tolerance} }}"),
            "",
        );
        assert_eq!(found.is_some(), warned, "{tolerance}: {found:?}");
    }
    let spin = "  worker: { idle: spin }\n";
    assert_eq!(warning("rate: 20kpps, burst: 2", spin), None);
    let policed = "rate: 20kpps, burst: 2, enforce: policer";
    assert_eq!(warning(policed, ""), None);
    let found = warning("rate: 1Gbit, burst: 12112bit", "").unwrap();
    assert!(found.contains(" bits, or `shaper"), "{found}");
}

/// A full ring drops packets, whatever latency the chain has agreed.
#[test]
fn burst_above_the_ring_is_refused() {
    let user = pinned(XOR, Space::User);
    let chain = |name: &str, burst: u32| {
        let agreed = format!("  sla: {{ rate: 1kpps, burst: {burst}, latency: 1s }}\n");
        chain_on_shared_ports(name, &[&user], &agreed)
    };
    let machine = machine();
    let plan_alone = |burst| plan_on_node(&Ledger::default(), &chain("tried", burst), &machine);
    let (plan, booking) = plan_alone(1000);
    assert!(plan.admitted, "{:?}", plan.refusal);
    let refusal = plan_alone(1024).0.refusal.unwrap();
    assert!(
        refusal.contains("packets from the kernel part at eth1 may wait for the worker on core 1, but the ring between them holds 1024; reduce"),
        "{refusal}"
    );
    // Several chains share one ring. Each receive queue of a network card has a smaller ring.
    let mut ledger = Ledger::default();
    ledger.insert(booking);
    let (plan, _) = plan_on_node(&ledger, &chain("second", 30), &machine);
    assert!(
        plan.refusal
            .unwrap()
            .contains("the ring between them holds 1024")
    );
    let queues = |queues: u32| {
        let chain = chain("tried", 300);
        let site = Site {
            queues,
            ..Site::planned(&chain, &machine)
        };
        plan_at(&Ledger::default(), &chain, &machine, &site)
            .0
            .refusal
    };
    assert_eq!(queues(1), None);
    assert!(
        queues(2)
            .unwrap()
            .contains("the ring between them holds 256")
    );
}

/// A promise to a chain includes room in its ring.
#[test]
fn chain_that_would_overflow_the_ring_of_a_promise_is_refused() {
    let user = pinned(XOR, Space::User);
    let machine = machine();
    let mut ledger = Ledger::default();
    let promised = chain_on_shared_ports(
        "promised",
        &[&user],
        "  sla: { rate: 1kpps, burst: 32, latency: 1s }\n",
    );
    ledger.insert(plan_on_node(&ledger, &promised, &machine).1);
    let patient =
        chain_on_shared_ports("patient", &[&user], "  sla: { rate: 1kpps, burst: 1020 }\n");
    let refusal = plan_on_node(&ledger, &patient, &machine).0.refusal.unwrap();
    assert!(
        refusal.starts_with("the promise to chain `promised`")
            && refusal.contains("the ring between them holds"),
        "{refusal}"
    );
}

#[test]
fn shaper_without_room_for_the_policers_burst_is_refused() {
    let user = pinned(XOR, Space::User);
    let refusal = |shaper: &str| {
        let agreed = format!(
            "  sla: {{ rate: 20kpps, burst: 4, policingBurst: 64, shaper: {{ {shaper} }} }}\n"
        );
        let plan = planned(&[&user], &agreed);
        assert!(plan.remedies.is_empty(), "{:?}", plan.remedies);
        plan.refusal
    };
    // The queue needs room for 60 packets, the difference of the two bursts. It also needs room for
    // packets that arrive at 20 kpps while these are on the way to the shaper.
    let short = refusal("queue: 30, delay: 9ms").unwrap();
    let needed = short.split("write `shaper: { queue: ").nth(1).unwrap();
    let needed: u32 = needed.split(' ').next().unwrap().parse().unwrap();
    assert!((61..100).contains(&needed), "{short}");
    assert_eq!(refusal(&format!("queue: {needed}, delay: 9ms")), None);
    assert!(refusal(&format!("queue: {}, delay: 9ms", needed - 1)).is_some());
    // These packets need 3 ms to leave the shaper.
    let early = refusal(&format!("queue: {needed}, delay: 3ms")).unwrap();
    assert!(early.contains("wait in the shaper for up to 3"), "{early}");
}

/// A later chain may make another chain's packets cluster before their shaper, although no packet
/// is too late.
#[test]
fn chain_that_would_overflow_the_shaper_of_a_promise_is_refused() {
    let user = pinned(XOR, Space::User);
    let machine = machine();
    let chain = |name: &str, agreed: &str| {
        chain_on_shared_ports(name, &[&user], &format!("  sla: {{ {agreed} }}\n"))
    };
    let promised = |queue: u32| {
        let agreed =
            format!("rate: 100kpps, burst: 32, latency: 20ms, shaper: {{ queue: {queue} }}");
        let mut ledger = Ledger::default();
        let (plan, booking) = plan_on_node(&ledger, &chain("promised", &agreed), &machine);
        assert!(plan.admitted, "{:?}", plan.refusal);
        ledger.insert(booking);
        let other = chain("other", "rate: 1kpps, burst: 300");
        plan_on_node(&ledger, &other, &machine).0.refusal
    };
    assert_eq!(promised(500), None);
    let refusal = promised(100).unwrap();
    assert!(
        refusal.starts_with("the promise to chain `promised`")
            && refusal.contains("to reach its shaper"),
        "{refusal}"
    );
}

/// With two rates and a policing burst above the burst, the shaper's queue can grow without limit.
#[test]
fn two_rates_with_a_wider_policer_are_refused() {
    let user = pinned(XOR, Space::User);
    let wider = "policingBurst: 64,";
    let plan = |rate: &str, wider: &str| {
        let shaper = "shaper: { queue: 512, delay: 40ms }";
        let sla = format!("  sla: {{ rate: {rate}, latency: 50ms, {wider} {shaper} }}\n");
        let plan = planned(&[&user], &sla);
        (plan.bound.is_some(), plan.refusal)
    };
    assert_eq!(plan("20kpps", wider), (true, None));
    assert_eq!(plan("[ 20kpps, 100Mbit ]", ""), (true, None));
    let (is_bounded, refusal) = plan("[ 20kpps, 100Mbit ]", wider);
    let refusal = refusal.unwrap();
    assert!(
        !is_bounded && refusal.contains("remove `policingBurst`"),
        "{refusal}"
    );
}
