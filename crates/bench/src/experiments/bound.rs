//! `bound`: random sets of admitted chains with the worst traffic that their contracts allow.
//! Compares the longest delay with the bound.

mod claims;
mod draw;
mod testbed;
mod verdict;

use claims::decide_claims;
use draw::{AdmissionCheck, POOL, Pool, PoolKind, Set};
use myelin_metrics::stats::{CONFIDENCE, median_ci};
use myelin_planner::{Bound, Costs, Machine, PortKind};
use testbed::{BoundTestbed, CreatedStalls, Turns};
use verdict::Verdict;

use crate::agents::EmbeddedAgent;
use crate::frames::SplitMix;
use crate::variant::polling_core;
use crate::{Effort, Error, Experiment, Findings, Row, Session};

/// Pools of each kind. Each pool has new functions.
const POOLS: usize = 4;
/// Fewest chains of a set.
const FEWEST: usize = 2;
/// Turns of each set.
const TURNS: usize = 4;
/// Points of the sorted plot.
const SORTED_POINTS: usize = 20;
/// Rows of chains closest to their bounds.
const CLOSEST: usize = 10;
/// Seed of the random sets.
const SEED: u64 = 0x6d79_656c_696e;
/// Longest stall that the experiment creates, ns.
const LONGEST_STALL_NS: u64 = 1_000_000;
/// Share of the bound's stall that the experiment creates. The cores also stall by themselves: for
/// interrupts, and while a hypervisor returns memory, which a guest cannot see. The bound
/// covers both together.
const CREATED_SHARE: [u64; 2] = [3, 4];

/// A chain of a set, and its delays.
struct ChainResult {
    kind: PoolKind,
    set: usize,
    chains: usize,
    bound: Bound,
    /// Longest measured time that the bound does not cover.
    uncovered_ns: u64,
    /// Longest delay of all turns without an excuse.
    worst_ns: Option<u64>,
    /// Delays above the bound, ns, with the cores' absence beyond their stalls in that turn.
    above: Vec<(u64, u64, Verdict)>,
    bursts: u64,
}

/// Packets of one kind of chains.
#[derive(Default, Clone, Copy)]
struct PacketTotals {
    sent: u64,
    /// Packets that policers dropped, part of `missing`.
    policed: u64,
    missing: u64,
    turns_ns: u64,
    absent_ns: [u64; 2],
}

