//! What `ps` shows of a chain's shaper.

use myelin_dataplane::ShaperStats;
use myelin_planner::{ShaperPlace, ShaperPlan};

use crate::api::ShaperStatus;

/// Of the packets that the last program of a chain has counted out, those that have left the queueing discipline behind it. What
/// came too late or was too big the program itself has dropped, before it counted.
pub(crate) fn out(counted: u64, discipline: &ShaperStats) -> u64 {
    counted.saturating_sub(discipline.full + discipline.waiting)
}

/// The state of a shaper, from what it has counted over all generations.
pub(crate) fn status(plan: ShaperPlan, by: &str, stats: &ShaperStats) -> ShaperStatus {
    let ShaperPlan { place, shaping, .. } = plan;
    let in_worker = place == ShaperPlace::Worker;
    // HTB counts no packets that waited, and its class comes behind the program that records the sojourn.
    let is_told = by != "htb";
    let left = stats
        .delayed
        .saturating_sub(stats.waiting + stats.lost)
        .max(1);
    ShaperStatus {
        by: by.to_owned(),
        rate_pps: shaping.packets.map(|limit| limit.rate),
        burst_packets: shaping.packets.map(|limit| limit.burst),
        rate_bps: shaping.bits.map(|limit| limit.rate),
        burst_bits: shaping.bits.map(|limit| limit.burst),
        queue: shaping.queue,
        delay_us: shaping.delay_ns as f64 / 1e3,
        delayed: is_told.then_some(stats.delayed),
        mean_wait_us: (in_worker && stats.delayed > 0)
            .then(|| stats.waited_ns as f64 / 1e3 / left as f64),
        drops_full: stats.full,
        drops_late: stats.late,
        drops_too_big: stats.big,
        lost: stats.lost,
        waiting: stats.waiting,
        most_waiting: in_worker.then_some(stats.most),
        in_sojourn: is_told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_counted_out_is_not_taken_off_it() {
        let of_fq = ShaperStats {
            delayed: 30,
            late: 20,
            big: 4,
            ..ShaperStats::default()
        };
        assert_eq!(out(76, &of_fq), 76);
        let of_htb = ShaperStats {
            full: 20,
            waiting: 4,
            ..ShaperStats::default()
        };
        assert_eq!(out(100, &of_htb), 76);
        // They are read one after the other.
        assert_eq!(out(10, &of_htb), 0);
    }
}
