//! Tracks whether each packet of a repeat is answered, lost, late, duplicate or reordered.
//!
//! The tracker allocates before the measurement, and never while packets are in flight.

use myelin_metrics::Counts;

/// Round trip of a packet in flight. This value and the next two are outside the range of samples.
const PENDING: u32 = u32::MAX;
/// Round trip of a lost packet.
const LOST: u32 = u32::MAX - 1;
/// Round trip of a packet that was answered after its timeout.
const LATE: u32 = u32::MAX - 2;
/// The longest time of a sample, ns (4.29 s). Timeouts are not longer.
pub(crate) const LONGEST_SAMPLE_NS: u64 = (u32::MAX - 3) as u64;

/// Times of an answered packet, nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) server_receive: u64,
    pub(crate) server_send: u64,
    pub(crate) client_receive: u64,
}

/// The packets of one repeat.
#[derive(Debug)]
pub(crate) struct Tracker {
    timeout_ns: u64,
    packets: Vec<Sample>,
    /// All packets before this index are answered or lost.
    oldest: usize,
    outstanding: usize,
    /// One more than the highest id answered so far.
    next_expected: usize,
    pub(crate) counts: Counts,
}

/// Times of one packet, nanoseconds. Inside the tracker, the round trip may be [`PENDING`],
/// [`LOST`] or [`LATE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) sent_ns: u64,
    pub(crate) rtt_ns: u32,
    pub(crate) forward_ns: u32,
    pub(crate) reply_ns: u32,
}

impl Sample {
    fn sent(sent_ns: u64) -> Self {
        Self {
            sent_ns,
            rtt_ns: PENDING,
            forward_ns: 0,
            reply_ns: 0,
        }
    }
}

impl Tracker {
    /// Makes a tracker for repeats of up to `capacity` packets.
    pub(crate) fn new(capacity: usize, timeout_ns: u64) -> Self {
        // Write all elements, because a page fault at their first use would delay a round trip.
        let mut packets = vec![Sample::sent(u64::MAX); capacity];
        packets.clear();
        Self {
            timeout_ns: timeout_ns.min(LONGEST_SAMPLE_NS),
            packets,
            oldest: 0,
            outstanding: 0,
            next_expected: 0,
            counts: Counts::default(),
        }
    }

    /// Removes the packets of the last repeat. The counts continue.
    pub(crate) fn begin_repeat(&mut self) {
        self.packets.clear();
        self.oldest = 0;
        self.outstanding = 0;
        self.next_expected = 0;
    }

    /// Number of packets sent in this repeat. This is also the id of the next packet.
    pub(crate) fn sent(&self) -> usize {
        self.packets.len()
    }

    /// Number of packets that are neither answered nor lost.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// One more than the highest id answered so far.
    pub(crate) fn next_expected(&self) -> usize {
        self.next_expected
    }

