//! One trial: a sender at a steady rate, a receiver that notes what arrives.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use super::{Config, MAX_TRIAL_PACKETS};
use crate::Error;
use crate::clock::{nanos, now_ns};
use crate::control::Watch;
use crate::echo::{LARGEST_DATAGRAM, is_nothing};
use crate::payload::{Codec, Header};

/// How long after the last send, or the last arrival after it, packets are waited for.
const GRACE_NS: u64 = 50_000_000;
/// A sender further behind than this starts its timeline anew: catching up in one burst would overflow queues that the asked rate does not.
pub(super) const LARGEST_LAG_NS: u64 = 1_000_000;
/// Sends refused in a row until the trial fails with the system's reason.
pub(super) const REFUSALS: u32 = 100_000;

/// What sender and receiver tell each other.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Packets sent in all, plus one, once the sender is done.
    sent_all: AtomicU64,
    pub(super) failed: AtomicBool,
}

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

    /// Whether it came through in order and lost no more than the share allowed.
    pub(super) fn is_clean(&self, loss_allowed: f64) -> bool {
        let lost = self.sent - self.received.min(self.sent);
        self.sent > 1
            && lost as f64 <= loss_allowed * self.sent as f64
            && self.reordered.unwrap_or(0) == 0
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
        let Ok(header) = codec.read(datagram) else {
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

/// Sends for the trial's time, each packet at its moment of an absolute timeline.
pub(super) fn send(
    socket: &UdpSocket,
    config: &Config,
    offered_mpps: Option<f64>,
    codec: &Codec,
    progress: &Progress,
    watch: &Watch<'_>,
) -> Result<Sent, Error> {
    let gap_ns = offered_mpps.map_or(0.0, |mpps| 1000.0 / mpps);
    let mut payload = codec.template();
    let start = now_ns();
    let end = start + nanos(config.trial);
    let (mut origin, mut since_origin) = (start, 0_u64);
    let (mut count, mut last, mut refusals) = (0_u64, start, 0);
    loop {
        let now = now_ns();
        if now >= end || count as usize >= MAX_TRIAL_PACKETS || watch.stopped(now).is_some() {
            break;
        }
        let due = origin + (since_origin as f64 * gap_ns) as u64;
        if now < due {
            std::hint::spin_loop();
            continue;
        }
        if now - due > LARGEST_LAG_NS {
            (origin, since_origin) = (now, 0);
        }
        let header = Header {
            id: count,
            repeat: 0,
            client_send_ns: now,
            server_receive_ns: 0,
            server_send_ns: 0,
        };
        codec.write(&mut payload, &header);
        match socket.send_to(&payload, config.destination) {
            Ok(_) => {
                (count, since_origin, last, refusals) = (count + 1, since_origin + 1, now, 0);
            }
            // A full send buffer is the sender's limit, not a loss: try again.
            Err(error) if refusals < REFUSALS && is_nothing(&error) => refusals += 1,
            Err(error) => {
                let what = format!("send {} bytes to {}", payload.len(), config.destination);
                return Err(Error::system(
                    what,
                    error,
                    "is there a route, and does the link's MTU fit?",
                ));
            }
        }
    }
    progress.sent_all.store(count + 1, Ordering::Release);
    Ok(Sent {
        count,
        duration_ns: last - start,
    })
}

/// Notes arrivals until all are there or none has come for a while after the last send.
pub(super) fn receive(
    socket: &UdpSocket,
    codec: &Codec,
    progress: &Progress,
    watch: &Watch<'_>,
) -> Result<Arrivals, Error> {
    let mut arrivals = Arrivals::new(MAX_TRIAL_PACKETS);
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    let mut quiet_since = None;
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, _)) => {
                quiet_since = None;
                arrivals.note(codec, &buffer[..length]);
            }
            Err(error) if is_nothing(&error) => {
                let now = now_ns();
                let sent_all = progress.sent_all.load(Ordering::Acquire);
                if sent_all > 0 {
                    let since = *quiet_since.get_or_insert(now);
                    if arrivals.received + 1 >= sent_all || now - since > GRACE_NS {
                        return Ok(arrivals);
                    }
                }
                if watch.stopped(now).is_some() {
                    return Ok(arrivals);
                }
            }
            Err(error) => {
                return Err(Error::system(
                    "receive at the bandwidth measurement's server",
                    error,
                    "is its namespace still there?",
                ));
            }
        }
    }
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
        assert!(trial.is_clean(0.0));
        let swapped = Arrivals {
            received: 1001,
            reordered: 1,
            ..Arrivals::default()
        };
        assert!(!Trial::new(None, SENT, &swapped).is_clean(0.5));
        let lossy = Arrivals {
            received: 1000,
            ..Arrivals::default()
        };
        let trial = Trial::new(None, SENT, &lossy);
        assert!(!trial.is_clean(0.0) && trial.is_clean(0.001));
        assert!(
            !Trial::new(
                None,
                Sent {
                    count: 0,
                    duration_ns: 0
                },
                &Arrivals::default()
            )
            .is_clean(0.0)
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
        assert!(trial.is_clean(0.0));
        let stray = Arrivals {
            received: 1000,
            unread: 5,
            ..Arrivals::default()
        };
        assert_eq!(Trial::new(None, SENT, &stray).received, 1000);
    }
}
