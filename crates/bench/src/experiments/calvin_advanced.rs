//! `calvin-advanced`: processing time of advanced functions, several in parallel, compared with
//! budgets (CALVIN, Fig. 13).
//!
//! Each function runs in a process with an endless supply of packets in its memory
//! (`myelin_dataplane::feed`). So no figure contains a port or a wait for packets. The process
//! times the function's call for each packet, so preemption during a packet is included.

use std::collections::BTreeMap;

use myelin_dataplane::feed::FeedConfig;
use myelin_linux::affinity;
use myelin_measure::function_config;
use myelin_metrics::stats::{CONFIDENCE, Estimate, mean_ci, median_ci};
use myelin_spec::LossyLinkConfig;
use serde::Deserialize;

use crate::published::{Published, calvin};
use crate::reference::FeedProcess;
use crate::rounds::quantile;
use crate::variant::PAYLOADS;
use crate::{Claim, Effort, Error, Findings, Row, Session, experiment};

/// CALVIN's budget for a function within its 0.35 ms (section V-C), and our budget for fast
/// functions, us.
pub(crate) const BUDGET_US: f64 = 20.0;
const FAST_BUDGET_US: f64 = 5.0;
/// Least ratio of the plain program's time to that of encryption.
const PLAIN_AES_BOUND: f64 = 25.0;
const MOST_PARALLEL: usize = 9;

/// A measured function.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// `kind` and `config`.
    function: String,
    /// The same of the function before it, and the loss between them, millionths.
    after: Option<(String, u32)>,
    /// Bound on its 99th percentile with as many in parallel as cores, us.
    budget_us: f64,
}

const WINDOW_ENCODE: &str = "sliding window, encode";
const AES_GCM: &str = "AES-GCM, encrypt";
const AES_CTR: &str = "AES-CTR, encrypt";
const PLAIN_AES: &str = "AES-CTR, plain C";
const PATTERNS: u32 = 10_000;
/// Packets of a batch. Its mean is one figure of a run.
const BATCH: usize = 500;

fn cases() -> Result<Vec<Case>, Error> {
    let text = include_str!("../../cases/calvin-advanced.yaml");
    experiment::parse_list("calvin-advanced", text)
}

/// A subject: a case, or the plain C program, and a payload.
#[derive(Clone, Copy)]
struct Subject<'a> {
    case: Option<&'a Case>,
    payload: usize,
}

impl Subject<'_> {
    fn name(&self) -> &str {
        self.case.map_or(PLAIN_AES, |case| &case.name)
    }

    /// Starts `count` idle processes.
    fn start(
        &self,
        count: usize,
        packets: u32,
        session: Session<'_>,
    ) -> Result<Vec<FeedProcess>, Error> {
        let start = |_| match self.case {
            Some(case) => Ok(FeedProcess::function(
                session.program,
                &feed_config(case, self.payload)?,
            )?),
            None => Ok(FeedProcess::plain_aes(self.payload, packets)?),
        };
        (0..count).map(start).collect()
    }
}

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let (packets, a_round) = session
        .effort
        .choose((200, 50), (5000, 300), (50_000, 2000));
    let cores = affinity::get(0)?.len();
    let mut findings = Findings::default()
        .with("packets", packets.to_string())
        .with("packets_a_round", a_round.to_string())
        .with("cores", cores.to_string())
        .with(
            "payload",
            "readings of sensors as text, 256 different ones in turn",
        )
        .with(
            "timed",
            "the function's call for one packet, less a reading of the clock; its output is copied",
        );
    let all = cases()?;
    let mut cases: Vec<Option<&Case>> = Vec::new();
    for case in &all {
        match FeedProcess::function(session.program, &feed_config(case, PAYLOADS[0])?)
            .and_then(|mut process| process.begin(1).and_then(|()| process.end()))
        {
            Ok(_) => cases.push(Some(case)),
            Err(error) => {
                findings.add_row(Findings::skipped_row(
                    "function",
                    case.name.as_str(),
                    &error,
                ));
            }
        }
    }
    cases.push(None);
    let subjects: Vec<Subject<'_>> = cases
        .iter()
        .flat_map(|case| {
            PAYLOADS.map(|payload| Subject {
                case: *case,
                payload,
            })
        })
        .collect();
    measure_in_parallel(&subjects, packets, session, &mut findings)?;
    measure_in_turns(&subjects, (a_round, cores), session, &mut findings)?;
    Ok(findings)
}

