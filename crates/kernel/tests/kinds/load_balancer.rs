//! Compares `load-balancer` with a plain model: a map from flow to backend, and recomputed
//! checksums.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use myelin_packet::fixtures::{self, build};
use myelin_packet::flow_marks::tcp;
use myelin_packet::{FiveTuple, Headers, MacAddr, parse};
use myelin_spec::{BackendSpec, FunctionConfig, LoadBalancerConfig, Side};
use proptest::prelude::*;

use crate::space::{
    Chain, Chains, Kernel, SECOND, Spaces, fix_l3, fix_l4, for_all, instance, on_fixtures, send,
};

const TIMEOUT: u64 = 10 * SECOND;

fn backend(last: u8, v6: bool) -> BackendSpec {
    let address: IpAddr = if v6 {
        [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, last].into()
    } else {
        [10, 0, 1, last].into()
    };
    BackendSpec {
        address,
        weight: 1 + u32::from(last % 3),
        mac: last
            .is_multiple_of(2)
            .then_some(MacAddr([2, 0, 0, 0, 2, last])),
    }
}

/// Returns a configuration with these backends of both families.
fn config(backends: impl IntoIterator<Item = u8>) -> LoadBalancerConfig {
    let in_both_families = |last| [backend(last, false), backend(last, true)];
    LoadBalancerConfig {
        backends: backends.into_iter().flat_map(in_both_families).collect(),
        timeout_ns: TIMEOUT,
        flows: 1024,
    }
}

/// Loads the forward and the reply chain with the state of that name.
fn load_pair(spaces: &Spaces, config: &LoadBalancerConfig, state: &str) -> [Chains; 2] {
    spaces.load_pair(&FunctionConfig::LoadBalancer(config.clone()), state)
}

fn tuple(frame: &[u8]) -> FiveTuple {
    parse(frame).unwrap().try_five_tuple(frame).unwrap()
}

/// Returns the frame with another source or destination and recomputed checksums.
fn with_address(frame: &[u8], headers: &Headers, to: IpAddr, destination: bool) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let l3 = usize::from(headers.l3);
    match to {
        IpAddr::V4(to) => {
            let at = l3 + if destination { 16 } else { 12 };
            frame[at..at + 4].copy_from_slice(&to.octets());
            fix_l3(&mut frame, headers);
        }
        IpAddr::V6(to) => {
            let at = l3 + if destination { 24 } else { 8 };
            frame[at..at + 16].copy_from_slice(&to.octets());
        }
    }
    fix_l4(&mut frame, headers).unwrap();
    frame
}

/// Returns the builder of frames of the protocol.
fn builder(tcp: bool) -> fn(SocketAddr, SocketAddr, &[u8]) -> Vec<u8> {
    if tcp { build::tcp } else { build::udp }
}

/// Returns a frame of a client's flow to a virtual address.
fn frame(client: u16, tcp: bool, v6: bool) -> Vec<u8> {
    let (mut from, to) = if v6 {
        (build::client_v6(), build::server_v6())
    } else {
        (build::client_v4(), build::server_v4())
    };
    from.set_port(20_000 + client);
    builder(tcp)(from, to, b"payload")
}

fn is_authenticated(name: &str) -> bool {
    ["ipv6-authentication", "ipv6-all-extensions"].contains(&name)
}

