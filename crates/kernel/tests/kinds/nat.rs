//! Compares `nat` with a plain model: a standard map, and one check for each rule.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use myelin_functions::nat::{PORT_TRIES, SWEEP_SLOTS};
use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{FlowTotals, checksum, parse};
use myelin_spec::{FunctionConfig, NatConfig, Side};
use proptest::prelude::*;

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

/// Address, protocol, port.
type Inner = (IpAddr, u8, u16);

/// An external endpoint, its expiry, and whether the connection is closing.
struct Mapping {
    address: IpAddr,
    port: u16,
    ends_ns: u64,
    is_closing: bool,
}

/// A model that follows the rules of mappings in plain code.
struct Model {
    config: NatConfig,
    mappings: HashMap<Inner, Mapping>,
    next_sweep_ns: u64,
}

impl Model {
    /// Returns the inside endpoint whose mapping uses the external endpoint.
    fn holder(&self, protocol: u8, address: IpAddr, port: u16) -> Option<Inner> {
        self.mappings
            .iter()
            .find(|(inner, outer)| {
                inner.1 == protocol && (outer.address, outer.port) == (address, port)
            })
            .map(|(inner, _)| *inner)
    }

    /// Returns the lifetime of a mapping after a packet with these flags, and whether the
    /// connection is closing.
    fn lifetime(&self, protocol: u8, flags: u8, was_closing: bool) -> (u64, bool) {
        let transitory = self.config.tcp_timeout_ns.min(TRANSITORY);
        if protocol != TCP {
            (self.config.timeout_ns, false)
        } else if flags & (FIN | RST) != 0 {
            (transitory, true)
        } else if flags & SYN != 0 {
            (transitory, false)
        } else if was_closing {
            (transitory, true)
        } else {
            (self.config.tcp_timeout_ns, false)
        }
    }

    /// Checks the external endpoint that the function chose, and stores the mapping.
    fn record_outward(&mut self, inner: Inner, flags: u8, now: u64, chosen: Option<(IpAddr, u16)>) {
        let was_closing = self
            .mappings
            .get(&inner)
            .is_some_and(|mapping| mapping.is_closing);
        let (lasts, is_closing) = self.lifetime(inner.1, flags, was_closing);
        let ends_ns = now + lasts;
        if let Some(mapping) = self.mappings.get_mut(&inner) {
            (mapping.ends_ns, mapping.is_closing) = (ends_ns, is_closing);
            let outer = Some((mapping.address, mapping.port));
            assert_eq!(
                chosen, outer,
                "a mapping must have the same external endpoint for all destinations"
            );
            return;
        }
        let mut pool = self.config.addresses.clone();
        pool.retain(|address| address.is_ipv4() == inner.0.is_ipv4());
        let range = self.config.ports.clone();
        let is_free = |model: &Self, address, port| {
            let holder = model.holder(inner.1, address, port);
            holder.is_none_or(|holder| model.mappings[&holder].ends_ns <= now)
        };
        let is_full = self.mappings.len() >= self.config.flows as usize;
        let Some((address, port)) = chosen else {
            let is_taken = |address| range.clone().all(|port| !is_free(self, address, port));
            let no_port = pool.iter().any(|address| is_taken(*address));
            assert!(
                is_full || no_port || pool.is_empty(),
                "the flow was refused, but the table has room"
            );
            return;
        };
        assert!(pool.contains(&address) && range.contains(&port));
        assert!(is_free(self, address, port), "the port is taken");
        if range.contains(&inner.2) && is_free(self, address, inner.2) {
            assert_eq!(port, inner.2, "the function must preserve a free port");
        }
        let mut others = self.mappings.iter();
        let paired = others.find(|(other, _)| other.0 == inner.0);
        assert!(
            paired.is_none_or(|(_, paired)| paired.address == address),
            "the address is not paired"
        );
        match self.holder(inner.1, address, port) {
            Some(holder) => drop(self.mappings.remove(&holder)),
            None if is_full => {
                assert!(
                    now >= self.next_sweep_ns,
                    "the function sweeps more than once a second"
                );
                self.next_sweep_ns = now + SECOND;
                self.mappings.retain(|_, mapping| mapping.ends_ns > now);
            }
            None => {}
        }
        let mapping = Mapping {
            address,
            port,
            ends_ns,
            is_closing,
        };
        self.mappings.insert(inner, mapping);
        assert!(
            self.mappings.len() <= self.config.flows as usize,
            "too many mappings"
        );
    }

