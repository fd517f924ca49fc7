//! A link as a model: rate, queue, propagation, jitter and loss decide when a packet leaves the
//! link, or whether the link drops the packet.
//!
//! ```text
//!           queue_ns          rate_bps        loss       delay_ns +- jitter_ns
//! packet --> queue  ------->  transmitter --> wire ----------------------------> departure
//!             | full                           | lost
//! ```
//!
//! The queue is measured in time: it drops a packet whose transmission would begin more than
//! `queue_ns` after the packet's arrival. So the delay has a bound at every rate, and the model
//! needs no memory for each packet. `n` packets of `L` bits equal `n * L / rate` of queue.
//!
//! A lost packet has passed the queue and the transmitter, so it uses the rate, as on a wire.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::loss_model::{Loss, LossModel};

/// Queue of a link with a rate, if the user sets none.
pub const DEFAULT_QUEUE_NS: u64 = 100_000_000;
/// Largest rate, bits per second. A larger rate counts as this rate.
pub const MAX_RATE_BPS: u64 = 1_000_000_000_000;
/// Longest packet, bytes. A longer packet counts as one of this length.
pub const MAX_LENGTH: u32 = 1 << 20;

const NS_PER_S: u64 = 1_000_000_000;

/// The properties of one direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkProfile {
    /// Propagation delay, ns.
    pub delay_ns: u64,
    /// Largest deviation from the delay, ns. The deviations are uniform. A jitter above the delay
    /// counts as the delay.
    pub jitter_ns: u64,
    /// Whether a packet may overtake an earlier one because of jitter. Otherwise the earlier one
    /// holds the later one up.
    pub may_reorder: bool,
    /// Rate, bits per second of Ethernet frames without their checksum; `None` for a link without
    /// a limit. Zero counts as 1.
    pub rate_bps: Option<u64>,
    /// Longest wait for the transmitter, ns. Unused without a rate.
    pub queue_ns: u64,
    /// The losses on the wire.
    pub loss: Loss,
}

impl Default for LinkProfile {
    /// A link that neither delays nor drops packets.
    fn default() -> Self {
        Self {
            delay_ns: 0,
            jitter_ns: 0,
            may_reorder: false,
            rate_bps: None,
            queue_ns: DEFAULT_QUEUE_NS,
            loss: Loss::default(),
        }
    }
}

/// The decision about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The packet leaves the link at this time, ns.
    At(u64),
    /// The packet does not leave the link.
    Dropped(DropCause),
}

/// The cause of a drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropCause {
    /// The queue was full.
    Queue,
    /// The wire lost the packet.
    Loss,
}

/// The state of one direction of a link.
#[derive(Debug)]
pub struct LinkModel {
    profile: LinkProfile,
    loss: LossModel,
    jitter: Rng,
    transmitter: Transmitter,
    /// Latest departure so far, ns.
    last_ns: u64,
}

impl LinkModel {
    /// Makes an idle link. Equal seeds give equal losses and jitter.
    pub fn new(profile: LinkProfile, seed: u64) -> Self {
        let mut seeds = Rng::with_seed(seed);
        Self {
            profile,
            loss: LossModel::new(profile.loss, seeds.u64(..)),
            jitter: Rng::with_seed(seeds.u64(..)),
            transmitter: Transmitter::default(),
            last_ns: 0,
        }
    }

    /// Returns the profile.
    pub fn profile(&self) -> &LinkProfile {
        &self.profile
    }

    /// Changes the profile. Accepted packets keep their departure times, so a packet after the
    /// change does not overtake them, unless the new profile permits that.
    pub fn set_profile(&mut self, profile: LinkProfile) {
        self.loss.set_loss(profile.loss);
        self.transmitter.round_up();
        self.profile = profile;
    }

    /// Decides about a packet of `length` bytes that arrives at `now_ns`. Arrivals should be in
    /// order. An earlier time than that of the packet before is permitted.
    #[inline]
    pub fn offer(&mut self, now_ns: u64, length: u32) -> Departure {
        let mut at_ns = now_ns;
        if let Some(rate) = self.profile.rate_bps {
            if self.transmitter.free_ns().saturating_sub(now_ns) > self.profile.queue_ns {
                return Departure::Dropped(DropCause::Queue);
            }
            let rate = rate.clamp(1, MAX_RATE_BPS);
            at_ns = self.transmitter.transmit(now_ns, length, rate);
        }
        if self.loss.draw_loss() {
            return Departure::Dropped(DropCause::Loss);
        }
        at_ns = at_ns.saturating_add(self.propagation_ns());
        if !self.profile.may_reorder {
            at_ns = at_ns.max(self.last_ns);
        }
        self.last_ns = self.last_ns.max(at_ns);
        Departure::At(at_ns)
    }

