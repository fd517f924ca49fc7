//! Measures stalls of the cores. A thread on each core reads the clock all the time, and records
//! gaps.
//!
//! A polling worker has the same gaps, from interrupts, other threads on its core, and the
//! hypervisor. The threads sample all cores at the same time. One sample may contain or miss a rare
//! event. So calibration takes several samples, and more while their results disagree.

use std::collections::BTreeMap;
use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::{affinity, procfs, schedstat};
use myelin_planner::Stall;

use super::Result;
use crate::clock::now_ns;

/// Shortest gap, ns. A read of the clock takes a tenth of this time.
const MIN_GAP_NS: u64 = 1000;
/// Maximum number of gaps in a sample. A sample ends at this number.
const MAX_GAPS: usize = 1 << 16;
/// Gaps longer than the stall take at most the fraction `1 / TIME_PARTS` of the time.
const TIME_PARTS: u64 = 1000;
/// Duration of a sample.
const SAMPLE_TIME: Duration = Duration::from_millis(250);
/// Largest ratio between stalls that agree.
const MAX_RATIO: u64 = 2;
/// Number of samples in the first pass of a quick calibration.
const FIRST_SAMPLES: usize = 8;
/// Maximum number of passes.
const MAX_PASSES: usize = 4;

/// The gaps of one core in one observation.
#[derive(Debug)]
struct Sample {
    gaps: Vec<u64>,
    observed_ns: u64,
    /// Time that the thread waited while another thread had its core, ns.
    others_ns: u64,
}

/// Measures the stalls of every core that this process may use. `quick` halves the samples.
pub(super) fn measure(quick: bool) -> Result<BTreeMap<u32, Stall>> {
    let first = if quick {
        FIRST_SAMPLES
    } else {
        2 * FIRST_SAMPLES
    };
    sample_cores(first, SAMPLE_TIME)
}

/// Makes `first` samples of each core, and repeats this until the samples agree, at most
/// [`MAX_PASSES`] times.
fn sample_cores(first: usize, duration: Duration) -> Result<BTreeMap<u32, Stall>> {
    let cores = affinity::get(0)?;
    let before = procfs::cpu_times()?;
    let samples = sample_until_agreed(first, cores.len(), || sample_once(&cores, duration))?;
    let after = procfs::cpu_times()?;
    let stalls = cores.iter().zip(&samples).map(|(&core, samples)| {
        let stall = Stall {
            steal_percent: steal_percent(core, &before, &after).unwrap_or(0.0),
            ..compute_stall(samples)
        };
        (core as u32, stall)
    });
    Ok(stalls.collect())
}

/// Collects samples by core until they agree. `sample_all` samples all cores once.
fn sample_until_agreed(
    first: usize,
    cores: usize,
    mut sample_all: impl FnMut() -> Result<Vec<Sample>>,
) -> Result<Vec<Vec<Sample>>> {
    let mut samples: Vec<Vec<Sample>> = (0..cores).map(|_| Vec::new()).collect();
    for times in 1..=first * MAX_PASSES {
        for (samples, sample) in samples.iter_mut().zip(sample_all()?) {
            samples.push(sample);
        }
        if times >= first
            && times.is_multiple_of(first)
            && samples.iter().all(|core| halves_agree(core))
        {
            break;
        }
    }
    Ok(samples)
}

/// Share of a core's time that the hypervisor took between two readings. `None` if a reading lacks
/// the core or no time passed.
fn steal_percent(
    core: usize,
    before: &[procfs::CpuTimes],
    after: &[procfs::CpuTimes],
) -> Option<f64> {
    let find = |times: &[procfs::CpuTimes]| times.iter().find(|times| times.cpu == core).copied();
    let spent = find(after)?.since(&find(before)?);
    let total_s = spent.total().as_secs_f64();
    (total_s > 0.0).then(|| spent.steal.as_secs_f64() / total_s * 100.0)
}

/// Samples all cores at the same time.
fn sample_once(cores: &[usize], duration: Duration) -> Result<Vec<Sample>> {
    std::thread::scope(|scope| {
        let watchers: Vec<_> = cores
            .iter()
            .map(|&core| (core, scope.spawn(move || sample_core(core, duration))))
            .collect();
        let ended = |core| {
            ApiError::failed(format!(
                "cannot measure the stalls of core {core}: the thread panicked; please report it"
            ))
        };
        let samples = watchers
            .into_iter()
            .map(|(core, watcher)| watcher.join().map_err(|_| ended(core))?);
        samples.collect()
    })
}

