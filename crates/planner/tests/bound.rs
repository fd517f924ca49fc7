//! Tests the parts of a bound.

#[allow(dead_code)]
mod common;

use common::node::{bound, chain_on_shared_ports, plan_on_node};
use common::{FIREWALL, FORWARD, XOR, machine, named, pinned, planned};
use myelin_planner::admission::{Ledger, Node, Site, review};
use myelin_planner::costs::InBurst;
use myelin_planner::{Bound, Cost, Costs, Machine, Stall, plan};
use myelin_spec::Space;
use myelin_spec::XOR as XOR_KIND;

#[test]
fn bound_is_the_worst_cost_of_a_burst_and_the_stalls_of_its_cores() {
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
    // Packets that arrive during the service may leave in the same turn.
    let later_ns = bound.bound_ns as f64 - expected;
    assert!(
        (0.0..packet_ns).contains(&later_ns),
        "{} against {expected}",
        bound.bound_ns
    );
    let sum_ns = bound.paper_sum_ns.unwrap() as f64;
    assert!(
        (sum_ns - expected - 7.0 * packet_ns).abs() < 2.0,
        "the paper's sum always counts a full turn: {sum_ns}"
    );
    assert_eq!(bound.latency_ns, 20_000);
    assert_eq!(bound.servers.len(), 1);
    let names: Vec<_> = bound.hops.iter().map(|hop| hop.name.as_str()).collect();
    assert_eq!(names, ["front door", "f0", "egress"]);
}

#[test]
fn shares_add_up_to_the_bound() {
    let (kernel, user) = (pinned(FIREWALL, Space::Kernel), pinned(XOR, Space::User));
    let plan = planned(
        &[&kernel, &user],
        "  sla: { rate: 20kpps, burst: 24, latency: 350us }\n",
    );
    assert!(plan.admitted, "{:?}", plan.refusal);
    let bound = bound(&plan);
    let shares: u64 = bound.hops.iter().map(|hop| hop.share_ns).sum();
    assert_eq!(shares + bound.latency_ns, bound.bound_ns);
    assert!(bound.bound_ns < bound.paper_sum_ns.unwrap(), "{bound:?}");
    assert_eq!(bound.servers.len(), 2);
    let wake_up = Costs::default().steps.wake_up.per_packet_ns * 1.5;
    // The bound contains the stalls of two cores and a wake-up. Before a shaped packet leaves, the
    // worker may stall and wake up again, process one packet and send another packet.
    let standing_ns = 40_000 + 20_000 + 2 * wake_up as u64;
    let packet_ns: u64 = bound.hops[2..].iter().map(|hop| hop.cost_ns).sum();
    assert!(
        bound.latency_ns > standing_ns + packet_ns
            && bound.latency_ns < standing_ns + 6 * packet_ns,
        "{bound:?}"
    );
}

/// tcx forwards packets nearly one by one. With XDP, a redirected packet waits for the other
/// packets of its turn.
#[test]
fn bound_counts_a_burst_once_if_packets_are_forwarded_one_by_one() {
    let with_link = Machine {
        egress_bps: Some(1_000_000_000),
        ..machine()
    };
    let bound = |hook: &str| {
        let agreed = format!("  hook: {hook}\n  sla: {{ rate: 10kpps, burst: 200 }}\n");
        let chain = chain_on_shared_ports("one", &[FORWARD], &agreed);
        let plan = plan(&chain, &Costs::default(), &with_link).unwrap();
        bound(&plan).clone()
    };
    let (tcx, xdp) = (bound("tcx"), bound("xdp"));
    let sum_of_delays = |bound: &Bound| {
        bound
            .servers
            .iter()
            .map(|server| server.delay_ns)
            .sum::<u64>()
    };
    assert!(tcx.bound_ns + 20_000 < sum_of_delays(&tcx), "{tcx:?}");
    assert!(xdp.bound_ns.abs_diff(sum_of_delays(&xdp)) < 2, "{xdp:?}");
}

