//! Delay, rate and loss of a topology's links over the agent's socket.

use myelin_spec::Impairments;
use serde::{Deserialize, Serialize};

use crate::SojournStatus;

/// Delay, rate and loss of a direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinkImpairments {
    /// Propagation delay, ns.
    pub delay_ns: u64,
    /// Largest deviation from the delay, ns.
    pub jitter_ns: u64,
    /// Rate, bits a second; `None`: not limited.
    pub rate_bps: Option<u64>,
    /// Longest queue before a limited rate, packets; `None`: chosen from the rate.
    pub queue_packets: Option<u32>,
    /// The share of lost packets, millionths.
    pub loss_ppm: u32,
    /// Mean number of packets that are lost in a row; 1: packets are lost independently.
    pub loss_burst: u32,
}

/// A change of delay, rate or loss. A field without a value stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ImpairmentChange {
    /// Propagation delay, ns.
    pub delay_ns: Option<u64>,
    /// Largest deviation from the delay, ns.
    pub jitter_ns: Option<u64>,
    /// Rate, bits a second; 0: not limited.
    pub rate_bps: Option<u64>,
    /// Longest queue before the rate, packets; 0: chosen from the rate.
    pub queue_packets: Option<u32>,
    /// The share of lost packets, millionths.
    pub loss_ppm: Option<u32>,
    /// Mean number of packets that are lost in a row.
    pub loss_burst: Option<u32>,
}

/// Counters of one direction of a link with delay, rate or loss. `arrived` is the sum of the other
/// packet counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectionStatus {
    /// Packets that arrived.
    pub arrived: u64,
    /// Bytes of these packets.
    pub arrived_bytes: u64,
    /// Packets that left.
    pub left: u64,
    /// Bytes of these packets.
    pub left_bytes: u64,
    /// Packets that found the queue full.
    pub queue_drops: u64,
    /// Packets that the link lost.
    pub lost: u64,
    /// Packets that the delay line dropped: its packet memory or transmit ring was full.
    pub line_drops: u64,
    /// Packets that were waiting when the worker died.
    pub died: u64,
    /// Packets that wait now.
    pub waiting: u64,
}

/// The delay line of a topology: the worker that delays and loses packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DelayLineStatus {
    /// Number of the worker's process; 0 after a failed restart.
    pub pid: u32,
    /// Number of restarts.
    pub restarts: u64,
    /// Whether the worker died too often. Its links then drop all packets.
    pub has_failed: bool,
    /// Packets that wait now.
    pub waiting: u64,
    /// Most packets that waited at the same time.
    pub most_waiting: u64,
    /// Frames without the number of an existing direction.
    pub foreign: u64,
    /// Packets of any link that found the ring of the worker full.
    pub overflowed: u64,
    /// The time from a packet's departure by the model until the worker passed it to the kernel.
    pub lateness: SojournStatus,
}

impl From<&Impairments> for LinkImpairments {
    fn from(impairments: &Impairments) -> Self {
        let (loss_ppm, loss_burst) = impairments
            .loss
            .map_or((0, 1), |loss| (loss.ppm, loss.burst));
        Self {
            delay_ns: impairments.delay_ns,
            jitter_ns: impairments.jitter_ns,
            rate_bps: impairments.rate_bps,
            queue_packets: impairments.queue_packets,
            loss_ppm,
            loss_burst,
        }
    }
}

impl ImpairmentChange {
    /// Applies the change.
    ///
    /// # Errors
    /// The jitter exceeds the delay, a queue has no rate, a delay exceeds 10 s, or a loss exceeds
    /// 100 %.
    pub fn apply(&self, before: &Impairments) -> Result<Impairments, String> {
        const LONGEST_NS: u64 = 10_000_000_000;
        let before_loss = before
            .loss
            .unwrap_or(myelin_spec::Loss { ppm: 0, burst: 1 });
        let loss = myelin_spec::Loss {
            ppm: self.loss_ppm.unwrap_or(before_loss.ppm),
            burst: self.loss_burst.unwrap_or(before_loss.burst).max(1),
        };
        let limit = |changed: Option<u64>, before| changed.map_or(before, |n| (n > 0).then_some(n));
        let queue = self.queue_packets.map(u64::from);
        let queue = limit(queue, before.queue_packets.map(u64::from));
        let after = Impairments {
            delay_ns: self.delay_ns.unwrap_or(before.delay_ns),
            jitter_ns: self.jitter_ns.unwrap_or(before.jitter_ns),
            rate_bps: limit(self.rate_bps, before.rate_bps),
            queue_packets: queue.and_then(|packets| packets.try_into().ok()),
            loss: (loss.ppm > 0).then_some(loss),
        };
        let problem = if after.delay_ns > LONGEST_NS {
            "the delay exceeds 10s: write a shorter delay"
        } else if after.jitter_ns > after.delay_ns {
            "the jitter exceeds the delay: write a smaller jitter too, or a longer delay"
        } else if after.queue_packets.is_some() && after.rate_bps.is_none() {
            "a queue has no effect without a rate: set a bandwidth too, or the queue to 0"
        } else if loss.ppm > 1_000_000 {
            "the loss exceeds 100%"
        } else {
            return Ok(after);
        };
        Err(problem.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let before = Impairments {
            delay_ns: 5,
            jitter_ns: 4,
            rate_bps: Some(3),
            ..Impairments::default()
        };
        let change = ImpairmentChange {
            rate_bps: Some(0),
            loss_ppm: Some(7),
            ..ImpairmentChange::default()
        };
        let after = change.apply(&before).unwrap();
        assert_eq!(
            (after.delay_ns, after.jitter_ns, after.rate_bps),
            (5, 4, None)
        );
        assert_eq!(LinkImpairments::from(&after).loss_ppm, 7);
        let nothing = ImpairmentChange::default();
        assert_eq!(nothing.apply(&before), Ok(before));
        let clear = ImpairmentChange {
            loss_ppm: Some(0),
            ..nothing
        };
        assert_eq!(clear.apply(&after).unwrap().loss, None);
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        let none = ImpairmentChange::default();
        let long = 20_000_000_000;
        for (change, words) in [
            (
                ImpairmentChange {
                    delay_ns: Some(long),
                    ..none
                },
                "10s",
            ),
            (
                ImpairmentChange {
                    jitter_ns: Some(1),
                    ..none
                },
                "exceeds the delay",
            ),
            (
                ImpairmentChange {
                    queue_packets: Some(1),
                    ..none
                },
                "without a rate",
            ),
            (
                ImpairmentChange {
                    loss_ppm: Some(1_000_001),
                    ..none
                },
                "100%",
            ),
        ] {
            let error = change.apply(&Impairments::default()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