#[test]
fn every_fixture_reaches_a_backend_or_is_dropped() {
    on_fixtures(|spaces, fixtures| {
        for backends in [0, 1, 5] {
            let config = config(1..=backends);
            let [forward, reply] = load_pair(spaces, &config, "web");
            for fixture in fixtures {
                let (headers, name) = (fixture.expected.unwrap(), fixture.name);
                // The unchanged frame, whose checksums may be wrong.
                forward.run(&fixture.frame, SECOND);
                reply.run(&fixture.frame, SECOND);
                // `translated_fragments` tests fragments.
                if fixtures::WRONG_CHECKSUM.contains(&name) || headers.flags.is_fragment() {
                    continue;
                }
                let mut frame = fixture.frame.clone();
                fix_l3(&mut frame, &headers);
                let out = forward.run(&frame, SECOND);
                // Authenticated addresses must stay.
                let is_forwarded =
                    headers.flags.has_ports() && !is_authenticated(name) && backends > 0;
                assert_eq!(out.is_some(), is_forwarded, "{name}");
                let Some(out) = out else { continue };
                let to = tuple(&out).destination;
                let mut all = config.backends.iter();
                let chosen = all.find(|backend| backend.address == to).unwrap();
                let mut expected = with_address(&frame, &headers, to, true);
                if let Some(mac) = chosen.mac {
                    expected[..6].copy_from_slice(&mac.0);
                }
                assert_eq!(out, expected, "{name}");
            }
        }
    });
}

#[test]
fn answers_regain_the_virtual_address() {
    let [forward, reply] = load_pair(&Spaces::all(), &config(1..=5), "web");
    for (tcp, v6) in [(false, false), (true, false), (false, true), (true, true)] {
        for client in 0..50 {
            let sent = frame(client, tcp, v6);
            let out = forward.run(&sent, SECOND).unwrap();
            let (asked, chosen) = (tuple(&sent), tuple(&out).reversed());
            let from = SocketAddr::new(chosen.source, chosen.source_port.unwrap());
            let to = SocketAddr::new(chosen.destination, chosen.destination_port.unwrap());
            let answer = builder(tcp)(from, to, b"answer");
            let expected =
                with_address(&answer, &parse(&answer).unwrap(), asked.destination, false);
            reply.expect_at(2 * SECOND, &answer, Some(&expected), "an answer");
            assert_eq!(tuple(&expected), asked.reversed());
            // A packet from another port of the backend is no answer.
            let other = SocketAddr::new(from.ip(), from.port() + 1);
            let stray = builder(tcp)(other, to, b"stray");
            reply.expect_at(2 * SECOND, &stray, None, "from another port");
            // After the flow's timeout the same packet is no answer.
            reply.expect_at(2 * SECOND + TIMEOUT + 1, &answer, None, "too late");
        }
    }
}

#[test]
fn without_a_backend_of_the_family_packets_are_dropped() {
    let spaces = Spaces::all();
    let [none, _] = load_pair(&spaces, &config([]), "none");
    none.expect(&frame(1, false, false), None, "no backend");
    let v6_only = LoadBalancerConfig {
        backends: vec![backend(1, true)],
        ..config([])
    };
    let [v6_only, _] = load_pair(&spaces, &v6_only, "IPv6");
    v6_only.expect(&frame(1, false, false), None, "no backend for IPv4");
    assert!(v6_only.run(&frame(1, false, true), 1).is_some());
}

#[test]
fn a_flow_with_ambiguous_answers_is_dropped() {
    let [forward, _] = load_pair(&Spaces::all(), &config([1]), "web");
    let first = frame(1, false, false);
    // The same client and port send to another virtual address, which has the same backend.
    let headers = parse(&first).unwrap();
    let second = with_address(&first, &headers, [198, 51, 100, 99].into(), true);
    assert!(forward.run(&first, SECOND).is_some());
    assert_eq!(forward.run(&second, 2 * SECOND), None);
    // After the first flow has expired, the second flow passes.
    let later = 2 * SECOND + TIMEOUT;
    assert!(forward.run(&second, later).is_some());
    assert_eq!(forward.run(&first, later + 1), None);
}

