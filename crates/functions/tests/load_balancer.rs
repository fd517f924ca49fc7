//! `load-balancer` against a plain model: a map from flow to backend, and checksums computed anew.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use myelin_functions::{Discard, FlowPage, Function, Packet, States, Verdict};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{FiveTuple, Headers, MacAddr, Meta, checksum, parse};
use myelin_spec::{
    BackendSpec, FunctionConfig, FunctionInstance, LoadBalancerConfig, Side, StateKey,
};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const TIMEOUT: u64 = 10 * SECOND;

fn backend(last: u8, v6: bool) -> BackendSpec {
    let address: IpAddr = if v6 {
        [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, last].into()
    } else {
        [10, 0, 1, last].into()
    };
    BackendSpec {
        address,
        weight: 1,
        mac: last
            .is_multiple_of(2)
            .then_some(MacAddr([2, 0, 0, 0, 2, last])),
    }
}

/// As many backends of each family.
fn config(backends: impl IntoIterator<Item = u8>) -> LoadBalancerConfig {
    let both = |last| [backend(last, false), backend(last, true)];
    LoadBalancerConfig {
        backends: backends.into_iter().flat_map(both).collect(),
        timeout_ns: TIMEOUT,
        flows: 1024,
    }
}

/// The two sides, and what further generations of them need.
struct Pair {
    states: States,
    forward: Box<dyn Function>,
    reply: Box<dyn Function>,
}

fn instance(config: LoadBalancerConfig, side: Side) -> FunctionInstance {
    FunctionInstance {
        config: FunctionConfig::LoadBalancer(config),
        state: Some(StateKey {
            chain: "web".into(),
            function: "spread".into(),
        }),
        side,
    }
}

impl Pair {
    fn new(config: &LoadBalancerConfig) -> Self {
        let mut states = States::default();
        let mut side = |side| states.instantiate(&instance(config.clone(), side)).unwrap();
        Self {
            forward: side(Side::Forward),
            reply: side(Side::Reply),
            states,
        }
    }

    /// A new generation around the same state.
    fn reconfigure(&mut self, config: &LoadBalancerConfig) {
        let mut side = |side| {
            self.states
                .instantiate(&instance(config.clone(), side))
                .unwrap()
        };
        (self.forward, self.reply) = (side(Side::Forward), side(Side::Reply));
    }

    fn send(&mut self, frame: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        run(&mut *self.forward, frame, now_ns)
    }

    fn answer(&mut self, frame: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        run(&mut *self.reply, frame, now_ns)
    }
}

fn run(function: &mut dyn Function, frame: &[u8], now_ns: u64) -> Option<Vec<u8>> {
    let mut buffer = frame.to_vec();
    let meta = Meta::new(now_ns, 1, 0, 0, &parse(frame).unwrap());
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    let verdict = function.process(&mut packet, &mut Discard);
    (verdict == Verdict::Forward).then_some(buffer)
}

fn tuple(frame: &[u8]) -> FiveTuple {
    parse(frame).unwrap().try_five_tuple(frame).unwrap()
}

/// `frame` with its source or destination replaced and its checksums computed anew.
fn readdressed(frame: &[u8], headers: &Headers, to: IpAddr, destination: bool) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let l3 = usize::from(headers.l3);
    match to {
        IpAddr::V4(to) => {
            let at = l3 + if destination { 16 } else { 12 };
            frame[at..at + 4].copy_from_slice(&to.octets());
            let end = l3 + usize::from(frame[l3] & 15) * 4;
            frame[l3 + 10..l3 + 12].fill(0);
            let whole = checksum::checksum(&frame[l3..end]);
            frame[l3 + 10..l3 + 12].copy_from_slice(&whole.to_be_bytes());
        }
        IpAddr::V6(to) => {
            let at = l3 + if destination { 24 } else { 8 };
            frame[at..at + 16].copy_from_slice(&to.octets());
        }
    }
    let field = checksum::l4_offset(headers).unwrap();
    if frame[field..field + 2] != [0, 0] || headers.protocol != 17 {
        let right = checksum::l4_checksum(&frame, headers).unwrap();
        frame[field..field + 2].copy_from_slice(&right.to_be_bytes());
    }
    frame
}

