//! The packets that a worker hands from function to function.

use crate::{Packet, Verdict};

/// Packets on their way through a chain, in order, and those that were dropped on it.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    packets: Vec<Packet<'a>>,
    dropped: Vec<Packet<'a>>,
}

impl<'a> Batch<'a> {
    /// An empty batch with room for `capacity` packets.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            packets: Vec::with_capacity(capacity),
            dropped: Vec::with_capacity(capacity),
        }
    }

    /// Adds a packet behind the others.
    #[inline]
    pub fn push(&mut self, packet: Packet<'a>) {
        self.packets.push(packet);
    }

    /// The packets that go on, in the order they came.
    #[inline]
    pub fn packets(&self) -> &[Packet<'a>] {
        &self.packets
    }

    /// The packets that go on, to change.
    #[inline]
    pub fn packets_mut(&mut self) -> &mut [Packet<'a>] {
        &mut self.packets
    }

    /// The packets that were dropped since the batch was last emptied, in no order; their buffers
    /// are still the caller's to free.
    #[inline]
    pub fn dropped(&self) -> &[Packet<'a>] {
        &self.dropped
    }

    /// Packets that go on.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether no packet goes on.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Asks `verdict` for each packet in order and takes out the dropped ones. Returns how many
    /// these are.
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

    /// An empty batch in the same memory, for packets of another lifetime: a worker allocates once.
    #[must_use]
    pub fn recycle<'b>(self) -> Batch<'b> {
        Batch {
            packets: emptied(self.packets),
            dropped: emptied(self.dropped),
        }
    }
}

/// The memory of `packets` as an empty vector of another lifetime: the standard library collects in
/// place when the layouts are equal.
fn emptied<'b>(mut packets: Vec<Packet<'_>>) -> Vec<Packet<'b>> {
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
        fn retain_keeps_the_order_and_loses_none(
            verdicts in prop::collection::vec(prop::collection::vec(any::<bool>(), 40), 1..4),
            count in 0..40_usize,
        ) {
            let mut memory = buffers(count);
            let mut batch = Batch::with_capacity(0);
            fill(&mut batch, &mut memory);
            let mut kept: Vec<u32> = (0..count as u32).collect();
            let mut gone: Vec<u32> = Vec::new();
            for verdict in &verdicts {
                let keeps = |token: u32| verdict[token as usize];
                let dropped = batch.retain(|packet| {
                    if keeps(packet.token()) { Verdict::Forward } else { Verdict::Drop }
                });
                let (stay, go): (Vec<u32>, Vec<u32>) = kept.iter().partition(|token| keeps(**token));
                prop_assert_eq!(dropped, go.len());
                kept = stay;
                gone.extend(go);
                gone.sort_unstable();
                prop_assert_eq!(tokens(batch.packets()), kept.clone());
                let mut dropped = tokens(batch.dropped());
                dropped.sort_unstable();
                prop_assert_eq!(&dropped, &gone);
            }
        }
    }
}
