//! Plans of whole chains.

use std::fmt::Write as _;

use myelin_planner::PortKind::{EndHost, Native, Virtual};
use myelin_planner::{
    Cost, Costs, Entry, Exit, FunctionCosts, Machine, Plan, PlanError, Segment, plan,
};
use myelin_spec::{Hook, Mapping, NoFiles, ServiceChain, Source, Space, parse};
use proptest::prelude::*;

const FIREWALL: &str =
    "kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] }";
const XOR: &str = "kind: xor, config: { key: 1 }";
const FORWARD: &str = "kind: forward";

/// A chain of these functions, with more lines of its `spec`.
fn chain(functions: &[&str], more: &str) -> ServiceChain {
    let mut text = String::from(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: tried }\n\
         spec:\n  match: {}\n  functions:\n",
    );
    for (position, function) in functions.iter().enumerate() {
        let _ = writeln!(text, "    - {{ name: f{position}, {function} }}");
    }
    text += more;
    let chains = parse(&text, &Source::new("tried.yaml"), &NoFiles);
    chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

fn machine() -> Machine {
    Machine::with_end_hosts(2)
}

fn planned(functions: &[&str], more: &str) -> Plan {
    plan(&chain(functions, more), &Costs::default(), &machine()).unwrap()
}

fn refused(functions: &[&str], more: &str) -> String {
    plan(&chain(functions, more), &Costs::default(), &machine())
        .unwrap_err()
        .to_string()
}

fn pinned(function: &str, space: Space) -> String {
    format!("{function}, space: {space}")
}

fn spaces(plan: &Plan) -> Vec<Space> {
    plan.hops.iter().map(|hop| hop.space).collect()
}

/// The whole is the sum of the parts that are shown.
fn assert_adds_up(plan: &Plan) {
    let hops: f64 = plan.hops.iter().map(myelin_planner::Hop::total_ns).sum();
    let sum = plan.door.cost_ns + hops + plan.egress.cost_ns;
    assert!(
        (plan.predicted_ns - sum).abs() < 1e-6,
        "{} against {sum}",
        plan.predicted_ns
    );
}

#[test]
fn light_functions_stay_in_the_kernel_and_at_tcx() {
    let plan = planned(&[FIREWALL, XOR, FORWARD], "");
    assert_eq!(spaces(&plan), [Space::Kernel; 3]);
    assert_eq!(plan.hook, Hook::Tcx);
    assert_eq!(
        (plan.door.name.as_str(), plan.egress.name.as_str()),
        ("door_tcx", "egress_tcx_peer")
    );
    assert_eq!(plan.crossings, 0);
    assert_eq!(plan.segments.len(), 1);
    assert_eq!(plan.segments[0].positions(), 0..3);
    assert_eq!(
        (plan.segments[0].entry, plan.segments[0].exit),
        (Entry::Door, Exit::Egress)
    );
    let why = &plan.hops[0].why;
    assert!(why.ends_with("ns more with it in the user space"), "{why}");
    assert_adds_up(&plan);
}

#[test]
fn a_function_pinned_to_user_space_brings_the_chain_to_xdp_and_two_crossings() {
    let functions = [pinned(FIREWALL, Space::Kernel), pinned(XOR, Space::User)];
    let plan = planned(&[&functions[0], &functions[1]], "");
    assert_eq!(spaces(&plan), [Space::Kernel, Space::User]);
    assert_eq!((plan.hook, plan.crossings), (Hook::Xdp, 2));
    assert_eq!(plan.door.name, "xdp_frame + door_xdp");
    assert_eq!(plan.hops[1].reach.name, "enter_user + dispatch");
    assert_eq!(plan.hops[1].why, "pinned by `space: user`");
    assert_eq!(plan.egress.name, "user_egress");
    let steps = Costs::default().steps;
    let at = |cost: Cost| cost.at_ns(plan.frame_bytes);
    let crossings = at(steps.enter_user) + at(steps.user_egress);
    assert!((plan.crossings_cost_ns - crossings).abs() < 1e-6);
    assert_adds_up(&plan);
}