/// XDP forwards redirected packets at the end of a turn of 64 packets, tcx in lists of 8 packets.
/// So the other packets of the turn or list may precede a packet even if they arrive later.
#[test]
fn bound_counts_later_packets_of_the_receive_batch() {
    let with = |rate: u64, hook: &str| {
        let agreed = format!("  hook: {hook}\n  sla: {{ rate: {rate}pps, burst: 1 }}\n");
        bound(&planned(&[FORWARD], &agreed)).clone()
    };
    for (hook, turn) in [("xdp", 64), ("tcx", 8)] {
        let rare = with(1000, hook);
        let packet_ns: u64 = rare.hops.iter().map(|hop| hop.cost_ns).sum();
        let standing_ns = 20_000 + packet_ns;
        assert!(rare.bound_ns.abs_diff(standing_ns) < 500, "{rare:?}");
        let busy = with(rare.servers[0].capacity_pps / 10 * 9, hook);
        let later_ns = busy.bound_ns - standing_ns;
        assert!(
            later_ns.abs_diff((turn - 1) * packet_ns) < turn * 3,
            "{later_ns} at {hook}"
        );
    }
}

#[test]
fn link_adds_its_transmission_time() {
    let slow = Machine {
        egress_bps: Some(10_000_000),
        ..machine()
    };
    let tried = |latency: &str| {
        let chain = chain_on_shared_ports(
            "slow",
            &[FORWARD],
            &format!("  sla: {{ rate: 100pps, burst: 1, latency: {latency} }}\n"),
        );
        plan(&chain, &Costs::default(), &slow).unwrap()
    };
    // A frame of 1518 B with 24 B of overhead takes 1233.6 us.
    assert!(!tried("1200us").admitted);
    let plan = tried("1300us");
    assert!(plan.admitted, "{:?}", plan.refusal);
    assert_eq!(bound(&plan).hops.last().unwrap().name, "egress link");
}

#[test]
fn bound_counts_the_stall_of_each_core_once() {
    let user = pinned(XOR, Space::User);
    let chain = named(
        "tried",
        &[&user],
        "  sla: { rate: 1kpps, burst: 8 }\n  worker: { cores: [0], idle: spin }\n",
    );
    let with = |stalls: [u64; 2]| {
        let mut costs = Costs::default();
        for (core, stall_ns) in (0..).zip(stalls) {
            let stall = Stall {
                stall_ns,
                ..Stall::default()
            };
            costs.stalls.insert(core, stall);
        }
        bound(&plan(&chain, &costs, &machine()).unwrap()).clone()
    };
    let (short, long) = (with([1000, 1000]), with([5000, 100_000]));
    // The kernel part may run on the core with the longer stall. The worker is on core 0, and may
    // stall again before a shaped departure. Departures and arrivals during that time add less than
    // 1 %.
    let more_ns = long.bound_ns - short.bound_ns;
    assert!((107_000..108_000).contains(&more_ns), "{more_ns}");
    let standing_ns = long.latency_ns - short.latency_ns;
    assert!((107_000..=more_ns).contains(&standing_ns), "{standing_ns}");
}

/// A batch of 32 packets leaves after its last packet, so up to 31 later packets may precede a
/// packet. At a low rate fewer packets precede it.
#[test]
fn bound_counts_later_packets_of_the_batch() {
    let user = pinned(XOR, Space::User);
    let with = |rate: u64, batch: u32| {
        let agreed = format!(
            "  sla: {{ rate: {rate}pps, burst: 1, enforce: policer }}\n  worker: {{ batch: {batch}, idle: spin }}\n"
        );
        bound(&planned(&[&user], &agreed)).clone()
    };
    assert!(with(1000, 32).bound_ns - with(1000, 1).bound_ns < 500);
    let busy = with(1000, 1).servers[1].capacity_pps / 10 * 9;
    let (single, batched) = (with(busy, 1), with(busy, 32));
    let worker_ns: u64 = single.hops[1..].iter().map(|hop| hop.cost_ns).sum();
    let more = batched.bound_ns - single.bound_ns;
    assert!(
        more.abs_diff(31 * worker_ns) < 31 * 3,
        "{more} ns more, {worker_ns} ns for each packet"
    );
}

