//! The time that a shaper holds packets back, its lateness and its room.

use myelin_packet::traffic::Bucket;
use myelin_spec::{FULL_FRAME, Idle, ServiceChain};

use super::site::NS;
use crate::calculus::{SECOND, mul_div_down, mul_div_up};
use crate::frame::SHORTEST;
use crate::plan::{Plan, ShaperPlace};
use crate::shaping::profile_behind;

/// The longest hold time in a shaper that is stricter than the policer, fs; `None` without a bound.
pub(super) fn shaper_hold_fs(chain: &ServiceChain, plan: &Plan) -> u128 {
    if plan.shaper.is_none() {
        return 0;
    }
    shaper_wait_fs(chain)
}

/// The longest wait in the shaper of a packet that the policer passes, fs, if packets have no delay
/// before the shaper. Theorem 9 of `docs/guarantees/proofs.md`.
fn shaper_wait_fs(chain: &ServiceChain) -> u128 {
    let (shaped, policed) = (chain.sla.profile(), chain.sla.policing_profile());
    let wait = |shaped: Option<Bucket>, policed: Option<Bucket>| {
        let (shaped, policed) = shaped.zip(policed)?;
        let more = u128::from(policed.burst().saturating_sub(shaped.burst()));
        Some((more * SECOND).div_ceil(u128::from(shaped.rate())))
    };
    let packets = wait(shaped.packets, policed.packets).unwrap_or(0);
    packets.max(wait(shaped.bits, policed.bits).unwrap_or(0))
}

/// Warns of a shaper whose lateness exceeds its tolerance and its bucket: it loses credit, so
/// packets leave more slowly than they arrive.
pub(super) fn warn_of_lost_credit(
    chain: &ServiceChain,
    plan: &Plan,
    late_fs: u128,
) -> Option<String> {
    let shaper = plan
        .shaper
        .filter(|shaper| shaper.place == ShaperPlace::Worker)?;
    let lost_fs = late_fs.saturating_sub(u128::from(shaper.shaping.tolerance_ns) * NS);
    if lost_fs == 0 {
        return None;
    }
    let profile = shaper.shaping.profile();
    // The bucket must hold one packet and the credit of the lateness.
    let needed = |bucket: Option<Bucket>, packet: u64| {
        let bucket = bucket?;
        let meanwhile = mul_div_up(u128::from(bucket.rate()), lost_fs, SECOND)?;
        let needed = meanwhile.checked_add(u128::from(packet))?;
        (needed > u128::from(bucket.burst())).then_some(needed)
    };
    let packets = needed(profile.packets, 1).map(|burst| (burst, "packets"));
    let (burst, unit) =
        packets.or_else(|| needed(profile.bits, FULL_FRAME * 8).map(|burst| (burst, "bits")))?;
    let awake = match chain.worker.idle {
        Idle::Spin => "",
        _ => ", or write `worker: { idle: spin }`",
    };
    let late_us = late_fs.div_ceil(NS * 1000);
    Some(format!(
        "the shaper may be {late_us} us late and earn more credit than its burst holds: then it sends \
         less than the agreed rate; write a burst of at least {burst} {unit}, or \
         `shaper: {{ tolerance: {late_us}us }}`{awake}"
    ))
}

/// Longest time before the shaper, fs, for which its queue has room and no packet waits too long:
/// packets cluster meanwhile, besides the policer's burst. `None`: never.
pub(super) fn room_fs(chain: &ServiceChain, plan: &Plan) -> Option<u128> {
    let shaper = &plan.shaper.as_ref()?.shaping;
    let longest_fs = (u128::from(shaper.delay_ns) * NS).checked_sub(shaper_wait_fs(chain))?;
    let (shaped, policed, packet) = shaped_and_policed(chain, plan)?;
    let more = policed.burst().saturating_sub(shaped.burst());
    let room = (u128::from(shaper.queue) * packet).checked_sub(more.into())?;
    let until_full_fs = mul_div_down(room, SECOND, policed.rate().into())?;
    Some(longest_fs.min(until_full_fs))
}

/// The shaper's and the policer's bucket behind the functions before the shaper, in packets, or in
/// bits; and the size of the shortest packet in that unit.
fn shaped_and_policed(chain: &ServiceChain, plan: &Plan) -> Option<(Bucket, Bucket, u128)> {
    let shaper = plan.shaper.as_ref()?;
    let shaped = shaper.shaping.profile();
    let policed = profile_behind(chain.sla.policing_profile(), chain, shaper.behind);
    Some(match (shaped.packets, policed.packets) {
        (Some(shaped), Some(policed)) => (shaped, policed, 1),
        _ => (shaped.bits?, policed.bits?, 8 * u128::from(SHORTEST)),
    })
}

/// Why a shaper drops conforming packets that take up to `before_fs` to reach it, with the remedy.
pub(super) fn room_refusal(chain: &ServiceChain, plan: &Plan, before_fs: u128) -> Option<String> {
    let shaper = &plan.shaper.as_ref()?.shaping;
    if room_fs(chain, plan).is_some_and(|room_fs| before_fs <= room_fs) {
        return None;
    }
    let (shaped, policed, packet) = shaped_and_policed(chain, plan)?;
    let caught_up = mul_div_up(policed.rate().into(), before_fs, SECOND)?;
    let more = u128::from(policed.burst().saturating_sub(shaped.burst())) + caught_up;
    let packets = more.div_ceil(packet);
    if packets > u128::from(shaper.queue) {
        return Some(format!(
            "up to {packets} packets may wait in the shaper (the policer's burst, and {} us of clustering \
             before it), and its queue holds {}; write `shaper: {{ queue: {packets} }}` at least, or a \
             smaller `policingBurst`",
            before_fs.div_ceil(NS * 1000),
            shaper.queue
        ));
    }
    let wait_us = shaper_wait_fs(chain)
        .saturating_add(before_fs)
        .div_ceil(NS * 1000);
    Some(format!(
        "a packet may wait in the shaper for up to {wait_us} us (the policer's burst, and clustering \
         before it), and the shaper drops packets after {} us; write a higher `delay` in `shaper`, or \
         a smaller `policingBurst`",
        shaper.delay_ns / 1000
    ))
}
