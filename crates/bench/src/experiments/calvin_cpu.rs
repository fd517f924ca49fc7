//! `calvin-cpu`: what the CPUs do at a fixed rate and while nothing comes (CALVIN, Table I).
//!
//! A client sends a packet every so often and sleeps, the server sends it back and sleeps: CALVIN's own load, at 20 times its rate. Both have
//! the first core; workers and reference programs have the last one. `direct` is what the hosts themselves cost. The kernel
//! counts the shares by its timer's ticks, so the interval between packets is no part of a tick; idle time and the time of a process
//! it counts exactly.

use std::time::Duration;

use myelin_probe::cpu::CpuUse;
use myelin_probe::stats::{CONFIDENCE, mean_ci, median_ci};
use serde_json::{Value, json};

use super::median_at_most;
use crate::published::calvin;
use crate::reference::Reference;
use crate::report::{Kind, Plot};
use crate::rounds::Rounds;
use crate::stand::Stand;
use crate::variant::{About, Variant};
use crate::{Claim, Effort, Error, Experiment, Findings, Monitor, Options, Row, variants};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-cpu",
    about: "CPU use by user, system, soft interrupts and idle of every technology, at a fixed rate and idle (CALVIN, Table I)",
    run,
    plots: PLOTS,
};

const PLOTS: &[Plot] = &[Plot {
    title: "CPU use by technology",
    caption: "Shares of all cores, hosts included; `direct` is what the hosts cost alone. A polling worker has a core of its own.",
    table: "CPU use",
    panels: &["load"],
    along: "variant",
    values: &[
        ("user_share", "user"),
        ("system_share", "system"),
        ("softirq_share", "interrupts"),
        ("steal_share", "steal"),
        ("idle_share", "idle"),
    ],
    values_title: "share of all cores, 0 to 1",
    published: Some(&calvin::CPU_USE),
    ..Plot::of(Kind::Stacked)
}];

const PAYLOAD: usize = 256;
/// Between two packets; 4 ms, a tick, are no multiple of it.
const INTERVAL: Duration = Duration::from_micros(251);
/// Most that an idle chain may take of a core.
const IDLE_BOUND: f64 = 0.01;
/// What the functions are loaded with.
const LOADS: [(&str, Option<Duration>); 2] = [("fixed rate", Some(INTERVAL)), ("idle", None)];

/// Chains: name, what it is, mapping, spaces of its functions, what the worker does while it has nothing to do.
const CHAINS: [(&str, &str, &str, &[&str], &str); 10] = [
    (
        "tcx",
        "kernel function at tcx",
        "compact\n  hook: tcx",
        &["kernel"],
        "adaptive",
    ),
    (
        "XDP compact",
        "kernel function at XDP",
        "compact\n  hook: xdp",
        &["kernel"],
        "adaptive",
    ),
    (
        "XDP distributed",
        "kernel function at XDP in a namespace of its own",
        "distributed",
        &["kernel"],
        "adaptive",
    ),
    (
        "AF_XDP polling",
        "user-space function, polling",
        "compact",
        &["user"],
        "spin",
    ),
    (
        "AF_XDP adaptive",
        "user-space function, polls for 50 us, then sleeps",
        "compact",
        &["user"],
        "adaptive",
    ),
    (
        "AF_XDP sleeping",
        "user-space function, sleeps",
        "compact",
        &["user"],
        "sleep",
    ),
    (
        "CALVIN compact polling",
        "kernel and user-space function, polling",
        "compact",
        &["kernel", "user"],
        "spin",
    ),
    (
        "CALVIN compact sleeping",
        "kernel and user-space function, sleeps",
        "compact",
        &["kernel", "user"],
        "sleep",
    ),
    (
        "CALVIN distributed polling",
        "kernel and user-space function, polling",
        "distributed",
        &["kernel", "user"],
        "spin",
    ),
    (
        "CALVIN distributed sleeping",
        "kernel and user-space function, sleeps",
        "distributed",
        &["kernel", "user"],
        "sleep",
    ),
];
const AS_PUBLISHED: &str = "centralized, as published";
const AT_ITS_BEST: &str = "centralized, at its best";

