//! A ring of packets. Packets of one chain with equal distances are one record.

use std::collections::VecDeque;

/// Packets of one chain, whose stamps have equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) chain: usize,
    pub(crate) packets: u32,
    /// Stamp of the first packet, ps.
    pub(crate) first_ps: u64,
    /// Distance of the stamps, ps.
    pub(crate) gap_ps: u64,
    /// Time from which the packets are in the ring, ns.
    pub(crate) ready_ns: u64,
}

impl Run {
    /// Stamp of a packet, ps.
    #[inline]
    fn stamp_ps(&self, packet: u32) -> u64 {
        self.first_ps + self.gap_ps.saturating_mul(packet.into())
    }

    /// Removes the first `packets`.
    #[inline]
    pub(crate) fn split_off_front(&mut self, packets: u32) -> Self {
        let front = Self { packets, ..*self };
        self.first_ps = self.stamp_ps(packets);
        self.packets -= packets;
        front
    }
}

/// A ring of bounded capacity.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    pub(crate) capacity: u32,
    runs: VecDeque<Run>,
    packets: u32,
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Whether reader and writer are on different cores. Such a ring joins no runs, because a
    /// reader would see the first packets of a joined run too late.
    pub(crate) crosses_cores: bool,
}

impl Ring {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            runs: VecDeque::new(),
            packets: 0,
            written: 0,
            read: 0,
            crosses_cores: false,
        }
    }

    /// Appends a run as far as it fits. Returns the number of packets that do not.
    #[inline]
    pub(crate) fn push(&mut self, mut run: Run) -> u32 {
        let offered = run.packets;
        run.packets = offered.min(self.room());
        if run.packets > 0 {
            self.packets += run.packets;
            self.written += u64::from(run.packets);
            match self.runs.back_mut() {
                Some(last) if !self.crosses_cores && follows(last, &run) => {
                    last.packets += run.packets;
                    last.ready_ns = run.ready_ns;
                }
                _ => self.runs.push_back(run),
            }
        }
        offered - run.packets
    }

    /// Packets that are in the ring at this time.
    #[inline]
    pub(crate) fn ready(&self, now_ns: u64) -> u32 {
        // The only core of a ring sees it after all its writes.
        if !self.crosses_cores {
            return self.packets;
        }
        let later = self.runs.iter().rev();
        let later = later.take_while(|run| run.ready_ns > now_ns);
        self.packets - later.map(|run| run.packets).sum::<u32>()
    }

    /// Adds `chains` to the number of each packet's chain.
    pub(crate) fn move_chains(&mut self, chains: usize) {
        self.runs.iter_mut().for_each(|run| run.chain += chains);
    }

    /// Packets that fit.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.capacity - self.packets
    }

    /// The oldest packet: chain and stamp, ps.
    #[inline]
    pub(crate) fn head(&self, now_ns: u64) -> Option<(usize, u64)> {
        let first = self.runs.front().filter(|run| run.ready_ns <= now_ns)?;
        Some((first.chain, first.first_ps))
    }

    /// The time from which the first packet is in the ring.
    pub(crate) fn first_ready_ns(&self) -> Option<u64> {
        self.runs.front().map(|run| run.ready_ns)
    }

    /// Removes the oldest packets, at most `packets` and at most one run.
    #[inline]
    pub(crate) fn take(&mut self, packets: u32) -> Option<Run> {
        let first = self.runs.front_mut()?;
        let taken = if first.packets <= packets {
            self.runs.pop_front()?
        } else {
            first.split_off_front(packets)
        };
        self.packets -= taken.packets;
        self.read += u64::from(taken.packets);
        Some(taken)
    }
}

/// Whether the stamps of `run` continue those of `last`.
#[inline]
fn follows(last: &Run, run: &Run) -> bool {
    last.chain == run.chain
        && last.gap_ps == run.gap_ps
        && last.stamp_ps(last.packets) == run.first_ps
        && last.packets.checked_add(run.packets).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(packets: u32, first_ps: u64) -> Run {
        Run {
            chain: 0,
            packets,
            first_ps,
            gap_ps: 10,
            ready_ns: first_ps,
        }
    }

    #[test]
    fn packets_leave_in_the_order_of_their_arrival_and_surplus_is_refused() {
        let mut ring = Ring::new(10);
        assert_eq!(ring.push(run(6, 100)), 0);
        assert_eq!(ring.push(run(6, 160)), 2);
        assert_eq!((ring.ready(200), ring.runs.len()), (10, 1), "one run");
        assert_eq!(ring.head(200), Some((0, 100)));
        let first = run(4, 100);
        let first = Run {
            ready_ns: 160,
            ..first
        };
        assert_eq!(ring.take(4), Some(first));
        assert_eq!(ring.head(200), Some((0, 140)));
        assert_eq!(ring.take(100).unwrap().packets, 6);
        assert_eq!(ring.take(1), None);
        assert_eq!((ring.written, ring.read), (10, 10));
    }

    #[test]
    fn packets_are_ready_from_their_time_on() {
        let mut ring = Ring::new(100);
        ring.crosses_cores = true;
        ring.push(run(3, 100));
        ring.push(run(4, 500));
        assert_eq!(
            (ring.ready(99), ring.ready(100), ring.ready(500)),
            (0, 3, 7)
        );
        assert_eq!((ring.head(99), ring.head(100)), (None, Some((0, 100))));
        assert_eq!(ring.first_ready_ns(), Some(100));
    }
}
