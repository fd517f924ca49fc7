//! `calvin-bandwidth`: highest rate of UDP packets without loss or reordering (CALVIN, Fig. 12b).
//! The paper traded bandwidth for delay.
//!
//! One core sends, another one runs all workers and reference programs. The trial reads the
//! server's socket after the last send (`myelin_measure::bandwidth::run_trial`). So the receiver
//! needs no core, as in the paper, whose hosts were on another machine. On virtual links, the
//! sender's core also runs the front door and the kernel functions, and the other core runs user
//! space and the path after it. This applies to all variants.
//!
//! A sender with one system call for each packet is slower than most variants: with this sender, a
//! veth pair carries less than twice the rate of the published form. So the claims are about
//! packets in bursts (UDP segmentation offload), with workers of batch 1 and of larger batches.
//! Rows without a claim show single sends.

use myelin_measure::bandwidth::{RateSearch, TrialResult};
use myelin_metrics::stats::{Estimate, paired_ratio};
use serde_json::Value;

use crate::agents::EmbeddedAgent;
use crate::published::calvin;
use crate::rounds::Rounds;
use crate::variant::{ROUNDS, Variant, VariantLabel};
use crate::variants::BEST_BATCH;
use crate::{Claim, Error, Findings, Row, Session, variants};

/// UDP payloads, bytes.
const PAYLOADS: [usize; 4] = [256, 512, 1024, 1400];
/// Batch sizes of sender and workers.
struct Mode {
    name: &'static str,
    /// Packets of each system call of the sender.
    burst: u16,
    /// Batch size of the worker.
    batch: u16,
    /// Whether the sender is fast enough to measure the path.
    claimed: bool,
}

const MODES: [Mode; 3] = [
    Mode {
        name: "sent one by one, batch 1",
        burst: 1,
        batch: 1,
        claimed: false,
    },
    Mode {
        name: "sent in bursts, batch 1",
        burst: BURST,
        batch: 1,
        claimed: true,
    },
    Mode {
        name: "sent in bursts, batch 32",
        burst: BURST,
        batch: BEST_BATCH,
        claimed: true,
    },
];
const BURST: u16 = 32;
/// Rate if no trial was clean: a packet a second, because ratios need a positive rate.
const MIN_MPPS: f64 = 1e-6;
/// Batch sizes of workers, each with separate chains.
const BATCHES: [u16; 2] = [1, BEST_BATCH];
/// Least ratio of the chain's rate to that of the centralized approach as published, and at its
/// best.
const PUBLISHED_BOUND: f64 = 2.0;
const BEST_BOUND: f64 = 1.0;
/// The compared paths: name, and index of the variant of `build` for each of [`BATCHES`].
const PATHS: [(&str, [usize; BATCHES.len()]); 7] = [
    ("direct", [0, 0]),
    ("one kernel function", [1, 1]),
    ("one user function", [2, 3]),
    ("compact", [4, 5]),
    ("distributed", [6, 7]),
    (variants::AS_PUBLISHED, [8, 8]),
    (variants::AT_ITS_BEST, [9, 9]),
];
const DIRECT: usize = 0;
const CALVIN: [usize; 2] = [3, 4];
const AS_PUBLISHED: usize = 5;
const AT_ITS_BEST: usize = 6;

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let deployments = session.effort.rounds(3, 10);
    let packets = session.effort.choose(500, 4000, 20_000);
    let subjects = PATHS.len() * PAYLOADS.len() * MODES.len();
    let mut searches = vec![Search::default(); subjects];
    let mut rounds = Rounds::default();
    let mut about = Vec::new();
    for deployment in 1..=deployments {
        let made = build(session)?;
        let stage = format!("rates without loss, deployment {deployment} of {deployments}");
        let of_deployment = session.measure(&stage, subjects, (ROUNDS, ROUNDS), |index| {
            let (path, payload, mode) = path_payload_mode(index);
            let variant = &made[variant_of(path, mode)];
            let load = (PAYLOADS[payload], packets, MODES[mode].burst);
            let search = &mut searches[index];
            let carried = variant.best_trial(load, &mut search.rate_search, session)?;
            let round = Round::of(&carried);
            search.rounds.push(round);
            Ok(round.mpps)
        })?;
        rounds.extend(of_deployment);
        about = made.iter().map(VariantLabel::of).collect();
    }
    let mut findings = Findings::default()
        .with("packets", packets.to_string())
        .with("deployments", deployments.to_string())
        .with("rate", "packets over the time from the first send to the last arrival, of the fastest clean trial (no loss, no reordering), or of the slowest trial")
        .with("claims", "a round without a clean trial of the centralized approach counts only if the chain has none either, with a rate of zero")
        .with("receiver", "reads after the last send")
        .with("idle", "user-space functions poll; the published centralized approach sleeps");
    for index in 0..subjects {
        findings.add_row(row(index, &about, &searches, rounds.median(index))?);
    }
    add_claims(&searches, &mut findings)?;
    Ok(findings)
}

