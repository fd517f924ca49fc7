//! For how long cores stand still: a thread on each does nothing but look at the clock, and notes when it jumps.
//!
//! What it sees is what a worker that polls would see: interrupts, other threads on its core, migrations of what it waits for, and the time that the hypervisor
//! takes. All cores are looked at at the same time. One look may meet what is rare, or miss it, so there are several, and more of them while they disagree.

use std::collections::BTreeMap;
use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::{affinity, procfs, schedstat};
use myelin_planner::Stall;

use super::Result;
use crate::clock::now_ns;

/// Jumps of the clock that are gaps, ns: reading it takes a tenth of that.
const LEAST_NS: u64 = 1000;
/// Gaps that are noted in a look; when there are more it ends early.
const MOST_GAPS: usize = 1 << 16;
/// Longer gaps than the stall make up at most this part of the time.
const PART: u64 = 1000;
/// One look.
const LOOK: Duration = Duration::from_millis(250);
/// Looks that agree have stalls of at most this many times each other.
const AGREE: u64 = 2;
/// Looks at first, and how many times as many there are at most.
const FIRST: usize = 8;
const MORE: usize = 4;

/// One look at one core.
#[derive(Debug)]
struct Look {
    gaps: Vec<u64>,
    observed_ns: u64,
    /// For how long the thread was ready to run and did not, since another one had its core, ns.
    others_ns: u64,
}

/// Looks at every core that this process may use: twice as often as a quick one where it is not.
pub(super) fn measure(quick: bool) -> Result<BTreeMap<u32, Stall>> {
    let first = if quick { FIRST } else { 2 * FIRST };
    look(first, LOOK)
}

/// Looks `first` times, and again as often as they do not agree, [`MORE`] times altogether.
fn look(first: usize, how_long: Duration) -> Result<BTreeMap<u32, Stall>> {
    let cores = affinity::get(0)?;
    let before = procfs::cpu_times()?;
    let looks = until_they_agree(first, cores.len(), || all_at_once(&cores, how_long))?;
    let after = procfs::cpu_times()?;
    let stalls = cores.iter().zip(&looks).map(|(&core, looks)| {
        let stall = Stall {
            steal_percent: steal_percent(core, &before, &after).unwrap_or(0.0),
            ..stall(looks)
        };
        (core as u32, stall)
    });
    Ok(stalls.collect())
}

/// The looks at each of so many cores; `once` looks at all of them.
fn until_they_agree(
    first: usize,
    cores: usize,
    mut once: impl FnMut() -> Result<Vec<Look>>,
) -> Result<Vec<Vec<Look>>> {
    let mut looks: Vec<Vec<Look>> = (0..cores).map(|_| Vec::new()).collect();
    for times in 1..=first * MORE {
        for (looks, look) in looks.iter_mut().zip(once()?) {
            looks.push(look);
        }
        if times >= first && times.is_multiple_of(first) && looks.iter().all(|core| agree(core)) {
            break;
        }
    }
    Ok(looks)
}

/// What the hypervisor took of a core's time between two readings; `None` where they do not have it or no time went by.
fn steal_percent(
    core: usize,
    before: &[procfs::CpuTimes],
    after: &[procfs::CpuTimes],
) -> Option<f64> {
    let of = |times: &[procfs::CpuTimes]| times.iter().find(|one| one.cpu == core).copied();
    let spent = of(after)?.since(&of(before)?);
    let total_s = spent.total().as_secs_f64();
    (total_s > 0.0).then(|| spent.steal.as_secs_f64() / total_s * 100.0)
}

fn all_at_once(cores: &[usize], how_long: Duration) -> Result<Vec<Look>> {
    std::thread::scope(|scope| {
        let watchers: Vec<_> = cores
            .iter()
            .map(|&core| (core, scope.spawn(move || watch(core, how_long))))
            .collect();
        let ended = |core| {
            ApiError::failed(format!(
                "looking for gaps on core {core}: the thread ended early"
            ))
        };
        let looks = watchers
            .into_iter()
            .map(|(core, watcher)| watcher.join().map_err(|_| ended(core))?);
        looks.collect()
    })
}

/// The gaps on one core.
fn watch(core: usize, how_long: Duration) -> Result<Look> {
    affinity::set(0, &[core])?;
    // Written once, so that no page of it has to be found while the clock is looked at.
    let mut gaps = vec![1_u64; MOST_GAPS];
    let mut count = 0;
    let waited = schedstat::of_this_thread()?.waited;
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
    let after = schedstat::of_this_thread()?;
    let waited = after.waited.saturating_sub(waited);
    Ok(Look {
        gaps,
        observed_ns: last_ns - start_ns,
        others_ns: waited.as_nanos() as u64,
    })
}

/// Whether the stall of all looks is that of about each half of them.
fn agree(looks: &[Look]) -> bool {
    let (one, other) = looks.split_at(looks.len() / 2);
    let [one, other] = [one, other].map(|half| stall(half).stall_ns);
    one.max(other) <= AGREE * one.min(other)
}

/// The least time such that longer gaps make up at most 0.1 % of the time.
fn stall(looks: &[Look]) -> Stall {
    let observed_ns = looks.iter().map(|look| look.observed_ns).sum();
    let gaps = || looks.iter().flat_map(|look| look.gaps.iter().copied());
    let each = looks
        .iter()
        .map(|look| least(look.gaps.clone(), look.observed_ns));
    let (low_ns, high_ns) = each.fold((u64::MAX, 0), |(low, high), ns| (low.min(ns), high.max(ns)));
    let others_ns: u64 = looks.iter().map(|look| look.others_ns).sum();
    Stall {
        stall_ns: least(gaps().collect(), observed_ns),
        gaps: gaps().count() as u64,
        longest_ns: gaps().max().unwrap_or(0),
        observed_ns,
        steal_percent: 0.0,
        others_percent: others_ns as f64 / observed_ns.max(1) as f64 * 100.0,
        looks_ns: [low_ns.min(high_ns), high_ns],
    }
}

