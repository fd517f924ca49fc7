//! `router` in the kernel gives the bytes of its twin in user space.

use std::net::{IpAddr, SocketAddr};

use myelin_kernel::Hook;
use myelin_packet::fixtures::build;
use myelin_packet::routes::Route;
use myelin_packet::{MacAddr, Prefix, parse};
use myelin_spec::{FunctionConfig, RouterConfig};
use proptest::prelude::*;

use crate::functions::{assert_same, assert_same_on_fixtures};
use crate::stand::{Stand, for_all, is_root};

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, last])
}

fn route(prefix: &str, destination: Option<u8>, source: Option<u8>) -> Route {
    Route {
        prefix: prefix.parse().unwrap(),
        mac: destination.map(mac),
        source_mac: source.map(mac),
    }
}

fn router(routes: &[Route]) -> FunctionConfig {
    FunctionConfig::Router(RouterConfig {
        routes: routes.to_vec(),
        address_v4: Some([203, 0, 113, 254].into()),
        address_v6: None,
        icmp_rate: 100,
    })
}

#[test]
fn router_gives_the_same_bytes_on_every_fixture() {
    if !is_root() {
        return;
    }
    assert_same_on_fixtures(&[router(&[])]);
    assert_same_on_fixtures(&[router(&[
        route("0.0.0.0/0", Some(1), None),
        route("::/0", None, Some(3)),
    ])]);
    assert_same_on_fixtures(&[
        router(&[
            route("198.51.100.0/24", Some(1), Some(9)),
            route("198.51.100.2", Some(2), None),
            route("2001:db8::/32", Some(3), None),
        ]),
        FunctionConfig::Forward,
        router(&[
            route("198.51.0.0/17", None, None),
            route("2001:db8::/48", Some(4), Some(5)),
        ]),
    ]);
}

#[test]
fn packets_without_a_route_or_out_of_time_are_dropped_and_counted() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let stand = Stand::new(
            hook,
            &[router(&[
                route("198.51.100.2", Some(1), None),
                route("2001:db8::/32", Some(1), None),
            ])],
        );
        let mut drops = 0;
        for (client, server) in [
            (build::client_v4(), build::server_v4()),
            (build::client_v6(), build::server_v6()),
        ] {
            let routed = build::udp(client, server, b"x");
            let at = if client.is_ipv4() { 22 } else { 21 };
            for time_to_live in [0, 1, 2, 255] {
                let frame = build::with_byte(routed.clone(), at, time_to_live);
                assert_same(&stand, &frame, "time to live");
                drops += u64::from(time_to_live < 2);
            }
            let elsewhere = SocketAddr::new(client.ip(), 9);
            let lost = match client {
                SocketAddr::V4(_) => build::udp(client, elsewhere, b"x"),
                SocketAddr::V6(_) => build::udp(client, "[fd00::1]:9".parse().unwrap(), b"x"),
            };
            assert_same(&stand, &lost, "no route");
            drops += 1;
        }
        let slot = stand.chain.counter_slot(0).unwrap();
        assert_eq!(stand.plane.counters().read(slot).drops, drops);
    }
}

/// Routes to prefixes of few addresses, so that they nest and packets meet them.
fn routes() -> impl Strategy<Value = Vec<Route>> {
    let byte = || prop::sample::select(vec![0_u8, 1, 127, 128, 254, 255]);
    let address = prop_oneof![
        prop::array::uniform4(byte()).prop_map(IpAddr::from),
        prop::array::uniform16(byte()).prop_map(IpAddr::from),
    ];
    let prefix = (address, 0..=128_u8).prop_map(|(address, len)| {
        Prefix::new(address, len.min(Prefix::host(address).len())).unwrap()
    });
    let ends = any::<(Option<u8>, Option<u8>)>();
    prop::collection::vec((prefix, ends), 0..80).prop_map(|list| {
        list.into_iter()
            .map(|(prefix, (destination, source))| Route {
                prefix,
                mac: destination.map(mac),
                source_mac: source.map(mac),
            })
            .collect()
    })
}

#[test]
fn router_finds_what_its_twin_finds() {
    if !is_root() {
        return;
    }
    let strategy = (
        routes(),
        any::<u8>(),
        prop::sample::select(vec![0_usize, 1, 2]),
    );
    for_all(40, &strategy, |(routes, time_to_live, tags)| {
        // Both ends of each prefix, and what lies right outside of it.
        let near: Vec<IpAddr> = routes
            .iter()
            .flat_map(|route| {
                let (first, last) = route.prefix.range();
                [first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(|number| {
                    if route.prefix.addr().is_ipv4() {
                        IpAddr::from((number as u32).to_be_bytes())
                    } else {
                        IpAddr::from(number.to_be_bytes())
                    }
                })
            })
            .collect();
        for hook in Hook::ALL {
            let stand = Stand::new(hook, &[router(&routes)]);
            for to in &near {
                let (client, at) = if to.is_ipv4() {
                    (build::client_v4(), 22)
                } else {
                    (build::client_v6(), 21)
                };
                let frame = build::udp(client, SocketAddr::new(*to, 9), b"x");
                let frame = build::with_byte(frame, at, time_to_live);
                let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
                assert_same(&stand, &frame, &format!("to {to}, {routes:?}"));
            }
        }
    });
}

/// A number that looks random, the same in every run.
fn scrambled(i: u64) -> u64 {
    let mixed = (i ^ i >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[test]
fn a_hundred_thousand_routes_are_loaded_and_found() {
    if !is_root() {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    let routes: Vec<Route> = (0..100_000_u64)
        .map(|i| {
            let number = scrambled(i);
            let address = if i.is_multiple_of(2) {
                IpAddr::from((number as u32).to_be_bytes())
            } else {
                IpAddr::from((u128::from(number) << 64).to_be_bytes())
            };
            let len = if address.is_ipv4() { 24 } else { 56 } - (i % 7) as u8;
            Route {
                prefix: Prefix::new(address, len).unwrap(),
                mac: Some(mac(i as u8)),
                source_mac: None,
            }
        })
        .filter(|route| seen.insert(route.prefix))
        .collect();
    assert!(routes.len() > 90_000);
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[router(&routes)]);
        for route in routes.iter().step_by(499) {
            let to = SocketAddr::new(route.prefix.addr(), 9);
            let from = if to.is_ipv4() {
                build::client_v4()
            } else {
                build::client_v6()
            };
            let frame = build::udp(from, to, b"x");
            assert!(parse(&frame).is_ok());
            assert_same(&stand, &frame, "one of many");
        }
    }
}
