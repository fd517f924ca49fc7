//! Chains that rings or shapers cannot hold are refused.

#[allow(dead_code)]
mod common;

use common::node::{at, beside, shared};
use common::{XOR, machine, pinned, planned};
use myelin_planner::admission::{Ledger, Site};
use myelin_spec::Space;

/// At 20 kpps a packet is due every 50 us. A worker with a lateness of 69.5 us sends fewer if its
/// bucket holds only two.
#[test]
fn a_shaper_that_wakes_too_late_for_its_rate_gives_a_warning() {
    let user = pinned(XOR, Space::User);
    let warning = |sla: &str, more: &str| {
        let plan = planned(&[&user], &format!("  sla: {{ {sla} }}\n{more}"));
        let mut warnings = plan.warnings.into_iter();
        warnings.find(|warning| warning.contains("more credit than its burst holds"))
    };
    let told = warning("rate: 20kpps, burst: 2", "").unwrap();
    assert!(
        told.contains(" us late")
            && told.contains("burst of at least 3 packets, or `shaper: { tolerance: ")
            && told.ends_with("us }`, or write `worker: { idle: spin }`"),
        "{told}"
    );
    assert_eq!(warning("rate: 20kpps, burst: 3", ""), None);
    // The lateness is about 70 us, of which the bucket of 2 holds 50.
    for (tolerance, warned) in [("80us", false), ("30us", false), ("15us", true)] {
        let told = warning(
            &format!("rate: 20kpps, burst: 2, shaper: {{ tolerance: {tolerance} }}"),
            "",
        );
        assert_eq!(told.is_some(), warned, "{tolerance}: {told:?}");
    }
    let spin = "  worker: { idle: spin }\n";
    assert_eq!(warning("rate: 20kpps, burst: 2", spin), None);
    let policed = "rate: 20kpps, burst: 2, enforce: policer";
    assert_eq!(warning(policed, ""), None);
    let told = warning("rate: 1Gbit, burst: 12112bit", "").unwrap();
    assert!(told.contains(" bits, or `shaper"), "{told}");
}

/// A packet that a full ring drops is lost, whatever the chain's latency.
#[test]
fn a_burst_above_the_ring_is_refused() {
    let user = pinned(XOR, Space::User);
    let chain = |name: &str, burst: u32| {
        let agreed = format!("  sla: {{ rate: 1kpps, burst: {burst}, latency: 1s }}\n");
        shared(name, &[&user], &agreed)
    };
    let machine = machine();
    let beside_none = |burst| beside(&Ledger::default(), &chain("tried", burst), &machine);
    let (plan, booking) = beside_none(1000);
    assert!(plan.admitted, "{:?}", plan.refusal);
    let refusal = beside_none(1024).0.refusal.unwrap();
    assert!(
        refusal.contains("packets may wait for the worker on core 1 behind the kernel part at eth1, and its ring there holds 1024; reduce"),
        "{refusal}"
    );
    // Several chains share one ring, and each receive queue of a card has a smaller one.
    let mut ledger = Ledger::default();
    ledger.insert(booking);
    let (plan, _) = beside(&ledger, &chain("second", 30), &machine);
    assert!(plan.refusal.unwrap().contains("its ring there holds 1024"));
    let queues = |queues: u32| {
        let chain = chain("tried", 300);
        let site = Site {
            queues,
            ..Site::planned(&chain, &machine)
        };
        at(&Ledger::default(), &chain, &machine, &site).0.refusal
    };
    assert_eq!(queues(1), None);
    assert!(queues(2).unwrap().contains("its ring there holds 256"));
}

/// Promises to other chains include the ring.
#[test]
fn a_chain_that_would_fill_the_ring_of_a_promise_is_refused() {
    let user = pinned(XOR, Space::User);
    let machine = machine();
    let mut ledger = Ledger::default();
    let promised = shared(
        "promised",
        &[&user],
        "  sla: { rate: 1kpps, burst: 32, latency: 1s }\n",
    );
    ledger.insert(beside(&ledger, &promised, &machine).1);
    let patient = shared("patient", &[&user], "  sla: { rate: 1kpps, burst: 1020 }\n");
    let refusal = beside(&ledger, &patient, &machine).0.refusal.unwrap();
    assert!(
        refusal.starts_with("the promise to chain `promised`") && refusal.contains("its ring"),
        "{refusal}"
    );
}

#[test]
fn a_shaper_without_room_for_the_policers_burst_is_refused() {
    let user = pinned(XOR, Space::User);
    let refusal = |shaper: &str| {
        let agreed = format!(
            "  sla: {{ rate: 20kpps, burst: 4, policingBurst: 64, shaper: {{ {shaper} }} }}\n"
        );
        let plan = planned(&[&user], &agreed);
        assert!(plan.remedies.is_empty(), "{:?}", plan.remedies);
        plan.refusal
    };
    // 60 packets more than the shaper releases at once, and those that 20 kpps bring before they
    // reach it.
    let short = refusal("queue: 30, delay: 9ms").unwrap();
    let needed = short.split("write `shaper: { queue: ").nth(1).unwrap();
    let needed: u32 = needed.split(' ').next().unwrap().parse().unwrap();
    assert!((61..100).contains(&needed), "{short}");
    assert_eq!(refusal(&format!("queue: {needed}, delay: 9ms")), None);
    assert!(refusal(&format!("queue: {}, delay: 9ms", needed - 1)).is_some());
    // They need 3 ms to leave.
    let early = refusal(&format!("queue: {needed}, delay: 3ms")).unwrap();
    assert!(early.contains("wait in the shaper for up to 3"), "{early}");
}

/// A later chain may make another chain's packets cluster before its shaper, though they are not
/// too late.
#[test]
fn a_chain_that_would_fill_the_shaper_of_a_promise_is_refused() {
    let user = pinned(XOR, Space::User);
    let machine = machine();
    let chain =
        |name: &str, agreed: &str| shared(name, &[&user], &format!("  sla: {{ {agreed} }}\n"));
    let promised = |queue: u32| {
        let agreed =
            format!("rate: 100kpps, burst: 32, latency: 20ms, shaper: {{ queue: {queue} }}");
        let mut ledger = Ledger::default();
        let (plan, booking) = beside(&ledger, &chain("promised", &agreed), &machine);
        assert!(plan.admitted, "{:?}", plan.refusal);
        ledger.insert(booking);
        let other = chain("other", "rate: 1kpps, burst: 300");
        beside(&ledger, &other, &machine).0.refusal
    };
    assert_eq!(promised(500), None);
    let refusal = promised(100).unwrap();
    assert!(
        refusal.starts_with("the promise to chain `promised`")
            && refusal.contains("to reach its shaper"),
        "{refusal}"
    );
}

/// With two rates a wider policer can make the shaper's queue grow without limit.
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
