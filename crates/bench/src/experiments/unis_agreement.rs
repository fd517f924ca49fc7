//! `unis-agreement`: whether a simulated core and a live one have the same throughput.

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::Parameters;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::{self, LiveSetup, LiveWindow, chain_of};
use crate::sampling::{Sampling, Turns};
use crate::simulated::{CoreScheduler, PlacedFunction, SimulatedChain, Span, Testbed};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

const LENGTHS: [usize; 3] = [3, 5, 8];
/// Kinds, and the cycles of the functions in turn.
const KINDS: [(&str, &[u32]); 2] = [("medium", &[150]), ("mixed", &[150, 250])];
const SCHEDULERS: [&str; 4] = ["cooperative k=16", "unis", "deadline", "round-robin 100 us"];
/// Turns of the pipelines whose throughputs give the costs, batches: many switches, and few.
const KNOWN_TURNS: [u32; 2] = [4, 24];
/// What a simulated switch costs more with [`Fault::DearSwitch`], ns.
const DEAR_NS: f64 = 30_000.0;
/// Largest difference of both throughputs, of the simulated one.
const BOUND: f64 = 0.1;

/// Both throughputs of a subject, and the costs that the simulation assumes.
#[derive(Debug, Clone)]
struct Compared {
    live_mpps: f64,
    simulated_mpps: f64,
    costs: Costs,
}

/// What packets and switches of the pipelines of known turns cost, ns.
#[derive(Debug, Clone)]
struct Costs {
    /// A packet in each function. The first one also makes the packet, and takes it at the end.
    functions_ns: Vec<f64>,
    switch_ns: f64,
}

