//! Tests which packets the decoder delivers, and when: in order, after gaps in the encoding symbol
//! identifiers (ESIs), and with duplicated, forged or foreign packets.

mod common;

use common::{MAX_LEN, Receiver, redundancy, send, source};
use myelin_coding::{Code, Delivery, Encoder};

#[test]
fn in_order_delivery_waits_for_earlier_packets() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 4), MAX_LEN, u32::MAX - 2);
    let mut receiver = Receiver::new(Delivery::InOrder);
    let packets = send(&mut encoder, u32::MAX - 2, 8);
    let first = u32::MAX - 2;
    receiver.receive(&packets[0]);
    receiver.receive(&packets[2]);
    receiver.receive(&packets[3]);
    assert_eq!(receiver.delivered, [first]);
    receiver.receive(&packets[4]);
    assert_eq!(receiver.delivered, [first, first + 1, first + 2, 0]);
    // The next packets are reordered, without a loss.
    for i in [6, 5, 8, 7] {
        receiver.receive(&packets[i]);
    }
    receiver.check(first, true);
    assert_eq!(receiver.delivered.len(), 8);
}

#[test]
fn in_order_delivery_waits_at_most_the_timeout() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    receiver.receive(&source(10));
    receiver.receive(&source(13));
    receiver.now_ns = 999_999;
    receiver.receive(&source(14));
    assert_eq!(receiver.delivered, [10]);
    receiver.now_ns = 1_000_000;
    receiver.deliver();
    assert_eq!(receiver.delivered, [10, 13, 14]);
    receiver.receive(&source(11));
    assert_eq!(receiver.delivered, [10, 13, 14]);
    let counters = receiver.decoder.counters();
    assert_eq!((counters.lost, counters.late), (2, 1));
}

#[test]
fn the_timeout_counts_from_the_oldest_stored_packet() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for (now_ns, esi) in [(0, 10), (1, 15), (999_999, 12), (1_000_000, 14)] {
        receiver.now_ns = now_ns;
        receiver.receive(&source(esi));
    }
    assert_eq!(receiver.delivered, [10]);
    receiver.now_ns = 1_000_001;
    receiver.deliver();
    assert_eq!(receiver.delivered, [10, 12, 14, 15]);
    // The timeout of the next packets counts from the oldest of them.
    receiver.receive(&source(17));
    receiver.now_ns = 2_000_000;
    receiver.receive(&source(18));
    assert_eq!(receiver.delivered, [10, 12, 14, 15]);
    receiver.now_ns = 2_000_001;
    receiver.deliver();
    assert_eq!(receiver.delivered, [10, 12, 14, 15, 17, 18]);
}

#[test]
fn in_order_delivery_skips_a_loss_that_no_later_repair_packet_covers() {
    let mut encoder = Encoder::new(Code::Window(4), redundancy(1, 4), MAX_LEN, 0);
    let mut receiver = Receiver::new(Delivery::InOrder);
    // 0 1 2 3 R 4 5 6 7 R: 1, 2 and the first repair packet are lost, the second covers 4 to 7.
    let packets = send(&mut encoder, 0, 8);
    for i in [0, 3, 5, 6, 7, 8] {
        receiver.receive(&packets[i]);
    }
    assert_eq!(receiver.delivered, [0]);
    receiver.receive(&packets[9]);
    assert_eq!(receiver.delivered, [0, 3, 4, 5, 6, 7]);
    assert_eq!(receiver.decoder.counters().lost, 2);
}

#[test]
fn the_decoder_does_not_wait_for_a_packet_outside_the_ring() {
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        receiver.receive(&source(0));
        for esi in 2..=257 {
            receiver.receive(&source(esi));
        }
        receiver.check(0, delivery == Delivery::InOrder);
        assert_eq!(receiver.delivered.len(), 257);
        assert_eq!(receiver.decoder.counters().lost, 1);
        // Packet 1 is before the ring.
        receiver.receive(&source(1));
        assert_eq!(receiver.delivered.len(), 257);
        assert_eq!(receiver.decoder.counters().late, 1);
    }
}

#[test]
fn a_change_of_the_delivery_mode_keeps_stored_packets() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for esi in [0, 2, 3] {
        receiver.receive(&source(esi));
    }
    receiver.decoder.configure(Delivery::Immediate, 0);
    receiver.receive(&source(1));
    // Stored packets leave first.
    assert_eq!(receiver.delivered, [0, 2, 3, 1]);
    receiver.decoder.configure(Delivery::InOrder, 1_000_000);
    receiver.receive(&source(5));
    receiver.receive(&source(4));
    assert_eq!(receiver.delivered, [0, 2, 3, 1, 4, 5]);
}

