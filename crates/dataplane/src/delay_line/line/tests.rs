//! Tests the core of a delay line on a port in memory, with a clock that the test sets.

use myelin_packet::Meta;
use myelin_packet::link_model::LinkProfile;
use myelin_packet::loss_model::Loss;
use proptest::prelude::*;

use super::*;
use crate::delay_line::table::{DelayTable, DirectionStats};
use crate::memory_port::MemoryPort;
use crate::umem::{Borrower, Umem};

const MS: u64 = 1_000_000;
const RING: u32 = 16;
/// Most packets that may wait in the fixture.
const MOST_WAITING: usize = 40;

struct Fixture {
    memory: FrameMemory,
    table: DelayTable,
}

impl Fixture {
    fn new() -> Self {
        let frames = MOST_WAITING as u32 + 3 * RING + FramePool::RESERVE as u32;
        Self {
            memory: FrameMemory::map(&Umem::create(frames, 2048).unwrap()).unwrap(),
            table: DelayTable::create().unwrap(),
        }
    }

    fn line(&self) -> Line<'_, MemoryPort> {
        let table = LineTable::open(self.table.fd().try_clone_to_owned().unwrap()).unwrap();
        let port = MemoryPort::new(Borrower::new(0).unwrap(), RING as usize);
        let mut line = Line::new(&self.memory, port, table, RING);
        line.flush_and_refill();
        line
    }

    fn set(&self, direction: u16, profile: LinkProfile) {
        self.table.set_profile(direction, &profile, 1).unwrap();
    }

    fn stats(&self, direction: u16) -> DirectionStats {
        self.table.direction(direction).unwrap()
    }
}

fn delay_of(ms: u64) -> LinkProfile {
    LinkProfile {
        delay_ns: ms * MS,
        ..LinkProfile::default()
    }
}

/// Returns a frame of `len` bytes with the tag of a direction.
fn frame(direction: u16, number: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![number; len];
    frame[TAG_AT..TAG_AT + 2].copy_from_slice(&SERVICE_TAG);
    frame[TAG_AT + 2..HEADERS - 2].copy_from_slice(&direction.to_be_bytes());
    frame
}

/// Injects a frame that arrived at `stamp_ns`.
fn inject(line: &mut Line<'_, MemoryPort>, stamp_ns: u64, frame: &[u8]) {
    let meta = Meta {
        stamp_ns,
        ..Meta::default()
    };
    let memory = line.memory;
    assert!(line.port().inject(memory, &meta, frame), "a free frame");
}

fn take_sent(line: &mut Line<'_, MemoryPort>) -> Vec<Vec<u8>> {
    line.flush_and_refill();
    line.port().take_sent()
}

#[test]
fn arrivals_in_the_last_sleep_are_counted_by_their_stamps() {
    let fixture = Fixture::new();
    fixture.set(1, delay_of(1));
    let mut line = fixture.line();
    assert_eq!(line.record_sleep([10, 20]), Arrivals::default());
    for stamp_ns in [9, 10, 19, 20, 25] {
        inject(&mut line, stamp_ns, &frame(1, 0, 60));
    }
    line.step(30);
    let arrivals = Arrivals { all: 5, asleep: 2 };
    assert_eq!(line.record_sleep([40, 50]), arrivals);
    assert_eq!(line.record_sleep([60, 70]), Arrivals::default());
}

