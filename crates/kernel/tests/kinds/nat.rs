//! Compares `nat` with a plain model: a standard map, and one check for each rule.

mod model;
mod tables;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use myelin_functions::nat::{PORT_TRIES, SWEEP_SLOTS};
use myelin_packet::five_tuple::{ICMP, ICMPV6};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{checksum, parse};
use myelin_spec::{FunctionConfig, NatConfig, Side};

use crate::space::{
    ACK, Chains, FIN, Kernel, RST, SECOND, SYN, Spaces, for_all, instance, on_fixtures, segment,
    send,
};

/// The longest lifetime of a mapping whose connection is not established (RFC 5382, REQ-5).
const TRANSITORY: u64 = 240 * SECOND;

fn config(addresses: &[&str]) -> NatConfig {
    let addresses = addresses.iter().map(|address| address.parse().unwrap());
    NatConfig {
        addresses: addresses.collect(),
        flows: 1024,
        ..NatConfig::default()
    }
}

/// Returns a configuration with one external address of each family.
fn simple() -> NatConfig {
    config(&["198.51.100.7", "2001:db8::7"])
}

/// Returns a configuration with two external IPv4 addresses and one external IPv6 address.
fn two_external_addresses() -> NatConfig {
    config(&["198.51.100.7", "198.51.100.8", "2001:db8::7"])
}

fn load_pair(spaces: &Spaces, config: &NatConfig) -> [Chains; 2] {
    spaces.load_pair(&FunctionConfig::Nat(config.clone()), "out")
}

fn load_generation(spaces: &Spaces, config: &NatConfig, state: &str, side: Side) -> Chains {
    spaces.load(&[instance(&FunctionConfig::Nat(config.clone()), state, side)])
}

/// Returns the external address of the family of `address`.
fn external(address: IpAddr) -> IpAddr {
    let mut all = simple().addresses.into_iter();
    all.find(|external| external.is_ipv4() == address.is_ipv4())
        .unwrap()
}

fn source(frame: &[u8]) -> SocketAddr {
    let tuple = parse(frame).unwrap().five_tuple(frame);
    (tuple.source, tuple.source_port.unwrap()).into()
}

fn udp_from(host: u32, port: u16) -> Vec<u8> {
    let [_, a, b, c] = host.to_be_bytes();
    let client = SocketAddr::from(([10, a, b, c], port));
    build::udp(client, build::server_v4(), b"hello")
}

#[test]
fn replies_return_with_valid_checksums() {
    let spaces = Spaces::all();
    for (client, server) in [
        (build::client_v4(), build::server_v4()),
        (build::client_v6(), build::server_v6()),
    ] {
        for make in [build::udp, build::tcp] {
            let [out, back] = load_pair(&spaces, &simple());
            // The port is free, so the flow keeps its port.
            let outer = SocketAddr::new(external(client.ip()), client.port());
            let sent = make(client, server, b"request");
            out.expect(&sent, Some(&make(outer, server, b"request")), "a request");
            let reply = make(server, outer, b"reply");
            back.expect(&reply, Some(&make(server, client, b"reply")), "a reply");
        }
    }
}

#[test]
fn an_echo_is_mapped_by_its_identifier() {
    for (client, server) in [
        (build::client_v4().ip(), build::server_v4().ip()),
        (build::client_v6().ip(), build::server_v6().ip()),
    ] {
        let config = NatConfig {
            ports: 7000..=7000,
            ..simple()
        };
        let [out, back] = load_pair(&Spaces::all(), &config);
        let sent = build::echo_request(client, server, b"ping");
        let seen = out.run(&sent, 1).unwrap();
        let headers = parse(&seen).unwrap();
        let l4 = usize::from(headers.l4);
        assert_eq!(headers.five_tuple(&seen).source, external(client));
        assert_eq!(seen[l4 + 4..l4 + 6], 7000_u16.to_be_bytes());
        assert!(icmp_is_valid(&seen), "the checksum of the request is wrong");
        // etherparse writes the identifier 7; the answer has the external identifier.
        let mut reply = build::echo_request(server, external(client), b"ping");
        reply[l4..l4 + 6].copy_from_slice(&seen[l4..l4 + 6]);
        back.expect_at(2, &reply, None, "a request from outside");
        reply[l4] = if client.is_ipv4() { 0 } else { 129 };
        fix_icmp(&mut reply);
        let given = back.run(&reply, 2).unwrap();
        assert_eq!(headers.five_tuple(&given).destination, client);
        assert_eq!(given[l4 + 4..l4 + 6], [0, 7]);
        assert!(icmp_is_valid(&given), "the checksum of the reply is wrong");
    }
}

