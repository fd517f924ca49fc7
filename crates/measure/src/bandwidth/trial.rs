//! One trial: packets at a steady rate, and what arrived of them.

use std::net::SocketAddr;

use serde::Serialize;

use crate::Error;
use crate::clock::now_ns;
use crate::echo::is_nothing;
use crate::generator::{self, Late, Pace, Stream, Wait, generate};
use crate::payload::Codec;

/// A sender further behind than this starts its timeline anew: catching up in one burst would overflow queues that the asked rate does not.
const LARGEST_LAG_NS: u64 = 1_000_000;
/// Sends refused in a row until the trial fails with the system's reason.
const REFUSALS: u32 = 100_000;

/// Figures of one trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// The rate asked for, millions of packets a second; `None`: as fast as the sender can.
    pub offered_mpps: Option<f64>,
    /// The rate reached.
    pub sent_mpps: f64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that arrived, copies not counted.
    pub received: u64,
    /// Packets that arrived after a later one (RFC 4737); `None` when the payload could not be read.
    pub reordered: Option<u64>,
    /// Further copies of packets; `None` when the payload could not be read.
    pub duplicates: Option<u64>,
}

impl Trial {
    pub(super) fn new(offered_mpps: Option<f64>, sent: Sent, arrived: &Arrivals) -> Self {
        // Datagrams that cannot be read, and none that can: a function transforms the payload, and counting must do.
        let readable = arrived.received > 0 || arrived.unread == 0;
        Self {
            offered_mpps,
            sent_mpps: sent.count.saturating_sub(1) as f64 / sent.duration_ns.max(1) as f64
                * 1000.0,
            sent: sent.count,
            received: if readable {
                arrived.received
            } else {
                arrived.unread.min(sent.count)
            },
            reordered: readable.then_some(arrived.reordered),
            duplicates: readable.then_some(arrived.duplicates),
        }
    }

    /// Whether all came through in order.
    pub(super) fn is_clean(&self) -> bool {
        self.sent > 1 && self.received >= self.sent && self.reordered.unwrap_or(0) == 0
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) count: u64,
    /// From the first send to the last.
    pub(super) duration_ns: u64,
}

/// What arrived of one trial's packets.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) received: u64,
    reordered: u64,
    duplicates: u64,
    unread: u64,
    /// A bit for each packet.
    seen: Vec<u64>,
    next_expected: u64,
}

impl Arrivals {
    /// Of at most `packets` packets.
    pub(super) fn new(packets: usize) -> Self {
        Self {
            seen: vec![0; packets.div_ceil(64)],
            ..Self::default()
        }
    }

    /// Notes a datagram, of which the header is enough.
    pub(super) fn note(&mut self, codec: &Codec, datagram: &[u8]) {
        let Some(header) = codec.read(datagram) else {
            self.unread += 1;
            return;
        };
        let Some(word) = self.seen.get_mut(header.id as usize / 64) else {
            return;
        };
        let bit = 1 << (header.id % 64);
        if *word & bit != 0 {
            self.duplicates += 1;
            return;
        }
        *word |= bit;
        self.received += 1;
        if header.id < self.next_expected {
            self.reordered += 1;
        } else {
            self.next_expected = header.id + 1;
        }
    }
}

/// Sends packets of so many bytes at a rate, from one thread that polls: `send` is told the next packet's number and the time, and gives how many it sent.
/// `goes_on` is told how many are sent, and the time.
pub(super) fn send_paced(
    (bytes, destination): (usize, SocketAddr),
    offered_mpps: Option<f64>,
    mut goes_on: impl FnMut(u64, u64) -> bool,
    mut send: impl FnMut(u64, u64) -> std::io::Result<u64>,
) -> Result<Sent, Error> {
    let start = now_ns();
    let (mut next, mut last, mut refusals) = (0, start, 0);
    let rate_pps = offered_mpps.map(|mpps| mpps * 1e6);
    let pace = Pace::new(rate_pps, Late::CatchUp(LARGEST_LAG_NS), start);
    let send = |_, now| match send(next, now) {
        Ok(packets) => {
            (next, last, refusals) = (next + packets, now, 0);
            Ok(generator::Sent {
                packets,
                refused: 0,
            })
        }
        // A full send buffer is the sender's limit, not a loss: try again.
        Err(error) if refusals < REFUSALS && is_nothing(&error) => {
            refusals += 1;
            Ok(generator::Sent::default())
        }
        Err(error) => Err(Error::system(
            format!("send {bytes} bytes to {destination}"),
            error,
            "is there a route, and does the link's MTU fit?",
        )),
    };
    generate(
        &mut [Stream::new(pace, send)],
        Wait::Spin,
        |streams, now| goes_on(streams[0].sent(), now),
    )?;
    Ok(Sent {
        count: next,
        duration_ns: last - start,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Sent = Sent {
        count: 1001,
        duration_ns: 10_000_000,
    };

    #[test]
    fn rates_and_cleanness() {
        let all = Arrivals {
            received: 1001,
            ..Arrivals::default()
        };
        let trial = Trial::new(Some(0.1), SENT, &all);
        assert!((trial.sent_mpps - 0.1).abs() < 1e-12);
        assert!(trial.is_clean());
        let swapped = Arrivals {
            received: 1001,
            reordered: 1,
            ..Arrivals::default()
        };
        assert!(!Trial::new(None, SENT, &swapped).is_clean());
        let lossy = Arrivals {
            received: 1000,
            ..Arrivals::default()
        };
        let trial = Trial::new(None, SENT, &lossy);
        assert!(!trial.is_clean());
        assert!(
            !Trial::new(
                None,
                Sent {
                    count: 0,
                    duration_ns: 0
                },
                &Arrivals::default()
            )
            .is_clean()
        );
    }

    #[test]
    fn unreadable_payloads_are_counted_alone() {
        let unread = Arrivals {
            unread: 1001,
            ..Arrivals::default()
        };
        let trial = Trial::new(None, SENT, &unread);
        assert_eq!((trial.received, trial.reordered), (1001, None));
        assert!(trial.is_clean());
        let stray = Arrivals {
            received: 1000,
            unread: 5,
            ..Arrivals::default()
        };
        assert_eq!(Trial::new(None, SENT, &stray).received, 1000);
    }
}
