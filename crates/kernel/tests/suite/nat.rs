//! `nat` in the kernel translates as its twin does, with the same ports, and shares its mappings as it should.

use std::net::{IpAddr, SocketAddr};

use myelin_functions::{Discard, Function, Packet, States, Verdict};
use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{ChainConfig, Hook, LoadedChain, Plane};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Meta, parse};
use myelin_spec::{FunctionConfig, FunctionInstance, NatConfig, Side, StateKey};
use proptest::prelude::*;

use crate::stand::{for_all, is_root, kernel_chain, plane, runs};

const SECOND: u64 = 1_000_000_000;

fn config() -> NatConfig {
    NatConfig {
        addresses: ["198.51.100.7", "198.51.100.8", "2001:db8::7"]
            .map(|address| address.parse().unwrap())
            .to_vec(),
        ..NatConfig::default()
    }
}

fn instance(config: &NatConfig, chain: &str, side: Side) -> FunctionInstance {
    FunctionInstance {
        config: FunctionConfig::Nat(config.clone()),
        state: Some(StateKey {
            chain: chain.into(),
            function: "nat".into(),
        }),
        side,
    }
}

fn load(plane: &Plane, hook: Hook, spi: u32, instance: FunctionInstance) -> LoadedChain {
    let mut config: ChainConfig = kernel_chain(hook, spi, &[FunctionConfig::Forward]);
    config.segments[0].functions = vec![instance];
    plane.load_chain(&config).unwrap()
}

/// Both sides of a translator in both spaces.
struct Twins {
    hook: Hook,
    kernel: [LoadedChain; 2],
    user: [Box<dyn Function>; 2],
}

const SIDES: [Side; 2] = [Side::Forward, Side::Reply];

impl Twins {
    fn new(hook: Hook, config: &NatConfig) -> Self {
        let (plane, mut states) = (plane(), States::default());
        let mut spi = 0;
        Self {
            hook,
            kernel: SIDES.map(|side| {
                spi += 1;
                load(&plane, hook, spi, instance(config, "out", side))
            }),
            user: SIDES.map(|side| states.instantiate(&instance(config, "out", side)).unwrap()),
        }
    }

    /// What both make of a frame, which must be the same.
    fn run(&mut self, side: Side, frame: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        let meta = Meta::new(now_ns, 1, 0, 0, &parse(frame).unwrap());
        let outcome = in_kernel(&self.kernel[side as usize], self.hook, frame, meta);
        let mut own = frame.to_vec();
        let mut packet = Packet::new(&mut own, 0, frame.len(), meta, 0).unwrap();
        let verdict = self.user[side as usize].process(&mut packet, &mut Discard);
        let expected = (verdict == Verdict::Forward).then_some(own);
        assert_eq!(outcome, expected, "{}: {side} at {now_ns}", self.hook);
        outcome
    }
}

fn in_kernel(chain: &LoadedChain, hook: Hook, frame: &[u8], meta: Meta) -> Option<Vec<u8>> {
    let test = TestRun {
        meta: Some(meta),
        ..TestRun::new(frame)
    };
    let outcome = run(chain.program(0).unwrap(), hook, &test).unwrap();
    if outcome.verdict == hook.drop() {
        return None;
    }
    assert_eq!(outcome.verdict, hook.redirect());
    Some(outcome.frame)
}