    /// Time at which the oldest packet in flight is lost.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        (self.outstanding > 0).then(|| {
            self.packets[self.oldest]
                .sent_ns
                .saturating_add(self.timeout_ns)
        })
    }

    /// Records that the client sends the next packet now. The caller must not exceed the capacity.
    pub(crate) fn record_send(&mut self, now: u64) {
        debug_assert!(self.packets.len() < self.packets.capacity());
        self.packets.push(Sample::sent(now));
        self.outstanding += 1;
        self.counts.sent += 1;
    }

    /// Counts packets older than the timeout as lost. Returns whether a packet was lost.
    pub(crate) fn expire(&mut self, now: u64) -> bool {
        let mut is_any_lost = false;
        while self.outstanding > 0 {
            let packet = &mut self.packets[self.oldest];
            if packet.rtt_ns == PENDING {
                if now.saturating_sub(packet.sent_ns) <= self.timeout_ns {
                    break;
                }
                packet.rtt_ns = LOST;
                self.outstanding -= 1;
                self.counts.lost += 1;
                is_any_lost = true;
            }
            self.oldest += 1;
        }
        // The loop may end at answered packets, but the next expiry is that of a packet in flight.
        self.skip_answered_and_lost();
        is_any_lost
    }

    /// Records the answer to packet `id`. Returns false if this repeat has sent no such packet.
    pub(crate) fn record_answer(&mut self, id: u64, times: Times) -> bool {
        let Some(i) = usize::try_from(id).ok().filter(|&i| i < self.sent()) else {
            return false;
        };
        let packet = &mut self.packets[i];
        match packet.rtt_ns {
            PENDING => {
                self.outstanding -= 1;
                let rtt = times.client_receive.saturating_sub(packet.sent_ns);
                if rtt > self.timeout_ns {
                    packet.rtt_ns = LATE;
                    self.counts.lost += 1;
                    self.counts.late += 1;
                } else {
                    packet.rtt_ns = rtt as u32;
                    packet.forward_ns =
                        saturate_to_sample(times.server_receive.saturating_sub(packet.sent_ns));
                    packet.reply_ns =
                        saturate_to_sample(times.client_receive.saturating_sub(times.server_send));
                    self.counts.received += 1;
                }
                self.record_order(i);
                self.skip_answered_and_lost();
            }
            LOST => {
                packet.rtt_ns = LATE;
                self.counts.late += 1;
                self.record_order(i);
            }
            _ => self.counts.duplicates += 1,
        }
        true
    }

    /// Returns the time since the client sent packet `id` of this repeat, ns.
    pub(crate) fn age(&self, id: u64, now: u64) -> u64 {
        let packet = self.packets.get(id as usize);
        packet.map_or(u64::MAX, |packet| now.saturating_sub(packet.sent_ns))
    }

    /// Records an answer to a packet of an earlier repeat. Only the counts of that repeat remain.
    pub(crate) fn record_earlier_answer(&mut self) {
        if self.counts.late < self.counts.lost {
            self.counts.late += 1;
        } else {
            self.counts.duplicates += 1;
        }
    }

    /// Removes packets in flight from the count of sent packets, because the run stopped before
    /// their answer or loss.
    pub(crate) fn forget_in_flight(&mut self) {
        self.counts.sent -= self.outstanding as u64;
        self.outstanding = 0;
    }

    /// The answered packets in the order of sending.
    pub(crate) fn samples(&self) -> impl Iterator<Item = Sample> + '_ {
        self.packets
            .iter()
            .filter(|packet| packet.rtt_ns < LATE)
            .copied()
    }

    /// Advances `oldest` to the first packet in flight.
    fn skip_answered_and_lost(&mut self) {
        while self.outstanding > 0 && self.packets[self.oldest].rtt_ns != PENDING {
            self.oldest += 1;
        }
    }

    fn record_order(&mut self, i: usize) {
        if i < self.next_expected {
            self.counts.reordered += 1;
        } else {
            self.next_expected = i + 1;
        }
    }
}

