//! Tests plans of chains whose worker takes super-packets.

#[allow(dead_code)]
mod common;

use common::{FIREWALL, FORWARD, XOR, assert_adds_up, pinned, planned, refused, spaces};
use myelin_planner::ShaperPlace;
use myelin_spec::{Hook, Mapping, Space};

const SPEC: &str = "  ports: { ingress: eth1, egress: eth2 }\n  worker: { superPackets: true }\n";

#[test]
fn one_worker_runs_all_functions_behind_an_entry_link() {
    let plan = planned(&[FORWARD, FIREWALL], SPEC);
    assert_eq!(spaces(&plan), [Space::User; 2]);
    assert!(plan.super_packets && plan.entry_link && !plan.binds_ports());
    assert_eq!((plan.hook, plan.mapping), (Hook::Tcx, Mapping::Compact));
    assert!(
        plan.door.name.starts_with("entry_link + "),
        "{}",
        plan.door.name
    );
    assert_adds_up(&plan);
    let without = planned(&[FORWARD, FIREWALL], "");
    assert!(!without.super_packets);
}

#[test]
fn chains_that_need_packets_of_wire_size_or_a_bound_are_refused() {
    let kernel = pinned(FORWARD, Space::Kernel);
    for (functions, more, words) in [
        (XOR, "", "`xor` needs packets of wire size"),
        (&*kernel, "", "it has `space: kernel`"),
        (
            FORWARD,
            "  sla: { rate: 1kpps, latency: 1ms }\n",
            "remove `sla.latency`",
        ),
        (FORWARD, "  mapping: pipeline\n", "remove `mapping`"),
        (FORWARD, "  hook: xdp\n", "remove `hook: xdp`"),
    ] {
        let text = refused(&[functions], &format!("{SPEC}{more}"));
        assert!(
            text.starts_with("tried.yaml:") && text.contains(words),
            "{text}"
        );
    }
    let text = refused(&[FORWARD], "  worker: { superPackets: true }\n");
    assert!(text.contains("needs interfaces in `spec.ports`"), "{text}");
}

#[test]
fn super_packets_are_policed_and_not_shaped() {
    let plan = planned(&[FORWARD], &format!("{SPEC}  sla: {{ rate: 1kpps }}\n"));
    assert_eq!(plan.shaper.map(|shaper| shaper.place), None::<ShaperPlace>);
    let no_bound = plan.no_bound.unwrap();
    assert!(
        plan.bound.is_none() && no_bound.contains("super-packet"),
        "{no_bound}"
    );
    assert!(
        plan.warnings
            .iter()
            .any(|warning| warning.contains("super-packets"))
    );
    let text = refused(
        &[FORWARD],
        &format!("{SPEC}  sla: {{ rate: 1kpps, enforce: shaper }}\n"),
    );
    assert!(text.contains("write `enforce: policer`"), "{text}");
}
