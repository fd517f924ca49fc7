//! Tests the fragments of datagrams that `nat` and `load-balancer` translate. Each fragment must be
//! the same fragment of the translated whole packet.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use myelin_packet::fixtures::{build, fragments};
use myelin_packet::parse;
use myelin_spec::{BackendSpec, FunctionConfig, LoadBalancerConfig, NatConfig};

use crate::space::{Chains, SECOND, Spaces};

/// How long a function remembers a first fragment.
const LIFETIME: u64 = 30 * SECOND;
/// Bytes of a fragment: more than the longest header that a first fragment needs.
const PART: usize = 24;

const PAYLOAD: &[u8; 70] = &[0x5a; 70];

fn external(of: IpAddr) -> IpAddr {
    let text = if of.is_ipv4() {
        "198.51.100.7"
    } else {
        "2001:db8::7"
    };
    text.parse().unwrap()
}

fn load_nat() -> [Chains; 2] {
    let config = NatConfig {
        addresses: [build::client_v4(), build::client_v6()]
            .map(|one| external(one.ip()))
            .into(),
        flows: 1024,
        ports: 1..=u16::MAX,
        ..NatConfig::default()
    };
    Spaces::all().load_pair(&FunctionConfig::Nat(config), "out")
}

fn load_balancer() -> [Chains; 2] {
    let backend = |address: &str, mac| BackendSpec {
        address: address.parse().unwrap(),
        weight: 1,
        mac,
    };
    let mac = Some(myelin_packet::MacAddr([2, 0, 0, 0, 0, 9]));
    let config = LoadBalancerConfig {
        backends: vec![backend("10.1.0.9", mac), backend("fd00:1::9", None)],
        timeout_ns: 100 * SECOND,
        flows: 1024,
    };
    Spaces::all().load_pair(&FunctionConfig::LoadBalancer(config), "web")
}

/// Divides a packet into fragments of `part` bytes.
fn divide(whole: &[u8], identification: u16, part: usize) -> Vec<Vec<u8>> {
    let headers = parse(whole).unwrap();
    let tuple = headers.five_tuple(whole);
    let segment = &whole[headers.l4.into()..headers.end.into()];
    let count = segment.len().div_ceil(part);
    let parts = segment.chunks(part).enumerate();
    let frames = parts.map(|(number, bytes)| {
        let place = ((number * part / 8) as u16, number + 1 < count);
        let ends = (tuple.source, tuple.destination);
        let mut frame =
            fragments::fragment(ends, headers.protocol, identification, place, bytes, false);
        frame[..12].copy_from_slice(&whole[..12]);
        frame
    });
    frames.collect()
}

/// The two families: a client and a server.
fn ends() -> [(SocketAddr, SocketAddr); 2] {
    [
        (build::client_v4(), build::server_v4()),
        (build::client_v6(), build::server_v6()),
    ]
}

/// Asserts that each fragment of `whole` becomes that fragment of `expected`.
#[track_caller]
fn assert_divided(chains: &Chains, whole: &[u8], expected: &[u8], identification: u16) {
    let parts = divide(whole, identification, PART);
    let expected = divide(expected, identification, PART);
    assert!(parts.len() > 3);
    // A later fragment before the first one has no translation.
    chains.expect_at(SECOND, &parts[1], None, "before the first fragment");
    for (part, expected) in parts.iter().zip(&expected) {
        chains.expect_at(SECOND, part, Some(expected), "a fragment");
    }
    // Later fragments may come in any order, also twice.
    let last = SECOND + LIFETIME;
    chains.expect_at(last, &parts[2], Some(&expected[2]), "30 s later");
    chains.expect_at(last + 1, &parts[1], None, "after the lifetime");
    let other = divide(whole, identification + 1, PART);
    chains.expect_at(SECOND, &other[1], None, "of another datagram");
    let tiny = divide(whole, identification + 2, 8);
    let is_whole_header = parse(whole).unwrap().protocol != 6;
    assert_eq!(
        chains.run(&tiny[0], SECOND).is_some(),
        is_whole_header,
        "a tiny fragment"
    );
}

#[test]
fn nat_translates_later_fragments_like_the_first() {
    for (client, server) in ends() {
        let outer = SocketAddr::new(external(client.ip()), client.port());
        for make in [build::udp, build::tcp] {
            let [out, back] = load_nat();
            let pairs = [make(client, server, PAYLOAD), make(outer, server, PAYLOAD)];
            assert_divided(&out, &pairs[0], &pairs[1], 10);
            let pairs = [make(server, outer, PAYLOAD), make(server, client, PAYLOAD)];
            // Refreshes the mapping.
            out.run(&make(client, server, b"again"), SECOND);
            assert_divided(&back, &pairs[0], &pairs[1], 10);
        }
        let [out, _] = load_nat();
        let echo = |from: IpAddr| build::echo_request(from, server.ip(), PAYLOAD);
        assert_divided(&out, &echo(client.ip()), &echo(outer.ip()), 20);
    }
}

#[test]
fn load_balancer_sends_later_fragments_to_the_backend_of_the_first() {
    for (client, server) in ends() {
        for make in [build::udp, build::tcp] {
            let [forward, reply] = load_balancer();
            let asked = make(client, server, PAYLOAD);
            let sent = forward.run(&asked, SECOND).unwrap();
            assert_divided(&forward, &asked, &sent, 10);
            let backend = parse(&sent).unwrap().five_tuple(&sent).destination;
            let answer = make(SocketAddr::new(backend, server.port()), client, PAYLOAD);
            let returned = reply.run(&answer, SECOND).unwrap();
            assert_divided(&reply, &answer, &returned, 10);
        }
    }
}

/// Fragments of many datagrams evict older ones, and change no other flow.
#[test]
fn fragments_of_many_datagrams_are_bounded() {
    const DATAGRAMS: u16 = 20_000;
    /// As the functions have them in both spaces.
    const REMEMBERED: usize = 4096;
    let [out, _] = load_nat();
    let (client, server) = (build::client_v4(), build::server_v4());
    let whole = build::udp(client, server, PAYLOAD);
    let outer = SocketAddr::new(external(client.ip()), client.port());
    let expected = build::udp(outer, server, PAYLOAD);
    for identification in 0..DATAGRAMS {
        out.run(&divide(&whole, identification, PART)[0], SECOND);
    }
    let last = divide(&whole, DATAGRAMS - 1, PART);
    let expected_last = divide(&expected, DATAGRAMS - 1, PART);
    out.expect_at(SECOND, &last[1], Some(&expected_last[1]), "the newest");
    // The kernel does not always evict the oldest one: each processor keeps some of its own.
    let mut remembered = BTreeMap::new();
    for identification in 0..DATAGRAMS {
        let later = &divide(&whole, identification, PART)[1];
        for (name, outcome) in out.run_each(later, SECOND) {
            *remembered.entry(name).or_default() += usize::from(outcome.out().is_some());
        }
    }
    let is_bounded = |count: &usize| (1..=REMEMBERED).contains(count);
    assert!(remembered.values().all(is_bounded), "{remembered:?}");
    out.expect_at(SECOND, &whole, Some(&expected), "a whole packet");
}