#[test]
fn segments_know_where_packets_come_from_and_go() {
    let (kernel, user) = (pinned(FORWARD, Space::Kernel), pinned(FORWARD, Space::User));
    let plan = planned(&[&kernel, &kernel, &user, &user, &kernel], "");
    let segments: Vec<_> = plan
        .segments
        .iter()
        .map(|segment| {
            (
                segment.space,
                segment.positions(),
                segment.entry,
                segment.exit,
            )
        })
        .collect();
    assert_eq!(
        segments,
        [
            (Space::Kernel, 0..2, Entry::Door, Exit::User),
            (Space::User, 2..4, Entry::Kernel, Exit::Kernel),
            (Space::Kernel, 4..5, Entry::User, Exit::Egress),
        ]
    );
    assert_eq!(plan.crossings, 2);
    assert_eq!(plan.hops[3].reach.name, "dispatch");
    assert_eq!(plan.hops[4].reach.name, "user_to_kernel + hop");
    assert_eq!(plan.egress.name, "egress_xdp");
    assert_eq!(plan.segments[1].functions, ["f2", "f3"]);
    assert_adds_up(&plan);
}

#[test]
fn a_function_much_cheaper_in_user_space_goes_there_by_cost_but_not_by_class() {
    let mut costs = Costs::default();
    let dear = FunctionCosts {
        kernel: Some(Cost::new(90_000.0, 0.0)),
        user: Some(Cost::new(10.0, 0.0)),
    };
    costs.functions.insert("xor".into(), dear);
    let light = FunctionCosts {
        kernel: Some(Cost::new(10.0, 0.0)),
        user: Some(Cost::new(50.0, 0.0)),
    };
    costs.functions.insert("firewall".into(), light);
    let planned = |more| plan(&chain(&[FIREWALL, XOR], more), &costs, &machine()).unwrap();
    let by_cost = planned("");
    assert_eq!(spaces(&by_cost), [Space::Kernel, Space::User]);
    let by_class = planned("  classify: calvin\n");
    assert_eq!(spaces(&by_class), [Space::Kernel, Space::Kernel]);
    assert_eq!(
        by_class.hops[1].why,
        "its class basic belongs into the kernel space"
    );
    assert!(by_class.predicted_ns > by_cost.predicted_ns);
    // A hook that does not lead into user space keeps it out, too.
    let at_tcx = planned("  hook: tcx\n");
    assert_eq!(spaces(&at_tcx), [Space::Kernel, Space::Kernel]);
    assert_eq!(
        at_tcx.hops[1].why,
        "`hook: tcx` does not lead into the user space"
    );
}

#[test]
fn a_function_follows_its_neighbour_where_that_saves_more_than_it_costs() {
    let mut costs = Costs::default();
    let firewall = |user_ns| FunctionCosts {
        kernel: Some(Cost::new(60.0, 0.0)),
        user: Some(Cost::new(user_ns, 0.0)),
    };
    let functions = [FIREWALL, &pinned(XOR, Space::User), FIREWALL];
    // The packet goes to user space anyway; in front of the crossing 60 ns and a tail call stand against this.
    costs.functions.insert("firewall".into(), firewall(61.0));
    let plan_of = |costs: &Costs| plan(&chain(&functions, ""), costs, &machine()).unwrap();
    assert_eq!(spaces(&plan_of(&costs)), [Space::User; 3]);
    costs.functions.insert("firewall".into(), firewall(63.0));
    // Behind it, coming back into the kernel over the internal link would cost far more than it saves.
    assert_eq!(
        spaces(&plan_of(&costs)),
        [Space::Kernel, Space::User, Space::User]
    );
}