/// A frame of one of the clients' flows to a virtual address.
fn frame(client: u16, service: u8, tcp: bool, v6: bool) -> Vec<u8> {
    let (mut from, mut to) = if v6 {
        (build::client_v6(), build::server_v6())
    } else {
        (build::client_v4(), build::server_v4())
    };
    from.set_port(20_000 + client);
    to.set_port(80 + u16::from(service));
    of(tcp)(from, to, b"payload")
}

/// What builds a frame of the protocol.
fn of(tcp: bool) -> fn(SocketAddr, SocketAddr, &[u8]) -> Vec<u8> {
    if tcp { build::tcp } else { build::udp }
}

#[test]
fn every_fixture_is_sent_to_a_backend_or_dropped() {
    let mut pair = Pair::new(&config([1, 2, 3]));
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        if fixtures::WRONG_CHECKSUM.contains(&fixture.name) {
            continue;
        }
        // A right header checksum, so that it can be computed anew.
        let frame = match fixture.five_tuple() {
            Some(tuple) if headers.flags.has_ports() => {
                readdressed(&fixture.frame, &headers, tuple.destination, true)
            }
            _ => fixture.frame.clone(),
        };
        let out = pair.send(&frame, SECOND);
        // Addresses that something vouches for must stay.
        let is_authenticated =
            ["ipv6-authentication", "ipv6-all-extensions"].contains(&fixture.name);
        let goes_on = headers.flags.has_ports() && !is_authenticated;
        assert_eq!(out.is_some(), goes_on, "{}", fixture.name);
        let Some(out) = out else { continue };
        let to = tuple(&out).destination;
        let chosen = config([1, 2, 3]).backends;
        let chosen = chosen.iter().find(|backend| backend.address == to).unwrap();
        let mut expected = readdressed(&frame, &headers, to, true);
        if let Some(mac) = chosen.mac {
            expected[..6].copy_from_slice(&mac.0);
        }
        assert_eq!(out, expected, "{}", fixture.name);
    }
}

#[test]
fn answers_get_the_address_back_that_the_client_had_sent_to() {
    let mut pair = Pair::new(&config(1..=5));
    for (tcp, v6) in [(false, false), (true, false), (false, true), (true, true)] {
        for client in 0..50 {
            let sent = frame(client, 0, tcp, v6);
            let out = pair.send(&sent, SECOND).unwrap();
            let (asked, chosen) = (tuple(&sent), tuple(&out).reversed());
            let ends = (
                SocketAddr::new(chosen.source, chosen.source_port.unwrap()),
                SocketAddr::new(chosen.destination, chosen.destination_port.unwrap()),
            );
            let answer = of(tcp)(ends.0, ends.1, b"answer");
            let headers = parse(&answer).unwrap();
            let back = pair.answer(&answer, 2 * SECOND).unwrap();
            assert_eq!(
                back,
                readdressed(&answer, &headers, asked.destination, false)
            );
            assert_eq!(tuple(&back), asked.reversed());
            // From another port of the backend it is no answer.
            let mut other = ends.0;
            other.set_port(other.port() + 1);
            let stray = of(tcp)(other, ends.1, b"stray");
            assert_eq!(pair.answer(&stray, 2 * SECOND), None);
            // Nor is it one when the flow has paused too long.
            assert_eq!(pair.answer(&answer, 2 * SECOND + TIMEOUT + 1), None);
        }
    }
}

#[test]
fn without_a_backend_of_the_family_packets_are_dropped() {
    let none = config([]);
    let v6_only = LoadBalancerConfig {
        backends: vec![backend(1, true)],
        ..none.clone()
    };
    assert_eq!(Pair::new(&none).send(&frame(1, 0, false, false), 1), None);
    assert_eq!(
        Pair::new(&v6_only).send(&frame(1, 0, false, false), 1),
        None
    );
    assert!(
        Pair::new(&v6_only)
            .send(&frame(1, 0, false, true), 1)
            .is_some()
    );
}