#[test]
fn flows_are_listed_and_an_expired_flow_is_replaced() {
    let [forward, reply] = load_pair(&Spaces::all(), &config([1, 2]), "web");
    let late = 2 * SECOND + TIMEOUT;
    for (client, now) in [(1, SECOND), (1, 2 * SECOND), (2, SECOND), (2, late)] {
        assert!(forward.run(&frame(client, false, false), now).is_some());
    }
    let length = frame(1, false, false).len() as u64;
    let (flows, totals) = forward.flows().unwrap();
    let flows = flows.values();
    let mut seen: Vec<_> = flows
        .clone()
        .map(|flow| (flow.packets, flow.bytes, flow.first_ns, flow.last_ns))
        .collect();
    seen.sort_unstable();
    let expected = [(1, length, late, late), (2, 2 * length, SECOND, 2 * SECOND)];
    assert_eq!(seen, expected);
    for flow in flows {
        let client = flow.key.five_tuple();
        let sent = [1, 2].map(|client| frame(client, false, false));
        let sent = sent.iter().find(|sent| tuple(sent) == client).unwrap();
        let to = tuple(&forward.run(sent, late).unwrap()).destination;
        assert_eq!(flow.backend(), Some(to));
    }
    assert_eq!((totals.begun, totals.evicted), (3, 0));
    // The answers of the other side are not separate flows.
    assert_eq!(reply.flows().unwrap().1, totals);
}

#[test]
fn a_full_table_evicts_and_counts_flows() {
    const CLIENTS: u16 = 5000;
    let balancer = config(1..=4);
    let capacity = balancer.flows as usize;
    assert!(
        capacity < CLIENTS.into(),
        "the table must be too small for all clients"
    );
    let [user, _] = load_pair(&Spaces::user(), &balancer, "web");
    for client in 0..CLIENTS {
        assert!(user.run(&frame(client, false, false), SECOND).is_some());
    }
    assert!(
        user.run(&frame(CLIENTS - 1, false, false), SECOND + 5)
            .is_some()
    );
    let (flows, totals) = user.flows().unwrap();
    assert_eq!(flows.len(), capacity);
    assert_eq!(
        (totals.begun, totals.evicted),
        (5000, 5000 - capacity as u64)
    );
    let last = flows.values().find(|flow| flow.packets == 2).unwrap();
    assert_eq!(last.bytes, 2 * frame(4999, false, false).len() as u64);
    assert_eq!((last.first_ns, last.last_ns), (SECOND, SECOND + 5));
    // The kernel keeps some entries free for each CPU.
    let function = FunctionConfig::LoadBalancer(balancer);
    for kernel in Kernel::at_hooks() {
        let chain = kernel.load_chain(&[instance(&function, "web", Side::Forward)]);
        for client in 0..CLIENTS {
            let now = SECOND + u64::from(client);
            assert!(
                chain
                    .run_one(&frame(client, false, false), now, 0)
                    .is_forwarded
            );
        }
        let (flows, totals) = chain.flows().unwrap();
        assert!(flows.len() <= capacity, "{}", flows.len());
        assert_eq!(
            (totals.begun, totals.evicted),
            (5000, 5000 - flows.len() as u64)
        );
    }
}

/// A step of a random test.
#[derive(Debug, Clone)]
enum Event {
    Packet {
        client: u16,
        service: u8,
        tcp: bool,
        v6: bool,
        checksum: bool,
    },
    Pause(u64),
    Backends(HashSet<u8>),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let packet = (0..25_u16, 0..2_u8, any::<[bool; 3]>()).prop_map(
        |(client, service, [tcp, v6, checksum])| Event::Packet {
            client,
            service,
            tcp,
            v6,
            checksum,
        },
    );
    let pauses = vec![SECOND / 2, SECOND, 3 * SECOND, TIMEOUT, TIMEOUT + 1];
    let event = prop_oneof![
        12 => packet,
        2 => prop::sample::select(pauses).prop_map(Event::Pause),
        1 => prop::collection::hash_set(1..9_u8, 0..8).prop_map(Event::Backends),
    ];
    prop::collection::vec(event, 0..150)
}

#[test]
fn flows_keep_their_backends() {
    check_backends(8, 2);
}

