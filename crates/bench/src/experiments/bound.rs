//! `bound`: random sets of chains that admission takes, and traffic as bad as their contracts allow: the longest delay against the bound.

mod draw;
mod stage;
mod verdict;

use draw::{Judge, Kind, POOL, Pool, Set};
use myelin_metrics::stats::{CONFIDENCE, median_ci};
use myelin_planner::{Bound, Costs, Machine, PortKind};
use stage::{Stage, Turns};
use verdict::Verdict;

use crate::frames::Scatter;
use crate::stand::Stand;
use crate::variant::polling_core;
use crate::{Claim, Effort, Error, Findings, Row, Session};

/// Pools of each kind, of new functions each.
const POOLS: usize = 4;
/// Most of a set's chains; the fewest are two.
const FEWEST: usize = 2;
/// Turns of each set.
const TURNS: usize = 4;
/// Steps of the sorted plot.
const STEPS: usize = 20;
/// Of the chains closest to their bounds so many are rows.
const CLOSEST: usize = 10;
/// Where the drawing begins.
const SEED: u64 = 0x6d79_656c_696e;
/// Most of the time that may be excused.
const EXCUSED_SHARE: f64 = 0.001;
/// Most of what is sent to profile that does not come through.
const MISSING_SHARE: f64 = 0.001;
/// The longest stall that is made, ns.
const LONGEST_STALL_NS: u64 = 1_000_000;
/// How much of the stall that the bound has is made. Cores go on standing still by themselves meanwhile: for interrupts, and where a hypervisor has to bring
/// memory back before a packet can be written there, of which nothing tells. Both together are what the bound speaks of.
const MADE: [u64; 2] = [3, 4];
/// Most that the bound is above the worst, median.
const TIGHTNESS: f64 = 3.0;

/// A chain of a set, and what it showed.
struct Shown {
    kind: Kind,
    set: usize,
    chains: usize,
    bound: Bound,
    /// What is measured besides what the bound speaks of, at most.
    beside_ns: u64,
    /// Over all turns in which nothing was excused.
    worst_ns: Option<u64>,
    /// The longest of all, and what the cores were absent beyond their stalls in that turn.
    above: Vec<(u64, u64, Verdict)>,
    bursts: u64,
}

/// What became of the packets of one kind of chains.
#[derive(Default, Clone, Copy)]
struct Flow {
    sent: u64,
    /// Of those that did not come through, what the policers turned away.
    policed: u64,
    missing: u64,
    turns_ns: u64,
    absent_ns: [u64; 2],
}

/// All that was seen.
#[derive(Default)]
struct Seen {
    chains: Vec<Shown>,
    sets: usize,
    refused: usize,
    flows: [Flow; 2],
    turns_ns: u64,
    absent_ns: u64,
    excused_ns: u64,
}

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let core = polling_core()?;
    session.progress("calibration", 0, 1)?;
    let (costs, longest_stall_ns) = costs(session)?;
    let judge = Judge {
        machine: Machine {
            ingress: PortKind::Virtual,
            egress: PortKind::Virtual,
            ..Machine::with_end_hosts(myelin_linux::affinity::cores())
        },
        costs,
    };
    let mut scatter = Scatter(SEED);
    let mut seen = Seen::default();
    let (pools, sets) = session.effort.choose((1, 2), (POOLS, 26), (POOLS, 125));
    let total = pools * sets * 2;
    for kind in [Kind::Kernel, Kind::Worker] {
        for _ in 0..pools {
            let pool = Pool::draw(kind, core, &mut scatter);
            let mut stage = Stage::new(session.program, pool.clone())?;
            for _ in 0..sets {
                let stage_name = format!("sets of {} chains", kind.name());
                session.progress(&stage_name, seen.sets, total)?;
                let count = FEWEST + scatter.below((POOL - FEWEST + 1) as u64) as usize;
                let set = pool.set(count, &judge, &mut scatter)?;
                stage.set(&set)?;
                let stalls = stalls(&judge.costs, core);
                // A port may be served by any core, and has the worst of all.
                let stall_ns = match kind {
                    Kind::Kernel => stalls[0],
                    Kind::Worker => stalls[1],
                };
                let made_ns = stall_ns * MADE[0] / MADE[1];
                let turns = stage.turns(&set, TURNS, made_ns, &mut scatter)?;
                let beside_ns = beside_ns(kind, &judge.costs);
                seen.add(kind, &set, &turns, stalls, beside_ns);
            }
        }
    }
    let mut findings = findings(&seen, &judge.costs, core);
    let found = format!("{:.1}", longest_stall_ns as f64 / 1e3);
    findings.settings.push(("worst_stall_found_us", found));
    Ok(findings)
}

