//! `unis-scale`: the sharing policies on ten thousand simulated cores with chains that a seed
//! draws, and how long the simulation takes.

use std::num::NonZero;
use std::time::Instant;

use myelin_metrics::stats::Deployments;
use myelin_packet::sojourn::Histogram;
use myelin_policy::sharing::UnisParameters;
use myelin_simulator::Machine;

use crate::figures::Column::{Hidden, Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::sampling::{Sampling, Turns};
use crate::simulated::{self, CoreScheduler, FAIR_SLICE_NS, KINDS, Seeds, SimulatedChain, Testbed};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Functions of a chain, at least and at most.
const LENGTHS: std::ops::RangeInclusive<usize> = 1..=8;
/// Offered rate over what a core could carry without switches, at least and at most.
const LOADS: [f64; 2] = [0.3, 0.8];
/// Chains of which one has the second half of its functions on a further core.
const SPLIT: usize = 10;
/// Simulated time before the figures and with them, ns.
const BEFORE_NS: u64 = 2_000_000;
const WINDOW_NS: u64 = 2_000_000;
/// Part of the cores that are simulated a second time.
const REPEATED: usize = 10;
/// Least share of offered packets that `deadline` delivers.
const DELIVERED_BOUND: f64 = 0.99;
/// Largest p99 of `deadline` over that of `unis`.
const DELAY_BOUND: f64 = 0.7;

const COOPERATIVE: usize = 0;
const UNIS: usize = 1;
const DEADLINE: usize = 2;

fn schedulers() -> [CoreScheduler; 5] {
    [
        CoreScheduler::cooperative("cooperative k=8", 8),
        CoreScheduler::unis("unis", UnisParameters::default()),
        CoreScheduler::deadline(),
        CoreScheduler::load_based(),
        CoreScheduler::fair("os 100 us", FAIR_SLICE_NS),
    ]
}

/// Chains on all cores.
struct Fleet {
    /// Time of the simulation over the simulated time.
    pace: f64,
    offered: u64,
    delivered: u64,
    sojourn: Histogram,
    /// Cores of the repeated part with other results.
    differing: usize,
}

const FIGURES: &[Figure<Fleet>] = &[
    Figure::new("simulation_of_a_second", Interval("_s"), |fleet| fleet.pace),
    Figure::new("delivered_of_offered", Interval(""), |fleet| {
        fleet.delivered as f64 / fleet.offered.max(1) as f64
    }),
    Figure::new("sojourn_p50", Interval("_us"), |fleet| {
        fleet.quantile_us(0.5)
    }),
    Figure::new("sojourn_p99", Interval("_us"), |fleet| {
        fleet.quantile_us(0.99)
    }),
    Figure::new("offered_packets", Median, |fleet| fleet.offered as f64),
    Figure::new("differing", Hidden, |fleet| fleet.differing as f64),
];

impl Fleet {
    fn quantile_us(&self, quantile: f64) -> f64 {
        let ns = self.sojourn.quantile(quantile);
        ns.map_or(f64::NAN, |ns| ns as f64 / 1e3)
    }
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-scale",
    about: "simulated: all policies on 10,000 cores with chains that a seed draws, and the time that the simulation of a second takes",
    differs: "",
    run,
    plots: include_str!("../../plots/unis-scale.yaml"),
};

fn subjects() -> Subjects<Fleet, 1> {
    Subjects::new(FIGURES, [schedulers().len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    simulated::describe(findings);
    let cores = session.effort.choose(40, 1000, 10_000);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    findings.set("cores", cores);
    findings.set("threads", threads);
    let is_debug = cfg!(debug_assertions);
    findings.set("build", if is_debug { "debug" } else { "release" });
    findings.set("window_ms", WINDOW_NS as f64 / 1e6);
    let (subjects, schedulers) = (subjects(), schedulers());
    let mut seeds = Seeds::default();
    let other = u64::from(session.has_fault(Fault::OtherSeed));
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |at| {
            let [scheduler] = at;
            let (scheduler, seed) = (schedulers[scheduler], seeds.next(at));
            let mut fleet = observe(scheduler, cores, seed, threads);
            let repeated = |seed, threads| {
                let drawn = draw(scheduler, cores / REPEATED, seed);
                run_machine(drawn, threads)
            };
            fleet.differing = count_differing(&repeated(seed, 1), &repeated(seed + other, threads));
            Ok(fleet)
        })
    };
    let sampling = Sampling::of("cores").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[scheduler]| {
        Row::of("simulated cores")
            .with("scheduler", schedulers[scheduler].name)
            .with("cores", cores)
    });
    Ok(())
}

/// Simulated cores with as many chains as the figures are of.
struct Cores {
    machine: Machine,
    chains: usize,
    cores: usize,
}