#[test]
#[ignore = "thorough: checks 36 random cases"]
fn flows_keep_their_backends_in_many_cases() {
    check_backends(32, 4);
}

/// A flow keeps its backend while the backend is configured and the flow has not expired. Otherwise
/// the flow gets the backend of a new flow, which depends only on the configured backends.
fn check_backends(user_cases: u32, all_cases: u32) {
    let number = Cell::new(0);
    for_all(user_cases, all_cases, &events(), |spaces, events| {
        let mut backends: HashSet<u8> = (1..5).collect();
        let mut chains = load_pair(spaces, &config(backends.clone()), "web");
        // Loads a chain without flows, which shows the backend of a new flow.
        let load_empty = |backends: &HashSet<u8>| {
            number.set(number.get() + 1);
            let config = FunctionConfig::LoadBalancer(config(backends.clone()));
            spaces.load(&[instance(&config, &number.get().to_string(), Side::Forward)])
        };
        let mut new_flows = load_empty(&backends);
        let mut now = SECOND;
        let mut model: HashMap<Vec<u8>, (IpAddr, u64)> = HashMap::new();
        for event in events {
            match event {
                Event::Pause(ns) => now += ns,
                Event::Backends(others) => {
                    backends = others;
                    chains = load_pair(spaces, &config(backends.clone()), "web");
                    new_flows = load_empty(&backends);
                }
                Event::Packet {
                    client, tcp, v6, ..
                } => {
                    let sent = frame(client, tcp, v6);
                    let out = chains[0].run(&sent, now);
                    if backends.is_empty() {
                        assert_eq!(out, None);
                        continue;
                    }
                    let to = tuple(&out.unwrap()).destination;
                    let is_configured = |address| {
                        backends
                            .iter()
                            .any(|last| backend(*last, v6).address == address)
                    };
                    assert!(is_configured(to));
                    let kept = model
                        .get(&sent)
                        .filter(|(address, last)| now - last <= TIMEOUT && is_configured(*address));
                    let expected = if let Some((address, _)) = kept {
                        *address
                    } else {
                        tuple(&new_flows.run(&sent, now).unwrap()).destination
                    };
                    assert_eq!(to, expected);
                    let (flows, _) = chains[0].flows().unwrap();
                    assert_eq!(flows[&tuple(&sent).to_string()].backend(), Some(to));
                    model.insert(sent, (to, now));
                }
            }
        }
    });
}

#[test]
fn colliding_flows_and_their_answers_match_in_all_spaces() {
    compare_colliding_flows(3);
}

#[test]
#[ignore = "thorough: checks 12 random cases in all spaces"]
fn many_colliding_flows_and_their_answers_match_in_all_spaces() {
    compare_colliding_flows(12);
}

/// Flows to two virtual addresses that may share a backend, and their answers.
fn compare_colliding_flows(all_cases: u32) {
    for_all(1, all_cases, &events(), |spaces, events| {
        let mut chains = load_pair(spaces, &config(1..5), "web");
        let mut now = SECOND;
        for event in events {
            match event {
                Event::Pause(ns) => now += ns,
                Event::Backends(others) => chains = load_pair(spaces, &config(others), "web"),
                Event::Packet {
                    client,
                    service,
                    tcp,
                    v6,
                    checksum,
                } => exchange(&chains, (client, service), (tcp, v6, checksum), now),
            }
        }
    });
}

/// Sends a client's packet to one of two virtual addresses and, if it passes, the backend's answer.
fn exchange(
    [forward, reply]: &[Chains; 2],
    (client, service): (u16, u8),
    (tcp, v6, checksum): (bool, bool, bool),
    now: u64,
) {
    let (mut from, to) = if v6 {
        (build::client_v6(), build::server_v6())
    } else {
        (build::client_v4(), build::server_v4())
    };
    from.set_port(20_000 + client);
    let to = match to.ip() {
        IpAddr::V4(_) => SocketAddr::new([198, 51, 100, 2 + service].into(), 80),
        IpAddr::V6(address) => SocketAddr::new(address.into(), 80),
    };
    let build = |from, to| {
        let frame = builder(tcp)(from, to, b"payload");
        if checksum || tcp || v6 {
            frame
        } else {
            build::with_u16(frame, 40, 0)
        }
    };
    if let Some(out) = forward.run(&build(from, to), now) {
        let backend = SocketAddr::new(tuple(&out).destination, 80);
        let back = reply.run(&build(backend, from), now + 1);
        let back = back.expect("the answer of a live flow must pass");
        assert_eq!(tuple(&back).source, to.ip());
    }
}

