//! Plans of parts: the wires to other nodes, their costs and their packets.

#[allow(dead_code)]
mod common;

use common::{chain, machine};
use myelin_planner::{Costs, Machine, Plan};
use myelin_spec::ServiceChain;

/// Returns the middle part of a chain, with one function in the kernel. `more` has further lines of
/// `spec`.
fn middle_part(way: &str, more: &str) -> ServiceChain {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: p }}\nspec:\n  \
         functions: [ {{ name: f, kind: forward, space: kernel }} ]\n  part: {{ path: 8388609, first: 1, length: 3, \
         from: {{ interface: eth1, {way} }}, to: {{ interface: eth1, {way} }} }}\n{more}"
    );
    let source = myelin_spec::Source::new("p.yaml");
    let chains = myelin_spec::parse(&text, &source, &myelin_spec::NoFiles);
    chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

const ETHERNET: &str = "peer: \"02:00:00:00:00:01\"";
const VXLAN: &str = "vxlan: { local: 10.0.0.1, remote: 10.0.0.2, vni: 7 }";

fn plan(chain: &ServiceChain, machine: &Machine) -> Plan {
    myelin_planner::plan(chain, &Costs::default(), machine).unwrap()
}

#[test]
fn a_part_costs_its_two_internal_links_more() {
    let whole = chain(&["kind: forward, space: kernel"], "");
    let (whole, part) = (
        plan(&whole, &machine()),
        plan(&middle_part(ETHERNET, ""), &machine()),
    );
    assert!(part.door.name.contains("entry_link"), "{}", part.door.name);
    assert!(
        part.egress.name.contains("entry_link"),
        "{}",
        part.egress.name
    );
    assert!(!part.entry_link, "the wire replaces the entry link");
    assert!(part.predicted_ns > whole.predicted_ns + 1500.0);
}

#[test]
fn the_headers_take_their_share_of_the_mtu() {
    for (way, remaining) in [(ETHERNET, 1462), (VXLAN, 1412)] {
        let planned = plan(&middle_part(way, ""), &machine()).part.unwrap();
        assert_eq!(
            (planned.from_mtu, planned.to_mtu),
            (Some(remaining), Some(remaining))
        );
    }
    let narrow = Machine {
        egress_mtu: Some(1400),
        ..machine()
    };
    let planned = plan(&middle_part(ETHERNET, ""), &narrow);
    let warnings = planned.warnings.join("; ");
    assert!(
        warnings.contains("packets of up to 1462 bytes arrive, and 1362"),
        "{warnings}"
    );
    assert!(warnings.contains("to 1500 or more"), "{warnings}");
    let least = |egress_mtu| Machine {
        egress_mtu: Some(egress_mtu),
        ..machine()
    };
    let refused =
        |mtu| myelin_planner::plan(&middle_part(VXLAN, ""), &Costs::default(), &least(mtu)).err();
    assert!(refused(156).is_none());
    let error = refused(155).unwrap().to_string();
    assert!(
        error.contains("p.yaml:6:3") && error.contains("mtu 156"),
        "{error}"
    );
}

#[test]
fn an_unshaped_part_with_a_profile_is_warned_of() {
    let warns = |more: &str| {
        let plan = plan(&middle_part(ETHERNET, more), &machine());
        plan.warnings
            .iter()
            .any(|warning| warning.contains("in clusters above the profile"))
    };
    assert!(!warns(""));
    assert!(warns("  sla: { rate: 10kpps, burst: 32 }\n"));
    assert!(!warns(
        "  sla: { rate: 10kpps, burst: 32, enforce: both }\n"
    ));
}
