//! Tests plans of whole chains: spaces, hooks and segments.

#[allow(dead_code)]
mod common;

use common::{
    FIREWALL, FORWARD, XOR, assert_adds_up, chain, machine, pinned, planned, refused, spaces,
};
use myelin_planner::PortKind::{EndHost, Native, Virtual};
use myelin_planner::{Cost, Costs, Entry, Exit, FunctionCosts, Machine, Plan, plan};
use myelin_spec::{Hook, NoFiles, Source, Space, parse};
use proptest::prelude::*;

#[test]
fn cheap_functions_run_in_the_kernel_at_tcx() {
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
fn user_space_function_selects_xdp_and_adds_two_crossings() {
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
fn segments_have_entry_and_exit() {
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
fn cost_moves_a_function_to_user_space_and_class_does_not() {
    let mut costs = Costs::default();
    let costs_less_in_user_space = FunctionCosts {
        kernel: Some(Cost::new(90_000.0, 0.0)),
        user: Some(Cost::new(10.0, 0.0)),
    };
    costs
        .functions
        .insert("xor".into(), costs_less_in_user_space);
    let costs_less_in_kernel = FunctionCosts {
        kernel: Some(Cost::new(10.0, 0.0)),
        user: Some(Cost::new(50.0, 0.0)),
    };
    costs
        .functions
        .insert("firewall".into(), costs_less_in_kernel);
    let planned = |more| plan(&chain(&[FIREWALL, XOR], more), &costs, &machine()).unwrap();
    let by_cost = planned("");
    assert_eq!(spaces(&by_cost), [Space::Kernel, Space::User]);
    let by_class = planned("  classify: calvin\n");
    assert_eq!(spaces(&by_class), [Space::Kernel, Space::Kernel]);
    assert_eq!(
        by_class.hops[1].why,
        "its class basic runs in the kernel space"
    );
    assert!(by_class.predicted_ns > by_cost.predicted_ns);
    // At tcx the function also stays in the kernel.
    let at_tcx = planned("  hook: tcx\n");
    assert_eq!(spaces(&at_tcx), [Space::Kernel, Space::Kernel]);
    assert_eq!(
        at_tcx.hops[1].why,
        "`hook: tcx` cannot send packets to the user space"
    );
}

#[test]
fn function_moves_to_the_space_of_the_next_one_if_that_costs_less() {
    let mut costs = Costs::default();
    let firewall = |user_ns| FunctionCosts {
        kernel: Some(Cost::new(60.0, 0.0)),
        user: Some(Cost::new(user_ns, 0.0)),
    };
    let functions = [FIREWALL, &pinned(XOR, Space::User), FIREWALL];
    // The packet always enters user space. Before the entry, the kernel costs 60 ns and a tail
    // call.
    costs.functions.insert("firewall".into(), firewall(61.0));
    let plan_of = |costs: &Costs| plan(&chain(&functions, ""), costs, &machine()).unwrap();
    assert_eq!(spaces(&plan_of(&costs)), [Space::User; 3]);
    costs.functions.insert("firewall".into(), firewall(63.0));
    // After user space, the return to the kernel over the internal link costs far more than the
    // kernel saves.
    assert_eq!(
        spaces(&plan_of(&costs)),
        [Space::Kernel, Space::User, Space::User]
    );
}

#[test]
fn ports_select_the_hook_of_a_kernel_chain() {
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
            Virtual,
            Virtual,
            "  hook: xdp\n",
            Hook::Xdp,
            "entry_link + xdp_frame + door_xdp",
            "egress_redirect",
        ),
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
    for (ingress, egress, more, hook, door, egress_step) in cases {
        let machine = Machine {
            ingress,
            egress,
            ..Machine::with_end_hosts(2)
        };
        let plan = plan(&chain(&[FORWARD], more), &Costs::default(), &machine).unwrap();
        assert_eq!(
            (
                plan.hook,
                plan.door.name.as_str(),
                plan.egress.name.as_str()
            ),
            (hook, door, egress_step)
        );
        assert_adds_up(&plan);
    }
}

#[test]
fn plan_error_has_reason_and_location() {
    assert_eq!(
        refused(&[FORWARD, &pinned(XOR, Space::User)], "  hook: tcx\n"),
        "tried.yaml:9:9: chain `tried`: spec.hook: the function `f1` must run in user space (`space: user`), \
         and only the XDP hook can send packets there; write `hook: xdp`, or remove the key"
    );
    assert_eq!(
        refused(&[FORWARD], "  worker: { cores: [2] }\n"),
        "tried.yaml:8:3: chain `tried`: spec.worker.cores: there is no core 2 to use; write cores from 0 to 1, the last one online and allowed"
    );
    for (more, words) in [
        (
            "",
            "mapping `compact` has processes on one core only; write one core",
        ),
        (
            "  mapping: distributed\n",
            "mapping `distributed` has processes on one core only",
        ),
        (
            "  mapping: pipeline\n",
            "with `sharing: unis` all processes of the pipeline take turns on one core",
        ),
    ] {
        let sharing = if more.contains("pipeline") {
            "unis"
        } else {
            "os"
        };
        let worker = format!("{more}  worker: {{ cores: [0, 1], sharing: {sharing} }}\n");
        let error = refused(&[pinned(XOR, Space::User).as_str(); 2], &worker);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn number_of_functions_is_checked_without_a_parser() {
    let mut invalid = chain(&[FORWARD], "");
    invalid.functions = vec![invalid.functions[0].clone(); 33];
    let error = plan(&invalid, &Costs::default(), &machine()).unwrap_err();
    assert!(error.to_string().contains("has 33 functions"), "{error}");
    invalid.functions.clear();
    let error = plan(&invalid, &Costs::default(), &machine()).unwrap_err();
    assert!(error.to_string().contains("has 0 functions"), "{error}");
}

#[test]
fn thirty_two_functions_are_one_segment() {
    let plan = planned(&[FORWARD; 32], "");
    assert_eq!(plan.segments.len(), 1);
    assert_eq!(plan.hops[31].position, 31);
}

#[test]
fn plan_round_trips_through_json() {
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

/// Makes costs from a list of figures.
fn costs_of(figures: &[u32]) -> Costs {
    let mut costs = Costs::default();
    let mut figures = figures.iter().map(|ns| Cost::new(f64::from(*ns), 0.0));
    let mut next = || figures.next().unwrap_or_default();
    let steps = &mut costs.steps;
    for cost in [
        &mut steps.door_tcx,
        &mut steps.door_xdp,
        &mut steps.entry_link,
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
    /// For any costs, no choice of pins and hook makes a chain cheaper than its plan.
    #[test]
    fn no_pins_cost_less_than_the_plan(
        kinds in prop::collection::vec(0..3_usize, 1..=5),
        figures in prop::collection::vec(0..3000_u32, 19),
        native: bool,
    ) {
        let costs = costs_of(&figures);
        let port = if native { Native } else { EndHost };
        let machine = Machine { ingress: port, egress: port, ..Machine::with_end_hosts(2) };
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
                        let conflict = error.to_string().contains("must run in user space");
                        prop_assert!(conflict && hook == Hook::Tcx && bits != 0, "{}", error);
                    }
                }
            }
        }
        let planned_ns = planned.predicted_ns;
        prop_assert!((planned_ns - least).abs() < 1e-6, "{} ns, least cost {} ns", planned_ns, least);
    }
}

#[test]
fn a_policer_with_a_short_burst_warns_of_what_tcp_gets() {
    for (matches, sla, expected) in [
        ("{}", "rate: 15Mbit", None),
        ("{}", "rate: 100Mbit", Some("about 15 %")),
        (
            "{ protocol: tcp }",
            "rate: 15Mbit, burst: 64kB",
            Some("about 17 %"),
        ),
        (
            "{ protocol: tcp }",
            "rate: 1kpps, burst: 32",
            Some("about 16 %"),
        ),
        ("{ protocol: udp }", "rate: 100Mbit", None),
        ("{}", "rate: 100Mbit, enforce: shaper", None),
        ("{}", "rate: 15Mbit, excess: { queue: 20ms }", None),
        ("{}", "rate: 15Mbit, latency: 5ms", None),
        (
            "{ protocol: tcp }",
            "rate: 15Mbit, latency: 5ms",
            Some("about 12 %"),
        ),
    ] {
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: tried }}\nspec:\n  match: {matches}\n  \
             functions: [ {{ name: f, kind: forward }} ]\n  sla: {{ {sla} }}\n"
        );
        let chains = parse(&text, &Source::new("tried.yaml"), &NoFiles).unwrap();
        let plan = plan(&chains[0], &Costs::default(), &machine()).unwrap();
        let mut warnings = plan.warnings.iter();
        let found = warnings.find(|warning| warning.starts_with("TCP gets"));
        assert_eq!(
            found.is_some(),
            expected.is_some(),
            "{matches} {sla}: {found:?}"
        );
        let expected = expected.unwrap_or_default();
        assert!(
            found.is_none_or(|found| found.contains(expected)),
            "{found:?}"
        );
    }
}
