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
use myelin_metrics::stats::Deployments;
use myelin_spec::LossyLinkConfig;
use serde::Deserialize;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::published::{Published, calvin};
use crate::reference::FeedProcess;
use crate::round_trips::PAYLOADS;
use crate::sampling::{Sampling, Turns, quantile};
use crate::{Claim, Effort, Error, Experiment, Findings, Row, Session, experiment};

/// CALVIN's budget for a function within its 0.35 ms (section V-C), and our budget for fast
/// functions, us.
pub(crate) const BUDGET_US: f64 = calvin::FUNCTION_BUDGET_US;
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

fn cases() -> Result<Vec<Case>, Error> {
    let text = include_str!("../../cases/calvin-advanced.yaml");
    experiment::parse_list("calvin-advanced", text)
}

/// A subject: a case, or the plain C program, and a payload.
#[derive(Clone, Copy)]
struct FedFunction<'a> {
    case: Option<&'a Case>,
    payload: usize,
}

impl FedFunction<'_> {
    fn name(&self) -> &str {
        self.case.map_or(PLAIN_AES, |case| &case.name)
    }

    fn row(&self, table: &str) -> Row {
        Row::of(table)
            .with("function", self.name())
            .with("payload_bytes", self.payload)
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

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-advanced",
    about: "processing time of coding, encryption, compression and inspection, 1 to 9 functions in parallel, against budgets of 5 and 20 us (CALVIN, Fig. 13)",
    differs: "each function has a process (`myelin feed`) instead of a virtual machine, and packets come from the memory of that process",
    run,
    plots: include_str!("../../plots/calvin-advanced.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(50, 300, 2000);
    let cores = affinity::get(0)?.len();
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
    let subjects: Vec<FedFunction<'_>> = cases
        .iter()
        .flat_map(|case| {
            PAYLOADS.map(|payload| FedFunction {
                case: *case,
                payload,
            })
        })
        .collect();
    measure_in_parallel(&subjects, packets, session, findings)?;
    measure_in_turns(&subjects, (packets, cores), session, findings)?;
    findings.set("packets", packets);
    findings.set("cores", cores);
    findings.set(
        "payload",
        "readings of sensors as text, 256 different ones in turn",
    );
    findings.set(
        "timed",
        "the function's call for one packet, less a reading of the clock; what it emits is copied",
    );
    Ok(())
}

/// A packet's time in a run, us.
struct Times {
    mean: f64,
    p50: f64,
    p99: f64,
}

const PARALLEL_FIGURES: &[Figure<Times>] = &[
    Figure::new("processing_mean", Interval("_us"), |times| times.mean),
    Figure::new("processing_p50_us", Median, |times| times.p50),
    Figure::new("processing_p99_us", Median, |times| times.p99),
];
const TURN_FIGURES: &[Figure<Times>] = &[
    Figure::new("processing_p50", Interval("_us"), |times| times.p50),
    Figure::new("processing_p99", Interval("_us"), |times| times.p99),
];

/// The paper's figure: 1 to 9 of each function in parallel.
fn measure_in_parallel(
    subjects: &[FedFunction<'_>],
    packets: u32,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let counts: Vec<usize> = match session.effort {
        Effort::Whole => (1..=MOST_PARALLEL).collect(),
        Effort::Quick | Effort::Trial => vec![1, 2, 4, MOST_PARALLEL],
    };
    let sampling = Sampling::of("functions in parallel").rounds(1).share(0.6);
    let runs = Subjects::new(PARALLEL_FIGURES, [subjects.len(), counts.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        runs.measure(turns, |[subject, number]| {
            let mut fed = subjects[subject].start(counts[number], packets, session)?;
            run_in_parallel(&mut fed, packets)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let mut claims = Vec::new();
        for (index, subject) in subjects.iter().enumerate() {
            for (number, count) in counts.iter().enumerate() {
                if let Some(published) = published(subject, *count) {
                    let (name, payload) = (subject.name(), subject.payload);
                    let id = format!("{name}, {payload} B, mean with {count} in parallel, us");
                    // The paper's figure beside ours. For other cores it is no bound.
                    let mean = runs.at(samples, [index, number]).median("processing_mean");
                    claims.push(published.add_to(Claim::shown(id, mean)));
                }
            }
        }
        claims
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings.rows.extend(runs.rows(&samples, |[index, number]| {
        subjects[index]
            .row("in parallel")
            .with("parallel", counts[number])
    }));
    for (index, subject) in subjects.iter().enumerate() {
        // The most in parallel such that no smaller number is above the budget.
        let most_within = |budget_us: f64| {
            let is_within = |(number, _): &(usize, &usize)| {
                let p99 = runs
                    .at(&samples, [index, *number])
                    .median("processing_p99_us");
                p99.is_some_and(|p99| p99.value <= budget_us)
            };
            let within = counts.iter().enumerate().take_while(is_within);
            within.last().map_or(0, |(_, count)| *count)
        };
        findings.add_row(
            subject
                .row("within budget at p99")
                .with("parallel_within_5us", most_within(FAST_BUDGET_US))
                .with("parallel_within_20us", most_within(BUDGET_US)),
        );
    }
    Ok(())
}

/// All functions in turns: budgets, and encryption compared with the plain program.
fn measure_in_turns(
    subjects: &[FedFunction<'_>],
    (packets, cores): (u32, usize),
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let sampling = Sampling::of("functions in turns").share(0.4);
    let runs = Subjects::new(TURN_FIGURES, [subjects.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let mut all = subjects
            .iter()
            .map(|subject| subject.start(cores, packets, session))
            .collect::<Result<Vec<_>, Error>>()?;
        runs.measure(turns, |[index]| run_in_parallel(&mut all[index], packets))
    };
    let claims = |samples: &Deployments, (): &()| {
        let mut claims = Vec::new();
        for (index, subject) in subjects.iter().enumerate() {
            let (name, payload) = (subject.name(), subject.payload);
            if let Some(case) = subject.case.filter(|_| payload == PAYLOADS[1]) {
                let id = format!("{name}, {payload} B, p99 with {cores} in parallel, us");
                let p99 = runs.at(samples, [index]).median("processing_p99");
                claims.push(Claim::at_most(id, p99, case.budget_us));
            }
        }
        let find = |name: &str| {
            let is = |one: &FedFunction<'_>| one.name() == name && one.payload == PAYLOADS[1];
            subjects.iter().position(is)
        };
        for name in [AES_GCM, AES_CTR] {
            if let (Some(ours), Some(plain)) = (find(name), find(PLAIN_AES)) {
                let id = format!("{PLAIN_AES} / {name}, {} B", PAYLOADS[1]);
                let [plain, ours] = [plain, ours].map(|index| runs.at(samples, [index]));
                let ratio = plain.ratio(&ours, "processing_p50");
                claims.push(Claim::at_least(id, ratio, PLAIN_AES_BOUND));
            }
        }
        claims
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings.rows.extend(runs.rows(&samples, |[index]| {
        subjects[index].row("in turns").with("parallel", cores)
    }));
    Ok(())
}

/// The published figure of a case.
fn published(subject: &FedFunction<'_>, parallel: usize) -> Option<Published> {
    match (subject.name(), subject.payload, parallel) {
        (WINDOW_ENCODE, 1400, MOST_PARALLEL) => Some(calvin::WINDOW_CODING_US),
        (AES_CTR | AES_GCM | PLAIN_AES, 1400, 1) => Some(calvin::AES_US),
        _ => None,
    }
}

/// Runs all processes at the same time.
fn run_in_parallel(fed: &mut [FeedProcess], packets: u32) -> Result<Times, Error> {
    for one in fed.iter_mut() {
        one.begin(packets)?;
    }
    let mut times_ns = Vec::with_capacity(packets as usize * fed.len());
    for one in fed {
        times_ns.extend(one.end()?);
    }
    times_ns.sort_by(f64::total_cmp);
    let mean = times_ns.iter().sum::<f64>() / times_ns.len() as f64;
    Ok(Times {
        mean: mean / 1e3,
        p50: quantile(&times_ns, 0.5) / 1e3,
        p99: quantile(&times_ns, 0.99) / 1e3,
    })
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