    /// Returns the mappings that [`live_mappings`] must return.
    fn live_mappings(&self, now: u64) -> HashMap<Inner, (SocketAddr, u64)> {
        let live = self
            .mappings
            .iter()
            .filter(|(_, mapping)| mapping.ends_ns > now);
        live.map(|(inner, mapping)| {
            let outer = (mapping.address, mapping.port).into();
            (*inner, (outer, mapping.ends_ns))
        })
        .collect()
    }

    fn find_inward(&self, protocol: u8, address: IpAddr, port: u16, now: u64) -> Option<Inner> {
        self.holder(protocol, address, port)
            .filter(|inner| now < self.mappings[inner].ends_ns)
    }
}

#[derive(Clone, Debug)]
struct Step {
    out: bool,
    protocol: u8,
    v6: bool,
    host: u8,
    port: u16,
    checksum: Option<u16>,
    flags: u8,
    wait_ns: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let protocol = prop::sample::select(vec![UDP, TCP, ICMP]);
    let checksum = prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()];
    let flags = prop_oneof![
        2 => prop::sample::select(vec![SYN, FIN | ACK, RST]),
        2 => Just(ACK),
        1 => any::<u8>(),
    ];
    let wait_ns = prop_oneof![
        20 => Just(0),
        8 => 1..SECOND,
        4 => SECOND..4 * SECOND,
        1 => 100 * SECOND..300 * SECOND,
    ];
    (
        (prop::bool::weighted(0.7), protocol, any::<bool>()),
        (0_u8..2, 98_u16..103),
        prop::option::weighted(0.2, checksum),
        flags,
        wait_ns,
    )
        .prop_map(
            |((out, protocol, v6), (host, port), checksum, flags, wait_ns)| Step {
                out,
                protocol,
                v6,
                host,
                port,
                checksum,
                flags,
                wait_ns,
            },
        )
}

/// Returns a configuration with two external IPv4 addresses and one external IPv6 address.
fn two_external_addresses() -> NatConfig {
    config(&["198.51.100.7", "198.51.100.8", "2001:db8::7"])
}

impl Step {
    fn internal_address(&self) -> IpAddr {
        if self.v6 {
            [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(self.host) + 1].into()
        } else {
            [10, 0, 0, self.host + 1].into()
        }
    }

    fn external_address(&self) -> IpAddr {
        let index = if self.v6 { 2 } else { self.host % 2 };
        two_external_addresses().addresses[usize::from(index)]
    }

    /// Returns the protocol number in the packet.
    fn protocol(&self) -> u8 {
        if (self.protocol, self.v6) == (ICMP, true) {
            ICMPV6
        } else {
            self.protocol
        }
    }

    /// Builds the packet. The port of a reply is one of the external ports.
    fn frame(&self) -> Vec<u8> {
        let server = if self.v6 {
            build::server_v6()
        } else {
            build::server_v4()
        };
        let (from, to): (SocketAddr, SocketAddr) = if self.out {
            ((self.internal_address(), self.port).into(), server)
        } else {
            (server, (self.external_address(), self.port).into())
        };
        let payload = [self.flags; 9];
        let (mut frame, checksum) = match self.protocol {
            UDP => (build::udp(from, to, &payload), 6),
            TCP => (build::tcp(from, to, &payload), 16),
            _ => (build::echo_request(from.ip(), to.ip(), &payload), 2),
        };
        let l4 = usize::from(parse(&frame).unwrap().l4);
        if self.protocol == TCP {
            frame[l4 + 13] = self.flags;
        } else if self.protocol == ICMP {
            frame[l4 + 4..l4 + 6].copy_from_slice(&self.port.to_be_bytes());
            if !self.out {
                frame[l4] = if self.v6 { 129 } else { 0 };
            }
        }
        if let Some(held) = self.checksum {
            frame[l4 + checksum..l4 + checksum + 2].copy_from_slice(&held.to_be_bytes());
        }
        frame
    }

    /// Returns the translated endpoint of a frame: the source, or the destination of a reply.
    fn translated(&self, frame: &[u8]) -> (IpAddr, u16) {
        let headers = parse(frame).unwrap();
        let tuple = headers.five_tuple(frame);
        let (address, port) = if self.out {
            (tuple.source, tuple.source_port)
        } else {
            (tuple.destination, tuple.destination_port)
        };
        let l4 = usize::from(headers.l4);
        let identifier = u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]);
        let is_echo = self.protocol == ICMP;
        (address, if is_echo { identifier } else { port.unwrap() })
    }
}

#[test]
fn random_packets_match_the_model() {
    compare_with_the_model(64, 15);
}

#[test]
#[ignore = "thorough: checks 316 random cases"]
fn many_random_packets_match_the_model() {
    compare_with_the_model(256, 60);
}

