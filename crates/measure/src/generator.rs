//! The traffic generator. One thread sends several streams of packets, each stream at its pace.
//!
//! A [`Pace`] computes the number of due packets. A delayed sender catches up or skips late packets
//! (see [`Late`]). A [`Stream`] is a pace and a function that sends one or more packets in a system
//! call. [`generate`] serves streams in turn.

use std::time::Duration;

use crate::clock::now_ns;

/// Treatment of due packets that the sender could not send in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Late {
    /// Send late packets as soon as possible. A sender that is later than this time, ns, restarts
    /// its timeline, because a burst to catch up would overflow queues that suffice for the
    /// requested rate.
    CatchUp(u64),
    /// Send at most this number of late packets, and skip the others. So the stream conforms to a
    /// profile with this burst, even if the machine stalls.
    Skip(u64),
}

/// Computes the number of due packets at a time.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Time between two packets, ns. 0 means as fast as possible.
    interval_ns: f64,
    late: Late,
    origin_ns: u64,
    /// Packets sent or skipped since `origin_ns`.
    done: u64,
    skipped: u64,
}

impl Pace {
    /// Makes a pace of `rate_pps` packets a second from `start_ns` on. Without a rate, as fast as
    /// possible.
    pub fn new(rate_pps: Option<f64>, late: Late, start_ns: u64) -> Self {
        Self {
            interval_ns: rate_pps.map_or(0.0, |pps| 1e9 / pps),
            late,
            origin_ns: start_ns,
            done: 0,
            skipped: 0,
        }
    }

    /// Returns the number of packets to send now.
    ///
    /// With [`Late::CatchUp`] the first packet is due at the start. With [`Late::Skip`] the first
    /// packet is due after the first interval, because no packet may be early.
    pub fn due(&mut self, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.origin_ns);
        match self.late {
            Late::CatchUp(max_lag_ns) => {
                let next_ns = (self.done as f64 * self.interval_ns) as u64;
                let Some(behind_ns) = elapsed_ns.checked_sub(next_ns) else {
                    return 0;
                };
                if behind_ns > max_lag_ns {
                    (self.origin_ns, self.done) = (now_ns, 0);
                    return 1;
                }
                ((behind_ns as f64 / self.interval_ns) as u64).saturating_add(1)
            }
            Late::Skip(max_late) => {
                let due = (elapsed_ns as f64 / self.interval_ns) as u64;
                let behind = due.saturating_sub(self.done);
                let late = behind.saturating_sub(max_late);
                self.skip(late);
                behind - late
            }
        }
    }

    /// Records that the sender has sent due packets.
    pub fn record_sent(&mut self, packets: u64) {
        self.done += packets;
    }

    /// Records that the sender skips due packets.
    pub fn skip(&mut self, packets: u64) {
        self.done += packets;
        self.skipped += packets;
    }

    /// Number of due packets that were skipped.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// A pace, and the function that sends its packets.
#[derive(Debug)]
pub struct Stream<F> {
    pace: Pace,
    /// Number of sent packets.
    sent: u64,
    send: F,
}

impl<F> Stream<F> {
    /// Makes a stream. `send` takes the number of due packets (1 or more) and the time, ns.
    pub fn new(pace: Pace, send: F) -> Self {
        Self {
            pace,
            sent: 0,
            send,
        }
    }

    /// Number of packets sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The stream's pace, which has the number of skipped packets.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }
}

/// Pause of the generator's thread between two readings of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Polls.
    Spin,
    /// Sleeps, so packets leave in clusters.
    Sleep(Duration),
}

/// Sends the streams in turn while `should_continue` returns true. The second argument of
/// `should_continue` is the time, ns.
///
/// # Errors
/// The first error of a stream.
pub fn generate<F, E>(
    streams: &mut [Stream<F>],
    wait: Wait,
    mut should_continue: impl FnMut(&[Stream<F>], u64) -> bool,
) -> Result<(), E>
where
    F: FnMut(u64, u64) -> Result<SendOutcome, E>,
{
    loop {
        let now_ns = now_ns();
        if !should_continue(streams, now_ns) {
            return Ok(());
        }
        let mut is_idle = true;
        for stream in &mut *streams {
            let due = stream.pace.due(now_ns);
            if due == 0 {
                continue;
            }
            is_idle = false;
            let SendOutcome { packets, refused } = (stream.send)(due, now_ns)?;
            stream.pace.record_sent(packets);
            stream.pace.skip(refused);
            stream.sent += packets;
        }
        match wait {
            Wait::Spin if is_idle => std::hint::spin_loop(),
            Wait::Spin => {}
            Wait::Sleep(pause) => std::thread::sleep(pause),
        }
    }
}

