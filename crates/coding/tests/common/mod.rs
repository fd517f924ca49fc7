//! An encoder's packets, and a decoder that checks what it delivers.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use myelin_coding::{Arrival, Coded, Decoder, Delivered, Delivery, Encoder, Redundancy, wire};

pub(crate) const MAX_LEN: usize = 300;

pub(crate) fn redundancy(numerator: u32, denominator: u32) -> Redundancy {
    Redundancy::new(numerator, NonZeroU32::new(denominator).unwrap())
}

/// The unit of that number: its length and bytes depend on the number alone.
pub(crate) fn unit(esi: u32) -> Vec<u8> {
    let len = esi.wrapping_mul(2_654_435_761) as usize % MAX_LEN;
    (0..len as u32)
        .map(|i| (esi.wrapping_mul(31) ^ i.wrapping_mul(i).wrapping_add(7)) as u8)
        .collect()
}

/// A packet's payload, as it is on the wire.
pub(crate) fn source(esi: u32) -> Vec<u8> {
    [&unit(esi)[..], &wire::source_trailer(esi)].concat()
}

/// The packets that an encoder sends for `count` units, the first of which has the number `first`.
pub(crate) fn send(encoder: &mut Encoder, first: u32, count: u32) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for esi in (0..count).map(|i| first.wrapping_add(i)) {
        assert_eq!(encoder.push(&[&unit(esi)]), Some(esi));
        packets.push(source(esi));
        packets.extend(repairs(encoder));
    }
    packets
}

pub(crate) fn repairs(encoder: &mut Encoder) -> Vec<Vec<u8>> {
    let mut out = [0xee; 2 * MAX_LEN];
    std::iter::from_fn(|| encoder.repair(&mut out).map(|len| out[..len].to_vec())).collect()
}

/// A decoder, and what it delivered in which order.
pub(crate) struct Receiver {
    pub(crate) decoder: Decoder,
    pub(crate) delivered: Vec<u32>,
    pub(crate) now_ns: u64,
}

impl Receiver {
    pub(crate) fn new(delivery: Delivery) -> Self {
        let mut decoder = Decoder::new(256, MAX_LEN);
        decoder.tune(delivery, 1_000_000);
        Self {
            decoder,
            delivered: Vec::new(),
            now_ns: 0,
        }
    }

    pub(crate) fn receive(&mut self, payload: &[u8]) {
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

    pub(crate) fn release(&mut self) {
        let delivered = &mut self.delivered;
        self.decoder.release(self.now_ns, &mut |packet| {
            assert_eq!(packet.adu, unit(packet.esi), "packet {}", packet.esi);
            delivered.push(packet.esi);
        });
    }

    /// No packet twice, and in order of the numbers from `first` on where they should be.
    pub(crate) fn check(&self, first: u32, in_order: bool) {
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