/// The result of a round.
#[derive(Clone, Copy)]
struct Round {
    mpps: f64,
    /// Whether a trial was clean. Otherwise the rate is that of an unclean trial.
    clean: bool,
    /// Whether the kernel segmented its bursts.
    segmented: bool,
}

impl Round {
    fn of(carried: &TrialResult) -> Self {
        Self {
            mpps: carried.carried_mpps.max(MIN_MPPS),
            clean: carried.is_clean(),
            segmented: carried.segmented,
        }
    }
}

/// Rate search and rounds of a subject.
#[derive(Clone, Default)]
struct Search {
    rate_search: RateSearch,
    rounds: Vec<Round>,
}

impl Search {
    fn limited_by(&self) -> String {
        let failed = self.rounds.iter().filter(|round| !round.clean).count();
        match (failed, self.rate_search.offered_mpps()) {
            (0, None) => "sender".to_owned(),
            (0, Some(_)) => "loss".to_owned(),
            (failed, _) => format!("no rate was clean in {failed} rounds"),
        }
    }

    /// Whether bursts were segmented in every round.
    fn segmented(&self) -> bool {
        self.rounds.iter().all(|round| round.segmented)
    }

    /// How its packets were really sent.
    fn sending(&self, mode: &Mode) -> &'static str {
        match (mode.burst, self.segmented()) {
            (1, _) => "one by one",
            (_, true) => "in bursts",
            (_, false) => "one by one: the link cannot segment",
        }
    }

    /// Rates of the subject and the reference in the rounds in which the reference had a clean
    /// trial. Other rates of the reference are too low for a ratio.
    fn comparable_rounds(&self, reference: &Self) -> Vec<(f64, f64)> {
        self.rounds
            .iter()
            .zip(&reference.rounds)
            .filter(|(_, reference)| reference.clean)
            .map(|(ours, reference)| (ours.mpps, reference.mpps))
            .collect()
    }

    /// The same for a claim. It adds rounds in which both had no clean trial, with a rate of ours
    /// near zero, so our failures always count.
    fn claimed_rounds(&self, reference: &Self) -> Vec<(f64, f64)> {
        let both_failed = self
            .rounds
            .iter()
            .zip(&reference.rounds)
            .filter(|(ours, reference)| !ours.clean && !reference.clean)
            .map(|_| (MIN_MPPS, 1.0));
        let mut pairs = self.comparable_rounds(reference);
        pairs.extend(both_failed);
        pairs
    }
}

/// Index of the subject of a path.
fn subject(path: usize, payload: usize, mode: usize) -> usize {
    (path * PAYLOADS.len() + payload) * MODES.len() + mode
}

/// Path, payload and mode of a subject.
fn path_payload_mode(subject: usize) -> (usize, usize, usize) {
    let case = subject / MODES.len();
    (
        case / PAYLOADS.len(),
        case % PAYLOADS.len(),
        subject % MODES.len(),
    )
}

/// Index of the variant of a path in a mode.
fn variant_of(path: usize, mode: usize) -> usize {
    let [one, batched] = PATHS[path].1;
    if MODES[mode].batch == 1 { one } else { batched }
}

fn build(session: Session<'_>) -> Result<Vec<Variant>, Error> {
    let agent = EmbeddedAgent::open(session.program)?;
    let kernel = ("kind: forward", "kernel");
    let user = ("kind: forward", "user");
    let chain = |name: &str, about: &str, functions: &[(&str, &str)], more: &str| {
        session.check()?;
        variants::deploy_chain(&agent, name, about, functions, more)
    };
    let mut made = vec![
        variants::direct()?,
        chain("kernel", "one forward in the kernel", &[kernel], "")?,
    ];
    for batch in BATCHES {
        made.push(chain(
            &format!("user{batch}"),
            "one forward in user space, polling",
            &[user],
            &variants::worker("spin", batch)?,
        )?);
    }
    for mapping in ["compact", "distributed"] {
        for batch in BATCHES {
            made.push(chain(
                &format!("{mapping}{batch}"),
                "one forward in the kernel and one in user space, polling",
                &[kernel, user],
                &format!("  mapping: {mapping}\n{}", variants::worker("spin", batch)?),
            )?);
        }
    }
    made.extend(variants::centralized_variants()?);
    Ok(made)
}

