//! From the encoder over lossy ways and recoders to the decoder.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use myelin_coding::{
    Arrival, Code, Coded, Decoder, Delivered, Delivery, Encoder, Recoder, Redundancy, wire,
};
use proptest::prelude::*;

const MAX_LEN: usize = 300;

fn redundancy(numerator: u32, denominator: u32) -> Redundancy {
    Redundancy::new(numerator, NonZeroU32::new(denominator).unwrap())
}

/// The unit of that number: its length and bytes depend on the number alone.
fn unit(esi: u32) -> Vec<u8> {
    let len = esi.wrapping_mul(2_654_435_761) as usize % MAX_LEN;
    (0..len as u32)
        .map(|i| (esi.wrapping_mul(31) ^ i.wrapping_mul(i).wrapping_add(7)) as u8)
        .collect()
}

/// A packet's payload, as it is on the wire.
fn source(esi: u32) -> Vec<u8> {
    [&unit(esi)[..], &wire::source_trailer(esi)].concat()
}

/// The packets that an encoder sends for `count` units.
fn send(encoder: &mut Encoder, count: u32) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for _ in 0..count {
        let esi = encoder.push(&[&unit(encoder.next_esi())]).unwrap();
        packets.push(source(esi));
        packets.extend(repairs(encoder));
    }
    packets
}

fn repairs(encoder: &mut Encoder) -> Vec<Vec<u8>> {
    let mut out = [0xee; 2 * MAX_LEN];
    std::iter::from_fn(|| encoder.repair(&mut out).map(|len| out[..len].to_vec())).collect()
}

/// A decoder, and what it delivered in which order.
struct Receiver {
    decoder: Decoder,
    delivered: Vec<u32>,
    now_ns: u64,
}

impl Receiver {
    fn new(delivery: Delivery) -> Self {
        let mut decoder = Decoder::new(256, MAX_LEN);
        decoder.tune(delivery, 1_000_000);
        Self {
            decoder,
            delivered: Vec::new(),
            now_ns: 0,
        }
    }

    fn receive(&mut self, payload: &[u8]) {
        let Self {
            decoder,
            delivered,
            now_ns,
        } = self;
        let mut sink = |packet: Delivered<'_>| {
            assert_eq!(packet.adu, unit(packet.esi), "packet {}", packet.esi);
            delivered.push(packet.esi);
        };
        match Coded::parse(payload).unwrap() {
            Coded::Source { esi, payload } => {
                if decoder.source(esi, &[payload], *now_ns, &mut sink) == Arrival::Deliver {
                    delivered.push(esi);
                }
            }
            Coded::Repair { id, symbol } => decoder.repair(id, symbol, *now_ns, &mut sink),
            Coded::Recoded {
                first,
                coefficients,
                symbol,
            } => decoder.recoded(first, coefficients, symbol, *now_ns, &mut sink),
        }
        self.release();
    }

    fn release(&mut self) {
        let delivered = &mut self.delivered;
        self.decoder.release(self.now_ns, &mut |packet| {
            assert_eq!(packet.adu, unit(packet.esi), "packet {}", packet.esi);
            delivered.push(packet.esi);
        });
    }

    /// No packet twice, and in order of the numbers from `first` on where they should be.
    fn check(&self, first: u32, in_order: bool) {
        let mut seen = BTreeSet::new();
        for &esi in &self.delivered {
            assert!(seen.insert(esi.wrapping_sub(first)), "twice: {esi}");
        }
        if in_order {
            let offsets = self.delivered.iter().map(|esi| esi.wrapping_sub(first));
            assert!(offsets.is_sorted());
        }
    }
}

/// Passes what a recoder receives, and what it makes of it.
fn recode(recoder: &mut Recoder, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut out = [0xdd; 2 * MAX_LEN];
    let mut passed = Vec::new();
    for packet in packets {
        match Coded::parse(packet).unwrap() {
            Coded::Source { esi, payload } => recoder.source(esi, &[payload]),
            Coded::Repair { id, symbol } => recoder.repair(id, symbol),
            Coded::Recoded {
                first,
                coefficients,
                symbol,
            } => recoder.recoded(first, coefficients, symbol),
        }
        .unwrap();
        passed.push(packet.clone());
        while let Some(len) = recoder.due(&mut out) {
            passed.push(out[..len].to_vec());
        }
    }
    passed
}

