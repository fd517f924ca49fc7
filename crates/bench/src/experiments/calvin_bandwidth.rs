//! `calvin-bandwidth`: the highest rate of UDP packets without loss or reordering (CALVIN, Fig. 12b), where the paper traded bandwidth for delay.
//!
//! One core sends, another one has all workers and reference programs; the server's socket keeps what arrives and is read when all is sent
//! (`myelin_probe::bandwidth::carry`), so that the receiver takes no core from anybody, as it took none in the paper, where the hosts stood on another
//! machine. On virtual links whoever hands a packet on does the work of the way: the sender's core that of the front door and the
//! kernel functions, the other core that of user space and of what comes after it. That is so for all variants, with the
//! same hosts, sender and receiver.
//!
//! A sender that makes a system call for each packet is slower than most of these ways, whatever they are: a veth pair alone then carries less than
//! twice what the published form does. So the claims are on packets that leave in bursts (UDP segmentation offload), through workers that take
//! one at a time and that take batches; sending one by one is shown beside them.

use myelin_probe::bandwidth::Ladder;
use serde_json::Value;

use crate::published::calvin;
use crate::report::{Kind, Plot};
use crate::rounds::Rounds;
use crate::stand::Stand;
use crate::variant::{About, ROUNDS, Variant};
use crate::variants::BEST_BATCH;
use crate::{Claim, Effort, Error, Experiment, Findings, Monitor, Options, Row, variants};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-bandwidth",
    about: "highest UDP rate without loss or reordering through one and two functions, by workers of batch 1 and 32, against the centralized approach (CALVIN, Fig. 12b)",
    run,
    plots: PLOTS,
};

const PLOTS: &[Plot] = &[Plot {
    title: "Goodput without loss by payload",
    caption: "UDP payload that comes through whole and in order. The paper's CALVIN carried less than its centralized approach.",
    table: "rates without loss",
    panels: &["mode"],
    along: "payload_bytes",
    along_title: "UDP payload, bytes",
    series: &["variant"],
    values: &[("goodput_mbit_s", "")],
    values_title: "goodput, Mbit/s",
    published: Some(&calvin::BANDWIDTH),
    ..Plot::of(Kind::Lines)
}];

