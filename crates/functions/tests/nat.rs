//! `nat` against a plain model: two standard maps and the rules word by word.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use myelin_functions::nat::{Endpoint, Lifetime, Mappings, PIECE, TRIES};
use myelin_functions::{Discard, Function, Packet, States, Verdict};
use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::{FunctionConfig, FunctionInstance, NatConfig, Side, StateKey};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn config() -> NatConfig {
    NatConfig {
        addresses: vec![
            "198.51.100.7".parse().unwrap(),
            "2001:db8::7".parse().unwrap(),
        ],
        ..NatConfig::default()
    }
}

/// Both sides of one translator.
fn pair(config: &NatConfig) -> [Box<dyn Function>; 2] {
    let mut states = States::default();
    [Side::Forward, Side::Reply].map(|side| {
        let instance = FunctionInstance {
            config: FunctionConfig::Nat(config.clone()),
            state: Some(StateKey {
                chain: "out".into(),
                function: "nat".into(),
            }),
            side,
        };
        states.instantiate(&instance).unwrap()
    })
}

/// What a function makes of a frame that came in at `now_ns`.
fn run(function: &mut dyn Function, frame: &[u8], now_ns: u64) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let (len, headers) = (frame.len(), parse(&frame).unwrap());
    let meta = Meta::new(now_ns, 1, 0, 0, &headers);
    let mut packet = Packet::new(&mut frame, 0, len, meta, 0).unwrap();
    let verdict = function.process(&mut packet, &mut Discard);
    (verdict == Verdict::Forward).then_some(frame)
}

fn ends(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let tuple = parse(frame).unwrap().five_tuple(frame);
    (
        (tuple.source, tuple.source_port.unwrap()).into(),
        (tuple.destination, tuple.destination_port.unwrap()).into(),
    )
}

fn external(address: IpAddr) -> IpAddr {
    let config = config();
    *config
        .addresses
        .iter()
        .find(|external| external.is_ipv4() == address.is_ipv4())
        .unwrap()
}

type Builder = fn(SocketAddr, SocketAddr, &[u8]) -> Vec<u8>;

#[test]
fn replies_find_the_way_back_and_checksums_are_right() {
    for (client, server) in [
        (build::client_v4(), build::server_v4()),
        (build::client_v6(), build::server_v6()),
    ] {
        for make in [build::udp as Builder, build::tcp as Builder] {
            let [mut out, mut back] = pair(&config());
            let sent = make(client, server, b"request");
            let seen = run(&mut *out, &sent, 1).unwrap();
            let outer = SocketAddr::new(external(client.ip()), client.port());
            assert_eq!(
                ends(&seen),
                (outer, server),
                "the port is free, so it stays"
            );
            assert_eq!(
                seen,
                make(outer, server, b"request"),
                "as if sent from there"
            );
            let reply = make(server, outer, b"reply");
            let given = run(&mut *back, &reply, 2).unwrap();
            assert_eq!(given, make(server, client, b"reply"));
        }
    }
}

#[test]
fn an_echo_goes_by_its_identifier() {
    for (client, server) in [
        (build::client_v4().ip(), build::server_v4().ip()),
        (build::client_v6().ip(), build::server_v6().ip()),
    ] {
        let [mut out, mut back] = pair(&NatConfig {
            first_port: 7000,
            last_port: 7000,
            ..config()
        });
        let sent = build::echo_request(client, server, b"ping");
        let seen = run(&mut *out, &sent, 1).unwrap();
        let headers = parse(&seen).unwrap();
        let l4 = usize::from(headers.l4);
        assert_eq!(headers.five_tuple(&seen).source, external(client));
        assert_eq!(seen[l4 + 4..l4 + 6], 7000_u16.to_be_bytes());
        assert!(icmp_is_valid(&seen), "wrong checksum");
        // The identifier that etherparse wrote is 7; the answer carries the external one.
        let mut reply = build::echo_request(server, external(client), b"ping");
        reply[l4..l4 + 6].copy_from_slice(&seen[l4..l4 + 6]);
        assert_eq!(run(&mut *back, &reply, 2), None, "a request from outside");
        reply[l4] = if client.is_ipv4() { 0 } else { 129 };
        fix_icmp(&mut reply);
        let given = run(&mut *back, &reply, 2).unwrap();
        assert_eq!(headers.five_tuple(&given).destination, client);
        assert_eq!(given[l4 + 4..l4 + 6], [0, 7]);
        assert!(icmp_is_valid(&given), "wrong checksum");
    }
}