/// Result of a send. Due packets that are neither sent nor refused stay due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendOutcome {
    /// Number of sent packets.
    pub packets: u64,
    /// Number of packets that the link refused. The stream does not send them again.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends all due packets.
    fn send_due(pace: &mut Pace, now_ns: u64) -> u64 {
        let due = pace.due(now_ns);
        pace.record_sent(due);
        due
    }

    #[test]
    fn late_packets_are_skipped() {
        let mut pace = Pace::new(Some(10_000.0), Late::Skip(200), 0);
        assert_eq!(
            [0, 1, 1, 3].map(|ms| send_due(&mut pace, ms * MS)),
            [0, 10, 0, 20]
        );
        // 9970 packets are due in 997 ms. The sender sends the packets of the last 20 ms.
        assert_eq!(
            [1000, 1000].map(|ms| send_due(&mut pace, ms * MS)),
            [200, 0]
        );
        assert_eq!(pace.skipped(), 9770);
        let mut slow = Pace::new(Some(1.0), Late::Skip(1), 0);
        assert_eq!(
            [999, 1000, 1999].map(|ms| send_due(&mut slow, ms * MS)),
            [0, 1, 0]
        );
    }

    #[test]
    fn a_sender_catches_up_after_a_short_delay() {
        let mut pace = Pace::new(Some(10_000.0), Late::CatchUp(MS), 5 * MS);
        // The first packet is due at the start, each further packet 100 us later.
        assert_eq!(send_due(&mut pace, 5 * MS), 1);
        assert_eq!(pace.due(5 * MS + 99_999), 0);
        assert_eq!(send_due(&mut pace, 5 * MS + 100_000), 1);
        assert_eq!(send_due(&mut pace, 5 * MS + 500_000), 4);
        // After more than a millisecond the timeline restarts.
        let late_ns = 9 * MS;
        assert_eq!(pace.due(late_ns), 1);
        pace.record_sent(1);
        assert_eq!(pace.due(late_ns + 99_999), 0);
        assert_eq!(pace.due(late_ns + 100_000), 1);
        assert_eq!(pace.skipped(), 0);
    }

    #[test]
    fn without_a_rate_packets_are_always_due() {
        let mut pace = Pace::new(None, Late::CatchUp(MS), 0);
        for now_ns in [0, 1, 1, 5 * MS] {
            assert!(pace.due(now_ns) > 0);
            pace.record_sent(1000);
        }
    }

    #[test]
    fn streams_are_served_in_turn_and_refused_packets_are_skipped() {
        let start_ns = now_ns();
        let log = std::cell::RefCell::new(Vec::new());
        // In each turn a stream sends one packet, and the second stream's link refuses another.
        let stream = |number: u64| {
            let log = &log;
            let pace = Pace::new(Some(1e7), Late::Skip(u64::MAX), start_ns);
            Stream::new(pace, move |due: u64, _: u64| {
                let refused = (due - 1).min(number);
                log.borrow_mut().push((number, refused));
                Ok::<_, ()>(SendOutcome {
                    packets: 1,
                    refused,
                })
            })
        };
        let mut streams = [0, 1].map(stream);
        // Packets become due until the link has refused one.
        generate(&mut streams, Wait::Spin, |streams, _| {
            streams[0].sent() < 10 || streams[1].pace().skipped() == 0
        })
        .unwrap();
        for (number, stream) in (0..).zip(&streams) {
            let turns: Vec<u64> = log
                .borrow()
                .iter()
                .filter(|(logged, _)| *logged == number)
                .map(|(_, refused)| *refused)
                .collect();
            assert!(!turns.is_empty());
            assert_eq!(stream.sent(), turns.len() as u64);
            assert_eq!(stream.pace().skipped(), turns.iter().sum::<u64>());
        }
        assert!(streams[1].pace().skipped() > 0);
    }
}
