//! Tests that admission accepts a chain only if the worst cases of this and all other chains keep
//! the promises.

#[allow(dead_code)]
mod common;

use common::node::{chain_on_shared_ports, plan_on_node};
use common::{FIREWALL, FORWARD, XOR, machine, named, pinned, planned};
use myelin_planner::admission::Ledger;
use myelin_spec::Space;
use proptest::prelude::*;

#[test]
fn bound_above_the_latency_is_refused_with_remedies() {
    let user = pinned(XOR, Space::User);
    let agreed = "  sla: { rate: 20kpps, burst: 100, latency: 350us }\n";
    let plan = planned(&[&user], agreed);
    assert!(!plan.admitted);
    let refusal = plan.refusal.as_deref().unwrap();
    assert!(
        refusal.starts_with("the worst-case bound of ")
            && refusal.ends_with("above the agreed latency of 350us"),
        "{refusal}"
    );
    // Admission accepts the value of each remedy, and refuses a slightly larger value.
    let remedy = |key: &str| {
        let found = plan.remedies.iter().find(|remedy| remedy.starts_with(key));
        found.unwrap_or_else(|| panic!("{key} in {:?}", plan.remedies))
    };
    let burst: u64 = remedy("`burst: ")["`burst: ".len()..]
        .trim_end_matches('`')
        .parse()
        .unwrap();
    let with = |burst: u64| {
        planned(
            &[&user],
            &agreed.replace("burst: 100", &format!("burst: {burst}")),
        )
    };
    assert!(
        with(burst).admitted && !with(burst + 1).admitted,
        "burst {burst}"
    );
    let latency = &remedy("`latency: ")["`latency: ".len()..].trim_end_matches('`');
    let with = planned(&[&user], &agreed.replace("350us", latency));
    assert!(with.admitted, "{latency}: {:?}", with.refusal);
    assert!(
        !plan
            .remedies
            .iter()
            .any(|remedy| remedy.starts_with("`rate")),
        "{:?}",
        plan.remedies
    );
}

/// The remedies are less than a thousandth of this burst and rate.
#[test]
fn extreme_contract_has_a_remedy() {
    let user = pinned(XOR, Space::User);
    for (rate, burst, key) in [(20_000, 1_u64 << 33, "burst"), (10_000_000_000, 4, "rate")] {
        let with = |rate: u64, burst: u64| {
            let agreed = format!("  sla: {{ rate: {rate}pps, burst: {burst}, latency: 4ms }}\n");
            planned(&[&user], &agreed)
        };
        let plan = with(rate, burst);
        let found = plan.remedies.iter().find_map(|remedy| {
            let figure = remedy.strip_prefix(&format!("`{key}: "))?;
            figure
                .trim_end_matches("pps`")
                .trim_end_matches('`')
                .parse()
                .ok()
        });
        let found: u64 = found.unwrap_or_else(|| panic!("{key} in {:?}", plan.remedies));
        let (fits, more) = match key {
            "rate" => (with(found, burst), with(found + found / 100, burst)),
            _ => (with(rate, found), with(rate, found + 1 + found / 100)),
        };
        assert!(fits.admitted && !more.admitted, "{key} {found}");
    }
}

#[test]
fn rate_above_the_capacity_is_refused_with_the_largest_rate() {
    let plan = planned(&[FORWARD], "  sla: { rate: 10Mpps, burst: 32 }\n");
    let refusal = plan.refusal.as_deref().unwrap();
    assert!(
        refusal.contains("exceed the capacity of the kernel part at tried: ingress"),
        "{refusal}"
    );
    let rate = plan
        .remedies
        .iter()
        .find_map(|remedy| remedy.strip_prefix("`rate: "))
        .unwrap();
    let with = |pps: u64| {
        planned(
            &[FORWARD],
            &format!("  sla: {{ rate: {pps}pps, burst: 32 }}\n"),
        )
        .admitted
    };
    let rate: u64 = rate.trim_end_matches("pps`").parse().unwrap();
    assert!(with(rate) && !with(rate + 10_000_000 / 4096 + 1), "{rate}");
}