/// The sum that the checksum makes 0xffff.
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

#[test]
fn what_it_cannot_translate_is_dropped() {
    let mut dropped = 0;
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        let [mut out, mut back] = pair(&config());
        let is_echo = [ICMP, ICMPV6].contains(&headers.protocol)
            && [8, 128].contains(&fixture.frame[usize::from(headers.l4)]);
        let translated = run(&mut *out, &fixture.frame, 1).is_some();
        // Addresses that something vouches for must stay.
        let is_authenticated =
            ["ipv6-authentication", "ipv6-all-extensions"].contains(&fixture.name);
        let expected = !is_authenticated
            && (headers.flags.has_ports() || (is_echo && !headers.flags.is_fragment()));
        assert_eq!(translated, expected, "{}", fixture.name);
        dropped += u32::from(!translated);
        assert_eq!(run(&mut *back, &fixture.frame, 1), None, "{}", fixture.name);
    }
    assert!(dropped > 5);
}

#[test]
fn a_family_without_an_address_is_dropped() {
    let only_v4 = NatConfig {
        addresses: vec!["198.51.100.7".parse().unwrap()],
        ..config()
    };
    let [mut out, _] = pair(&only_v4);
    assert!(run(&mut *out, &build::udp_v4(8), 1).is_some());
    assert_eq!(run(&mut *out, &build::udp_v6(8), 1), None);
}

#[test]
fn a_udp_checksum_of_zero_stays() {
    let fixture = fixtures::named("udp-v4-checksum-zero");
    let [mut out, _] = pair(&config());
    let seen = run(&mut *out, &fixture.frame, 1).unwrap();
    let field = checksum::l4_offset(&fixture.expected.unwrap()).unwrap();
    assert_eq!(seen[field..field + 2], [0, 0]);
}

#[test]
fn tcp_lives_by_its_flags() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let outer = SocketAddr::new(external(client.ip()), client.port());
    let segment = |flags: u8| {
        let mut frame = build::tcp(client, server, b"");
        let at = usize::from(parse(&frame).unwrap().l4) + 13;
        frame[at] = flags;
        frame
    };
    let reply = build::tcp(server, outer, b"");
    let (ack, syn, fin, rst) = (0x10, 0x02, 0x11, 0x14);
    for (all_flags, seconds) in [
        (&[ack][..], 7440),
        (&[syn], 240),
        (&[fin], 240),
        (&[rst], 240),
        (&[syn, ack], 7440),
        // What follows the end of a connection does not open it again.
        (&[syn, ack, fin, ack], 240),
        (&[rst, ack], 240),
        (&[fin, fin | syn, ack], 240),
        (&[fin, ack, syn], 240),
        (&[fin, ack, syn, ack], 7440),
    ] {
        let [mut out, mut back] = pair(&config());
        for &flags in all_flags {
            run(&mut *out, &segment(flags), 0).unwrap();
        }
        let end = seconds * SECOND;
        assert!(run(&mut *back, &reply, end - 1).is_some(), "{all_flags:x?}");
        assert_eq!(run(&mut *back, &reply, end), None, "{all_flags:x?}");
    }
}

#[test]
fn a_new_generation_goes_on_with_the_mappings() {
    let mut states = States::default();
    let mut instance = |timeout_ns| {
        let config = NatConfig {
            timeout_ns,
            first_port: 50_000,
            ..config()
        };
        states
            .instantiate(&FunctionInstance {
                config: FunctionConfig::Nat(config),
                state: Some(StateKey {
                    chain: "out".into(),
                    function: "nat".into(),
                }),
                side: Side::Forward,
            })
            .unwrap()
    };
    let mut old = instance(SECOND);
    let seen = run(&mut *old, &build::udp_v4(8), 1);
    let mut new = instance(2 * SECOND);
    drop(old);
    assert_eq!(run(&mut *new, &build::udp_v4(8), 2), seen);
}

/// Address, protocol, port.
type Inner = (IpAddr, u8, u16);

/// The rules of `mappings`, as plainly as can be.
struct Model {
    config: NatConfig,
    /// Inside endpoint to external endpoint, time, and whether it is closing.
    mappings: HashMap<Inner, (IpAddr, u16, u64, bool)>,
    next_sweep_ns: u64,
}

impl Model {
    fn holder(&self, protocol: u8, address: IpAddr, port: u16) -> Option<Inner> {
        self.mappings
            .iter()
            .find(|(inner, outer)| inner.1 == protocol && (outer.0, outer.1) == (address, port))
            .map(|(inner, _)| *inner)
    }

