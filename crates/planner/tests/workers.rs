//! Tests which worker a plan names, and that the workers of a core share it alike.

#[allow(dead_code)]
mod common;

use common::node::{chain_on_shared_ports, plan_at, plan_on_node};
use common::{FORWARD, XOR, machine, named, pinned};
use myelin_planner::admission::{Ledger, Node, Site, review};
use myelin_planner::costs::InBurst;
use myelin_planner::{Cost, Costs, Machine, Plan, plan};
use myelin_spec::{ServiceChain, Space};

fn user_plan(name: &str, more: &str, machine: &Machine) -> Plan {
    let mut chain = named(name, &[&pinned(XOR, Space::User)], more);
    // The parser wants both chains of a pair in one file.
    chain.reverse = match name {
        "a" => Some("b".to_owned()),
        "b" => Some("a".to_owned()),
        _ => None,
    };
    plan(&chain, &Costs::default(), machine).unwrap()
}

fn worker_of(name: &str, more: &str) -> (String, u32) {
    let worker = user_plan(name, more, &machine()).worker.unwrap();
    (worker.name(), worker.core)
}

#[test]
fn a_plan_names_the_worker_and_the_profile_that_the_policer_enforces() {
    let kernel = plan(&named("a", &[FORWARD], ""), &Costs::default(), &machine()).unwrap();
    assert_eq!((kernel.worker, kernel.policing), (None, None));
    assert_eq!(worker_of("c", ""), ("default@c".to_owned(), 1));
    // A chain and its reverse have one worker. The node knows which of them made the end hosts.
    assert_eq!(worker_of("b", "").0, "default@a");
    assert_eq!(worker_of("a", "").0, "default@a");
    let made_by = Machine {
        circuit: Some("b".to_owned()),
        ..machine()
    };
    let plan = user_plan("a", "", &made_by);
    assert_eq!(plan.worker.unwrap().circuit, "b");
    let ports = "  ports: { ingress: eth1, egress: eth2 }\n  worker: { cores: [0] }\n";
    assert_eq!(worker_of("a", ports), ("default@".to_owned(), 0));
    let distributed = "  mapping: distributed\n";
    assert_eq!(worker_of("a", distributed).0, "default@a.");

    let policed = user_plan("a", "  sla: { rate: 2kpps, burst: 5 }\n", &machine());
    let bucket = policed.policing.unwrap().packets.unwrap();
    assert_eq!((bucket.rate(), bucket.burst()), (2000, 5));
    let shaped = "  sla: { rate: 2kpps, enforce: shaper }\n";
    assert_eq!(user_plan("a", shaped, &machine()).policing, None);
}

#[test]
fn admission_refuses_two_ways_of_sharing_one_core() {
    let user = [&*pinned(XOR, Space::User)];
    let chain = |name: &str, worker: &str| {
        chain_on_shared_ports(name, &user, &format!("  worker: {{ {worker} }}\n"))
    };
    let mut ledger = Ledger::default();
    let mut tried = |name: &str, worker: &str| {
        let chain = chain(name, worker);
        let (plan, booking) = plan_on_node(&ledger, &chain, &machine());
        if plan.admitted {
            ledger.insert(booking);
        }
        plan.refusal
    };
    assert_eq!(tried("first", "sharing: unis"), None);
    assert_eq!(tried("second", "sharing: unis"), None);
    for other in [
        "sharing: deadline",
        "batch: 8",
        "sharing: { policy: unis, gamma: 0.5 }",
    ] {
        let refusal = tried("third", other).unwrap();
        let expected = "core 1 has a worker or black box of chain `first` with `sharing: unis`";
        assert!(refusal.contains(expected), "{refusal}");
    }
    assert_eq!(tried("third", "sharing: deadline, cores: [0]"), None);
    // A chain may change its own core's policy only if it is alone there.
    assert_eq!(tried("third", "cores: [0]"), None);
    assert!(tried("first", "sharing: deadline").is_some());
    ledger.remove("second");
    let (plan, _) = plan_on_node(&ledger, &chain("first", "sharing: deadline"), &machine());
    assert_eq!(plan.refusal, None);
}

