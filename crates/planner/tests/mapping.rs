//! Tests the plan of each mapping, and the reasons for a mapping.

#[allow(dead_code)]
mod common;

use common::{
    EXTERNAL, FIREWALL, FORWARD, XOR, assert_adds_up, chain, machine, pinned, planned, refused,
    spaces,
};
use myelin_planner::{Cost, Costs, Entry, Exit, FunctionCosts, Segment, plan};
use myelin_spec::{Hook, Mapping, NoFiles, ServiceChain, Source, Space, parse};
use proptest::prelude::*;

#[test]
fn pipeline_cost_includes_a_ring_between_processes_and_back() {
    let user = |kind| pinned(kind, Space::User);
    let (first, second, third) = (user(FORWARD), user(XOR), user(FORWARD));
    let kernel = pinned(FORWARD, Space::Kernel);
    let functions = [&*first, &second, &kernel, &third];
    let compact = planned(&functions, "  mapping: compact\n");
    let plan = planned(&functions, "  mapping: pipeline\n");
    assert_adds_up(&plan);
    assert_eq!(plan.mapping, Mapping::Pipeline);
    assert_eq!(plan.mapping_why, "written as `mapping: pipeline`");
    let steps: Vec<&str> = plan.hops.iter().map(|hop| &*hop.reach.name).collect();
    assert_eq!(
        steps,
        [
            "enter_user + dispatch",
            "ring + dispatch",
            "ring + user_to_kernel + hop",
            "enter_user + ring + dispatch"
        ]
    );
    assert_eq!(plan.egress.name, "ring + user_egress");
    let ring = Costs::default().steps.ring.at_ns(plan.frame_bytes);
    assert!((plan.predicted_ns - compact.predicted_ns - 4.0 * ring).abs() < 1e-6);

    let processes =
        |plan: &myelin_planner::Plan| plan.hops.iter().map(|hop| hop.process).collect::<Vec<_>>();
    assert_eq!(processes(&plan), [Some(0), Some(1), None, Some(2)]);
    assert_eq!(processes(&compact), [Some(0), Some(0), None, Some(0)]);
    assert_eq!((plan.own_processes, plan.rings), (2, 4));
    assert_eq!((compact.own_processes, compact.rings), (0, 0));
    let spinning = planned(
        &functions,
        "  mapping: pipeline\n  worker: { idle: spin }\n",
    );
    assert!(
        spinning.warnings[0].starts_with("3 processes that poll"),
        "{:?}",
        spinning.warnings
    );
    assert!(
        plan.worst_case_note.contains("165.00 us"),
        "five wake-ups: {}",
        plan.worst_case_note
    );

    // `auto` selects the mapping of least cost. The reason contains the costs of other mappings.
    let auto = planned(&functions, "");
    assert_eq!(auto.mapping, Mapping::Compact);
    let more = 4.0 * ring;
    let expected = format!("`pipeline` costs {more:.0} ns more a packet");
    assert!(
        auto.mapping_why.starts_with(&expected),
        "{}",
        auto.mapping_why
    );
    let alone = planned(&[&*first], "  mapping: pipeline\n");
    assert_eq!(
        alone.egress.name, "user_egress",
        "the first process has the sockets"
    );
}

#[test]
fn distributed_cost_includes_a_link_for_each_function() {
    let user = pinned(XOR, Space::User);
    let functions = [FIREWALL, &user, FORWARD, &user];
    let plan = planned(&functions, "  mapping: distributed\n");
    assert_eq!(plan.mapping, Mapping::Distributed);
    assert_eq!(plan.hook, Hook::Xdp);
    assert_eq!(
        spaces(&plan),
        [Space::Kernel, Space::User, Space::Kernel, Space::User]
    );
    assert_eq!(plan.crossings, 4);
    assert_adds_up(&plan);
    for hop in &plan.hops {
        let step = if hop.space == Space::Kernel {
            "link"
        } else {
            "link + enter_user + dispatch + user_to_kernel"
        };
        assert_eq!(hop.reach.name, step);
    }
    // A worker's packets return to the forwarder, which sends them to the egress.
    assert_eq!(plan.egress.name, "egress_xdp");
    let is_single = |(position, segment): (usize, &Segment)| {
        segment.positions() == (position..position + 1)
            && (segment.entry, segment.exit) == (Entry::Link, Exit::Link)
    };
    assert_eq!(plan.segments.len(), 4);
    assert!(plan.segments.iter().enumerate().all(is_single));
}

