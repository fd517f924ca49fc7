//! `unis-agreement`: whether a simulated core and a live one have the same throughput.

use std::time::Duration;

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::{DeadlineParameters, Parameters, UnisParameters};

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::{BATCH, LivePipeline, LiveSetup, LiveWindow, RING, chain_of};
use crate::sampling::{Sampling, Turns};
use crate::simulated::{CoreScheduler, PlacedFunction, SimulatedChain, Span, Testbed};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

const LENGTHS: [usize; 3] = [3, 5, 8];
/// Kinds, and the cycles of the functions in turn.
const KINDS: [(&str, &[u32]); 2] = [("medium", &[150]), ("mixed", &[150, 250])];
const SCHEDULERS: [&str; 4] = ["cooperative k=16", "unis", "deadline", "round-robin 100 us"];
/// Turns of the pipeline whose throughput gives the costs, batches.
const KNOWN_TURNS: u32 = 24;
/// What a simulated switch costs more with [`Fault::DearSwitch`], ns.
const DEAR_NS: f64 = 30_000.0;
/// Largest difference of both throughputs, of the simulated one.
const BOUND: f64 = 0.1;

/// Both throughputs of a subject, and the costs that the simulation assumes.
#[derive(Debug, Clone, Copy)]
struct Compared {
    live_mpps: f64,
    simulated_mpps: f64,
    costs: Costs,
}

/// What packets and switches of the pipeline of known turns cost.
#[derive(Debug, Clone, Copy)]
struct Costs {
    /// A packet in all functions, ns.
    packet_ns: f64,
    switch_ns: f64,
}

const FIGURES: &[Figure<Compared>] = &[
    Figure::new("live", Interval("_mpps"), |seen| seen.live_mpps),
    Figure::new("simulated", Interval("_mpps"), |seen| seen.simulated_mpps),
    Figure::new("difference", Median, |seen| {
        (seen.live_mpps / seen.simulated_mpps - 1.0).abs()
    }),
    Figure::new("packet_ns", Median, |seen| seen.costs.packet_ns),
    Figure::new("switch_us", Median, |seen| seen.costs.switch_ns / 1e3),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-agreement",
    about: "whether simulated pipelines on one core carry as many packets as live ones",
    differs: "",
    run,
    plots: include_str!("../../plots/unis-agreement.yaml"),
};

fn subjects() -> Subjects<Compared, 3> {
    Subjects::new(FIGURES, [KINDS.len(), LENGTHS.len(), SCHEDULERS.len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("ring_entries", RING);
    findings.set("batch", BATCH);
    let window = Duration::from_millis(session.effort.choose(30, 100, 200));
    findings.set("window_ms", window.as_millis() as u64);
    let span = Span::of(session.effort);
    let is_dear = session.has_fault(Fault::DearSwitch);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[kind, length, scheduler]| {
            let cycles = chain_of(KINDS[kind].1, LENGTHS[length]);
            let observe = |policy| {
                let setup = LiveSetup::shared(cycles.clone(), Some(policy))?;
                let live = LivePipeline::start(session.program, &setup)?;
                Ok::<_, Error>(live.observe(window))
            };
            // The clock of a virtual machine drifts, so each subject has its own costs.
            let known = observe(Parameters::Cooperative { reads: KNOWN_TURNS })?;
            let live = observe(policy(scheduler))?;
            let mut costs = Costs::of(&known);
            if is_dear {
                costs.switch_ns += DEAR_NS;
            }
            let bed = costs.testbed(&cycles, scheduler);
            Ok(Compared {
                live_mpps: live.own_mpps(),
                simulated_mpps: bed.observe(1, span).throughput_mpps(0),
                costs,
            })
        })
    };
    let sampling = Sampling::of("live and simulated pipelines").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[kind, length, scheduler]| {
        Row::of("compared")
            .with("kind", KINDS[kind].0)
            .with("functions", LENGTHS[length])
            .with("scheduler", SCHEDULERS[scheduler])
    });
    Ok(())
}