/// One client port sends to two addresses of one backend at the same time. The answers would have
/// the same addresses and ports, so the function refuses one flow.
#[test]
fn one_of_two_ambiguous_flows_on_two_cpus_is_refused() {
    const ROUNDS: u16 = 4000;
    let Some(kernel) = Kernel::at_xdp() else {
        return;
    };
    let function = FunctionConfig::LoadBalancer(LoadBalancerConfig {
        flows: 65_536,
        ..config([1])
    });
    let chain = kernel.load_chain(&[instance(&function, "web", Side::Forward)]);
    let (program, hook) = (chain.program(), chain.hook);
    // Spin instead of a barrier, because a woken thread starts too late.
    let rounds_begun = [AtomicU16::new(0), AtomicU16::new(0)];
    let send_all = |side: usize, service: u8| -> Vec<bool> {
        let to = SocketAddr::new([198, 51, 100, service].into(), 80);
        let mut from = build::client_v4();
        (1..=ROUNDS)
            .map(|round| {
                from.set_port(round);
                let frame = build::udp(from, to, b"");
                rounds_begun[side].store(round, Ordering::Relaxed);
                while rounds_begun[1 - side].load(Ordering::Relaxed) < round {
                    std::hint::spin_loop();
                }
                send(program, hook, &frame, SECOND, 1).is_some()
            })
            .collect()
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| send_all(1, 3));
        (send_all(0, 2), second.join().unwrap())
    });
    for (round, (first, second)) in first.into_iter().zip(second).enumerate() {
        assert!(
            first != second,
            "round {round}: exactly one flow must pass, not {first} and {second}"
        );
    }
}

/// A TCP segment of a client with these flags. Its checksum is wrong, which no load balancer minds.
fn segment(client: u16, flags: u8) -> Vec<u8> {
    let segment = frame(client, true, false);
    let flags_at = usize::from(parse(&segment).unwrap().l4) + tcp::OFFSET;
    build::with_byte(segment, flags_at, flags)
}

#[test]
fn a_flood_of_connection_requests_evicts_no_established_flow() {
    let small = LoadBalancerConfig {
        flows: 64,
        ..config(1..=1)
    };
    let [forward, reply] = load_pair(&Spaces::user(), &small, "web");
    let opened = forward.run(&segment(0, tcp::SYN), SECOND).unwrap();
    forward.run(&segment(0, tcp::ACK), SECOND).unwrap();
    let answers = |number: u16| {
        let request = tuple(&opened).reversed();
        let from = SocketAddr::new(request.source, request.source_port.unwrap());
        let to = SocketAddr::new(request.destination, 20_000 + number);
        reply.run(&build::tcp(from, to, b"answer"), 2 * SECOND)
    };
    for client in 1..1000 {
        forward.run(&segment(client, tcp::SYN), SECOND).unwrap();
        // The backend accepts, the client stays silent.
        answers(client).unwrap();
    }
    assert!(answers(0).is_some(), "the established flow");
    assert!(answers(1).is_none(), "the first flow of the flood");
    // Established flows leave room for new ones.
    for client in 1..200 {
        forward.run(&segment(client, tcp::SYN), 3 * SECOND).unwrap();
        forward.run(&segment(client, tcp::ACK), 3 * SECOND).unwrap();
        answers(client).unwrap();
    }
}
