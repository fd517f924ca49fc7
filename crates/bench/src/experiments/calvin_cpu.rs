//! `calvin-cpu`: CPU use at a fixed rate and without packets (CALVIN, Table I).
//!
//! Client and server sleep between packets: CALVIN's load at 20 times its rate. Both use the first
//! core, workers and reference programs the last one. `direct` is the use of the hosts alone. The
//! kernel counts the shares in timer ticks and reports them in steps of 10 ms. So shares are those
//! of all windows of a subject, and no tick is a multiple of the interval between packets. The
//! kernel counts idle time and the time of a process exactly.

use std::time::Duration;

use myelin_measure::cpu::{shares, sum_times};
use myelin_metrics::Shares;
use myelin_metrics::stats::{CONFIDENCE, mean_ci, median_ci};
use serde::Deserialize;
use serde_json::json;

use crate::agents::EmbeddedAgent;
use crate::published::calvin;
use crate::reference::Reference;
use crate::variant::{CpuWindow, Variant, VariantLabel};
use crate::variants::{AS_PUBLISHED, AT_ITS_BEST};
use crate::{Claim, Error, Findings, Row, Session, experiment, variants};

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

/// A share of the time of all cores.
type Share = fn(&Shares) -> f64;

/// The shares, with the names of their columns.
const SHARES: [(&str, Share); 5] = [
    ("user_share", |shares| shares.user_share),
    ("system_share", |shares| shares.system_share),
    ("softirq_share", interrupts),
    ("steal_share", |shares| shares.steal_share),
    ("idle_share", |shares| shares.idle_share),
];
/// Shares of Table I: name, column, our figure. Its system share includes interrupts.
const TABLE_1: [(&str, usize, Share); 3] = [
    ("user", 0, |shares| shares.user_share),
    ("system", 1, |shares| {
        shares.system_share + interrupts(shares)
    }),
    ("idle", 3, |shares| shares.idle_share),
];

fn interrupts(shares: &Shares) -> f64 {
    shares.softirq_share + shares.irq_share
}

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let chains = chains()?;
    let (variants, skipped) = build(&chains, session)?;
    let windows = session.effort.choose([60, 25], [60, 25], [300, 200]);
    let windows = windows.map(Duration::from_millis);
    let subjects = variants.len() * LOADS.len();
    let mut all: Vec<Vec<CpuWindow>> = vec![Vec::new(); subjects];
    session.measure("CPU use", subjects, (30, 60), |subject| {
        let (variant, load) = (subject / LOADS.len(), subject % LOADS.len());
        let window = variants[variant].cpu_use(PAYLOAD, LOADS[load].1, windows[load], session)?;
        all[subject].push(window);
        Ok(1.0)
    })?;
    let about: Vec<VariantLabel> = variants.iter().map(VariantLabel::of).collect();
    let mut findings = Findings::default()
        .with("payload_bytes", PAYLOAD.to_string())
        .with(
            "packets_per_s",
            format!(
                "{:.0} to the server, as many back",
                1.0 / INTERVAL.as_secs_f64()
            ),
        )
        .with(
            "window_ms",
            format!(
                "{} at the fixed rate, {} idle",
                windows[0].as_millis(),
                windows[1].as_millis()
            ),
        );
    let measured = MeasuredWindows {
        about,
        windows: all,
    };
    for (index, variant) in measured.about.iter().enumerate() {
        for (load, (load_name, _)) in LOADS.into_iter().enumerate() {
            let row = Row::of("CPU use")
                .with("variant", variant.name.as_str())
                .with("load", load_name);
            let shares = measured.shares(index, load);
            let row = SHARES.into_iter().fold(row, |row, (name, share)| {
                row.with(name, shares.as_ref().map(share))
            });
            let cores = measured.cores(index, load);
            let row = row.with_estimate("worker", "_cores", mean_ci(&cores, CONFIDENCE));
            findings.add_row(row.with("what", variant.about.as_str()));
        }
    }
    findings.rows.extend(skipped);
    findings.claims.extend(measured.idle_claims(&chains));
    findings.claims.extend(measured.table_1());
    Ok(findings)
}

/// The windows of each subject.
struct MeasuredWindows {
    about: Vec<VariantLabel>,
    windows: Vec<Vec<CpuWindow>>,
}

impl MeasuredWindows {
    /// Shares of all windows together, because a single one has only a few ticks.
    fn shares(&self, variant: usize, load: usize) -> Option<Shares> {
        let windows = &self.windows[variant * LOADS.len() + load];
        shares(&sum_times(windows.iter().map(|window| window.spent)))
    }

    /// CPU time of the worker or the reference program, window by window.
    fn cores(&self, variant: usize, load: usize) -> Vec<f64> {
        let windows = &self.windows[variant * LOADS.len() + load];
        windows.iter().map(|window| window.cores).collect()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.about.iter().position(|variant| variant.name == name)
    }

    /// A worker that may sleep uses no CPU time without packets.
    fn idle_claims(&self, chains: &[Chain]) -> Vec<Claim> {
        let has_worker = |chain: &&Chain| chain.spaces.iter().any(|space| space == "user");
        let sleeping = chains.iter().filter(has_worker);
        sleeping
            .filter(|chain| chain.idle != "spin")
            .filter_map(|Chain { name, .. }| {
                let median = median_ci(&self.cores(self.find(name)?, 1), CONFIDENCE);
                let id = format!("idle worker, cores, {name}");
                Some(Claim::median_at_most(id, median, IDLE_BOUND))
            })
            .collect()
    }

    /// The paper's shares next to ours, without a bound.
    fn table_1(&self) -> Vec<Claim> {
        let shares = |name| self.shares(self.find(name)?, 0);
        let mut claims = Vec::new();
        for (centralized, chain) in PAIRS {
            let (Some(theirs), Some(ours)) = (shares(centralized), shares(chain)) else {
                continue;
            };
            for (name, column, share) in TABLE_1 {
                let paper = json!({
                    "centralized_share": calvin::CPU_SHARES[0][column],
                    "calvin_share": calvin::CPU_SHARES[1][column],
                });
                let measured =
                    json!({ "centralized_share": share(&theirs), "calvin_share": share(&ours) });
                let id = format!("{name} share: {centralized} and {chain}");
                claims.push(Claim::new(id, measured).with_published(paper, "CALVIN, Table I"));
            }
        }
        claims
    }
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