#[test]
fn the_ports_decide_the_hook_of_a_kernel_chain() {
    let cases = [
        (
            EndHost,
            EndHost,
            "",
            Hook::Tcx,
            "door_tcx",
            "egress_tcx_peer",
        ),
        (
            Virtual,
            Virtual,
            "",
            Hook::Tcx,
            "door_tcx",
            "egress_redirect",
        ),
        (Native, Native, "", Hook::Xdp, "door_xdp", "egress_xdp"),
        (
            EndHost,
            EndHost,
            "  hook: xdp\n",
            Hook::Xdp,
            "xdp_frame + door_xdp",
            "egress_xdp",
        ),
        (
            Native,
            Native,
            "  hook: tcx\n",
            Hook::Tcx,
            "tcx_skb + door_tcx",
            "egress_redirect",
        ),
    ];
    for (ingress, egress, more, hook, door, way_out) in cases {
        let machine = Machine {
            cores: 2,
            ingress,
            egress,
        };
        let plan = plan(&chain(&[FORWARD], more), &Costs::default(), &machine).unwrap();
        assert_eq!(
            (
                plan.hook,
                plan.door.name.as_str(),
                plan.egress.name.as_str()
            ),
            (hook, door, way_out)
        );
        assert_adds_up(&plan);
    }
}

