//! `calvin-cpu`: CPU use at a fixed rate and without packets (CALVIN, Table I).
//!
//! Client and server sleep between packets: CALVIN's load at 20 times its rate. Both use the first
//! core, workers and reference programs the last one. `direct` is the use of the hosts alone. The
//! kernel counts the shares in timer ticks and reports them in steps of 10 ms. So shares are
//! means of many windows, and no tick is a multiple of the interval between packets. The
//! kernel counts idle time and the time of a process exactly.

use std::time::Duration;

use myelin_measure::cpu::shares;
use myelin_metrics::stats::Deployments;
use serde::Deserialize;
use serde_json::json;

use crate::agents::EmbeddedAgent;
use crate::published::calvin;
use crate::reference::Reference;
use crate::round_trips::VariantLabel;
use crate::sampling::{Sampling, Turns};
use crate::variant::{CpuWindow, Variant};
use crate::variants::{AS_PUBLISHED, AT_ITS_BEST};
use crate::{Claim, Error, Experiment, Findings, Row, Session, experiment, variants};

const PAYLOAD: usize = 256;
/// Interval between two packets. No tick is a multiple of it: 10, 4, 3.3 or 1 ms (`CONFIG_HZ`).
const INTERVAL: Duration = Duration::from_micros(251);
/// Largest CPU time of an idle chain, cores.
const IDLE_BOUND: f64 = 0.01;
/// The loads: name, and interval between packets.
const LOADS: [(&str, Option<Duration>); 2] = [("fixed rate", Some(INTERVAL)), ("idle", None)];

/// A chain of functions that forward.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chain {
    name: String,
    /// Description.
    about: String,
    mapping: String,
    hook: Option<String>,
    /// Spaces of its functions.
    spaces: Vec<String>,
    /// How its worker waits: `spin`, `adaptive` or `sleep`.
    idle: String,
}

