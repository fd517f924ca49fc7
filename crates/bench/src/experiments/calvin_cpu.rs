//! `calvin-cpu`: CPU use at a fixed rate and without packets (CALVIN, Table I).
//!
//! Client and server sleep between packets: CALVIN's load at 20 times its rate. Both use the first
//! core, workers and reference programs the last one. `direct` is the use of the hosts alone. The
//! kernel counts the shares in timer ticks and reports them in steps of 10 ms. So shares are
//! means of many windows, and no tick is a multiple of the interval between packets. The
//! kernel counts idle time and the time of a process exactly.

use std::time::Duration;

use myelin_measure::cpu::shares;
use myelin_metrics::Shares;
use myelin_metrics::stats::Deployments;
use serde_json::json;

use crate::figures::Column::{Mean, MeanValue};
use crate::figures::{Figure, Subjects};
use crate::published::calvin;
use crate::round_trips::VariantLabel;
use crate::sampling::{Sampling, Turns};
use crate::variant::{CpuWindow, Variant};
use crate::variants::{self, AS_PUBLISHED, AT_ITS_BEST, VariantSpec};
use crate::{Claim, Error, Experiment, Findings, Row, Session, experiment};

const PAYLOAD: usize = 256;
/// Interval between two packets. No tick is a multiple of it: 10, 4, 3.3 or 1 ms (`CONFIG_HZ`).
const INTERVAL: Duration = Duration::from_micros(251);
/// Largest CPU time of an idle chain, cores.
const IDLE_BOUND: f64 = 0.01;
/// The loads: name, and interval between packets.
const LOADS: [(&str, Option<Duration>); 2] = [("fixed rate", Some(INTERVAL)), ("idle", None)];

fn specs() -> Result<Vec<VariantSpec>, Error> {
    let text = include_str!("../../cases/calvin-cpu.yaml");
    experiment::parse_list("calvin-cpu", text)
}

/// Chains compared with Table I: both sleep, or both poll.
const PAIRS: [(&str, &str); 4] = [
    (AS_PUBLISHED, "CALVIN compact sleeping"),
    (AS_PUBLISHED, "CALVIN distributed sleeping"),
    (AT_ITS_BEST, "CALVIN compact polling"),
    (AT_ITS_BEST, "CALVIN distributed polling"),
];

/// Shares of the time of all cores, and the CPU time of the variant's processes in cores. Without a
/// tick, a window has no shares.
const FIGURES: &[Figure<CpuWindow>] = &[
    Figure::new("user_share", MeanValue, |window| {
        share(window, |of| of.user_share)
    }),
    Figure::new("system_share", MeanValue, |window| {
        share(window, |of| of.system_share)
    }),
    Figure::new("softirq_share", MeanValue, |window| {
        share(window, |of| of.softirq_share + of.irq_share)
    }),
    Figure::new("steal_share", MeanValue, |window| {
        share(window, |of| of.steal_share)
    }),
    Figure::new("idle_share", MeanValue, |window| {
        share(window, |of| of.idle_share)
    }),
    Figure::new("worker", Mean("_cores"), |window| window.cores),
];

fn share(window: &CpuWindow, of: fn(&Shares) -> f64) -> f64 {
    shares(&window.spent).map_or(f64::NAN, |shares| of(&shares))
}

/// One for each variant and load.
fn windows_of(variants: usize) -> Subjects<CpuWindow, 2> {
    Subjects::new(FIGURES, [variants, LOADS.len()])
}

