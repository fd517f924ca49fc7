//! What a shaper holds back, and how late it lets go.

use myelin_packet::traffic::Bucket;
use myelin_spec::{FULL_FRAME, Idle, ServiceChain};

use super::site::NS;
use crate::calculus::{SECOND, mul_div_down, mul_div_up};
use crate::frame::SHORTEST;
use crate::plan::{Plan, ShaperPlace};
use crate::shaping::behind;

/// The longest that a packet that the policer lets through is made to wait by a shaper that is stricter, fs.
pub(super) fn held_fs(chain: &ServiceChain, plan: &Plan) -> u128 {
    if plan.shaper.is_none() {
        return 0;
    }
    stricter_fs(chain)
}

/// How long a packet that the policer lets through waits in a shaper that is stricter. One that is not delays nothing that is
/// not late already (LBT section 1.5).
fn stricter_fs(chain: &ServiceChain) -> u128 {
    let (shaped, policed) = (chain.sla.profile(), chain.sla.policing_profile());
    let wait = |shaped: Option<Bucket>, policed: Option<Bucket>| {
        let (shaped, policed) = shaped.zip(policed)?;
        let more = u128::from(policed.burst().saturating_sub(shaped.burst()));
        Some((more * SECOND).div_ceil(u128::from(shaped.rate())))
    };
    let packets = wait(shaped.packets, policed.packets).unwrap_or(0);
    packets.max(wait(shaped.bits, policed.bits).unwrap_or(0))
}

/// A worker that is late by more than its bucket holds, and than it may make good, loses credit, so packets leave more slowly than they come.
pub(super) fn too_slow(chain: &ServiceChain, plan: &Plan, late_fs: u128) -> Option<String> {
    let shaper = plan
        .shaper
        .filter(|shaper| shaper.place == ShaperPlace::Worker)?;
    let lost_fs = late_fs.saturating_sub(u128::from(shaper.shaping.tolerance_ns) * NS);
    if lost_fs == 0 {
        return None;
    }
    let profile = shaper.shaping.profile();
    // The bucket must hold what a packet takes and what comes until the worker looks at it.
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
        "the worker may let a shaped packet go {late_us} us late, in which the shaper earns more credit than its burst holds: once packets wait it \
         lets out less than the agreed rate; agree on a burst of {burst} {unit} at least, write `shaper: {{ tolerance: {late_us}us }}`{awake}"
    ))
}

/// For how long a packet may be under way before it is at the shaper, fs: those behind it catch up with it meanwhile, and beside what the
/// policer lets through at once they must fit into the queue, and none may wait for too long. `None`: not at all.
pub(super) fn room_fs(chain: &ServiceChain, plan: &Plan) -> Option<u128> {
    let shaper = &plan.shaper.as_ref()?.shaping;
    let longest_fs = (u128::from(shaper.delay_ns) * NS).checked_sub(stricter_fs(chain))?;
    let (shaped, policed, packet) = in_and_out(chain, plan)?;
    let more = policed.burst().saturating_sub(shaped.burst());
    let room = (u128::from(shaper.queue) * packet).checked_sub(more.into())?;
    let until_full_fs = mul_div_down(room, SECOND, policed.rate().into())?;
    Some(longest_fs.min(until_full_fs))
}

/// What the shaper lets out and what the policer lets through, as the functions before the shaper make it; in packets, or in bits with
/// those of a packet, which is as short as can be.
fn in_and_out(chain: &ServiceChain, plan: &Plan) -> Option<(Bucket, Bucket, u128)> {
    let shaper = plan.shaper.as_ref()?;
    let shaped = shaper.shaping.profile();
    let policed = behind(chain.sla.policing_profile(), chain, shaper.behind);
    Some(match (shaped.packets, policed.packets) {
        (Some(shaped), Some(policed)) => (shaped, policed, 1),
        _ => (shaped.bits?, policed.bits?, 8 * u128::from(SHORTEST)),
    })
}

/// Why a shaper drops of what the policer lets through, where packets are under way for up to `before_fs` until they are there; with the
/// remedy.
pub(super) fn no_room(chain: &ServiceChain, plan: &Plan, before_fs: u128) -> Option<String> {
    let shaper = &plan.shaper.as_ref()?.shaping;
    if room_fs(chain, plan).is_some_and(|room_fs| before_fs <= room_fs) {
        return None;
    }
    let (shaped, policed, packet) = in_and_out(chain, plan)?;
    let caught_up = mul_div_up(policed.rate().into(), before_fs, SECOND)?;
    let more = u128::from(policed.burst().saturating_sub(shaped.burst())) + caught_up;
    let packets = more.div_ceil(packet);
    if packets > u128::from(shaper.queue) {
        return Some(format!(
            "up to {packets} packets may wait in the shaper, of what the policer lets through at once and what clusters in the {} us until it \
             is there, and its queue holds {}; write `shaper: {{ queue: {packets} }}` at least, or a smaller `policingBurst`",
            before_fs.div_ceil(NS * 1000),
            shaper.queue
        ));
    }
    let wait_us = stricter_fs(chain)
        .saturating_add(before_fs)
        .div_ceil(NS * 1000);
    Some(format!(
        "what the policer lets through at once, and what clusters until it is there, waits in the shaper for up to {wait_us} us, and it drops \
         what would wait for more than {} us; write a higher `delay` in `shaper`, or a smaller `policingBurst`",
        shaper.delay_ns / 1000
    ))
}
