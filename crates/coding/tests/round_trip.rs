//! From the encoder over lossy ways and recoders to the decoder: what can be worked out is.

mod common;

use common::{MAX_LEN, Receiver, redundancy, repairs, send, source, unit};
use myelin_coding::{Code, Coded, Decoder, Delivered, Delivery, Encoder, Recoder, field};
use proptest::prelude::*;

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

/// The payload of a recoded packet: the sum of source packets from `first` on with these
/// coefficients.
fn recoded(first: u32, coefficients: &[u8]) -> Vec<u8> {
    let mut sum = Vec::new();
    for (esi, &coefficient) in (first..).zip(coefficients) {
        let unit = unit(esi);
        let [high, low] = (unit.len() as u16).to_be_bytes();
        let symbol = [&[0, high, low], &unit[..]].concat();
        sum.resize(sum.len().max(symbol.len()), 0);
        for (sum, byte) in sum.iter_mut().zip(symbol) {
            *sum ^= field::mul(coefficient, byte);
        }
    }
    let head = [&first.to_be_bytes()[..], &[coefficients.len() as u8]];
    [head[0], head[1], coefficients, &sum, &[0xa3]].concat()
}

#[test]
fn one_loss_in_each_window_is_worked_out() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 4), MAX_LEN, 0);
    let mut receiver = Receiver::new(Delivery::Immediate);
    let packets = send(&mut encoder, 0, 1000);
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
fn what_is_worked_out_at_once_solves_the_equations_it_is_in() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    receiver.receive(&source(0));
    receiver.receive(&source(4));
    // Of packets 1 to 3: nothing follows yet.
    receiver.receive(&recoded(1, &[7, 1, 200]));
    receiver.receive(&recoded(0, &[9, 3, 250, 5, 77]));
    assert_eq!(receiver.delivered, [0, 4]);
    // Of packets 0 to 2, but 1 is not in it.
    receiver.receive(&recoded(0, &[17, 0, 33]));
    receiver.delivered.sort_unstable();
    assert_eq!(receiver.delivered, [0, 1, 2, 3, 4]);
    assert_eq!(receiver.decoder.counters().recovered, 3);
}

#[test]
fn a_packet_without_the_missing_one_says_nothing() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    receiver.receive(&source(0));
    receiver.receive(&source(2));
    receiver.receive(&recoded(0, &[17, 0, 33]));
    assert_eq!(receiver.delivered, [0, 2]);
    let counters = receiver.decoder.counters();
    assert_eq!((counters.redundant, counters.recovered), (1, 0));
    receiver.receive(&recoded(0, &[0, 17]));
    assert_eq!(receiver.delivered, [0, 2, 1]);
}

#[test]
fn a_packet_shorter_than_what_it_is_made_of_is_damaged() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    // Packet 4 is longer than packet 5.
    receiver.receive(&source(4));
    receiver.receive(&source(6));
    let mut packet = recoded(4, &[1, 1]);
    let kind = packet.pop();
    packet.truncate(packet.len() + unit(5).len() - unit(4).len());
    packet.extend(kind);
    receiver.receive(&packet);
    assert_eq!(receiver.delivered, [4, 6]);
    assert_eq!(receiver.decoder.counters().corrupt, 1);
}

#[test]
fn a_block_is_protected_behind_its_end_and_a_flush_ends_it() {
    let mut encoder = Encoder::new(Code::Block(8), redundancy(1, 4), MAX_LEN, 0);
    let packets = send(&mut encoder, 0, 11);
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
    send(&mut encoder, 11, 7);
    let last = send(&mut encoder, 18, 1);
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
        for number in 0..PACKETS {
            for packet in send(&mut encoder, first.wrapping_add(number), 1) {
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

    /// As many combinations as there are source packets give them back, whichever arrive and in
    /// whatever order, as soon as they are linearly independent.
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
        let mut packets = send(&mut encoder, first, count.into());
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

    /// Whatever is lost, doubled and reordered, before and behind a recoder: nothing wrong is
    /// delivered, nothing twice.
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
        for (packet, &(before, ..)) in send(&mut encoder, first, 200).into_iter().zip(&fates) {
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

    /// What is given up in order could not have been worked out: a receiver that waits for nothing gets no
    /// more.
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
        let mut packets = send(&mut encoder, 0, 200);
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
                Some(Coded::Source { esi, payload }) => {
                    decoder.source(esi, &[payload], now_ns, &mut sink);
                    let _ = recoder.source(esi, &[payload]);
                }
                Some(Coded::Repair { id, symbol }) => {
                    decoder.repair(id, symbol, now_ns, &mut sink);
                    let _ = recoder.repair(id, symbol);
                }
                Some(Coded::Recoded { first, coefficients, symbol }) => {
                    decoder.recoded(first, coefficients, symbol, now_ns, &mut sink);
                    let _ = recoder.recoded(first, coefficients, symbol);
                }
                None => {}
            }
            decoder.release(now_ns, &mut sink);
            if let Some(len) = recoder.combine(&mut out) {
                prop_assert!(Coded::parse(&out[..len]).is_some());
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