#[test]
fn one_loss_in_each_window_is_worked_out() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 4), MAX_LEN, 0);
    let mut receiver = Receiver::new(Delivery::Immediate);
    let packets = send(&mut encoder, 1000);
    assert_eq!(packets.len(), 1250);
    for (i, packet) in packets.iter().enumerate() {
        // Source packets come four in a row before a repair packet; the second of each is lost.
        if i == 0 || i % 5 != 1 {
            receiver.receive(packet);
        }
    }
    receiver.check(0, false);
    assert_eq!(receiver.delivered.len(), 1000);
    let counters = receiver.decoder.counters();
    assert_eq!(
        (counters.recovered, counters.lost, counters.late),
        (250, 0, 0)
    );
}

#[test]
fn in_order_a_packet_waits_for_those_before_it() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 4), MAX_LEN, u32::MAX - 2);
    let mut receiver = Receiver::new(Delivery::InOrder);
    let packets = send(&mut encoder, 8);
    let first = u32::MAX - 2;
    receiver.receive(&packets[0]);
    receiver.receive(&packets[2]);
    receiver.receive(&packets[3]);
    assert_eq!(receiver.delivered, [first]);
    receiver.receive(&packets[4]);
    assert_eq!(receiver.delivered, [first, first + 1, first + 2, 0]);
    // Reordered, without a loss.
    for i in [6, 5, 8, 7] {
        receiver.receive(&packets[i]);
    }
    receiver.check(first, true);
    assert_eq!(receiver.delivered.len(), 8);
}

#[test]
fn in_order_a_packet_waits_only_so_long() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    receiver.receive(&source(10));
    receiver.receive(&source(13));
    receiver.now_ns = 999_999;
    receiver.receive(&source(14));
    assert_eq!(receiver.delivered, [10]);
    receiver.now_ns = 1_000_000;
    receiver.release();
    assert_eq!(receiver.delivered, [10, 13, 14]);
    receiver.receive(&source(11));
    assert_eq!(receiver.delivered, [10, 13, 14]);
    let counters = receiver.decoder.counters();
    assert_eq!((counters.lost, counters.late), (2, 1));
}

#[test]
fn in_order_the_packet_that_waits_longest_counts() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for (now_ns, esi) in [(0, 10), (1, 15), (999_999, 12), (1_000_000, 14)] {
        receiver.now_ns = now_ns;
        receiver.receive(&source(esi));
    }
    assert_eq!(receiver.delivered, [10]);
    receiver.now_ns = 1_000_001;
    receiver.release();
    assert_eq!(receiver.delivered, [10, 12, 14, 15]);
    // Those behind them wait as long as the first of their own.
    receiver.receive(&source(17));
    receiver.now_ns = 2_000_000;
    receiver.receive(&source(18));
    assert_eq!(receiver.delivered, [10, 12, 14, 15]);
    receiver.now_ns = 2_000_001;
    receiver.release();
    assert_eq!(receiver.delivered, [10, 12, 14, 15, 17, 18]);
}

#[test]
fn in_order_what_no_repair_packet_covers_any_more_is_given_up() {
    let mut encoder = Encoder::new(Code::Window(4), redundancy(1, 4), MAX_LEN, 0);
    let mut receiver = Receiver::new(Delivery::InOrder);
    // 0 1 2 3 R 4 5 6 7 R: 1, 2 and the first repair packet are lost, the second covers 4 to 7.
    let packets = send(&mut encoder, 8);
    for i in [0, 3, 5, 6, 7, 8] {
        receiver.receive(&packets[i]);
    }
    assert_eq!(receiver.delivered, [0]);
    receiver.receive(&packets[9]);
    assert_eq!(receiver.delivered, [0, 3, 4, 5, 6, 7]);
    assert_eq!(receiver.decoder.counters().lost, 2);
}

