//! Tests chains with a shaper at the exit.

use myelin_spec::{Limit, Shaping};

use super::*;
use crate::port::FramePool;
use crate::stats::ShaperStats;

const US: u64 = 1000;
const START_NS: u64 = 1_000_000;

fn shaping_to(rate: u64, burst: u64) -> Shaping {
    Shaping {
        packets: Some(Limit { rate, burst }),
        bits: None,
        queue: 32,
        delay_ns: 10_000 * US,
        tolerance_ns: 0,
    }
}

fn shaped(generation: u16, shaping: Shaping) -> UserChain {
    let mut chain = one_segment(vec![FunctionConfig::Forward]);
    chain.generation = generation;
    chain.segments[0].shaping = Some(shaping);
    chain
}

fn shaper_stats(stats: &Stats, generation: u16) -> ShaperStats {
    stats.chain(1, generation).unwrap().shaper
}

/// Sets the clock to `us` microseconds after the start.
fn set_clock_us(us: u64) {
    NOW_NS.set(START_NS + us * US);
}

/// Removes a generation after its packets have left, as a worker's control thread does.
fn undeploy(
    forwarder: &mut Forwarder<'_, MemoryPort>,
    (spi, generation): (u32, u16),
    stats: &Stats,
) {
    forwarder.drain();
    while forwarder.shaped_packets(spi, generation) > 0 {
        forwarder.send_due_packets();
        forwarder.process_batches();
    }
    forwarder.remove_segments(spi, generation);
    stats.release(spi, generation);
}

#[test]
fn a_burst_leaves_at_the_rate_and_the_sojourn_includes_the_wait() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    let chain = shaped(0, shaping_to(10_000, 2));
    forwarder.deploy(&chain, &stats).unwrap();
    let packets: Vec<Vec<u8>> = (10..15).map(udp).collect();
    set_clock_us(0);
    for packet in &packets {
        let stamped = Meta {
            stamp_ns: START_NS,
            ..meta_of(packet, 1, 0)
        };
        inject(&mut forwarder, &stamped, packet);
    }
    forwarder.process_batches();
    assert_eq!(take_sent(&mut forwarder), packets[..2]);
    assert!(forwarder.has_shaped_packets());
    assert_eq!(forwarder.shaped_packets(1, 0), 3);
    for (number, us) in [(2, 100), (3, 200), (4, 300)] {
        let due_ns = forwarder.next_departure_ns().unwrap();
        // The clock advanced by less than 1 us during the burst.
        assert!(due_ns.abs_diff(START_NS + us * US) < US, "{due_ns}");
        NOW_NS.set(due_ns - 100);
        assert_eq!(forwarder.send_due_packets(), 0);
        NOW_NS.set(due_ns);
        assert_eq!(forwarder.send_due_packets(), 1);
        assert_eq!(take_sent(&mut forwarder), packets[number..=number]);
    }
    assert!(!forwarder.has_shaped_packets());
    let seen = shaper_stats(&stats, 0);
    assert_eq!((seen.delayed, seen.waiting, seen.most), (3, 0, 3));
    assert_eq!(seen.drops(), 0);
    assert!(seen.waited_ns.abs_diff(600 * US) < 3 * US, "{seen:?}");
    let chain = stats.chain(1, 0).unwrap();
    assert_eq!((chain.transmitted, chain.sojourn.count()), (5, 5));
    let longest = chain.sojourn.max_ns().unwrap();
    assert!(longest.abs_diff(300 * US) < US, "{longest}");
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn packets_beyond_the_queue_or_the_delay_are_dropped_and_counted() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(32);
    let queue = Shaping {
        queue: 3,
        ..shaping_to(1000, 1)
    };
    forwarder.deploy(&shaped(0, queue), &stats).unwrap();
    set_clock_us(0);
    let packet = udp(20);
    for _ in 0..10 {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    }
    forwarder.process_batches();
    let seen = shaper_stats(&stats, 0);
    assert_eq!((seen.delayed, seen.full, seen.drops()), (3, 6, 6));
    assert_eq!(take_sent(&mut forwarder).len(), 1);
    let short_delay = Shaping {
        delay_ns: 1500 * US,
        ..shaping_to(1000, 1)
    };
    let mut other = shaped(0, short_delay);
    other.spi = 2;
    forwarder.deploy(&other, &stats).unwrap();
    for _ in 0..10 {
        inject(&mut forwarder, &meta_of(&packet, 2, 0), &packet);
    }
    forwarder.process_batches();
    let seen = stats.chain(2, 0).unwrap().shaper;
    assert_eq!((seen.delayed, seen.late), (1, 8));
    assert_eq!(count_frames(&forwarder) + 4, FRAMES as usize);
}

