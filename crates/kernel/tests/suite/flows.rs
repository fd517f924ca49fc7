//! Kernel functions that keep flows know what their twins in user space know.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use myelin_functions::{Discard, FlowPage, Function, Packet, instantiate};
use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{Flows, Hook, LoadedChain};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{FlowRecord, FlowState, FlowTotals, Meta, parse};
use myelin_spec::{
    FlowTrackerConfig, FunctionConfig, FunctionInstance, InvalidPolicy, MonitorConfig, Side,
    StateKey,
};
use proptest::prelude::*;

use crate::stand::{Stand, for_all, forwards, is_root, kernel_chain, plane, runs};

/// Packets that each of two threads sends.
const EACH: u32 = 100_000;
/// Places of a table that is to be full.
const FLOWS: u32 = 1024;

fn monitor(flows: u32) -> FunctionConfig {
    FunctionConfig::Monitor(MonitorConfig { flows })
}

/// Runs the function on a packet that came at a given time; whether it goes on.
fn kernel(stand: &Stand, frame: &[u8], stamp_ns: u64, repeat: u32) -> bool {
    let test = TestRun {
        meta: Some(Meta::new(stamp_ns, 1, 1, 0, &parse(frame).unwrap())),
        repeat,
        ..TestRun::new(frame)
    };
    let outcome = run(stand.chain.program(0).unwrap(), stand.hook, &test).unwrap();
    if repeat == 1 {
        assert_eq!(outcome.frame, frame, "nothing is changed");
    }
    assert!([stand.hook.redirect(), stand.hook.drop()].contains(&outcome.verdict));
    outcome.verdict == stand.hook.redirect()
}

/// The same in user space.
fn user(function: &mut dyn Function, frame: &[u8], stamp_ns: u64) -> bool {
    let meta = Meta::new(stamp_ns, 1, 1, 0, &parse(frame).unwrap());
    let mut buffer = frame.to_vec();
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    function.process(&mut packet, &mut Discard) == myelin_functions::Verdict::Forward
}

/// Flows by how they are written.
fn by_name(records: &[FlowRecord]) -> BTreeMap<String, FlowRecord> {
    records
        .iter()
        .map(|record| (record.key.five_tuple().to_string(), *record))
        .collect()
}

fn flows_of(stand: &Stand) -> Flows {
    stand.chain.flows(0).unwrap().unwrap()
}

/// A function in both spaces.
struct Pair {
    kernel: Stand,
    user: Box<dyn Function>,
}

impl Pair {
    fn new(hook: Hook, config: &FunctionConfig) -> Self {
        Self {
            kernel: Stand::new(hook, std::slice::from_ref(config)),
            user: instantiate(config).unwrap(),
        }
    }

    fn run(&mut self, frame: &[u8], stamp_ns: u64) {
        let goes_on = kernel(&self.kernel, frame, stamp_ns, 1);
        assert_eq!(goes_on, user(&mut *self.user, frame, stamp_ns));
    }

    /// Both know the same.
    fn assert_same(&self) {
        let kernel = flows_of(&self.kernel);
        let (user, totals) = FlowPage::read_all(|page| self.user.read_flows(page)).unwrap();
        assert_eq!(
            by_name(&kernel.records),
            by_name(&user),
            "{}",
            self.kernel.hook
        );
        assert_eq!(kernel.records.len(), user.len());
        assert_eq!(kernel.totals, totals, "{}", self.kernel.hook);
    }
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    (0_u16..40, 0..40_usize, 0..6).prop_map(|(port, length, kind)| {
        let (mut v4, mut v6) = (build::client_v4(), build::client_v6());
        v4.set_port(port);
        v6.set_port(port);
        let payload = build::payload(length);
        match kind {
            0 => build::tcp(v4, build::server_v4(), &payload),
            1 => build::udp(v6, build::server_v6(), &payload),
            2 => build::ip(v4.ip(), build::server_v4().ip(), 132, &payload),
            3 => build::tcp(build::server_v6(), v6, &payload),
            4 => build::with_tags(build::udp(v4, build::server_v4(), &payload), &[build::VLAN]),
            _ => build::udp(v4, build::server_v4(), &payload),
        }
    })
}

