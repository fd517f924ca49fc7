//! Compares `router` with a plain reference: a linear search, and new headers.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use myelin_packet::fixtures::{self, build};
use myelin_packet::link_scope::stays_on_link;
use myelin_packet::routes::Route;
use myelin_packet::{Headers, MacAddr, Prefix, checksum, parse};
use myelin_spec::{FunctionConfig, RouterConfig};
use proptest::prelude::*;

use crate::space::{Chains, Outcome, Spaces, USER, fix_l3, for_all, on_fixtures};

const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 254);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);

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

fn config(routes: &[Route]) -> RouterConfig {
    RouterConfig {
        routes: routes.to_vec(),
        addresses: (Some(ROUTER_V4), Some(ROUTER_V6)),
        mtu: None,
        icmp_rate: 1_000_000,
    }
}

fn router(routes: &[Route]) -> FunctionConfig {
    FunctionConfig::Router(config(routes))
}

/// Returns default routes of both families.
fn default_routes() -> [Route; 2] {
    [
        route("0.0.0.0/0", Some(1), None),
        route("::/0", Some(2), Some(3)),
    ]
}

fn time_to_live_at(headers: &Headers) -> usize {
    usize::from(headers.l3) + if headers.flags.is_ipv6() { 7 } else { 8 }
}

/// Sets the TTL and the header checksum for this TTL.
fn with_time_to_live(mut frame: Vec<u8>, time_to_live: u8) -> Vec<u8> {
    let headers = parse(&frame).unwrap();
    frame[time_to_live_at(&headers)] = time_to_live;
    fix_l3(&mut frame, &headers);
    frame
}

/// Returns the routed frame, for a frame with a valid header checksum.
fn reference(routes: &[Route], frame: &[u8]) -> Option<Vec<u8>> {
    let headers = parse(frame).unwrap();
    if headers.flags.is_ipv6() && stays_on_link(&frame[usize::from(headers.l3)..]) {
        return Some(frame.to_vec());
    }
    let destination = headers.try_five_tuple(frame)?.destination;
    let route = routes
        .iter()
        .filter(|route| route.prefix.contains(destination))
        .max_by_key(|route| route.prefix.len())?;
    let at = time_to_live_at(&headers);
    let mut frame = frame.to_vec();
    frame[at] = frame[at].checked_sub(1).filter(|left| *left > 0)?;
    fix_l3(&mut frame, &headers);
    if let Some(mac) = route.mac {
        frame[..6].copy_from_slice(&mac.0);
    }
    if let Some(source) = route.source_mac {
        frame[6..12].copy_from_slice(&source.0);
    }
    Some(frame)
}

#[test]
fn every_fixture_matches_the_reference() {
    let lists = [
        vec![vec![]],
        vec![default_routes().to_vec()],
        vec![
            vec![
                route("198.51.100.0/24", Some(1), Some(9)),
                route("198.51.100.2", Some(2), None),
                route("2001:db8::/32", Some(3), None),
            ],
            vec![
                route("198.51.0.0/17", None, None),
                route("2001:db8::/48", Some(4), Some(5)),
            ],
        ],
    ];
    on_fixtures(|spaces, fixtures| {
        for lists in &lists {
            let mut functions: Vec<_> = lists.iter().map(|routes| router(routes)).collect();
            functions.insert(1, FunctionConfig::Forward);
            let chains = spaces.load(&functions);
            for fixture in fixtures {
                // The TTL of the original frame may be 0 or 1, and the header checksum wrong.
                chains.run(&fixture.frame, 1 << 40);
                let frame = with_time_to_live(fixture.frame.clone(), 64);
                let first = Some(frame.clone());
                let expected = lists
                    .iter()
                    .fold(first, |frame, routes| reference(routes, &frame?));
                chains.expect(&frame, expected.as_deref(), fixture.name);
                let replies = chains.run_each(&frame, 1).remove(0).1.replies;
                assert!(replies.is_empty(), "{}", fixture.name);
            }
        }
    });
}

#[test]
fn packets_of_the_link_pass_unchanged() {
    let chains = Spaces::all().load(&[router(&default_routes())]);
    let (client, server) = (build::client_v6().ip(), build::server_v6().ip());
    let link_local: IpAddr = "fe80::1".parse().unwrap();
    let group: IpAddr = "ff02::1:ff00:2".parse().unwrap();
    let message = |from, to, kind: u8, hop_limit: u8| {
        let frame = build::echo_request(from, to, b"message");
        with_time_to_live(build::with_byte(frame, 54, kind), hop_limit)
    };
    for (frame, is_routed) in [
        (message(client, group, 135, 255), false),
        (message(client, server, 136, 255), false),
        (message(link_local, server, 128, 64), false),
        (message(client, link_local, 128, 1), false),
        (message(client, server, 136, 254), true),
        (message(client, server, 128, 255), true),
    ] {
        let out = chains.run(&frame, 1).unwrap();
        assert_eq!(out != frame, is_routed);
    }
}