fn row(
    index: usize,
    about: &[VariantLabel],
    searches: &[Search],
    median: Option<Estimate>,
) -> Result<Row, Error> {
    let (path, payload, mode) = path_payload_mode(index);
    let search = &searches[index];
    let times = |reference| {
        let reference = &searches[subject(reference, payload, mode)];
        let ratio = ratio(&search.comparable_rounds(reference))?;
        Ok::<_, Error>(ratio.map(|ratio| ratio.value))
    };
    Ok(Row::of("rates without loss")
        .with("variant", PATHS[path].0)
        .with("payload_bytes", PAYLOADS[payload])
        .with("mode", MODES[mode].name)
        .with("sent", search.sending(&MODES[mode]))
        .with_estimate("rate", "_mpps", median)
        .with(
            "goodput_mbit_s",
            median.map(|rate| rate.value * PAYLOADS[payload] as f64 * 8.0),
        )
        .with("times_direct", times(DIRECT)?)
        .with("times_published", times(AS_PUBLISHED)?)
        .with("limited_by", search.limited_by())
        .with("what", about[variant_of(path, mode)].about.as_str()))
}

fn add_claims(searches: &[Search], findings: &mut Findings) -> Result<(), Error> {
    let references = [
        (AS_PUBLISHED, "as published", PUBLISHED_BOUND),
        (AT_ITS_BEST, "at its best", BEST_BOUND),
    ];
    for path in CALVIN {
        for (payload, bytes) in PAYLOADS.into_iter().enumerate() {
            for mode in 0..MODES.len() {
                for (other, what, bound) in references {
                    let name = format!("{} / centralized {what}, {bytes} B", PATHS[path].0);
                    let claim = claim(
                        &name,
                        &MODES[mode],
                        &searches[subject(path, payload, mode)],
                        &searches[subject(other, payload, mode)],
                        bound,
                    )?;
                    let published = calvin::BANDWIDTH_OF_CENTRALIZED
                        .iter()
                        .find(|(of, _)| *of == bytes && other == AS_PUBLISHED);
                    findings.add_claim(match published {
                        Some((_, published)) => published.add_to(claim),
                        None => claim,
                    });
                }
            }
        }
    }
    Ok(())
}

/// Claims that `ours` carries at least `bound` times the rate of `reference`.
fn claim(
    name: &str,
    mode: &Mode,
    ours: &Search,
    reference: &Search,
    bound: f64,
) -> Result<Claim, Error> {
    let segmented = ours.segmented() && reference.segmented();
    let one_by_one = mode.burst > 1 && !segmented;
    let but = if one_by_one { ", not segmented" } else { "" };
    let id = format!("{name}, {}{but}", mode.name);
    let counted = ours.claimed_rounds(reference);
    let dropped = ours.rounds.len() - counted.len();
    let mut claim = match ratio(&counted)? {
        Some(ratio) => Claim::ratio_at_least(id, ratio, bound),
        None => Claim::new(id, Value::Null).with_bound(format!(">= {bound}"), None),
    };
    if let (Some(measured), 1..) = (claim.measured.as_object_mut(), dropped) {
        measured.insert("rounds_without_reference".to_owned(), dropped.into());
    }
    if one_by_one || !mode.claimed {
        claim = claim.without_bound();
    }
    Ok(claim)
}

/// Median of the rounds' ratios. `None` without rounds.
fn ratio(pairs: &[(f64, f64)]) -> Result<Option<Estimate>, Error> {
    if pairs.is_empty() {
        return Ok(None);
    }
    let (subject, reference): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    Ok(Some(paired_ratio(&subject, &reference)?))
}

#[cfg(test)]
mod tests {
    use myelin_metrics::stats::ROUNDS_NEEDED;

    use super::*;

