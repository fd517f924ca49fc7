//! For how long cores stand still: a thread on each does nothing but look at the clock, and notes when it jumps.
//!
//! What it sees is what a worker that polls would see: interrupts, other threads on its core, migrations of what it waits for, and the time that the hypervisor
//! takes. All cores are looked at at the same time.

use std::collections::BTreeMap;
use std::time::Duration;

use myelin_linux::{affinity, procfs};
use myelin_planner::Stall;
use myelin_probe::clock::now_ns;

use crate::api::ApiError;

/// Jumps of the clock that are gaps, ns: reading it takes a tenth of that.
const LEAST_NS: u64 = 1000;
/// Gaps that are noted; when there are more the look ends early.
const MOST_GAPS: usize = 1 << 18;
/// Longer gaps than the stall make up at most this part of the time.
const PART: u64 = 1000;

/// Looks at every core that this process may use.
pub(super) fn measure(how_long: Duration) -> Result<BTreeMap<u32, Stall>, ApiError> {
    let cores = affinity::get(0).map_err(ApiError::failed)?;
    let before = procfs::cpu_times().map_err(ApiError::failed)?;
    let watched = std::thread::scope(|scope| {
        let watchers: Vec<_> = cores
            .iter()
            .map(|&core| (core, scope.spawn(move || watch(core, how_long))))
            .collect();
        let ended = |core| {
            ApiError::failed(format!(
                "looking for gaps on core {core}: the thread ended early"
            ))
        };
        let ends = watchers.into_iter().map(|(core, watcher)| {
            let seen = watcher.join().map_err(|_| ended(core))??;
            Ok((core, seen))
        });
        ends.collect::<Result<Vec<_>, ApiError>>()
    })?;
    let after = procfs::cpu_times().map_err(ApiError::failed)?;
    let steal_percent = |core: usize| {
        let of = |times: &[procfs::CpuTimes]| times.iter().find(|one| one.cpu == core).copied();
        let spent = of(&after)?.since(&of(&before)?);
        let total_s = spent.total().as_secs_f64();
        (total_s > 0.0).then(|| spent.steal.as_secs_f64() / total_s * 100.0)
    };
    let stalls = watched.into_iter().map(|(core, (gaps, observed_ns))| {
        let stall = stall(gaps, observed_ns, steal_percent(core).unwrap_or(0.0));
        (core as u32, stall)
    });
    Ok(stalls.collect())
}

/// The gaps on one core, and for how long it was looked at, ns.
fn watch(core: usize, how_long: Duration) -> Result<(Vec<u64>, u64), ApiError> {
    affinity::set(0, &[core]).map_err(ApiError::failed)?;
    // Written once, so that no page of it has to be found while the clock is looked at.
    let mut gaps = vec![1_u64; MOST_GAPS];
    let mut count = 0;
    let start_ns = now_ns();
    let end_ns = start_ns + how_long.as_nanos() as u64;
    let mut last_ns = start_ns;
    while last_ns < end_ns && count < gaps.len() {
        let ns = now_ns();
        if ns - last_ns > LEAST_NS {
            gaps[count] = ns - last_ns;
            count += 1;
        }
        last_ns = ns;
    }
    gaps.truncate(count);
    Ok((gaps, last_ns - start_ns))
}

/// The least time such that longer gaps make up at most 0.1 % of the time.
fn stall(mut gaps: Vec<u64>, observed_ns: u64, steal_percent: f64) -> Stall {
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    let mut longer_ns = 0;
    let stall_ns = gaps.iter().copied().find(|gap| {
        longer_ns += gap;
        longer_ns > observed_ns / PART
    });
    Stall {
        stall_ns: stall_ns.unwrap_or(LEAST_NS),
        gaps: gaps.len() as u64,
        longest_ns: gaps.first().copied().unwrap_or(0),
        observed_ns,
        steal_percent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_longer_than_the_stall_are_a_thousandth_of_the_time() {
        let gaps = [vec![400_000], vec![300_000; 2], vec![5000; 100]].concat();
        let seen = stall(gaps.clone(), 1_000_000_000, 0.0);
        // One of 400 us and both of 300 us are exactly the thousandth.
        assert_eq!(seen.stall_ns, 5000);
        assert_eq!(stall(gaps.clone(), 999_999_000, 0.0).stall_ns, 300_000);
        assert_eq!((seen.gaps, seen.longest_ns), (103, 400_000));
        assert_eq!(stall(gaps, 10_000_000_000, 0.0).stall_ns, LEAST_NS);
        assert_eq!(stall(Vec::new(), 1_000_000_000, 0.0).longest_ns, 0);
    }

    #[test]
    fn every_core_is_looked_at() {
        let stalls = measure(Duration::from_millis(20)).unwrap();
        let cores = affinity::get(0).unwrap();
        assert_eq!(stalls.len(), cores.len());
        for (core, stall) in stalls {
            assert!(cores.contains(&(core as usize)));
            assert!(
                stall.observed_ns > 0 && stall.stall_ns >= LEAST_NS,
                "{stall:?}"
            );
        }
    }
}
