//! `rings`: compares the descriptor ring of a pipeline between two cores with DPDK's.

use std::hint::{black_box, spin_loop};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use myelin_dataplane::spsc::{RingFile, SharedConsumer, SharedProducer};
use myelin_linux::affinity;
use myelin_metrics::stats::{CONFIDENCE, Deployments, median_ci};

use crate::reference::{self, Runner};
use crate::sampling::{Sampling, Turns, quantile};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Length of a descriptor, words: 64 bytes.
const WORDS: usize = 8;
const ENTRIES: u32 = 1024;
const BATCH: usize = 32;
/// Batches of a window. It takes some 300 us, so most windows are not interrupted.
const BATCHES: usize = 512;
/// Windows of a run. The figure is their median.
const WINDOWS: usize = 48;
/// Least ratio of our throughput to DPDK's.
const BOUND: f64 = 1.0;

/// Wait of the consumer before each batch with [`Fault::SlowRing`].
const SLOW_RING_STALL: Duration = Duration::from_micros(2);

const MYELIN: usize = 0;
const RTE_RING: usize = 1;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rings",
    about: "throughput of the descriptor ring between two cores, 64-byte descriptors, 32 at once, compared with DPDK's rte_ring (SP/SC)",
    differs: "",
    run,
    plots: include_str!("../../plots/rings.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("ring_entries", ENTRIES);
    findings.set("batch", BATCH);
    let cores = two_cores()?;
    let stall = if session.has_fault(Fault::SlowRing) {
        SLOW_RING_STALL
    } else {
        Duration::ZERO
    };
    let sampling = Sampling::of("rings").rounds(10);
    let deploy = |turns: &mut Turns<'_>| {
        let (mut rte_ring, skipped) = match Runner::ring(cores, WINDOWS, BATCHES) {
            Ok(program) => (Some(program), None),
            Err(error @ reference::Error::Absent { .. }) => {
                let row = Findings::skipped_row("ring", "rte_ring", &error);
                (None, Some(row))
            }
            Err(error) => return Err(error.into()),
        };
        turns.measure(1 + usize::from(rte_ring.is_some()), |subject| {
            let windows = match &mut rte_ring {
                Some(rte_ring) if subject == RTE_RING => rte_ring.run("windows")?,
                _ => run_own_ring(cores, stall)?,
            };
            Ok(throughput_mops(&windows))
        })?;
        Ok(skipped)
    };
    let claims = |samples: &Deployments, skipped: &Option<Row>| {
        let ratio = samples.ratio(MYELIN, RTE_RING);
        let claim = Claim::at_least("throughput / rte_ring SP/SC", ratio, BOUND);
        if skipped.is_some() {
            Vec::new()
        } else {
            vec![claim]
        }
    };
    let (samples, skipped) = session.sample(sampling, findings, deploy, claims)?;
    for (subject, ring) in ["myelin", "rte_ring"].into_iter().enumerate() {
        let mut runs: Vec<f64> = samples.figures(subject).collect();
        if runs.is_empty() {
            continue;
        }
        runs.sort_by(f64::total_cmp);
        findings.add_row(
            Row::of("rings")
                .with("ring", ring)
                .with_estimate("throughput", "_mops", samples.median(subject))
                .with("throughput_min_mops", quantile(&runs, 0.0))
                .with("throughput_p10_mops", quantile(&runs, 0.1))
                .with("throughput_p90_mops", quantile(&runs, 0.9))
                .with("throughput_max_mops", quantile(&runs, 1.0)),
        );
    }
    findings.rows.extend(skipped);
    Ok(())
}

/// The first and the last usable core.
fn two_cores() -> Result<[usize; 2], Error> {
    let cores = affinity::get(0)?;
    match cores[..] {
        [first, .., last] => Ok([first, last]),
        _ => Err(Error::system(
            "measure a ring between two cores",
            io::Error::other("this process may run on only one core"),
        )),
    }
}

/// A run over a new ring. Returns the consumer's time of each window, ns. The consumer waits for
/// `stall` before each batch.
fn run_own_ring(cores: [usize; 2], stall: Duration) -> Result<Vec<f64>, Error> {
    let ring = RingFile::create(ENTRIES, WORDS)?;
    let (producer, consumer) = (ring.producer()?, ring.consumer()?);
    thread::scope(|scope| {
        let producing = scope.spawn(move || {
            let pinned = affinity::set(0, &[cores[0]]);
            // Both threads run even if pinning failed, because each waits for the other.
            produce(producer);
            pinned
        });
        let consuming = scope.spawn(move || {
            let pinned = affinity::set(0, &[cores[1]]);
            let windows = consume(consumer, stall);
            pinned?;
            windows
        });
        let joined = producing.join();
        let windows = consuming.join();
        match (joined, windows) {
            (Ok(Ok(())), Ok(windows)) => windows,
            (Ok(Err(error)), _) => Err(error.into()),
            (Err(panic), _) | (_, Err(panic)) => std::panic::resume_unwind(panic),
        }
    })
}