#[test]
fn the_ring_is_the_end_of_all_waiting() {
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        receiver.receive(&source(0));
        for esi in 2..=257 {
            receiver.receive(&source(esi));
        }
        receiver.check(0, delivery == Delivery::InOrder);
        assert_eq!(receiver.delivered.len(), 257);
        assert_eq!(receiver.decoder.counters().lost, 1);
        // Beyond the ring.
        receiver.receive(&source(1));
        assert_eq!(receiver.delivered.len(), 257);
        assert_eq!(receiver.decoder.counters().late, 1);
    }
}

#[test]
fn held_packets_survive_a_change_of_the_order() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for esi in [0, 2, 3] {
        receiver.receive(&source(esi));
    }
    receiver.decoder.tune(Delivery::Immediate, 0);
    receiver.receive(&source(1));
    // What was held goes out first.
    assert_eq!(receiver.delivered, [0, 2, 3, 1]);
    receiver.decoder.tune(Delivery::InOrder, 1_000_000);
    receiver.receive(&source(5));
    receiver.receive(&source(4));
    assert_eq!(receiver.delivered, [0, 2, 3, 1, 4, 5]);
}

#[test]
fn a_change_of_the_order_gives_held_packets_out_before_the_ring_moves_on() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for esi in [0, 2, 3] {
        receiver.receive(&source(esi));
    }
    receiver.decoder.tune(Delivery::Immediate, 0);
    // In the place of packet 2.
    receiver.receive(&source(258));
    assert_eq!(receiver.delivered, [0, 2, 3, 258]);
}

#[test]
fn equations_that_contradict_each_other_go() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    receiver.receive(&source(0));
    receiver.receive(&source(3));
    // The sum of packets 1 and 2, twice the same and then another one.
    for last in [7, 7, 8] {
        receiver.receive(&[0, 0, 0, 1, 2, 1, 1, 0, 0, 1, last, 0xa3]);
    }
    let counters = receiver.decoder.counters();
    assert_eq!((counters.redundant, counters.corrupt), (1, 1));
    receiver.receive(&source(1));
    assert_eq!(receiver.delivered, [0, 3, 1]);
}

#[test]
fn a_jump_begins_anew_and_nothing_held_is_lost() {
    let mut receiver = Receiver::new(Delivery::InOrder);
    for esi in [5, 7, 8, 1_000_000, 1_000_001, 1_000_002, 3, 4] {
        receiver.receive(&source(esi));
    }
    // The first packet of each jump is dropped.
    assert_eq!(receiver.delivered, [5, 7, 8, 1_000_001, 1_000_002, 4]);
    let counters = receiver.decoder.counters();
    assert_eq!((counters.reset, counters.lost, counters.late), (2, 1, 2));
}

#[test]
fn a_wild_packet_changes_nothing() {
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        for esi in 0..1000 {
            receiver.receive(&source(esi));
            if esi % 100 == 50 {
                // A doubled one, and one far behind.
                for wild in [40_000 + esi, 40_000 + esi, u32::MAX - 100_000] {
                    receiver.receive(&source(wild));
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
fn a_decoder_follows_an_encoder_that_began_anew_a_little_before() {
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        let numbers = (30_000..30_300).chain(100..120);
        numbers.for_each(|esi| receiver.receive(&source(esi)));
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
        let numbers = (0..10).chain(1000..2000).chain(200_000..200_010);
        numbers.for_each(|esi| receiver.receive(&source(esi)));
        let all: Vec<u32> = (0..10).chain(1001..2000).chain(200_001..200_010).collect();
        assert_eq!(receiver.delivered, all);
        // The packet of 1000 is dropped; what lies before 200 000 is of another stream.
        let counters = receiver.decoder.counters();
        assert_eq!((counters.reset, counters.lost, counters.late), (2, 991, 2));
    }
}

#[test]
fn a_duplicate_is_delivered_once_and_a_repair_packet_too_many_says_nothing() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 1), MAX_LEN, 0);
    let mut receiver = Receiver::new(Delivery::Immediate);
    let packets = send(&mut encoder, 4);
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
fn a_forged_repair_packet_takes_the_equations_with_it() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    receiver.receive(&source(0));
    receiver.receive(&source(2));
    // Of one packet, with coefficient 1: a unit longer than its symbol.
    receiver.receive(&[0, 0, 0, 1, 1, 1, 0, 0xff, 0xff, 7, 0xa3]);
    assert_eq!(receiver.decoder.counters().corrupt, 1);
    assert_eq!(receiver.delivered, [0, 2]);
    receiver.receive(&source(1));
    assert_eq!(receiver.delivered, [0, 2, 1]);
}