#[test]
fn a_flow_whose_answers_could_not_be_told_apart_is_dropped() {
    let mut pair = Pair::new(&config([1]));
    let first = frame(1, 0, false, false);
    // The same client and port to another virtual address, and the same backend behind it.
    let headers = parse(&first).unwrap();
    let second = readdressed(&first, &headers, [198, 51, 100, 99].into(), true);
    assert!(pair.send(&first, SECOND).is_some());
    assert_eq!(pair.send(&second, 2 * SECOND), None);
    // When the first one is over, the second may begin.
    let later = 2 * SECOND + TIMEOUT;
    assert!(pair.send(&second, later).is_some());
    assert_eq!(pair.send(&first, later + 1), None);
}

#[test]
fn a_full_table_forgets_flows_counts_them_and_goes_on() {
    let config = config(1..=4);
    let mut pair = Pair::new(&config);
    let frame = |client| frame(client, 0, false, false);
    for client in 0..5000 {
        assert!(pair.send(&frame(client), SECOND).is_some());
    }
    assert!(pair.send(&frame(4999), SECOND + 5).is_some());
    let known = || FlowPage::read_all(|page| pair.forward.read_flows(page)).unwrap();
    let (flows, totals) = known();
    let room = config.flows as usize;
    assert!(room < 5000, "the table was never full");
    assert_eq!(
        (flows.len(), totals.begun, totals.evicted),
        (room, 5000, 5000 - room as u64)
    );
    let last = flows.iter().find(|flow| flow.packets == 2).unwrap();
    assert_eq!(last.bytes, 2 * frame(4999).len() as u64);
    assert_eq!((last.first_ns, last.last_ns), (SECOND, SECOND + 5));
    // The other side's answers are no flows of their own.
    let reply = FlowPage::read_all(|page| pair.reply.read_flows(page)).unwrap();
    assert_eq!(reply.1, totals);
}

/// What happens.
#[derive(Debug, Clone)]
enum Event {
    Packet { client: u16, tcp: bool, v6: bool },
    Pause(u64),
    Backends(HashSet<u8>),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..30_u16, any::<bool>(), any::<bool>())
            .prop_map(|(client, tcp, v6)| Event::Packet { client, tcp, v6 }),
        2 => prop::sample::select(vec![SECOND / 2, 3 * SECOND, TIMEOUT, TIMEOUT + 1])
            .prop_map(Event::Pause),
        1 => prop::collection::hash_set(1..9_u8, 0..8).prop_map(Event::Backends),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]

    /// A flow keeps its backend as long as that is there and the flow does not pause too long; else it goes where a new
    /// flow goes, which depends on the backends alone.
    #[test]
    fn flows_stay_with_their_backends(events in prop::collection::vec(event(), 0..150)) {
        let mut backends: HashSet<u8> = (1..5).collect();
        let mut pair = Pair::new(&config(backends.clone()));
        // Knows no other backends: where it sends a flow, a new flow goes.
        let mut fresh = Pair::new(&config(backends.clone()));
        let mut now = SECOND;
        let mut model: HashMap<Vec<u8>, (IpAddr, u64)> = HashMap::new();
        for event in events {
            match event {
                Event::Pause(ns) => now += ns,
                Event::Backends(others) => {
                    backends = others;
                    pair.reconfigure(&config(backends.clone()));
                    fresh = Pair::new(&config(backends.clone()));
                }
                Event::Packet { client, tcp, v6 } => {
                    let sent = frame(client, 0, tcp, v6);
                    let out = pair.send(&sent, now);
                    if backends.is_empty() {
                        prop_assert_eq!(out, None);
                        continue;
                    }
                    let to = tuple(&out.unwrap()).destination;
                    prop_assert!(backends.iter().any(|last| backend(*last, v6).address == to));
                    let kept = model.get(&sent).filter(|(address, last)| {
                        now - last <= TIMEOUT && backends.iter().any(|one| backend(*one, v6).address == *address)
                    });
                    let expected = if let Some((address, _)) = kept {
                        *address
                    } else {
                        let out = fresh.send(&sent, now).unwrap();
                        tuple(&out).destination
                    };
                    prop_assert_eq!(to, expected);
                    model.insert(sent, (to, now));
                }
            }
        }
    }
}