#[test]
fn without_a_rate_the_mean_cost_decides() {
    let plan = planned(&[FORWARD], "  sla: { latency: 1us }\n");
    assert!(plan.admitted && plan.bound.is_none());
    assert!(plan.no_bound.unwrap().starts_with("no rate is agreed"));
    let plan = planned(
        &[FORWARD],
        "  sla: { rate: 1kpps, latency: 1us, enforce: none }\n",
    );
    assert!(plan.admitted && plan.no_bound.unwrap().starts_with("no policer limits"));
    let user = pinned(XOR, Space::User);
    let plan = planned(
        &[&user, &user],
        "  mapping: pipeline\n  sla: { rate: 1kpps, latency: 1ms }\n",
    );
    assert!(plan.no_bound.unwrap().contains("`mapping: compact`"));
    let external = "kind: external, config: { command: [box] }";
    let plan = planned(&[external], "  sla: { rate: 1kpps, latency: 1ms }\n");
    assert!(plan.admitted && plan.no_bound.unwrap().contains("black box"));
}

#[test]
fn unpoliced_chains_share_no_core_with_promised_chains() {
    let machine = machine();
    let promised = chain_on_shared_ports(
        "promised",
        &[FORWARD],
        "  sla: { rate: 1kpps, burst: 8, latency: 350us }\n",
    );
    let free = chain_on_shared_ports("free", &[FIREWALL], "");
    let elsewhere = named("elsewhere", &[FIREWALL], "");

    let mut ledger = Ledger::default();
    ledger.insert(plan_on_node(&ledger, &promised, &machine).1);
    let (plan, _) = plan_on_node(&ledger, &free, &machine);
    let refusal = plan.refusal.unwrap();
    assert!(
        refusal.starts_with("the promise to chain `promised` would break: it would have no worst-case bound: `free` (the chain itself)"),
        "{refusal}"
    );
    assert!(plan_on_node(&ledger, &elsewhere, &machine).0.admitted);

    // Deploys the chains in the other order.
    let mut ledger = Ledger::default();
    ledger.insert(plan_on_node(&ledger, &free, &machine).1);
    let (plan, _) = plan_on_node(&ledger, &promised, &machine);
    let refusal = plan.refusal.unwrap();
    assert!(
        refusal.contains("`free` (another chain) shares the kernel part at eth1"),
        "{refusal}"
    );
    // Admission accepts a chain with a rate and without a latency on the same core.
    let rate = chain_on_shared_ports("rate", &[FORWARD], "  sla: { rate: 1kpps }\n");
    let (plan, _) = plan_on_node(&ledger, &rate, &machine);
    assert!(plan.admitted && plan.bound.is_none(), "{:?}", plan.refusal);
}

#[test]
fn new_chain_never_breaks_other_promises() {
    let machine = machine();
    let mut ledger = Ledger::default();
    let agreed = "  sla: { rate: 1kpps, burst: 8, latency: 100us }\n";
    let mut admitted = 0;
    let refusal = loop {
        let name = format!("c{admitted}");
        let (plan, booking) = plan_on_node(
            &ledger,
            &chain_on_shared_ports(&name, &[FORWARD], agreed),
            &machine,
        );
        if let Some(refusal) = plan.refusal {
            break refusal;
        }
        ledger.insert(booking);
        admitted += 1;
    };
    assert!(
        admitted > 3 && refusal.starts_with("the worst-case bound of "),
        "{admitted}: {refusal}"
    );
    // The next chain has a long latency and would delay the other chains too long.
    let disturbing = chain_on_shared_ports(
        "disturbing",
        &[FORWARD],
        "  sla: { rate: 1kpps, burst: 32, latency: 10ms }\n",
    );
    let (plan, _) = plan_on_node(&ledger, &disturbing, &machine);
    let refusal = plan.refusal.unwrap();
    assert!(
        refusal
            .starts_with("the promise to chain `c0` would break: its worst-case bound would be "),
        "{refusal}"
    );
    // After a removal the chain fits.
    ledger.remove("c1").unwrap();
    assert!(
        plan_on_node(
            &ledger,
            &chain_on_shared_ports("next", &[FORWARD], agreed),
            &machine
        )
        .0
        .admitted
    );
}