fn chains() -> Result<Vec<Chain>, Error> {
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

/// The figures of a window, in slot order: shares of the time of all cores, and the CPU time of the
/// variant's processes in cores.
const SHARES: [&str; 5] = [
    "user_share",
    "system_share",
    "softirq_share",
    "steal_share",
    "idle_share",
];
const CORES: usize = SHARES.len();
const FIGURES: usize = SHARES.len() + 1;
/// Shares of Table I: name, column, our figures. Its system share includes interrupts.
const TABLE_1: [(&str, usize, &[usize]); 3] =
    [("user", 0, &[0]), ("system", 1, &[1, 2]), ("idle", 3, &[4])];

fn figures(window: &CpuWindow) -> [f64; FIGURES] {
    // Without a tick, a window has no shares.
    let shares = shares(&window.spent).map_or([f64::NAN; SHARES.len()], |shares| {
        [
            shares.user_share,
            shares.system_share,
            shares.softirq_share + shares.irq_share,
            shares.steal_share,
            shares.idle_share,
        ]
    });
    let [user, system, softirq, steal, idle] = shares;
    [user, system, softirq, steal, idle, window.cores]
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-cpu",
    about: "CPU use by user, system, soft interrupts and idle of every technology, at a fixed rate and idle (CALVIN, Table I)",
    differs: "hosts are on the same machine as the functions; the packet rate is 20 times the paper's, because the kernel counts the shares in timer ticks",
    run,
    plots: include_str!("../../plots/calvin-cpu.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let chains = chains()?;
    let windows = session.effort.choose([60, 25], [60, 25], [300, 200]);
    let windows = windows.map(Duration::from_millis);
    let sampling = Sampling {
        stage: "CPU use",
        rounds: 4,
        share: 1.0,
    };
    let deploy = |turns: &mut Turns<'_>| {
        let (variants, skipped) = build(&chains, session)?;
        turns.measure_figures(
            variants.len() * LOADS.len(),
            |_| false,
            |subject| {
                let (variant, load) = (subject / LOADS.len(), subject % LOADS.len());
                let interval = LOADS[load].1;
                let window =
                    variants[variant].cpu_use(PAYLOAD, interval, windows[load], session)?;
                Ok(figures(&window))
            },
        )?;
        let labels: Vec<_> = variants.iter().map(Variant::label).collect();
        Ok((labels, skipped))
    };
    let claims = |samples: &Deployments, (labels, _): &(Vec<VariantLabel>, Vec<Row>)| {
        let mut claims = idle_claims(samples, labels, &chains);
        claims.extend(table_1(samples, labels));
        claims
    };
    let (samples, (labels, skipped)) = session.sample(sampling, findings, deploy, claims)?;
    for (index, variant) in labels.iter().enumerate() {
        for (load, (load_name, _)) in LOADS.into_iter().enumerate() {
            let mean = |figure| samples.mean(slot(index, load, figure));
            let row = Row::of("CPU use")
                .with("variant", variant.name.as_str())
                .with("load", load_name);
            let row = SHARES.iter().enumerate().fold(row, |row, (share, name)| {
                row.with(name, mean(share).map(|share| share.value))
            });
            let row = row.with_estimate("worker", "_cores", mean(CORES));
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

fn slot(variant: usize, load: usize, figure: usize) -> usize {
    (variant * LOADS.len() + load) * FIGURES + figure
}

fn find(labels: &[VariantLabel], name: &str) -> Option<usize> {
    labels.iter().position(|variant| variant.name == name)
}

/// A worker that may sleep uses no CPU time without packets.
fn idle_claims(samples: &Deployments, labels: &[VariantLabel], chains: &[Chain]) -> Vec<Claim> {
    let has_worker = |chain: &&Chain| chain.spaces.iter().any(|space| space == "user");
    let sleeping = chains.iter().filter(has_worker);
    sleeping
        .filter(|chain| chain.idle != "spin")
        .filter_map(|Chain { name, .. }| {
            let median = samples.median(slot(find(labels, name)?, 1, CORES));
            let id = format!("idle worker, cores, {name}");
            Some(Claim::at_most(id, median, IDLE_BOUND))
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
                let mean = |figure| samples.mean(slot(variant, 0, figure)).map(|e| e.value);
                figures.iter().copied().map(mean).sum::<Option<f64>>()
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

/// All variants that are available here, and a row for each missing one.
fn build(chains: &[Chain], session: Session<'_>) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let agent = EmbeddedAgent::open(session.program)?;
    let mut made = vec![
        variants::direct()?,
        variants::bridge()?.with_name("Linux bridge"),
        variants::kernel_forwarding()?.with_name("kernel forwarding"),
    ];
    for chain in chains {
        session.check()?;
        let spaces = chain.spaces.iter();
        let functions: Vec<_> = spaces
            .map(|space| ("kind: forward", space.as_str()))
            .collect();
        let hook = chain.hook.iter().map(|hook| format!("  hook: {hook}\n"));
        let more = format!(
            "  mapping: {}\n{}{}",
            chain.mapping,
            hook.collect::<String>(),
            variants::worker(&chain.idle, 1)?
        );
        let name = format!("c{}", made.len());
        let variant = variants::deploy_chain(&agent, &name, &chain.about, &functions, &more)?;
        made.push(variant.with_name(&chain.name));
    }
    let (programs, skipped) = variants::start_references(&[
        (Reference::Dpdk, "DPDK", "DPDK over net_af_xdp, polling"),
        (
            Reference::Packet,
            "AF_PACKET",
            "plain packet sockets, polling",
        ),
    ])?;
    made.extend(programs);
    made.extend(variants::centralized_variants()?);
    Ok((made, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_name_variants_and_shares_sum_to_one() {
        let chains = chains().unwrap();
        let named = |name: &str| {
            name.starts_with("centralized") || chains.iter().any(|chain| chain.name == name)
        };
        assert!(PAIRS.iter().all(|(one, other)| named(one) && named(other)));
        for shares in calvin::CPU_SHARES {
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        for hz in [100, 250, 300, 1000] {
            assert_ne!((1_000_000_000 / hz) % INTERVAL.as_nanos(), 0);
        }
    }
}