#[test]
fn several_spinning_workers_on_a_core_give_a_warning() {
    let user = pinned(XOR, Space::User);
    let spin = "  mapping: distributed\n  worker: { idle: spin }\n";
    assert!(planned(&[&user, FORWARD], spin).warnings.is_empty());
    let warnings = planned(&[&user, FORWARD, &user], spin).warnings;
    assert!(
        warnings[0].starts_with("2 workers spin on one core"),
        "{warnings:?}"
    );
}

proptest! {
    /// At one hook, functions with their own links do not affect the space of other functions.
    #[test]
    fn distributed_functions_are_placed_independently(
        costs in prop::collection::vec((0_u32..20_000, 0_u32..20_000), 1..=6),
    ) {
        let mut all_costs = Costs::default();
        let names = ["forward", "xor", "firewall"];
        let configured = [FORWARD, XOR, FIREWALL];
        for (name, (kernel, user)) in names.iter().zip(&costs) {
            let cost = |ns: &u32| Some(Cost::new(f64::from(*ns), 0.0));
            let costs = FunctionCosts { kernel: cost(kernel), user: cost(user) };
            all_costs.functions.insert((*name).to_owned(), costs);
        }
        let all: Vec<&str> = (0..costs.len()).map(|i| configured[i % 3]).collect();
        let mapping = "  mapping: distributed\n  hook: xdp\n";
        let together = plan(&chain(&all, mapping), &all_costs, &machine()).unwrap();
        assert_adds_up(&together);
        for (hop, function) in together.hops.iter().zip(&all) {
            let alone = plan(&chain(&[function], mapping), &all_costs, &machine()).unwrap();
            prop_assert_eq!(hop.space, alone.hops[0].space);
            prop_assert!((hop.total_ns() - alone.hops[0].total_ns()).abs() < 1e-6);
        }
    }
}

/// Makes a chain with a `nat` between two functions, and its reverse chain. `out` and `back` add
/// keys to the two `nat` functions, `spec` adds keys to both chains.
fn nat_pair(out: &str, back: &str, spec: &str) -> [ServiceChain; 2] {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: out }}\nspec:\n  match: {{}}\n  \
         functions: [ {{ name: f, {FORWARD}, space: user }}, {{ name: n, kind: nat, {out} config: {{ address: 192.0.2.1 }} }}, \
         {{ name: g, {FORWARD}, space: user }} ]\n  reverse: back\n{spec}---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: back }}\nspec:\n  match: {{}}\n  \
         functions: [ {{ name: r, kind: nat, {back} config: {{ reverseOf: n }} }} ]\n{spec}"
    );
    let chains = parse(&text, &Source::new("pair.yaml"), &NoFiles);
    let chains = chains.unwrap_or_else(|errors| panic!("{errors}"));
    chains.try_into().unwrap()
}

#[test]
fn functions_that_share_state_run_in_the_same_space() {
    use Space::{Kernel, User};
    let placed = |out, back| {
        nat_pair(out, back, "").map(|chain| {
            let plan = plan(&chain, &Costs::default(), &machine()).unwrap();
            let at = plan.hops.iter().position(|hop| hop.kind == "nat").unwrap();
            (plan.hops[at].space, plan.hops[at].why.clone())
        })
    };
    // By cost alone one chain would choose user space and the other chain the kernel.
    let [out, back] = placed("", "");
    assert_eq!((out.0, back.0), (Kernel, Kernel));
    assert!(out.1.contains("`back`") && back.1.contains("`out`"));
    for (out, back) in [("space: user,", ""), ("", "space: user,")] {
        let [out, back] = placed(out, back);
        assert_eq!((out.0, back.0), (User, User));
    }
}

