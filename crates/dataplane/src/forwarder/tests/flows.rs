//! Tests functions that need the time, and functions that track flows.

use myelin_functions::{FlowPage, States};
use myelin_spec::MonitorConfig;

use super::*;

fn add_chain(
    fixture: &mut ForwarderFixture,
    forwarder: &mut Forwarder<'_, MemoryPort>,
    chain: &UserChain,
) {
    let block = fixture.stats.allocate(1, 0, chain.positions).unwrap();
    let counters = Arc::new(fixture.stats.file().chain_counters(block).unwrap());
    let segments = Segment::build(chain, &counters, &mut States::default()).unwrap();
    forwarder.add_segments(segments);
}

/// Returns the two times that a `timestamp` function appended.
fn read_times(packet: &[u8]) -> [u64; 2] {
    let (front, sent) = packet.split_last_chunk::<8>().unwrap();
    let received = front.last_chunk::<8>().unwrap();
    [*received, *sent].map(u64::from_be_bytes)
}

#[test]
fn each_timestamp_shows_its_own_reception_and_departure() {
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    let chain = one_segment(vec![
        FunctionConfig::Timestamp,
        FunctionConfig::Forward,
        FunctionConfig::Timestamp,
    ]);
    add_chain(&mut stats_fixture, &mut forwarder, &chain);
    let packet = udp(30);
    for _ in 0..2 {
        let start = tick_and_read_clock();
        for _ in 0..3 {
            inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
        }
        forwarder.process_batches();
        let out = take_sent(&mut forwarder);
        assert_eq!(out.len(), 3);
        for (packet, number) in out.iter().zip(0..) {
            let second = read_times(packet);
            let first = read_times(&packet[..packet.len() - 16]);
            // The clock advances 10 ns with each reading: one reading per function and batch, and
            // one per packet when it leaves the function.
            assert_eq!(first, [start + 10, start + 20 + 10 * number]);
            assert_eq!(second, [start + 50, start + 60 + 10 * number]);
        }
    }
}

#[test]
fn flows_are_read_by_position() {
    let mut stats_fixture = ForwarderFixture::new();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    let monitor = FunctionConfig::Monitor(MonitorConfig { flows: 10 });
    let chain = one_segment(vec![FunctionConfig::Forward, monitor]);
    add_chain(&mut stats_fixture, &mut forwarder, &chain);
    let packet = udp(30);
    for _ in 0..5 {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    }
    forwarder.process_batches();
    let read = |generation, position| {
        let mut page = FlowPage::new(100);
        forwarder.read_flows(1, generation, position, &mut page);
        page.totals.map(|totals| (page.records, totals.begun))
    };
    let (records, begun) = read(0, 1).unwrap();
    assert_eq!((records.len(), records[0].packets, begun), (1, 5, 1));
    assert_eq!(records[0].bytes, 5 * packet.len() as u64);
    for (generation, position) in [(0, 0), (0, 2), (1, 1)] {
        assert_eq!(read(generation, position), None);
    }
}