#[test]
fn a_monitor_counts_every_fixture_as_its_twin_does() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let mut pair = Pair::new(hook, &monitor(4096));
        for (stamp_ns, fixture) in (1..).zip(fixtures::all()) {
            if fixture.expected.is_ok() && runs(hook, &fixture.frame) {
                pair.run(&fixture.frame, stamp_ns);
            }
        }
        pair.assert_same();
    }
}

#[test]
fn a_monitor_counts_random_packets_as_its_twin_does() {
    if !is_root() {
        return;
    }
    let frames = prop::collection::vec((frame(), 1_u64..1000), 1..300);
    for_all(12, &frames, |frames| {
        for hook in Hook::ALL {
            let mut pair = Pair::new(hook, &monitor(4096));
            let mut now_ns = 0;
            for (frame, later_ns) in &frames {
                now_ns += later_ns;
                pair.run(frame, now_ns);
            }
            pair.assert_same();
        }
    });
}

#[test]
fn a_monitor_counts_a_segmented_packet_as_its_segments() {
    if !is_root() {
        return;
    }
    let stand = Stand::new(Hook::Tcx, &[monitor(16)]);
    let frame = build::tcp_v4(1000);
    stand.run_with(&TestRun {
        gso_segs: 4,
        gso_size: 250,
        ..TestRun::new(&frame)
    });
    let flows = flows_of(&stand);
    assert_eq!(flows.records.len(), 1);
    assert_eq!(
        (flows.records[0].packets, flows.records[0].bytes),
        (4, frame.len() as u64)
    );
}

#[test]
fn counts_are_exact_when_two_cpus_count_one_flow() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[monitor(64)]);
        let frame = build::udp_v4(10);
        let (program, meta) = (
            stand.chain.program(0).unwrap(),
            Meta::new(5, 1, 1, 0, &parse(&frame).unwrap()),
        );
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let test = TestRun {
                        meta: Some(meta),
                        repeat: EACH,
                        ..TestRun::new(&frame)
                    };
                    run(program, hook, &test).unwrap();
                });
            }
        });
        let flows = flows_of(&stand);
        assert_eq!(flows.records.len(), 1);
        assert_eq!(flows.records[0].packets, 2 * u64::from(EACH));
        let bytes = 2 * u64::from(EACH) * frame.len() as u64;
        assert_eq!(flows.records[0].bytes, bytes);
        assert_eq!(flows.totals.begun, 1);
    }
}

#[test]
fn a_full_table_puts_out_old_flows_and_counts_them() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[monitor(FLOWS)]);
        for number in 0..4 * FLOWS {
            let mut client = build::client_v4();
            client.set_port(number as u16);
            let frame = build::udp(client, build::server_v4(), b"");
            kernel(&stand, &frame, u64::from(number) + 1, 1);
        }
        let Flows { records, totals } = flows_of(&stand);
        // The kernel keeps some entries free for each CPU.
        assert!(
            (FLOWS as usize / 4..=FLOWS as usize).contains(&records.len()),
            "{} flows",
            records.len()
        );
        let expected = FlowTotals {
            begun: u64::from(4 * FLOWS),
            evicted: u64::from(4 * FLOWS) - records.len() as u64,
            outside: 0,
        };
        assert_eq!(totals, expected);
        // Those that went are old ones, save for some that a CPU keeps to itself when the test moves to another one.
        let old = records
            .iter()
            .filter(|record| record.last_ns <= u64::from(2 * FLOWS))
            .count();
        assert!(old < records.len() / 2, "{old} of {}", records.len());
        assert!(
            records
                .iter()
                .any(|record| record.last_ns == u64::from(4 * FLOWS)),
            "the newest is missing"
        );
    }
}