#[test]
fn packets_leave_unchanged_at_their_departure_counted_from_their_stamp() {
    let fixture = Fixture::new();
    fixture.set(1, delay_of(10));
    fixture.set(4094, delay_of(5));
    let mut line = fixture.line();
    let (slow, fast) = (frame(1, 1, 100), frame(4094, 2, 200));
    inject(&mut line, 1000 * MS, &slow);
    inject(&mut line, 1001 * MS, &fast);
    // The worker wakes up late.
    assert_eq!(line.step(1003 * MS), 2);
    assert_eq!(line.next_departure_ns(), Some(1006 * MS));
    assert_eq!(line.step(1006 * MS - 1), 0);
    assert_eq!(line.step(1006 * MS), 1);
    assert_eq!(take_sent(&mut line), [fast]);
    assert_eq!(line.next_departure_ns(), Some(1010 * MS));
    assert_eq!(line.step(1010 * MS + 700), 1);
    assert_eq!(take_sent(&mut line), [slow]);
    assert_eq!(line.next_departure_ns(), None);
    let stats = fixture.stats(1);
    assert_eq!((stats.arrived, stats.arrived_bytes), (1, 96));
    assert_eq!((stats.left, stats.left_bytes), (1, 96));
    let total = fixture.table.line();
    assert_eq!((total.waiting, total.most_waiting), (0, 2));
    let lateness = total.lateness;
    assert_eq!((lateness.min_ns(), lateness.max_ns()), (Some(0), Some(700)));
}

#[test]
fn a_stamp_of_the_future_counts_as_now_and_equal_departures_keep_their_order() {
    let fixture = Fixture::new();
    fixture.set(1, LinkProfile::default());
    let mut line = fixture.line();
    let frames: Vec<_> = (0..10).map(|number| frame(1, number, 64)).collect();
    for frame in &frames {
        inject(&mut line, u64::MAX, frame);
    }
    assert_eq!(line.step(5), 20);
    assert_eq!(take_sent(&mut line), frames);
}

#[test]
fn bad_frames_are_dropped_and_counted() {
    let fixture = Fixture::new();
    fixture.set(1, delay_of(1));
    let mut line = fixture.line();
    let mut user_tag = frame(1, 1, 64);
    user_tag[TAG_AT..TAG_AT + 2].copy_from_slice(&[0x81, 0x00]);
    let untagged = [vec![], vec![0; 12], frame(1, 1, 17), user_tag, vec![7; 64]];
    for bad in &untagged {
        inject(&mut line, 0, bad);
    }
    for unknown in [0, 2, 4094, 4095] {
        inject(&mut line, 0, &frame(unknown, 1, 64));
    }
    assert_eq!(line.step(10 * MS), 9);
    assert!(take_sent(&mut line).is_empty());
    let stats = fixture.table.line();
    assert_eq!(
        stats.untagged,
        untagged.len() as u64 + 1,
        "4095 is no number"
    );
    assert_eq!((stats.unknown, stats.waiting), (3, 0));
    assert_eq!(stats.free_frames, line.pool.len() as u64);
    assert_eq!(
        line.pool.len() + line.port.frames(),
        fixture.memory.frames() as usize
    );
}

#[test]
fn packets_above_the_packet_memory_are_dropped_and_counted() {
    let fixture = Fixture::new();
    fixture.set(1, delay_of(10));
    let mut line = fixture.line();
    for number in 0..MOST_WAITING + 8 {
        inject(&mut line, 0, &frame(1, number as u8, 64));
        line.step(1);
    }
    let stats = fixture.stats(1);
    assert_eq!(
        (stats.memory_drops, stats.waiting),
        (8, MOST_WAITING as u64)
    );
    // All packets are due at once: more than the transmit ring holds.
    let mut sent = Vec::new();
    while line.next_departure_ns().is_some() {
        line.step(20 * MS);
        sent.extend(take_sent(&mut line));
    }
    assert_eq!(sent.len(), MOST_WAITING);
    let stats = fixture.stats(1);
    assert_eq!((stats.left, stats.waiting), (MOST_WAITING as u64, 0));
}

#[test]
fn a_full_transmit_ring_drops_and_counts() {
    let fixture = Fixture::new();
    fixture.set(1, delay_of(1));
    let mut line = fixture.line();
    line.port().set_link(false);
    for number in 0..RING + 3 {
        inject(&mut line, 0, &frame(1, number as u8, 64));
        line.step(1);
    }
    line.step(2 * MS);
    let stats = fixture.stats(1);
    assert_eq!((stats.left, stats.transmit_drops), (RING.into(), 3));
}

