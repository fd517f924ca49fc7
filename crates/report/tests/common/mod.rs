//! Chains for the tests of drawings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use myelin_api::{ChainState, ChainStatus, HopStatus, HostInfo, PacketAccount, Plan};
use myelin_planner::{Costs, Machine, PortKind};
use myelin_spec::Source;

/// Plans a chain with these functions, with built-in costs. `more` ends the chain file.
pub(crate) fn plan(name: &str, functions: &[(&str, &str)], more: &str) -> Plan {
    let mut text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\nspec:\n  \
         match: {{ protocol: udp, destinationPort: 9000 }}\n  functions:\n"
    );
    for (name, function) in functions {
        let _ = writeln!(text, "    - {{ name: {name}, {function} }}");
    }
    let chains = myelin_spec::parse(
        &format!("{text}{more}"),
        &Source::new("c"),
        &BTreeMap::<String, String>::new(),
    );
    let chain = &chains.unwrap()[0];
    let mut machine = Machine::with_end_hosts(2);
    if chain.ports.is_some() {
        machine.ingress = PortKind::Native;
        machine.egress = PortKind::Native;
    }
    myelin_planner::plan(chain, &Costs::default(), &machine).unwrap()
}

/// Returns the status of a running chain with this plan.
pub(crate) fn status(plan: &Plan, account: PacketAccount) -> ChainStatus {
    let host = |role: &str, address: &str, link: &str| HostInfo {
        role: role.to_owned(),
        netns: format!("myelin-{role}"),
        address: address.to_owned(),
        interface: "eth0".to_owned(),
        link: link.to_owned(),
    };
    let hosts = [
        host("client", "10.0.0.1", "my0"),
        host("server", "10.0.0.2", "my1"),
    ];
    let hops = plan.hops.iter().map(|hop| HopStatus {
        position: hop.position,
        name: hop.name.clone(),
        kind: hop.kind.clone(),
        space: hop.space.to_string(),
        counted: myelin_api::HopCounters::default(),
        cost_ns: hop.cost_ns.map(|ns| ns + 9.0),
        sandbox: None,
        counters: BTreeMap::new(),
        black_box: None,
    });
    ChainStatus {
        chain: plan.chain.clone(),
        owner: plan.owner.clone(),
        spi: 1,
        generation: 0,
        state: ChainState::Active,
        best_effort: false,
        bound_ns: None,
        plan: Box::new(plan.clone()),
        mapping: plan.mapping.to_string(),
        hook: plan.hook.to_string(),
        ingress: "my0".to_owned(),
        egress: "my1".to_owned(),
        port_faults: Vec::new(),
        packets_in: account.packets_in,
        bytes_in: 0,
        policed: account.policed,
        policed_bytes: 0,
        dropped_fragments: 0,
        missed: 0,
        part: None,
        packets_out: account.packets_out,
        drops: 0,
        account,
        last_packet_ms_ago: None,
        hops: hops.collect(),
        shaper: None,
        sojourn: None,
        sojourn_sections: Vec::new(),
        worker: None,
        more_workers: Vec::new(),
        rings: Vec::new(),
        hosts: hosts.into(),
        sla: None,
        up_s: 1.0,
    }
}
