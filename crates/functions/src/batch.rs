//! A batch of packets, which a worker passes from function to function.

use crate::{Packet, Verdict};

/// The packets that a chain forwards, in order, and the packets that the chain dropped.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    packets: Vec<Packet<'a>>,
    dropped: Vec<Packet<'a>>,
}

impl<'a> Batch<'a> {
    /// Returns an empty batch with room for `capacity` packets.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            packets: Vec::with_capacity(capacity),
            dropped: Vec::with_capacity(capacity),
        }
    }

    /// Appends a packet.
    #[inline]
    pub fn push(&mut self, packet: Packet<'a>) {
        self.packets.push(packet);
    }

    /// Returns the forwarded packets, in order of arrival.
    #[inline]
    pub fn packets(&self) -> &[Packet<'a>] {
        &self.packets
    }

    /// Returns the forwarded packets, mutable.
    #[inline]
    pub fn packets_mut(&mut self) -> &mut [Packet<'a>] {
        &mut self.packets
    }

    /// Returns the packets dropped since the batch was last emptied, unordered. The caller frees
    /// their buffers.
    #[inline]
    pub fn dropped(&self) -> &[Packet<'a>] {
        &self.dropped
    }

    /// Returns the number of forwarded packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether a forwarded packet is a super-packet of several segments.
    #[inline]
    pub fn has_super_packets(&self) -> bool {
        self.packets.iter().any(|packet| packet.segments() > 1)
    }

    /// Returns the number of forwarded packets on the wire, where a super-packet is several.
    pub fn segments(&self) -> usize {
        let segments = self.packets.iter().map(Packet::segments);
        segments.sum::<u64>() as usize
    }

    /// Returns whether the batch has no forwarded packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Calls `verdict` on each packet in order and removes dropped packets. Returns the number of
    /// dropped packets.
    #[inline]
    pub fn retain(&mut self, mut verdict: impl FnMut(&mut Packet<'a>) -> Verdict) -> usize {
        let mut kept = 0;
        for at in 0..self.packets.len() {
            if verdict(&mut self.packets[at]) == Verdict::Forward {
                if kept != at {
                    self.packets.swap(kept, at);
                }
                kept += 1;
            }
        }
        let dropped = self.packets.len() - kept;
        if dropped > 0 {
            self.dropped.extend(self.packets.drain(kept..));
        }
        dropped
    }

    /// Returns an empty batch in the same memory, for packets of another lifetime, so that a worker
    /// allocates once.
    #[must_use]
    pub fn recycle<'b>(self) -> Batch<'b> {
        Batch {
            packets: clear_into(self.packets),
            dropped: clear_into(self.dropped),
        }
    }
}

/// Turns `packets` into an empty vector of another lifetime. The standard library collects in place
/// when the layouts are equal, so this does not allocate.
fn clear_into<'b>(mut packets: Vec<Packet<'_>>) -> Vec<Packet<'b>> {
    packets.clear();
    packets
        .into_iter()
        .map(|_| unreachable!("the vector was cleared"))
        .collect()
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::build;
    use myelin_packet::{Meta, parse};
    use proptest::prelude::*;

    use super::*;

    fn fill<'a>(batch: &mut Batch<'a>, buffers: &'a mut [Vec<u8>]) {
        let meta = Meta::new(0, 1, 1, 0, &parse(&frame()).unwrap());
        for (token, buffer) in buffers.iter_mut().enumerate() {
            let len = buffer.len();
            batch.push(Packet::new(buffer, 0, len, meta, token as u32).unwrap());
        }
    }

    fn frame() -> Vec<u8> {
        build::udp(build::client_v4(), build::server_v4(), &build::payload(8))
    }

    fn buffers(count: usize) -> Vec<Vec<u8>> {
        vec![frame(); count]
    }

    fn tokens(packets: &[Packet<'_>]) -> Vec<u32> {
        packets.iter().map(Packet::token).collect()
    }

    #[test]
    fn recycling_keeps_the_memory() {
        let mut batch = Batch::with_capacity(32);
        let memory = batch.packets.as_ptr() as usize;
        for _ in 0..3 {
            let mut round = buffers(32);
            let mut filled = batch.recycle();
            fill(&mut filled, &mut round);
            filled.retain(|packet| {
                if packet.token() < 16 {
                    Verdict::Drop
                } else {
                    Verdict::Forward
                }
            });
            batch = filled.recycle();
            assert!(batch.is_empty() && batch.dropped().is_empty());
            assert_eq!(
                (batch.packets.as_ptr() as usize, batch.packets.capacity()),
                (memory, 32)
            );
        }
    }

    proptest! {
        #[test]
        fn retain_keeps_the_order_and_every_packet(
            verdicts in prop::collection::vec(prop::collection::vec(any::<bool>(), 40), 1..4),
            count in 0..40_usize,
        ) {
            let mut memory = buffers(count);
            let mut batch = Batch::with_capacity(0);
            fill(&mut batch, &mut memory);
            let mut kept: Vec<u32> = (0..count as u32).collect();
            let mut all_dropped: Vec<u32> = Vec::new();
            for verdict in &verdicts {
                let is_kept = |token: u32| verdict[token as usize];
                let dropped = batch.retain(|packet| {
                    if is_kept(packet.token()) { Verdict::Forward } else { Verdict::Drop }
                });
                let (forwarded, removed): (Vec<u32>, Vec<u32>) = kept.iter().partition(|token| is_kept(**token));
                prop_assert_eq!(dropped, removed.len());
                kept = forwarded;
                all_dropped.extend(removed);
                all_dropped.sort_unstable();
                prop_assert_eq!(tokens(batch.packets()), kept.clone());
                let mut dropped = tokens(batch.dropped());
                dropped.sort_unstable();
                prop_assert_eq!(&dropped, &all_dropped);
            }
        }
    }
}
