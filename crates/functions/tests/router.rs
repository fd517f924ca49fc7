//! `router` against a plain reference: the linear search, and headers computed anew.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use myelin_functions::{Emitter, Function, Packet, Verdict, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::routes::Route;
use myelin_packet::{Headers, MacAddr, Meta, Prefix, checksum, parse};
use myelin_spec::{FunctionConfig, RouterConfig};
use proptest::prelude::*;

const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 254);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);

fn route(prefix: &str, last: u8, source: Option<u8>) -> Route {
    let mac = |last| MacAddr([2, 0, 0, 0, 1, last]);
    Route {
        prefix: prefix.parse().unwrap(),
        mac: Some(mac(last)),
        source_mac: source.map(mac),
    }
}

fn config(routes: &[Route]) -> RouterConfig {
    RouterConfig {
        routes: routes.to_vec(),
        address_v4: Some(ROUTER_V4),
        address_v6: Some(ROUTER_V6),
        icmp_rate: 1_000_000,
    }
}

fn router(routes: &[Route]) -> Box<dyn Function> {
    instantiate(&FunctionConfig::Router(config(routes))).unwrap()
}

/// Routes that take every packet.
fn everywhere() -> [Route; 2] {
    [route("0.0.0.0/0", 1, None), route("::/0", 2, Some(3))]
}

/// Keeps what goes back, and lets nothing else be emitted.
#[derive(Default)]
struct Replies(Vec<Vec<u8>>);

impl Emitter for Replies {
    fn emit(&mut self, _origin: &Meta, _frame: &[u8]) {
        panic!("nothing is to be emitted");
    }

    fn reply(&mut self, _origin: &Meta, frame: &[u8]) {
        self.0.push(frame.to_vec());
    }
}

/// The verdict, the frame afterwards, and what went back to the sender.
fn run(function: &mut dyn Function, frame: &[u8]) -> (Verdict, Vec<u8>, Vec<Vec<u8>>) {
    let mut buffer = frame.to_vec();
    let meta = Meta::new(1 << 40, 2, 3, 0, &parse(frame).unwrap());
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    let mut replies = Replies::default();
    let verdict = function.process(&mut packet, &mut replies);
    (verdict, buffer, replies.0)
}

fn time_to_live_at(headers: &Headers) -> usize {
    usize::from(headers.l3) + if headers.flags.is_ipv6() { 7 } else { 8 }
}

/// Sets the time to live, and the header checksum to what it then is.
fn with_time_to_live(mut frame: Vec<u8>, time_to_live: u8) -> Vec<u8> {
    let headers = parse(&frame).unwrap();
    frame[time_to_live_at(&headers)] = time_to_live;
    fix_header(&mut frame, &headers);
    frame
}

fn fix_header(frame: &mut [u8], headers: &Headers) {
    if !headers.flags.is_ipv6() {
        let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
        let l4 = l4.min(l3 + usize::from(frame[l3] & 15) * 4);
        frame[l3 + 10..l3 + 12].fill(0);
        let whole = checksum::checksum(&frame[l3..l4]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&whole.to_be_bytes());
    }
}

/// What comes out for a frame with a right header checksum.
fn reference(routes: &[Route], frame: &[u8]) -> Option<Vec<u8>> {
    let headers = parse(frame).unwrap();
    let destination = headers.try_five_tuple(frame)?.destination;
    let route = routes
        .iter()
        .filter(|route| route.prefix.contains(destination))
        .max_by_key(|route| route.prefix.len())?;
    let at = time_to_live_at(&headers);
    let mut frame = frame.to_vec();
    frame[at] = frame[at].checked_sub(1).filter(|left| *left > 0)?;
    fix_header(&mut frame, &headers);
    if let Some(mac) = route.mac {
        frame[..6].copy_from_slice(&mac.0);
    }
    if let Some(source) = route.source_mac {
        frame[6..12].copy_from_slice(&source.0);
    }
    Some(frame)
}