/// The bound counts the cost of a batch once for each full batch, or for each packet if a batch may
/// have a single packet.
#[test]
fn bound_counts_the_cost_of_batches() {
    let user = pinned(FORWARD, Space::User);
    let machine = machine();
    let with = |in_burst, other: Option<&str>| {
        let mut costs = Costs {
            in_burst,
            worst_case: 1.0,
            ..Costs::default()
        };
        costs.steps.enter_user = Cost::new(1900.0, 0.0);
        costs.steps.user_egress = Cost::new(100.0, 0.0);
        let chain = |name: &str, ports: &str| {
            let more = format!(
                "  ports: {{ {ports} }}\n  sla: {{ rate: 1kpps, burst: 128, enforce: policer }}\n  worker: {{ batch: 64, idle: spin }}\n"
            );
            named(name, &[&user], &more)
        };
        let mut ledger = Ledger::default();
        let chains = other.map(|ports| chain("other", ports)).into_iter();
        let mut plans = chains
            .chain([chain("tried", "ingress: eth1, egress: eth2")])
            .map(|chain| {
                let mut planned = plan(&chain, &costs, &machine).unwrap();
                let node = Node {
                    costs: &costs,
                    machine: &machine,
                    ledger: &ledger,
                };
                let booking = review(
                    &mut planned,
                    &chain,
                    &node,
                    &Site::planned(&chain, &machine),
                );
                ledger.insert(booking);
                planned
            });
        bound(&plans.by_ref().last().unwrap()).clone()
    };
    let in_burst = Some(InBurst {
        kernel: Cost::new(1000.0, 0.0),
        port: Cost::new(1500.0, 0.0),
        worker: Cost::new(720.0, 0.0),
        ..InBurst::default()
    });
    let worker_ns =
        |bound: &Bound| (bound.servers[1].delay_ns - bound.servers[1].latency_ns) as f64;
    let about = |ns: f64, expected: f64| ns > expected && ns < expected * 1.05;
    let (alone, many) = (with(None, None), with(in_burst, None));
    // Alone, each of 128 packets costs 2 us. In batches, a packet costs 720 ns and a batch of 64
    // packets 1280 ns. A few more packets arrive during the service.
    assert!(about(worker_ns(&alone), 128.0 * 2000.0), "{alone:?}");
    assert!(
        about(worker_ns(&many), 128.0 * 720.0 + 2.0 * 1280.0),
        "{many:?}"
    );
    // The latency includes the costs of two partial batches.
    assert_eq!(many.servers[1].latency_ns, 20_000 + 2 * 1280);
    // The port's work includes the path to the ring.
    assert!(
        about(many.servers[0].delay_ns as f64, 128.0 * 1500.0 + 20_000.0),
        "{many:?}"
    );
    // The worker serves two ports in turn, and each batch may have one packet.
    let turns = with(in_burst, Some("ingress: eth3, egress: eth4"));
    let expected = 2.0 * (128.0 * (720.0 + 1280.0) + 2.0 * 1280.0);
    assert!(about(worker_ns(&turns), expected), "{turns:?}");
}

/// A worker with two sockets may serve one socket first, although packets arrived earlier at the
/// other socket.
#[test]
fn worker_with_two_ports_is_not_first_come_first_served() {
    let user = pinned(XOR, Space::User);
    let machine = machine();
    let from = |name: &str, ports: &str| {
        named(
            name,
            &[&user],
            &format!("  ports: {{ {ports} }}\n  sla: {{ rate: 20kpps, burst: 32 }}\n"),
        )
    };
    let with_one_more = |ports: &str| {
        let mut ledger = Ledger::default();
        let first = from("first", "ingress: eth1, egress: eth2");
        ledger.insert(plan_on_node(&ledger, &first, &machine).1);
        let (plan, _) = plan_on_node(&ledger, &from("second", ports), &machine);
        bound(&plan).clone()
    };
    let same = with_one_more("ingress: eth1, egress: eth2");
    let back = with_one_more("ingress: eth2, egress: eth1");
    assert!(same.paper_sum_ns.is_some());
    assert_eq!(back.paper_sum_ns, None);
    let worker = |bound: &Bound| bound.servers[1].delay_ns;
    assert!(worker(&back) > worker(&same), "{back:?} against {same:?}");
}

/// If the order of service is unknown, the bound counts all arrivals. The chain's own packets
/// arrive in clusters like those of other chains.
#[test]
fn chains_with_an_unknown_order_have_the_same_bound() {
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
    ledger.insert(plan_on_node(&ledger, &there, &machine).1);
    ledger.insert(plan_on_node(&ledger, &back, &machine).1);
    let worker = |chain| {
        let (plan, _) = plan_on_node(&ledger, chain, &machine);
        bound(&plan).servers[1].delay_ns
    };
    assert_eq!(worker(&there), worker(&back));
}