#[test]
fn a_wrong_header_checksum_stays_wrong() {
    let mut frame = fixtures::named("udp-v4").frame;
    frame[24] ^= 0x10;
    let chains = Spaces::all().load(&[router(&default_routes())]);
    let out = chains.run(&frame, 1).unwrap();
    assert_ne!(checksum::fold(checksum::sum(&out[14..34])), 0xffff);
}

#[test]
fn packets_without_a_route_or_with_an_expired_ttl_are_dropped() {
    let chains = Spaces::all().load(&[router(&[
        route("198.51.100.2", Some(1), None),
        route("2001:db8::/32", Some(1), None),
    ])]);
    for (client, server, elsewhere) in [
        (build::client_v4(), build::server_v4(), "192.0.2.9:9"),
        (build::client_v6(), build::server_v6(), "[fd00::1]:9"),
    ] {
        let routed = build::udp(client, server, b"x");
        for time_to_live in [0, 1, 2, 255] {
            let frame = with_time_to_live(routed.clone(), time_to_live);
            let out = chains.run(&frame, 1);
            assert_eq!(
                out.is_some(),
                time_to_live > 1,
                "time to live {time_to_live}"
            );
        }
        let lost = build::udp(client, elsewhere.parse().unwrap(), b"x");
        chains.expect(&lost, None, "no route");
    }
}

/// Returns the result in user space, with its ICMP replies. The kernel sends no replies.
fn run_in_user_space(chains: &Chains, frame: &[u8]) -> Outcome {
    let (space, outcome) = chains.run_each(frame, 1 << 40).remove(0);
    assert_eq!(space, USER);
    outcome
}

/// Returns source, destination, type and quote of an ICMP message. Checks all lengths and
/// checksums.
fn read_message(frame: &[u8]) -> (IpAddr, IpAddr, u8, Vec<u8>) {
    let headers = parse(frame).unwrap();
    let tuple = headers.try_five_tuple(frame).unwrap();
    let [l3, l4, end] = [headers.l3, headers.l4, headers.end].map(usize::from);
    assert_eq!(end, frame.len());
    let mut sum = checksum::sum(&frame[l4..end]);
    if headers.flags.is_ipv6() {
        sum += checksum::sum(&frame[l3 + 8..l3 + 40]) + (end - l4) as u64 + 58;
    } else {
        assert_eq!(checksum::fold(checksum::sum(&frame[l3..l4])), 0xffff);
    }
    assert_eq!(checksum::fold(sum), 0xffff);
    let quoted = frame[l4 + 8..].to_vec();
    (tuple.source, tuple.destination, frame[l4], quoted)
}

#[test]
fn the_sender_of_an_expired_packet_gets_an_icmp_message() {
    let v4 = (
        build::client_v4(),
        build::server_v4(),
        ROUTER_V4.into(),
        11,
        548,
    );
    let v6 = (
        build::client_v6(),
        build::server_v6(),
        ROUTER_V6.into(),
        3,
        1232,
    );
    let ends: [(SocketAddr, SocketAddr, IpAddr, u8, usize); 2] = [v4, v6];
    for (client, server, own, kind, longest) in ends {
        for (time_to_live, tags) in [(0, 0), (1, 0), (1, 2)] {
            for len in [0, 100, 1400] {
                let frame = build::udp(client, server, &build::payload(len));
                let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
                let frame = with_time_to_live(frame, time_to_live);
                let chains = Spaces::user().load(&[router(&default_routes())]);
                let outcome = run_in_user_space(&chains, &frame);
                assert!(!outcome.is_forwarded);
                assert_eq!(
                    outcome.frame, frame,
                    "the router must not change an expired packet"
                );
                assert_eq!(outcome.replies.len(), 1);
                let message = &outcome.replies[0];
                let l3 = 14 + 4 * tags;
                assert_eq!(message[..6], frame[6..12]);
                assert_eq!(message[6..12], frame[..6]);
                assert_eq!(message[12..l3], frame[12..l3]);
                let quoted = frame[l3..].len().min(longest);
                let expected = (own, client.ip(), kind, frame[l3..l3 + quoted].to_vec());
                assert_eq!(read_message(message), expected);
            }
        }
    }
}