#[test]
fn shapers_hold_at_most_half_of_the_frames() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(32);
    let wide = Shaping {
        queue: 1024,
        delay_ns: u64::MAX,
        ..shaping_to(1, 1)
    };
    forwarder.deploy(&shaped(0, wide), &stats).unwrap();
    set_clock_us(0);
    let packet = udp(20);
    for _ in 0..2 * FRAMES {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
        forwarder.process_batches();
    }
    let seen = shaper_stats(&stats, 0);
    assert_eq!(seen.waiting, u64::from(FRAMES / 2));
    assert_eq!(seen.full, u64::from(2 * FRAMES - FRAMES / 2 - 1));
    assert!(forwarder.free_frames() >= FramePool::RESERVE);
}

/// The shaper counts the packet without the NSH header.
#[test]
fn packets_for_kernel_functions_are_shaped_too() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    let packet = udp(200);
    let bits = packet.len() as u64 * 8;
    let mut chain = shaped(
        0,
        Shaping {
            packets: None,
            bits: Some(Limit {
                rate: bits * 1000,
                burst: bits,
            }),
            ..shaping_to(1, 1)
        },
    );
    chain.positions = 2;
    chain.segments[0].exit = UserExit::Internal {
        socket: SocketId(OUT as u16),
        position: 1,
    };
    forwarder.deploy(&chain, &stats).unwrap();
    set_clock_us(0);
    for _ in 0..2 {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    }
    forwarder.process_batches();
    assert_eq!(take_sent(&mut forwarder).len(), 1);
    NOW_NS.set(forwarder.next_departure_ns().unwrap());
    forwarder.send_due_packets();
    let [frame] = take_sent(&mut forwarder).try_into().unwrap();
    let (context, inner) = fixtures::nsh::decapsulate(&frame).unwrap();
    assert_eq!((inner, context.position), (&packet[..], 1));
    let chain = stats.chain(1, 0).unwrap();
    assert_eq!((chain.transmitted, chain.sojourn.count()), (2, 0));
    assert_eq!((chain.shaper.delayed, chain.shaper.drops()), (1, 0));
}

#[test]
fn the_next_generation_keeps_the_bucket_and_the_queue() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    forwarder
        .deploy(&shaped(0, shaping_to(1000, 1)), &stats)
        .unwrap();
    set_clock_us(0);
    let packet = udp(20);
    for _ in 0..2 {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    }
    forwarder.process_batches();
    forwarder
        .deploy(&shaped(1, shaping_to(1000, 1)), &stats)
        .unwrap();
    let of_next = Meta {
        generation: 1,
        ..meta_of(&packet, 1, 0)
    };
    inject(&mut forwarder, &of_next, &packet);
    forwarder.process_batches();
    // The packet queues behind the old generation's packet, although the new generation has sent no
    // packet.
    assert_eq!(take_sent(&mut forwarder).len(), 1);
    assert_eq!(
        (
            forwarder.shaped_packets(1, 0),
            forwarder.shaped_packets(1, 1)
        ),
        (1, 1)
    );
    set_clock_us(1100);
    forwarder.send_due_packets();
    assert_eq!(
        (
            forwarder.shaped_packets(1, 0),
            forwarder.shaped_packets(1, 1)
        ),
        (0, 1)
    );
    undeploy(&mut forwarder, (1, 0), &stats);
    set_clock_us(2200);
    assert_eq!(forwarder.send_due_packets(), 1);
    let seen = shaper_stats(&stats, 1);
    assert_eq!((seen.delayed, seen.waiting, seen.lost), (1, 0, 0));
}

#[test]
fn removing_a_chain_first_sends_its_queue() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    forwarder
        .deploy(&shaped(0, shaping_to(10_000, 1)), &stats)
        .unwrap();
    set_clock_us(0);
    let packet = udp(20);
    for _ in 0..5 {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    }
    forwarder.process_batches();
    undeploy(&mut forwarder, (1, 0), &stats);
    assert_eq!(take_sent(&mut forwarder).len(), 5);
    assert!(!forwarder.has_shaped_packets());
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn waiting_packets_of_a_removed_segment_are_lost_and_their_frames_are_free() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    forwarder
        .deploy(&shaped(0, shaping_to(1000, 1)), &stats)
        .unwrap();
    set_clock_us(0);
    let packet = udp(20);
    for _ in 0..5 {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    }
    forwarder.process_batches();
    assert_eq!(forwarder.remove_segments(1, 0).len(), 1);
    let seen = shaper_stats(&stats, 0);
    assert_eq!((seen.waiting, seen.lost), (0, 4));
    assert!(!forwarder.has_shaped_packets());
    forwarder.flush_and_refill();
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

/// Acts like a worker that starts after another worker has died. The shared file holds the
/// counters, but the packets are lost.
#[test]
fn packets_that_waited_in_a_dead_worker_count_as_lost() {
    let stats = Stats::create().unwrap();
    let block = stats.allocate(1, 0, 1).unwrap();
    let counters = stats.file().chain_counters(block).unwrap();
    (0..3).for_each(|_| counters.count_wait_start());
    counters.count_wait_end(10);
    drop(counters);
    stats
        .file()
        .chain_counters(block)
        .unwrap()
        .count_predecessor_loss();
    let seen = shaper_stats(&stats, 0);
    assert_eq!((seen.delayed, seen.waiting, seen.lost), (3, 0, 2));
}
