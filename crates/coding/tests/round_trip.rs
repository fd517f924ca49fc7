//! Sends packets from the encoder over lossy paths and recoders to the decoder. The decoder
//! recovers every solvable packet.

mod common;

use common::{MAX_LEN, Receiver, redundancy, repairs, send, source, unit};
use myelin_coding::{
    Code, CodedPayload, Decoder, DeliveredPacket, Delivery, Encoder, Recoder, field,
};
use proptest::prelude::*;

/// Returns the packets that a recoder receives together with the packets that it makes.
fn recode(recoder: &mut Recoder, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut out = [0xdd; 2 * MAX_LEN];
    let mut passed = Vec::new();
    for packet in packets {
        match CodedPayload::parse(packet).unwrap() {
            CodedPayload::Source { esi, payload } => recoder.add_source(esi, &[payload]),
            CodedPayload::Repair { id, symbol } => recoder.add_repair(id, symbol),
            CodedPayload::Recoded {
                first,
                coefficients,
                symbol,
            } => recoder.add_recoded(first, coefficients, symbol),
        }
        .unwrap();
        passed.push(packet.clone());
        while let Some(len) = recoder.next_recoded(&mut out) {
            passed.push(out[..len].to_vec());
        }
    }
    passed
}

/// Returns the payload of a recoded packet. It is the sum of the source packets from `first` on,
/// each multiplied by its coefficient.
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
fn one_loss_in_each_window_is_recovered() {
    let mut encoder = Encoder::new(Code::Window(8), redundancy(1, 4), MAX_LEN, 0);
    let mut receiver = Receiver::new(Delivery::Immediate);
    let packets = send(&mut encoder, 0, 1000);
    assert_eq!(packets.len(), 1250);
    for (i, packet) in packets.iter().enumerate() {
        // Four source packets precede each repair packet. The second of the four is lost.
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
fn a_directly_recovered_packet_solves_its_equations() {
    let mut receiver = Receiver::new(Delivery::Immediate);
    receiver.receive(&source(0));
    receiver.receive(&source(4));
    // A combination of packets 1 to 3 alone recovers none of them.
    receiver.receive(&recoded(1, &[7, 1, 200]));
    receiver.receive(&recoded(0, &[9, 3, 250, 5, 77]));
    assert_eq!(receiver.delivered, [0, 4]);
    // A combination of packets 0 and 2.
    receiver.receive(&recoded(0, &[17, 0, 33]));
    receiver.delivered.sort_unstable();
    assert_eq!(receiver.delivered, [0, 1, 2, 3, 4]);
    assert_eq!(receiver.decoder.counters().recovered, 3);
}

#[test]
fn a_coded_packet_without_a_missing_source_packet_is_redundant() {
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
fn a_coded_packet_shorter_than_its_source_packets_is_corrupt() {
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
fn repair_packets_follow_a_block_and_a_flush_ends_it() {
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
    let CodedPayload::Repair { id, .. } = CodedPayload::parse(&tail[0]).unwrap() else {
        panic!("a source packet");
    };
    assert_eq!((tail.len(), id.first, id.count), (1, 8, 3));
    encoder.flush();
    assert_eq!(repairs(&mut encoder).len(), 0, "nothing is unprotected");
    // The next block begins after the flushed one.
    send(&mut encoder, 11, 7);
    let last = send(&mut encoder, 18, 1);
    let CodedPayload::Repair { id, .. } = CodedPayload::parse(&last[1]).unwrap() else {
        panic!("a source packet");
    };
    assert_eq!((id.first, id.count), (11, 8));
}

#[test]
fn a_stream_recovers_across_the_wrap_of_the_esis() {
    recover_stream(10_000);
}

#[test]
#[ignore = "thorough: codes 100000 packets"]
fn a_long_stream_recovers_across_the_wrap_of_the_esis() {
    recover_stream(100_000);
}

fn recover_stream(packets: u32) {
    let first = u32::MAX - packets / 2;
    let mut encoder = Encoder::new(Code::Window(16), redundancy(1, 2), MAX_LEN, first);
    let mut random = myelin_coding::TinyMt32::new(7);
    for delivery in [Delivery::Immediate, Delivery::InOrder] {
        let mut receiver = Receiver::new(delivery);
        encoder.restart(first);
        let mut delayed = Vec::new();
        for number in 0..packets {
            for packet in send(&mut encoder, first.wrapping_add(number), 1) {
                match random.next_256() {
                    0..15 => {}
                    15..20 => delayed.push(packet),
                    20..24 => {
                        receiver.receive(&packet);
                        receiver.receive(&packet);
                    }
                    _ => receiver.receive(&packet),
                }
            }
            if delayed.len() == 3 {
                delayed
                    .drain(..)
                    .for_each(|packet| receiver.receive(&packet));
            }
        }
        receiver.check(first, delivery == Delivery::InOrder);
        let counters = receiver.decoder.counters();
        assert_eq!((counters.reset, counters.corrupt), (0, 0));
        // There is one repair packet for two source packets, and one packet in 17 is lost. At most
        // 1 % of the source packets stay lost.
        assert!(receiver.delivered.len() as u32 > packets - packets / 100);
        assert!(counters.recovered > u64::from(packets) / 25);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// As many linearly independent packets as the block has source packets recover the block, in
    /// any order.
    #[test]
    fn any_independent_packets_recover_the_block(
        count in 1..=64_u8,
        first: u32,
        sparse: bool,
        order in any::<prop::sample::Index>(),
        lost in prop::collection::vec(any::<bool>(), 64),
    ) {
        let mut encoder = Encoder::new(Code::Block(count), redundancy(2, 1), MAX_LEN, first);
        encoder.configure(redundancy(2, 1), if sparse { 3 } else { 15 });
        let mut packets = send(&mut encoder, first, count.into());
        prop_assert_eq!(packets.len(), 3 * usize::from(count));
        let mut keep = lost.iter().take(count.into()).map(|lost| !lost).chain(std::iter::repeat(true));
        packets.retain(|_| keep.next().unwrap());
        let at = order.index(packets.len());
        packets.rotate_left(at);
        let mut receiver = Receiver::new(Delivery::Immediate);
        let mut basis = Vec::new();
        for packet in &packets {
            receiver.receive(packet);
            add_to_basis(&mut basis, coefficients_of(packet, first, count));
            if basis.len() == usize::from(count) {
                break;
            }
        }
        // Sparse packets may be linearly dependent.
        prop_assume!(basis.len() == usize::from(count));
        receiver.delivered.sort_unstable_by_key(|esi| esi.wrapping_sub(first));
        let all: Vec<u32> = (0..u32::from(count)).map(|i| first.wrapping_add(i)).collect();
        prop_assert_eq!(&receiver.delivered, &all);
    }

    /// With losses, duplicates and reordering before and after a recoder, the decoder delivers no
    /// wrong packet and no packet twice.
    #[test]
    fn loss_duplication_and_reordering_deliver_no_wrong_packet(
        first: u32,
        window in 1..=64_u8,
        block: bool,
        density in 0..=15_u8,
        in_order: bool,
        packet_outcomes in prop::collection::vec((0..10_u8, 0..10_u8, 0..40_usize), 600),
    ) {
        let code = if block { Code::Block(window) } else { Code::Window(window) };
        let mut encoder = Encoder::new(code, redundancy(1, 3), MAX_LEN, first);
        encoder.configure(redundancy(1, 3), density);
        let mut recoder = Recoder::new(8, redundancy(1, 4), MAX_LEN);
        let mut packets = Vec::new();
        for (packet, &(before, ..)) in send(&mut encoder, first, 200).into_iter().zip(&packet_outcomes) {
            match before {
                0 => {}
                1 => packets.extend([packet.clone(), packet]),
                _ => packets.push(packet),
            }
        }
        let mut packets = recode(&mut recoder, &packets);
        let delays: Vec<_> = packet_outcomes.iter().map(|&(.., delay)| if delay < 10 { delay } else { 0 }).collect();
        let mut at: Vec<usize> = (0..packets.len()).collect();
        at.sort_by_key(|&i| i + delays[i % delays.len()]);
        let delivery = if in_order { Delivery::InOrder } else { Delivery::Immediate };
        let mut receiver = Receiver::new(delivery);
        for i in at {
            if packet_outcomes[i % packet_outcomes.len()].1 > 1 {
                receiver.receive(&std::mem::take(&mut packets[i]));
            }
        }
        receiver.now_ns = 1_000_000;
        receiver.deliver();
        receiver.check(first.wrapping_sub(256), in_order);
        let counters = receiver.decoder.counters();
        prop_assert_eq!((counters.reset, counters.corrupt, counters.oversized), (0, 0, 0));
    }

    /// Delivery in order loses only unsolvable packets. Immediate delivery recovers no more
    /// packets.
    #[test]
    fn in_order_delivery_loses_no_solvable_packet(
        code in prop_oneof![(1..20_u8).prop_map(Code::Window), (1..20_u8).prop_map(Code::Block)],
        numerator in 1..4_u32,
        relay in prop_oneof![Just(None), (1..20_usize, any::<bool>()).prop_map(Some)],
        lost in prop::collection::vec(prop::bool::weighted(0.2), 400),
    ) {
        let mut encoder = Encoder::new(code, redundancy(numerator, 4), MAX_LEN, 0);
        let mut receivers = [Delivery::InOrder, Delivery::Immediate].map(Receiver::new);
        let mut losses = lost.into_iter().cycle();
        // The last packets may still wait for other packets.
        let mut packets = send(&mut encoder, 0, 200);
        let mut is_lossy = true;
        if let Some((window, replaces)) = relay {
            packets.retain(|_| losses.next() == Some(false));
            let mut recoder = Recoder::new(window, redundancy(1, 2), MAX_LEN);
            packets = recode(&mut recoder, &packets);
            packets.retain(|packet| !replaces || packet.last() != Some(&0xa2));
            // The decoder must receive a recoded packet before the losses start.
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
        // In order, the decoder delivers no packet before the first delivered one.
        let first = in_order.delivered.first().copied();
        let is_expected = |esi: &&u32| first < Some(**esi) && in_order.delivered.last() > Some(*esi);
        let mut known: Vec<u32> = immediate.delivered.iter().filter(is_expected).copied().collect();
        known.sort_unstable();
        known.retain(|esi| !in_order.delivered.contains(esi));
        prop_assert_eq!(known, []);
    }

    /// No payload makes the decoder or the recoder panic.
    #[test]
    fn any_bytes_cause_no_panic(
        packets in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..500), 0..4_u8, 0..300_u16, 0..80_u8), 1..60,
        ),
        in_order: bool,
    ) {
        let delivery = if in_order { Delivery::InOrder } else { Delivery::Immediate };
        let mut decoder = Decoder::new(0, MAX_LEN);
        decoder.configure(delivery, 5);
        let mut recoder = Recoder::new(8, redundancy(1, 1), MAX_LEN);
        let mut out = [0; 1000];
        for (now_ns, (mut payload, kind, esi, count)) in (0..).zip(packets) {
            // Most payloads are valid packets of one stream.
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
            let mut sink = |_: DeliveredPacket<'_>| {};
            match CodedPayload::parse(&payload) {
                Some(CodedPayload::Source { esi, payload }) => {
                    decoder.add_source(esi, &[payload], now_ns, &mut sink);
                    let _ = recoder.add_source(esi, &[payload]);
                }
                Some(CodedPayload::Repair { id, symbol }) => {
                    decoder.add_repair(id, symbol, now_ns, &mut sink);
                    let _ = recoder.add_repair(id, symbol);
                }
                Some(CodedPayload::Recoded { first, coefficients, symbol }) => {
                    decoder.add_recoded(first, coefficients, symbol, now_ns, &mut sink);
                    let _ = recoder.add_recoded(first, coefficients, symbol);
                }
                None => {}
            }
            decoder.deliver(now_ns, &mut sink);
            if let Some(len) = recoder.make_recoded(&mut out) {
                prop_assert!(CodedPayload::parse(&out[..len]).is_some());
            }
        }
    }
}

/// Returns the coefficients of a packet over the source packets of its block.
fn coefficients_of(packet: &[u8], first: u32, count: u8) -> Vec<u8> {
    let mut vector = vec![0; count.into()];
    match CodedPayload::parse(packet).unwrap() {
        CodedPayload::Source { esi, .. } => vector[esi.wrapping_sub(first) as usize] = 1,
        CodedPayload::Repair { id, .. } => {
            myelin_coding::coefficients::generate(id.key, id.density, &mut vector);
        }
        CodedPayload::Recoded { .. } => unreachable!("this test has no recoder"),
    }
    vector
}

/// Adds a vector to a basis if it is independent of the basis, by plain Gaussian elimination.
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
