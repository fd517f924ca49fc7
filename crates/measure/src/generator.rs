//! The traffic generator: streams of packets, each at its pace, from one thread.
//!
//! A [`Pace`] says how many packets are due, and what becomes of those that could not be sent in time: a sender that was held up catches up, or forgoes what is
//! late. A [`Stream`] is a pace and the function that sends, one packet a system call or many. [`generate`] serves streams in turn.

use std::time::Duration;

use crate::clock::now_ns;

/// What becomes of packets that are due and could not be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Late {
    /// They are sent as soon as it goes. A sender further behind than this many nanoseconds starts its timeline anew: catching up in one burst would overflow
    /// queues that the asked rate does not.
    CatchUp(u64),
    /// So many of them at most are sent, the others never. So a stream keeps to a profile of this burst, whatever the machine does.
    Forgo(u64),
}

/// When packets are due.
#[derive(Debug, Clone)]
pub struct Pace {
    /// From one packet to the next, ns; 0: as fast as they go.
    interval_ns: f64,
    late: Late,
    origin_ns: u64,
    /// Packets since `origin_ns` that are done with.
    done: u64,
    forgone: u64,
}

impl Pace {
    /// So many packets a second from `start_ns` on; without a rate as fast as they go.
    pub fn new(rate_pps: Option<f64>, late: Late, start_ns: u64) -> Self {
        Self {
            interval_ns: rate_pps.map_or(0.0, |pps| 1e9 / pps),
            late,
            origin_ns: start_ns,
            done: 0,
            forgone: 0,
        }
    }

    /// Packets to be sent now.
    ///
    /// One that catches up sends its first packet at the start, one that forgoes when the first interval is over: it must not be early.
    pub fn due(&mut self, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.origin_ns);
        match self.late {
            Late::CatchUp(most_ns) => {
                let next_ns = (self.done as f64 * self.interval_ns) as u64;
                let Some(behind_ns) = elapsed_ns.checked_sub(next_ns) else {
                    return 0;
                };
                if behind_ns > most_ns {
                    (self.origin_ns, self.done) = (now_ns, 0);
                    return 1;
                }
                ((behind_ns as f64 / self.interval_ns) as u64).saturating_add(1)
            }
            Late::Forgo(most) => {
                let due = (elapsed_ns as f64 / self.interval_ns) as u64;
                let behind = due.saturating_sub(self.done);
                let late = behind.saturating_sub(most);
                self.forgo(late);
                behind - late
            }
        }
    }

    /// So many of the due ones are sent.
    pub fn sent(&mut self, packets: u64) {
        self.done += packets;
    }

    /// So many of the due ones are never sent.
    pub fn forgo(&mut self, packets: u64) {
        self.done += packets;
        self.forgone += packets;
    }

    /// Packets that were due and never sent.
    pub fn forgone(&self) -> u64 {
        self.forgone
    }
}

/// Packets at a pace, and what sends them.
#[derive(Debug)]
pub struct Stream<F> {
    pace: Pace,
    /// Packets sent.
    sent: u64,
    send: F,
}

impl<F> Stream<F> {
    /// A stream whose packets `send` sends: it is told how many are due (1 or more) and the time, and gives how many it sent.
    pub fn new(pace: Pace, send: F) -> Self {
        Self {
            pace,
            sent: 0,
            send,
        }
    }

    /// Packets sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Its pace, with what it had to forgo.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }
}

/// What the generator's thread does between two looks at the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It polls.
    Spin,
    /// It sleeps, so that packets come in clusters.
    Sleep(Duration),
}

/// Sends the streams side by side, until `goes_on` says no: it is asked with the time before each turn.
///
/// # Errors
/// The first of a stream.
pub fn generate<F, E>(
    streams: &mut [Stream<F>],
    wait: Wait,
    mut goes_on: impl FnMut(&[Stream<F>], u64) -> bool,
) -> Result<(), E>
where
    F: FnMut(u64, u64) -> Result<Sent, E>,
{
    loop {
        let now_ns = now_ns();
        if !goes_on(streams, now_ns) {
            return Ok(());
        }
        let mut idle = true;
        for stream in &mut *streams {
            let due = stream.pace.due(now_ns);
            if due == 0 {
                continue;
            }
            idle = false;
            let Sent { packets, refused } = (stream.send)(due, now_ns)?;
            stream.pace.sent(packets);
            stream.pace.forgo(refused);
            stream.sent += packets;
        }
        match wait {
            Wait::Spin if idle => std::hint::spin_loop(),
            Wait::Spin => {}
            Wait::Sleep(pause) => std::thread::sleep(pause),
        }
    }
}

