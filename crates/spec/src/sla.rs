//! The contract of a chain, with the values of its chain file.

use myelin_packet::five_tuple::TCP;
use myelin_packet::traffic::{Bucket, Profile};
use serde::{Deserialize, Serialize};

use crate::keys::words::word_enum;

word_enum! {
    /// The mechanism that enforces a chain's profile.
    #[derive(Default)]
    pub enum Enforce {
        /// The policer, and the shaper if user-space functions may cluster packets. A compact chain
        /// in the kernel alone clusters none.
        #[default]
        Auto = "auto",
        /// The policer at the front door and the shaper at the egress.
        Both = "both",
        /// The policer alone.
        Policer = "policer",
        /// The shaper alone.
        Shaper = "shaper",
        /// None. Myelin only counts traffic above the profile.
        None = "none",
    }
}

/// The service level agreement of a chain. `None` means that the contract does not state the value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sla {
    /// Rate r of the traffic profile, packets a second.
    pub rate_pps: Option<u64>,
    /// Rate r of the traffic profile, bits a second.
    pub rate_bps: Option<u64>,
    /// Burst b of the traffic profile, packets.
    pub burst_packets: Option<u64>,
    /// Burst b of the traffic profile, bits.
    pub burst_bits: Option<u64>,
    /// Burst that the policer admits, if it is larger than the profile's, packets.
    #[serde(default)]
    pub policing_burst_packets: Option<u64>,
    /// Burst that the policer admits, if it is larger than the profile's, bits.
    #[serde(default)]
    pub policing_burst_bits: Option<u64>,
    /// The longest wait of traffic above the profile, ns. The policer drops what would wait longer.
    /// With `None`, the policer drops all traffic above the profile.
    #[serde(default)]
    pub excess_queue_ns: Option<u64>,
    /// The mechanism that enforces the profile.
    #[serde(default)]
    pub enforce: Enforce,
    /// The longest queue of the shaper, packets; [`Sla::shaper_queue`] adds the default.
    #[serde(default)]
    pub shaper_queue: Option<u32>,
    /// The longest wait in the shaper, ns; [`Sla::shaper_delay_ns`] adds the default.
    #[serde(default)]
    pub shaper_delay_ns: Option<u64>,
    /// The largest lateness of a departure that later departures compensate, ns.
    #[serde(default)]
    pub shaper_tolerance_ns: u64,
    /// One-way delay from the ingress port to the departure from the egress port, ns.
    pub latency_ns: Option<u64>,
    /// The percentile of the measured sojourn that `latency_ns` applies to; above 0, at most 100.
    pub percentile: f64,
    /// The largest share of lost packets, percent.
    pub loss_percent: Option<f64>,
    /// Round-trip time that an end host sees, ns.
    pub round_trip_ns: Option<u64>,
    /// Whether the default burst suits TCP: the match takes TCP, and the contract has neither
    /// `latency` nor a burst.
    #[serde(default)]
    pub has_tcp_burst: bool,
}

/// Bytes of a full Ethernet frame as a bucket counts it: 1500 B and the header.
pub const FULL_FRAME: u64 = 1514;

/// The smallest default burst: packets, or full frames.
const DEFAULT_BURST: u64 = 32;

/// The default burst for TCP, as a part of a second's traffic. A sender whose packets a policer
/// drops often waits for its retransmission timeout, 200 ms in Linux, and then sends a burst.
const TCP_BURST_PART: u64 = 4;
/// The largest default burst for TCP: packets, or full frames. It fits into every ring on the path.
const MAX_TCP_BURST: u64 = 256;

/// The longest wait in a shaper if the file states neither `shaper.delay` nor `latency`, ns.
const DEFAULT_SHAPER_DELAY_NS: u64 = 10_000_000;

/// The longest queue of a shaper, packets. Waiting packets occupy the worker's UMEM.
pub const MAX_SHAPER_QUEUE: u32 = 1024;