/// Samples the core. Binds the calling thread to the core.
fn sample_core(core: usize, duration: Duration) -> Result<Sample> {
    affinity::set(0, &[core])?;
    // Write all elements, so that no page fault happens during the sample.
    let mut gaps = vec![1_u64; MAX_GAPS];
    let mut count = 0;
    let waited = schedstat::read_this_thread()?.waited;
    let start_ns = now_ns();
    let end_ns = start_ns + duration.as_nanos() as u64;
    let mut last_ns = start_ns;
    while last_ns < end_ns && count < gaps.len() {
        let ns = now_ns();
        if ns - last_ns > MIN_GAP_NS {
            gaps[count] = ns - last_ns;
            count += 1;
        }
        last_ns = ns;
    }
    gaps.truncate(count);
    let after = schedstat::read_this_thread()?;
    let waited = after.waited.saturating_sub(waited);
    Ok(Sample {
        gaps,
        observed_ns: last_ns - start_ns,
        others_ns: waited.as_nanos() as u64,
    })
}

/// Whether both halves of the samples give about the same stall.
fn halves_agree(samples: &[Sample]) -> bool {
    let (first, second) = samples.split_at(samples.len() / 2);
    let [first, second] = [first, second].map(|half| compute_stall(half).stall_ns);
    first.max(second) <= MAX_RATIO * first.min(second)
}

/// Computes the stall: the shortest time such that longer gaps take at most 0.1 % of the time.
fn compute_stall(samples: &[Sample]) -> Stall {
    let observed_ns = samples.iter().map(|sample| sample.observed_ns).sum();
    let gaps = || {
        samples
            .iter()
            .flat_map(|sample| sample.gaps.iter().copied())
    };
    let stalls = samples
        .iter()
        .map(|sample| compute_stall_ns(sample.gaps.clone(), sample.observed_ns));
    let (low_ns, high_ns) =
        stalls.fold((u64::MAX, 0), |(low, high), ns| (low.min(ns), high.max(ns)));
    let others_ns: u64 = samples.iter().map(|sample| sample.others_ns).sum();
    Stall {
        stall_ns: compute_stall_ns(gaps().collect(), observed_ns),
        gaps: gaps().count() as u64,
        longest_ns: gaps().max().unwrap_or(0),
        observed_ns,
        steal_percent: 0.0,
        others_percent: others_ns as f64 / observed_ns.max(1) as f64 * 100.0,
        looks_ns: [low_ns.min(high_ns), high_ns],
    }
}

