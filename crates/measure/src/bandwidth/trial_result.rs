//! The result of a trial, computed from the arrived packets.

use crate::payload::Codec;

/// Result of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialResult {
    /// Rate of the sender, millions of packets a second.
    pub sent_mpps: f64,
    /// Number of sent packets.
    pub sent: u64,
    /// Packets that arrived, without duplicates.
    pub received: u64,
    /// Packets that arrived after a later packet (RFC 4737). `None` if the payload is unreadable.
    pub reordered: Option<u64>,
    /// Number of arrived packets, divided by the time from the first send to the last arrival,
    /// millions a second.
    pub carried_mpps: f64,
    /// Whether the kernel segmented each burst. `false` if the link has no segmentation, and for
    /// bursts of one packet.
    pub segmented: bool,
}

impl TrialResult {
    /// Computes the result for `sent` packets. `sending_ns` is the time from the first send to the
    /// last send, `whole_ns` from the first send to the last arrival.
    pub(super) fn new(sent: u64, [sending_ns, whole_ns]: [u64; 2], arrived: &Arrivals) -> Self {
        // If no datagram is readable, a function transforms the payload, and only the number of
        // datagrams is known.
        let readable = arrived.received > 0 || arrived.unreadable == 0;
        let received = if readable {
            arrived.received
        } else {
            arrived.unreadable.min(sent)
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

    /// Whether all packets arrived in order.
    pub fn is_clean(&self) -> bool {
        self.sent > 1 && self.received >= self.sent && self.reordered.unwrap_or(0) == 0
    }
}

/// The packets of a trial that arrived.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) received: u64,
    reordered: u64,
    unreadable: u64,
    /// One bit for each packet that arrived.
    arrived: Vec<u64>,
    next_expected: u64,
}

impl Arrivals {
    /// Allocates for at most `packets` packets.
    pub(super) fn new(packets: usize) -> Self {
        Self {
            arrived: vec![0; packets.div_ceil(64)],
            ..Self::default()
        }
    }

    /// Records a datagram, or its header.
    pub(super) fn record(&mut self, codec: &Codec, datagram: &[u8]) {
        let Some(header) = codec.read(datagram) else {
            self.unreadable += 1;
            return;
        };
        let Some(word) = self.arrived.get_mut(header.id as usize / 64) else {
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
    fn a_trial_is_clean_without_loss_and_reordering() {
        let complete = Arrivals {
            received: 1001,
            ..Arrivals::default()
        };
        let result = TrialResult::new(1001, NS, &complete);
        assert!((result.sent_mpps - 0.1).abs() < 1e-12);
        assert!((result.carried_mpps - 0.05005).abs() < 1e-12);
        assert!(result.is_clean());
        let swapped = Arrivals {
            received: 1001,
            reordered: 1,
            ..Arrivals::default()
        };
        assert!(!TrialResult::new(1001, NS, &swapped).is_clean());
        let lossy = Arrivals {
            received: 1000,
            ..Arrivals::default()
        };
        assert!(!TrialResult::new(1001, NS, &lossy).is_clean());
        assert!(!TrialResult::new(0, [0; 2], &Arrivals::default()).is_clean());
    }

    #[test]
    fn unreadable_payloads_are_only_counted() {
        let unreadable = Arrivals {
            unreadable: 1001,
            ..Arrivals::default()
        };
        let result = TrialResult::new(1001, NS, &unreadable);
        assert_eq!((result.received, result.reordered), (1001, None));
        assert!(result.is_clean());
        let stray = Arrivals {
            received: 1000,
            unreadable: 5,
            ..Arrivals::default()
        };
        assert_eq!(TrialResult::new(1001, NS, &stray).received, 1000);
    }
}
