//! Tests the properties of Maglev hashing: even shares, shares by weight, and few moved flows.

use std::net::{IpAddr, Ipv4Addr};

use myelin_packet::maglev::{Backend, MAX_BACKENDS, MaglevTable, NO_BACKEND, TABLE_SIZE};
use myelin_packet::{FiveTuple, FlowKey};
use proptest::prelude::*;

fn backend(number: usize) -> Backend {
    Backend::new(Ipv4Addr::from(0x0a00_0001 + number as u32).into(), None)
}

/// Returns the table of backends whose addresses contain their numbers.
fn table(backends: &[(usize, u32)]) -> MaglevTable {
    let list: Vec<(u16, Backend, u32)> = backends
        .iter()
        .map(|(number, weight)| (*number as u16, backend(*number), *weight))
        .collect();
    MaglevTable::new(
        list.iter()
            .map(|(number, backend, weight)| (*number, backend, *weight)),
    )
}

fn table_of_equal_weights(numbers: impl IntoIterator<Item = usize>) -> MaglevTable {
    let list: Vec<_> = numbers.into_iter().map(|number| (number, 1)).collect();
    table(&list)
}

fn share(table: &MaglevTable, number: usize) -> usize {
    let is_of_backend = |entry: &&u16| usize::from(**entry) == number;
    table.entries.iter().filter(is_of_backend).count()
}

#[test]
fn shares_are_even() {
    for count in [1, 2, 3, 10, 100, MAX_BACKENDS] {
        let table = table_of_equal_weights(0..count);
        for number in 0..count {
            let share = share(&table, number) as f64;
            let fair = TABLE_SIZE as f64 / count as f64;
            assert!((share - fair).abs() <= 1.0, "{share} of {fair} for {count}");
        }
    }
}

#[test]
fn shares_are_proportional_to_weights() {
    let weights = [(0, 1), (1, 2), (2, 5), (3, 100), (4, 0)];
    let table = table(&weights);
    let total: u32 = weights.iter().map(|(_, weight)| weight).sum();
    for (number, weight) in weights {
        let fair = TABLE_SIZE as f64 * f64::from(weight) / f64::from(total);
        let share = share(&table, number) as f64;
        assert!(
            (share - fair).abs() <= 0.01 * fair + 1.0,
            "{share} of {fair}"
        );
    }
}

#[test]
fn flows_spread_like_the_table_entries() {
    let table = table_of_equal_weights(0..10);
    let mut counts = [0; 10];
    for port in 0..50_000_u16 {
        let tuple = FiveTuple {
            source: IpAddr::from([192, 0, 2, (port >> 12) as u8]),
            destination: IpAddr::from([198, 51, 100, 2]),
            protocol: 17,
            source_port: Some(port),
            destination_port: Some(9000),
        };
        counts[usize::from(table.look_up(&FlowKey::new(&tuple)).unwrap())] += 1;
    }
    for count in counts {
        assert!((4700..5300).contains(&count), "{counts:?}");
    }
}

#[test]
fn a_table_without_backends_selects_none() {
    for empty in [table(&[]), table(&[(0, 0)])] {
        assert!(empty.entries.iter().all(|entry| *entry == NO_BACKEND));
        assert_eq!(empty.look_up(&FlowKey::default()), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]

    /// Section 5.3 of the paper: few entries of the remaining backends change.
    #[test]
    fn few_flows_move_when_a_backend_leaves(count in 2..40_usize, removed in any::<prop::sample::Index>()) {
        let removed = removed.index(count);
        let before = table_of_equal_weights(0..count);
        let after = table_of_equal_weights((0..count).filter(|number| *number != removed));
        let mut moved = 0;
        for (old, new) in before.entries.iter().zip(&after.entries) {
            prop_assert_ne!(usize::from(*new), removed);
            moved += usize::from(usize::from(*old) != removed && old != new);
        }
        let others = TABLE_SIZE - share(&before, removed);
        prop_assert!(moved * 20 < others, "{} of {} moved among {}", moved, others, count);
    }

    #[test]
    fn the_order_of_the_backends_does_not_matter(numbers in Just((0..20).collect::<Vec<usize>>()).prop_shuffle()) {
        prop_assert_eq!(table_of_equal_weights(numbers), table_of_equal_weights(0..20));
    }
}

proptest! {
    /// Both directions of a flow have one target. A target that goes gives its flows to the others,
    /// whose flows stay.
    #[test]
    fn flows_stay_at_named_targets(
        count in 2..16_usize,
        gone in 0..16_usize,
        flows in prop::collection::vec((any::<[u8; 4]>(), any::<[u8; 4]>(), any::<(u16, u16)>()), 200),
    ) {
        let names: Vec<String> = (1..=count).map(|number| format!("n{number}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let gone = gone % count;
        let left: Vec<&str> = all.iter().copied().filter(|name| *name != all[gone]).rev().collect();
        let (before, after) = (MaglevTable::of_names(&all), MaglevTable::of_names(&left));
        let mut moved = 0;
        for (source, destination, (from, to)) in flows {
            let flow = FlowKey::new(&FiveTuple {
                source: Ipv4Addr::from(source).into(),
                destination: Ipv4Addr::from(destination).into(),
                protocol: 17,
                source_port: Some(from),
                destination_port: Some(to),
            });
            let at = |table: &MaglevTable, flow: &FlowKey, names: &[&str]| {
                names[usize::from(table.look_up_either_way(flow).unwrap())].to_owned()
            };
            let (was, is) = (at(&before, &flow, &all), at(&after, &flow, &left));
            prop_assert_eq!(&was, &at(&before, &flow.reversed(), &all));
            prop_assert!(is != all[gone]);
            moved += usize::from(was != all[gone] && was != is);
        }
        prop_assert!(moved <= 10, "{} of 200 flows moved besides those of the target", moved);
    }
}

#[test]
fn shares_of_named_targets_are_even() {
    let names = ["n2", "n3", "a-node-with-a-long-name", "n4"];
    let table = MaglevTable::of_names(&names);
    for number in 0..names.len() {
        let fair = TABLE_SIZE as f64 / names.len() as f64;
        assert!((share(&table, number) as f64 - fair).abs() <= 1.0);
    }
}