/// UDP payloads, bytes.
const PAYLOADS: [usize; 4] = [256, 512, 1024, 1400];
/// How packets are sent, and how workers take them.
struct Mode {
    name: &'static str,
    /// Packets of a system call of the sender.
    burst: u16,
    /// Most packets that a worker takes at once.
    batch: u16,
    /// Whether the sender is quick enough to tell how quick the way is.
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
/// The rate where no trial came through: a packet a second, as ratios need one.
const LEAST_MPPS: f64 = 1e-6;
/// Batches of workers, each of which makes chains of its own.
const BATCHES: [u16; 2] = [1, BEST_BATCH];
/// Least by which the chain's rate must exceed that of the centralized approach as published, and at its best.
const PUBLISHED_BOUND: f64 = 2.0;
const BEST_BOUND: f64 = 1.0;
/// What is compared: its name, and the variants that `build` makes of it, one for each of [`BATCHES`].
const WAYS: [(&str, [usize; BATCHES.len()]); 7] = [
    ("direct", [0, 0]),
    ("one kernel function", [1, 1]),
    ("one user function", [2, 3]),
    ("compact", [4, 5]),
    ("distributed", [6, 7]),
    ("centralized, as published", [8, 8]),
    ("centralized, at its best", [9, 9]),
];
const DIRECT: usize = 0;
const CALVIN: [usize; 2] = [3, 4];
const AS_PUBLISHED: usize = 5;
const AT_ITS_BEST: usize = 6;

fn run(options: &Options, monitor: &Monitor<'_>) -> Result<Findings, Error> {
    let deployments = options.rounds(3, 10);
    let packets = match options.effort {
        Effort::Trial => 500,
        Effort::Quick => 4000,
        Effort::Whole => 20_000,
    };
    let subjects = WAYS.len() * PAYLOADS.len() * MODES.len();
    let mut searches = vec![Search::default(); subjects];
    let mut rounds = Rounds::default();
    let mut about = Vec::new();
    for deployment in 1..=deployments {
        let made = build(options, monitor)?;
        let stage = format!("rates without loss, deployment {deployment} of {deployments}");
        let of_deployment = Rounds::measure(
            &stage,
            subjects,
            options.rounds(ROUNDS, ROUNDS),
            monitor,
            |index| {
                let (way, payload, mode) = parts(index);
                let variant = &made[of_mode(way, mode)];
                let load = (PAYLOADS[payload], packets, MODES[mode].burst);
                let search = &mut searches[index];
                let carried = variant.carried(load, &mut search.ladder, monitor)?;
                search.failed += usize::from(!carried.is_clean());
                Ok(carried.carried_mpps.max(LEAST_MPPS))
            },
        )?;
        rounds.extend(of_deployment);
        about = made.iter().map(About::of).collect();
    }
    let mut findings = Findings {
        settings: vec![
            ("packets", packets.to_string()),
            ("deployments", deployments.to_string()),
            ("rate", "packets over the time from the first send to the last arrival, of the fastest trial without loss and reordering; where there was none, of the slowest one".to_owned()),
            ("receiver", "reads when all is sent".to_owned()),
            ("idle", "user-space functions poll; the published centralized approach sleeps".to_owned()),
        ],
        ..Findings::default()
    };
    for (index, search) in searches.iter().enumerate() {
        findings.rows.push(row(index, &about, search, &rounds)?);
    }
    claims(&rounds, &mut findings)?;
    Ok(findings)
}

/// What is known of a subject from the rounds before.
#[derive(Clone, Default)]
struct Search {
    ladder: Ladder,
    /// Rounds in which nothing came through whole and in order.
    failed: usize,
}

impl Search {
    fn limited_by(&self) -> String {
        match (self.failed, self.ladder.offered_mpps()) {
            (0, None) => "sender".to_owned(),
            (0, Some(_)) => "loss".to_owned(),
            (failed, _) => format!("no rate was clean in {failed} rounds"),
        }
    }
}

/// The number of a way's subject.
fn subject(way: usize, payload: usize, mode: usize) -> usize {
    (way * PAYLOADS.len() + payload) * MODES.len() + mode
}

/// Way, payload and mode of a subject.
fn parts(subject: usize) -> (usize, usize, usize) {
    let case = subject / MODES.len();
    (
        case / PAYLOADS.len(),
        case % PAYLOADS.len(),
        subject % MODES.len(),
    )
}

/// The number of the variant that a way has in a mode.
fn of_mode(way: usize, mode: usize) -> usize {
    let [one, batched] = WAYS[way].1;
    if MODES[mode].batch == 1 { one } else { batched }
}

fn build(options: &Options, monitor: &Monitor<'_>) -> Result<Vec<Variant>, Error> {
    let stand = Stand::open(&options.program)?;
    let kernel = ("kind: forward", "kernel");
    let user = ("kind: forward", "user");
    let chain = |name: &str, about: &str, functions: &[(&str, &str)], more: &str| {
        monitor.check()?;
        variants::chain(&stand, name, about, functions, more)
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
    made.push(variants::centralized(
        "published",
        "sleeping process, kernel routing between TAP devices, one frame at once",
        false,
    )?);
    made.push(variants::centralized(
        "best",
        "the same, polling, up to 32 frames at once, long queues",
        true,
    )?);
    Ok(made)
}

fn row(index: usize, about: &[About], search: &Search, rounds: &Rounds) -> Result<Row, Error> {
    let (way, payload, mode) = parts(index);
    let median = rounds.median(index);
    let times = |reference| {
        let reference = subject(reference, payload, mode);
        Ok::<_, Error>(rounds.ratio(index, reference)?.estimate.value)
    };
    Ok(Row::of("rates without loss")
        .with("variant", WAYS[way].0)
        .with("payload_bytes", PAYLOADS[payload])
        .with("mode", MODES[mode].name)
        .with_estimate("rate", "_mpps", median)
        .with(
            "goodput_mbit_s",
            median.map(|rate| rate.value * PAYLOADS[payload] as f64 * 8.0),
        )
        .with("times_direct", times(DIRECT)?)
        .with("times_published", times(AS_PUBLISHED)?)
        .with("limited_by", search.limited_by())
        .with("what", about[of_mode(way, mode)].about.as_str()))
}

fn claims(rounds: &Rounds, findings: &mut Findings) -> Result<(), Error> {
    for way in CALVIN {
        for (payload, bytes) in PAYLOADS.into_iter().enumerate() {
            for (
                mode,
                Mode {
                    name: sent,
                    claimed,
                    ..
                },
            ) in MODES.iter().enumerate()
            {
                let name = WAYS[way].0;
                let mut claim = |other: usize, what: &str, bound: f64| {
                    let ratio =
                        rounds.ratio(subject(way, payload, mode), subject(other, payload, mode))?;
                    let id = format!("{name} / centralized {what}, {bytes} B, {sent}");
                    let claim = Claim::ratio_at_least(id, (), &ratio, bound);
                    let claim = if *claimed {
                        claim
                    } else {
                        Claim {
                            bound: Value::Null,
                            holds: None,
                            ..claim
                        }
                    };
                    let published = calvin::BANDWIDTH_OF_CENTRALIZED
                        .iter()
                        .find(|(of, _)| *of == bytes && other == AS_PUBLISHED);
                    findings.claims.push(match published {
                        Some((_, published)) => published.beside(claim),
                        None => claim,
                    });
                    Ok::<_, Error>(())
                };
                claim(AS_PUBLISHED, "as published", PUBLISHED_BOUND)?;
                claim(AT_ITS_BEST, "at its best", BEST_BOUND)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_numbered_back_and_forth() {
        for index in 0..WAYS.len() * PAYLOADS.len() * MODES.len() {
            let (way, payload, mode) = parts(index);
            assert_eq!(subject(way, payload, mode), index);
        }
        assert!(MODES.iter().all(|mode| BATCHES.contains(&mode.batch)));
        assert_eq!(WAYS[AS_PUBLISHED].0, "centralized, as published");
        assert_eq!(WAYS[AT_ITS_BEST].0, "centralized, at its best");
        assert_eq!(CALVIN.map(|way| WAYS[way].0), ["compact", "distributed"]);
        for (bytes, _) in calvin::BANDWIDTH_OF_CENTRALIZED {
            assert!(PAYLOADS.contains(&bytes));
        }
    }

    #[test]
    fn a_round_without_a_clean_rate_is_told() {
        let mut search = Search::default();
        assert_eq!(search.limited_by(), "sender");
        search.failed = 2;
        assert_eq!(search.limited_by(), "no rate was clean in 2 rounds");
    }
}