#[test]
fn turns_in_a_fixed_order_have_a_bound_also_beside_chains_without_a_rate() {
    let sla = "  sla: { rate: 1kpps, burst: 4, latency: 50ms }\n";
    let chain = |name: &str, sharing: &str, sla: &str| {
        let worker = format!("  worker: {{ sharing: {sharing}, batch: 16 }}\n{sla}");
        named(name, &[&pinned(XOR, Space::User)], &worker)
    };
    for sharing in ["cooperative", "{ policy: round-robin, slice: 200us }"] {
        let mut ledger = Ledger::default();
        let mut last_ns = 0;
        for (name, sla) in [("a", sla), ("b", ""), ("c", sla), ("d", ""), ("e", sla)] {
            let (plan, booking) = plan_on_node(&ledger, &chain(name, sharing, sla), &machine());
            assert_eq!(plan.refusal, None, "{sharing}");
            ledger.insert(booking);
            // Each further worker makes a round longer, whether or not its traffic is known.
            let (plan, _) = plan_on_node(&ledger, &chain("a", sharing, sla), &machine());
            if !sla.is_empty() {
                let bound = plan.bound.expect("turns in a fixed order have a bound");
                assert!(bound.bound_ns > last_ns, "{sharing} {last_ns} {bound:?}");
                last_ns = bound.bound_ns;
            }
        }
        // A promise that further workers would break.
        let tight = chain(
            "e",
            sharing,
            "  sla: { rate: 1kpps, burst: 4, latency: 1us }\n",
        );
        assert!(
            plan_on_node(&ledger, &tight, &machine())
                .0
                .refusal
                .is_some()
        );
    }
    for sharing in ["unis", "deadline", "auto"] {
        let (plan, _) = plan_on_node(&Ledger::default(), &chain("a", sharing, sla), &machine());
        let why = plan.no_bound.expect("no bound");
        assert!(why.contains("`sharing: cooperative`"), "{why}");
    }
}

#[test]
fn turns_by_deadline_have_a_bound_with_a_longest_turn() {
    let chain = |name: &str, worker: &str, sla: &str| {
        let sharing = "sharing: { policy: deadline, longestTurn: 200us }";
        let more = format!("  worker: {{ {sharing}, {worker} }}\n  sla: {{ {sla} }}\n");
        named(name, &[&pinned(XOR, Space::User)], &more)
    };
    let tried = |ledger: &Ledger, name: &str, sla: &str| {
        plan_on_node(ledger, &chain(name, "batch: 16", sla), &machine())
    };
    let bound_ns = |plan: &Plan| plan.bound.as_ref().expect("a bound").bound_ns;
    let tight = |latency: &str| format!("rate: 200pps, burst: 1, latency: {latency}");
    let mut ledger = Ledger::default();
    let (plan, booking) = tried(&ledger, "tight", &tight("3ms"));
    let alone_ns = bound_ns(&plan);
    let sharing = plan.sharing.unwrap();
    assert_eq!(sharing.longest_turn_ns, Some(200_000));
    assert!(sharing.why.starts_with("`longestTurn`"), "{sharing:?}");
    ledger.insert(booking);

    // A chain with many packets needs no switch for each of them, and one turn of it delays.
    let bulk = "rate: 50kpps, burst: 64, latency: 100ms, enforce: policer";
    let (plan, booking) = tried(&ledger, "bulk", bulk);
    assert_eq!(plan.refusal, None);
    ledger.insert(booking);
    let beside_ns = bound_ns(&tried(&ledger, "tight", &tight("3ms")).0);
    let expected = alone_ns + 200_000..3_000_000;
    assert!(expected.contains(&beside_ns), "{alone_ns} {beside_ns}");

    // A promise that the others leave no room for, and too many packets.
    for sla in [
        &tight("500us"),
        "rate: 250kpps, burst: 10, latency: 90ms, enforce: policer",
    ] {
        let refusal = tried(&ledger, "new", sla).0.refusal.expect("refused");
        assert!(refusal.contains("`bulk`, `tight`"), "{refusal}");
    }
    // A promise that longer batches would break.
    let latency = format!("{}us", beside_ns / 1000 + 100);
    let (plan, booking) = tried(&ledger, "tight", &tight(&latency));
    assert_eq!(plan.refusal, None);
    ledger.insert(booking);
    let batches = chain(
        "new",
        "batch: 256",
        "rate: 100pps, burst: 1, latency: 100ms",
    );
    let (plan, _) = plan_on_node(&ledger, &batches, &machine());
    let refusal = plan.refusal.expect("refused");
    assert!(
        refusal.contains("the promise to chain `tight` would break"),
        "{refusal}"
    );

    // Beside a chain without a rate there is no bound.
    let mut ledger = Ledger::default();
    ledger.insert(tried(&ledger, "free", "latency: 5ms").1);
    let refusal = tried(&ledger, "tight", &tight("3ms"))
        .0
        .refusal
        .expect("refused");
    assert!(refusal.contains("`free`"), "{refusal}");
}