fn saturate_to_sample(ns: u64) -> u32 {
    ns.min(LONGEST_SAMPLE_NS) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: u64 = 1000;

    fn times_at(client_receive: u64) -> Times {
        Times {
            server_receive: client_receive.saturating_sub(6),
            server_send: client_receive.saturating_sub(4),
            client_receive,
        }
    }

    fn sent(times: &[u64]) -> Tracker {
        let mut tracker = Tracker::new(times.len(), TIMEOUT);
        tracker.begin_repeat();
        for &t in times {
            tracker.record_send(t);
        }
        tracker
    }

    #[test]
    fn answers_in_order_give_samples() {
        let mut tracker = sent(&[100, 200]);
        assert_eq!(tracker.next_expiry(), Some(1100));
        assert!(tracker.record_answer(0, times_at(110)));
        assert_eq!(tracker.next_expiry(), Some(1200));
        assert!(tracker.record_answer(1, times_at(215)));
        assert_eq!((tracker.outstanding(), tracker.next_expiry()), (0, None));
        let samples: Vec<Sample> = tracker.samples().collect();
        assert_eq!(
            samples[1],
            Sample {
                sent_ns: 200,
                rtt_ns: 15,
                forward_ns: 9,
                reply_ns: 4
            }
        );
        assert_eq!(
            tracker.counts,
            Counts {
                sent: 2,
                received: 2,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn each_packet_counts_as_lost_late_duplicate_or_reordered() {
        let mut tracker = sent(&[0, 10, 20, 30]);
        assert!(tracker.record_answer(1, times_at(50)));
        assert!(
            tracker.record_answer(0, times_at(60)),
            "packet 0 is reordered: its answer comes after that of packet 1"
        );
        assert!(
            tracker.record_answer(1, times_at(70)),
            "a duplicate is known"
        );
        assert!(
            !tracker.expire(1020),
            "a packet expires only after its timeout"
        );
        assert!(tracker.expire(1021), "packet 2 expires");
        assert!(
            tracker.record_answer(3, times_at(1031)),
            "packet 3 is late but not yet counted as lost"
        );
        assert!(
            tracker.record_answer(2, times_at(1040)),
            "packet 2 is late and already counted as lost"
        );
        assert!(tracker.record_answer(2, times_at(1050)));
        assert!(
            !tracker.record_answer(4, times_at(1060)),
            "packet 4 was never sent"
        );
        assert!(!tracker.record_answer(u64::MAX, times_at(1060)));
        assert_eq!(tracker.outstanding(), 0);
        let expected = Counts {
            sent: 4,
            received: 2,
            lost: 2,
            late: 2,
            reordered: 2,
            duplicates: 2,
            ..Counts::default()
        };
        assert_eq!(tracker.counts, expected);
        assert_eq!(tracker.samples().count(), 2);
    }

    #[test]
    fn answers_to_earlier_repeats_count_as_late_then_as_duplicates() {
        let mut tracker = sent(&[0]);
        tracker.expire(5000);
        tracker.begin_repeat();
        tracker.record_earlier_answer();
        tracker.record_earlier_answer();
        assert_eq!((tracker.counts.late, tracker.counts.duplicates), (1, 1));
    }

    #[test]
    fn forgotten_packets_are_neither_sent_nor_lost() {
        let mut tracker = sent(&[0, 10]);
        tracker.record_answer(0, times_at(5));
        tracker.forget_in_flight();
        assert_eq!(
            (
                tracker.counts.sent,
                tracker.counts.lost,
                tracker.outstanding()
            ),
            (1, 0, 0)
        );
    }

    proptest! {
        /// For any answers in any order, the counts agree with a plain model.
        #[test]
        fn agrees_with_a_plain_model(arrivals in prop::collection::vec((0..12_u64, 0..3000_u64), 0..60)) {
            let mut arrivals = arrivals;
            arrivals.sort_by_key(|&(_, time)| time);
            let mut tracker = sent(&[0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
            let mut first = std::collections::BTreeMap::new();
            let (mut duplicates, mut reordered, mut highest) = (0, 0, None);
            for &(id, time) in &arrivals {
                let time = time + 1000; // all packets are sent
                tracker.expire(time);
                prop_assert_eq!(tracker.record_answer(id, times_at(time)), id < 10);
                if id < 10 {
                    if let std::collections::btree_map::Entry::Vacant(e) = first.entry(id) {
                        e.insert(time);
                        reordered += u64::from(highest.is_some_and(|h| id < h));
                        highest = highest.max(Some(id));
                    } else {
                        duplicates += 1;
                    }
                }
            }
            let in_time = first.iter().filter(|&(&id, &time)| time - id * 100 <= TIMEOUT).count() as u64;
            let counts = tracker.counts;
            prop_assert_eq!((counts.duplicates, counts.reordered, counts.received), (duplicates, reordered, in_time));
            prop_assert_eq!(counts.late, first.len() as u64 - in_time);
            prop_assert_eq!(counts.sent, counts.received + counts.lost + tracker.outstanding() as u64);
            prop_assert_eq!(tracker.samples().count() as u64, in_time);
            if let Some(expiry) = tracker.next_expiry() {
                prop_assert!(!tracker.expire(expiry) && tracker.expire(expiry + 1));
            }
            tracker.expire(u64::MAX);
            prop_assert_eq!((tracker.counts.received + tracker.counts.lost, tracker.outstanding()), (10, 0));
        }
    }
}