#[test]
fn a_pipeline_pays_a_ring_from_process_to_process_and_back() {
    let user = |kind| pinned(kind, Space::User);
    let (first, second, third) = (user(FORWARD), user(XOR), user(FORWARD));
    let kernel = pinned(FORWARD, Space::Kernel);
    let functions = [&*first, &second, &kernel, &third];
    let compact = planned(&functions, "  mapping: compact\n");
    let plan = planned(&functions, "  mapping: pipeline\n");
    assert_adds_up(&plan);
    assert_eq!(plan.mapping, Mapping::Pipeline);
    assert_eq!(plan.mapping_why, "written as `mapping: pipeline`");
    let ways: Vec<&str> = plan.hops.iter().map(|hop| &*hop.reach.name).collect();
    assert_eq!(
        ways,
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

    // `auto` goes by the costs, and says what the others would have cost.
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
fn a_chain_that_cannot_be_deployed_is_told_why_and_where() {
    assert_eq!(
        refused(&[FORWARD], "  mapping: distributed\n  hook: tcx\n"),
        "tried.yaml:9:9: chain `tried`: spec.hook: `mapping: distributed` forwards at the XDP hook; \
         write `hook: xdp`, or leave it out"
    );
    assert_eq!(
        refused(&[FORWARD, &pinned(XOR, Space::User)], "  hook: tcx\n"),
        "tried.yaml:9:9: chain `tried`: spec.hook: the function `f1` must run in user space (it is pinned there), \
         and only the XDP hook leads there; write `hook: xdp`, or leave it out"
    );
    assert_eq!(
        refused(&[FORWARD], "  worker: { core: 2 }\n"),
        "tried.yaml:8:3: chain `tried`: spec.worker.core: there is no core 2; this machine has the cores 0 to 1"
    );
}

#[test]
fn the_length_is_checked_for_chains_that_came_from_elsewhere() {
    let mut odd = chain(&[FORWARD], "");
    odd.functions = vec![odd.functions[0].clone(); 33];
    let error = plan(&odd, &Costs::default(), &machine()).unwrap_err();
    assert!(matches!(error, PlanError::Length { count: 33, .. }));
    odd.functions.clear();
    let error = plan(&odd, &Costs::default(), &machine()).unwrap_err();
    assert!(matches!(error, PlanError::Length { count: 0, .. }));
}

#[test]
fn thirty_two_functions_are_one_segment() {
    let plan = planned(&[FORWARD; 32], "");
    assert_eq!(plan.segments.len(), 1);
    assert_eq!(plan.hops[31].position, 31);
}

#[test]
fn a_contract_below_the_predicted_cost_is_refused() {
    let (kernel, user) = (pinned(FIREWALL, Space::Kernel), pinned(XOR, Space::User));
    let tried = |sla| planned(&[&kernel, &user], sla);
    let plan = tried("  sla: { latency: 2us }\n");
    assert!(!plan.admitted);
    let reason = plan.refusal.unwrap();
    assert!(reason.starts_with("the predicted cost of "), "{reason}");
    assert!(
        reason.contains("above the agreed latency of 2us; most of it, "),
        "{reason}"
    );
    assert!(reason.ends_with("is `f1` and the way to it"), "{reason}");
    let plan = tried("  sla: { latency: 1ms, roundTrip: 2us }\n");
    assert!(
        plan.refusal
            .unwrap()
            .contains("the agreed roundTrip of 2us")
    );
    let plan = tried("  sla: { latency: 350us }\n");
    assert!(plan.admitted && plan.refusal.is_none());
}

#[test]
fn what_the_user_should_know_is_told() {
    let user = pinned(XOR, Space::User);
    let quiet = planned(&[&user], "  sla: { latency: 350us, rate: 20kpps }\n");
    assert_eq!(quiet.warnings, [""; 0]);

    let sleepy = planned(&[&user], "  sla: { latency: 20us }\n");
    assert!(sleepy.warnings[0].starts_with("a packet that finds the worker asleep takes about "));
    assert!(
        sleepy
            .worst_case_note
            .contains("when the worker has to be woken")
    );
    let awake = planned(
        &[&user],
        "  sla: { latency: 20us }\n  worker: { idle: spin }\n",
    );
    assert_eq!(awake.warnings, [""; 0]);
    assert!(!awake.worst_case_note.contains("woken"));

    let busy = planned(&[&user], "  sla: { rate: 1Mpps }\n").warnings;
    assert!(
        busy[0].starts_with("at 1000000 packets/s the worker of the chain"),
        "{busy:?}"
    );
    let busy = planned(&[FORWARD], "  sla: { rate: 100Gbit }\n").warnings;
    assert!(busy[0].contains("the kernel part of the chain"), "{busy:?}");

    let workless = planned(&[FORWARD], "  worker: { batch: 32 }\n").warnings;
    assert_eq!(
        workless,
        ["`spec.worker` has no effect: no function runs in user space"]
    );
}

#[test]
fn guards_that_are_passed_by_on_failure_are_warned_of() {
    let functions = [XOR, FIREWALL, FORWARD];
    let warnings = planned(&functions, "  onFailure: pass\n").warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("`onFailure: pass`") && warnings[0].contains("pass by `f1` when"),
        "{warnings:?}"
    );
    for more in ["", "  onFailure: drop\n"] {
        assert_eq!(planned(&functions, more).warnings, [""; 0], "{more}");
    }
    let unguarded = planned(&[XOR], "  onFailure: pass\n").warnings;
    assert_eq!(unguarded, [""; 0]);
}

#[test]
fn costs_are_of_the_frame_that_the_profile_implies() {
    assert_eq!(
        planned(&[XOR], "").frame_bytes,
        myelin_planner::REFERENCE_FRAME_BYTES
    );
    let large = planned(&[XOR], "  sla: { rate: [ 1kpps, 11.2Mbit ] }\n");
    assert_eq!(large.frame_bytes, 1400);
    assert!(large.predicted_ns > planned(&[XOR], "").predicted_ns);
    let tiny = planned(&[XOR], "  sla: { rate: [ 1kpps, 8kbit ] }\n");
    assert_eq!(tiny.frame_bytes, 60);
}

#[test]
fn a_plan_survives_json_and_its_fields_carry_units() {
    let plan = planned(
        &[FIREWALL, &pinned(XOR, Space::User)],
        "  sla: { latency: 350us }\n",
    );
    let json = serde_json::to_value(&plan).unwrap();
    let figures = [
        "/predicted_ns",
        "/crossings_cost_ns",
        "/hops/1/reach/cost_ns",
        "/hops/1/cost_ns",
        "/sla/latency_ns",
    ];
    for pointer in figures {
        let figure = json.pointer(pointer);
        assert!(
            figure.is_some_and(serde_json::Value::is_number),
            "{pointer}"
        );
    }
    assert_eq!(json.pointer("/hops/1/space"), Some(&"user".into()));
    assert_eq!(json.pointer("/costs_origin/kind"), Some(&"default".into()));
    assert_eq!(serde_json::from_value::<Plan>(json).unwrap(), plan);
}

/// Costs from a list of figures.
fn costs_of(figures: &[u32]) -> Costs {
    let mut costs = Costs::default();
    let mut figures = figures.iter().map(|ns| Cost::new(f64::from(*ns), 0.0));
    let mut next = || figures.next().unwrap_or_default();
    let steps = &mut costs.steps;
    for cost in [
        &mut steps.door_tcx,
        &mut steps.door_xdp,
        &mut steps.xdp_frame,
        &mut steps.tcx_skb,
        &mut steps.hop,
        &mut steps.egress_tcx_peer,
        &mut steps.egress_redirect,
        &mut steps.egress_xdp,
        &mut steps.enter_user,
        &mut steps.dispatch,
        &mut steps.user_egress,
        &mut steps.user_to_kernel,
    ] {
        *cost = next();
    }
    for kind in ["firewall", "xor", "forward"] {
        let function = FunctionCosts {
            kernel: Some(next()),
            user: Some(next()),
        };
        costs.functions.insert(kind.into(), function);
    }
    costs
}

proptest! {
    /// No way of pinning a chain makes it cheaper than it is planned, whatever the costs; hooks included.
    #[test]
    fn no_pinning_beats_the_plan(
        kinds in prop::collection::vec(0..3_usize, 1..=5),
        figures in prop::collection::vec(0..3000_u32, 18),
        native: bool,
    ) {
        let costs = costs_of(&figures);
        let port = if native { Native } else { EndHost };
        let machine = Machine { cores: 2, ingress: port, egress: port };
        let functions: Vec<_> = kinds.iter().map(|kind| [FIREWALL, XOR, FORWARD][*kind]).collect();
        let free = chain(&functions, "");
        let planned = plan(&free, &costs, &machine).unwrap();
        assert_adds_up(&planned);
        let mut least = f64::INFINITY;
        for bits in 0..1_u32 << functions.len() {
            let mut pinned = free.clone();
            for (position, function) in pinned.functions.iter_mut().enumerate() {
                let user = bits >> position & 1 == 1;
                function.space = Some(if user { Space::User } else { Space::Kernel });
            }
            for hook in [Hook::Tcx, Hook::Xdp] {
                pinned.hook = hook;
                match plan(&pinned, &costs, &machine) {
                    Ok(plan) => least = least.min(plan.predicted_ns),
                    Err(error) => {
                        let conflict = matches!(error, PlanError::Hook { .. });
                        prop_assert!(conflict && hook == Hook::Tcx && bits != 0, "{}", error);
                    }
                }
            }
        }
        let planned_ns = planned.predicted_ns;
        prop_assert!((planned_ns - least).abs() < 1e-6, "{} against {}", planned_ns, least);
    }
}

#[test]
fn a_distributed_chain_pays_a_link_for_each_function_and_two_crossings_for_each_in_user_space() {
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
        let way = if hop.space == Space::Kernel {
            "link"
        } else {
            "link + enter_user + dispatch + user_to_kernel"
        };
        assert_eq!(hop.reach.name, way);
    }
    // A worker's packets come back to the forwarder, which sends them out.
    assert_eq!(plan.egress.name, "egress_xdp");
    let lone = |(position, segment): (usize, &Segment)| {
        segment.positions() == (position..position + 1)
            && (segment.entry, segment.exit) == (Entry::Link, Exit::Link)
    };
    assert_eq!(plan.segments.len(), 4);
    assert!(plan.segments.iter().enumerate().all(lone));
}

