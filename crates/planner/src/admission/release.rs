//! What a shaper holds back, and how late it lets go.

use myelin_spec::{FULL_FRAME, Idle, ServiceChain};
use myelin_traffic::{Bucket, Profile};

use super::site::{NS, Platform, Site};
use super::way;
use crate::calculus::{SECOND, mul_div_up};
use crate::costs::Costs;
use crate::plan::Plan;
use crate::shaping::ShaperPlace;

/// The longest that a packet that the policer lets through is kept by the shaper, fs: what a stricter one makes wait, and in a worker
/// the lateness of the departure.
pub(super) fn held_fs(chain: &ServiceChain, plan: &Plan, costs: &Costs, site: &Site) -> u128 {
    let Some(shaper) = &plan.shaper else { return 0 };
    let stricter_fs = stricter_fs(&chain.sla.profile(), &chain.sla.policing_profile());
    let late_fs = match shaper.place {
        ShaperPlace::Worker => lateness_fs(chain, costs, site),
        ShaperPlace::Qdisc => 0,
    };
    stricter_fs.saturating_add(late_fs)
}

/// How late a worker may let a packet go whose departure has come, fs: its core may stand still, and it must wake up where it
/// sleeps.
fn lateness_fs(chain: &ServiceChain, costs: &Costs, site: &Site) -> u128 {
    let stall_fs = Platform::new(costs).stall_fs(site.core);
    let wake_up_fs = match chain.worker.idle {
        Idle::Spin => 0,
        _ => way::worst(costs, costs.steps.wake_up).most_fs(),
    };
    stall_fs.saturating_add(wake_up_fs)
}

/// How long a packet that the policer lets through waits in a shaper that is stricter. One that is not delays nothing that is
/// not late already (LBT section 1.5).
fn stricter_fs(shaped: &Profile, policed: &Profile) -> u128 {
    let wait = |shaped: Option<Bucket>, policed: Option<Bucket>| {
        let (shaped, policed) = shaped.zip(policed)?;
        let more = u128::from(policed.burst().saturating_sub(shaped.burst()));
        Some((more * SECOND).div_ceil(u128::from(shaped.rate())))
    };
    let packets = wait(shaped.packets, policed.packets).unwrap_or(0);
    packets.max(wait(shaped.bits, policed.bits).unwrap_or(0))
}

/// A worker that is late by more than its bucket holds, and than it may make good, loses credit, so packets leave more slowly than they come.
pub(super) fn too_slow(
    chain: &ServiceChain,
    plan: &Plan,
    costs: &Costs,
    site: &Site,
) -> Option<String> {
    let shaper = plan
        .shaper
        .filter(|shaper| shaper.place == ShaperPlace::Worker)?;
    let late_fs = lateness_fs(chain, costs, site);
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

/// Why a shaper drops of what the policer lets through at once, with the remedy.
pub(super) fn no_room(chain: &ServiceChain, plan: &Plan) -> Option<String> {
    let shaper = &plan.shaper.as_ref()?.shaping;
    let (shaped, policed) = (chain.sla.profile(), chain.sla.policing_profile());
    let burst = |profile: &Profile| profile.packets.map(Bucket::burst);
    let more = burst(&policed)?.saturating_sub(burst(&shaped)?);
    if more > u64::from(shaper.queue) {
        return Some(format!(
            "the policer lets through {more} packets more at once than the shaper lets out, and its queue holds {}; write `shaper: {{ \
             queue: {more} }}` at least, or a smaller `policingBurst`",
            shaper.queue
        ));
    }
    let wait_ns = stricter_fs(&shaped, &policed).div_ceil(NS);
    (wait_ns > u128::from(shaper.delay_ns)).then(|| {
        format!(
            "what the policer lets through at once waits in the shaper for up to {} us, and it drops what would wait for more than {} us; \
             write a higher `delay` in `shaper`, or a smaller `policingBurst`",
            wait_ns.div_ceil(1000),
            shaper.delay_ns / 1000
        )
    })
}
