//! Tests the place of a chain's shaper.

use std::fmt::Write as _;

use myelin_planner::{Costs, Machine, Plan, PlanError, PortKind, ShaperPlace, plan};
use myelin_spec::{Limit, NoFiles, Source, parse};

const KERNEL: &str = "kind: forward, space: kernel";
const USER: &str = "kind: xor, space: user, config: { key: 1 }";
const CODER: &str = "kind: rlnc-encode";

fn planned(functions: &[&str], enforce: &str, more: &str) -> Result<Plan, PlanError> {
    let mut text = String::from(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: tried }\n\
         spec:\n  match: {}\n  functions:\n",
    );
    for (position, function) in functions.iter().enumerate() {
        let _ = writeln!(text, "    - {{ name: f{position}, {function} }}");
    }
    let _ = writeln!(
        text,
        "  sla: {{ rate: 20kpps, burst: 4, policingBurst: 64, enforce: {enforce} }}"
    );
    text += more;
    let chains = parse(&text, &Source::new("tried.yaml"), &NoFiles);
    let chain = chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    plan(&chain, &Costs::default(), &Machine::with_end_hosts(2))
}

fn place(functions: &[&str], enforce: &str, more: &str) -> Option<ShaperPlace> {
    let plan = planned(functions, enforce, more).unwrap();
    plan.shaper.map(|shaper| shaper.place)
}

#[test]
fn auto_shapes_where_packets_can_cluster() {
    for mapping in ["compact", "pipeline", "distributed"] {
        let more = format!("  mapping: {mapping}\n");
        let worker = Some(ShaperPlace::Worker);
        assert_eq!(place(&[USER], "auto", &more), worker, "{mapping}");
        assert_eq!(place(&[KERNEL, USER], "auto", &more), worker, "{mapping}");
    }
    assert_eq!(
        place(&[USER, KERNEL], "auto", ""),
        Some(ShaperPlace::Worker)
    );
    assert_eq!(place(&[KERNEL, KERNEL], "auto", ""), None);
    assert_eq!(place(&[KERNEL], "auto", "  hook: xdp\n"), None);
    for enforce in ["policer", "none"] {
        assert_eq!(place(&[USER], enforce, ""), None, "{enforce}");
    }
}

#[test]
fn interface_shapes_a_kernel_chain_on_request() {
    for enforce in ["both", "shaper"] {
        let qdisc = Some(ShaperPlace::Qdisc);
        assert_eq!(place(&[KERNEL, KERNEL], enforce, ""), qdisc);
    }
}

#[test]
fn impossible_shaper_is_refused_with_cause_and_remedy() {
    for (functions, more, cause, remedy) in [
        (&[KERNEL][..], "  hook: xdp\n", "XDP hook", "`hook: tcx`"),
        (
            &[USER, KERNEL],
            "  mapping: distributed\n",
            "ends in a kernel function",
            "`space: user`",
        ),
        (
            &[USER, "kind: external, config: { command: [ /bin/true ] }"],
            "  mapping: distributed\n",
            "ends in a black box",
            "`space: user`",
        ),
    ] {
        for enforce in ["both", "shaper"] {
            let error = planned(functions, enforce, more).unwrap_err().to_string();
            assert!(error.starts_with("tried.yaml:"), "{error}");
            assert!(error.contains("chain `tried`"), "{error}");
            assert!(error.contains(&format!("`{enforce}`")), "{error}");
            assert!(error.contains(cause) && error.contains(remedy), "{error}");
        }
    }
    // Without `enforce: both` the plan has no shaper and a warning.
    let plan = planned(&[USER, KERNEL], "auto", "  mapping: distributed\n").unwrap();
    assert_eq!(plan.shaper, None);
    let is_warned = plan
        .warnings
        .iter()
        .any(|warning| warning.contains("not shaped"));
    assert!(is_warned, "{:?}", plan.warnings);
}

#[test]
fn profile_includes_the_functions_before_the_shaper() {
    let limit = |functions: &[&str]| {
        let shaper = planned(functions, "auto", "").unwrap().shaper.unwrap();
        assert_eq!(
            (shaper.shaping.queue, shaper.shaping.delay_ns),
            (128, 10_000_000)
        );
        shaper.shaping.packets.unwrap()
    };
    let (plain, coded) = (
        Limit {
            rate: 20_000,
            burst: 4,
        },
        Limit {
            rate: 25_000,
            burst: 5,
        },
    );
    assert_eq!(limit(&[USER]), plain);
    assert_eq!(limit(&[CODER]), coded);
    assert_eq!(limit(&[USER, CODER, KERNEL]), coded);
}

#[test]
fn shaper_error_at_xdp_suggests_the_hook_tcx() {
    let machine = Machine {
        ingress: PortKind::Native,
        egress: PortKind::Native,
        ..Machine::with_end_hosts(2)
    };
    let text = "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: tried }\nspec:\n  match: {}\n  \
                functions: [ { name: a, kind: forward } ]\n  sla: { rate: 20kpps, enforce: both }\n";
    let chain = parse(text, &Source::new("tried.yaml"), &NoFiles)
        .unwrap()
        .remove(0);
    let error = plan(&chain, &Costs::default(), &machine).unwrap_err();
    assert!(error.to_string().contains("`hook: tcx`"), "{error}");
}

fn planned_with_excess(function: &str, sla: &str, more: &str) -> Result<Plan, PlanError> {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: tried }}\nspec:\n  match: {{}}\n  \
         functions: [ {{ name: a, {function} }} ]\n  sla: {{ {sla} }}\n{more}"
    );
    let chains = parse(&text, &Source::new("tried.yaml"), &NoFiles);
    let chain = chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    plan(&chain, &Costs::default(), &Machine::with_end_hosts(2))
}

#[test]
fn bound_includes_the_wait_of_excess() {
    for (function, place) in [(USER, ShaperPlace::Worker), (KERNEL, ShaperPlace::Qdisc)] {
        let bound = |more: &str| {
            let sla = format!("rate: 20kpps, burst: 4, enforce: both{more}");
            let plan = planned_with_excess(function, &sla, "").unwrap();
            assert_eq!(plan.shaper.map(|shaper| shaper.place), Some(place));
            assert!(plan.admitted, "{:?}", plan.refusal);
            plan.bound.unwrap().bound_ns
        };
        let (without, with) = (bound(""), bound(", excess: { queue: 5ms }"));
        // The 100 packets of 5 ms may also arrive at once.
        let more_ns = with - without;
        assert!((5_000_000..6_000_000).contains(&more_ns), "{more_ns}");
    }
}

#[test]
fn excess_that_cannot_wait_is_refused_with_figures() {
    let refusal = |sla: &str| planned_with_excess(USER, sla, "").unwrap();
    // The rate is above the worker's, so the queue could never drain.
    let endless = refusal("rate: 900Mpps, burst: 4, excess: { queue: 1us }");
    let why = endless.refusal.unwrap();
    assert!(
        why.contains("exceed the capacity") && why.contains("packets/s"),
        "{why}"
    );
    let late = refusal("rate: 20kpps, burst: 4, latency: 10ms, excess: { queue: 20ms }");
    let why = late.refusal.unwrap();
    assert!(why.contains("is above the agreed latency of 10ms"), "{why}");
    assert!(
        late.remedies.contains(&"no `excess`".to_owned()),
        "{:?}",
        late.remedies
    );
    let error = planned_with_excess(
        KERNEL,
        "rate: 20kpps, excess: { queue: 5ms }",
        "  hook: xdp\n",
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("spec.sla.excess") && error.contains("remove `excess`"),
        "{error}"
    );
}