#[test]
fn every_fixture_comes_out_as_the_reference_says() {
    let lists = [
        vec![],
        everywhere().to_vec(),
        vec![
            route("198.51.100.0/24", 1, Some(9)),
            route("198.51.100.2", 2, None),
            route("2001:db8::/32", 3, None),
        ],
    ];
    for routes in lists {
        let mut function = router(&routes);
        for fixture in fixtures::all() {
            if fixture.expected.is_err() {
                continue;
            }
            let frame = with_time_to_live(fixture.frame, 64);
            let (verdict, out, replies) = run(&mut *function, &frame);
            let out = (verdict == Verdict::Forward).then_some(out);
            assert_eq!(out, reference(&routes, &frame), "{}", fixture.name);
            assert!(replies.is_empty(), "{}", fixture.name);
        }
    }
}

#[test]
fn a_wrong_header_checksum_stays_wrong() {
    let mut frame = fixtures::named("udp-v4").frame;
    frame[24] ^= 0x10;
    let (_, out, _) = run(&mut *router(&everywhere()), &frame);
    assert_ne!(checksum::fold(checksum::sum(&out[14..34])), 0xffff);
}

/// The address a message comes from and goes to, its type, and what it quotes; checks all lengths and checksums.
fn read_message(frame: &[u8]) -> (IpAddr, IpAddr, u8, Vec<u8>) {
    let headers = parse(frame).unwrap();
    let tuple = headers.try_five_tuple(frame).unwrap();
    let (l3, l4, end) = (
        usize::from(headers.l3),
        usize::from(headers.l4),
        usize::from(headers.end),
    );
    assert_eq!(end, frame.len());
    let mut sum = checksum::sum(&frame[l4..end]);
    if headers.flags.is_ipv6() {
        sum += checksum::sum(&frame[l3 + 8..l3 + 40]) + (end - l4) as u64 + 58;
    } else {
        assert_eq!(checksum::fold(checksum::sum(&frame[l3..l4])), 0xffff);
    }
    assert_eq!(checksum::fold(sum), 0xffff);
    (
        tuple.source,
        tuple.destination,
        frame[l4],
        frame[l4 + 8..].to_vec(),
    )
}

#[test]
fn the_sender_of_an_expired_packet_is_told() {
    let ends: [(SocketAddr, SocketAddr, IpAddr, u8, usize); 2] = [
        (
            build::client_v4(),
            build::server_v4(),
            ROUTER_V4.into(),
            11,
            548,
        ),
        (
            build::client_v6(),
            build::server_v6(),
            ROUTER_V6.into(),
            3,
            1232,
        ),
    ];
    for (client, server, own, kind, longest) in ends {
        for (time_to_live, tags) in [(0, 0), (1, 0), (1, 2)] {
            for len in [0, 100, 1400] {
                let frame = build::udp(client, server, &build::payload(len));
                let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
                let frame = with_time_to_live(frame, time_to_live);
                let (verdict, out, replies) = run(&mut *router(&everywhere()), &frame);
                assert_eq!(verdict, Verdict::Drop);
                assert_eq!(out, frame, "an expired packet is not touched");
                assert_eq!(replies.len(), 1);
                let message = &replies[0];
                let l3 = 14 + 4 * tags;
                assert_eq!(message[..6], frame[6..12]);
                assert_eq!(message[6..12], frame[..6]);
                assert_eq!(message[12..l3], frame[12..l3]);
                let quoted = frame[l3..].len().min(longest);
                assert_eq!(
                    read_message(message),
                    (own, client.ip(), kind, frame[l3..l3 + quoted].to_vec())
                );
            }
        }
    }
}