#[test]
fn the_sender_of_a_packet_above_the_mtu_gets_an_icmp_message() {
    let limited = RouterConfig {
        mtu: Some(1400),
        ..config(&default_routes())
    };
    let chains = Spaces::user().load(&[FunctionConfig::Router(limited)]);
    let packet = |(client, server), len: usize, flags: u8| {
        let frame = build::udp(client, server, &build::payload(len));
        let headers = parse(&frame).unwrap();
        if headers.flags.is_ipv6() {
            return frame;
        }
        let mut frame = build::with_byte(frame, usize::from(headers.l3) + 6, flags);
        fix_l3(&mut frame, &headers);
        frame
    };
    let v4 = (build::client_v4(), build::server_v4());
    let v6 = (build::client_v6(), build::server_v6());
    for (name, frame, is_forwarded) in [
        ("v4, fits", packet(v4, 1372, 0x40), true),
        ("v4, may be fragmented", packet(v4, 1373, 0), true),
        ("v4, too big", packet(v4, 1373, 0x40), false),
        ("v6, fits", packet(v6, 1352, 0), true),
        ("v6, too big", packet(v6, 1353, 0), false),
    ] {
        let outcome = run_in_user_space(&chains, &frame);
        assert_eq!(outcome.is_forwarded, is_forwarded, "{name}");
        assert_eq!(outcome.replies.is_empty(), is_forwarded, "{name}");
        for message in &outcome.replies {
            let (from, to, kind, _) = read_message(message);
            let is_v6 = from.is_ipv6();
            let router: IpAddr = if is_v6 {
                ROUTER_V6.into()
            } else {
                ROUTER_V4.into()
            };
            let sender = if is_v6 { v6.0 } else { v4.0 };
            assert_eq!(
                (from, to, kind),
                (router, sender.ip(), if is_v6 { 2 } else { 3 })
            );
            let l4 = usize::from(parse(message).unwrap().l4);
            assert_eq!(
                message[l4 + 4..l4 + 8],
                [0, 0, 5, 120],
                "{name}: the MTU is 1400"
            );
        }
    }
}

#[test]
fn the_router_sends_no_icmp_message_about_packets_that_forbid_one() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let udp = build::udp(client, server, b"x");
    let with_byte = |at, value| build::with_byte(udp.clone(), at, value);
    let without_source = [26, 27, 28, 29]
        .into_iter()
        .fold(udp.clone(), |frame, at| build::with_byte(frame, at, 0));
    let broadcast = [26, 27, 28, 29]
        .into_iter()
        .fold(udp.clone(), |frame, at| build::with_byte(frame, at, 255));
    let echo = build::echo_request(client.ip(), server.ip(), b"ping");
    let segment = build::udp_segment(client, server, &[7; 64]);
    let fragment = |from: usize, more| build::ipv4_fragment(17, &segment[..48], from as u16, more);
    for (name, frame, replies) in [
        (
            "an error message",
            build::with_byte(echo.clone(), 34, 11),
            0,
        ),
        ("a later fragment", fragment(48, false), 0),
        ("a frame to a group", with_byte(0, udp[0] | 1), 0),
        ("a multicast destination", with_byte(30, 224), 0),
        ("no source", without_source, 0),
        ("a multicast source", with_byte(26, 239), 0),
        ("a loopback source", with_byte(26, 127), 0),
        ("a broadcast source", broadcast, 0),
        ("an echo request", echo, 1),
        ("a first fragment", fragment(0, true), 1),
    ] {
        let chains = Spaces::user().load(&[router(&default_routes())]);
        let outcome = run_in_user_space(&chains, &with_time_to_live(frame, 1));
        assert_eq!(
            (outcome.is_forwarded, outcome.replies.len()),
            (false, replies),
            "{name}"
        );
    }
    // No message without a route, without an address, or at a rate of 0.
    let expired = with_time_to_live(udp, 1);
    let mut without = [
        config(&[]),
        config(&default_routes()),
        config(&default_routes()),
    ];
    without[1].addresses.0 = None;
    without[2].icmp_rate = 0;
    for config in without {
        let chains = Spaces::user().load(&[FunctionConfig::Router(config)]);
        let outcome = run_in_user_space(&chains, &expired);
        assert_eq!((outcome.is_forwarded, outcome.replies.len()), (false, 0));
    }
}

#[test]
fn the_icmp_message_rate_is_limited() {
    let mut limited = config(&default_routes());
    limited.icmp_rate = 5;
    let chains = Spaces::user().load(&[FunctionConfig::Router(limited)]);
    let frame = build::udp(build::client_v4(), build::server_v4(), b"x");
    let frame = with_time_to_live(frame, 1);
    // All packets arrive at the same time.
    let sent: usize = (0..100)
        .map(|_| run_in_user_space(&chains, &frame).replies.len())
        .sum();
    assert_eq!(sent, 10);
}

