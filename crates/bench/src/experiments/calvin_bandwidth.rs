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

use std::collections::BTreeMap;

use myelin_measure::bandwidth::{RateSearch, TrialResult};
use myelin_metrics::stats::{Deployments, Estimate};

use crate::figures::Column::{Hidden, Interval};
use crate::figures::{Figure, Subject, Subjects};
use crate::published::calvin;
use crate::round_trips::VariantLabel;
use crate::sampling::{Sampling, Turns};
use crate::variant::Variant;
use crate::variants::{self, BEST_BATCH, PathKind, VariantSpec};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session, experiment};

/// UDP payloads, bytes.
const PAYLOADS: [usize; 4] = [256, 512, 1024, 1400];
const BURST: u16 = 32;
/// Batch sizes of sender and workers. One by one, the sender is too slow to measure the path.
const MODES: [Mode; 3] = [
    Mode::new(1, 1),
    Mode::new(BURST, 1),
    Mode::new(BURST, BEST_BATCH),
];

#[derive(Clone, Copy)]
struct Mode {
    /// Packets of each system call of the sender.
    burst: u16,
    /// Batch size of the worker.
    batch: u16,
}

impl Mode {
    const fn new(burst: u16, batch: u16) -> Self {
        Self { burst, batch }
    }

    fn name(self) -> String {
        let how = match self.burst {
            1 => "one by one",
            _ => "in bursts",
        };
        format!("sent {how}, batch {}", self.batch)
    }
}

/// Least ratio of the chain's rate to that of the centralized approach as published, and at its
/// best.
const PUBLISHED_BOUND: f64 = 2.0;
const BEST_BOUND: f64 = 1.0;
/// The compared paths. A worker has a variant for each batch size.
const PATHS: [&str; 7] = [
    "direct",
    "one kernel function",
    "one user function",
    "compact",
    "distributed",
    variants::AS_PUBLISHED,
    variants::AT_ITS_BEST,
];
const DIRECT: usize = 0;
const CALVIN: [usize; 2] = [3, 4];
const AS_PUBLISHED: usize = 5;
const AT_ITS_BEST: usize = 6;

const FIGURES: &[Figure<TrialResult>] = &[
    Figure::new("rate", Interval("_mpps"), |trial| trial.carried_mpps),
    Figure::new("clean", Hidden, |trial| flag(trial.is_clean())),
    // Whether the kernel segmented the bursts.
    Figure::new("segmented", Hidden, |trial| flag(trial.segmented)),
];

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// One for each path, payload and mode.
fn subjects() -> Subjects<TrialResult, 3> {
    Subjects::new(FIGURES, [PATHS.len(), PAYLOADS.len(), MODES.len()])
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-bandwidth",
    about: "highest UDP rate without loss or reordering through one and two functions, by workers of batch 1 and 32, against the centralized approach (CALVIN, Fig. 12b)",
    differs: "hosts are on the same machine as the functions, so the experiment reads the server's socket after sending; packets leave in bursts of 32 by UDP segmentation offload, because a sender with one system call for each packet is slower than most subjects",
    run,
    plots: include_str!("../../plots/calvin-bandwidth.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(500, 2000, 10_000);
    let specs = specs(session)?;
    let subjects = subjects();
    let mut searches: BTreeMap<_, _> = subjects
        .all()
        .map(|at| (at, RateSearch::default()))
        .collect();
    let sampling = Sampling::of("rates without loss").rounds(3);
    let deploy = |turns: &mut Turns<'_>| {
        let (made, _) = variants::build(&specs, session)?;
        subjects.measure(turns, |at| {
            let [path, payload, mode] = at;
            let variant = &made[variant_of(&specs, path, mode)];
            let load = (PAYLOADS[payload], packets, MODES[mode].burst);
            variant.best_trial(load, searches.entry(at).or_default(), session)
        })?;
        Ok(made.iter().map(Variant::label).collect())
    };
    let claims = |samples: &Deployments, _: &Vec<VariantLabel>| claims(samples);
    let (samples, labels) = session.sample(sampling, findings, deploy, claims)?;
    for (at, search) in &searches {
        let [path, _, mode] = *at;
        let about = &labels[variant_of(&specs, path, mode)].about;
        findings.add_row(row(*at, about, &samples, search));
    }
    findings.set("packets", packets);
    findings.set("rate", "packets over the time from the first send to the last arrival, of the fastest clean trial (no loss, no reordering), or of the slowest trial");
    findings.set("claims", "a round without a clean trial of the centralized approach counts only if the chain has none either, with a rate of zero");
    findings.set("receiver", "reads after the last send");
    findings.set(
        "idle",
        "user-space functions poll; the published centralized approach sleeps",
    );
    Ok(())
}

type Carried<'a> = Subject<'a, TrialResult>;