/// Draws chains until they have `cores` cores.
fn draw(scheduler: CoreScheduler, cores: usize, seed: u64) -> Cores {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut drawn = Cores {
        machine: Machine::new(seed),
        chains: 0,
        cores: 0,
    };
    while drawn.cores < cores {
        let kind = KINDS[random.usize(..KINDS.len())];
        let functions = random.usize(LENGTHS);
        let load = LOADS[0] + random.f64() * (LOADS[1] - LOADS[0]);
        let mut chain = SimulatedChain::on_one_core(kind, functions, 0.0);
        if functions > 1 && random.usize(..SPLIT) == 0 && drawn.cores + 1 < cores {
            let half = functions.div_ceil(2);
            chain.functions[half..]
                .iter_mut()
                .for_each(|function| function.core = 1);
        }
        let cost_of = |core: usize| -> u64 {
            let functions = chain.functions.iter();
            functions
                .filter(|function| function.core == core)
                .map(|function| function.cost_ps)
                .sum()
        };
        let cost_ps = cost_of(0).max(cost_of(1));
        chain.rate_pps = load * 1e12 / cost_ps as f64;
        let used = chain
            .functions
            .iter()
            .map(|function| function.core + 1)
            .max();
        drawn.cores += used.unwrap_or(0);
        drawn.chains += 1;
        Testbed::of(scheduler, vec![chain]).add_to(&mut drawn.machine, random.u64(..));
    }
    drawn
}

/// Runs cores until the end of the figures.
fn run_machine(mut drawn: Cores, threads: usize) -> Cores {
    drawn.machine.run_on(threads, BEFORE_NS + WINDOW_NS);
    drawn
}

fn observe(scheduler: CoreScheduler, cores: usize, seed: u64, threads: usize) -> Fleet {
    let Cores {
        mut machine,
        chains,
        ..
    } = draw(scheduler, cores, seed);
    machine.run_on(threads, BEFORE_NS);
    let before: Vec<_> = (0..chains)
        .map(|chain| machine.chain(chain).clone())
        .collect();
    let start = Instant::now();
    machine.run_on(threads, BEFORE_NS + WINDOW_NS);
    let mut fleet = Fleet {
        pace: start.elapsed().as_secs_f64() * 1e9 / WINDOW_NS as f64,
        offered: 0,
        delivered: 0,
        sojourn: Histogram::new(),
        differing: 0,
    };
    for (chain, before) in before.iter().enumerate() {
        let seen = simulated::since(machine.chain(chain), before);
        fleet.offered += seen.offered;
        fleet.delivered += seen.delivered;
        fleet.sojourn.merge(&seen.sojourn);
    }
    fleet
}

/// Cores and chains of which two simulations differ.
fn count_differing(one: &Cores, other: &Cores) -> usize {
    let cores = 0..one.cores.min(other.cores);
    let cores = cores.filter(|core| one.machine.core(*core) != other.machine.core(*core));
    let chains = 0..one.chains.min(other.chains);
    let chains = chains.filter(|chain| one.machine.chain(*chain) != other.machine.chain(*chain));
    cores.count() + chains.count() + one.chains.abs_diff(other.chains)
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (index, scheduler) in schedulers().iter().enumerate() {
        let name = scheduler.name;
        let of = subjects.at(samples, [index]);
        let id = format!("simulated cores that differ with equal seeds, {name}");
        claims.push(Claim::at_most(id, of.median("differing"), 0.0));
    }
    let [cooperative, unis, deadline] =
        [COOPERATIVE, UNIS, DEADLINE].map(|scheduler| subjects.at(samples, [scheduler]));
    let id = "simulated packets, deadline, delivered of offered";
    let delivered = deadline.median("delivered_of_offered");
    claims.push(Claim::at_least(id, delivered, DELIVERED_BOUND));
    let id = "simulated packets, unis / cooperative k=8, delivered of offered";
    claims.push(Claim::shown(
        id,
        unis.ratio(&cooperative, "delivered_of_offered"),
    ));
    let p99 = deadline.ratio(&unis, "sojourn_p99");
    claims.push(Claim::at_most(
        "simulated p99, deadline / unis",
        p99,
        DELAY_BOUND,
    ));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_cores_on_any_number_of_threads() {
        for scheduler in schedulers() {
            let run = |seed, threads| run_machine(draw(scheduler, 20, seed), threads);
            let one = run(1, 1);
            assert_eq!(one.cores, 20);
            assert_eq!(count_differing(&one, &run(1, 2)), 0, "{}", scheduler.name);
            assert!(count_differing(&one, &run(2, 1)) > 20);
        }
    }
}