fn least(mut gaps: Vec<u64>, observed_ns: u64) -> u64 {
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    let mut longer_ns = 0;
    let stall_ns = gaps.into_iter().find(|gap| {
        longer_ns += gap;
        longer_ns > observed_ns / PART
    });
    stall_ns.unwrap_or(LEAST_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_of(gaps: &[u64], observed_ns: u64) -> Look {
        Look {
            gaps: gaps.to_vec(),
            observed_ns,
            others_ns: observed_ns / 10,
        }
    }

    #[test]
    fn gaps_longer_than_the_stall_are_a_thousandth_of_the_time() {
        let gaps = [vec![400_000], vec![300_000; 2], vec![5000; 100]].concat();
        let stall = |observed_ns| stall(&[look_of(&gaps, observed_ns)]);
        let seen = stall(1_000_000_000);
        // One of 400 us and both of 300 us are exactly the thousandth.
        assert_eq!(seen.stall_ns, 5000);
        assert_eq!(stall(999_999_000).stall_ns, 300_000);
        assert_eq!((seen.gaps, seen.longest_ns), (103, 400_000));
        assert_eq!(stall(10_000_000_000).stall_ns, LEAST_NS);
        assert_eq!(super::stall(&[]).looks_ns, [0, 0]);
    }

    #[test]
    fn one_gap_in_many_looks_is_no_stall_and_is_told() {
        let quiet = || look_of(&[5000; 100], 250_000_000);
        let mut looks: Vec<Look> = (0..15).map(|_| quiet()).collect();
        looks.push(look_of(&[3_000_000], 250_000_000));
        let seen = stall(&looks);
        assert_eq!(
            seen.stall_ns, 5000,
            "3 of 4000 ms are less than a thousandth"
        );
        assert_eq!(seen.looks_ns, [5000, 3_000_000]);
        assert!((seen.others_percent - 10.0).abs() < 0.1);
        assert!(!agree(&looks[12..]), "one of four looks is another one");
        assert!(agree(&looks[..12]));
        let mut looks: Vec<Look> = (0..12).map(|_| quiet()).collect();
        looks[0] = look_of(&[1_200_000], 250_000_000);
        assert!(
            agree(&looks),
            "half of them are 1500 ms, of which 1.2 are less than a thousandth"
        );
    }

    #[test]
    fn cores_are_looked_at_again_while_one_disagrees() {
        let looks = |gap: fn(u32) -> u64| {
            let mut times = 0;
            let looks = until_they_agree(4, 2, || {
                times += 1;
                let gap = gap(times);
                let [calm, other] = [5000, gap].map(|gap| look_of(&[gap; 100], 250_000_000));
                Ok(vec![calm, other])
            });
            let looks = looks.unwrap();
            assert!(looks.iter().all(|core| core.len() == times as usize));
            assert!(looks[0].iter().all(|look| look.gaps[0] == 5000));
            times
        };
        assert_eq!(looks(|_| 5000), 4);
        assert_eq!(looks(|_| 3_000_000), 4, "they agree on a long stall");
        let first = |times| if times == 1 { 5_000_000 } else { 5000 };
        assert_eq!(looks(first), 16, "it is always in one half");
        let twice = |times| if times > 2 { 10_000 } else { 5000 };
        assert_eq!(looks(twice), 4, "about the same");
        let begun = |times| if times > 2 { 3_000_000 } else { 5000 };
        assert_eq!(looks(begun), 8, "by then it is in both halves");
        let failed = until_they_agree(4, 2, || Err(ApiError::failed("no core").into()));
        assert!(failed.is_err());
    }

    #[test]
    fn what_the_hypervisor_took_is_a_part_of_the_time_between() {
        let times = |steal, idle| procfs::CpuTimes {
            cpu: 3,
            steal: Duration::from_secs(steal),
            idle: Duration::from_secs(idle),
            ..procfs::CpuTimes::default()
        };
        let (before, after) = ([times(7, 100)], [times(8, 119)]);
        assert_eq!(steal_percent(3, &before, &after), Some(5.0));
        assert_eq!(steal_percent(3, &after, &after), None, "no time went by");
        assert_eq!(steal_percent(2, &before, &after), None);
    }

    #[test]
    fn a_core_is_looked_at_from_there() {
        for core in affinity::get(0).unwrap() {
            let look = move || {
                let look = watch(core, Duration::from_millis(1)).unwrap();
                (affinity::get(0).unwrap(), look.observed_ns)
            };
            let (cores, observed_ns) = std::thread::spawn(look).join().unwrap();
            assert_eq!(cores, [core]);
            assert!(observed_ns >= 1_000_000);
        }
    }

    #[test]
    fn who_waits_for_its_core_is_told() {
        let core = affinity::get(0).unwrap()[0];
        // Both want the core; one may be done before the other is there, but not always.
        let waited = (0..100).any(|_| {
            let looks = all_at_once(&[core; 2], Duration::from_millis(10)).unwrap();
            looks.iter().any(|look| look.others_ns > 0)
        });
        assert!(waited);
    }

    #[test]
    fn every_core_is_looked_at() {
        let stalls = look(2, Duration::from_millis(5)).unwrap();
        let cores = affinity::get(0).unwrap();
        assert_eq!(stalls.len(), cores.len());
        for (core, stall) in stalls {
            assert!(cores.contains(&(core as usize)));
            assert!(
                stall.observed_ns >= 2 * 5_000_000 && stall.stall_ns >= LEAST_NS,
                "{stall:?}"
            );
        }
    }
}