#[test]
fn a_decoder_that_starts_with_a_repair_packet_goes_on_from_there() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 4), MAX_LEN, 100);
    let packets = send(&mut encoder, 16);
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        for packet in &packets[4..] {
            receiver.receive(packet);
        }
        receiver.now_ns = 1_000_000;
        receiver.release();
        receiver.check(100, delivery == Delivery::InOrder);
        assert_eq!(receiver.delivered.iter().max(), Some(&115));
        assert!(receiver.delivered.len() >= 12);
    }
}

#[test]
fn a_block_is_protected_behind_its_end_and_a_flush_ends_it() {
    let mut encoder = Encoder::new(Code::Block(8), redundancy(1, 4), MAX_LEN, 0);
    let packets = send(&mut encoder, 11);
    let kinds: Vec<u8> = packets
        .iter()
        .map(|packet| *packet.last().unwrap())
        .collect();
    let (s, r) = (0xa1, 0xa2);
    assert_eq!(kinds, [s, s, s, s, s, s, s, s, r, r, s, s, s]);
    encoder.flush();
    let tail = repairs(&mut encoder);
    let Coded::Repair { id, .. } = Coded::parse(&tail[0]).unwrap() else {
        panic!("no repair packet");
    };
    assert_eq!((tail.len(), id.first, id.count), (1, 8, 3));
    encoder.flush();
    assert_eq!(repairs(&mut encoder).len(), 0, "nothing is unprotected");
    // The next block begins behind it.
    send(&mut encoder, 7);
    let last = send(&mut encoder, 1);
    let Coded::Repair { id, .. } = Coded::parse(&last[1]).unwrap() else {
        panic!("no repair packet");
    };
    assert_eq!((id.first, id.count), (11, 8));
}

