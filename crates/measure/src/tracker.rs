//! Which packet of a repeat was answered, when, and what else happened to it.
//!
//! All room is taken before the measurement; nothing here allocates while packets are under way.

use myelin_metrics::Counts;

/// A time that fits no sample: the packet is under way, is lost, or came after its timeout.
const PENDING: u32 = u32::MAX;
const LOST: u32 = u32::MAX - 1;
const LATE: u32 = u32::MAX - 2;
/// The longest time a sample can hold, nanoseconds (4.29 s); timeouts stay below it.
pub(crate) const LONGEST_SAMPLE_NS: u64 = (u32::MAX - 3) as u64;

/// When an answered packet was where, nanoseconds of CLOCK_MONOTONIC.
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
    /// Before this one all are answered or given up.
    oldest: usize,
    outstanding: usize,
    /// One more than the highest id answered so far.
    next_expected: usize,
    pub(crate) counts: Counts,
}

/// One packet, nanoseconds; its round trip may be [`PENDING`], [`LOST`] or [`LATE`] within the tracker.
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
    /// With room for repeats of up to `capacity` packets.
    pub(crate) fn new(capacity: usize, timeout_ns: u64) -> Self {
        // Written to, since a page fault at its first use would fall into a round trip.
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

    /// Forgets the last repeat's packets; the counts go on.
    pub(crate) fn begin(&mut self) {
        self.packets.clear();
        self.oldest = 0;
        self.outstanding = 0;
        self.next_expected = 0;
    }

    /// Packets sent in this repeat: also the id of the next.
    pub(crate) fn sent(&self) -> usize {
        self.packets.len()
    }

    /// Packets sent, not answered and not given up.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// One more than the highest id answered so far.
    pub(crate) fn next_expected(&self) -> usize {
        self.next_expected
    }

    /// When the oldest packet under way is given up.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        (self.outstanding > 0).then(|| {
            self.packets[self.oldest]
                .sent_ns
                .saturating_add(self.timeout_ns)
        })
    }

    /// Notes that the next packet leaves now. The caller stays within the capacity.
    pub(crate) fn send(&mut self, now: u64) {
        debug_assert!(self.packets.len() < self.packets.capacity());
        self.packets.push(Sample::sent(now));
        self.outstanding += 1;
        self.counts.sent += 1;
    }

    /// Gives up what has waited for longer than the timeout. True when something was given up.
    pub(crate) fn expire(&mut self, now: u64) -> bool {
        let mut gave_up = false;
        while self.outstanding > 0 {
            let packet = &mut self.packets[self.oldest];
            if packet.rtt_ns == PENDING {
                if now.saturating_sub(packet.sent_ns) <= self.timeout_ns {
                    break;
                }
                packet.rtt_ns = LOST;
                self.outstanding -= 1;
                self.counts.lost += 1;
                gave_up = true;
            }
            self.oldest += 1;
        }
        // The loop above may end on answered packets; the expiry time is that of the first one pending.
        self.skip_decided();
        gave_up
    }

    /// Notes the answer to packet `id`. False when no such packet was sent in this repeat.
    pub(crate) fn answer(&mut self, id: u64, times: Times) -> bool {
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
                    packet.forward_ns = narrow(times.server_receive.saturating_sub(packet.sent_ns));
                    packet.reply_ns =
                        narrow(times.client_receive.saturating_sub(times.server_send));
                    self.counts.received += 1;
                }
                self.note_order(i);
                self.skip_decided();
            }
            LOST => {
                packet.rtt_ns = LATE;
                self.counts.late += 1;
                self.note_order(i);
            }
            _ => self.counts.duplicates += 1,
        }
        true
    }

    /// How long ago packet `id` of this repeat was sent, nanoseconds.
    pub(crate) fn age(&self, id: u64, now: u64) -> u64 {
        let packet = self.packets.get(id as usize);
        packet.map_or(u64::MAX, |packet| now.saturating_sub(packet.sent_ns))
    }

    /// Notes an answer to a packet of an earlier repeat, whose fate is no longer known one by one.
    pub(crate) fn answer_to_earlier(&mut self) {
        if self.counts.late < self.counts.lost {
            self.counts.late += 1;
        } else {
            self.counts.duplicates += 1;
        }
    }

    /// Takes packets under way out of the count: the run was stopped before their fate was known.
    pub(crate) fn abandon(&mut self) {
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

    /// Goes on to the first packet under way.
    fn skip_decided(&mut self) {
        while self.outstanding > 0 && self.packets[self.oldest].rtt_ns != PENDING {
            self.oldest += 1;
        }
    }

    fn note_order(&mut self, i: usize) {
        if i < self.next_expected {
            self.counts.reordered += 1;
        } else {
            self.next_expected = i + 1;
        }
    }
}

fn narrow(ns: u64) -> u32 {
    ns.min(LONGEST_SAMPLE_NS) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: u64 = 1000;

    fn at(client_receive: u64) -> Times {
        Times {
            server_receive: client_receive.saturating_sub(6),
            server_send: client_receive.saturating_sub(4),
            client_receive,
        }
    }

    fn sent(times: &[u64]) -> Tracker {
        let mut tracker = Tracker::new(times.len(), TIMEOUT);
        tracker.begin();
        for &t in times {
            tracker.send(t);
        }
        tracker
    }

    #[test]
    fn answers_in_order_give_samples() {
        let mut tracker = sent(&[100, 200]);
        assert_eq!(tracker.next_expiry(), Some(1100));
        assert!(tracker.answer(0, at(110)));
        assert_eq!(tracker.next_expiry(), Some(1200));
        assert!(tracker.answer(1, at(215)));
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
    fn lost_late_duplicate_reordered_and_unknown() {
        let mut tracker = sent(&[0, 10, 20, 30]);
        assert!(tracker.answer(1, at(50)));
        assert!(tracker.answer(0, at(60)), "after a later one: reordered");
        assert!(tracker.answer(1, at(70)), "again: duplicate");
        assert!(!tracker.expire(1020), "exactly at the timeout is in time");
        assert!(tracker.expire(1021), "packet 2");
        assert!(
            tracker.answer(3, at(1031)),
            "not yet given up, but past its timeout"
        );
        assert!(tracker.answer(2, at(1040)), "after it was given up");
        assert!(tracker.answer(2, at(1050)));
        assert!(!tracker.answer(4, at(1060)), "never sent");
        assert!(!tracker.answer(u64::MAX, at(1060)));
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
    fn answers_to_earlier_repeats() {
        let mut tracker = sent(&[0]);
        tracker.expire(5000);
        tracker.begin();
        tracker.answer_to_earlier();
        tracker.answer_to_earlier();
        assert_eq!((tracker.counts.late, tracker.counts.duplicates), (1, 1));
    }

    #[test]
    fn abandoned_packets_are_neither_sent_nor_lost() {
        let mut tracker = sent(&[0, 10]);
        tracker.answer(0, at(5));
        tracker.abandon();
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
        /// Whatever arrives in whatever order: every packet is received, lost or under way, and a plain model agrees.
        #[test]
        fn agrees_with_a_plain_model(arrivals in prop::collection::vec((0..12_u64, 0..3000_u64), 0..60)) {
            let mut arrivals = arrivals;
            arrivals.sort_by_key(|&(_, time)| time);
            let mut tracker = sent(&[0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
            let mut first = std::collections::BTreeMap::new();
            let (mut duplicates, mut reordered, mut highest) = (0, 0, None);
            for &(id, time) in &arrivals {
                let time = time + 1000; // all were sent by then
                tracker.expire(time);
                prop_assert_eq!(tracker.answer(id, at(time)), id < 10);
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