/// The paper's figure: 1 to 9 of each function in parallel.
fn measure_in_parallel(
    subjects: &[Subject<'_>],
    packets: u32,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let counts: Vec<usize> = match session.effort {
        Effort::Whole => (1..=MOST_PARALLEL).collect(),
        Effort::Quick | Effort::Trial => vec![1, 2, 4, MOST_PARALLEL],
    };
    for (done, subject) in subjects.iter().enumerate() {
        // The most in parallel within the budget, and whether more were above it.
        let mut within = [(0, false); 2];
        for &count in &counts {
            session.progress("functions in parallel", done, subjects.len())?;
            session.check()?;
            let mut processes = subject.start(count, packets, session)?;
            let mut times = run_in_parallel(&mut processes, packets)?;
            // Consecutive packets are correlated, batches less.
            let batches: Vec<f64> = times.chunks(BATCH).map(mean).collect();
            let mean = mean_ci(&batches, CONFIDENCE).map(in_us);
            times.sort_by(f64::total_cmp);
            let p99_us = quantile(&times, 0.99) / 1e3;
            for (within, budget_us) in within.iter_mut().zip([FAST_BUDGET_US, BUDGET_US]) {
                if p99_us <= budget_us && !within.1 {
                    within.0 = count;
                } else {
                    within.1 = true;
                }
            }
            if let Some(published) = published(subject, count) {
                let id = format!(
                    "{}, {} B, mean with {count} in parallel, us",
                    subject.name(),
                    subject.payload
                );
                // The paper's figure is for other cores, so it is no bound.
                let claim = Claim::median_at_most(id, mean, published.value);
                findings.add_claim(published.add_to(claim.without_bound()));
            }
            findings.add_row(
                Row::of("in parallel")
                    .with("function", subject.name())
                    .with("payload_bytes", subject.payload)
                    .with("parallel", count)
                    .with_estimate("processing_mean", "_us", mean)
                    .with("processing_p50_us", quantile(&times, 0.5) / 1e3)
                    .with("processing_p99_us", p99_us),
            );
        }
        findings.add_row(
            Row::of("within budget at p99")
                .with("function", subject.name())
                .with("payload_bytes", subject.payload)
                .with("parallel_within_5us", within[0].0)
                .with("parallel_within_20us", within[1].0),
        );
    }
    Ok(())
}

/// All functions in turns: budgets, and encryption compared with the plain program.
fn measure_in_turns(
    subjects: &[Subject<'_>],
    (packets, cores): (u32, usize),
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let mut all = subjects
        .iter()
        .map(|subject| subject.start(cores, packets, session))
        .collect::<Result<Vec<_>, Error>>()?;
    let mut p99 = vec![Vec::new(); subjects.len()];
    let medians = session.measure("functions in turns", subjects.len(), (40, 200), |index| {
        let mut times = run_in_parallel(&mut all[index], packets)?;
        times.sort_by(f64::total_cmp);
        p99[index].push(quantile(&times, 0.99) / 1e3);
        Ok(quantile(&times, 0.5))
    })?;
    for (index, subject) in subjects.iter().enumerate() {
        let (name, payload) = (subject.name(), subject.payload);
        let p99_us = median_ci(&p99[index], CONFIDENCE);
        findings.add_row(
            Row::of("in turns")
                .with("function", name)
                .with("payload_bytes", payload)
                .with("parallel", cores)
                .with_estimate("processing_p50", "_us", medians.median(index).map(in_us))
                .with_estimate("processing_p99", "_us", p99_us),
        );
        if let Some(case) = subject.case.filter(|_| payload == PAYLOADS[1]) {
            let id = format!("{name}, {payload} B, p99 with {cores} in parallel, us");
            findings.claim_median_at_most(id, p99_us, case.budget_us);
        }
    }
    let find = |name: &str, payload| {
        subjects
            .iter()
            .position(|subject| subject.name() == name && subject.payload == payload)
    };
    for name in [AES_GCM, AES_CTR] {
        if let (Some(ours), Some(plain)) = (find(name, PAYLOADS[1]), find(PLAIN_AES, PAYLOADS[1])) {
            let id = format!("{PLAIN_AES} / {name}, {} B", PAYLOADS[1]);
            let ratio = medians.ratio(plain, ours)?;
            findings.claim_at_least(id, ratio, PLAIN_AES_BOUND);
        }
    }
    Ok(())
}

/// The published figure of a case.
fn published(subject: &Subject<'_>, parallel: usize) -> Option<Published> {
    match (subject.name(), subject.payload, parallel) {
        (WINDOW_ENCODE, 1400, MOST_PARALLEL) => Some(calvin::WINDOW_CODING_US),
        (AES_CTR | AES_GCM | PLAIN_AES, 1400, 1) => Some(calvin::AES_US),
        _ => None,
    }
}

/// Runs all processes at the same time. Returns the time of each packet, ns.
fn run_in_parallel(processes: &mut [FeedProcess], packets: u32) -> Result<Vec<f64>, Error> {
    for one in processes.iter_mut() {
        one.begin(packets)?;
    }
    let mut times = Vec::with_capacity(packets as usize * processes.len());
    for one in processes {
        times.extend(one.end()?);
    }
    Ok(times)
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

fn in_us(ns: Estimate) -> Estimate {
    ns.scaled(1e-3)
}

fn feed_config(case: &Case, payload_bytes: usize) -> Result<FeedConfig, Error> {
    let files = files();
    let after = case
        .after
        .as_ref()
        .map(|(after, _)| function_config::parse(after, &files));
    Ok(FeedConfig {
        function: function_config::parse(&case.function, &files)?,
        after: after.transpose()?,
        link: case.after.as_ref().map(|(_, loss_ppm)| LossyLinkConfig {
            loss_ppm: *loss_ppm,
            burst: None,
            seed: Some(1),
        }),
        payload_bytes,
    })
}

/// Files that cases name: a key, and patterns that no reading of a sensor contains.
fn files() -> BTreeMap<String, String> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut patterns = String::new();
    for _ in 0..PATTERNS {
        let letters = random.usize(6..16);
        patterns.extend((0..letters).map(|_| random.lowercase()));
        patterns.push('\n');
    }
    BTreeMap::from([
        ("key".to_owned(), "5a".repeat(32)),
        ("patterns".to_owned(), patterns),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_valid_function() {
        for case in &cases().unwrap() {
            feed_config(case, 256).unwrap();
        }
    }
}