/// Returns a frame to an address, with a valid header checksum.
fn frame_to(to: IpAddr, time_to_live: u8, tags: usize) -> Vec<u8> {
    let client = if to.is_ipv6() {
        build::client_v6()
    } else {
        build::client_v4()
    };
    let frame = build::udp(client, SocketAddr::new(to, 9), b"payload");
    let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
    with_time_to_live(frame, time_to_live)
}

fn assert_routed(chains: &Chains, routes: &[Route], frame: &[u8], to: IpAddr) {
    let expected = reference(routes, frame);
    chains.expect(frame, expected.as_deref(), &format!("to {to}, {routes:?}"));
}

fn time_to_live() -> impl Strategy<Value = u8> {
    prop_oneof![0..3_u8, any::<u8>()]
}

/// Tests prefixes of one address, with packets to this address and to addresses that differ in some
/// bits.
#[test]
fn random_packets_match_the_reference() {
    let ends = any::<(Option<u8>, Option<u8>)>();
    let case = (
        (any::<([u8; 16], bool)>(), time_to_live()),
        prop::collection::vec(0..128_usize, 1..4),
        prop::collection::vec((0..=128_u8, ends), 0..12),
        0..3_usize,
    );
    for_all(
        256,
        20,
        &case,
        |spaces, (((bytes, v6), time_to_live), flips, lens, tags)| {
            let address = |bytes: [u8; 16]| -> IpAddr {
                let [a, b, c, d, ..] = bytes;
                if v6 {
                    bytes.into()
                } else {
                    [a, b, c, d].into()
                }
            };
            let to = address(bytes);
            let routes =
                keep_distinct(lens.into_iter().map(|(len, (destination, source))| Route {
                    prefix: Prefix::new(to, len.min(Prefix::host(to).len())).unwrap(),
                    mac: destination.map(mac),
                    source_mac: source.map(mac),
                }));
            let chains = spaces.load(&[router(&routes)]);
            let mut near = bytes;
            for flip in flips {
                near[flip / 8 % if v6 { 16 } else { 4 }] ^= 1 << (flip % 8);
            }
            for to in [to, address(near)] {
                assert_routed(&chains, &routes, &frame_to(to, time_to_live, tags), to);
            }
        },
    );
}

/// Returns the first route of each prefix.
fn keep_distinct(routes: impl Iterator<Item = Route>) -> Vec<Route> {
    let mut seen = HashSet::new();
    routes.filter(|route| seen.insert(route.prefix)).collect()
}

/// Returns routes to nested prefixes of few addresses, so packets match these routes.
fn nested_routes() -> impl Strategy<Value = Vec<Route>> {
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
        keep_distinct(
            list.into_iter()
                .map(|(prefix, (destination, source))| Route {
                    prefix,
                    mac: destination.map(mac),
                    source_mac: source.map(mac),
                }),
        )
    })
}

#[test]
fn addresses_at_both_ends_of_each_prefix_get_their_route() {
    let case = (nested_routes(), time_to_live(), 0..3_usize);
    for_all(40, 40, &case, |spaces, (routes, time_to_live, tags)| {
        let chains = spaces.load(&[router(&routes)]);
        for route in &routes {
            let (first, last) = route.prefix.range();
            for number in [first, last, first.wrapping_sub(1), last.wrapping_add(1)] {
                let to = if route.prefix.addr().is_ipv4() {
                    IpAddr::from((number as u32).to_be_bytes())
                } else {
                    IpAddr::from(number.to_be_bytes())
                };
                assert_routed(&chains, &routes, &frame_to(to, time_to_live, tags), to);
            }
        }
    });
}

/// Returns a pseudorandom number, the same in every run.
fn scrambled(i: u64) -> u64 {
    let mixed = (i ^ i >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[test]
fn a_hundred_thousand_routes_are_loaded_and_found() {
    let routes = keep_distinct((0..100_000_u64).map(|i| {
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
    }));
    assert!(routes.len() > 90_000);
    let chains = Spaces::all().load(&[router(&routes)]);
    for (number, route) in routes.iter().step_by(499).enumerate() {
        let frame = frame_to(route.prefix.addr(), 64, 0);
        let out = chains.run(&frame, 1).expect("the router must find a route");
        // The reference is slow for so many routes.
        if number % 16 == 0 {
            assert_eq!(Some(out), reference(&routes, &frame));
        }
    }
}