/// Uses few hosts, few ports and a small table, so flows collide and expire, and the table is full.
fn compare_with_the_model(user_cases: u32, all_cases: u32) {
    let case = (
        prop::collection::vec(step(), 1..200),
        (1_u32..40, 1_u16..12, any::<bool>()),
        1..3 * SECOND,
        prop_oneof![1 => SECOND / 2..2 * SECOND, 2 => Just(400 * SECOND)],
    );
    for_all(
        user_cases,
        all_cases,
        &case,
        |spaces, (steps, (flows, ports, both), timeout_ns, tcp_timeout_ns)| {
            let mut config = NatConfig {
                ports: 100..=99 + ports,
                timeout_ns,
                tcp_timeout_ns,
                flows,
                ..two_external_addresses()
            };
            if !both {
                config.addresses.truncate(2);
            }
            let [out, back] = load_pair(spaces, &config);
            let mut model = Model {
                config,
                mappings: HashMap::new(),
                next_sweep_ns: 0,
            };
            let mut now = SECOND;
            for step in &steps {
                now += step.wait_ns;
                let (frame, protocol) = (step.frame(), step.protocol());
                let chains = if step.out { &out } else { &back };
                let end = chains.run(&frame, now).map(|frame| step.translated(&frame));
                if step.out {
                    let inner = (step.internal_address(), protocol, step.port);
                    model.record_outward(inner, step.flags, now, end);
                } else {
                    let inner =
                        model.find_inward(protocol, step.external_address(), step.port, now);
                    assert_eq!(end, inner.map(|(address, _, port)| (address, port)));
                }
            }
            assert_eq!(live_mappings(&out, now), model.live_mappings(now));
        },
    );
}

/// Returns the external endpoint and expiry time of each mapping that has not expired.
fn live_mappings(out: &Chains, now: u64) -> HashMap<Inner, (SocketAddr, u64)> {
    let (records, totals) = out.flows().expect("a nat must report its mappings");
    assert_eq!(totals, FlowTotals::default(), "a nat counts no flows");
    let live = records.values().filter(|record| record.expires_ns > now);
    live.map(|record| {
        let tuple = record.key.five_tuple();
        let inner = (tuple.source, tuple.protocol, tuple.source_port.unwrap());
        (inner, (record.translated().unwrap(), record.expires_ns))
    })
    .collect()
}

/// The search tries every port of a small range.
#[test]
fn flows_get_every_port_of_a_small_range() {
    let count = PORT_TRIES as u16;
    let config = NatConfig {
        ports: 5000..=4999 + count,
        ..simple()
    };
    let [out, _] = load_pair(&Spaces::all(), &config);
    let mut ports: Vec<u16> = (1..=count)
        .map(|port| source(&out.run(&udp_from(1, port), 0).unwrap()).port())
        .collect();
    ports.sort_unstable();
    assert!(ports.into_iter().eq(5000..5000 + count));
    out.expect(&udp_from(1, count + 1), None, "one flow more than ports");
}

#[test]
fn a_full_table_removes_expired_mappings_once_a_second() {
    let config = NatConfig {
        flows: 4,
        timeout_ns: SECOND,
        ..simple()
    };
    let [out, _] = load_pair(&Spaces::all(), &config);
    let ask = |port, now| {
        out.run(&udp_from(1, port), now)
            .map(|out| source(&out).port())
    };
    for port in 2000..2004 {
        assert_eq!(ask(port, 0), Some(port));
    }
    let half = SECOND / 2;
    assert_eq!(ask(2004, half), None, "no mapping has expired");
    assert_eq!(
        ask(2004, SECOND),
        None,
        "the function must not sweep twice within a second"
    );
    let late = SECOND + half;
    for port in 2004..2008 {
        assert_eq!(ask(port, late), Some(port), "all mappings have expired");
    }
    assert_eq!(ask(2008, late), None, "the table is full again");
}

/// In user space no packet waits for the sweep of a whole large table.
#[test]
fn user_space_sweeps_a_large_table_in_pieces() {
    let piece = SWEEP_SLOTS as u16;
    let config = NatConfig {
        flows: 3 * SWEEP_SLOTS as u32,
        timeout_ns: SECOND,
        tcp_timeout_ns: 10 * SECOND,
        ..simple()
    };
    let [out, _] = load_pair(&Spaces::user(), &config);
    let client = |port| SocketAddr::from(([10, 0, 0, 1], port));
    let is_translated = |frame: &[u8], now| out.run(frame, now).is_some();
    // Each flow keeps its port. Mappings of the first piece stay, mappings of the other pieces
    // expire.
    for port in 2000..2000 + piece {
        let frame = segment(client(port), build::server_v4(), ACK);
        assert!(is_translated(&frame, 0));
    }
    let is_mapped = |port: u16, now| is_translated(&udp_from(1, port), now);
    assert!((0..2 * piece).all(|n| is_mapped(2000 + piece + n, 0)));
    let (later, next) = (2 * SECOND, 2000 + 3 * piece);
    assert!(
        !is_mapped(next, later),
        "no mapping of the first piece has expired"
    );
    // The sweep removes the second piece. The third piece stays until the table needs room.
    assert!((0..2 * piece).all(|n| is_mapped(next + n, later)));
    assert!(
        !is_mapped(next + 2 * piece, later),
        "the table is full again"
    );
}

