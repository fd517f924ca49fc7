//! Counters of one function of a chain.

use serde::{Deserialize, Serialize};

/// Counters of one function (one hop of a chain) since the start of its generation. Kernel
/// programs, workers and forwarders all use this type. [`since`](Self::since) returns the
/// difference of two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HopCounters {
    /// Packets received.
    pub packets_in: u64,
    /// Bytes received. `None` in user space, which only counts packets.
    pub bytes_in: Option<u64>,
    /// Packets dropped. For a black box: all packets that entered and did not leave, including
    /// `held`.
    pub drops: u64,
    /// Packets emitted in addition to the received packets.
    pub emitted: u64,
    /// Packets inside a black box, which may still leave.
    pub held: u64,
    /// Packets whose processing was timed.
    pub samples: u64,
    /// Sum of the processing times of the timed packets, ns.
    pub sampled_ns: u64,
}

impl HopCounters {
    /// Returns the number of forwarded packets.
    pub fn packets_out(&self) -> u64 {
        (self.packets_in + self.emitted).saturating_sub(self.drops)
    }

    /// Returns the mean processing time of a timed packet, ns; `None` if no packet was timed.
    pub fn cost_ns(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.sampled_ns as f64 / self.samples as f64)
    }

    /// Returns the counters for the case that the black box forwards all held packets.
    #[must_use]
    pub fn with_held_forwarded(&self) -> Self {
        Self {
            drops: self.drops - self.held.min(self.drops),
            held: 0,
            ..*self
        }
    }

    /// Returns the difference to an earlier reading. `held` is a level, not a count, so the
    /// difference has the present level.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let bytes = |now: u64| now.saturating_sub(earlier.bytes_in.unwrap_or_default());
        Self {
            packets_in: self.packets_in.saturating_sub(earlier.packets_in),
            bytes_in: self.bytes_in.map(bytes),
            drops: self.drops.saturating_sub(earlier.drops),
            emitted: self.emitted.saturating_sub(earlier.emitted),
            held: self.held,
            samples: self.samples.saturating_sub(earlier.samples),
            sampled_ns: self.sampled_ns.saturating_sub(earlier.sampled_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn black_box(packets_in: u64, drops: u64, held: u64) -> HopCounters {
        HopCounters {
            packets_in,
            bytes_in: Some(packets_in * 100),
            drops,
            held,
            ..HopCounters::default()
        }
    }

    #[test]
    fn held_packets_count_as_drops_unless_counted_as_forwarded() {
        let now = black_box(10, 4, 3);
        assert_eq!(now.packets_out(), 6);
        assert_eq!(now.with_held_forwarded().packets_out(), 9);
        assert_eq!(
            now.with_held_forwarded().with_held_forwarded(),
            now.with_held_forwarded()
        );
    }

    #[test]
    fn since_returns_growth_and_the_present_level() {
        let grown = black_box(10, 4, 3).since(&black_box(7, 4, 4));
        assert_eq!(grown, black_box(3, 0, 3));
        // Restarted counters never give negative differences.
        assert_eq!(black_box(1, 0, 0).since(&black_box(7, 4, 4)).packets_in, 0);
    }

    #[test]
    fn a_hop_without_a_timed_packet_has_no_cost() {
        let mut counters = black_box(1, 0, 0);
        assert_eq!(counters.cost_ns(), None);
        (counters.samples, counters.sampled_ns) = (2, 30);
        assert_eq!(counters.cost_ns(), Some(15.0));
    }
}