    #[test]
    fn subject_indices_convert_in_both_directions() {
        for index in 0..PATHS.len() * PAYLOADS.len() * MODES.len() {
            let (path, payload, mode) = path_payload_mode(index);
            assert_eq!(subject(path, payload, mode), index);
        }
        assert!(MODES.iter().all(|mode| BATCHES.contains(&mode.batch)));
        assert_eq!(PATHS[AS_PUBLISHED].0, "centralized, as published");
        assert_eq!(PATHS[AT_ITS_BEST].0, "centralized, at its best");
        assert_eq!(CALVIN.map(|path| PATHS[path].0), ["compact", "distributed"]);
        for (bytes, _) in calvin::BANDWIDTH_OF_CENTRALIZED {
            assert!(PAYLOADS.contains(&bytes));
        }
    }

    #[test]
    fn rounds_without_a_clean_rate_are_reported() {
        let mut search = Search::default();
        assert_eq!(search.limited_by(), "sender");
        search.rounds = rounds(&[(1.0, true), (0.01, false), (0.01, false)]);
        assert_eq!(search.limited_by(), "no rate was clean in 2 rounds");
    }

    /// Rounds with these rates, clean or not.
    fn rounds(of: &[(f64, bool)]) -> Vec<Round> {
        let round = |&(mpps, clean)| Round {
            mpps,
            clean,
            segmented: true,
        };
        of.iter().map(round).collect()
    }

    /// The rounds that claims need, and further ones.
    fn search(mpps: f64, further: &[(f64, bool)]) -> Search {
        let all = [&[(mpps, true); ROUNDS_NEEDED], further].concat();
        Search {
            rounds: rounds(&all),
            ..Search::default()
        }
    }

    fn claimed(mode: usize, ours: &Search, reference: &Search) -> Claim {
        claim("ours", &MODES[mode], ours, reference, 2.0).unwrap()
    }

    const CLEAN: (f64, bool) = (0.5, true);
    const FAILED: (f64, bool) = (0.01, false);

    #[test]
    fn failures_of_the_reference_do_not_improve_our_ratio() {
        // Our rate is 1.5 times the reference's; the reference failed in as many other rounds.
        let ours = search(0.3, &[CLEAN; 40]);
        let reference = search(0.2, &[FAILED; 40]);
        let claim = claimed(1, &ours, &reference);
        assert_eq!(claim.holds, Some(false));
        assert_eq!(claim.measured["median_ratio"], 0.3 / 0.2);
        assert_eq!(claim.measured["rounds"], ROUNDS_NEEDED);
        assert_eq!(claim.measured["rounds_without_reference"], 40);
        // Its failures do not replace missing rounds.
        let mut few = (search(0.5, &[]), search(0.2, &[]));
        assert_eq!(claimed(1, &few.0, &few.1).holds, Some(true));
        few.1.rounds[0].clean = false;
        assert_eq!(claimed(1, &few.0, &few.1).holds, None);
        for round in &mut few.1.rounds {
            round.clean = false;
        }
        let claim = claimed(1, &few.0, &few.1);
        assert_eq!((claim.holds, claim.measured), (None, Value::Null));
        assert_eq!(claim.bound, ">= 2");
    }

    #[test]
    fn our_failures_count_against_us() {
        let ours = search(0.5, &[FAILED; 40]);
        for reference in [(0.2, true), (0.001, false)] {
            let claim = claimed(1, &ours, &search(0.2, &[reference; 40]));
            assert_eq!(claim.holds, Some(false), "{reference:?}");
            assert_eq!(claim.measured["rounds"], ROUNDS_NEEDED + 40);
            assert!(claim.measured.get("rounds_without_reference").is_none());
        }
    }

    #[test]
    fn unsegmented_bursts_are_reported_without_a_bound() {
        let (ours, reference) = (search(0.5, &[]), search(0.2, &[]));
        assert_eq!(ours.sending(&MODES[0]), "one by one");
        assert_eq!(ours.sending(&MODES[1]), "in bursts");
        assert_eq!(claimed(0, &ours, &reference).bound, Value::Null);
        let mut unsegmented = ours.clone();
        unsegmented.rounds[3].segmented = false;
        assert_eq!(
            unsegmented.sending(&MODES[1]),
            "one by one: the link cannot segment"
        );
        for (ours, reference) in [(&unsegmented, &reference), (&ours, &unsegmented)] {
            let claim = claimed(1, ours, reference);
            assert_eq!((claim.bound, claim.holds), (Value::Null, None));
            assert_eq!(claim.id, "ours, sent in bursts, batch 1, not segmented");
        }
    }
}