#[test]
fn a_change_of_the_delivery_mode_delivers_stored_packets_before_the_ring_advances() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for esi in [0, 2, 3] {
        receiver.receive(&source(esi));
    }
    receiver.decoder.configure(Delivery::Immediate, 0);
    // Packet 258 needs the slot of packet 2.
    receiver.receive(&source(258));
    assert_eq!(receiver.delivered, [0, 2, 3, 258]);
}

#[test]
fn contradicting_equations_are_dropped() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    receiver.receive(&source(0));
    receiver.receive(&source(3));
    // The sum of packets 1 and 2 arrives three times. The third sum differs.
    for last in [7, 7, 8] {
        receiver.receive(&[0, 0, 0, 1, 2, 1, 1, 0, 0, 1, last, 0xa3]);
    }
    let counters = receiver.decoder.counters();
    assert_eq!((counters.redundant, counters.corrupt), (1, 1));
    receiver.receive(&source(1));
    assert_eq!(receiver.delivered, [0, 3, 1]);
}

#[test]
fn a_large_gap_in_the_esis_restarts_the_stream_without_loss_of_stored_packets() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for esi in [5, 7, 8, 1_000_000, 1_000_001, 1_000_002, 3, 4] {
        receiver.receive(&source(esi));
    }
    // The decoder drops the first packet after each gap.
    assert_eq!(receiver.delivered, [5, 7, 8, 1_000_001, 1_000_002, 4]);
    let counters = receiver.decoder.counters();
    assert_eq!((counters.reset, counters.lost, counters.late), (2, 1, 2));
}

#[test]
fn foreign_packets_do_not_restart_the_stream() {
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        for esi in 0..1000 {
            receiver.receive(&source(esi));
            if esi % 100 == 50 {
                // A duplicated packet far ahead, and a packet far behind.
                for foreign in [40_000 + esi, 40_000 + esi, u32::MAX - 100_000] {
                    receiver.receive(&source(foreign));
                }
            }
        }
        let all: Vec<u32> = (0..1000).collect();
        assert_eq!(receiver.delivered, all);
        let counters = receiver.decoder.counters();
        assert_eq!((counters.reset, counters.lost, counters.late), (0, 0, 30));
    }
}

#[test]
fn a_decoder_follows_an_encoder_that_restarts_at_a_lower_esi() {
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        let esis = (30_000..30_300).chain(100..120);
        esis.for_each(|esi| receiver.receive(&source(esi)));
        let all: Vec<u32> = (30_000..30_300).chain(107..120).collect();
        assert_eq!(receiver.delivered, all);
        let counters = receiver.decoder.counters();
        assert_eq!((counters.reset, counters.lost, counters.late), (1, 0, 7));
    }
}

#[test]
fn a_gap_longer_than_the_ring_is_lost() {
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        let esis = (0..10).chain(1000..2000).chain(200_000..200_010);
        esis.for_each(|esi| receiver.receive(&source(esi)));
        let all: Vec<u32> = (0..10).chain(1001..2000).chain(200_001..200_010).collect();
        assert_eq!(receiver.delivered, all);
        // The decoder drops packet 1000. ESIs before 200 000 belong to another stream.
        let counters = receiver.decoder.counters();
        assert_eq!((counters.reset, counters.lost, counters.late), (2, 991, 2));
    }
}

#[test]
fn a_duplicate_is_delivered_once_and_a_surplus_repair_packet_is_redundant() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 1), MAX_LEN, 0);
    let mut receiver = Receiver::new(Delivery::Immediate);
    let packets = send(&mut encoder, 0, 4);
    for packet in packets.iter().chain(&packets) {
        receiver.receive(packet);
    }
    let counters = *receiver.decoder.counters();
    assert_eq!(receiver.delivered, [0, 1, 2, 3]);
    assert_eq!(
        (counters.duplicate, counters.redundant, counters.recovered),
        (4, 8, 0)
    );
}

#[test]
fn a_forged_repair_packet_clears_the_equations() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    receiver.receive(&source(0));
    receiver.receive(&source(2));
    // The combination of one packet with coefficient 1. Its unit is longer than its symbol.
    receiver.receive(&[0, 0, 0, 1, 1, 1, 0, 0xff, 0xff, 7, 0xa3]);
    assert_eq!(receiver.decoder.counters().corrupt, 1);
    assert_eq!(receiver.delivered, [0, 2]);
    receiver.receive(&source(1));
    assert_eq!(receiver.delivered, [0, 2, 1]);
}

#[test]
fn a_decoder_starts_at_a_repair_packet() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 4), MAX_LEN, 100);
    let packets = send(&mut encoder, 100, 16);
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        for packet in &packets[4..] {
            receiver.receive(packet);
        }
        receiver.now_ns = 1_000_000;
        receiver.deliver();
        receiver.check(100, delivery == Delivery::InOrder);
        assert_eq!(receiver.delivered.iter().max(), Some(&115));
        assert!(receiver.delivered.len() >= 12);
    }
}