#[test]
fn auto_is_deadline_where_workers_can_take_turns() {
    let user = [&*pinned(XOR, Space::User)];
    let worker = |name: &str, sharing: &str| {
        let worker = format!("  worker: {{ sharing: {sharing} }}\n");
        named(name, &user, &worker)
    };
    let mut ledger = Ledger::default();
    let (plan, booking) = plan_on_node(&ledger, &worker("a", "auto"), &machine());
    assert_eq!(plan.sharing.unwrap().policy.as_str(), "deadline");
    ledger.insert(booking);
    let (plan, _) = plan_on_node(&ledger, &worker("b", "deadline"), &machine());
    assert_eq!(plan.refusal, None);
    let (plan, _) = plan_on_node(&ledger, &worker("b", "os"), &machine());
    assert!(plan.refusal.is_some());
    let devices = "  ports: { ingress: { dpdk: \"net_tap0\" }, egress: { dpdk: \"net_tap1\" } }\n  \
                   worker: { sharing: auto }\n";
    let plan =
        myelin_planner::plan(&named("d", &[XOR], devices), &Costs::default(), &machine()).unwrap();
    assert_eq!(plan.sharing, None);
}

/// A pipeline whose traffic a policer limits. The first function is in the worker.
fn pipeline(name: &str, functions: &[&str], worker: &str, sla: &str) -> ServiceChain {
    let user: Vec<String> = functions
        .iter()
        .map(|kind| pinned(kind, Space::User))
        .collect();
    let user: Vec<&str> = user.iter().map(|function| &**function).collect();
    let more = format!("  mapping: pipeline\n  worker: {{ {worker} }}\n  sla: {{ {sla} }}\n");
    chain_on_shared_ports(name, &user, &more)
}

/// A function that must be in the worker.
const NAT: &str = "kind: nat, config: { address: 192.0.2.1 }";
const COOPERATIVE: &str = "sharing: { policy: cooperative, reads: 2 }, batch: 16";
const POLICED: &str = "rate: 1kpps, burst: 4, latency: 90ms, enforce: policer";

#[test]
fn a_pipeline_in_cooperative_turns_has_a_bound_of_whole_rounds() {
    let mut ledger = Ledger::default();
    let two = pipeline("a", &[XOR, XOR], COOPERATIVE, POLICED);
    let bound_ns = |ledger: &Ledger, chain: &ServiceChain| {
        let (plan, _) = plan_on_node(ledger, chain, &machine());
        let bound = plan.bound.unwrap_or_else(|| panic!("{:?}", plan.no_bound));
        let shares: u64 = bound.hops.iter().map(|hop| hop.share_ns).sum();
        assert_eq!(shares + bound.latency_ns, bound.bound_ns, "{bound:?}");
        bound.bound_ns
    };
    let (plan, booking) = plan_on_node(&ledger, &two, &machine());
    assert_eq!((plan.refusal, plan.own_processes), (None, 1));
    let why = plan.sharing.unwrap().why;
    assert!(why.contains("empties its ring"), "{why}");
    let alone_ns = bound_ns(&ledger, &two);

    // Each stage and each other process has a turn in a round; a function that must be in the first
    // process needs a round more.
    let three_ns = bound_ns(&ledger, &pipeline("a", &[XOR; 3], COOPERATIVE, POLICED));
    let returning = [XOR, XOR, NAT, XOR];
    let returning = pipeline("a", &returning, COOPERATIVE, POLICED);
    let last = [XOR, XOR, XOR, NAT];
    let last = pipeline("a", &last, COOPERATIVE, POLICED);
    let (last_ns, returning_ns) = (bound_ns(&ledger, &last), bound_ns(&ledger, &returning));
    assert!(alone_ns < three_ns && three_ns < last_ns && last_ns < returning_ns);
    let longer = "sharing: { policy: cooperative, reads: 4 }, batch: 16";
    let longer_ns = bound_ns(&ledger, &pipeline("a", &[XOR, XOR], longer, POLICED));
    assert!(alone_ns < longer_ns, "{alone_ns} {longer_ns}");

    // A worker beside the pipeline waits for both of its processes, whether or not their traffic
    // has a limit. Admission keeps its promise.
    let beside = |name: &str, latency: &str| {
        let sla = format!("  sla: {{ rate: 1kpps, burst: 4, latency: {latency} }}\n");
        let worker = format!("  worker: {{ {COOPERATIVE} }}\n{sla}");
        named(name, &[&pinned(XOR, Space::User)], &worker)
    };
    let worker_ns = bound_ns(&ledger, &beside("b", "90ms"));
    let before = ledger.clone();
    ledger.insert(booking);
    let beside_ns = bound_ns(&ledger, &beside("b", "90ms"));
    assert!(worker_ns < beside_ns, "{worker_ns} {beside_ns}");
    let free = pipeline("a", &[XOR, XOR], COOPERATIVE, "latency: 90ms");
    let mut freely = Ledger::default();
    freely.insert(plan_on_node(&freely, &free, &machine()).1);
    assert_eq!(bound_ns(&freely, &beside("b", "90ms")), beside_ns);
    // Two pipelines of one worker.
    let second = pipeline("c", &[XOR, XOR], COOPERATIVE, POLICED);
    assert!(bound_ns(&ledger, &second) > alone_ns);
    ledger.remove("a");
    assert_eq!(ledger, before);

    let tight = beside("b", &format!("{}us", worker_ns / 1000 + 1));
    ledger.insert(plan_on_node(&ledger, &tight, &machine()).1);
    let refusal = plan_on_node(&ledger, &two, &machine()).0.refusal;
    let broken = "the promise to chain `b` would break";
    assert!(refusal.is_some_and(|refusal| refusal.contains(broken)));
}