impl Sla {
    /// Returns the chain's traffic profile. The default burst is 32 packets or full frames, or the
    /// traffic of a millisecond if that is more; for TCP, 256 packets or full frames, or the
    /// traffic of 250 ms if that is less.
    pub fn profile(&self) -> Profile {
        profile(self, self.burst_packets, self.burst_bits)
    }

    /// Returns the profile that the policer enforces. If the file has `policingBurst`, that burst
    /// replaces the chain's. If excess waits, the burst grows by the traffic of the longest wait:
    /// the shaper, at the rate r, then holds no packet longer.
    pub fn policing_profile(&self) -> Profile {
        if let Some(wait_ns) = self.excess_queue_ns {
            let widened = |bucket: Bucket| {
                let burst = bucket.burst().saturating_add(traffic_of(bucket, wait_ns));
                Bucket::new(bucket.rate(), burst.min(Bucket::MAX_BURST)).ok()
            };
            let profile = self.profile();
            return Profile {
                packets: profile.packets.and_then(widened),
                bits: profile.bits.and_then(widened),
            };
        }
        profile(
            self,
            self.policing_burst_packets.or(self.burst_packets),
            self.policing_burst_bits.or(self.burst_bits),
        )
    }

    /// Adapts the default burst to a match with this protocol.
    pub(crate) fn for_protocol(self, protocol: Option<u8>) -> Self {
        let bursts = [
            self.burst_packets,
            self.burst_bits,
            self.policing_burst_packets,
            self.policing_burst_bits,
        ];
        let has_tcp_burst = protocol.is_none_or(|protocol| protocol == TCP)
            && (self.rate_pps.is_some() || self.rate_bps.is_some())
            && self.latency_ns.is_none()
            && self.excess_queue_ns.is_none()
            && bursts == [None; 4];
        Self {
            has_tcp_burst,
            ..self
        }
    }

    /// Whether the policer enforces the profile.
    pub fn is_policed(&self) -> bool {
        match self.enforce {
            Enforce::Auto | Enforce::Both | Enforce::Policer => !self.profile().is_unlimited(),
            Enforce::Shaper | Enforce::None => false,
        }
    }

    /// Returns the profile that the policer enforces; `None` without a policer.
    pub fn enforced_profile(&self) -> Option<Profile> {
        self.is_policed().then(|| self.policing_profile())
    }

    /// Returns the most packets in the shaper's queue. Default: twice the policer's burst, from 64
    /// to [`MAX_SHAPER_QUEUE`]; if excess waits, [`MAX_SHAPER_QUEUE`].
    pub fn shaper_queue(&self) -> u32 {
        self.shaper_queue.unwrap_or_else(|| {
            if self.excess_queue_ns.is_some() {
                return MAX_SHAPER_QUEUE;
            }
            let profile = self.policing_profile();
            let packets = profile.packets.map(Bucket::burst);
            let frames = profile.bits.map(|bits| bits.burst() / 8 / FULL_FRAME);
            let queue = packets.or(frames).unwrap_or(0).saturating_mul(2);
            u32::try_from(queue)
                .unwrap_or(u32::MAX)
                .clamp(64, MAX_SHAPER_QUEUE)
        })
    }

    /// Returns the longest wait in the shaper, ns. Default: `latency`, else 10 ms. If excess waits,
    /// at least 10 ms more than its longest wait, for packets that cluster before the shaper.
    pub fn shaper_delay_ns(&self) -> u64 {
        self.shaper_delay_ns.unwrap_or_else(|| {
            let limit_ns = self.latency_ns.unwrap_or(DEFAULT_SHAPER_DELAY_NS);
            self.excess_queue_ns.map_or(limit_ns, |wait_ns| {
                limit_ns.max(wait_ns.saturating_add(DEFAULT_SHAPER_DELAY_NS))
            })
        })
    }

