//! Compares the fast classifiers with their plain references.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use myelin_packet::classifier::{ClassifierError, TupleSpace};
use myelin_packet::fixtures::reference::most_specific;
use myelin_packet::rules::{Action, MAX_INTERVALS, Rule, RuleTables, first_match};
use myelin_packet::{FiveTuple, Match, Prefix};
use proptest::prelude::*;

/// Generates addresses that share long prefixes, so that rules overlap and match packets.
fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
    let byte = || prop::sample::select(vec![0_u8, 1, 127, 128, 255]);
    [byte(), byte(), byte(), byte()].prop_map(move |[a, b, c, d]| {
        if v6 {
            [a, 0, 0, 0, b, 0, 0, c, 0, 0, 0, 0, 0, 0, 0, d].into()
        } else {
            [a, b, c, d].into()
        }
    })
}

fn prefix(v6: bool) -> impl Strategy<Value = Prefix> {
    let max: u8 = if v6 { 128 } else { 32 };
    (
        address(v6),
        prop_oneof![0..=max, Just(max), Just(max / 4), Just(max / 2)],
    )
        .prop_map(|(addr, len)| Prefix::new(addr, len).unwrap())
}

fn prefixes() -> impl Strategy<Value = (Option<Prefix>, Option<Prefix>)> {
    let pair = |v6| (prop::option::of(prefix(v6)), prop::option::of(prefix(v6)));
    // Sometimes the families differ; such a rule matches nothing.
    prop_oneof![8 => pair(false), 8 => pair(true), 1 => (prop::option::of(prefix(false)), prop::option::of(prefix(true)))]
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0_u16, 1, 53, 1000, 1001, 65_534, 65_535])
}

fn port_range() -> impl Strategy<Value = Option<RangeInclusive<u16>>> {
    // The ends have any order, because an empty range is allowed.
    prop::option::weighted(
        0.4,
        prop_oneof![
            (port(), port()).prop_map(|(a, b)| a..=b),
            port().prop_map(|p| p..=p)
        ],
    )
}

fn protocol() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![0_u8, 1, 6, 17, 58, 255])
}

fn tuple() -> impl Strategy<Value = FiveTuple> {
    let fields = |v6| {
        (
            address(v6),
            address(v6),
            protocol(),
            prop::option::weighted(0.8, (port(), port())),
        )
    };
    prop_oneof![fields(false), fields(true)].prop_map(|(source, destination, protocol, ports)| {
        FiveTuple {
            source,
            destination,
            protocol,
            source_port: ports.map(|p| p.0),
            destination_port: ports.map(|p| p.1),
        }
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    (
        any::<bool>(),
        prefixes(),
        prop::option::weighted(0.4, protocol()),
        port_range(),
        port_range(),
    )
        .prop_map(
            |(allow, (source, destination), protocol, source_ports, destination_ports)| Rule {
                action: if allow { Action::Allow } else { Action::Deny },
                source,
                destination,
                protocol,
                source_ports,
                destination_ports,
            },
        )
}

fn match_rule() -> impl Strategy<Value = Match> {
    let field = || prop::option::of(port());
    (prefixes(), prop::option::of(protocol()), field(), field()).prop_map(
        |((source, destination), protocol, source_port, destination_port)| Match {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
            ..Match::default()
        },
    )
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn rule_tables_equal_the_plain_list() {
    compare_rule_tables(64);
}

#[test]
#[ignore = "thorough: checks 256 random cases"]
fn rule_tables_equal_the_plain_list_in_many_cases() {
    compare_rule_tables(256);
}

fn compare_rule_tables(cases: u32) {
    let config = ProptestConfig { cases, ..config() };
    proptest!(config, |(
        rules in prop::collection::vec(rule(), 0..150),
        tuples in prop::collection::vec(tuple(), 1..60),
    )| {
        let tables = RuleTables::new(&rules).unwrap();
        prop_assert!(tables.source_v6.starts.len() <= MAX_INTERVALS);
        prop_assert!(tables.source_v6.starts.is_sorted());
        for tuple in &tuples {
            prop_assert_eq!(tables.first_match(tuple), first_match(&rules, tuple), "{}", tuple);
        }
        // Packets at the edges of each rule.
        for rule in &rules {
            let (Some(source), Some(destination)) = (rule.source, rule.destination) else { continue };
            if source.family() != destination.family() {
                continue;
            }
            let ports = rule.source_ports.as_ref().map(|range| *range.start());
            let tuple = FiveTuple {
                source: source.addr(),
                destination: destination.addr(),
                protocol: rule.protocol.unwrap_or(6),
                source_port: ports,
                destination_port: ports.map(|_| rule.destination_ports.as_ref().map_or(7, |range| *range.end())),
            };
            prop_assert_eq!(tables.first_match(&tuple), first_match(&rules, &tuple), "{}", tuple);
        }
    });
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn tuple_space_search_equals_the_plain_search(
        rules in prop::collection::vec(match_rule(), 0..80),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        tuples in prop::collection::vec(tuple(), 1..60),
    ) {
        let mut space = TupleSpace::new();
        let mut entries: Vec<(Match, usize)> = Vec::new();
        for (i, rule) in rules.iter().enumerate() {
            let ties = entries.iter().any(|(other, _)| rule.ties_with(other));
            match space.insert(rule, i) {
                Ok(()) => {
                    prop_assert!(!ties, "{rule:?} ties with an entry, but insert accepts it");
                    entries.push((*rule, i));
                }
                Err(ClassifierError::Tie) => prop_assert!(ties, "insert refuses {rule:?}, which ties with no entry"),
                Err(ClassifierError::MixedFamilies) => prop_assert_eq!(rule.families().count(), 0),
                Err(ClassifierError::TooManyMasks { .. }) => {}
            }
        }
        for index in removed {
            if !entries.is_empty() {
                let (rule, value) = entries.swap_remove(index.index(entries.len()));
                prop_assert_eq!(space.remove(&rule), Some(value));
            }
        }
        for tuple in &tuples {
            prop_assert_eq!(space.lookup(tuple), most_specific(&entries, tuple), "{}", tuple);
        }
    }
}
