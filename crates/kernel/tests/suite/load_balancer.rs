//! `load-balancer` in the kernel gives the bytes of its twin in user space.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU16, Ordering};

use myelin_functions::{Discard, Function, Packet, States, Verdict};
use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{Flows, Hook, LoadedChain, Plane};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{MacAddr, Meta, parse};
use myelin_spec::{
    BackendSpec, FunctionConfig, FunctionInstance, LoadBalancerConfig, Side, StateKey,
};
use proptest::prelude::*;

use crate::stand::{for_all, is_root, kernel_chain, plane, runs};

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
        weight: 1 + u32::from(last % 3),
        mac: last
            .is_multiple_of(2)
            .then_some(MacAddr([2, 0, 0, 0, 2, last])),
    }
}

fn config(backends: &[u8]) -> LoadBalancerConfig {
    let both = |last: &u8| [backend(*last, false), backend(*last, true)];
    LoadBalancerConfig {
        backends: backends.iter().flat_map(both).collect(),
        timeout_ns: TIMEOUT,
        flows: 1024,
    }
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

/// Both sides in both spaces.
struct Pairs {
    hook: Hook,
    plane: Plane,
    kernel: [LoadedChain; 2],
    states: States,
    user: [Box<dyn Function>; 2],
}

const SIDES: [Side; 2] = [Side::Forward, Side::Reply];

impl Pairs {
    fn new(hook: Hook, config: &LoadBalancerConfig) -> Self {
        let plane = plane();
        let mut states = States::default();
        Self {
            hook,
            kernel: SIDES.map(|side| load(&plane, hook, config, side)),
            user: SIDES.map(|side| states.instantiate(&instance(config.clone(), side)).unwrap()),
            plane,
            states,
        }
    }

    /// New generations around the same state.
    fn reconfigure(&mut self, config: &LoadBalancerConfig) {
        self.kernel = SIDES.map(|side| load(&self.plane, self.hook, config, side));
        self.user = SIDES.map(|side| {
            self.states
                .instantiate(&instance(config.clone(), side))
                .unwrap()
        });
    }

    /// What both make of a packet, which is the same.
    fn check(&mut self, side: usize, frame: &[u8], now_ns: u64, name: &str) -> Option<Vec<u8>> {
        let meta = Meta::new(now_ns, 1, 0, 0, &parse(frame).unwrap());
        let user = user(&mut *self.user[side], frame, meta);
        let kernel = kernel(
            self.kernel[side].program(0).unwrap(),
            self.hook,
            frame,
            meta,
        );
        assert_eq!(kernel, user, "{}: {name}", self.hook);
        user
    }
}

fn load(plane: &Plane, hook: Hook, config: &LoadBalancerConfig, side: Side) -> LoadedChain {
    let mut chain = kernel_chain(hook, 1, &[FunctionConfig::Forward]);
    chain.segments[0].functions = vec![instance(config.clone(), side)];
    plane.load_chain(&chain).unwrap()
}

fn user(function: &mut dyn Function, frame: &[u8], meta: Meta) -> Option<Vec<u8>> {
    let mut buffer = frame.to_vec();
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    let verdict = function.process(&mut packet, &mut Discard);
    (verdict == Verdict::Forward).then_some(buffer)
}

/// Without the front door, whose stamp nobody could choose.
fn kernel(program: BorrowedFd<'_>, hook: Hook, frame: &[u8], meta: Meta) -> Option<Vec<u8>> {
    let test = TestRun {
        meta: Some(meta),
        ..TestRun::new(frame)
    };
    let outcome = run(program, hook, &test).unwrap();
    if outcome.verdict == hook.redirect() {
        return Some(outcome.frame);
    }
    assert_eq!(outcome.verdict, hook.drop());
    None
}

#[test]
fn load_balancer_gives_the_same_bytes_on_every_fixture() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        for backends in [&[][..], &[1], &[1, 2, 3, 4, 5]] {
            let mut pairs = Pairs::new(hook, &config(backends));
            let mut count = 0;
            for fixture in fixtures::all() {
                if fixture.expected.is_ok() && runs(hook, &fixture.frame) {
                    for side in [0, 1] {
                        pairs.check(side, &fixture.frame, SECOND, fixture.name);
                    }
                    count += 1;
                }
            }
            assert!(count > 40, "only {count} fixtures");
        }
    }
}

/// What happens.
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
    Backends(Vec<u8>),
}

fn event() -> impl Strategy<Value = Event> {
    let packet = (0..20_u16, 0..2_u8, any::<[bool; 3]>()).prop_map(
        |(client, service, [tcp, v6, checksum])| Event::Packet {
            client,
            service,
            tcp,
            v6,
            checksum,
        },
    );
    prop_oneof![
        12 => packet,
        2 => prop::sample::select(vec![SECOND / 2, SECOND, 3 * SECOND, TIMEOUT, TIMEOUT + 1])
            .prop_map(Event::Pause),
        1 => prop::collection::hash_set(1..9_u8, 0..8)
            .prop_map(|set| Event::Backends(set.into_iter().collect())),
    ]
}