#[test]
fn nobody_is_told_of_what_no_message_may_be_about() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let udp = build::udp(client, server, b"x");
    let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = udp.clone();
        edit(&mut frame);
        frame
    };
    let echo = build::echo_request(client.ip(), server.ip(), b"ping");
    let mut error = echo.clone();
    error[34] = 11;
    let segment = build::udp_segment(client, server, &[7; 64]);
    let silent = [
        ("an error message", error),
        (
            "a later fragment",
            build::ipv4_fragment(17, &segment[..48], 48, false),
        ),
        ("a frame to a group", edited(&|frame| frame[0] |= 1)),
        ("a multicast destination", edited(&|frame| frame[30] = 224)),
        ("no source", edited(&|frame| frame[26..30].fill(0))),
        ("a multicast source", edited(&|frame| frame[26] = 239)),
        ("a loopback source", edited(&|frame| frame[26] = 127)),
        (
            "a broadcast source",
            edited(&|frame| frame[26..30].fill(255)),
        ),
    ];
    let told = [
        ("an echo request", echo),
        (
            "a first fragment",
            build::ipv4_fragment(17, &segment[..48], 0, true),
        ),
    ];
    for (expected, cases) in [(0, &silent[..]), (1, &told[..])] {
        for (name, frame) in cases {
            let frame = with_time_to_live(frame.clone(), 1);
            let (verdict, _, replies) = run(&mut *router(&everywhere()), &frame);
            assert_eq!(
                (verdict, replies.len()),
                (Verdict::Drop, expected),
                "{name}"
            );
        }
    }
    // Neither where there is no route, nor without an address, nor at a rate of none.
    let expired = with_time_to_live(udp, 1);
    let mut without = [config(&[]), config(&everywhere()), config(&everywhere())];
    without[1].address_v4 = None;
    without[2].icmp_rate = 0;
    for config in without {
        let mut function = instantiate(&FunctionConfig::Router(config)).unwrap();
        let (verdict, _, replies) = run(&mut *function, &expired);
        assert_eq!((verdict, replies.len()), (Verdict::Drop, 0));
    }
}

#[test]
fn messages_are_limited() {
    let mut limited = config(&everywhere());
    limited.icmp_rate = 5;
    let mut function = instantiate(&FunctionConfig::Router(limited)).unwrap();
    let frame = with_time_to_live(build::udp(build::client_v4(), build::server_v4(), b"x"), 1);
    // All at the same time.
    let sent: usize = (0..100).map(|_| run(&mut *function, &frame).2.len()).sum();
    assert_eq!(sent, 10);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_come_out_as_the_reference_says(
        bytes in any::<[u8; 16]>(),
        is_v6: bool,
        time_to_live: u8,
        flips in prop::collection::vec(0..128_usize, 1..4),
        lens in prop::collection::vec((0..=128_u8, any::<Option<u8>>(), any::<Option<u8>>()), 0..12),
        tags in 0..3_usize,
    ) {
        let [a, b, c, d, ..] = bytes;
        let to: IpAddr = if is_v6 { bytes.into() } else { [a, b, c, d].into() };
        let client = if is_v6 { build::client_v6() } else { build::client_v4() };
        let mut routes: Vec<Route> = Vec::new();
        for (len, last, source) in lens {
            let prefix = Prefix::new(to, len.min(Prefix::host(to).len())).unwrap();
            if routes.iter().all(|route| route.prefix != prefix) {
                let mac = |last| MacAddr([2, 0, 0, 0, 1, last]);
                routes.push(Route { prefix, mac: last.map(mac), source_mac: source.map(mac) });
            }
        }
        let mut function = router(&routes);
        // The address itself, and ones that differ in some bits.
        let mut near = bytes;
        for flip in flips {
            near[flip / 8 % if is_v6 { 16 } else { 4 }] ^= 1 << (flip % 8);
        }
        let [a, b, c, d, ..] = near;
        let other: IpAddr = if is_v6 { near.into() } else { [a, b, c, d].into() };
        for to in [to, other] {
            let frame = build::udp(client, SocketAddr::new(to, 9), b"payload");
            let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
            let frame = with_time_to_live(frame, time_to_live);
            let (verdict, out, _) = run(&mut *function, &frame);
            let out = (verdict == Verdict::Forward).then_some(out);
            prop_assert_eq!(out, reference(&routes, &frame));
        }
    }
}