fn limited_by(carried: &Carried<'_>, search: &RateSearch) -> String {
    let failed = carried.values("clean").filter(|clean| *clean == 0.0);
    match (failed.count(), search.offered_mpps()) {
        (0, None) => "sender".to_owned(),
        (0, Some(_)) => "loss".to_owned(),
        (failed, _) => format!("no rate was clean in {failed} rounds"),
    }
}

fn is_segmented(carried: &Carried<'_>) -> bool {
    carried.values("segmented").all(|segmented| segmented > 0.0)
}

/// How the packets of a subject were really sent.
fn sending(carried: &Carried<'_>, mode: Mode) -> &'static str {
    match (mode.burst, is_segmented(carried)) {
        (1, _) => "one by one",
        (_, true) => "in bursts",
        (_, false) => "one by one: the link cannot segment",
    }
}

/// The ratio of two rates in the rounds in which the reference had a clean trial. Other rates of
/// the reference are too low for a ratio. For a claim, a round in which both had no clean trial
/// counts as zero, so our failures always count.
fn ratio(ours: &Carried<'_>, reference: &Carried<'_>, is_claim: bool) -> Option<Estimate> {
    let both = [ours, reference];
    let clean = both.map(|carried| carried.slot("clean"));
    let [our_rate, their_rate] = both.map(|carried| carried.slot("rate"));
    ours.samples()
        .median_of_usable(|round| match clean.map(|slot| round(slot) > 0.0) {
            [_, true] => Some(round(our_rate) / round(their_rate)),
            [false, false] if is_claim => Some(0.0),
            [_, false] => None,
        })
}

/// Index of the variant of a path in a mode: the last one whose batch is not larger.
fn variant_of(specs: &[VariantSpec], path: usize, mode: usize) -> usize {
    let is = |spec: &VariantSpec| spec.name == PATHS[path] && spec.batch <= MODES[mode].batch;
    specs.iter().rposition(is).unwrap_or_default()
}

fn specs(session: Session<'_>) -> Result<Vec<VariantSpec>, Error> {
    let text = include_str!("../../cases/calvin-bandwidth.yaml");
    let mut specs: Vec<VariantSpec> = experiment::parse_list("calvin-bandwidth", text)?;
    if session.has_fault(Fault::ReorderingChain) {
        for spec in specs.iter_mut().filter(|spec| spec.name == "compact") {
            spec.path = PathKind::ReorderingProgram;
        }
    }
    Ok(specs)
}

fn row(at: [usize; 3], about: &str, samples: &Deployments, search: &RateSearch) -> Row {
    let [path, payload, mode] = at;
    let carried = subjects().at(samples, at);
    let times = |reference| {
        let reference = subjects().at(samples, [reference, payload, mode]);
        ratio(&carried, &reference, false).map(|ratio| ratio.value)
    };
    let median = carried.median("rate");
    let bits = PAYLOADS[payload] as f64 * 8.0;
    let row = Row::of("rates without loss")
        .with("variant", PATHS[path])
        .with("payload_bytes", PAYLOADS[payload])
        .with("mode", MODES[mode].name())
        .with("sent", sending(&carried, MODES[mode]));
    carried
        .add_to(row)
        .with("goodput_mbit_s", median.map(|rate| rate.value * bits))
        .with("times_direct", times(DIRECT))
        .with("times_published", times(AS_PUBLISHED))
        .with("limited_by", limited_by(&carried, search))
        .with("what", about)
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let references = [
        (AS_PUBLISHED, "as published", PUBLISHED_BOUND),
        (AT_ITS_BEST, "at its best", BEST_BOUND),
    ];
    let mut claims = Vec::new();
    for path in CALVIN {
        for (payload, bytes) in PAYLOADS.into_iter().enumerate() {
            for (number, mode) in MODES.into_iter().enumerate() {
                for (other, what, bound) in references {
                    let name = format!("{} / centralized {what}, {bytes} B", PATHS[path]);
                    let both = [path, other];
                    let both = both.map(|path| subjects().at(samples, [path, payload, number]));
                    let claim = claim(&name, mode, &both, bound);
                    let published = calvin::BANDWIDTH_OF_CENTRALIZED
                        .iter()
                        .find(|(of, _)| *of == bytes && other == AS_PUBLISHED);
                    claims.push(match published {
                        Some((_, published)) => published.add_to(claim),
                        None => claim,
                    });
                }
            }
        }
    }
    claims
}

/// Claims that ours carries at least `bound` times the rate of the reference.
fn claim(name: &str, mode: Mode, [ours, reference]: &[Carried<'_>; 2], bound: f64) -> Claim {
    let one_by_one = mode.burst > 1 && !(is_segmented(ours) && is_segmented(reference));
    let but = if one_by_one { ", not segmented" } else { "" };
    let id = format!("{name}, {}{but}", mode.name());
    let ratio = ratio(ours, reference, true);
    let mut claim = if one_by_one || mode.burst == 1 {
        Claim::shown(id, ratio)
    } else {
        Claim::at_least(id, ratio, bound)
    };
    let unused = ours.values("clean").zip(reference.values("clean"));
    let unused = unused.filter(|(ours, reference)| ours > reference).count();
    if let (Some(measured), 1..) = (claim.measured.as_object_mut(), unused) {
        measured.insert("rounds_without_reference".to_owned(), unused.into());
    }
    claim
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn the_named_paths_and_payloads_exist() {
        let nobody = AtomicBool::new(false);
        let specs = specs(Session::quick(&nobody)).unwrap();
        for (path, name) in PATHS.into_iter().enumerate() {
            for mode in 0..MODES.len() {
                let spec = &specs[variant_of(&specs, path, mode)];
                assert_eq!(spec.name, name);
                let has_worker = spec.idle.is_some();
                assert!(!has_worker || spec.batch == MODES[mode].batch);
            }
        }
        assert_eq!(PATHS[AS_PUBLISHED], "centralized, as published");
        assert_eq!(PATHS[AT_ITS_BEST], "centralized, at its best");
        assert_eq!(CALVIN.map(|path| PATHS[path]), ["compact", "distributed"]);
        for (bytes, _) in calvin::BANDWIDTH_OF_CENTRALIZED {
            assert!(PAYLOADS.contains(&bytes));
        }
    }

    /// Eight deployments with these rounds: rate and cleanness of ours and of the reference.
    fn samples(rounds: &[[(f64, bool); 2]], segmented: bool) -> Deployments {
        let mut slots = vec![Vec::new(); 2 * FIGURES.len()];
        for round in rounds {
            let figures = round.map(|(mpps, clean)| [mpps, flag(clean), flag(segmented)]);
            for (slot, figure) in slots.iter_mut().zip(figures.as_flattened()) {
                slot.push(*figure);
            }
        }
        let mut samples = Deployments::default();
        for _ in 0..8 {
            samples.push(slots.clone());
        }
        samples
    }

    fn both(samples: &Deployments) -> [Carried<'_>; 2] {
        [0, 1].map(|subject| Subjects::new(FIGURES, [2]).at(samples, [subject]))
    }

    fn claimed(mode: usize, samples: &Deployments) -> Claim {
        claim("ours", MODES[mode], &both(samples), 2.0)
    }

    const FAILED: (f64, bool) = (0.01, false);

    #[test]
    fn failures_of_the_reference_do_not_improve_our_ratio() {
        // Our rate is 1.5 times the reference's; the reference failed in as many other rounds.
        let slow = [(0.3, true), (0.2, true)];
        let claim = claimed(
            1,
            &samples(
                &[slow, slow, [(0.5, true), FAILED], [(0.5, true), FAILED]],
                true,
            ),
        );
        assert_eq!(claim.holds, Some(false));
        assert_eq!(claim.measured["median"], 0.3 / 0.2);
        assert_eq!(claim.measured["rounds_without_reference"], 16);
        let claim = claimed(1, &samples(&[[(0.5, true), (0.2, true)]], true));
        assert_eq!(claim.holds, Some(true));
        assert!(claim.measured.get("rounds_without_reference").is_none());
        // Nothing to compare with.
        let claim = claimed(1, &samples(&[[(0.5, true), FAILED]], true));
        assert_eq!(
            (claim.holds, &claim.measured["median"]),
            (None, &serde_json::Value::Null)
        );
        assert_eq!(claim.bound, ">= 2");
    }

    #[test]
    fn our_failures_count_against_us() {
        let good = [(0.5, true), (0.2, true)];
        for reference in [(0.2, true), (0.001, false)] {
            let bad = [FAILED, reference];
            let claim = claimed(1, &samples(&[good, bad, bad], true));
            assert_eq!(claim.holds, Some(false), "{reference:?}");
        }
    }

    #[test]
    fn a_row_says_what_limits_the_rate() {
        let rounds = [[(1.0, true), FAILED], [(1.0, true), FAILED]];
        let samples = samples(&rounds, true);
        let said = both(&samples).map(|carried| limited_by(&carried, &RateSearch::default()));
        assert_eq!(said, ["sender", "no rate was clean in 16 rounds"]);
    }

    #[test]
    fn unsegmented_bursts_are_reported_without_a_bound() {
        let rounds = [[(0.5, true), (0.2, true)]];
        let (with, without) = (samples(&rounds, true), samples(&rounds, false));
        assert_eq!(sending(&both(&with)[0], MODES[0]), "one by one");
        assert_eq!(sending(&both(&with)[0], MODES[1]), "in bursts");
        assert_eq!(
            claimed(0, &with).verdict(),
            None,
            "single sends have no bound"
        );
        assert_eq!(
            sending(&both(&without)[0], MODES[1]),
            "one by one: the link cannot segment"
        );
        let claim = claimed(1, &without);
        assert!(claim.id.ends_with(", not segmented") && claim.verdict().is_none());
    }
}