#[test]
fn a_change_applies_to_the_next_packet_and_a_removal_drops_it() {
    let fixture = Fixture::new();
    fixture.set(1, delay_of(10));
    let mut line = fixture.line();
    inject(&mut line, 0, &frame(1, 1, 64));
    line.step(1);
    let lossy = LinkProfile {
        loss: Loss {
            ppm: 1_000_000,
            burst: None,
        },
        ..delay_of(10)
    };
    fixture.set(1, lossy);
    inject(&mut line, 2, &frame(1, 2, 64));
    line.step(2);
    fixture.set(1, delay_of(20));
    inject(&mut line, 3, &frame(1, 3, 64));
    line.step(3);
    fixture.table.remove(1).unwrap();
    inject(&mut line, 4, &frame(1, 4, 64));
    line.step(4);
    assert_eq!(fixture.stats(1).lost, 1);
    assert_eq!(fixture.table.line().unknown, 1);
    assert_eq!(line.next_departure_ns(), Some(10 * MS));
    line.step(10 * MS);
    assert_eq!(line.next_departure_ns(), Some(20 * MS + 3));
    line.step(21 * MS);
    assert_eq!(take_sent(&mut line), [frame(1, 1, 64), frame(1, 3, 64)]);
}

#[test]
fn another_seed_starts_an_idle_link() {
    let fixture = Fixture::new();
    let slow = LinkProfile {
        rate_bps: Some(60 * 8 * 10),
        ..LinkProfile::default()
    };
    fixture.set(1, slow);
    let mut line = fixture.line();
    inject(&mut line, 0, &frame(1, 1, 64));
    line.step(0);
    assert_eq!(
        line.next_departure_ns(),
        Some(100 * MS),
        "60 bytes and a tag"
    );
    fixture.table.set_profile(1, &delay_of(1), 2).unwrap();
    inject(&mut line, 0, &frame(1, 2, 64));
    line.step(0);
    assert_eq!(line.next_departure_ns(), Some(MS));
}

proptest! {
    #[test]
    fn every_packet_is_counted_once_and_no_frame_is_lost(
        profiles in prop::collection::vec(
            (0..20_u64, 0..20_u64, prop::option::of(1_000_000..100_000_000_u64), 0..900_000_u32),
            3,
        ),
        packets in prop::collection::vec((0..3_000_000_u64, 1..6_u16, 18..1500_usize), 1..200),
    ) {
        let fixture = Fixture::new();
        for (direction, (delay, jitter, rate_bps, ppm)) in (1..).zip(profiles) {
            fixture.set(direction, LinkProfile {
                delay_ns: delay * MS,
                jitter_ns: jitter * MS,
                rate_bps,
                queue_ns: 5 * MS,
                loss: Loss { ppm, burst: None },
                ..LinkProfile::default()
            });
        }
        let mut line = fixture.line();
        let (mut now_ns, mut sent) = (0, 0);
        let sum = |sent: usize, line: &Line<'_, MemoryPort>| {
            let stats = [1, 2, 3].map(|direction| fixture.stats(direction));
            for s in stats {
                let drops = s.queue_drops + s.lost + s.memory_drops + s.transmit_drops + s.died;
                assert_eq!(s.arrived, s.left + drops + s.waiting);
            }
            assert_eq!(stats.iter().map(|s| s.left).sum::<u64>(), sent as u64);
            assert_eq!(stats.iter().map(|s| s.waiting).sum::<u64>(), line.waiting.len() as u64);
        };
        for (gap_ns, direction, len) in packets {
            now_ns += gap_ns;
            inject(&mut line, now_ns, &frame(direction, 0, len));
            line.step(now_ns);
            sent += take_sent(&mut line).len();
            sum(sent, &line);
            let frames = line.pool.len() + line.port.frames() + line.waiting.len();
            prop_assert_eq!(frames, fixture.memory.frames() as usize);
            prop_assert_eq!(line.waiting.capacity(), MOST_WAITING, "the heap allocates nothing");
        }
        while let Some(at_ns) = line.next_departure_ns() {
            prop_assert!(line.step(at_ns) > 0);
            sent += take_sent(&mut line).len();
        }
        sum(sent, &line);
    }
}