#[test]
fn load_balancer_chooses_and_remembers_as_its_twin_does() {
    if !is_root() {
        return;
    }
    let strategy = prop::collection::vec(event(), 0..120);
    for_all(12, &strategy, |events| {
        for hook in Hook::ALL {
            let mut pairs = Pairs::new(hook, &config(&[1, 2, 3, 4]));
            let mut now = SECOND;
            for event in &events {
                match event {
                    Event::Pause(ns) => now += ns,
                    Event::Backends(others) => pairs.reconfigure(&config(others)),
                    Event::Packet {
                        client,
                        service,
                        tcp,
                        v6,
                        checksum,
                    } => exchange(&mut pairs, (*client, *service), (*tcp, *v6, *checksum), now),
                }
            }
        }
    });
}

/// A packet of a client to one of two virtual addresses, and, if it gets through, the backend's answer.
fn exchange(
    pairs: &mut Pairs,
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
        let frame = if tcp {
            build::tcp(from, to, b"payload")
        } else {
            build::udp(from, to, b"payload")
        };
        if checksum || tcp || v6 {
            frame
        } else {
            build::with_u16(frame, 40, 0)
        }
    };
    let out = pairs.check(0, &build(from, to), now, "to a backend");
    if let Some(out) = out {
        let tuple = parse(&out).unwrap().try_five_tuple(&out).unwrap();
        let backend = SocketAddr::new(tuple.destination, 80);
        let back = pairs.check(1, &build(backend, from), now + 1, "an answer");
        let back = back.expect("the answer of a living flow");
        let tuple = parse(&back).unwrap().try_five_tuple(&back).unwrap();
        assert_eq!(tuple.source, to.ip());
    }
}

/// One client port asks for two addresses behind one backend at the same time: the answers would look alike, so one of the
/// two is refused.
#[test]
fn answers_are_expected_for_one_flow_though_two_cpus_ask() {
    const ROUNDS: u16 = 4000;
    if !is_root() {
        return;
    }
    let plane = plane();
    let config = LoadBalancerConfig {
        flows: 65_536,
        ..config(&[1])
    };
    let chain = load(&plane, Hook::Xdp, &config, Side::Forward);
    let program = chain.program(0).unwrap();
    // Not a barrier: whoever is woken by one comes too late.
    let begun = [AtomicU16::new(0), AtomicU16::new(0)];
    let ask = |side: usize, service: u8| -> Vec<bool> {
        let to = SocketAddr::new([198, 51, 100, service].into(), 80);
        let mut from = build::client_v4();
        (1..=ROUNDS)
            .map(|round| {
                from.set_port(round);
                let frame = build::udp(from, to, b"");
                let meta = Meta::new(SECOND, 1, 0, 0, &parse(&frame).unwrap());
                begun[side].store(round, Ordering::Relaxed);
                while begun[1 - side].load(Ordering::Relaxed) < round {
                    std::hint::spin_loop();
                }
                kernel(program, Hook::Xdp, &frame, meta).is_some()
            })
            .collect()
    };
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| ask(1, 3));
        (ask(0, 2), other.join().unwrap())
    });
    for (round, (one, other)) in one.into_iter().zip(other).enumerate() {
        assert!(one != other, "round {round}: {one}, {other}");
    }
}

/// Flows are told of as its twin tells of them, and those that a full table puts out are counted.
#[test]
fn load_balancer_tells_of_its_flows_and_counts_those_put_out() {
    const FLOWS: u16 = 1024;
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let plane = plane();
        let chain = load(&plane, hook, &config(&[1, 2]), Side::Forward);
        let send = |port: u16, stamp: u64| {
            let mut from = build::client_v4();
            from.set_port(port);
            let frame = build::udp(from, build::server_v4(), b"");
            let meta = Meta::new(stamp, 1, 0, 0, &parse(&frame).unwrap());
            assert!(kernel(chain.program(0).unwrap(), hook, &frame, meta).is_some());
            frame.len() as u64
        };
        let known = || {
            chain
                .flows(0)
                .unwrap()
                .expect("a load balancer keeps flows")
        };
        send(1, SECOND);
        let length = send(1, 2 * SECOND);
        // It has timed out: one that begins in its place.
        send(2, SECOND);
        send(2, 2 * SECOND + TIMEOUT);
        let Flows { records, totals } = known();
        let mut seen: Vec<_> = records
            .iter()
            .map(|one| (one.packets, one.bytes, one.first_ns, one.last_ns))
            .collect();
        seen.sort_unstable();
        let late = 2 * SECOND + TIMEOUT;
        let expected = [(1, length, late, late), (2, 2 * length, SECOND, 2 * SECOND)];
        assert_eq!(seen, expected);
        assert_eq!((totals.begun, totals.evicted), (3, 0));

        for port in 3..3 + 4 * FLOWS {
            send(port, late + u64::from(port));
        }
        let Flows { records, totals } = known();
        assert!(records.len() <= usize::from(FLOWS), "{}", records.len());
        let inserted = 2 + 4 * u64::from(FLOWS);
        assert_eq!(totals.begun, inserted + 1);
        assert_eq!(totals.evicted, inserted - records.len() as u64);
    }
}