/// Produces one window more than the consumer times: in the first, the ring's memory is not yet
/// cached. Enqueues each batch completely or not at all.
fn produce(mut ring: SharedProducer<WORDS>) {
    let mut items = [[7; WORDS]; BATCH];
    for number in 0..((WINDOWS + 1) * BATCHES) as u64 {
        items[BATCH - 1][WORDS - 1] = number;
        while ring.reserve(BATCH as u32) < BATCH as u32 {
            spin_loop();
        }
        ring.enqueue(black_box(&items));
    }
}

fn consume(mut ring: SharedConsumer<WORDS>, stall: Duration) -> Result<Vec<f64>, Error> {
    let mut items = [[0; WORDS]; BATCH];
    let mut windows = Vec::with_capacity(WINDOWS + 1);
    let (mut number, mut wrong) = (0, 0);
    let mut before = Instant::now();
    for _ in 0..=WINDOWS {
        for _ in 0..BATCHES {
            while ring.peek(BATCH as u32) < BATCH as u32 {
                spin_loop();
            }
            if !stall.is_zero() {
                let end = Instant::now() + stall;
                while Instant::now() < end {
                    spin_loop();
                }
            }
            ring.dequeue(black_box(&mut items));
            wrong += u64::from(items[BATCH - 1][WORDS - 1] != number);
            number += 1;
        }
        let now = Instant::now();
        windows.push((now - before).as_secs_f64() * 1e9);
        before = now;
    }
    if wrong > 0 {
        let cause = io::Error::other(format!("{wrong} batches had wrong descriptors"));
        return Err(Error::system("pass descriptors through a ring", cause));
    }
    windows.remove(0);
    Ok(windows)
}

/// Throughput from the times of the windows, million descriptors a second.
fn throughput_mops(windows: &[f64]) -> f64 {
    let median = median_ci(windows, CONFIDENCE).map_or(f64::NAN, |median| median.value);
    (BATCHES * BATCH) as f64 * 1e3 / median
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;

    #[test]
    fn both_rings_pass_all_windows() {
        let Ok(cores) = two_cores() else {
            println!("SKIP: two threads that poll need two cores");
            return;
        };
        assert_eq!(run_own_ring(cores, Duration::ZERO).unwrap().len(), WINDOWS);
        match Runner::ring(cores, WINDOWS, BATCHES) {
            Ok(mut rte_ring) => {
                for _ in 0..2 {
                    assert_eq!(rte_ring.run("windows").unwrap().len(), WINDOWS);
                }
            }
            Err(error) => println!("SKIP: {error}"),
        }
    }

    #[test]
    fn throughput_is_that_of_the_median_window() {
        let window = (BATCHES * BATCH) as f64 * 20.0;
        let figure = throughput_mops(&[window, window, window * 9.0]);
        assert!((figure - 50.0).abs() < 1e-9, "{figure}");
    }

    #[test]
    fn a_slow_ring_turns_the_claim() {
        // Windows of both rings, ns, made up: ours takes 300 us, DPDK's 330 us, or in turns 330 and
        // 270 us.
        let slow = 300e3 + BATCHES as f64 * SLOW_RING_STALL.as_secs_f64() * 1e9;
        for (own, reference, deployments, expected) in [
            (300e3, [330e3, 330e3], 8, Verdict::Holds),
            (300e3, [330e3, 330e3], 7, Verdict::Undecided),
            (300e3, [330e3, 270e3], 8, Verdict::Undecided),
            (slow, [330e3, 330e3], 8, Verdict::False),
        ] {
            let mut samples = Deployments::default();
            for number in 0..deployments {
                let windows = [own, reference[number % 2]];
                let figures = windows.map(|window| vec![throughput_mops(&[window; WINDOWS])]);
                samples.push(figures.into());
            }
            let claim = Claim::at_least("throughput", samples.ratio(MYELIN, RTE_RING), BOUND);
            assert_eq!(claim.verdict(), Some(expected), "{claim:?}");
        }
    }
}