/// What became of due packets; those in neither count are due again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// They are on their way.
    pub packets: u64,
    /// The link has no room for them, and they are not tried again.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Takes all that is due.
    fn take(pace: &mut Pace, now_ns: u64) -> u64 {
        let due = pace.due(now_ns);
        pace.sent(due);
        due
    }

    #[test]
    fn what_is_late_is_forgone() {
        let mut pace = Pace::new(Some(10_000.0), Late::Forgo(200), 0);
        assert_eq!(
            [0, 1, 1, 3].map(|ms| take(&mut pace, ms * MS)),
            [0, 10, 0, 20]
        );
        // 997 ms are 9970 packets, of which those of 20 ms are sent.
        assert_eq!([1000, 1000].map(|ms| take(&mut pace, ms * MS)), [200, 0]);
        assert_eq!(pace.forgone(), 9770);
        let mut slow = Pace::new(Some(1.0), Late::Forgo(1), 0);
        assert_eq!(
            [999, 1000, 1999].map(|ms| take(&mut slow, ms * MS)),
            [0, 1, 0]
        );
    }

    #[test]
    fn what_is_a_little_late_is_caught_up_with() {
        let mut pace = Pace::new(Some(10_000.0), Late::CatchUp(MS), 5 * MS);
        // The first is due at the start, each further one 100 us later.
        assert_eq!(take(&mut pace, 5 * MS), 1);
        assert_eq!(pace.due(5 * MS + 99_999), 0);
        assert_eq!(take(&mut pace, 5 * MS + 100_000), 1);
        assert_eq!(take(&mut pace, 5 * MS + 500_000), 4);
        // After more than a millisecond the timeline begins anew.
        let late_ns = 9 * MS;
        assert_eq!(pace.due(late_ns), 1);
        pace.sent(1);
        assert_eq!(pace.due(late_ns + 99_999), 0);
        assert_eq!(pace.due(late_ns + 100_000), 1);
        assert_eq!(pace.forgone(), 0);
    }

    #[test]
    fn without_a_rate_packets_are_always_due() {
        let mut pace = Pace::new(None, Late::CatchUp(MS), 0);
        for now_ns in [0, 1, 1, 5 * MS] {
            assert!(pace.due(now_ns) > 0);
            pace.sent(1000);
        }
    }

    #[test]
    fn streams_are_served_in_turn_and_what_is_refused_is_forgone() {
        let start_ns = now_ns();
        let log = std::cell::RefCell::new(Vec::new());
        // Of each turn's packets a stream sends one; the second one refuses another.
        let stream = |number: u64| {
            let log = &log;
            let pace = Pace::new(Some(1e7), Late::Forgo(u64::MAX), start_ns);
            Stream::new(pace, move |due: u64, _: u64| {
                let refused = (due - 1).min(number);
                log.borrow_mut().push((number, refused));
                Ok::<_, ()>(Sent {
                    packets: 1,
                    refused,
                })
            })
        };
        let mut streams = [0, 1].map(stream);
        let end_ns = start_ns + 2 * MS;
        generate(&mut streams, Wait::Spin, |_, ns| ns < end_ns).unwrap();
        for (number, stream) in (0..).zip(&streams) {
            let turns: Vec<u64> = log
                .borrow()
                .iter()
                .filter(|(one, _)| *one == number)
                .map(|(_, refused)| *refused)
                .collect();
            assert!(!turns.is_empty());
            assert_eq!(stream.sent(), turns.len() as u64);
            assert_eq!(stream.pace().forgone(), turns.iter().sum::<u64>());
        }
        assert!(streams[1].pace().forgone() > 0);
    }
}