impl Costs {
    /// A switch is as long as the processes have seen; the rest of a packet's time is that in the
    /// functions.
    fn of(known: &LiveWindow) -> Self {
        let packets = (known.packets as f64).max(1.0);
        let switch_ns = known.switch_us * 1e3;
        let switched_ns = known.switches as f64 / packets * switch_ns;
        Self {
            packet_ns: (1e3 / known.own_mpps().max(1e-9) - switched_ns).max(1.0),
            switch_ns,
        }
    }

    /// A simulated core with functions of these costs, offered more than it can carry.
    fn testbed(self, cycles: &[u32], scheduler: usize) -> Testbed {
        // Each function has its cycles, and an equal part of the rest.
        let total = f64::from(cycles.iter().sum::<u32>()).max(1.0);
        let work_ns = (self.packet_ns / total).min(NS_PER_CYCLE) * total;
        let rest_ns = (self.packet_ns - work_ns) / cycles.len() as f64;
        let functions = cycles.iter().map(|cycles| {
            let own_ns = work_ns * f64::from(*cycles) / total + rest_ns;
            let cost_ps = (own_ns * 1e3) as u64;
            PlacedFunction {
                core: 0,
                cost_ps,
                assumed_cost_ps: cost_ps,
            }
        });
        let chain = SimulatedChain {
            functions: functions.collect(),
            rate_pps: 2e9 / self.packet_ns,
        };
        let (name, switch_ns) = (SCHEDULERS[scheduler], self.switch_ns as u64);
        let scheduler = CoreScheduler::hand_over(name, policy(scheduler), switch_ns);
        Testbed::of(scheduler, vec![chain])
    }
}

/// Time of a cycle of the machines on which this ran, ns. It only divides a known sum between
/// functions.
const NS_PER_CYCLE: f64 = 0.35;

fn policy(scheduler: usize) -> Parameters {
    match scheduler {
        0 => Parameters::Cooperative { reads: 16 },
        1 => Parameters::Unis(UnisParameters::for_batch(BATCH.into())),
        2 => Parameters::Deadline(DeadlineParameters {
            batch: BATCH.into(),
            ..DeadlineParameters::default()
        }),
        _ => Parameters::RoundRobin { slice_ns: 100_000 },
    }
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let claim = |[kind, length, scheduler]: [usize; 3]| {
        let id = format!(
            "throughput, difference of live and simulated, {}, {} {}",
            SCHEDULERS[scheduler], LENGTHS[length], KINDS[kind].0
        );
        let at = subjects.at(samples, [kind, length, scheduler]);
        Claim::at_most(id, at.median("difference"), BOUND)
    };
    subjects.all().map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effort;

    #[test]
    fn costs_follow_from_the_known_turns() {
        // 100 ns a packet, and a switch of 3 us each 1536 packets; other programs took as long.
        let packets = 1e6;
        let cpu_s = (packets * 100.0 + packets / 1536.0 * 3000.0) / 1e9;
        let costs = Costs::of(&LiveWindow {
            seconds: 2.0 * cpu_s,
            cpu_s,
            packets: packets as u64,
            switches: (packets / 1536.0) as u64,
            switch_us: 3.0,
            ..LiveWindow::default()
        });
        assert!((costs.packet_ns - 100.0).abs() < 0.1, "{costs:?}");
        assert!((costs.switch_ns - 3000.0).abs() < 1e-6, "{costs:?}");
    }

    #[test]
    fn the_simulation_repeats_the_turns_from_which_its_costs_come() {
        let costs = Costs {
            packet_ns: 300.0,
            switch_ns: 3000.0,
        };
        let cycles = chain_of(KINDS[1].1, 5);
        let bed = costs.testbed(&cycles, 0);
        let sum: u64 = bed.chains[0].functions.iter().map(|one| one.cost_ps).sum();
        assert!(sum.abs_diff(300_000) < 10, "{sum} ps");
        let seen = bed.observe(1, Span::of(Effort::Quick)).throughput_mpps(0);
        // Five switches each 16 batches of 64 packets.
        let expected = 1e3 / (300.0 + 5.0 * 3000.0 / 1024.0);
        assert!((seen / expected - 1.0).abs() < 0.1, "{seen}, {expected}");
    }
}
