//! Chooses the place of a chain's shaper, and its profile.
//!
//! The shaper is after the last queue of the path, where it separates packets that queues
//! clustered. In a chain with a worker, the shaper is in the worker, after the last user function;
//! later kernel functions run to completion, packet by packet. A chain of kernel functions has no
//! queue, so `enforce: auto` adds no shaper. If the file requests a shaper, the egress interface's
//! queueing discipline shapes packets from tcx. XDP's redirect bypasses that discipline.

use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::effect::MILLIONTHS;
use myelin_spec::{Effect, Enforce, FULL_FRAME, Hook, Mapping, ServiceChain, Shaping, Space};

use crate::error::PlanError;
use crate::frame::{SHORTEST, longest};
use crate::plan::{Plan, ShaperPlace, ShaperPlan};

/// Plans the shaper of a chain. Adds a warning if packets may cluster and nothing shapes them.
pub(crate) fn plan_shaper(
    plan: &Plan,
    chain: &ServiceChain,
) -> Result<(Option<ShaperPlan>, Option<String>), PlanError> {
    let sla = &chain.sla;
    let profile = sla.profile();
    let is_requested = matches!(sla.enforce, Enforce::Both | Enforce::Shaper);
    if profile.is_unlimited() || !(is_requested || sla.enforce == Enforce::Auto) {
        return Ok((None, None));
    }
    let (place, functions) = match shaper_place(plan, chain) {
        Ok(Some((ShaperPlace::Qdisc, _)) | None) if !is_requested => return Ok((None, None)),
        Ok(Some(found)) => found,
        Ok(None) => return Err(shaper_error(chain, XDP_ONLY)),
        Err(why) if is_requested => return Err(shaper_error(chain, why)),
        Err(why) => {
            let warning = format!(
                "the traffic is policed and not shaped, so packets that cluster between functions leave in \
                 clusters: {why}"
            );
            return Ok((None, Some(warning)));
        }
    };
    let profile = profile_after(profile, chain, functions);
    let shaping = Shaping {
        tolerance_ns: sla.shaper_tolerance_ns,
        ..Shaping::new(&profile, sla.shaper_queue(), sla.shaper_delay_ns())
    };
    let plan = ShaperPlan {
        place,
        shaping,
        functions_before: functions,
    };
    Ok((Some(plan), None))
}

/// Returns the profile after the first `functions` functions of a chain.
pub(crate) fn profile_after(profile: Profile, chain: &ServiceChain, functions: usize) -> Profile {
    let functions = chain.functions.iter().take(functions);
    functions
        .map(|function| function.config.effect())
        .fold(profile, |profile, effect| {
            profile_after_effect(profile, &effect)
        })
}

const XDP_ONLY: &str = "all functions of the chain run in the kernel at the XDP hook, whose redirect bypasses every queue of \
                        the egress interface; write `hook: tcx`, or give a function `space: user`";

const ENDS_IN_KERNEL: &str = "with `mapping: distributed` the chain ends in a kernel function, after which a redirect bypasses \
                              every queue of the egress interface; give the last function `space: user`, or write `mapping: compact`";

const ENDS_IN_BOX: &str = "the chain ends in a black box, after which a redirect bypasses every queue of the \
                           egress interface; add a function with `space: user` after it";

const SUPER_PACKETS: &str =
    "a worker does not shape super-packets; remove `worker: { superPackets: true }`";

fn shaper_error(chain: &ServiceChain, why: &'static str) -> PlanError {
    let (key, remedy) = match chain.sla.excess_queue_ns {
        Some(_) => ("excess: `queue`".to_owned(), "remove `excess`"),
        None => (
            format!("enforce: `{}`", chain.sla.enforce),
            "write `enforce: policer`",
        ),
    };
    let problem = format!(": spec.sla.{key} needs a shaper, but {why}; or {remedy}");
    PlanError::new(chain, &chain.places.sla, problem)
}

/// Returns the place of the shaper and the number of functions before it. Returns `None` if packets
/// cannot queue and nothing can shape, and an error if packets may cluster and nothing can shape.
fn shaper_place(
    plan: &Plan,
    chain: &ServiceChain,
) -> Result<Option<(ShaperPlace, usize)>, &'static str> {
    let count = chain.functions.len();
    if chain.worker.super_packets {
        return Err(SUPER_PACKETS);
    }
    if plan.mapping == Mapping::Distributed {
        return match plan.hops.last() {
            Some(hop) if hop.is_black_box() => Err(ENDS_IN_BOX),
            Some(hop) if hop.space == Space::Kernel => Err(ENDS_IN_KERNEL),
            _ => Ok(Some((ShaperPlace::Worker, count))),
        };
    }
    let mut segments = plan.segments.iter().rev();
    if let Some(last) = segments.find(|segment| segment.space == Space::User) {
        return Ok(Some((ShaperPlace::Worker, last.positions().end)));
    }
    Ok((plan.hook == Hook::Tcx).then_some((ShaperPlace::Qdisc, count)))
}