/// Computes the stall of one list of gaps, ns.
fn compute_stall_ns(mut gaps: Vec<u64>, observed_ns: u64) -> u64 {
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    let mut longer_ns = 0;
    let stall_ns = gaps.into_iter().find(|gap| {
        longer_ns += gap;
        longer_ns > observed_ns / TIME_PARTS
    });
    stall_ns.unwrap_or(MIN_GAP_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_of(gaps: &[u64], observed_ns: u64) -> Sample {
        Sample {
            gaps: gaps.to_vec(),
            observed_ns,
            others_ns: observed_ns / 10,
        }
    }

    #[test]
    fn gaps_longer_than_the_stall_are_a_thousandth_of_the_time() {
        let gaps = [vec![400_000], vec![300_000; 2], vec![5000; 100]].concat();
        let stall = |observed_ns| compute_stall(&[sample_of(&gaps, observed_ns)]);
        let found = stall(1_000_000_000);
        // One gap of 400 us and two gaps of 300 us are exactly the thousandth.
        assert_eq!(found.stall_ns, 5000);
        assert_eq!(stall(999_999_000).stall_ns, 300_000);
        assert_eq!((found.gaps, found.longest_ns), (103, 400_000));
        assert_eq!(stall(10_000_000_000).stall_ns, MIN_GAP_NS);
        assert_eq!(compute_stall(&[]).looks_ns, [0, 0]);
    }

    #[test]
    fn single_gap_in_many_samples_is_reported_but_is_no_stall() {
        let quiet = || sample_of(&[5000; 100], 250_000_000);
        let mut samples: Vec<Sample> = (0..15).map(|_| quiet()).collect();
        samples.push(sample_of(&[3_000_000], 250_000_000));
        let found = compute_stall(&samples);
        assert_eq!(
            found.stall_ns, 5000,
            "3 of 4000 ms are less than a thousandth"
        );
        assert_eq!(found.looks_ns, [5000, 3_000_000]);
        assert!((found.others_percent - 10.0).abs() < 0.1);
        assert!(!halves_agree(&samples[12..]), "one of four samples differs");
        assert!(halves_agree(&samples[..12]));
        let mut samples: Vec<Sample> = (0..12).map(|_| quiet()).collect();
        samples[0] = sample_of(&[1_200_000], 250_000_000);
        assert!(
            halves_agree(&samples),
            "1.2 of the 1500 ms of one half are less than a thousandth"
        );
    }

    #[test]
    fn sampling_repeats_while_the_halves_disagree() {
        let samples = |gap: fn(u32) -> u64| {
            let mut times = 0;
            let samples = sample_until_agreed(4, 2, || {
                times += 1;
                let gap = gap(times);
                let [calm, other] = [5000, gap].map(|gap| sample_of(&[gap; 100], 250_000_000));
                Ok(vec![calm, other])
            });
            let samples = samples.unwrap();
            assert!(samples.iter().all(|core| core.len() == times as usize));
            assert!(samples[0].iter().all(|sample| sample.gaps[0] == 5000));
            times
        };
        assert_eq!(samples(|_| 5000), 4);
        assert_eq!(
            samples(|_| 3_000_000),
            4,
            "the samples agree on a long stall"
        );
        let first = |times| if times == 1 { 5_000_000 } else { 5000 };
        assert_eq!(samples(first), 16, "the first sample is always in one half");
        let twice = |times| if times > 2 { 10_000 } else { 5000 };
        assert_eq!(samples(twice), 4, "a ratio of 2 counts as agreement");
        let later = |times| if times > 2 { 3_000_000 } else { 5000 };
        assert_eq!(samples(later), 8, "the long stall is in both halves");
        let failed = sample_until_agreed(4, 2, || Err(ApiError::failed("no core").into()));
        assert!(failed.is_err());
    }

    #[test]
    fn steal_is_a_share_of_the_time_between_two_readings() {
        let times = |steal, idle| procfs::CpuTimes {
            cpu: 3,
            steal: Duration::from_secs(steal),
            idle: Duration::from_secs(idle),
            ..procfs::CpuTimes::default()
        };
        let (before, after) = ([times(7, 100)], [times(8, 119)]);
        assert_eq!(steal_percent(3, &before, &after), Some(5.0));
        assert_eq!(steal_percent(3, &after, &after), None, "no time passed");
        assert_eq!(steal_percent(2, &before, &after), None);
    }

    #[test]
    fn the_sampling_thread_runs_on_its_core() {
        for core in affinity::get(0).unwrap() {
            let sample = move || {
                let sample = sample_core(core, Duration::from_millis(1)).unwrap();
                (affinity::get(0).unwrap(), sample.observed_ns)
            };
            let (cores, observed_ns) = std::thread::spawn(sample).join().unwrap();
            assert_eq!(cores, [core]);
            assert!(observed_ns >= 1_000_000);
        }
    }

    #[test]
    fn waiting_for_the_core_is_counted() {
        let core = affinity::get(0).unwrap()[0];
        // Both threads run on the core. A thread may end before the other starts, but not every
        // time.
        let waited = (0..100).any(|_| {
            let samples = sample_once(&[core; 2], Duration::from_millis(10)).unwrap();
            samples.iter().any(|sample| sample.others_ns > 0)
        });
        assert!(waited);
    }

    #[test]
    fn every_core_is_sampled() {
        let stalls = sample_cores(2, Duration::from_millis(5)).unwrap();
        let cores = affinity::get(0).unwrap();
        assert_eq!(stalls.len(), cores.len());
        for (core, stall) in stalls {
            assert!(cores.contains(&(core as usize)));
            assert!(
                stall.observed_ns >= 2 * 5_000_000 && stall.stall_ns >= MIN_GAP_NS,
                "{stall:?}"
            );
        }
    }
}