#[test]
fn a_long_stream_over_the_wrap_of_the_numbers() {
    const PACKETS: u32 = 100_000;
    let first = u32::MAX - 50_000;
    let mut encoder = Encoder::new(Code::Window(16), redundancy(1, 2), MAX_LEN, first);
    let mut random = myelin_coding::TinyMt32::new(7);
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        encoder.restart(first);
        let mut waiting = Vec::new();
        for _ in 0..PACKETS {
            for packet in send(&mut encoder, 1) {
                match random.next_256() {
                    0..15 => {}
                    15..20 => waiting.push(packet),
                    20..24 => {
                        receiver.receive(&packet);
                        receiver.receive(&packet);
                    }
                    _ => receiver.receive(&packet),
                }
            }
            if waiting.len() == 3 {
                waiting
                    .drain(..)
                    .for_each(|packet| receiver.receive(&packet));
            }
        }
        receiver.check(first, delivery == Delivery::InOrder);
        let counters = receiver.decoder.counters();
        assert_eq!((counters.reset, counters.corrupt), (0, 0));
        // A repair packet for two source packets, one in seventeen lost: next to none stays lost.
        assert!(receiver.delivered.len() as u32 > PACKETS - PACKETS / 100);
        assert!(counters.recovered > u64::from(PACKETS) / 25);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// As many combinations as there are source packets give them back, whichever arrive and in whatever order, as soon
    /// as they are linearly independent.
    #[test]
    fn any_independent_packets_give_the_source_back(
        count in 1..=64_u8,
        first: u32,
        sparse: bool,
        order in any::<prop::sample::Index>(),
        lost in prop::collection::vec(any::<bool>(), 64),
    ) {
        let mut encoder = Encoder::new(Code::Block(count), redundancy(2, 1), MAX_LEN, first);
        encoder.tune(redundancy(2, 1), if sparse { 3 } else { 15 });
        let mut packets = send(&mut encoder, count.into());
        prop_assert_eq!(packets.len(), 3 * usize::from(count));
        let mut keep = lost.iter().take(count.into()).map(|lost| !lost).chain(std::iter::repeat(true));
        packets.retain(|_| keep.next().unwrap());
        let at = order.index(packets.len());
        packets.rotate_left(at);
        let mut receiver = Receiver::new(Delivery::Immediate);
        let mut rank = Vec::new();
        for packet in &packets {
            receiver.receive(packet);
            add_to_basis(&mut rank, vector(packet, first, count));
            if rank.len() == usize::from(count) {
                break;
            }
        }
        // Sparse ones may happen to be dependent.
        prop_assume!(rank.len() == usize::from(count));
        receiver.delivered.sort_unstable_by_key(|esi| esi.wrapping_sub(first));
        let all: Vec<u32> = (0..u32::from(count)).map(|i| first.wrapping_add(i)).collect();
        prop_assert_eq!(&receiver.delivered, &all);
    }

    /// Whatever is lost, doubled and reordered, before and behind a recoder: nothing wrong is delivered, nothing twice.
    #[test]
    fn no_way_makes_a_wrong_packet(
        first: u32,
        window in 1..=64_u8,
        block: bool,
        density in 0..=15_u8,
        in_order: bool,
        fates in prop::collection::vec((0..10_u8, 0..10_u8, 0..40_usize), 600),
    ) {
        let code = if block { Code::Block(window) } else { Code::Window(window) };
        let mut encoder = Encoder::new(code, redundancy(1, 3), MAX_LEN, first);
        encoder.tune(redundancy(1, 3), density);
        let mut recoder = Recoder::new(8, redundancy(1, 4), MAX_LEN);
        let mut packets = Vec::new();
        for (packet, &(before, ..)) in send(&mut encoder, 200).into_iter().zip(&fates) {
            match before {
                0 => {}
                1 => packets.extend([packet.clone(), packet]),
                _ => packets.push(packet),
            }
        }
        let mut packets = recode(&mut recoder, &packets);
        let delays: Vec<_> = fates.iter().map(|&(.., delay)| if delay < 10 { delay } else { 0 }).collect();
        let mut at: Vec<usize> = (0..packets.len()).collect();
        at.sort_by_key(|&i| i + delays[i % delays.len()]);
        let delivery = if in_order { Delivery::InOrder } else { Delivery::Immediate };
        let mut receiver = Receiver::new(delivery);
        for i in at {
            if fates[i % fates.len()].1 > 1 {
                receiver.receive(&std::mem::take(&mut packets[i]));
            }
        }
        receiver.now_ns = 1_000_000;
        receiver.release();
        receiver.check(first.wrapping_sub(256), in_order);
        let counters = receiver.decoder.counters();
        prop_assert_eq!((counters.reset, counters.corrupt, counters.oversized), (0, 0, 0));
    }

    /// What is given up in order could not have been worked out: whoever waits for nothing gets no more.
    #[test]
    fn nothing_is_given_up_too_early(
        code in prop_oneof![(1..20_u8).prop_map(Code::Window), (1..20_u8).prop_map(Code::Block)],
        numerator in 1..4_u32,
        relay in prop_oneof![Just(None), (1..20_usize, any::<bool>()).prop_map(Some)],
        lost in prop::collection::vec(prop::bool::weighted(0.2), 400),
    ) {
        let mut encoder = Encoder::new(code, redundancy(numerator, 4), MAX_LEN, 0);
        let mut receivers = [Delivery::InOrder, Delivery::Immediate].map(Receiver::new);
        let mut losses = lost.into_iter().cycle();
        // The last packets may still wait for others.
        let mut packets = send(&mut encoder, 200);
        let mut is_lossy = true;
        if let Some((window, replaces)) = relay {
            packets.retain(|_| losses.next() == Some(false));
            let mut recoder = Recoder::new(window, redundancy(1, 2), MAX_LEN);
            packets = recode(&mut recoder, &packets);
            packets.retain(|packet| !replaces || packet.last() != Some(&0xa2));
            // A decoder must see once that there is a recoder.
            is_lossy = false;
        }
        for packet in &packets {
            if is_lossy && losses.next() == Some(true) {
                continue;
            }
            is_lossy |= packet.last() == Some(&0xa3);
            for receiver in &mut receivers {
                receiver.receive(packet);
            }
        }
        let [in_order, immediate] = &receivers;
        // In order, nothing comes out that lies before the packet it began with.
        let begun = in_order.delivered.first().copied();
        let given_up = |esi: &&u32| begun < Some(**esi) && in_order.delivered.last() > Some(*esi);
        let mut known: Vec<u32> = immediate.delivered.iter().filter(given_up).copied().collect();
        known.sort_unstable();
        known.retain(|esi| !in_order.delivered.contains(esi));
        prop_assert_eq!(known, []);
    }

    /// Whatever comes, nothing panics, and memory stays what it is.
    #[test]
    fn any_packets_are_survived(
        packets in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..500), 0..4_u8, 0..300_u16, 0..80_u8), 1..60,
        ),
        in_order: bool,
    ) {
        let delivery = if in_order { Delivery::InOrder } else { Delivery::Immediate };
        let mut decoder = Decoder::new(0, MAX_LEN);
        decoder.tune(delivery, 5);
        let mut recoder = Recoder::new(8, redundancy(1, 1), MAX_LEN);
        let mut out = [0; 1000];
        for (now_ns, (mut payload, kind, esi, count)) in (0..).zip(packets) {
            // Mostly such as belong together.
            if kind > 0 && payload.len() > 12 {
                *payload.last_mut().unwrap() = 0xa0 + kind;
                let [high, low] = esi.to_be_bytes();
                let len = payload.len();
                match kind {
                    1 => payload[len - 5..len - 1].copy_from_slice(&[0, 0, high, low]),
                    2 => payload[2..8].copy_from_slice(&[0xf0, count, 0, 0, high, low]),
                    _ => payload[..5].copy_from_slice(&[0, 0, high, low, count]),
                }
            }
            let mut sink = |_: Delivered<'_>| {};
            match Coded::parse(&payload) {
                Ok(Coded::Source { esi, payload }) => {
                    decoder.source(esi, &[payload], now_ns, &mut sink);
                    let _ = recoder.source(esi, &[payload]);
                }
                Ok(Coded::Repair { id, symbol }) => {
                    decoder.repair(id, symbol, now_ns, &mut sink);
                    let _ = recoder.repair(id, symbol);
                }
                Ok(Coded::Recoded { first, coefficients, symbol }) => {
                    decoder.recoded(first, coefficients, symbol, now_ns, &mut sink);
                    let _ = recoder.recoded(first, coefficients, symbol);
                }
                Err(_) => {}
            }
            decoder.release(now_ns, &mut sink);
            if let Some(len) = recoder.combine(&mut out) {
                prop_assert!(Coded::parse(&out[..len]).is_ok());
            }
        }
    }
}

/// The combination of the block's source packets that a packet is.
fn vector(packet: &[u8], first: u32, count: u8) -> Vec<u8> {
    let mut vector = vec![0; count.into()];
    match Coded::parse(packet).unwrap() {
        Coded::Source { esi, .. } => vector[esi.wrapping_sub(first) as usize] = 1,
        Coded::Repair { id, .. } => {
            myelin_coding::coefficients::generate(id.key, id.density, &mut vector);
        }
        Coded::Recoded { .. } => unreachable!("nobody recodes here"),
    }
    vector
}

/// Plain Gaussian elimination: adds the vector where it is independent of those before.
fn add_to_basis(basis: &mut Vec<Vec<u8>>, mut vector: Vec<u8>) {
    use myelin_coding::field::{inverse, mul};
    for row in basis.iter() {
        let pivot = row.iter().position(|&c| c != 0).unwrap();
        let factor = mul(vector[pivot], inverse(row[pivot]));
        for (to, &from) in vector.iter_mut().zip(row) {
            *to ^= mul(factor, from);
        }
    }
    if vector.iter().any(|&c| c != 0) {
        basis.push(vector);
    }
}