/// Results of all sets.
#[derive(Default)]
struct Results {
    /// Whether the bounds rest on costs of this machine. A trial uses the built-in costs.
    is_calibrated: bool,
    chains: Vec<ChainResult>,
    sets: usize,
    refused: usize,
    packets: [PacketTotals; 2],
    excused_ns: u64,
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "bound",
    about: "random admissible sets of chains under the worst traffic that their profiles allow: longest delay against the worst-case bound",
    differs: "",
    run,
    plots: include_str!("../../plots/bound.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let core = polling_core()?;
    session.progress("calibration", 0, 1)?;
    let (costs, longest_stall_ns) = measure_costs(session)?;
    let admission = AdmissionCheck {
        machine: Machine {
            ingress: PortKind::EndHost,
            egress: PortKind::Virtual,
            ..Machine::with_end_hosts(myelin_linux::affinity::highest_core() + 1)
        },
        costs,
    };
    let mut random = SplitMix(SEED);
    let mut results = Results {
        is_calibrated: session.effort != Effort::Trial,
        ..Results::default()
    };
    let (pools, sets) = session.effort.choose((1, 2), (POOLS, 26), (POOLS, 125));
    let total = pools * sets * 2;
    for kind in [PoolKind::Kernel, PoolKind::Worker] {
        for _ in 0..pools {
            let pool = Pool::draw(kind, core, &mut random);
            let mut testbed = BoundTestbed::new(session, pool.clone())?;
            for _ in 0..sets {
                let stage_name = format!("sets of {} chains", kind.name());
                session.progress(&stage_name, results.sets, total)?;
                let count = FEWEST + random.draw_below((POOL - FEWEST + 1) as u64) as usize;
                let set = pool.draw_set(count, &admission, &mut random)?;
                testbed.set_contracts(&set)?;
                let stalls = stalls(&admission.costs, core);
                // Any core may serve a port, so the longest stall of all cores applies there.
                let [port_ns, worker_ns] =
                    stalls.map(|stall_ns| stall_ns * CREATED_SHARE[0] / CREATED_SHARE[1]);
                let created = CreatedStalls { port_ns, worker_ns };
                let turns = testbed.run_turns(&set, TURNS, created, &mut random)?;
                let uncovered_ns = uncovered_ns(&admission.costs);
                results.add(kind, &set, &turns, stalls, uncovered_ns);
            }
        }
    }
    report(&results, &admission.costs, core, findings);
    let found = format!("{:.1}", longest_stall_ns as f64 / 1e3);
    findings.set("worst_stall_found_us", found);
    Ok(())
}

/// Calibrated costs, because a bound is only as good as its costs, and the longest stall of the
/// calibration. A trial uses the built-in costs.
///
/// The experiment neither creates nor bounds stalls that would overflow the links' rings. It
/// excuses them.
fn measure_costs(session: Session<'_>) -> Result<(Costs, u64), Error> {
    let mut costs = if session.effort == Effort::Trial {
        Costs::default()
    } else {
        // The calibration's own links have offloads.
        let agent = EmbeddedAgent::open_for_offloads(session.program)?;
        agent.calibrate(session.effort == Effort::Quick, &session.monitor)?
    };
    let found_ns = stalls(&costs, 0)[0];
    for stall in costs.stalls.values_mut() {
        stall.stall_ns = stall.stall_ns.min(LONGEST_STALL_NS);
    }
    Ok((costs, found_ns))
}

/// Calibrated stalls, ns: the longest of all cores, because any core may send, and that of the
/// serving core.
fn stalls(costs: &Costs, core: usize) -> [u64; 2] {
    let of = |core: u32| costs.stalls.get(&core).map(|stall| stall.stall_ns);
    let any = costs.stalls.values().map(|stall| stall.stall_ns).max();
    let any = any.unwrap_or(myelin_planner::costs::DEFAULT_STALL_NS);
    [any, of(core as u32).unwrap_or(any)]
}

/// Measured time that the bound does not cover. Here a thread does the receive work instead of
/// softirqs, so that the experiment can block this thread. The measured time includes its
/// wake-up.
fn uncovered_ns(costs: &Costs) -> u64 {
    (costs.steps.wake_up.at_ns(0) * costs.worst_case) as u64
}

/// Costs of packets of 298 B in bursts.
fn in_burst(costs: &Costs) -> String {
    costs.in_burst.map_or_else(
        || "not measured".to_owned(),
        |in_burst| {
            let costs = [in_burst.kernel, in_burst.port, in_burst.worker];
            let [kernel, port, worker] = costs.map(|cost| cost.at_ns(298));
            let [in_kernel, in_worker] = [in_burst.kernel_function, in_burst.user_function].map(|cost| cost.at_ns(298));
            format!("kernel {kernel:.0}, port {port:.0}, worker {worker:.0}; extra cost of a function: kernel {in_kernel:.0}, worker {in_worker:.0}")
        },
    )
}

impl Results {
    fn add(
        &mut self,
        kind: PoolKind,
        set: &Set,
        turns: &Turns,
        [any_ns, core_ns]: [u64; 2],
        uncovered_ns: u64,
    ) {
        // The serving core serves the port and the worker. A worker's shaper may delay its packets
        // by a second stall.
        let allowed_ns = match kind {
            PoolKind::Kernel => [0, any_ns],
            PoolKind::Worker => [0, any_ns + 2 * core_ns],
        };
        let totals = &mut self.packets[kind as usize];
        totals.policed += turns.policed;
        let bursts = set.members.iter().map(|one| one.contract.burst).sum();
        let mut chains: Vec<ChainResult> = set
            .members
            .iter()
            .map(|member| ChainResult {
                kind,
                set: self.sets,
                chains: set.members.len(),
                bound: member.bound.clone(),
                uncovered_ns,
                worst_ns: None,
                above: Vec::new(),
                bursts,
            })
            .collect();
        for turn in &turns.turns {
            let absence = turn.absence;
            let beyond_ns = absence.beyond_ns(allowed_ns[0], allowed_ns[1]);
            let mut excused = false;
            for (chain, worst_ns) in chains.iter_mut().zip(&turn.worst_ns) {
                let Some(worst_ns) = *worst_ns else { continue };
                let verdict = verdict::judge_delay(worst_ns, chain.to_far_end_ns(), beyond_ns);
                if verdict != Verdict::Within {
                    chain.above.push((worst_ns, beyond_ns, verdict));
                }
                if verdict == Verdict::Excused {
                    excused = true;
                } else {
                    chain.worst_ns = chain.worst_ns.max(Some(worst_ns));
                }
            }
            totals.sent += turn.sent;
            totals.missing += turn.lost;
            totals.turns_ns += absence.turn_ns;
            totals.absent_ns[0] += absence.sending_ns.saturating_sub(allowed_ns[0]);
            totals.absent_ns[1] += absence.serving_ns.saturating_sub(allowed_ns[1]);
            if excused {
                self.excused_ns += beyond_ns;
            }
        }
        self.sets += 1;
        self.refused += set.refused;
        self.chains.extend(chains);
    }

