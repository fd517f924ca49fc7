//! Compares `monitor` with a plain reference: a list of flows, the least recently used first.

use myelin_packet::fixtures::build;
use myelin_packet::{FlowTotals, parse};
use myelin_spec::{FunctionConfig, MonitorConfig};
use proptest::prelude::*;

use crate::space::{Chain, Chains, Kernel, for_all, on_fixtures, send};

/// Number of flows in a table that becomes full.
const FLOWS: u32 = 1024;
const PACKETS_PER_THREAD: u32 = 100_000;

fn monitor(flows: u32) -> FunctionConfig {
    FunctionConfig::Monitor(MonitorConfig { flows })
}

/// Name, packets, bytes, first and last time of a flow.
type Flow = (String, u64, u64, u64, u64);

/// Returns the final flows and the totals of a table with `size` entries.
fn reference(size: usize, frames: &[(u64, Vec<u8>)]) -> (Vec<Flow>, FlowTotals) {
    let mut flows: Vec<Flow> = Vec::new();
    let mut totals = FlowTotals::default();
    for (stamp_ns, frame) in frames {
        let name = parse(frame).unwrap().five_tuple(frame).to_string();
        let known = flows.iter().position(|flow| flow.0 == name);
        let mut flow = if let Some(at) = known {
            flows.remove(at)
        } else {
            totals.begun += 1;
            if flows.len() == size {
                flows.remove(0);
                totals.evicted += 1;
            }
            (name, 0, 0, *stamp_ns, 0)
        };
        flow.1 += 1;
        flow.2 += frame.len() as u64;
        flow.4 = *stamp_ns;
        flows.push(flow);
    }
    flows.sort();
    (flows, totals)
}

/// Sends frames in batches, and compares the flows of the spaces with the reference.
fn assert_counted(chains: &Chains, size: u32, frames: &[(u64, Vec<u8>)], batch: usize) {
    for frames in frames.chunks(batch) {
        for (outcome, (_, frame)) in chains.run_all(frames).into_iter().zip(frames) {
            assert_eq!(
                outcome.out().as_ref(),
                Some(frame),
                "every packet passes unchanged"
            );
        }
    }
    let (flows, totals) = chains.flows().unwrap();
    let flows: Vec<Flow> = flows
        .into_iter()
        .map(|(name, flow)| {
            assert_eq!((flow.reply_packets, flow.state()), (0, None));
            (name, flow.packets, flow.bytes, flow.first_ns, flow.last_ns)
        })
        .collect();
    assert_eq!((flows, totals), reference(size as usize, frames));
}

#[test]
fn every_fixture_is_counted_under_its_tuple() {
    on_fixtures(|spaces, fixtures| {
        let frames = fixtures.iter().map(|fixture| fixture.frame.clone());
        let frames: Vec<_> = (1..).zip(frames).collect();
        for batch in [1, frames.len()] {
            let chains = spaces.load(&[monitor(4096)]);
            assert_counted(&chains, 4096, &frames, batch);
        }
    });
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    (0_u16..20, 0..40_usize, 0..6).prop_map(|(port, length, kind)| {
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
fn random_packets_match_the_reference() {
    let frames = prop::collection::vec((frame(), 1_u64..1000), 1..300);
    for_all(256, 12, &(frames, 1_u32..40), |spaces, (frames, size)| {
        // A full kernel table evicts other flows than the reference.
        let size = if spaces.are_user_only() { size } else { 4096 };
        let mut now = 0;
        let frames: Vec<_> = frames
            .into_iter()
            .map(|(frame, later)| {
                now += later;
                (now, frame)
            })
            .collect();
        assert_counted(&spaces.load(&[monitor(size)]), size, &frames, 32);
    });
}

#[test]
fn a_segmented_packet_counts_as_its_segments() {
    let Some(kernel) = Kernel::at_tcx() else {
        return;
    };
    let (chain, frame) = (kernel.load_chain(&[monitor(16)]), build::tcp_v4(1000));
    assert!(chain.run_one(&frame, 1, 4).is_forwarded);
    let (flows, _) = chain.flows().unwrap();
    let counts: Vec<_> = flows
        .values()
        .map(|flow| (flow.packets, flow.bytes))
        .collect();
    assert_eq!(counts, [(4, frame.len() as u64)]);
}

#[test]
fn counts_are_exact_when_two_cpus_count_one_flow() {
    for kernel in Kernel::at_hooks() {
        let (chain, frame) = (kernel.load_chain(&[monitor(64)]), build::udp_v4(10));
        let (program, hook) = (chain.program(), chain.hook);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| send(program, hook, &frame, 5, PACKETS_PER_THREAD));
            }
        });
        let (flows, totals) = chain.flows().unwrap();
        let counts: Vec<_> = flows
            .values()
            .map(|flow| (flow.packets, flow.bytes))
            .collect();
        let packets = 2 * u64::from(PACKETS_PER_THREAD);
        assert_eq!(counts, [(packets, packets * frame.len() as u64)]);
        assert_eq!(totals.begun, 1);
    }
}

fn udp_from(port: u16) -> Vec<u8> {
    let mut client = build::client_v4();
    client.set_port(port);
    build::udp(client, build::server_v4(), b"")
}

/// The kernel chooses which flows a full table evicts. User space and the reference evict the least
/// recently used flow.
#[test]
fn a_full_kernel_table_evicts_old_flows_and_counts_them() {
    for kernel in Kernel::at_hooks() {
        let chain = kernel.load_chain(&[monitor(FLOWS)]);
        for number in 0..4 * FLOWS {
            let frame = udp_from(number as u16);
            assert!(chain.run_one(&frame, u64::from(number) + 1, 0).is_forwarded);
        }
        let (flows, totals) = chain.flows().unwrap();
        // The kernel keeps some entries free for each CPU.
        let expected = FLOWS as usize / 4..=FLOWS as usize;
        assert!(expected.contains(&flows.len()), "{} flows", flows.len());
        let begun = u64::from(4 * FLOWS);
        let expected = FlowTotals {
            begun,
            evicted: begun - flows.len() as u64,
            outside: 0,
        };
        assert_eq!(totals, expected);
        // Evicted flows are old, except flows in the free list of a CPU on which the test no longer
        // runs.
        let is_old = |last_ns: u64| last_ns <= u64::from(2 * FLOWS);
        let old = flows.values().filter(|flow| is_old(flow.last_ns)).count();
        assert!(old < flows.len() / 2, "{old} of {}", flows.len());
        let mut flows = flows.values();
        assert!(
            flows.any(|flow| flow.last_ns == begun),
            "the newest flow is missing"
        );
    }
}

/// A table with room evicts no flow, even if flows begin during a read of the table.
#[test]
fn a_flow_that_begins_during_a_read_does_not_count_as_evicted() {
    let Some(kernel) = Kernel::at_xdp() else {
        return;
    };
    let chain = kernel.load_chain(&[monitor(65_536)]);
    let (program, hook) = (chain.program(), chain.hook);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for number in 0..4096 {
                send(program, hook, &udp_from(number), 1, 1);
            }
        });
        while !sender.is_finished() {
            let (flows, totals) = chain.flows().unwrap();
            assert_eq!(totals.evicted, 0, "{} flows", flows.len());
        }
    });
    assert_eq!(chain.flows().unwrap().0.len(), 4096);
}