    #[inline]
    fn propagation_ns(&mut self) -> u64 {
        let LinkProfile {
            delay_ns,
            jitter_ns,
            ..
        } = self.profile;
        let jitter_ns = jitter_ns.min(delay_ns);
        if jitter_ns == 0 {
            return delay_ns;
        }
        let longest_ns = delay_ns.saturating_add(jitter_ns);
        self.jitter.u64(delay_ns - jitter_ns..=longest_ns)
    }
}

/// The transmitter: it becomes free at `whole_ns + part / rate` ns. The fraction makes the rate
/// exact, although a packet may take less than a nanosecond.
#[derive(Debug, Default)]
struct Transmitter {
    whole_ns: u64,
    /// Below the rate.
    part: u64,
}

impl Transmitter {
    /// Returns the first whole nanosecond at which the transmitter is free.
    #[inline]
    fn free_ns(&self) -> u64 {
        self.whole_ns.saturating_add(u64::from(self.part > 0))
    }

    /// Adds a packet. Returns the end of its transmission, rounded up.
    #[inline]
    fn transmit(&mut self, now_ns: u64, length: u32, rate: u64) -> u64 {
        if now_ns >= self.free_ns() {
            (self.whole_ns, self.part) = (now_ns, 0);
        }
        let work = u64::from(length.min(MAX_LENGTH)) * 8 * NS_PER_S + self.part;
        self.whole_ns = self.whole_ns.saturating_add(work / rate);
        self.part = work % rate;
        self.free_ns()
    }

    /// Removes the fraction, before another rate applies.
    fn round_up(&mut self) {
        (self.whole_ns, self.part) = (self.free_ns(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn departures(profile: LinkProfile, arrivals: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut link = LinkModel::new(profile, 1);
        let at = |departure| match departure {
            Departure::At(at_ns) => Some(at_ns),
            Departure::Dropped(_) => None,
        };
        arrivals
            .filter_map(|now| at(link.offer(now, 125)))
            .collect()
    }

    #[test]
    fn a_link_without_limits_passes_packets_at_once() {
        let arrivals = [0, 5, 5, 900];
        let left = departures(LinkProfile::default(), arrivals.into_iter());
        assert_eq!(left, arrivals);
    }

    #[test]
    fn jitter_is_uniform_and_reorders_only_on_request() {
        let profile = LinkProfile {
            delay_ns: 10 * MS,
            jitter_ns: 2 * MS,
            may_reorder: true,
            ..LinkProfile::default()
        };
        // Packets far apart never meet, so each delay is one draw.
        let delays: Vec<u64> = departures(profile, (0..100_000).map(|i| i * 100 * MS))
            .into_iter()
            .zip(0..)
            .map(|(at, i)| at - i * 100 * MS)
            .collect();
        assert!(delays.iter().all(|d| (8 * MS..=12 * MS).contains(d)));
        let mean = delays.iter().map(|d| *d as f64).sum::<f64>() / delays.len() as f64;
        // Standard deviation 4 ms / sqrt(12), divided by sqrt(100 000): 3.7 us.
        assert!((mean - 10e6).abs() < 15_000.0, "{mean}");
        for quarter in 0..4 {
            let range = (8 + quarter) * MS..(9 + quarter) * MS;
            let share = delays.iter().filter(|d| range.contains(d)).count();
            assert!((24_450..25_550).contains(&share), "{share} in {range:?}");
        }
        let close = || (0..1000).map(|i| i * 1000);
        assert!(!departures(profile, close()).is_sorted());
        let in_order = LinkProfile {
            may_reorder: false,
            ..profile
        };
        assert!(departures(in_order, close()).is_sorted());
    }

    #[test]
    fn a_change_keeps_the_order_of_packets() {
        let slow = LinkProfile {
            delay_ns: 50 * MS,
            rate_bps: Some(1_000_003),
            ..LinkProfile::default()
        };
        let mut link = LinkModel::new(slow, 1);
        let first = link.offer(0, 1000);
        assert_eq!(first, Departure::At(50 * MS + 7_999_977));
        let fast = LinkProfile {
            delay_ns: MS,
            rate_bps: None,
            ..slow
        };
        link.set_profile(fast);
        assert_eq!(link.offer(10, 1000), first, "not before the first packet");
        assert_eq!(link.offer(60 * MS, 1000), Departure::At(61 * MS));
        assert_eq!(link.profile(), &fast);
    }

    #[test]
    fn extreme_values_neither_panic_nor_overflow() {
        for rate_bps in [None, Some(0), Some(1), Some(u64::MAX)] {
            let profile = LinkProfile {
                delay_ns: u64::MAX,
                jitter_ns: u64::MAX,
                may_reorder: false,
                rate_bps,
                queue_ns: u64::MAX,
                loss: Loss {
                    ppm: 1,
                    burst: Some(u32::MAX),
                },
            };
            let mut link = LinkModel::new(profile, 0);
            for (now, length) in [(u64::MAX, u32::MAX), (0, 0), (u64::MAX, 1)] {
                link.offer(now, length);
            }
        }
    }
}