#[test]
fn workers_that_would_spin_on_one_core_are_warned_of() {
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
    /// Functions that reach each other by links alone do not draw their neighbours into their space.
    #[test]
    fn each_function_of_a_distributed_chain_is_placed_for_itself(
        costs in prop::collection::vec((0_u32..20_000, 0_u32..20_000), 1..=6),
    ) {
        let mut with = Costs::default();
        let names = ["forward", "xor", "firewall"];
        let configured = [FORWARD, XOR, FIREWALL];
        for (name, (kernel, user)) in names.iter().zip(&costs) {
            let cost = |ns: &u32| Some(Cost::new(f64::from(*ns), 0.0));
            let costs = FunctionCosts { kernel: cost(kernel), user: cost(user) };
            with.functions.insert((*name).to_owned(), costs);
        }
        let all: Vec<&str> = (0..costs.len()).map(|i| configured[i % 3]).collect();
        let mapping = "  mapping: distributed\n";
        let whole = plan(&chain(&all, mapping), &with, &machine()).unwrap();
        assert_adds_up(&whole);
        for (hop, function) in whole.hops.iter().zip(&all) {
            let alone = plan(&chain(&[function], mapping), &with, &machine()).unwrap();
            prop_assert_eq!(hop.space, alone.hops[0].space);
            prop_assert!((hop.total_ns() - alone.hops[0].total_ns()).abs() < 1e-6);
        }
    }
}