/// Ours that stand beside Table I: both sleep, both poll.
const PAIRS: [(&str, &str); 4] = [
    (AS_PUBLISHED, "CALVIN compact sleeping"),
    (AS_PUBLISHED, "CALVIN distributed sleeping"),
    (AT_ITS_BEST, "CALVIN compact polling"),
    (AT_ITS_BEST, "CALVIN distributed polling"),
];

/// Shares of all cores in a window.
#[derive(Clone, Copy)]
enum Figure {
    User,
    System,
    SoftIrq,
    Steal,
    Idle,
    /// CPU time of the worker or the reference program, in cores.
    Worker,
}

/// Figures, with the name and the unit of their columns.
const FIGURES: [(Figure, &str, &str); 6] = [
    (Figure::User, "user", "_share"),
    (Figure::System, "system", "_share"),
    (Figure::SoftIrq, "softirq", "_share"),
    (Figure::Steal, "steal", "_share"),
    (Figure::Idle, "idle", "_share"),
    (Figure::Worker, "worker", "_cores"),
];
/// Shares that Table I has too: name, its column there, the figures here. What it calls system holds the interrupts.
const SHARES: [(&str, usize, &[Figure]); 3] = [
    ("user", 0, &[Figure::User]),
    ("system", 1, &[Figure::System, Figure::SoftIrq]),
    ("idle", 3, &[Figure::Idle]),
];

impl Figure {
    fn of(self, used: &CpuUse) -> f64 {
        let shares = used.overall.unwrap_or_default();
        match self {
            Self::User => shares.user_share,
            Self::System => shares.system_share,
            Self::SoftIrq => shares.softirq_share + shares.irq_share,
            Self::Steal => shares.steal_share,
            Self::Idle => shares.idle_share,
            Self::Worker => used
                .processes
                .iter()
                .filter_map(|process| process.cores)
                .sum(),
        }
    }
}

fn run(options: &Options, monitor: &Monitor<'_>) -> Result<Findings, Error> {
    let (variants, skipped) = build(options, monitor)?;
    let windows = match options.effort {
        Effort::Trial | Effort::Quick => [Duration::from_millis(60), Duration::from_millis(25)],
        Effort::Whole => [Duration::from_millis(300), Duration::from_millis(200)],
    };
    let subjects = variants.len() * LOADS.len();
    let mut uses: Vec<Vec<CpuUse>> = vec![Vec::new(); subjects];
    let rounds = options.rounds(30, 60);
    Rounds::measure("CPU use", subjects, rounds, monitor, |subject| {
        let (variant, load) = (subject / LOADS.len(), subject % LOADS.len());
        let used = variants[variant].cpu_use(PAYLOAD, LOADS[load].1, windows[load], monitor)?;
        uses[subject].push(used);
        Ok(1.0)
    })?;
    let about: Vec<About> = variants.iter().map(About::of).collect();
    let mut findings = Findings {
        settings: vec![
            ("payload_bytes", PAYLOAD.to_string()),
            (
                "packets_per_s",
                format!(
                    "{:.0} to the server, as many back",
                    1.0 / INTERVAL.as_secs_f64()
                ),
            ),
            (
                "window_ms",
                format!(
                    "{} at the fixed rate, {} idle",
                    windows[0].as_millis(),
                    windows[1].as_millis()
                ),
            ),
        ],
        ..Findings::default()
    };
    let measured = Measured { about, uses };
    for (index, variant) in measured.about.iter().enumerate() {
        for (load, (load_name, _)) in LOADS.into_iter().enumerate() {
            let row = Row::of("CPU use")
                .with("variant", variant.name.as_str())
                .with("load", load_name);
            let row = FIGURES.into_iter().fold(row, |row, (figure, name, unit)| {
                let samples = measured.samples(index, load, figure);
                row.with_estimate(name, unit, mean_ci(&samples, CONFIDENCE))
            });
            findings.rows.push(row.with("what", variant.about.as_str()));
        }
    }
    findings.rows.extend(skipped);
    findings.claims.extend(measured.idle_claims());
    findings.claims.extend(measured.table_1());
    Ok(findings)
}