const FIGURES: &[Figure<Compared>] = &[
    Figure::new("live", Interval("_mpps"), |seen| seen.live_mpps),
    Figure::new("simulated", Interval("_mpps"), |seen| seen.simulated_mpps),
    Figure::new("difference", Median, |seen| {
        (seen.live_mpps / seen.simulated_mpps - 1.0).abs()
    }),
    Figure::new("packet_ns", Median, |seen| seen.costs.packet_ns()),
    Figure::new("first_function_ns", Median, |seen| {
        seen.costs.functions_ns.first().copied().unwrap_or(f64::NAN)
    }),
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
    let window = live_core::window(session, [30, 100, 200], findings);
    let window_ns = window.as_nanos() as u64;
    let span = Span {
        before_ns: window_ns / 2,
        window_ns,
    };
    let is_dear = session.has_fault(Fault::DearSwitch);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[kind, length, scheduler]| {
            let cycles = chain_of(KINDS[kind].1, LENGTHS[length]);
            let observe = |policy| {
                let setup = LiveSetup::shared(cycles.clone(), Some(policy))?;
                setup.observe(session.program, window)
            };
            // The clock of a virtual machine drifts, so each subject has its own costs.
            let known = |turns: usize| {
                let reads = KNOWN_TURNS[turns];
                observe(Parameters::Cooperative { reads })
            };
            let known = [known(0)?, known(1)?];
            let live = observe(policy(scheduler))?;
            let mut costs = Costs::of(&known);
            if is_dear {
                costs.switch_ns += DEAR_NS;
            }
            let bed = costs.testbed(scheduler);
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
    /// The pipelines differ by their switches alone, so a switch costs the difference of their
    /// times. The rest of a process's time is that of packets in its function.
    fn of([many, few]: &[LiveWindow; 2]) -> Self {
        let of_packet = |known: &LiveWindow, sum: f64| sum / (known.packets as f64).max(1.0);
        let switches = |known: &LiveWindow| of_packet(known, known.switches as f64);
        let cpu_ns = |known: &LiveWindow| of_packet(known, known.cpu_s.iter().sum::<f64>() * 1e9);
        let more_switches = (switches(many) - switches(few)).max(1e-9);
        let switch_ns = ((cpu_ns(many) - cpu_ns(few)) / more_switches).max(0.0);
        // In turns of a fixed order, each process has as many switches as the others.
        let switched_ns = switches(few) * switch_ns / few.cpu_s.len() as f64;
        let functions = few.cpu_s.iter();
        let functions_ns =
            functions.map(|cpu_s| (of_packet(few, cpu_s * 1e9) - switched_ns).max(1.0));
        Self {
            functions_ns: functions_ns.collect(),
            switch_ns,
        }
    }

    /// The cost of a packet in all functions.
    fn packet_ns(&self) -> f64 {
        self.functions_ns.iter().sum()
    }

    /// A simulated core with functions of these costs, offered more than it can carry. The chain
    /// has no budget, as the live one.
    fn testbed(&self, scheduler: usize) -> Testbed {
        let functions = self.functions_ns.iter().map(|ns| {
            let cost_ps = (ns * 1e3) as u64;
            PlacedFunction {
                core: 0,
                cost_ps,
                assumed_cost_ps: cost_ps,
            }
        });
        let chain = SimulatedChain {
            functions: functions.collect(),
            rate_pps: 2e9 / self.packet_ns(),
        };
        let (name, switch_ns) = (SCHEDULERS[scheduler], self.switch_ns as u64);
        let scheduler = CoreScheduler::hand_over(name, policy(scheduler), switch_ns);
        Testbed {
            budget_ns: None,
            ..Testbed::of(scheduler, vec![chain])
        }
    }
}

fn policy(scheduler: usize) -> Parameters {
    match scheduler {
        0 => Parameters::Cooperative { reads: 16 },
        1 => Parameters::Unis(live_core::unis()),
        2 => live_core::deadline(),
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
    #[test]
    fn costs_follow_from_the_known_turns() {
        // 100 and 50 ns a packet, and two switches of 3 us each so many packets; other programs
        // took as long.
        let packets = 1e6;
        let window = |turn: f64| {
            let switched_s = packets / turn * 3000.0 / 1e9;
            let cpu_s = [100.0, 50.0].map(|ns| packets * ns / 1e9 + switched_s);
            LiveWindow {
                seconds: 2.0 * cpu_s.iter().sum::<f64>(),
                cpu_s: cpu_s.to_vec(),
                packets: packets as u64,
                switches: (2.0 * packets / turn) as u64,
                ..LiveWindow::default()
            }
        };
        let costs = Costs::of(&[window(256.0), window(1536.0)]);
        let functions = costs.functions_ns.iter().zip([100.0, 50.0]);
        let wrong = functions.map(|(ns, own_ns)| (ns - own_ns).abs());
        assert!(wrong.sum::<f64>() < 0.1, "{costs:?}");
        assert!((costs.switch_ns - 3000.0).abs() < 1.0, "{costs:?}");
        let idle = Costs::of(&[LiveWindow::default(), LiveWindow::default()]);
        assert!(idle.switch_ns.abs() < 1e-9 && idle.functions_ns.is_empty());
    }

    /// The simulated throughput of functions of these costs, millions of packets a second.
    fn simulated_mpps(functions_ns: &[f64], scheduler: usize) -> f64 {
        let costs = Costs {
            functions_ns: functions_ns.to_vec(),
            switch_ns: 3000.0,
        };
        let span = Span {
            before_ns: 5_000_000,
            window_ns: 30_000_000,
        };
        costs.testbed(scheduler).observe(1, span).throughput_mpps(0)
    }

    #[test]
    fn the_simulation_repeats_the_turns_from_which_its_costs_come() {
        let seen = simulated_mpps(&[50.0, 70.0, 50.0, 70.0, 60.0], 0);
        // Five switches each 16 batches of 64 packets.
        let expected = 1e3 / (300.0 + 5.0 * 3000.0 / 1024.0);
        assert!((seen / expected - 1.0).abs() < 0.1, "{seen}, {expected}");
    }

    #[test]
    fn the_dearest_function_bounds_fixed_slices() {
        // In three slices of 100 us, less 3 us for a switch, the first one passes 970 packets.
        let seen = simulated_mpps(&[100.0, 50.0, 50.0], 3);
        let expected = 970.0 / 300.0;
        assert!((seen / expected - 1.0).abs() < 0.1, "{seen}, {expected}");
    }
}