#[test]
fn every_fixture_is_translated_as_in_user_space() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let mut twins = Twins::new(hook, &config());
        let mut translated = 0;
        for fixture in fixtures::all() {
            if fixture.expected.is_ok() && runs(hook, &fixture.frame) {
                let out = twins.run(Side::Forward, &fixture.frame, SECOND);
                translated += u32::from(out.is_some());
                twins.run(Side::Reply, &fixture.frame, SECOND);
            }
        }
        assert!(translated > 20, "only {translated}");
        let authenticated = fixtures::named("ipv6-authentication");
        assert_eq!(twins.run(Side::Forward, &authenticated.frame, SECOND), None);
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
    (
        prop::bool::weighted(0.7),
        (0_u8..3, any::<bool>()),
        0_u8..5,
        95_u16..115,
        prop::option::weighted(0.2, prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()]),
        any::<u8>(),
        prop_oneof![
            6 => Just(0),
            4 => 1..SECOND,
            2 => SECOND..4 * SECOND,
            1 => 100 * SECOND..300 * SECOND,
        ],
    )
        .prop_map(
            |(out, (protocol, v6), host, port, checksum, flags, wait_ns)| Step {
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

/// The packet of a step; of what comes back the port is one that may have been given out.
fn frame(step: &Step) -> Vec<u8> {
    let host: IpAddr = if step.v6 {
        [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(step.host) + 1].into()
    } else {
        [10, 0, 0, step.host + 1].into()
    };
    let config = config();
    let outer = match (step.v6, step.host % 2) {
        (false, which) => config.addresses[usize::from(which)],
        (true, _) => config.addresses[2],
    };
    let server = if step.v6 {
        build::server_v6()
    } else {
        build::server_v4()
    };
    let (from, to): (SocketAddr, SocketAddr) = if step.out {
        ((host, step.port).into(), server)
    } else {
        (server, (outer, step.port).into())
    };
    let mut frame = match step.protocol {
        0 => build::udp(from, to, &[step.flags; 9]),
        1 => build::tcp(from, to, &[step.flags; 9]),
        _ => build::echo_request(from.ip(), to.ip(), &[step.flags; 9]),
    };
    let l4 = usize::from(parse(&frame).unwrap().l4);
    let checksum_at = l4 + [6, 16, 2][usize::from(step.protocol)];
    match step.protocol {
        1 => frame[l4 + 13] = step.flags,
        2 => {
            frame[l4 + 4..l4 + 6].copy_from_slice(&step.port.to_be_bytes());
            if !step.out {
                frame[l4] = if step.v6 { 129 } else { 0 };
            }
        }
        _ => {}
    }
    if let Some(checksum) = step.checksum {
        frame[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

/// Few hosts, few ports and little room, so that flows meet, expire and find no place.
#[test]
fn sequences_of_packets_are_translated_as_in_user_space() {
    if !is_root() {
        return;
    }
    let case = (
        prop::collection::vec(step(), 1..200),
        1_u32..24,
        1_u16..12,
        1..3 * SECOND,
        prop_oneof![Just(2 * SECOND), Just(400 * SECOND)],
    );
    for_all(60, &case, |(steps, flows, ports, timeout_ns, tcp_ns)| {
        let config = NatConfig {
            first_port: 100,
            last_port: 99 + ports,
            timeout_ns,
            tcp_timeout_ns: tcp_ns,
            flows,
            ..config()
        };
        for hook in Hook::ALL {
            let mut twins = Twins::new(hook, &config);
            let mut now = SECOND;
            for step in &steps {
                now += step.wait_ns;
                let side = if step.out { Side::Forward } else { Side::Reply };
                twins.run(side, &frame(step), now);
            }
        }
    });
}

/// The last acknowledgement of a connection does not give its mapping the time of a living one.
#[test]
fn a_closing_connection_lives_as_in_user_space() {
    if !is_root() {
        return;
    }
    let (client, server) = (build::client_v4(), build::server_v4());
    let segment = |flags: u8| {
        let mut frame = build::tcp(client, server, b"");
        let at = usize::from(parse(&frame).unwrap().l4) + 13;
        frame[at] = flags;
        frame
    };
    let (ack, syn, fin, rst) = (0x10, 0x02, 0x11, 0x14);
    for hook in Hook::ALL {
        for (all_flags, seconds) in [
            (&[ack][..], 7440),
            (&[syn, ack], 7440),
            (&[syn, ack, fin, ack], 240),
            (&[rst, ack], 240),
            (&[fin, fin | syn, ack], 240),
            (&[fin, ack, syn], 240),
            (&[fin, ack, syn, ack], 7440),
        ] {
            let mut twins = Twins::new(hook, &config());
            let mut outer = None;
            for &flags in all_flags {
                let sent = twins.run(Side::Forward, &segment(flags), SECOND);
                outer = Some(source(&sent.unwrap()));
            }
            let reply = build::tcp(server, outer.unwrap(), b"");
            let end = (1 + seconds) * SECOND;
            let mut answer = |now| twins.run(Side::Reply, &reply, now);
            assert!(answer(end - 1).is_some(), "{hook}: {all_flags:x?}");
            assert_eq!(answer(end), None, "{hook}: {all_flags:x?}");
        }
    }
}

#[test]
fn a_mapping_without_end_does_not_end_at_once() {
    if !is_root() {
        return;
    }
    let config = NatConfig {
        timeout_ns: u64::MAX,
        tcp_timeout_ns: u64::MAX,
        ..config()
    };
    let (client, server) = (build::client_v4(), build::server_v4());
    for hook in Hook::ALL {
        let mut twins = Twins::new(hook, &config);
        for build in [build::udp, build::tcp] {
            let sent = twins.run(Side::Forward, &build(client, server, b"hello"), SECOND);
            let reply = build(server, source(&sent.unwrap()), b"answer");
            assert!(twins.run(Side::Reply, &reply, 1_000_000 * SECOND).is_some());
        }
    }
}

fn udp_from(host: u32, port: u16) -> Vec<u8> {
    let [_, a, b, c] = host.to_be_bytes();
    let client = SocketAddr::from(([10, a, b, c], port));
    build::udp(client, build::server_v4(), b"hello")
}

fn meta_of(frame: &[u8], now_ns: u64) -> Meta {
    Meta::new(now_ns, 1, 0, 0, &parse(frame).unwrap())
}

fn source(frame: &[u8]) -> SocketAddr {
    let tuple = parse(frame).unwrap().five_tuple(frame);
    (tuple.source, tuple.source_port.unwrap()).into()
}

/// By name of the state, across generations, sides and hooks; and gone with its last user.
#[test]
fn mappings_stay_while_somebody_uses_them() {
    if !is_root() {
        return;
    }
    let plane = plane();
    // Nobody's own port is in the range: the first of two flows with one hash decides what the second gets.
    let config = NatConfig {
        first_port: 50_000,
        last_port: 50_001,
        ..config()
    };
    let send = |chain: &LoadedChain, hook, frame: &[u8], now| {
        in_kernel(chain, hook, frame, meta_of(frame, now))
    };
    let frames = [udp_from(1, 700), udp_from(1, 701), udp_from(1, 702)];
    let old = load(
        &plane,
        Hook::Tcx,
        1,
        instance(&config, "out", Side::Forward),
    );
    let seen = [0, 1].map(|i| send(&old, Hook::Tcx, &frames[i], 1).unwrap());
    assert_ne!(source(&seen[0]), source(&seen[1]));
    // How long mappings live is no reason for new ones.
    let longer = NatConfig {
        timeout_ns: config.timeout_ns * 2,
        ..config.clone()
    };
    let new = load(
        &plane,
        Hook::Xdp,
        2,
        instance(&longer, "out", Side::Forward),
    );
    drop(old);
    for (frame, seen) in frames.iter().zip(&seen) {
        assert_eq!(send(&new, Hook::Xdp, frame, 2).as_ref(), Some(seen));
    }
    assert_eq!(
        send(&new, Hook::Xdp, &frames[2], 2),
        None,
        "no port is left"
    );
    let back = load(&plane, Hook::Xdp, 3, instance(&longer, "out", Side::Reply));
    let other = load(
        &plane,
        Hook::Xdp,
        4,
        instance(&longer, "other", Side::Reply),
    );
    drop(new);
    let reply = build::udp(build::server_v4(), source(&seen[1]), b"answer");
    let answer = send(&back, Hook::Xdp, &reply, 3).unwrap();
    assert_eq!(
        answer,
        build::udp(build::server_v4(), source(&frames[1]), b"answer")
    );
    assert_eq!(
        send(&other, Hook::Xdp, &reply, 3),
        None,
        "another's mapping"
    );
    drop(back);
    let fresh = load(&plane, Hook::Xdp, 5, instance(&longer, "out", Side::Reply));
    assert_eq!(send(&fresh, Hook::Xdp, &reply, 4), None, "nobody kept it");
    let wider = NatConfig {
        last_port: 50_002,
        ..longer
    };
    let reshaped = load(&plane, Hook::Xdp, 6, instance(&wider, "out", Side::Forward));
    assert!(send(&reshaped, Hook::Xdp, &frames[2], 5).is_some());
}

/// Two threads on two CPUs ask for ports at the same time, for the same flows and for different ones.
#[test]
fn no_port_is_given_twice_by_several_cpus() {
    const FLOWS: u16 = 400;
    if !is_root() {
        return;
    }
    let (plane, config) = (
        plane(),
        NatConfig {
            addresses: vec!["198.51.100.7".parse().unwrap()],
            first_port: 2000,
            last_port: 2000 + FLOWS,
            timeout_ns: SECOND,
            ..config()
        },
    );
    let chains = [1, 2].map(|spi| {
        load(
            &plane,
            Hook::Xdp,
            spi,
            instance(&config, "out", Side::Forward),
        )
    });
    for round in 1..20 {
        // All mappings of the round before have expired, so that ports change hands.
        let now = round * 2 * SECOND;
        let ask = |chain: &LoadedChain, backwards: bool| {
            let mut given = Vec::new();
            for n in 0..FLOWS {
                let n = if backwards { FLOWS - 1 - n } else { n };
                // Three in four flows are this thread's own.
                let host = if n % 4 == 0 {
                    1
                } else {
                    2 + u32::from(backwards)
                };
                let frame = udp_from(host + 3 * round as u32, 2000 + n % 200);
                if let Some(out) = in_kernel(chain, Hook::Xdp, &frame, meta_of(&frame, now)) {
                    given.push((source(&frame), source(&out)));
                }
            }
            given
        };
        let given = std::thread::scope(|scope| {
            let other = scope.spawn(|| ask(&chains[1], true));
            let mut given = ask(&chains[0], false);
            given.extend(other.join().unwrap());
            given
        });
        let mut by_inner = std::collections::HashMap::new();
        let mut by_outer = std::collections::HashMap::new();
        for (inner, outer) in &given {
            assert_eq!(
                by_inner.insert(inner, outer).unwrap_or(outer),
                outer,
                "two ports"
            );
            assert_eq!(
                by_outer.insert(outer, inner).unwrap_or(inner),
                inner,
                "shared"
            );
        }
        assert!(by_outer.len() > 250, "only {}", by_outer.len());
    }
}

/// No packet looks at all of a large table: the sweep goes on with each new flow, and those that come before it has made room are dropped.
#[test]
fn a_full_table_is_swept_piece_by_piece() {
    const FLOWS: u16 = 5000;
    /// Packets that a whole sweep takes: 1024 external endpoints each, for three protocols.
    const WHOLE: usize = 3 * 60_000 / 1024 + 1;
    if !is_root() {
        return;
    }
    let config = NatConfig {
        addresses: vec!["198.51.100.7".parse().unwrap()],
        first_port: 1000,
        last_port: 60_999,
        timeout_ns: SECOND,
        flows: FLOWS.into(),
        ..config()
    };
    for hook in Hook::ALL {
        let plane = plane();
        let chain = load(&plane, hook, 1, instance(&config, "out", Side::Forward));
        let send = |port: u16, now: u64| {
            let frame = udp_from(1, port);
            in_kernel(&chain, hook, &frame, meta_of(&frame, now)).is_some()
        };
        // Each has its own port, and the upper half of them.
        assert!((0..FLOWS).all(|n| send(50_000 + n, SECOND)));
        assert!(
            !send(2000, SECOND),
            "there is no room, and nothing has expired"
        );
        // The next sweep may not begin before a second is over, the one under way may go on.
        let tries = (0..WHOLE).filter(|_| !send(2000, SECOND + 1)).count();
        assert_eq!(tries, WHOLE);
        let late = 10 * SECOND;
        let dropped = (0..2 * WHOLE).take_while(|_| !send(2000, late)).count();
        assert!((WHOLE / 2..WHOLE).contains(&dropped), "{dropped} dropped");
        // All have expired, so all find room as the sweep goes on.
        let found = (0..FLOWS / 2).filter(|n| send(3000 + n, late)).count();
        assert_eq!(found, usize::from(FLOWS / 2));
    }
}