    /// Returns the mean frame size, bytes, if the file has the rate or the burst in both packets
    /// and bits.
    pub fn mean_frame_bytes(&self) -> Option<u64> {
        let mean = |bits: Option<u64>, packets: Option<u64>| Some(bits? / 8 / packets?.max(1));
        mean(self.rate_bps, self.rate_pps).or_else(|| mean(self.burst_bits, self.burst_packets))
    }
}

/// Creates the token buckets of the SLA's rates. The parser has checked the range of each value.
fn profile(sla: &Sla, burst_packets: Option<u64>, burst_bits: Option<u64>) -> Profile {
    let bucket = |rate: Option<u64>, burst: Option<u64>, unit: u64| {
        let rate = rate?;
        let burst = burst.unwrap_or_else(|| {
            let millisecond = (rate / 1000).min(Bucket::MAX_BURST);
            let for_tcp = (rate / TCP_BURST_PART).min(MAX_TCP_BURST * unit);
            let least = if sla.has_tcp_burst { for_tcp } else { 0 };
            millisecond.max(DEFAULT_BURST * unit).max(least)
        });
        Bucket::new(rate, burst).ok()
    };
    Profile {
        packets: bucket(sla.rate_pps, burst_packets, 1),
        bits: bucket(sla.rate_bps, burst_bits, FULL_FRAME * 8),
    }
}

/// Returns the packets or bits that a bucket earns in this time.
pub(crate) fn traffic_of(bucket: Bucket, time_ns: u64) -> u64 {
    const SECOND_NS: u128 = 1_000_000_000;
    let earned = u128::from(bucket.rate()) * u128::from(time_ns) / SECOND_NS;
    u64::try_from(earned).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_in_packets_and_bits_imply_the_mean_frame_size() {
        let mut sla = Sla::default();
        assert_eq!(sla.mean_frame_bytes(), None);
        sla.burst_packets = Some(10);
        sla.burst_bits = Some(10 * 64 * 8);
        assert_eq!(sla.mean_frame_bytes(), Some(64));
        sla.rate_pps = Some(1000);
        sla.rate_bps = Some(1000 * 1400 * 8);
        assert_eq!(sla.mean_frame_bytes(), Some(1400));
    }

    #[test]
    fn default_burst_is_32_packets_or_the_traffic_of_a_millisecond() {
        let burst = |sla: &Sla| sla.profile().packets.map(Bucket::burst);
        let mut sla = Sla::default();
        assert!(sla.profile().is_unlimited());
        sla.rate_pps = Some(20_000);
        assert_eq!(burst(&sla), Some(32));
        sla.rate_pps = Some(1_000_000);
        assert_eq!(burst(&sla), Some(1000));
        sla.burst_packets = Some(5);
        sla.rate_bps = Some(1_000_000);
        assert_eq!(burst(&sla), Some(5));
        let bits = sla.profile().bits.map(Bucket::burst);
        assert_eq!(bits, Some(32 * 1514 * 8));
    }

    #[test]
    fn default_burst_for_tcp_covers_a_retransmission_timeout() {
        let burst = |rate_bps: u64| {
            let sla = Sla {
                rate_bps: Some(rate_bps),
                has_tcp_burst: true,
                ..Sla::default()
            };
            sla.profile().bits.map(Bucket::burst)
        };
        assert_eq!(burst(10_000_000), Some(2_500_000));
        assert_eq!(burst(15_000_000), Some(256 * FULL_FRAME * 8));
        assert_eq!(burst(10_000_000_000), Some(10_000_000));
    }

    #[test]
    fn policing_burst_replaces_the_burst_in_the_policing_profile_only() {
        let sla = Sla {
            rate_pps: Some(900_000),
            burst_packets: Some(5),
            policing_burst_packets: Some(20),
            ..Sla::default()
        };
        assert_eq!(sla.profile().packets.map(Bucket::burst), Some(5));
        assert_eq!(sla.policing_profile().packets.map(Bucket::burst), Some(20));
        assert_eq!(sla.shaper_queue(), 64);
    }
}
