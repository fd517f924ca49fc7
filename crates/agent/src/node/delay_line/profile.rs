//! The profile of an impaired link, and the packet memory that it needs.

use myelin_packet::link_model::{DEFAULT_QUEUE_NS, LinkProfile};
use myelin_packet::loss_model::Loss;
use myelin_spec::Impairments;

use crate::api::ApiError;

/// Packets of a direction without a rate, for the packet memory.
const UNLIMITED_PACKETS: u64 = 1024;
/// Frame that the queue and the packet memory assume, bytes.
const FRAME: u64 = 1514;

/// Returns the profile of a direction of a link.
pub(super) fn profile_of(impairments: &Impairments) -> LinkProfile {
    let rate_bps = impairments.rate_bps;
    let queue_ns = impairments.queue_packets.zip(rate_bps);
    let queue_ns = queue_ns.map_or(DEFAULT_QUEUE_NS, |(packets, rate)| {
        let ns = u128::from(packets) * u128::from(FRAME) * 8 * 1_000_000_000;
        u64::try_from(ns / u128::from(rate.max(1))).unwrap_or(u64::MAX)
    });
    LinkProfile {
        delay_ns: impairments.delay_ns,
        jitter_ns: impairments.jitter_ns,
        may_reorder: false,
        rate_bps,
        queue_ns,
        loss: impairments.loss.map_or(Loss::default(), |loss| Loss {
            ppm: loss.ppm,
            burst: (loss.burst > 1).then_some(loss.burst),
        }),
    }
}

/// Returns the number of packets that wait in a direction of a link at most: its rate times its
/// delay and queue.
pub(crate) fn packets_of(impairments: &Impairments) -> u64 {
    let profile = profile_of(impairments);
    profile.rate_bps.map_or(UNLIMITED_PACKETS, |rate| {
        let longest_ns = [profile.delay_ns, profile.jitter_ns, profile.queue_ns];
        let longest_ns: u128 = longest_ns.into_iter().map(u128::from).sum();
        let bits = longest_ns.saturating_mul(rate.into()) / 1_000_000_000;
        u64::try_from(bits / u128::from(8 * FRAME)).unwrap_or(u64::MAX)
    })
}

pub(super) fn too_large(needed: u64, room: u32) -> ApiError {
    ApiError::failed(format!(
        "the links need room for {needed} packets of 1500 bytes that wait, and the delay line has room for {room}: \
         lower `bandwidth`, `delay` or `queue` of a link"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_packet_memory_is_rate_times_delay_and_queue() {
        let limited = Impairments {
            delay_ns: 10 * MS,
            jitter_ns: 5 * MS,
            rate_bps: Some(8 * 1514 * 1000),
            queue_packets: Some(20),
            ..Impairments::default()
        };
        // A packet a millisecond.
        assert_eq!(profile_of(&limited).queue_ns, 20 * MS);
        assert_eq!(packets_of(&limited), 35);
        let unlimited = Impairments::default();
        assert_eq!(profile_of(&unlimited), LinkProfile::default());
        assert_eq!(packets_of(&unlimited), UNLIMITED_PACKETS);
    }

    #[test]
    fn extreme_links_do_not_overflow() {
        let extreme = Impairments {
            delay_ns: u64::MAX,
            jitter_ns: u64::MAX,
            rate_bps: Some(u64::MAX),
            queue_packets: Some(u32::MAX),
            loss: None,
        };
        assert_eq!(packets_of(&extreme), u64::MAX);
        profile_of(&Impairments {
            rate_bps: Some(0),
            ..extreme
        });
    }
}