/// What every window found, subject by subject.
struct Measured {
    about: Vec<About>,
    uses: Vec<Vec<CpuUse>>,
}

impl Measured {
    fn samples(&self, variant: usize, load: usize, figure: Figure) -> Vec<f64> {
        let uses = &self.uses[variant * LOADS.len() + load];
        uses.iter().map(|used| figure.of(used)).collect()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.about.iter().position(|variant| variant.name == name)
    }

    /// Chains with a worker that may sleep cost nothing while nothing comes.
    fn idle_claims(&self) -> Vec<Claim> {
        let sleeping = CHAINS
            .into_iter()
            .filter(|(.., spaces, idle)| spaces.contains(&"user") && *idle != "spin");
        sleeping
            .filter_map(|(name, ..)| {
                let samples = self.samples(self.find(name)?, 1, Figure::Worker);
                let median = median_ci(&samples, CONFIDENCE);
                let id = format!("idle worker, cores, {name}");
                Some(median_at_most(id, median, IDLE_BOUND))
            })
            .collect()
    }

    /// The paper's shares beside ours; nothing is promised of their ratio.
    fn table_1(&self) -> Vec<Claim> {
        let mean = |name, figures: &[Figure]| {
            let variant = self.find(name)?;
            let samples = figures
                .iter()
                .flat_map(|figure| self.samples(variant, 0, *figure));
            Some(samples.sum::<f64>() / self.uses[variant * LOADS.len()].len() as f64)
        };
        let mut claims = Vec::new();
        for (centralized, chain) in PAIRS {
            for (share, column, figures) in SHARES {
                let (Some(theirs), Some(ours)) = (mean(centralized, figures), mean(chain, figures))
                else {
                    continue;
                };
                claims.push(Claim {
                    source: Some(calvin::CPU_USE.source.to_owned()),
                    id: format!("{share} share: {centralized} and {chain}"),
                    paper: json!({
                        "centralized_share": calvin::CPU_SHARES[0][column],
                        "calvin_share": calvin::CPU_SHARES[1][column],
                    }),
                    measured: json!({ "centralized_share": theirs, "calvin_share": ours }),
                    bound: Value::Null,
                    holds: None,
                });
            }
        }
        claims
    }
}

/// Every variant that can be had here, and a row for each that cannot.
fn build(options: &Options, monitor: &Monitor<'_>) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let stand = Stand::open(&options.program)?;
    let mut made = vec![
        variants::direct()?,
        variants::bridge()?.named("Linux bridge"),
        variants::kernel_forwarding()?.named("kernel forwarding"),
    ];
    for (name, about, mapping, spaces, idle) in CHAINS {
        monitor.check()?;
        let functions: Vec<_> = spaces
            .iter()
            .map(|space| ("kind: forward", *space))
            .collect();
        let more = format!("  mapping: {mapping}\n{}", variants::worker(idle, 1)?);
        let chain = variants::chain(
            &stand,
            &format!("c{}", made.len()),
            about,
            &functions,
            &more,
        )?;
        made.push(chain.named(name));
    }
    let (programs, skipped) = variants::references(&[
        (Reference::Dpdk, "DPDK", "DPDK over net_af_xdp, polling"),
        (
            Reference::Packet,
            "AF_PACKET",
            "plain packet sockets, polling",
        ),
    ])?;
    made.extend(programs);
    made.push(variants::centralized(
        AS_PUBLISHED,
        "sleeping process, kernel routing between TAP devices, one frame at once",
        false,
    )?);
    made.push(variants::centralized(
        AT_ITS_BEST,
        "the same, polling, up to 32 frames at once, long queues",
        true,
    )?);
    Ok((made, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_variants_and_shares_are_whole() {
        let named = |name: &str| {
            name.starts_with("centralized") || CHAINS.iter().any(|(chain, ..)| *chain == name)
        };
        assert!(PAIRS.iter().all(|(one, other)| named(one) && named(other)));
        for shares in calvin::CPU_SHARES {
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        assert_ne!(4_000_000 % INTERVAL.as_nanos(), 0);
    }
}