/// Measured here and now, since a bound is no better than the costs that it is made of; and the longest stall as it was found. A trial takes what is known.
///
/// Stalls above what the links' rings can hold are not made, and not in the bounds: they are excused, where they come.
fn costs(session: Session<'_>) -> Result<(Costs, u64), Error> {
    let mut costs = if session.effort == Effort::Trial {
        Costs::default()
    } else {
        let stand = Stand::open(session.program)?;
        stand.calibrate(session.effort == Effort::Quick, session.monitor.cancelled)?
    };
    let found_ns = stalls(&costs, 0)[0];
    for stall in costs.stalls.values_mut() {
        stall.stall_ns = stall.stall_ns.min(LONGEST_STALL_NS);
    }
    Ok((costs, found_ns))
}

/// The calibrated stalls of the core that sends, which is any, and of the core that serves, ns.
fn stalls(costs: &Costs, core: usize) -> [u64; 2] {
    let of = |core: u32| costs.stalls.get(&core).map(|stall| stall.stall_ns);
    let any = costs.stalls.values().map(|stall| stall.stall_ns).max();
    let any = any.unwrap_or(myelin_planner::costs::DEFAULT_STALL_NS);
    [any, of(core as u32).unwrap_or(any)]
}

/// What is measured besides what the bound speaks of. A packet is seen when the far end has received it, as it was when the costs of bursts were measured. But here
/// a thread does the receive work, where softirqs do it mostly, so that it can be kept from its core: it must get there again.
fn beside_ns(kind: Kind, costs: &Costs) -> u64 {
    match kind {
        Kind::Kernel => (costs.steps.wake_up.at_ns(0) * costs.worst_case) as u64,
        Kind::Worker => 0,
    }
}

/// What packets in bursts cost, of 298 B.
fn in_burst(costs: &Costs) -> String {
    costs.in_burst.map_or_else(
        || "not measured".to_owned(),
        |in_burst| {
            let costs = [in_burst.kernel, in_burst.port, in_burst.worker];
            let [kernel, port, worker] = costs.map(|cost| cost.at_ns(298));
            let [in_kernel, in_worker] = [in_burst.kernel_function, in_burst.user_function].map(|cost| cost.at_ns(298));
            format!("kernel {kernel:.0}, port {port:.0}, worker {worker:.0}; a function more than alone: kernel {in_kernel:.0}, worker {in_worker:.0}")
        },
    )
}

impl Seen {
    fn add(
        &mut self,
        kind: Kind,
        set: &Set,
        turns: &Turns,
        [any_ns, core_ns]: [u64; 2],
        beside_ns: u64,
    ) {
        // A port is served by any core; a worker is, and what its shaper holds leaves late by as much again.
        let allowed_ns = match kind {
            Kind::Kernel => [0, any_ns],
            Kind::Worker => [any_ns, 2 * core_ns],
        };
        let flow = &mut self.flows[kind as usize];
        flow.policed += turns.policed;
        let bursts = set.members.iter().map(|one| one.contract.burst).sum();
        let mut chains: Vec<Shown> = set
            .members
            .iter()
            .map(|member| Shown {
                kind,
                set: self.sets,
                chains: set.members.len(),
                bound: member.bound.clone(),
                beside_ns,
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
                let verdict = verdict::judge(worst_ns, chain.to_far_end_ns(), beyond_ns);
                if verdict != Verdict::Within {
                    chain.above.push((worst_ns, beyond_ns, verdict));
                }
                if verdict == Verdict::Excused {
                    excused = true;
                } else {
                    chain.worst_ns = chain.worst_ns.max(Some(worst_ns));
                }
            }
            flow.sent += turn.sent;
            flow.missing += turn.lost;
            flow.turns_ns += absence.turn_ns;
            flow.absent_ns[0] += absence.sending_ns.saturating_sub(allowed_ns[0]);
            flow.absent_ns[1] += absence.serving_ns.saturating_sub(allowed_ns[1]);
            self.turns_ns += turn.absence.turn_ns;
            self.absent_ns += beyond_ns;
            if excused {
                self.excused_ns += beyond_ns;
            }
        }
        self.sets += 1;
        self.refused += set.refused;
        self.chains.extend(chains);
    }

