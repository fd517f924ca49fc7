//! `monitor` against a plain reference: a list of flows, the one used longest ago first.

use myelin_functions::{Batch, Discard, FlowPage, Function, Packet, Verdict, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{FiveTuple, FlowRecord, FlowTotals, Meta, parse};
use myelin_spec::{FunctionConfig, MonitorConfig};
use proptest::prelude::*;

fn monitor(flows: u32) -> Box<dyn Function> {
    instantiate(&FunctionConfig::Monitor(MonitorConfig { flows })).unwrap()
}

fn read(monitor: &dyn Function) -> (Vec<FlowRecord>, FlowTotals) {
    FlowPage::read_all(|page| monitor.read_flows(page)).unwrap()
}

/// Hands frames with their stamps to the function, in one batch.
fn run(monitor: &mut dyn Function, frames: &[(u64, Vec<u8>)]) {
    let mut buffers: Vec<Vec<u8>> = frames.iter().map(|(_, frame)| frame.clone()).collect();
    let mut batch = Batch::with_capacity(frames.len());
    for (buffer, (stamp_ns, frame)) in buffers.iter_mut().zip(frames) {
        let meta = Meta::new(*stamp_ns, 1, 1, 0, &parse(frame).unwrap());
        batch.push(Packet::new(buffer, 0, frame.len(), meta, 0).unwrap());
    }
    assert_eq!(monitor.process_batch(&mut batch, &mut Discard), 0);
    assert_eq!(batch.len(), frames.len(), "all go on");
    for (packet, (_, frame)) in batch.packets().iter().zip(frames) {
        assert_eq!(packet.bytes(), frame, "nothing is changed");
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Flow {
    tuple: FiveTuple,
    packets: u64,
    bytes: u64,
    first_ns: u64,
    last_ns: u64,
}

/// The flows that a table of that size holds in the end, and how many were put out.
fn reference(size: usize, frames: &[(u64, Vec<u8>)]) -> (Vec<Flow>, FlowTotals) {
    let mut flows: Vec<Flow> = Vec::new();
    let mut totals = FlowTotals::default();
    for (stamp_ns, frame) in frames {
        let tuple = parse(frame).unwrap().five_tuple(frame);
        let known = flows.iter().position(|flow| flow.tuple == tuple);
        let mut flow = if let Some(at) = known {
            flows.remove(at)
        } else {
            totals.begun += 1;
            if flows.len() == size {
                flows.remove(0);
                totals.evicted += 1;
            }
            Flow {
                tuple,
                packets: 0,
                bytes: 0,
                first_ns: *stamp_ns,
                last_ns: 0,
            }
        };
        flow.packets += 1;
        flow.bytes += frame.len() as u64;
        flow.last_ns = *stamp_ns;
        flows.push(flow);
    }
    (flows, totals)
}

fn assert_same(monitor: &dyn Function, expected: &(Vec<Flow>, FlowTotals)) {
    let (records, totals) = read(monitor);
    assert_eq!(totals, expected.1);
    assert_eq!(records.len(), expected.0.len());
    for flow in &expected.0 {
        let record = records
            .iter()
            .find(|record| record.key.five_tuple() == flow.tuple)
            .unwrap_or_else(|| panic!("{} is missing", flow.tuple));
        let held = Flow {
            tuple: flow.tuple,
            packets: record.packets,
            bytes: record.bytes,
            first_ns: record.first_ns,
            last_ns: record.last_ns,
        };
        assert_eq!(&held, flow);
        assert_eq!((record.reply_packets, record.state()), (0, None));
    }
}

#[test]
fn every_fixture_is_counted_under_its_tuple() {
    let frames: Vec<(u64, Vec<u8>)> = fixtures::all()
        .into_iter()
        .filter(|fixture| fixture.expected.is_ok())
        .enumerate()
        .map(|(number, fixture)| (number as u64 + 1, fixture.frame))
        .collect();
    assert!(frames.len() > 40);
    let mut monitor = monitor(100);
    run(&mut *monitor, &frames);
    assert_same(&*monitor, &reference(100, &frames));
}

#[test]
fn one_packet_at_a_time_counts_too() {
    let mut monitor = monitor(4);
    let mut frame = build::udp_v4(5);
    let len = frame.len();
    for stamp_ns in [7, 9] {
        let meta = Meta::new(stamp_ns, 1, 1, 0, &parse(&frame).unwrap());
        let mut packet = Packet::new(&mut frame, 0, len, meta, 0).unwrap();
        let verdict = monitor.process(&mut packet, &mut Discard);
        assert_eq!(verdict, Verdict::Forward);
    }
    let (records, _) = read(&*monitor);
    let [flow] = records[..] else {
        panic!("{} flows", records.len())
    };
    assert_eq!((flow.packets, flow.bytes), (2, 2 * len as u64));
    assert_eq!((flow.first_ns, flow.last_ns), (7, 9));
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    (0_u16..12, 0..40_usize, 0..4_u8).prop_map(|(port, length, kind)| {
        let (mut v4, mut v6) = (build::client_v4(), build::client_v6());
        v4.set_port(port);
        v6.set_port(port);
        let payload = build::payload(length);
        match kind {
            0 => build::tcp(v4, build::server_v4(), &payload),
            1 => build::udp(v6, build::server_v6(), &payload),
            2 => build::ip(v4.ip(), build::server_v4().ip(), 132, &payload),
            _ => build::udp(v4, build::server_v4(), &payload),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_are_counted_as_the_reference_says(
        size in 1_u32..40,
        frames in prop::collection::vec(frame(), 1..200),
    ) {
        let frames: Vec<_> = (1_u64..).zip(frames).collect();
        let mut monitor = monitor(size);
        for batch in frames.chunks(32) {
            run(&mut *monitor, batch);
        }
        assert_same(&*monitor, &reference(size as usize, &frames));
    }
}
