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
use crate::reference::Runner;
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
    /// `kind` and `config`. Without it, the plain C program.
    function: Option<String>,
    /// The same of the function before it, and the loss between them, millionths.
    after: Option<(String, u32)>,
    /// Bound on its 99th percentile with as many in parallel as cores, us.
    budget_us: Option<f64>,
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

impl Case {
    fn row(&self, table: &str, payload: usize) -> Row {
        Row::of(table)
            .with("function", self.name.as_str())
            .with("payload_bytes", payload)
    }

    /// Starts `count` idle processes.
    fn start(
        &self,
        payload: usize,
        count: usize,
        packets: u32,
        session: Session<'_>,
    ) -> Result<Vec<Runner>, Error> {
        let config = self.feed_config(payload)?;
        let start = |_| match &config {
            Some(config) => Ok(Runner::function(session.program, config)?),
            None => Ok(Runner::plain_aes(payload, packets)?),
        };
        (0..count).map(start).collect()
    }

    fn feed_config(&self, payload_bytes: usize) -> Result<Option<FeedConfig>, Error> {
        let Some(function) = &self.function else {
            return Ok(None);
        };
        let files = files();
        let after = self.after.as_ref();
        let link = after.map(|(_, loss_ppm)| LossyLinkConfig {
            loss_ppm: *loss_ppm,
            burst: None,
            seed: Some(1),
        });
        let after = after.map(|(after, _)| function_config::parse(after, &files));
        Ok(Some(FeedConfig {
            function: function_config::parse(function, &files)?,
            after: after.transpose()?,
            link,
            payload_bytes,
        }))
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
    let mut cases = Vec::new();
    for case in self::cases()? {
        let try_once = |mut fed: Vec<Runner>| run_in_parallel(&mut fed, 1);
        match case.start(PAYLOADS[0], 1, 1, session).and_then(try_once) {
            Ok(_) => cases.push(case),
            Err(Error::Reference(reason)) => {
                let name = case.name.as_str();
                findings.add_row(Findings::skipped_row("function", name, &reason));
            }
            Err(error) => return Err(error),
        }
    }
    measure_in_parallel(&cases, packets, session, findings)?;
    measure_in_turns(&cases, (packets, cores), session, findings)?;
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
    cases: &[Case],
    packets: u32,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let counts: Vec<usize> = match session.effort {
        Effort::Whole => (1..=MOST_PARALLEL).collect(),
        Effort::Quick | Effort::Trial => vec![1, 2, 4, MOST_PARALLEL],
    };
    let sampling = Sampling::of("functions in parallel").rounds(1).share(0.6);
    let runs = Subjects::new(
        PARALLEL_FIGURES,
        [cases.len(), PAYLOADS.len(), counts.len()],
    );
    let deploy = |turns: &mut Turns<'_>| {
        runs.measure(turns, |[case, payload, number]| {
            let payload = PAYLOADS[payload];
            let mut fed = cases[case].start(payload, counts[number], packets, session)?;
            run_in_parallel(&mut fed, packets)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let mut claims = Vec::new();
        for at @ [case, payload, number] in runs.all() {
            let (name, payload, count) = (&cases[case].name, PAYLOADS[payload], counts[number]);
            if let Some(published) = published(name, payload, count) {
                let id = format!("{name}, {payload} B, mean with {count} in parallel, us");
                // The paper's figure beside ours. For other cores it is no bound.
                let mean = runs.at(samples, at).median("processing_mean");
                claims.push(published.add_to(Claim::shown(id, mean)));
            }
        }
        claims
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings
        .rows
        .extend(runs.rows(&samples, |[case, payload, number]| {
            let row = cases[case].row("in parallel", PAYLOADS[payload]);
            row.with("parallel", counts[number])
        }));
    for [case, payload, _] in runs.all().filter(|[.., number]| *number == 0) {
        // The most in parallel such that no smaller number is above the budget.
        let most_within = |budget_us: f64| {
            let is_within = |(number, _): &(usize, &usize)| {
                let run = runs.at(&samples, [case, payload, *number]);
                let p99 = run.median("processing_p99_us");
                p99.is_some_and(|p99| p99.value <= budget_us)
            };
            let within = counts.iter().enumerate().take_while(is_within);
            within.last().map_or(0, |(_, count)| *count)
        };
        findings.add_row(
            cases[case]
                .row("within budget at p99", PAYLOADS[payload])
                .with("parallel_within_5us", most_within(FAST_BUDGET_US))
                .with("parallel_within_20us", most_within(BUDGET_US)),
        );
    }
    Ok(())
}

/// All functions in turns: budgets, and encryption compared with the plain program.
fn measure_in_turns(
    cases: &[Case],
    (packets, cores): (u32, usize),
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let sampling = Sampling::of("functions in turns").share(0.4);
    let runs = Subjects::new(TURN_FIGURES, [cases.len(), PAYLOADS.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let mut all = Vec::new();
        for [case, payload] in runs.all() {
            all.push(cases[case].start(PAYLOADS[payload], cores, packets, session)?);
        }
        runs.measure(turns, |[case, payload]| {
            run_in_parallel(&mut all[case * PAYLOADS.len() + payload], packets)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let mut claims = Vec::new();
        let payload = PAYLOADS[1];
        let of = |case| runs.at(samples, [case, 1]);
        for (
            index,
            Case {
                name, budget_us, ..
            },
        ) in cases.iter().enumerate()
        {
            if let Some(budget_us) = budget_us {
                let id = format!("{name}, {payload} B, p99 with {cores} in parallel, us");
                claims.push(Claim::at_most(
                    id,
                    of(index).median("processing_p99"),
                    *budget_us,
                ));
            }
        }
        let find = |name: &str| cases.iter().position(|case| case.name == name);
        for name in [AES_GCM, AES_CTR] {
            if let (Some(ours), Some(plain)) = (find(name), find(PLAIN_AES)) {
                let id = format!("{PLAIN_AES} / {name}, {payload} B");
                let ratio = of(plain).ratio(&of(ours), "processing_p50");
                claims.push(Claim::at_least(id, ratio, PLAIN_AES_BOUND));
            }
        }
        claims
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings.rows.extend(runs.rows(&samples, |[case, payload]| {
        let row = cases[case].row("in turns", PAYLOADS[payload]);
        row.with("parallel", cores)
    }));
    Ok(())
}

/// The published figure of a case.
fn published(name: &str, payload: usize, parallel: usize) -> Option<Published> {
    match (name, payload, parallel) {
        (WINDOW_ENCODE, 1400, MOST_PARALLEL) => Some(calvin::WINDOW_CODING_US),
        (AES_CTR | AES_GCM | PLAIN_AES, 1400, 1) => Some(calvin::AES_US),
        _ => None,
    }
}

/// Runs all processes at the same time.
fn run_in_parallel(fed: &mut [Runner], packets: u32) -> Result<Times, Error> {
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
            case.feed_config(256).unwrap();
        }
    }
}