/// No flow is put out of a table with room, however many begin while it is read.
#[test]
fn a_flow_that_begins_while_the_table_is_read_does_not_count_as_put_out() {
    if !is_root() {
        return;
    }
    let stand = Stand::new(Hook::Xdp, &[monitor(65_536)]);
    let program = stand.chain.program(0).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for number in 0..4096 {
                let mut client = build::client_v4();
                client.set_port(number);
                let frame = build::udp(client, build::server_v4(), b"");
                let test = TestRun {
                    meta: Some(Meta::new(1, 1, 1, 0, &parse(&frame).unwrap())),
                    ..TestRun::new(&frame)
                };
                run(program, Hook::Xdp, &test).unwrap();
            }
        });
        while !sender.is_finished() {
            let Flows { records, totals } = flows_of(&stand);
            assert_eq!(totals.evicted, 0, "{} flows", records.len());
        }
    });
    assert_eq!(flows_of(&stand).records.len(), 4096);
}

/// A segment with these flags; its checksum does not matter here.
fn segment(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut frame = build::tcp(from, to, b"data");
    let at = usize::from(parse(&frame).unwrap().l4) + 13;
    frame[at] = flags;
    frame
}

const TRACKER: FlowTrackerConfig = FlowTrackerConfig {
    flows: 4096,
    invalid: InvalidPolicy::Drop,
    timeout_ns: 100,
    tcp_timeout_ns: 1000,
};

/// Both directions of few flows, with flags that move them on.
fn tracked_frame() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![
        3 => Just(0x02_u8),
        1 => Just(0x12),
        4 => Just(0x10),
        2 => Just(0x11),
        1 => Just(0x04),
        1 => any::<u8>(),
    ];
    (0_u16..5, any::<bool>(), flags, 0..8).prop_map(|(port, turned, flags, kind)| {
        let (mut client, mut server) = if kind == 0 {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        client.set_port(port);
        if port == 4 {
            server.set_ip(client.ip());
            server.set_port(if kind < 4 { 4 } else { 3 });
        }
        let (from, to) = if turned {
            (server, client)
        } else {
            (client, server)
        };
        match kind {
            1 => build::udp(from, to, b"data"),
            2 => build::ip(from.ip(), to.ip(), 132, b"data"),
            3 => build::with_tags(segment(from, to, flags), &[build::VLAN]),
            _ => segment(from, to, flags),
        }
    })
}

#[test]
fn a_tracker_follows_random_packets_as_its_twin_does() {
    if !is_root() {
        return;
    }
    let later = prop_oneof![4 => 0_u64..30, 1 => 90_u64..1100];
    let packets = prop::collection::vec((tracked_frame(), later), 1..300);
    for_all(16, &(any::<bool>(), packets), |(pass, packets)| {
        let invalid = if pass {
            InvalidPolicy::Pass
        } else {
            InvalidPolicy::Drop
        };
        let config = FunctionConfig::FlowTracker(FlowTrackerConfig { invalid, ..TRACKER });
        for hook in Hook::ALL {
            let mut pair = Pair::new(hook, &config);
            let mut now_ns = 1;
            for (frame, later_ns) in &packets {
                now_ns += later_ns;
                pair.run(frame, now_ns);
            }
            pair.assert_same();
        }
    });
}

#[test]
fn a_tracker_follows_every_fixture_as_its_twin_does() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let mut pair = Pair::new(hook, &FunctionConfig::FlowTracker(TRACKER));
        for (stamp_ns, fixture) in (1..).zip(fixtures::all()) {
            if fixture.expected.is_ok() && runs(hook, &fixture.frame) {
                pair.run(&fixture.frame, stamp_ns);
            }
        }
        pair.assert_same();
    }
}

#[test]
fn what_a_tracker_drops_is_counted_as_dropped() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[FunctionConfig::FlowTracker(TRACKER)]);
        let frame = segment(build::client_v4(), build::server_v4(), 0x10);
        assert_eq!(stand.run(&frame).verdict, hook.drop());
        let slot = stand.chain.counter_slot(0).unwrap();
        assert_eq!(stand.plane.counters().read(slot).drops, 1);
        assert_eq!(flows_of(&stand).totals.outside, 1);
    }
}