/// In the kernel each new flow continues the sweep of a large table. The kernel drops new flows
/// until the sweep has found room.
#[test]
fn the_kernel_sweeps_a_large_table_in_pieces() {
    const FLOWS: u16 = 5000;
    /// Number of new flows for a complete sweep. Each flow sweeps 1024 external endpoints, of three
    /// protocols.
    const FLOWS_PER_SWEEP: usize = 3 * 60_000 / 1024 + 1;
    let config = NatConfig {
        ports: 1000..=60_999,
        timeout_ns: SECOND,
        flows: FLOWS.into(),
        ..config(&["198.51.100.7"])
    };
    for kernel in Kernel::at_hooks() {
        let chain = kernel.load_chain(&[FunctionConfig::Nat(config.clone())]);
        let is_mapped =
            |port: u16, now: u64| chain.run_one(&udp_from(1, port), now, 0).is_forwarded;
        // Each flow has its own port, in the upper half of the range.
        assert!((0..FLOWS).all(|n| is_mapped(50_000 + n, SECOND)));
        assert!(
            !is_mapped(2000, SECOND),
            "there is no room, and no mapping has expired"
        );
        // The next sweep begins after a second at the earliest. The current sweep may continue.
        assert!((0..FLOWS_PER_SWEEP).all(|_| !is_mapped(2000, SECOND + 1)));
        let late = 10 * SECOND;
        let dropped = (0..2 * FLOWS_PER_SWEEP)
            .take_while(|_| !is_mapped(2000, late))
            .count();
        assert!(
            (FLOWS_PER_SWEEP / 2..FLOWS_PER_SWEEP).contains(&dropped),
            "{dropped} dropped"
        );
        // All mappings have expired, so all flows find room while the sweep continues.
        assert!((0..FLOWS / 2).all(|n| is_mapped(3000 + n, late)));
    }
}

/// Two threads on two CPUs open flows at the same time. Both threads open some flows.
#[test]
fn flows_of_two_cpus_get_different_ports() {
    const FLOWS: u16 = 400;
    let Some(kernel) = Kernel::at_xdp() else {
        return;
    };
    let config = NatConfig {
        ports: 2000..=2000 + FLOWS,
        timeout_ns: SECOND,
        ..config(&["198.51.100.7"])
    };
    let function = instance(&FunctionConfig::Nat(config), "out", Side::Forward);
    let chains = [(); 2].map(|()| kernel.load_chain(std::slice::from_ref(&function)));
    let (programs, hook) = (chains.each_ref().map(|chain| chain.program()), kernel.hook);
    for round in 1..20 {
        // All mappings of the previous round have expired, so flows reuse their ports.
        let now = round * 2 * SECOND;
        let ask = |program, backwards: bool| {
            let mut given = Vec::new();
            for n in 0..FLOWS {
                let n = if backwards { FLOWS - 1 - n } else { n };
                // Three of four flows belong to this thread alone.
                let host = if n % 4 == 0 {
                    1
                } else {
                    2 + u32::from(backwards)
                };
                let frame = udp_from(host + 3 * round as u32, 2000 + n % 200);
                if let Some(out) = send(program, hook, &frame, now, 1) {
                    given.push((source(&frame), source(&out)));
                }
            }
            given
        };
        let given = std::thread::scope(|scope| {
            let other = scope.spawn(|| ask(programs[1], true));
            let mut given = ask(programs[0], false);
            given.extend(other.join().unwrap());
            given
        });
        let (mut by_inner, mut by_outer) = (HashMap::new(), HashMap::new());
        for (inner, outer) in &given {
            let before = by_inner.insert(inner, outer);
            assert_eq!(before.unwrap_or(outer), outer, "one flow has two ports");
            let before = by_outer.insert(outer, inner);
            assert_eq!(before.unwrap_or(inner), inner, "two flows share a port");
        }
        assert!(by_outer.len() > 250, "only {}", by_outer.len());
    }
}