/// Returns the ones' complement sum of the ICMP message: 0xffff if the checksum is valid.
fn icmp_sum(frame: &[u8]) -> u16 {
    let headers = parse(frame).unwrap();
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    let mut sum = checksum::sum(&frame[l4..usize::from(headers.end)]);
    if headers.flags.is_ipv6() {
        sum += checksum::sum(&frame[l3 + 8..l3 + 40]);
        sum += u64::from(ICMPV6) + (usize::from(headers.end) - l4) as u64;
    }
    checksum::fold(sum)
}

fn icmp_is_valid(frame: &[u8]) -> bool {
    icmp_sum(frame) == 0xffff
}

fn fix_icmp(frame: &mut [u8]) {
    let at = usize::from(parse(frame).unwrap().l4) + 2;
    frame[at..at + 2].fill(0);
    let sum = !icmp_sum(frame);
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// One translator gets all fixtures, so that flows share tables.
#[test]
fn untranslatable_packets_are_dropped() {
    on_fixtures(|spaces, fixtures| {
        let [out, back] = load_pair(spaces, &two_external_addresses());
        let [mut translated, mut dropped] = [0, 0];
        for fixture in fixtures {
            let (headers, name) = (fixture.expected.unwrap(), fixture.name);
            let is_echo = [ICMP, ICMPV6].contains(&headers.protocol)
                && [8, 128].contains(&fixture.frame[usize::from(headers.l4)]);
            // Authenticated addresses must stay.
            let is_authenticated = ["ipv6-authentication", "ipv6-all-extensions"].contains(&name);
            if headers.flags.is_fragment() {
                // `translated_fragments` tests them.
                out.run(&fixture.frame, 1);
                continue;
            }
            let expected = !is_authenticated && (headers.flags.has_ports() || is_echo);
            assert_eq!(out.run(&fixture.frame, 1).is_some(), expected, "{name}");
            *if expected {
                &mut translated
            } else {
                &mut dropped
            } += 1;
            back.expect(&fixture.frame, None, name);
        }
        assert!(
            translated > 20 && dropped > 5,
            "{translated} translated, {dropped} dropped"
        );
    });
}

#[test]
fn a_family_without_an_address_is_dropped() {
    let [out, _] = load_pair(&Spaces::all(), &config(&["198.51.100.7"]));
    assert!(out.run(&build::udp_v4(8), 1).is_some());
    out.expect(
        &build::udp_v6(8),
        None,
        "no external address of the family IPv6",
    );
}

#[test]
fn a_udp_checksum_of_zero_stays() {
    let fixture = fixtures::named("udp-v4-checksum-zero");
    let [out, _] = load_pair(&Spaces::all(), &simple());
    let seen = out.run(&fixture.frame, 1).unwrap();
    let field = checksum::l4_offset(&fixture.expected.unwrap()).unwrap();
    assert_eq!(seen[field..field + 2], [0, 0]);
}

/// The last acknowledgement of a connection does not extend its mapping to the established
/// lifetime.
#[test]
fn tcp_flags_decide_the_lifetime() {
    const END: u8 = FIN | ACK;
    let (client, server) = (build::client_v4(), build::server_v4());
    let outer = SocketAddr::new(external(client.ip()), client.port());
    let reply = build::tcp(server, outer, b"");
    let spaces = Spaces::all();
    for (all_flags, seconds) in [
        (&[ACK][..], 7440),
        (&[SYN], 240),
        (&[END], 240),
        (&[RST | ACK], 240),
        (&[SYN, ACK], 7440),
        // Segments after the end of a connection do not open it again.
        (&[SYN, ACK, END, ACK], 240),
        (&[RST | ACK, ACK], 240),
        (&[END, END | SYN, ACK], 240),
        (&[END, ACK, SYN], 240),
        (&[END, ACK, SYN, ACK], 7440),
    ] {
        let [out, back] = load_pair(&spaces, &simple());
        for &flags in all_flags {
            out.run(&segment(client, server, flags), SECOND).unwrap();
        }
        let (end, case) = ((1 + seconds) * SECOND, format!("{all_flags:x?}"));
        assert!(back.run(&reply, end - 1).is_some(), "{case}");
        back.expect_at(end, &reply, None, &case);
    }
}

#[test]
fn the_longest_lifetime_does_not_overflow() {
    let endless = NatConfig {
        timeout_ns: u64::MAX,
        tcp_timeout_ns: u64::MAX,
        ..simple()
    };
    let (client, server) = (build::client_v4(), build::server_v4());
    let [out, back] = load_pair(&Spaces::all(), &endless);
    for build in [build::udp, build::tcp] {
        let sent = out.run(&build(client, server, b"hello"), SECOND).unwrap();
        let reply = build(server, source(&sent), b"answer");
        assert!(back.run(&reply, 1_000_000 * SECOND).is_some());
    }
}

/// The state's name identifies the mappings for all generations and sides. The mappings end with
/// the last chain that uses them.
#[test]
fn mappings_stay_while_a_chain_uses_them() {
    let spaces = Spaces::all();
    // The source ports of the flows are outside the range. If two flows have one hash, the first
    // flow determines the port of the second flow.
    let config = NatConfig {
        ports: 50_000..=50_001,
        ..config(&["198.51.100.7"])
    };
    let frames = [udp_from(1, 700), udp_from(1, 701), udp_from(1, 702)];
    let old = load_generation(&spaces, &config, "out", Side::Forward);
    let seen = [0, 1].map(|i| old.run(&frames[i], 1).unwrap());
    assert_ne!(source(&seen[0]), source(&seen[1]));
    // Another lifetime keeps the mappings.
    let longer = NatConfig {
        timeout_ns: config.timeout_ns * 2,
        ..config.clone()
    };
    let new = load_generation(&spaces, &longer, "out", Side::Forward);
    drop(old);
    for (frame, seen) in frames.iter().zip(&seen) {
        new.expect_at(2, frame, Some(seen), "the next generation");
    }
    new.expect_at(2, &frames[2], None, "no port is free");
    let back = load_generation(&spaces, &longer, "out", Side::Reply);
    let other = load_generation(&spaces, &longer, "other", Side::Reply);
    drop(new);
    let reply = build::udp(build::server_v4(), source(&seen[1]), b"answer");
    let answer = build::udp(build::server_v4(), source(&frames[1]), b"answer");
    back.expect_at(3, &reply, Some(&answer), "the other side");
    other.expect_at(3, &reply, None, "a mapping of another state");
    drop(back);
    let fresh = load_generation(&spaces, &longer, "out", Side::Reply);
    fresh.expect_at(4, &reply, None, "the mapping outlived its last chain");
    let wider = NatConfig {
        ports: 50_000..=50_002,
        ..longer
    };
    let reshaped = load_generation(&spaces, &wider, "out", Side::Forward);
    assert!(reshaped.run(&frames[2], 5).is_some());
}

/// A generation at one hook uses the mappings of a generation at the other hook.
#[test]
fn kernel_mappings_stay_when_the_hook_changes() {
    let kernels = Kernel::at_hooks();
    let [first, second] = &kernels[..] else {
        return;
    };
    let function = FunctionConfig::Nat(NatConfig {
        ports: 50_000..=50_001,
        ..simple()
    });
    let (second, function) = (
        second.with_maps_of(first),
        instance(&function, "out", Side::Forward),
    );
    let old = first.load_chain(std::slice::from_ref(&function));
    let frames = [udp_from(1, 700), udp_from(1, 701), udp_from(1, 702)];
    let seen = [0, 1].map(|i| old.run_one(&frames[i], 1, 0));
    let new = second.load_chain(&[function]);
    drop(old);
    for (frame, seen) in frames.iter().zip(seen) {
        assert_eq!(new.run_one(frame, 2, 0), seen);
    }
    assert!(
        !new.run_one(&frames[2], 2, 0).is_forwarded,
        "no port is free"
    );
}