/// Both directions at once, each on a CPU of its own: no packet and no mark is lost.
#[test]
fn both_directions_of_a_flow_meet_in_one_entry() {
    if !is_root() {
        return;
    }
    let (client, server) = (build::client_v4(), build::server_v4());
    let config = FlowTrackerConfig {
        timeout_ns: 1_000_000,
        tcp_timeout_ns: 1_000_000,
        ..TRACKER
    };
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[FunctionConfig::FlowTracker(config)]);
        assert!(kernel(&stand, &segment(client, server, 0x02), 1, 1));
        let program = stand.chain.program(0).unwrap();
        std::thread::scope(|scope| {
            for (from, to) in [(client, server), (server, client)] {
                scope.spawn(move || {
                    let frame = segment(from, to, 0x11);
                    let test = TestRun {
                        meta: Some(Meta::new(2, 1, 1, 0, &parse(&frame).unwrap())),
                        repeat: EACH,
                        ..TestRun::new(&frame)
                    };
                    run(program, hook, &test).unwrap();
                });
            }
        });
        let flows = flows_of(&stand);
        let [flow] = flows.records[..] else {
            panic!("{} flows", flows.records.len())
        };
        assert_eq!(flow.packets, u64::from(EACH) + 1);
        assert_eq!(flow.reply_packets, u64::from(EACH));
        assert_eq!(flow.state(), Some(FlowState::Closed));
        assert_eq!(flow.key.five_tuple().source, client.ip());
    }
}

/// The functions of a pair of chains, and those of the next generation.
#[test]
fn functions_of_one_key_share_their_flows() {
    if !is_root() {
        return;
    }
    let instance = |side, tcp_timeout_ns| FunctionInstance {
        config: FunctionConfig::FlowTracker(FlowTrackerConfig {
            tcp_timeout_ns,
            ..TRACKER
        }),
        state: Some(StateKey {
            chain: "there".into(),
            function: "connections".into(),
        }),
        side,
    };
    let plane = plane();
    let load = |spi, instance: FunctionInstance| {
        let mut config = kernel_chain(Hook::Tcx, spi, &forwards(1));
        config.segments[0].functions = vec![instance];
        plane.load_chain(&config).unwrap()
    };
    let (forward, reply) = (
        load(1, instance(Side::Forward, 1000)),
        load(2, instance(Side::Reply, 1000)),
    );
    let (client, server) = (build::client_v4(), build::server_v4());
    let goes_on = |chain: &LoadedChain, frame: &[u8], stamp_ns| {
        let test = TestRun {
            meta: Some(Meta::new(stamp_ns, 1, 1, 0, &parse(frame).unwrap())),
            ..TestRun::new(frame)
        };
        let outcome = run(chain.program(0).unwrap(), Hook::Tcx, &test).unwrap();
        outcome.verdict == Hook::Tcx.redirect()
    };
    assert!(!goes_on(&reply, &segment(server, client, 0x12), 1));
    assert!(goes_on(&forward, &segment(client, server, 0x02), 2));
    assert!(goes_on(&reply, &segment(server, client, 0x12), 3));
    // A new generation with other times finds them too.
    let next = load(1, instance(Side::Forward, 5000));
    drop(forward);
    assert!(goes_on(&next, &segment(client, server, 0x10), 4000));
    let flows = next.flows(0).unwrap().unwrap();
    let [flow] = flows.records[..] else {
        panic!("{} flows", flows.records.len())
    };
    assert_eq!((flow.packets, flow.reply_packets), (2, 1));
    assert_eq!(flow.state(), Some(FlowState::Established));
}

#[test]
fn a_function_without_flows_tells_of_none() {
    if !is_root() {
        return;
    }
    let stand = Stand::new(Hook::Tcx, &[FunctionConfig::Forward]);
    assert_eq!(stand.chain.flows(0).unwrap(), None);
    assert_eq!(stand.chain.flows(7).unwrap(), None);
}