/// With measured batches, a batch of a worker costs more in mapping `compact` than in `pipeline`.
/// So the chains of one process are two servers, and the share of each in a turn is unknown.
#[test]
fn chains_of_one_worker_in_two_mappings_have_no_bound() {
    let cost = |ns| Cost::new(ns, 0.0);
    let costs = Costs {
        in_burst: Some(InBurst {
            kernel: cost(1000.0),
            port: cost(900.0),
            worker: cost(700.0),
            ..InBurst::default()
        }),
        ..Costs::default()
    };
    let machine = machine();
    let tried = |ledger: &Ledger, chain: &ServiceChain| {
        let mut planned = plan(chain, &costs, &machine).unwrap();
        let node = Node {
            costs: &costs,
            machine: &machine,
            ledger,
        };
        let booking = review(&mut planned, chain, &node, &Site::planned(chain, &machine));
        (planned, booking)
    };
    let chain = |name: &str, mapping: &str, owner: &str| {
        let more = format!(
            "  mapping: {mapping}\n  worker: {{ {COOPERATIVE} }}\n  sla: {{ {POLICED} }}\n"
        );
        let user = pinned(XOR, Space::User);
        let mut chain = chain_on_shared_ports(name, &[&user, &user], &more);
        chain.namespace = owner.to_owned();
        chain
    };
    for (first, second) in [("compact", "pipeline"), ("pipeline", "compact")] {
        let mut ledger = Ledger::default();
        let (plan, booking) = tried(&ledger, &chain("a", first, "default"));
        assert!(plan.bound.is_some(), "{first}: {:?}", plan.no_bound);
        ledger.insert(booking);
        let (plan, _) = tried(&ledger, &chain("b", second, "default"));
        let why = plan.refusal.or(plan.no_bound).unwrap_or_default();
        let expected = "in mappings `compact` and `pipeline` share each of its turns";
        assert!(why.contains(expected), "{first}, {second}: {why}");
        assert!(why.contains("`metadata.namespace`"), "{why}");
        // One mapping, and the two remedies.
        let (same, _) = tried(&ledger, &chain("b", first, "default"));
        let (apart, _) = tried(&ledger, &chain("b", second, "other"));
        for plan in [same, apart] {
            assert_eq!(plan.refusal, None, "{first}, {second}");
            assert!(plan.bound.is_some(), "{first}: {:?}", plan.no_bound);
        }
    }
}

