//! Compares the fast classifiers with their plain references, on any rules and packets.

use std::net::IpAddr;

use arbitrary::{Arbitrary, Unstructured};
use myelin_packet::classifier::TupleSpace;
use myelin_packet::fixtures::reference::most_specific;
use myelin_packet::rules::{Action, Rule, RuleTables, first_match};
use myelin_packet::{FiveTuple, Match, Prefix};

/// An address from few bytes, so that the fuzzer finds overlapping rules.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum Address {
    V4([u8; 4]),
    V6([u8; 3]),
}

#[derive(Arbitrary, Debug)]
struct Case {
    rules: Vec<FuzzRule>,
    packets: Vec<FuzzPacket>,
}

#[derive(Arbitrary, Debug)]
struct FuzzRule {
    source: Option<(Address, u8)>,
    destination: Option<(Address, u8)>,
    protocol: Option<u8>,
    source_ports: Option<(u16, u16)>,
    destination_ports: Option<(u16, u16)>,
}

#[derive(Arbitrary, Debug)]
struct FuzzPacket {
    v6: bool,
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    ports: Option<(u16, u16)>,
}

fn address(address: Address) -> IpAddr {
    match address {
        Address::V4(bytes) => bytes.into(),
        Address::V6([a, b, c]) => [a, 0, 0, 0, 0, 0, 0, b, 0, 0, 0, 0, 0, 0, 0, c].into(),
    }
}

fn prefix((of, len): (Address, u8)) -> Prefix {
    let addr = address(of);
    let bits = if addr.is_ipv4() { 33 } else { 129 };
    Prefix::new(addr, len % bits).expect("a length in range")
}

fn packet(packet: &FuzzPacket) -> FiveTuple {
    let of = |[a, b, c, d]: [u8; 4]| {
        address(if packet.v6 {
            Address::V6([a, b, c])
        } else {
            Address::V4([a, b, c, d])
        })
    };
    FiveTuple {
        source: of(packet.source),
        destination: of(packet.destination),
        protocol: packet.protocol,
        source_port: packet.ports.map(|ports| ports.0),
        destination_port: packet.ports.map(|ports| ports.1),
    }
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let rules: Vec<Rule> = case
        .rules
        .iter()
        .take(200)
        .map(|rule| Rule {
            action: Action::Deny,
            source: rule.source.map(prefix),
            destination: rule.destination.map(prefix),
            protocol: rule.protocol,
            source_ports: rule.source_ports.map(|(from, to)| from..=to),
            destination_ports: rule.destination_ports.map(|(from, to)| from..=to),
        })
        .collect();
    let tables = RuleTables::new(&rules).expect("at most 1024 rules");

    let mut space = TupleSpace::new();
    let mut entries: Vec<(Match, usize)> = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let rule = Match {
            source: rule.source,
            destination: rule.destination,
            protocol: rule.protocol,
            source_port: rule.source_ports.as_ref().map(|range| *range.start()),
            destination_port: rule.destination_ports.as_ref().map(|range| *range.start()),
            ..Match::default()
        };
        if space.insert(&rule, i).is_ok() {
            assert!(!entries.iter().any(|(other, _)| rule.ties_with(other)));
            entries.push((rule, i));
        }
    }

    for tuple in case.packets.iter().map(packet) {
        assert_eq!(
            tables.first_match(&tuple),
            first_match(&rules, &tuple),
            "{tuple} {rules:?}"
        );
        assert_eq!(
            space.lookup(&tuple),
            most_specific(&entries, &tuple),
            "{tuple} {rules:?}"
        );
    }
}
