//! Chains are admitted when their worst case, and that of all others, keeps what was promised.

#[allow(dead_code)]
mod common;

use common::{FIREWALL, FORWARD, XOR, machine, named, pinned, planned};
use myelin_planner::admission::{Booking, Ledger, Node, Site, review};
use myelin_planner::{Bound, Costs, Machine, Plan, Stall, plan};
use myelin_spec::{ServiceChain, Space};
use proptest::prelude::*;

const PORTS: &str = "  ports: { ingress: eth1, egress: eth2 }\n";

/// Plans a chain on a node where those of the ledger are.
fn beside(ledger: &Ledger, chain: &ServiceChain, machine: &Machine) -> (Plan, Booking) {
    let costs = Costs::default();
    let mut planned = plan(chain, &costs, machine).unwrap();
    let node = Node {
        costs: &costs,
        machine,
        ledger,
    };
    let booking = review(&mut planned, chain, &node, &Site::planned(chain, machine));
    (planned, booking)
}

/// A chain between two interfaces that all have in common.
fn shared(name: &str, functions: &[&str], more: &str) -> ServiceChain {
    named(name, functions, &format!("{PORTS}{more}"))
}

fn bound(plan: &Plan) -> &Bound {
    plan.bound
        .as_ref()
        .unwrap_or_else(|| panic!("{:?}", plan.no_bound))
}

#[test]
fn a_bound_is_worst_costs_of_a_burst_and_the_time_that_cores_stand_still() {
    let plan = planned(
        &[FORWARD],
        "  sla: { rate: 10kpps, burst: 32, latency: 1ms }\n",
    );
    let costs = Costs::default();
    let steps = &costs.steps;
    let packet_ns = [steps.door_tcx, steps.hop, steps.egress_tcx_peer]
        .iter()
        .map(|cost| cost.at_ns(1518) * costs.worst_case)
        .sum::<f64>()
        + plan.hops[0].cost_ns.unwrap() * costs.worst_case;
    let bound = bound(&plan);
    let expected = 32.0 * packet_ns + 20_000.0;
    assert!(
        (bound.bound_ns as f64 - expected).abs() < 2.0,
        "{} against {expected}",
        bound.bound_ns
    );
    assert_eq!(bound.paper_sum_ns, Some(bound.bound_ns), "one server alone");
    assert_eq!(bound.latency_ns, 20_000);
    assert_eq!(bound.servers.len(), 1);
    let names: Vec<_> = bound.hops.iter().map(|hop| hop.name.as_str()).collect();
    assert_eq!(names, ["front door", "f0", "egress"]);
}

#[test]
fn shares_add_up_and_a_burst_is_paid_for_once() {
    let (kernel, user) = (pinned(FIREWALL, Space::Kernel), pinned(XOR, Space::User));
    let plan = planned(
        &[&kernel, &user],
        "  sla: { rate: 20kpps, burst: 32, latency: 350us }\n",
    );
    assert!(plan.admitted, "{:?}", plan.refusal);
    let bound = bound(&plan);
    let shares: u64 = bound.hops.iter().map(|hop| hop.share_ns).sum();
    assert_eq!(shares + bound.latency_ns, bound.bound_ns);
    assert!(bound.bound_ns < bound.paper_sum_ns.unwrap(), "{bound:?}");
    assert_eq!(bound.servers.len(), 2);
    let wake_up = Costs::default().steps.wake_up.per_packet_ns * 1.5;
    assert_eq!(
        bound.latency_ns,
        40_000 + 20_000 + 2 * wake_up as u64,
        "two cores, and the worker sleeps; and once more before what it shapes leaves"
    );
}