/// With an MTU of 9000 B each packet counts as a frame of that length.
#[test]
fn ingress_mtu_gives_the_longest_frame() {
    let with = |ingress_mtu: Option<u32>| {
        let machine = Machine {
            ingress_mtu,
            ..machine()
        };
        let chain = named("tried", &[XOR], "  sla: { rate: 1kpps, burst: 8 }\n");
        bound(&plan(&chain, &Costs::default(), &machine).unwrap()).clone()
    };
    let (unknown, usual, jumbo) = (with(None), with(Some(1500)), with(Some(9000)));
    assert_eq!(unknown, usual);
    let costs = Costs::default();
    let xor = costs.kind_cost(&XOR_KIND, Space::Kernel).unwrap();
    let longer_ns = 7500.0 * xor.per_byte_ns * costs.worst_case;
    let more_ns = jumbo.hops[1].cost_ns - usual.hops[1].cost_ns;
    assert!(
        (more_ns as f64 - longer_ns).abs() < 2.0,
        "{more_ns} against {longer_ns}"
    );
    assert!(
        jumbo.bound_ns >= usual.bound_ns + 8 * (more_ns - 1),
        "{jumbo:?}"
    );
}

/// The first function extends frames of 60 B to 1500 B, which the next function must process.
#[test]
fn longer_packets_cost_later_functions_more() {
    let user = pinned(XOR, Space::User);
    let worker_delay_ns = |first: &str| {
        let first = pinned(first, Space::User);
        let agreed =
            "  sla: { rate: [ 1kpps, 480kbit ], burst: [ 10, 4800bit ], enforce: policer }\n";
        bound(&planned(&[&first, &user], agreed)).servers[1].delay_ns
    };
    let (plain, longer) = (
        worker_delay_ns(FORWARD),
        worker_delay_ns("kind: decompress"),
    );
    let byte_ns = Costs::default()
        .kind_cost(&XOR_KIND, Space::User)
        .unwrap()
        .per_byte_ns;
    let touched_ns = 10.0 * 1440.0 * byte_ns;
    assert!(
        (longer - plain) as f64 > touched_ns,
        "{longer} against {plain}: {touched_ns}"
    );
}

const IN_ORDER: &str =
    "kind: rlnc-decode, space: user, config: { delivery: in-order, timeout: 1ms }";

/// A decoder may release several held packets together. These packets precede other packets, and
/// arrive at the next server in larger clusters.
#[test]
fn held_packets_cluster() {
    let user = pinned(XOR, Space::User);
    let slow = Machine {
        egress_bps: Some(1_000_000_000),
        ..machine()
    };
    let agreed = "  sla: { rate: 10kpps, burst: 4, enforce: policer }\n";
    let with_one_more = |functions: &[&str]| {
        let mut ledger = Ledger::default();
        let first = chain_on_shared_ports("first", functions, agreed);
        ledger.insert(plan_on_node(&ledger, &first, &slow).1);
        let (plan, _) = plan_on_node(
            &ledger,
            &chain_on_shared_ports("second", &[&user], agreed),
            &slow,
        );
        bound(&plan).clone()
    };
    let (unclustered, clustered) = (with_one_more(&[&user]), with_one_more(&[IN_ORDER, &user]));
    assert!(unclustered.paper_sum_ns.is_some() && clustered.paper_sum_ns.is_none());
    // Up to 20 packets arrive while the decoder holds a packet, and the decoder may recover 64.
    let (worker, link) = (1, 2);
    let packet_ns =
        |bound: &Bound, server: usize| 1_000_000_000 / bound.servers[server].capacity_pps;
    for server in [worker, link] {
        let more_ns = clustered.servers[server].delay_ns - unclustered.servers[server].delay_ns;
        assert!(
            more_ns > 84 * packet_ns(&unclustered, server),
            "{clustered:?} against {unclustered:?}"
        );
    }
    // A held packet passes the worker twice, and waits for its hold time.
    let alone = plan_on_node(
        &Ledger::default(),
        &chain_on_shared_ports("alone", &[IN_ORDER], agreed),
        &slow,
    )
    .0;
    let alone = bound(&alone);
    assert!(
        alone.latency_ns > 2_000_000 && alone.bound_ns > 2_000_000 + alone.servers[worker].delay_ns
    );
}

#[test]
fn each_pair_of_devices_has_one_worker_for_both_directions() {
    let devices = |ingress: &str, egress: &str| {
        let ports = format!(
            "  ports: {{ ingress: {{ dpdk: \"{ingress}\" }}, egress: {{ dpdk: \"{egress}\" }} }}\n"
        );
        let chain = named("tried", &[FORWARD], &ports);
        let plan = plan(&chain, &Costs::default(), &machine()).unwrap();
        plan.worker.unwrap().name()
    };
    let worker = devices("net_tap0", "net_tap1");
    assert_eq!(worker, devices("net_tap1", "net_tap0"));
    assert_ne!(worker, devices("net_tap2", "net_tap3"));
}