/// A chain with a `nat` between two functions, and its reverse with the reply side; `more` is added to the functions' own lines.
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
fn two_functions_that_share_a_state_stand_in_the_same_space() {
    use Space::{Kernel, User};
    let placed = |out, back| {
        nat_pair(out, back, "").map(|chain| {
            let plan = plan(&chain, &Costs::default(), &machine()).unwrap();
            let at = plan.hops.iter().position(|hop| hop.kind == "nat").unwrap();
            (plan.hops[at].space, plan.hops[at].why.clone())
        })
    };
    // The crossings would speak for user space in the one chain, and for the kernel in the other.
    let [out, back] = placed("", "");
    assert_eq!((out.0, back.0), (Kernel, Kernel));
    assert!(out.1.contains("`back`") && back.1.contains("`out`"));
    for (out, back) in [("space: user,", ""), ("", "space: user,")] {
        let [out, back] = placed(out, back);
        assert_eq!((out.0, back.0), (User, User));
    }
}

#[test]
fn what_shares_a_state_in_user_space_needs_one_process() {
    let spec = "  mapping: distributed\n";
    for chain in nat_pair("space: user,", "", spec) {
        let error = plan(&chain, &Costs::default(), &machine()).unwrap_err();
        assert!(matches!(error, PlanError::SharedState { .. }), "{error}");
    }
    let [_, back] = nat_pair("space: kernel,", "", spec);
    assert!(plan(&back, &Costs::default(), &machine()).is_ok());
}

#[test]
fn who_asks_for_a_sandbox_makes_the_chain_distributed_and_stands_in_user_space() {
    let limited = format!("{FORWARD}, limits: {{ cpu: 0.5cores }}");
    let plan = planned(&[FORWARD, &limited], "");
    assert_eq!(plan.mapping, Mapping::Distributed);
    assert_eq!(
        plan.mapping_why,
        "`f1` has `limits`, which only a function with a sandbox of its own can have"
    );
    assert_eq!(plan.hops[1].space, Space::User);
    assert_eq!(plan.hops[1].why, "`limits` needs a process");
    assert_adds_up(&plan);

    // What the whole chain asks for is for those of its functions that have a process; it makes none.
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

const EXTERNAL: &str = "kind: external, config: { command: [box] }";

#[test]
fn a_black_box_makes_a_chain_distributed_and_its_cost_is_nobodys_guess() {
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
    assert!(
        plan.worst_case_note
            .contains("what happens in `f1` is unknown")
    );
    assert_adds_up(&plan);
    // Without it the chain would cost one link less, and nothing else.
    let without = planned(&[XOR, FORWARD], "  mapping: distributed\n");
    let difference = plan.predicted_ns - without.predicted_ns;
    assert!((difference - costs.steps.link.per_packet_ns).abs() < 1e-6);
    assert!(!plan.uses(Space::User), "it needs no worker");
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn a_black_box_is_refused_in_other_mappings() {
    for mapping in ["compact", "pipeline"] {
        let error = refused(&[EXTERNAL], &format!("  mapping: {mapping}\n"));
        assert!(
            error.starts_with("tried.yaml:8:12: chain `tried`: spec.mapping: `f0` is a black box"),
            "{error}"
        );
    }
    let error = refused(&[EXTERNAL], "  hook: tcx\n");
    assert!(error.contains("write `hook: xdp`"), "{error}");
    let written = planned(&[EXTERNAL], "  mapping: distributed\n");
    assert_eq!(written.mapping_why, "written as `mapping: distributed`");
}

#[test]
fn a_contract_that_the_rest_of_the_chain_breaks_is_refused() {
    let plan = planned(&[EXTERNAL], "  sla: { latency: 100ns }\n");
    assert!(!plan.admitted);
    assert!(planned(&[EXTERNAL], "  sla: { latency: 1ms }\n").admitted);
}
