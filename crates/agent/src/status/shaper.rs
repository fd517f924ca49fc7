//! Builds the status of a chain's shaper for `ps`.

use myelin_dataplane::ShaperStats;
use myelin_planner::{ShaperPlace, ShaperPlan};

use crate::api::ShaperStatus;

/// Builds the status of a shaper from its counts over all generations. `implementation` is
/// `worker`, `fq` or `htb`.
pub(super) fn status(plan: ShaperPlan, implementation: &str, stats: &ShaperStats) -> ShaperStatus {
    let ShaperPlan { place, shaping, .. } = plan;
    let in_worker = place == ShaperPlace::Worker;
    // HTB counts no delayed packets. Its class is behind the program that records the sojourn.
    let is_htb = implementation == "htb";
    let departed = stats
        .delayed
        .saturating_sub(stats.waiting + stats.lost)
        .max(1);
    ShaperStatus {
        by: implementation.to_owned(),
        rate_pps: shaping.packets.map(|limit| limit.rate),
        burst_packets: shaping.packets.map(|limit| limit.burst),
        rate_bps: shaping.bits.map(|limit| limit.rate),
        burst_bits: shaping.bits.map(|limit| limit.burst),
        queue: shaping.queue,
        delay_us: shaping.delay_ns as f64 / 1e3,
        delayed: (!is_htb).then_some(stats.delayed),
        mean_wait_us: (in_worker && stats.delayed > 0)
            .then(|| stats.waited_ns as f64 / 1e3 / departed as f64),
        drops_full: stats.full,
        drops_late: stats.late,
        drops_too_big: stats.big,
        lost: stats.lost,
        waiting: stats.waiting,
        most_waiting: in_worker.then_some(stats.most),
        in_sojourn: !is_htb,
    }
}