#[test]
fn a_bound_above_the_promise_is_refused_with_what_would_fit() {
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
    // Each remedy is one: what it says is admitted, and a little more is not.
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

#[test]
fn a_rate_above_the_capacity_is_refused_and_the_largest_one_told() {
    let plan = planned(&[FORWARD], "  sla: { rate: 10Mpps, burst: 32 }\n");
    let refusal = plan.refusal.as_deref().unwrap();
    assert!(
        refusal.contains("need more than all of the kernel's part at tried: ingress"),
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
fn a_link_counts_with_its_own_time() {
    let slow = Machine {
        egress_bps: Some(10_000_000),
        ..machine()
    };
    let tried = |latency: &str| {
        let chain = shared(
            "slow",
            &[FORWARD],
            &format!("  sla: {{ rate: 100pps, burst: 1, latency: {latency} }}\n"),
        );
        plan(&chain, &Costs::default(), &slow).unwrap()
    };
    // A frame of 1518 B and 24 B around it take 1233.6 us.
    assert!(!tried("1200us").admitted);
    let plan = tried("1300us");
    assert!(plan.admitted, "{:?}", plan.refusal);
    assert_eq!(bound(&plan).hops.last().unwrap().name, "egress link");
}

#[test]
fn without_a_rate_there_is_no_bound_and_the_mean_decides_as_ever() {
    let plan = planned(&[FORWARD], "  sla: { latency: 1us }\n");
    assert!(plan.admitted && plan.bound.is_none());
    assert!(plan.no_bound.unwrap().starts_with("no rate is agreed"));
    let plan = planned(
        &[FORWARD],
        "  sla: { rate: 1kpps, latency: 1us, enforce: none }\n",
    );
    assert!(plan.admitted && plan.no_bound.unwrap().starts_with("nothing polices"));
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
fn what_nothing_polices_stays_apart_from_promises() {
    let machine = machine();
    let promised = shared(
        "promised",
        &[FORWARD],
        "  sla: { rate: 1kpps, burst: 8, latency: 350us }\n",
    );
    let free = shared("free", &[FIREWALL], "");
    let elsewhere = named("elsewhere", &[FIREWALL], "");

    let mut ledger = Ledger::default();
    ledger.insert(beside(&ledger, &promised, &machine).1);
    let (plan, _) = beside(&ledger, &free, &machine);
    let refusal = plan.refusal.unwrap();
    assert!(
        refusal.starts_with("the promise to chain `promised` could not be kept: it would have no worst-case bound: `free` (the chain itself)"),
        "{refusal}"
    );
    assert!(beside(&ledger, &elsewhere, &machine).0.admitted);

    // The other way round.
    let mut ledger = Ledger::default();
    ledger.insert(beside(&ledger, &free, &machine).1);
    let (plan, _) = beside(&ledger, &promised, &machine);
    let refusal = plan.refusal.unwrap();
    assert!(
        refusal.contains("`free` (another chain) waits for the kernel's part at eth1 too"),
        "{refusal}"
    );
    // One that is promised a rate alone comes up beside it.
    let rate = shared("rate", &[FORWARD], "  sla: { rate: 1kpps }\n");
    let (plan, _) = beside(&ledger, &rate, &machine);
    assert!(plan.admitted && plan.bound.is_none(), "{:?}", plan.refusal);
}

#[test]
fn one_more_chain_never_takes_away_what_others_were_promised() {
    let machine = machine();
    let mut ledger = Ledger::default();
    let agreed = "  sla: { rate: 1kpps, burst: 8, latency: 100us }\n";
    let mut admitted = 0;
    let refusal = loop {
        let name = format!("c{admitted}");
        let (plan, booking) = beside(&ledger, &shared(&name, &[FORWARD], agreed), &machine);
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
    // One that is patient itself, but would make the others wait.
    let patient = shared(
        "patient",
        &[FORWARD],
        "  sla: { rate: 1kpps, burst: 32, latency: 10ms }\n",
    );
    let (plan, _) = beside(&ledger, &patient, &machine);
    let refusal = plan.refusal.unwrap();
    assert!(
        refusal.starts_with(
            "the promise to chain `c0` could not be kept: its worst-case bound would be "
        ),
        "{refusal}"
    );
    // When one leaves there is room again.
    ledger.remove("c1").unwrap();
    assert!(
        beside(&ledger, &shared("next", &[FORWARD], agreed), &machine)
            .0
            .admitted
    );
}

#[test]
fn a_second_worker_on_a_core_costs_slices_and_another_core_does_not() {
    let user = pinned(XOR, Space::User);
    let agreed = "  sla: { rate: 1kpps, burst: 8, latency: 350us }\n";
    let machine = machine();
    let mut ledger = Ledger::default();
    ledger.insert(beside(&ledger, &named("one", &[&user], agreed), &machine).1);
    let (plan, _) = beside(&ledger, &named("two", &[&user], agreed), &machine);
    assert!(!plan.admitted);
    assert!(
        plan.remedies.contains(&"`worker: { core: 0 }`".to_owned()),
        "{:?}",
        plan.remedies
    );
    let apart = format!("  worker: {{ core: 0 }}\n{agreed}");
    let (plan, _) = beside(&ledger, &named("two", &[&user], &apart), &machine);
    assert!(plan.admitted, "{:?}", plan.refusal);
    // What makes no promise takes the core's slices all the same.
    let (plan, _) = beside(&ledger, &named("two", &[&user], ""), &machine);
    assert!(
        plan.refusal
            .unwrap()
            .starts_with("the promise to chain `one`")
    );
}

#[test]
fn the_stall_of_each_core_is_in_the_bound_once() {
    let user = pinned(XOR, Space::User);
    let chain = named(
        "tried",
        &[&user],
        "  sla: { rate: 1kpps, burst: 8 }\n  worker: { core: 0, idle: spin }\n",
    );
    let with = |stalls: [u64; 2]| {
        let mut costs = Costs::default();
        for (core, stall_ns) in (0..).zip(stalls) {
            let stall = Stall {
                stall_ns,
                gaps: 1,
                longest_ns: stall_ns,
                observed_ns: 1_000_000_000,
                steal_percent: 0.0,
            };
            costs.stalls.insert(core, stall);
        }
        bound(&plan(&chain, &costs, &machine()).unwrap()).clone()
    };
    let (calm, restless) = (with([1000, 1000]), with([5000, 100_000]));
    // The kernel's part may be on the worse core, the worker is on core 0, and may stand still again before what it shapes leaves.
    assert_eq!(calm.latency_ns, 3000);
    assert_eq!(restless.latency_ns, 110_000);
    assert_eq!(restless.bound_ns - calm.bound_ns, 107_000);
}

/// At 20 kpps a packet is due each 50 us. A worker that is late by 69.5 us lets out fewer if its bucket holds but two.
#[test]
fn a_shaper_that_wakes_up_too_late_for_its_rate_is_warned_of() {
    let user = pinned(XOR, Space::User);
    let warning = |sla: &str, more: &str| {
        let plan = planned(&[&user], &format!("  sla: {{ {sla} }}\n{more}"));
        let mut warnings = plan.warnings.into_iter();
        warnings.find(|warning| warning.contains("more credit than its burst holds"))
    };
    let told = warning("rate: 20kpps, burst: 2", "").unwrap();
    assert!(
        told.contains("70 us late")
            && told.ends_with("burst of 3 packets at least, write `shaper: { tolerance: 70us }`, or write `worker: { idle: spin }`"),
        "{told}"
    );
    assert_eq!(warning("rate: 20kpps, burst: 3", ""), None);
    for (tolerance, warned) in [("70us", false), ("20us", false), ("19us", true)] {
        // Late by 69.5 us, of which the bucket of 2 holds 50.
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
    assert!(told.contains(" bits at least"), "{told}");
}

/// What a socket's ring cannot hold is lost before the worker sees it, however patient the chain is.
#[test]
fn what_a_ring_cannot_hold_is_refused() {
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
        refusal.contains("packets may wait for the worker on core 1 behind the kernel's part at eth1, and its ring there holds 1024; agree"),
        "{refusal}"
    );
    // Several chains have one ring, and each queue of a card a smaller one.
    let mut ledger = Ledger::default();
    ledger.insert(booking);
    let (plan, _) = beside(&ledger, &chain("second", 30), &machine);
    assert!(plan.refusal.unwrap().contains("its ring there holds 1024"));
    let queues = |queues: u32| {
        let chain = chain("tried", 300);
        let costs = Costs::default();
        let mut planned = plan_of(&chain);
        let site = Site {
            queues,
            ..Site::planned(&chain, &machine)
        };
        let node = Node {
            costs: &costs,
            machine: &machine,
            ledger: &Ledger::default(),
        };
        review(&mut planned, &chain, &node, &site);
        planned.refusal
    };
    assert_eq!(queues(1), None);
    assert!(queues(2).unwrap().contains("its ring there holds 256"));
}

fn plan_of(chain: &ServiceChain) -> Plan {
    plan(chain, &Costs::default(), &machine()).unwrap()
}

/// A promise that others have counts the ring as well.
#[test]
fn who_would_fill_the_ring_of_a_promised_chain_is_refused() {
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
    assert_eq!(refusal("queue: 60, delay: 3ms"), None);
    let short = refusal("queue: 59, delay: 3ms").unwrap();
    assert!(short.contains("`shaper: { queue: 60 }`"), "{short}");
    let early = refusal("queue: 60, delay: 2999us").unwrap();
    assert!(early.contains("up to 3000 us"), "{early}");
}

proptest! {
    /// Whatever comes and goes, what is left is as if only that had come.
    #[test]
    fn who_leaves_takes_exactly_what_it_brought(
        rates in prop::collection::vec((1_u64..5000, 1_u64..50, any::<bool>(), any::<bool>()), 1..8), gone in prop::collection::vec(any::<bool>(), 8),
    ) {
        let machine = machine();
        let user = pinned(XOR, Space::User);
        let bookings: Vec<_> = rates.iter().enumerate().map(|(index, (rate, burst, in_user, free))| {
            let functions: &[&str] = if *in_user { &[&user] } else { &[FORWARD] };
            let sla = if *free { String::new() } else { format!("  sla: {{ rate: {rate}pps, burst: {burst}, latency: 10s }}\n") };
            beside(&Ledger::default(), &shared(&format!("c{index}"), functions, &sla), &machine).1
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

    /// Whatever is agreed, the bound is not above the sum, the shares add up, and what is not admitted says why.
    #[test]
    fn any_contract_has_an_answer(
        pps in prop_oneof![1_u64..100_000, Just(10_000_000_000_000)], burst in prop_oneof![1_u64..2000, Just(1_u64 << 33)],
        bits in prop::option::of((1_u64..10_000_000_000_000, 1_u64..(1 << 33))), latency_us in 1_u64..10_000, in_user: bool, others in 0_u64..5,
    ) {
        let machine = machine();
        let user = pinned(XOR, Space::User);
        let functions: &[&str] = if in_user { &[FIREWALL, &user] } else { &[FIREWALL] };
        let mut ledger = Ledger::default();
        for other in 0..others {
            let chain = shared(&format!("o{other}"), functions, "  sla: { rate: 1kpps, burst: 4 }\n");
            ledger.insert(beside(&ledger, &chain, &machine).1);
        }
        let mut chain = shared("tried", functions, "  sla: { rate: 1kpps }\n");
        chain.sla.rate_pps = Some(pps);
        chain.sla.burst_packets = Some(burst);
        if let Some((rate, burst)) = bits {
            (chain.sla.rate_bps, chain.sla.burst_bits) = (Some(rate), Some(burst));
        }
        chain.sla.latency_ns = Some(latency_us * 1000);
        let (plan, _) = beside(&ledger, &chain, &machine);
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

/// A batch of 32 leaves when its last packet is done, so 31 packets of the neighbours may be in front of one that came before them.
#[test]
fn a_packet_leaves_with_its_batch() {
    let user = pinned(XOR, Space::User);
    let with = |batch: u32| {
        let agreed = format!(
            "  sla: {{ rate: 1kpps, burst: 1 }}\n  worker: {{ batch: {batch}, idle: spin }}\n"
        );
        bound(&planned(&[&user], &agreed)).clone()
    };
    let (one, many) = (with(1), with(32));
    let worker_ns: u64 = one.hops[1..].iter().map(|hop| hop.cost_ns).sum();
    let more = many.bound_ns - one.bound_ns;
    assert!(
        more.abs_diff(31 * worker_ns) < 31 * 3,
        "{more} against {worker_ns} each"
    );
}

/// Who reads two sockets in turn may serve one of them first, though packets of the other came before.
#[test]
fn a_worker_with_two_ports_is_not_first_come_first_served() {
    let user = pinned(XOR, Space::User);
    let machine = machine();
    let from = |name: &str, ports: &str| {
        named(
            name,
            &[&user],
            &format!("  ports: {{ {ports} }}\n  sla: {{ rate: 20kpps, burst: 32 }}\n"),
        )
    };
    let beside_one = |ports: &str| {
        let mut ledger = Ledger::default();
        let first = from("first", "ingress: eth1, egress: eth2");
        ledger.insert(beside(&ledger, &first, &machine).1);
        let (plan, _) = beside(&ledger, &from("second", ports), &machine);
        bound(&plan).clone()
    };
    let same = beside_one("ingress: eth1, egress: eth2");
    let back = beside_one("ingress: eth2, egress: eth1");
    assert!(same.paper_sum_ns.is_some());
    assert_eq!(back.paper_sum_ns, None);
    let worker = |bound: &Bound| bound.servers[1].delay_ns;
    assert!(worker(&back) > worker(&same), "{back:?} against {same:?}");
}

/// Whatever the order, all that may be there counts, and the chain's own packets are as clustered as those of others.
#[test]
fn where_the_order_is_unknown_all_stay_equally_long() {
    let user = pinned(XOR, Space::User);
    let machine = machine();
    let chain = |name: &str, ports: &str, burst: u32| {
        named(
            name,
            &[&user],
            &format!("  ports: {{ {ports} }}\n  sla: {{ rate: 20kpps, burst: {burst} }}\n"),
        )
    };
    let (there, back) = (
        chain("there", "ingress: eth1, egress: eth2", 200),
        chain("back", "ingress: eth2, egress: eth1", 2),
    );
    let mut ledger = Ledger::default();
    ledger.insert(beside(&ledger, &there, &machine).1);
    ledger.insert(beside(&ledger, &back, &machine).1);
    let worker = |chain| {
        let (plan, _) = beside(&ledger, chain, &machine);
        bound(&plan).servers[1].delay_ns
    };
    assert_eq!(worker(&there), worker(&back));
}