#[test]
fn second_worker_on_a_core_costs_slices() {
    let user = pinned(XOR, Space::User);
    let agreed = "  sla: { rate: 1kpps, burst: 8, latency: 350us }\n";
    let machine = machine();
    let mut ledger = Ledger::default();
    ledger.insert(plan_on_node(&ledger, &named("one", &[&user], agreed), &machine).1);
    let (plan, _) = plan_on_node(&ledger, &named("two", &[&user], agreed), &machine);
    assert!(!plan.admitted);
    assert!(
        plan.remedies
            .contains(&"`worker: { cores: [0] }`".to_owned()),
        "{:?}",
        plan.remedies
    );
    let other_core = format!("  worker: {{ cores: [0] }}\n{agreed}");
    let (plan, _) = plan_on_node(&ledger, &named("two", &[&user], &other_core), &machine);
    assert!(plan.admitted, "{:?}", plan.refusal);
    // A chain without a promise also uses slices of the core.
    let (plan, _) = plan_on_node(&ledger, &named("two", &[&user], ""), &machine);
    assert!(
        plan.refusal
            .unwrap()
            .starts_with("the promise to chain `one`")
    );
}

proptest! {
    /// After any insertions and removals the ledger equals a ledger with only the remaining chains.
    #[test]
    fn removal_undoes_insertion(
        rates in prop::collection::vec((1_u64..5000, 1_u64..50, any::<bool>(), any::<bool>()), 1..8), gone in prop::collection::vec(any::<bool>(), 8),
    ) {
        let machine = machine();
        let user = pinned(XOR, Space::User);
        let bookings: Vec<_> = rates.iter().enumerate().map(|(index, (rate, burst, in_user, free))| {
            let functions: &[&str] = if *in_user { &[&user] } else { &[FORWARD] };
            let sla = if *free { String::new() } else { format!("  sla: {{ rate: {rate}pps, burst: {burst}, latency: 10s }}\n") };
            plan_on_node(&Ledger::default(), &chain_on_shared_ports(&format!("c{index}"), functions, &sla), &machine).1
        }).collect();
        let (mut all, mut some) = (Ledger::default(), Ledger::default());
        for (booking, gone) in bookings.iter().zip(&gone) {
            all.insert(booking.clone());
            if !gone {
                some.insert(booking.clone());
            }
        }
        for (booking, _) in bookings.iter().zip(&gone).filter(|(_, gone)| **gone) {
            let left = all.remove(&booking.chain);
            prop_assert_eq!(left.as_ref(), Some(booking));
        }
        prop_assert_eq!(all, some);
    }

    /// For any contract the bound is at most the paper's sum, the shares add up to the bound, and a
    /// refusal has a reason.
    #[test]
    fn any_contract_gets_a_bound_or_a_reason(
        pps in prop_oneof![1_u64..100_000, Just(10_000_000_000_000)], burst in prop_oneof![1_u64..2000, Just(1_u64 << 33)],
        bits in prop::option::of((1_u64..10_000_000_000_000, 1_u64..(1 << 33))), latency_us in 1_u64..10_000, in_user: bool, others in 0_u64..5,
    ) {
        let machine = machine();
        let user = pinned(XOR, Space::User);
        let functions: &[&str] = if in_user { &[FIREWALL, &user] } else { &[FIREWALL] };
        let mut ledger = Ledger::default();
        for other in 0..others {
            let chain = chain_on_shared_ports(&format!("o{other}"), functions, "  sla: { rate: 1kpps, burst: 4 }\n");
            ledger.insert(plan_on_node(&ledger, &chain, &machine).1);
        }
        let mut chain = chain_on_shared_ports("tried", functions, "  sla: { rate: 1kpps }\n");
        chain.sla.rate_pps = Some(pps);
        chain.sla.burst_packets = Some(burst);
        if let Some((rate, burst)) = bits {
            (chain.sla.rate_bps, chain.sla.burst_bits) = (Some(rate), Some(burst));
        }
        chain.sla.latency_ns = Some(latency_us * 1000);
        let (plan, _) = plan_on_node(&ledger, &chain, &machine);
        prop_assert_eq!(plan.admitted, plan.refusal.is_none());
        if let Some(bound) = &plan.bound {
            prop_assert!(bound.bound_ns <= bound.paper_sum_ns.unwrap(), "{:?}", bound);
            prop_assert_eq!(bound.hops.iter().map(|hop| hop.share_ns).sum::<u64>() + bound.latency_ns, bound.bound_ns);
            prop_assert!(bound.bound_ns as f64 >= plan.predicted_ns);
            prop_assert!(!plan.admitted || bound.bound_ns <= latency_us * 1000);
        } else {
            prop_assert!(!plan.admitted);
        }
    }
}
