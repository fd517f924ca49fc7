//! Sends packets of an encoder to a decoder, and checks the delivered packets.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use myelin_coding::{
    CodedPayload, Decoder, DeliveredPacket, Delivery, Encoder, Redundancy, SourceAction, wire,
};

pub(crate) const MAX_LEN: usize = 300;

pub(crate) fn redundancy(numerator: u32, denominator: u32) -> Redundancy {
    Redundancy::new(numerator, NonZeroU32::new(denominator).unwrap())
}

/// Returns the unit of packet `esi`. Its length and bytes depend only on `esi`.
pub(crate) fn unit(esi: u32) -> Vec<u8> {
    let len = esi.wrapping_mul(2_654_435_761) as usize % MAX_LEN;
    (0..len as u32)
        .map(|i| (esi.wrapping_mul(31) ^ i.wrapping_mul(i).wrapping_add(7)) as u8)
        .collect()
}

/// Returns the payload of a source packet in wire format.
pub(crate) fn source(esi: u32) -> Vec<u8> {
    [&unit(esi)[..], &wire::source_trailer(esi)].concat()
}

/// Returns the packets that an encoder sends for `count` units, with ESIs from `first` on.
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
    std::iter::from_fn(|| encoder.next_repair(&mut out).map(|len| out[..len].to_vec())).collect()
}

/// A decoder, and the ESIs of its delivered packets in order.
pub(crate) struct Receiver {
    pub(crate) decoder: Decoder,
    pub(crate) delivered: Vec<u32>,
    pub(crate) now_ns: u64,
}

impl Receiver {
    pub(crate) fn new(delivery: Delivery) -> Self {
        let mut decoder = Decoder::new(256, MAX_LEN);
        decoder.configure(delivery, 1_000_000);
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
        let mut sink = |packet: DeliveredPacket<'_>| {
            assert_eq!(packet.adu, unit(packet.esi), "packet {}", packet.esi);
            delivered.push(packet.esi);
        };
        match CodedPayload::parse(payload).unwrap() {
            CodedPayload::Source { esi, payload } => {
                if decoder.add_source(esi, &[payload], *now_ns, &mut sink) == SourceAction::Deliver
                {
                    delivered.push(esi);
                }
            }
            CodedPayload::Repair { id, symbol } => {
                decoder.add_repair(id, symbol, *now_ns, &mut sink);
            }
            CodedPayload::Recoded {
                first,
                coefficients,
                symbol,
            } => decoder.add_recoded(first, coefficients, symbol, *now_ns, &mut sink),
        }
        self.deliver();
    }

    pub(crate) fn deliver(&mut self) {
        let delivered = &mut self.delivered;
        self.decoder.deliver(self.now_ns, &mut |packet| {
            assert_eq!(packet.adu, unit(packet.esi), "packet {}", packet.esi);
            delivered.push(packet.esi);
        });
    }

    /// Checks that no packet was delivered twice. If `in_order`, also checks the order.
    pub(crate) fn check(&self, first: u32, in_order: bool) {
        let mut seen = BTreeSet::new();
        for &esi in &self.delivered {
            assert!(
                seen.insert(esi.wrapping_sub(first)),
                "packet {esi} delivered twice"
            );
        }
        if in_order {
            let offsets = self.delivered.iter().map(|esi| esi.wrapping_sub(first));
            assert!(offsets.is_sorted());
        }
    }
}