    fn sum(&self, of: fn(&PacketTotals) -> u64) -> u64 {
        self.packets.iter().map(of).sum()
    }

    fn select(&self, kind: PoolKind, chains: Option<usize>) -> Vec<&ChainResult> {
        let all = self.chains.iter().filter(|one| one.kind == kind);
        all.filter(|one| chains.is_none_or(|chains| one.chains == chains))
            .collect()
    }
}

impl ChainResult {
    /// Bound on the time until the far end receives a packet, ns.
    fn to_far_end_ns(&self) -> u64 {
        self.bound.bound_ns + self.uncovered_ns
    }

    fn tightness(&self) -> Option<f64> {
        let worst_ns = self.worst_ns.filter(|ns| *ns > 0)?;
        Some(self.to_far_end_ns() as f64 / worst_ns as f64)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.above.iter().filter(|one| one.2 == verdict).count()
    }
}

fn report(results: &Results, costs: &Costs, core: usize, findings: &mut Findings) {
    let [any_ns, core_ns] = stalls(costs, core);
    findings.set("worst_case_factor", format!("{:.2}", costs.worst_case));
    findings.set("stall_us", format!("{:.1}", to_us(core_ns)));
    findings.set("worst_stall_us", format!("{:.1}", to_us(any_ns)));
    findings.set("in_burst_ns", in_burst(costs));
    findings.set("sets", results.sets);
    findings.set("sets_refused_when_drawn", results.refused);
    findings.set("seed", format!("{SEED:#x}"));
    for kind in [PoolKind::Kernel, PoolKind::Worker] {
        for chains in FEWEST..=POOL {
            let selected = results.select(kind, Some(chains));
            if !selected.is_empty() {
                findings.add_row(summary_row(kind, chains, &selected));
            }
        }
        findings
            .rows
            .extend(sorted_rows(kind, &results.select(kind, None)));
    }
    findings.rows.extend(closest_rows(results));
    let absent_ns = results.sum(|of| of.absent_ns.iter().sum());
    findings.add_row(
        Row::of("time")
            .with("watched_ms", results.sum(|of| of.turns_ns) as f64 / 1e6)
            .with("absent_beyond_stalls_ms", absent_ns as f64 / 1e6)
            .with("excused_ms", results.excused_ns as f64 / 1e6),
    );
    for kind in [PoolKind::Kernel, PoolKind::Worker] {
        let totals = &results.packets[kind as usize];
        findings.add_row(
            Row::of("packets")
                .with("chains", kind.name())
                .with("sent", totals.sent)
                .with("policed", totals.policed)
                .with("policed_or_lost", totals.missing)
                .with("watched_ms", totals.turns_ns as f64 / 1e6)
                .with("sender_absent_ms", totals.absent_ns[0] as f64 / 1e6)
                .with("server_absent_ms", totals.absent_ns[1] as f64 / 1e6),
        );
    }
    findings.claims.extend(decide_claims(results));
}

fn to_us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn summary_row(kind: PoolKind, chains: usize, selected: &[&ChainResult]) -> Row {
    let median = |figure: &dyn Fn(&ChainResult) -> Option<f64>| {
        let figures: Vec<f64> = selected.iter().filter_map(|one| figure(one)).collect();
        median_ci(&figures, CONFIDENCE).map(|e| e.value)
    };
    let tightness: Vec<f64> = selected.iter().filter_map(|one| one.tightness()).collect();
    let least = tightness.iter().copied().min_by(f64::total_cmp);
    let over_paper = median(&|one| {
        let sum_ns = one.bound.paper_sum_ns?;
        Some(one.bound.bound_ns as f64 / sum_ns.max(1) as f64)
    });
    let mut sets: Vec<usize> = selected.iter().map(|one| one.set).collect();
    sets.dedup();
    let count = |verdict| selected.iter().map(|one| one.count(verdict)).sum::<usize>();
    let standing = median(&|one| Some(to_us(one.bound.latency_ns)));
    Row::of("sets")
        .with("chains", kind.name())
        .with("chains_in_set", chains)
        .with("sets", sets.len())
        .with("bound_us", median(&|one| Some(to_us(one.bound.bound_ns))))
        .with("beside_us", median(&|one| Some(to_us(one.uncovered_ns))))
        .with("bound_standing_us", standing)
        .with("worst_us", median(&|one| one.worst_ns.map(to_us)))
        .with_estimate("tightness", "", median_ci(&tightness, CONFIDENCE))
        .with("least_tightness", least)
        .with("bound_over_paper_sum", over_paper)
        .with("excused", count(Verdict::Excused))
        .with("unexplained", count(Verdict::Unexplained))
}

/// Quantiles of bound over longest delay.
fn sorted_rows(kind: PoolKind, all: &[&ChainResult]) -> Vec<Row> {
    let mut ratios: Vec<f64> = all.iter().filter_map(|one| one.tightness()).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let Some(last) = ratios.len().checked_sub(1) else {
        return Vec::new();
    };
    (0..=SORTED_POINTS)
        .map(|step| {
            Row::of("sorted")
                .with("chains", kind.name())
                .with("share_of_chains", step as f64 / SORTED_POINTS as f64)
                .with("bound_over_worst", ratios[last * step / SORTED_POINTS])
        })
        .collect()
}

/// The chains closest to their bounds, or above.
fn closest_rows(results: &Results) -> Vec<Row> {
    let longest = |one: &ChainResult| one.above.iter().map(|above| above.0).max().or(one.worst_ns);
    let mut all: Vec<(f64, &ChainResult)> = results
        .chains
        .iter()
        .filter_map(|one| {
            Some((
                one.to_far_end_ns() as f64 / longest(one)?.max(1) as f64,
                one,
            ))
        })
        .collect();
    all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    all.into_iter()
        .take(CLOSEST)
        .map(|(ratio, one)| {
            let above = one.above.iter().max_by_key(|above| above.0);
            Row::of("closest")
                .with("chains", one.kind.name())
                .with("set", one.set)
                .with("chains_in_set", one.chains)
                .with("burst_packets_of_all", one.bursts)
                .with("bound_us", to_us(one.bound.bound_ns))
                .with("bound_standing_us", to_us(one.bound.latency_ns))
                .with("longest_us", longest(one).map(to_us))
                .with("bound_over_longest", ratio)
                .with("absent_beyond_stalls_us", above.map(|above| to_us(above.1)))
                .with(
                    "verdict",
                    match above.map(|above| above.2) {
                        None | Some(Verdict::Within) => "within",
                        Some(Verdict::Excused) => "excused",
                        Some(Verdict::Unexplained) => "unexplained",
                    },
                )
        })
        .collect()
}