    fn of(&self, kind: Kind, chains: Option<usize>) -> Vec<&Shown> {
        let all = self.chains.iter().filter(|one| one.kind == kind);
        all.filter(|one| chains.is_none_or(|chains| one.chains == chains))
            .collect()
    }
}

impl Shown {
    /// The longest until a packet is seen at the far end, ns.
    fn to_far_end_ns(&self) -> u64 {
        self.bound.bound_ns + self.beside_ns
    }

    fn tightness(&self) -> Option<f64> {
        let worst_ns = self.worst_ns.filter(|ns| *ns > 0)?;
        Some(self.to_far_end_ns() as f64 / worst_ns as f64)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.above.iter().filter(|one| one.2 == verdict).count()
    }
}

fn findings(seen: &Seen, costs: &Costs, core: usize) -> Findings {
    let mut findings = Findings::default();
    let [any_ns, core_ns] = stalls(costs, core);
    findings.settings = vec![
        ("worst_case_factor", format!("{:.2}", costs.worst_case)),
        ("stall_us", format!("{:.1}", core_ns as f64 / 1e3)),
        ("worst_stall_us", format!("{:.1}", any_ns as f64 / 1e3)),
        ("in_burst_ns", in_burst(costs)),
        ("sets", seen.sets.to_string()),
        ("sets_refused_when_drawn", seen.refused.to_string()),
        ("seed", format!("{SEED:#x}")),
    ];
    for kind in [Kind::Kernel, Kind::Worker] {
        for chains in FEWEST..=POOL {
            let some = seen.of(kind, Some(chains));
            if !some.is_empty() {
                findings.row(summary(kind, chains, &some));
            }
        }
        findings.rows.extend(sorted(kind, &seen.of(kind, None)));
    }
    findings.rows.extend(closest(seen));
    findings.row(
        Row::of("time")
            .with("watched_ms", seen.turns_ns as f64 / 1e6)
            .with("absent_beyond_stalls_ms", seen.absent_ns as f64 / 1e6)
            .with("excused_ms", seen.excused_ns as f64 / 1e6),
    );
    for kind in [Kind::Kernel, Kind::Worker] {
        let flow = &seen.flows[kind as usize];
        findings.row(
            Row::of("packets")
                .with("chains", kind.name())
                .with("sent", flow.sent)
                .with("policed", flow.policed)
                .with("policed_or_lost", flow.missing)
                .with("watched_ms", flow.turns_ns as f64 / 1e6)
                .with("sender_absent_ms", flow.absent_ns[0] as f64 / 1e6)
                .with("server_absent_ms", flow.absent_ns[1] as f64 / 1e6),
        );
    }
    findings.claims = claims(seen);
    findings
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn summary(kind: Kind, chains: usize, some: &[&Shown]) -> Row {
    let median = |figure: &dyn Fn(&Shown) -> Option<f64>| {
        let figures: Vec<f64> = some.iter().filter_map(|one| figure(one)).collect();
        median_ci(&figures, CONFIDENCE).map(|e| e.value)
    };
    let tightness: Vec<f64> = some.iter().filter_map(|one| one.tightness()).collect();
    let least = tightness.iter().copied().min_by(f64::total_cmp);
    let over_paper = median(&|one| {
        let sum_ns = one.bound.paper_sum_ns?;
        Some(one.bound.bound_ns as f64 / sum_ns.max(1) as f64)
    });
    let mut sets: Vec<usize> = some.iter().map(|one| one.set).collect();
    sets.dedup();
    let count = |verdict| some.iter().map(|one| one.count(verdict)).sum::<usize>();
    let standing = median(&|one| Some(us(one.bound.latency_ns)));
    Row::of("sets")
        .with("chains", kind.name())
        .with("chains_in_set", chains)
        .with("sets", sets.len())
        .with("bound_us", median(&|one| Some(us(one.bound.bound_ns))))
        .with("beside_us", median(&|one| Some(us(one.beside_ns))))
        .with("bound_standing_us", standing)
        .with("worst_us", median(&|one| one.worst_ns.map(us)))
        .with_estimate("tightness", "", median_ci(&tightness, CONFIDENCE))
        .with("least_tightness", least)
        .with("bound_over_paper_sum", over_paper)
        .with("excused", count(Verdict::Excused))
        .with("unexplained", count(Verdict::Unexplained))
}

/// Quantiles of the bound over the worst.
fn sorted(kind: Kind, all: &[&Shown]) -> Vec<Row> {
    let mut ratios: Vec<f64> = all.iter().filter_map(|one| one.tightness()).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let Some(last) = ratios.len().checked_sub(1) else {
        return Vec::new();
    };
    (0..=STEPS)
        .map(|step| {
            Row::of("sorted")
                .with("chains", kind.name())
                .with("share_of_chains", step as f64 / STEPS as f64)
                .with("bound_over_worst", ratios[last * step / STEPS])
        })
        .collect()
}

/// The chains that came closest to their bounds, and beyond.
fn closest(seen: &Seen) -> Vec<Row> {
    let far = |one: &Shown| one.above.iter().map(|above| above.0).max().or(one.worst_ns);
    let mut all: Vec<(f64, &Shown)> = seen
        .chains
        .iter()
        .filter_map(|one| Some((one.to_far_end_ns() as f64 / far(one)?.max(1) as f64, one)))
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
                .with("bound_us", us(one.bound.bound_ns))
                .with("bound_standing_us", us(one.bound.latency_ns))
                .with("longest_us", far(one).map(us))
                .with("bound_over_longest", ratio)
                .with("absent_beyond_stalls_us", above.map(|above| us(above.1)))
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

/// Fewest sets for a claim.
const SETS_NEEDED: usize = 200;

fn claims(seen: &Seen) -> Vec<Claim> {
    let chains = || seen.chains.iter();
    let unexplained: usize = chains().map(|one| one.count(Verdict::Unexplained)).sum();
    let excused = seen.excused_ns as f64 / seen.turns_ns.max(1) as f64;
    let above_paper = chains().filter(|one| {
        let sum_ns = one.bound.paper_sum_ns;
        sum_ns.is_some_and(|sum_ns| one.bound.bound_ns > sum_ns)
    });
    let missing: u64 = seen.flows.iter().map(|flow| flow.missing).sum();
    let sent: u64 = seen.flows.iter().map(|flow| flow.sent).sum();
    let figures = [
        (
            "delays above the bound that nothing explains",
            unexplained as f64,
            0.0,
        ),
        ("share of the time that is excused", excused, EXCUSED_SHARE),
        (
            "chains whose bound is above the sum of Rathore et al., equation (4), with the same latencies",
            above_paper.count() as f64,
            0.0,
        ),
        (
            "share of the packets sent to profile that are policed or lost",
            missing as f64 / sent.max(1) as f64,
            MISSING_SHARE,
        ),
    ];
    let figures = figures.map(|(id, measured, bound)| Claim::figure_at_most(id, measured, bound));
    let tightness = [
        ("all", None),
        (Kind::Kernel.name(), Some(Kind::Kernel)),
        (Kind::Worker.name(), Some(Kind::Worker)),
    ]
    .map(|(name, kind)| {
        let of = chains().filter(|one| kind.is_none_or(|kind| one.kind == kind));
        let ratios: Vec<f64> = of.filter_map(Shown::tightness).collect();
        let id = format!("bound over the longest delay, {name} chains, median");
        Claim::median_at_most(id, median_ci(&ratios, CONFIDENCE), TIGHTNESS)
    });
    let claims = figures.into_iter().chain(tightness);
    // What few sets show decides nothing.
    let holds = |claim: &Claim| claim.holds.filter(|_| seen.sets >= SETS_NEEDED);
    claims
        .map(|claim| Claim {
            holds: holds(&claim),
            ..claim
        })
        .collect()
}