    /// Follows what the table chose, and checks that it might.
    fn outward(&mut self, inner: Inner, now: u64, life: &Lifetime, chosen: Option<(IpAddr, u16)>) {
        let lasts = |closing| if closing { life.closing_ns } else { life.ns };
        if let Some(mapping) = self.mappings.get_mut(&inner) {
            if let Some(closing) = life.closing {
                mapping.3 = closing;
            }
            mapping.2 = now + lasts(mapping.3);
            assert_eq!(
                chosen,
                Some((mapping.0, mapping.1)),
                "the same for all destinations"
            );
            return;
        }
        let pool: Vec<IpAddr> = self
            .config
            .addresses
            .iter()
            .copied()
            .filter(|address| address.is_ipv4() == inner.0.is_ipv4())
            .collect();
        let range = self.config.first_port..=self.config.last_port;
        let is_free = |model: &Self, address, port| {
            model
                .holder(inner.1, address, port)
                .is_none_or(|holder| model.mappings[&holder].2 <= now)
        };
        let Some((address, port)) = chosen else {
            let full = self.mappings.len() >= self.config.flows as usize;
            let no_port = pool
                .iter()
                .any(|address| range.clone().all(|port| !is_free(self, *address, port)));
            assert!(
                full || no_port || pool.is_empty(),
                "refused though there is room"
            );
            return;
        };
        assert!(pool.contains(&address) && range.contains(&port));
        assert!(is_free(self, address, port), "somebody has it");
        if range.contains(&inner.2) && is_free(self, address, inner.2) {
            assert_eq!(port, inner.2, "not preserved");
        }
        let paired = self
            .mappings
            .iter()
            .find(|(other, _)| other.0 == inner.0)
            .map(|(_, outer)| outer.0);
        assert!(paired.is_none_or(|paired| paired == address), "not paired");
        match self.holder(inner.1, address, port) {
            Some(holder) => drop(self.mappings.remove(&holder)),
            None if self.mappings.len() >= self.config.flows as usize => {
                assert!(now >= self.next_sweep_ns, "swept too often");
                self.sweep(now);
            }
            None => {}
        }
        let closing = life.closing == Some(true);
        let mapping = (address, port, now + lasts(closing), closing);
        self.mappings.insert(inner, mapping);
        assert!(
            self.mappings.len() <= self.config.flows as usize,
            "too many"
        );
    }

    fn sweep(&mut self, now: u64) {
        self.next_sweep_ns = now + SECOND;
        self.mappings.retain(|_, mapping| mapping.2 > now);
    }

