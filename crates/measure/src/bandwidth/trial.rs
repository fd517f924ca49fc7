//! What became of a trial's packets.

use crate::payload::Codec;

/// What became of a trial's packets.
#[derive(Debug, Clone, PartialEq)]
pub struct Carried {
    /// The rate at which packets were sent, millions a second.
    pub sent_mpps: f64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that arrived, copies not counted.
    pub received: u64,
    /// Packets that arrived after a later one (RFC 4737); `None` when the payload could not be read.
    pub reordered: Option<u64>,
    /// Packets that arrived over the time from the first send to the last arrival, millions a second.
    pub carried_mpps: f64,
    /// Whether bursts left in one system call each; `false` where they were to but the link cannot segment, and for a burst of one.
    pub segmented: bool,
}

impl Carried {
    /// Of so many packets sent; `sending_ns` is from the first send to the last, `whole_ns` from the first send to the last arrival.
    pub(super) fn new(sent: u64, [sending_ns, whole_ns]: [u64; 2], arrived: &Arrivals) -> Self {
        // Datagrams that cannot be read, and none that can: a function transforms the payload, and counting must do.
        let readable = arrived.received > 0 || arrived.unread == 0;
        let received = if readable {
            arrived.received
        } else {
            arrived.unread.min(sent)
        };
        let mpps = |packets: u64, ns: u64| packets as f64 / ns.max(1) as f64 * 1000.0;
        Self {
            sent_mpps: mpps(sent.saturating_sub(1), sending_ns),
            sent,
            received,
            reordered: readable.then_some(arrived.reordered),
            carried_mpps: mpps(received, whole_ns),
            segmented: false,
        }
    }

    /// Whether everything arrived in order.
    pub fn is_clean(&self) -> bool {
        self.sent > 1 && self.received >= self.sent && self.reordered.unwrap_or(0) == 0
    }
}

/// What arrived of one trial's packets.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) received: u64,
    reordered: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    const NS: [u64; 2] = [10_000_000, 20_000_000];

    #[test]
    fn rates_and_cleanness() {
        let all = Arrivals {
            received: 1001,
            ..Arrivals::default()
        };
        let carried = Carried::new(1001, NS, &all);
        assert!((carried.sent_mpps - 0.1).abs() < 1e-12);
        assert!((carried.carried_mpps - 0.05005).abs() < 1e-12);
        assert!(carried.is_clean());
        let swapped = Arrivals {
            received: 1001,
            reordered: 1,
            ..Arrivals::default()
        };
        assert!(!Carried::new(1001, NS, &swapped).is_clean());
        let lossy = Arrivals {
            received: 1000,
            ..Arrivals::default()
        };
        assert!(!Carried::new(1001, NS, &lossy).is_clean());
        assert!(!Carried::new(0, [0; 2], &Arrivals::default()).is_clean());
    }

    #[test]
    fn unreadable_payloads_are_counted_alone() {
        let unread = Arrivals {
            unread: 1001,
            ..Arrivals::default()
        };
        let carried = Carried::new(1001, NS, &unread);
        assert_eq!((carried.received, carried.reordered), (1001, None));
        assert!(carried.is_clean());
        let stray = Arrivals {
            received: 1000,
            unread: 5,
            ..Arrivals::default()
        };
        assert_eq!(Carried::new(1001, NS, &stray).received, 1000);
    }
}