/// Shares of Table I: name, column, our figures. Its system share includes interrupts.
const TABLE_1: [(&str, usize, &[&str]); 3] = [
    ("user", 0, &["user_share"]),
    ("system", 1, &["system_share", "softirq_share"]),
    ("idle", 3, &["idle_share"]),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-cpu",
    about: "CPU use by user, system, soft interrupts and idle of every technology, at a fixed rate and idle (CALVIN, Table I)",
    differs: "hosts are on the same machine as the functions; the packet rate is 20 times the paper's, because the kernel counts the shares in timer ticks",
    run,
    plots: include_str!("../../plots/calvin-cpu.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let specs = specs()?;
    let windows = session.effort.choose([60, 25], [60, 25], [300, 200]);
    let windows = windows.map(Duration::from_millis);
    let sampling = Sampling::of("CPU use");
    let deploy = |turns: &mut Turns<'_>| {
        let (variants, skipped) = variants::build(&specs, session)?;
        windows_of(variants.len()).measure(turns, |[variant, load]| {
            variants[variant].cpu_use(PAYLOAD, LOADS[load].1, windows[load], session)
        })?;
        let labels: Vec<_> = variants.iter().map(Variant::label).collect();
        Ok((labels, skipped))
    };
    let claims = |samples: &Deployments, (labels, _): &(Vec<VariantLabel>, Vec<Row>)| {
        let mut claims = idle_claims(samples, labels, &specs);
        claims.extend(table_1(samples, labels));
        claims
    };
    let (samples, (labels, skipped)) = session.sample(sampling, findings, deploy, claims)?;
    for (index, variant) in labels.iter().enumerate() {
        for (load, (load_name, _)) in LOADS.into_iter().enumerate() {
            let row = Row::of("CPU use")
                .with("variant", variant.name.as_str())
                .with("load", load_name);
            let row = windows_of(labels.len())
                .at(&samples, [index, load])
                .add_to(row);
            findings.add_row(row.with("what", variant.about.as_str()));
        }
    }
    findings.rows.extend(skipped);
    let per_s = 1.0 / INTERVAL.as_secs_f64();
    findings.set("payload_bytes", PAYLOAD);
    findings.set(
        "packets_per_s",
        format!("{per_s:.0} to the server, as many back"),
    );
    let [fixed, idle] = windows.map(|window| window.as_millis());
    findings.set(
        "window_ms",
        format!("{fixed} at the fixed rate, {idle} idle"),
    );
    Ok(())
}

fn find(labels: &[VariantLabel], name: &str) -> Option<usize> {
    labels.iter().position(|variant| variant.name == name)
}

/// A worker that may sleep uses no CPU time without packets.
fn idle_claims(
    samples: &Deployments,
    labels: &[VariantLabel],
    specs: &[VariantSpec],
) -> Vec<Claim> {
    let may_sleep = |spec: &&VariantSpec| spec.idle.as_deref().is_some_and(|idle| idle != "spin");
    let sleeping = specs.iter().filter(may_sleep);
    sleeping
        .filter_map(|VariantSpec { name, .. }| {
            let idle = windows_of(labels.len()).at(samples, [find(labels, name)?, 1]);
            let id = format!("idle worker, cores, {name}");
            Some(Claim::at_most(id, idle.median("worker"), IDLE_BOUND))
        })
        .collect()
}

/// The paper's shares next to ours, without a bound.
fn table_1(samples: &Deployments, labels: &[VariantLabel]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (centralized, chain) in PAIRS {
        let (Some(theirs), Some(ours)) = (find(labels, centralized), find(labels, chain)) else {
            continue;
        };
        for (name, column, figures) in TABLE_1 {
            let share = |variant| {
                let window = windows_of(labels.len()).at(samples, [variant, 0]);
                let mean = |name: &&str| Some(samples.mean(window.slot(name))?.value);
                figures.iter().map(mean).sum::<Option<f64>>()
            };
            let paper = json!({
                "centralized_share": calvin::CPU_SHARES[0][column],
                "calvin_share": calvin::CPU_SHARES[1][column],
            });
            let measured =
                json!({ "centralized_share": share(theirs), "calvin_share": share(ours) });
            let id = format!("{name} share: {centralized} and {chain}");
            claims.push(Claim::new(id, measured).with_published(paper, "CALVIN, Table I"));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_name_variants_and_shares_sum_to_one() {
        let specs = specs().unwrap();
        let named = |name: &str| specs.iter().any(|spec| spec.name == name);
        assert!(PAIRS.iter().all(|(one, other)| named(one) && named(other)));
        for shares in calvin::CPU_SHARES {
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        for hz in [100, 250, 300, 1000] {
            assert_ne!((1_000_000_000 / hz) % INTERVAL.as_nanos(), 0);
        }
    }
}