    fn inward(&self, protocol: u8, address: IpAddr, port: u16, now: u64) -> Option<Inner> {
        self.holder(protocol, address, port)
            .filter(|inner| now < self.mappings[inner].2)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Out {
        host: u8,
        v6: bool,
        udp: bool,
        port: u16,
        life: Lifetime,
    },
    In {
        which: u8,
        udp: bool,
        port: u16,
    },
    Wait {
        ns: u64,
    },
}

fn lifetime() -> impl Strategy<Value = Lifetime> {
    let closing = prop::option::weighted(0.3, any::<bool>());
    (1..3 * SECOND, 1..SECOND, closing).prop_map(|(ns, closing_ns, closing)| Lifetime {
        ns,
        closing_ns,
        closing,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..6, any::<bool>(), any::<bool>(), 95_u16..115, lifetime())
            .prop_map(|(host, v6, udp, port, life)| Step::Out { host, v6, udp, port, life }),
        3 => (0_u8..4, any::<bool>(), 99_u16..112).prop_map(|(which, udp, port)| Step::In { which, udp, port }),
        2 => (1..SECOND).prop_map(|ns| Step::Wait { ns }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_mappings_keep_the_rules(
        steps in prop::collection::vec(step(), 1..250),
        flows in 1_u32..40,
        ports in 1_u16..11,
        both: bool,
    ) {
        let mut addresses = vec!["198.51.100.7".parse::<IpAddr>().unwrap(), "198.51.100.8".parse().unwrap(),
            "2001:db8::7".parse().unwrap()];
        if !both {
            addresses.truncate(2);
        }
        let config = NatConfig { addresses, first_port: 100, last_port: 99 + ports, flows, ..NatConfig::default() };
        let mut table = Mappings::new(&config);
        let mut model = Model { config: config.clone(), mappings: HashMap::new(), next_sweep_ns: 0 };
        let mut now = 1;
        for step in steps {
            match step {
                Step::Wait { ns } => now += ns,
                Step::Out { host, v6, udp, port, life } => {
                    let address: IpAddr = if v6 {
                        [0xfd00, 0, 0, 0, 0, 0, 0, host.into()].into()
                    } else {
                        [10, 0, 0, host].into()
                    };
                    let protocol = if udp { UDP } else { TCP };
                    let chosen = table.outward(&Endpoint::new(address, protocol, port), now, &life);
                    let chosen = chosen.map(|outer| {
                        assert_eq!((outer.protocol, outer.is_ipv6), (protocol, v6));
                        (address_of(&outer), outer.port)
                    });
                    model.outward((address, protocol, port), now, &life, chosen);
                }
                Step::In { which, udp, port } => {
                    let address = config.addresses[usize::from(which) % config.addresses.len()];
                    let protocol = if udp { UDP } else { TCP };
                    let inner = table.inward(&Endpoint::new(address, protocol, port), now);
                    let inner = inner.map(|inner| (address_of(&inner), inner.protocol, inner.port));
                    prop_assert_eq!(inner, model.inward(protocol, address, port, now));
                }
            }
            prop_assert_eq!(table.len(), model.mappings.len());
        }
    }
}

fn address_of(endpoint: &Endpoint) -> IpAddr {
    if endpoint.is_ipv6 {
        endpoint.address.into()
    } else {
        let [a, b, c, d, ..] = endpoint.address;
        [a, b, c, d].into()
    }
}

/// Every port of a range that is searched whole can be had.
#[test]
fn a_small_range_is_used_up_to_the_last_port() {
    let count = TRIES as u16;
    let config = NatConfig {
        first_port: 5000,
        last_port: 4999 + count,
        ..config()
    };
    let mut table = Mappings::new(&config);
    let life = Lifetime::always(SECOND);
    let mut give = |n: u16| table.outward(&Endpoint::new([10, 0, 0, 1].into(), UDP, n), 0, &life);
    let mut ports: Vec<u16> = (1..=count).map(|n| give(n).unwrap().port).collect();
    ports.sort_unstable();
    assert!(ports.into_iter().eq(5000..5000 + count));
    assert_eq!(give(count + 1), None);
}

#[test]
fn a_full_table_is_swept_of_what_has_expired_once_a_second() {
    let mut table = Mappings::new(&NatConfig {
        flows: 4,
        ..config()
    });
    let mut ask = |port, now| {
        let inner = Endpoint::new([10, 0, 0, 1].into(), UDP, port);
        let outer = table.outward(&inner, now, &Lifetime::always(SECOND))?;
        Some(outer.port)
    };
    for port in 2000..2004 {
        assert_eq!(ask(port, 0), Some(port));
    }
    let half = SECOND / 2;
    assert_eq!(ask(2004, half), None, "none has expired");
    assert_eq!(ask(2004, SECOND), None, "swept twice within a second");
    assert_eq!(ask(2004, SECOND + half), Some(2004));
    assert_eq!(table.len(), 1);
}

#[test]
fn a_large_table_is_swept_piece_by_piece() {
    let flows = 3 * PIECE as u32;
    let mut table = Mappings::new(&NatConfig { flows, ..config() });
    // Each keeps its port.
    let inner = |n: u32| Endpoint::new([10, 0, 0, 1].into(), UDP, 2000 + n as u16);
    let first = Lifetime::always(10 * SECOND);
    let rest = Lifetime::always(SECOND);
    for n in 0..flows {
        let life = if n < PIECE as u32 { &first } else { &rest };
        assert!(table.outward(&inner(n), 0, life).is_some());
    }
    // The first piece lives, the second has expired and goes as a whole, the third stays until its place is needed.
    let later = 2 * SECOND;
    assert_eq!(table.outward(&inner(flows), later, &rest), None);
    assert!(table.outward(&inner(flows), later, &rest).is_some());
    assert_eq!(table.len(), 2 * PIECE + 1);
    for n in 1..PIECE as u32 {
        assert!(table.outward(&inner(flows + n), later, &rest).is_some());
    }
    assert_eq!(table.len(), 3 * PIECE);
    assert!(
        table
            .outward(&inner(flows + PIECE as u32), later, &rest)
            .is_some()
    );
    assert_eq!(table.len(), 2 * PIECE + 1);
}