#[test]
fn a_pipeline_without_a_bound_names_the_condition_and_the_remedy() {
    let why = |functions: &[&str], worker: &str, sla: &str| {
        let chain = pipeline("a", functions, worker, sla);
        let (plan, _) = plan_on_node(&Ledger::default(), &chain, &machine());
        plan.no_bound.unwrap_or_default()
    };
    let two = [XOR, XOR];
    for (functions, worker, sla, expected) in [
        (
            &two[..],
            "sharing: unis",
            POLICED,
            "`worker: { sharing: cooperative }`",
        ),
        (
            &two,
            "sharing: round-robin",
            POLICED,
            "`worker: { sharing: cooperative }`",
        ),
        (
            &two,
            "sharing: { policy: deadline, longestTurn: 200us }",
            POLICED,
            "`worker: { sharing: cooperative }`",
        ),
        (
            &two,
            "sharing: { policy: cooperative, reads: 24 }, batch: 64",
            POLICED,
            "write `ring: 2048` in `worker`, or `sharing: { policy: cooperative, reads: 15 }`",
        ),
        (
            &two,
            "sharing: { policy: cooperative, reads: 2 }, batch: 128",
            POLICED,
            "`batch: 64`",
        ),
        (
            &[XOR, XOR, "kind: rlnc-encode"],
            COOPERATIVE,
            POLICED,
            "`f2` holds or creates packets",
        ),
        (
            &two,
            "sharing: { policy: cooperative, reads: 2, mechanism: preempt }, batch: 16",
            POLICED,
            "remove `mechanism`",
        ),
        (
            &two,
            COOPERATIVE,
            "rate: 1kpps, burst: 4, latency: 90ms",
            "`sla: { enforce: policer }`",
        ),
    ] {
        let why = why(functions, worker, sla);
        assert!(why.contains(expected), "{worker}: {why}");
    }
    let long = "sharing: { policy: cooperative, reads: 24 }, batch: 64, ring: 2048";
    assert_eq!(why(&two, long, POLICED), "");

    let chain = pipeline("a", &two, COOPERATIVE, POLICED);
    let site = Site {
        queues: 2,
        ..Site::planned(&chain, &machine())
    };
    let (plan, _) = plan_at(&Ledger::default(), &chain, &machine(), &site);
    assert!(plan.no_bound.unwrap().contains("eth1 has 2 receive queues"));
    let kernel = pinned(FORWARD, Space::Kernel);
    let user = pinned(XOR, Space::User);
    let more =
        format!("  mapping: pipeline\n  worker: {{ {COOPERATIVE} }}\n  sla: {{ {POLICED} }}\n");
    let between = chain_on_shared_ports("a", &[&user, &user, &kernel, &user], &more);
    let (plan, _) = plan_on_node(&Ledger::default(), &between, &machine());
    assert!(plan.no_bound.unwrap().contains("return from the kernel"));
}

#[test]
fn beside_a_black_box_of_another_chain_no_turn_has_a_bound() {
    for sharing in [
        "round-robin",
        "{ policy: deadline, longestTurn: 200us }",
        "os",
    ] {
        let sla = "sla: { rate: 1kpps, burst: 4, latency: 90ms, enforce: policer }";
        let more = format!("  worker: {{ sharing: {sharing} }}\n  {sla}\n");
        let chain = named("a", &[&pinned(XOR, Space::User)], &more);
        let mut ledger = Ledger::default();
        let (plan, booking) = plan_on_node(&ledger, &chain, &machine());
        assert!(plan.bound.is_some(), "{sharing}: {:?}", plan.no_bound);
        let core = plan.worker.unwrap().core;
        let config = format!("{{ cores: [{core}], sharing: {sharing}, command: [box] }}");
        let black_box = named("b", &[&format!("kind: external, config: {config}")], "");

        let (_, of_box) = plan_on_node(&ledger, &black_box, &machine());
        ledger.insert(of_box);
        let (plan, _) = plan_on_node(&ledger, &chain, &machine());
        let why = plan.no_bound.or(plan.refusal).unwrap_or_default();
        assert!(
            why.contains("a black box runs on the core"),
            "{sharing}: {why}"
        );

        // The promise to the chain that came first counts too.
        let mut ledger = Ledger::default();
        ledger.insert(booking);
        let (plan, _) = plan_on_node(&ledger, &black_box, &machine());
        let refusal = plan.refusal.unwrap_or_default();
        assert!(
            refusal.contains("the promise to chain `a` would break"),
            "{sharing}: {refusal}"
        );
    }
}
