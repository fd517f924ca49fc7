//! Compares the longest-prefix-match tables with a plain search through all prefixes.

use std::net::IpAddr;

use myelin_packet::fixtures::reference::longest_match;
use myelin_packet::lpm::{LpmError, LpmTables, MAX_PREFIXES, NO_MATCH};
use myelin_packet::{Family, Prefix};
use proptest::prelude::*;

/// Generates addresses that often share leading bits, including all ones and all zeros.
fn address() -> impl Strategy<Value = IpAddr> {
    let byte = || {
        prop_oneof![
            3 => Just(0_u8),
            3 => Just(255),
            2 => prop::sample::select(vec![1_u8, 2, 127, 128, 254]),
            1 => any::<u8>(),
        ]
    };
    prop_oneof![
        prop::array::uniform4(byte()).prop_map(IpAddr::from),
        prop::array::uniform16(byte()).prop_map(IpAddr::from),
    ]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    (address(), 0..=128_u8).prop_map(|(address, len)| {
        let len = len.min(Family::of(address).bits());
        Prefix::new(address, len).unwrap()
    })
}

/// Returns the first and the last address of a prefix, and the adjacent addresses outside.
fn edges(prefix: Prefix) -> Vec<IpAddr> {
    let (first, last) = prefix.range();
    let to_address = |number: u128| -> IpAddr {
        match prefix.family() {
            Family::V4 => IpAddr::from((number as u32).to_be_bytes()),
            Family::V6 => IpAddr::from(number.to_be_bytes()),
        }
    };
    [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
        .map(to_address)
        .to_vec()
}

fn check_look_ups(prefixes: &[(Prefix, u32)], addresses: impl IntoIterator<Item = IpAddr>) {
    let tables = LpmTables::new(prefixes).unwrap();
    for address in addresses {
        assert_eq!(
            tables.look_up(address),
            longest_match(prefixes, address),
            "{address} in {prefixes:?}"
        );
    }
}

#[test]
fn the_longest_prefix_wins() {
    compare_with_the_plain_search(48);
}

#[test]
#[ignore = "thorough: checks 256 random cases"]
fn the_longest_prefix_wins_in_many_cases() {
    compare_with_the_plain_search(256);
}

fn compare_with_the_plain_search(cases: u32) {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    };
    proptest!(config, |(
        prefixes in prop::collection::vec((prefix(), 1..9_u32), 0..60),
        addresses in prop::collection::vec(address(), 40),
    )| {
        let edges = prefixes.iter().flat_map(|(prefix, _)| edges(*prefix));
        check_look_ups(&prefixes, edges.chain(addresses).collect::<Vec<_>>());
    });
}

#[test]
fn empty_tables_match_no_address() {
    let ends = [
        "0.0.0.0",
        "255.255.255.255",
        "::",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ];
    check_look_ups(&[], ends.map(|end| end.parse().unwrap()));
}

#[test]
fn the_last_of_equal_prefixes_wins() {
    for text in ["10.0.0.0/8", "10.1.2.3", "2001:db8::/32", "2001:db8::1"] {
        let prefix: Prefix = text.parse().unwrap();
        let tables = LpmTables::new(&[(prefix, 5), (prefix, 3), (prefix, 4)]).unwrap();
        assert_eq!(tables.look_up(prefix.addr()), 4, "{text}");
    }
}

/// The prefixes are in neighbouring low and high halves, where the trees of IPv6 meet.
#[test]
fn neighbouring_halves_of_ipv6_leave_no_gap() {
    let prefixes: Vec<(Prefix, u32)> = [
        "2001:db8::/62",
        "2001:db8::/64",
        "2001:db8::ffff:0:0:0/128",
        "2001:db8:0:1::/128",
        "2001:db8:0:1:8000::/65",
        "2001:db8:0:2::/65",
        "ffff:ffff:ffff:ffff::/65",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
    ]
    .iter()
    .zip(1..)
    .map(|(text, value)| (text.parse().unwrap(), value))
    .collect();
    let addresses: Vec<IpAddr> = prefixes
        .iter()
        .flat_map(|(prefix, _)| edges(*prefix))
        .collect();
    check_look_ups(&prefixes, addresses);
}

/// Returns a number that looks random, the same in every run.
fn scramble(i: u64) -> u64 {
    let mixed = (i ^ i >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[test]
fn a_hundred_thousand_prefixes_are_found_and_take_limited_memory() {
    look_up_many_prefixes(9973);
}

#[test]
#[ignore = "thorough: searches 100000 prefixes 800 times"]
fn more_of_a_hundred_thousand_prefixes_are_found() {
    look_up_many_prefixes(997);
}

/// Looks up the edges of each `step`th prefix.
fn look_up_many_prefixes(step: usize) {
    let v4: Vec<(Prefix, u32)> = (1..=100_000_u32)
        .map(|i| {
            let address = IpAddr::from((scramble(i.into()) as u32).to_be_bytes());
            (Prefix::new(address, 24 - (i % 8) as u8).unwrap(), i)
        })
        .collect();
    let v6: Vec<(Prefix, u32)> = (1..=100_000_u32)
        .map(|i| {
            let address = IpAddr::from((u128::from(scramble(i.into())) << 64).to_be_bytes());
            (Prefix::new(address, 64 - (i % 24) as u8).unwrap(), i)
        })
        .collect();
    for (prefixes, max_bytes) in [(v4, 64 << 20), (v6, 4 << 20)] {
        let tables = LpmTables::new(&prefixes).unwrap();
        assert!(
            tables.memory() < max_bytes + (1 << 19),
            "{} bytes",
            tables.memory()
        );
        for (prefix, _) in prefixes.iter().step_by(step) {
            for address in edges(*prefix) {
                let expected = longest_match(&prefixes, address);
                assert_eq!(tables.look_up(address), expected, "{address}");
            }
        }
    }
}

#[test]
fn too_many_prefixes_and_invalid_values_are_refused() {
    let any: Prefix = "::/0".parse().unwrap();
    let many = vec![(any, 1); MAX_PREFIXES + 1];
    let error = LpmTables::new(&many).unwrap_err();
    assert_eq!(error, LpmError::TooMany { count: 131_073 });
    for value in [NO_MATCH, 1 << 31] {
        let error = LpmTables::new(&[(any, value)]).unwrap_err();
        assert_eq!(error, LpmError::Value { prefix: any, value });
    }
    check_look_ups(&many[1..], [any.addr()]);
}