#[test]
fn shared_state_in_user_space_needs_one_process() {
    let spec = "  mapping: distributed\n";
    for chain in nat_pair("space: user,", "", spec) {
        let error = plan(&chain, &Costs::default(), &machine()).unwrap_err();
        assert!(error.to_string().contains("share their state"), "{error}");
    }
    let [_, back] = nat_pair("space: kernel,", "", spec);
    assert!(plan(&back, &Costs::default(), &machine()).is_ok());
}

#[test]
fn sandbox_request_selects_distributed_and_user_space() {
    let limited = format!("{FORWARD}, limits: {{ cpu: 0.5cores }}");
    let plan = planned(&[FORWARD, &limited], "");
    assert_eq!(plan.mapping, Mapping::Distributed);
    assert_eq!(
        plan.mapping_why,
        "`f1` has `limits`, which needs its own sandbox"
    );
    assert_eq!(plan.hops[1].space, Space::User);
    assert_eq!(plan.hops[1].why, "`limits` needs a process");
    assert_adds_up(&plan);

    // `isolation` of the chain applies to functions that have a process. It creates no process.
    let plan = planned(
        &[FORWARD, FIREWALL],
        "  isolation: container\n  classify: calvin\n",
    );
    assert_eq!(plan.mapping, Mapping::Distributed);
    assert_eq!(spaces(&plan), [Space::Kernel; 2]);
    let own = format!("{FORWARD}, isolation: process");
    let plan = planned(&[&own], "  isolation: container\n");
    assert_eq!(plan.mapping, Mapping::Compact);

    let error = refused(&[&limited], "  hook: tcx\n");
    assert!(error.contains("spec.hook"), "{error}");
}

#[test]
fn black_box_selects_distributed_and_has_no_cost() {
    let costs = Costs::default();
    let plan = planned(&[XOR, EXTERNAL, FORWARD], "");
    assert_eq!(plan.mapping, Mapping::Distributed);
    assert!(
        plan.mapping_why.contains("`f1` is a black box"),
        "{}",
        plan.mapping_why
    );
    assert_eq!(spaces(&plan), [Space::Kernel, Space::User, Space::Kernel]);
    let hop = &plan.hops[1];
    assert_eq!((hop.cost_ns, hop.reach.name.as_str()), (None, "link"));
    assert!(hop.why.contains("unknown"), "{}", hop.why);
    assert!(plan.worst_case_note.contains("the unknown delay in `f1`"));
    assert_adds_up(&plan);
    // Without the black box the chain would cost one link less.
    let without = planned(&[XOR, FORWARD], "  mapping: distributed\n  hook: xdp\n");
    let difference = plan.predicted_ns - without.predicted_ns;
    assert!((difference - costs.steps.link.per_packet_ns).abs() < 1e-6);
    assert!(!plan.uses(Space::User), "a black box needs no worker");
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn distributed_kernel_chain_uses_tcx_where_links_cost_less() {
    let plan = planned(&[FIREWALL, XOR], "  mapping: distributed\n");
    assert_eq!(plan.hook, Hook::Tcx);
    assert_adds_up(&plan);
    for hop in &plan.hops {
        assert_eq!(hop.reach.name, "link_tcx");
    }
    let at_xdp = planned(&[FIREWALL, XOR], "  mapping: distributed\n  hook: xdp\n");
    assert_eq!(
        (at_xdp.hook, &*at_xdp.hops[0].reach.name),
        (Hook::Xdp, "link")
    );
    assert!(at_xdp.predicted_ns > plan.predicted_ns);
}

#[test]
fn black_box_is_refused_in_other_mappings() {
    for mapping in ["compact", "pipeline"] {
        let error = refused(&[EXTERNAL], &format!("  mapping: {mapping}\n"));
        assert!(
            error.starts_with("tried.yaml:8:12: chain `tried`: spec.mapping: `f0` is a black box"),
            "{error}"
        );
    }
    let error = refused(&[EXTERNAL], "  hook: tcx\n");
    assert_eq!(
        error,
        "tried.yaml:8:9: chain `tried`: spec.hook: only the XDP hook can send packets to a black box; write `hook: xdp`, or remove the key"
    );
    let written = planned(&[EXTERNAL], "  mapping: distributed\n");
    assert_eq!(written.mapping_why, "written as `mapping: distributed`");
}