/// Returns the profile after a function with this effect.
fn profile_after_effect(profile: Profile, effect: &Effect) -> Profile {
    let Effect {
        added_packets,
        added_bytes,
        ..
    } = effect;
    let per_parts = u64::from(MILLIONTHS) + u64::from(added_packets.parts);
    let scaled = |count: u64| scale(count, per_parts, MILLIONTHS.into());
    let packets = profile.packets.map(|bucket| {
        let burst = scaled(bucket.burst()).saturating_add(added_packets.at_once);
        capped_bucket(scaled(bucket.rate()), burst)
    });
    let bits = profile.bits.map(|bucket| {
        // The limit of packets, or the number of shortest frames with these bits.
        let with_added_bytes = |bits: u64, packets: Option<u64>| {
            let bits = scaled(bits);
            let packets = packets.unwrap_or(bits / (SHORTEST * 8) + 1);
            let more = packets.saturating_mul(added_bytes.bytes * 8);
            // Frames grow at most to full frames, unless they arrived longer.
            let full = packets.saturating_mul(longest(added_bytes.mtu) * 8);
            bits.saturating_add(more).min(full.max(bits))
        };
        let rate = with_added_bytes(bucket.rate(), packets.map(Bucket::rate));
        let burst = with_added_bytes(bucket.burst(), packets.map(Bucket::burst))
            .saturating_add(added_packets.at_once * FULL_FRAME * 8);
        capped_bucket(rate, burst)
    });
    Profile { packets, bits }
}

/// Returns `count * numerator / denominator`, rounded up.
fn scale(count: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(count) * u128::from(numerator);
    u64::try_from(product.div_ceil(u128::from(denominator))).unwrap_or(u64::MAX)
}

/// Creates a bucket with this rate and burst, reduced to the limits of a bucket.
fn capped_bucket(rate: u64, burst: u64) -> Bucket {
    let (rate, burst) = (
        rate.clamp(1, Bucket::MAX_RATE),
        burst.clamp(1, Bucket::MAX_BURST),
    );
    match Bucket::new(rate, burst) {
        Ok(bucket) => bucket,
        Err(error) => unreachable!("{rate} and {burst} are in range: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::{AddedBytes, AddedPackets};

    use super::*;

    fn profile(packets: (u64, u64), bits: Option<(u64, u64)>) -> Profile {
        let bucket = |(rate, burst)| Bucket::new(rate, burst).unwrap();
        Profile {
            packets: Some(bucket(packets)),
            bits: bits.map(bucket),
        }
    }

    fn stamps() -> Effect {
        let (bytes, mtu) = (16, 1500);
        Effect {
            added_bytes: AddedBytes { bytes, mtu },
            ..Effect::default()
        }
    }

    fn repairs(at_once: u64) -> Effect {
        let (bytes, mtu) = (12, 1500);
        Effect {
            added_packets: AddedPackets {
                parts: MILLIONTHS / 4,
                window: 32,
                at_once,
            },
            added_bytes: AddedBytes { bytes, mtu },
            ..Effect::default()
        }
    }

    #[test]
    fn profile_includes_added_packets_and_bytes() {
        let coded =
            profile_after_effect(profile((1000, 5), Some((1_000_000, 50_000))), &repairs(0));
        assert_eq!(
            coded,
            profile((1250, 7), Some((1_250_000 + 1250 * 96, 62_500 + 7 * 96)))
        );
        assert_eq!(
            profile_after_effect(profile((1000, 5), None), &repairs(8)),
            profile((1250, 7 + 8), None)
        );
        let stamped =
            profile_after_effect(profile((1000, 5), Some((1_000_000, 50_000))), &stamps());
        let expected = profile((1000, 5), Some((1_128_000, 50_640)));
        assert_eq!(stamped, expected);
    }

    #[test]
    fn without_a_packet_rate_frames_count_as_the_shortest() {
        let bits = Profile {
            packets: None,
            bits: Bucket::new(480_000, 4800).ok(),
        };
        let longer = profile_after_effect(bits, &stamps()).bits.unwrap();
        assert_eq!(
            (longer.rate(), longer.burst()),
            (480_000 + 1001 * 128, 4800 + 11 * 128)
        );
    }

    #[test]
    fn largest_profile_does_not_overflow() {
        let largest = profile(
            (Bucket::MAX_RATE, Bucket::MAX_BURST),
            Some((Bucket::MAX_RATE, Bucket::MAX_BURST)),
        );
        for effect in [stamps(), repairs(8)] {
            assert_eq!(profile_after_effect(largest, &effect), largest);
        }
    }
}
