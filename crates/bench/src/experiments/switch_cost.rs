//! `switch-cost`: what it costs to give a core from one process that polls to another one.

mod deaths;

use std::time::Duration;

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::Parameters;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::LiveSetup;
use crate::reference::Runner;
use crate::sampling::{Sampling, Turns};
use crate::variant::{polling_core, probing_core};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// The mechanisms: what changes the core's process, from where, and its name for
/// `reference/core_switch.c`. That of workers has none.
const MECHANISMS: [(&str, &str, Option<&str>); 7] = [
    ("yield", "the processes", Some("yield")),
    ("futex", "the processes", Some("futex")),
    ("workers, futex", "the processes", None),
    ("flip", "another core", Some("flip")),
    ("preempt", "the shared core", Some("preempt")),
    ("weights", "another core", Some("weights")),
    ("stop", "another core", Some("stop")),
];
const YIELD: usize = 0;
const FUTEX: usize = 1;
const WORKERS: usize = 2;
const FLIP: usize = 3;
const PREEMPT: usize = 4;
const WEIGHTS: usize = 5;
const STOP: usize = 6;
/// Cycles of a packet in the functions of the workers.
const CYCLES: [u32; 2] = [50; 2];
/// Largest cost of a hand-over by a futex over that of a switch from outside.
const OUTSIDE_BOUND: f64 = 0.5;
/// Largest cost of a hand-over of workers, with the policy's decision, over that of a bare futex.
const WORKERS_BOUND: f64 = 4.0;
/// Largest time until the next process runs, by a futex over by weights.
const WEIGHTS_BOUND: f64 = 0.1;
/// Time that a hand-over takes longer with [`Fault::SlowHandOver`], ns.
const SLOW_NS: u64 = 1_000_000;

/// A switch, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Switch {
    /// Time of the core in which no process ran.
    lost_ns: f64,
    /// Time from the decision until the next process runs.
    effect_ns: f64,
}

const FIGURES: &[Figure<Switch>] = &[
    Figure::new("lost", Interval("_ns"), |switch| switch.lost_ns),
    Figure::new("effect_ns", Median, |switch| switch.effect_ns),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "switch-cost",
    about: "what it costs to give a core from one process that polls to another: by the processes themselves, from another core, and by a process on the shared core; and the time until the kernel has a core again whose preemptor was killed",
    differs: "",
    run,
    plots: include_str!("../../plots/switch-cost.yaml"),
};

fn subjects() -> Subjects<Switch, 1> {
    Subjects::new(FIGURES, [MECHANISMS.len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let switches = session.effort.choose(20, 100, 400);
    // The kernel reacts to weights at its next tick.
    let slow_switches = session.effort.choose(2, 5, 20);
    let window = Duration::from_millis(session.effort.choose(20, 50, 100));
    findings.set("switches", switches);
    let is_slow = session.has_fault(Fault::SlowHandOver);
    let is_spread = session.has_fault(Fault::SpreadWorkers);
    let subjects = subjects();
    let cores = [polling_core()?, probing_core()?];
    let deploy = |turns: &mut Turns<'_>| {
        let mut bare = Runner::core_switch(cores)?;
        subjects.measure(turns, |[mechanism]| {
            let Some(name) = MECHANISMS[mechanism].2 else {
                return observe_workers(session, window, is_spread);
            };
            let extra_ns = if is_slow && mechanism == FUTEX {
                SLOW_NS
            } else {
                0
            };
            let count = if mechanism == WEIGHTS {
                slow_switches
            } else {
                switches
            };
            let medians = bare.run(format!("{name} {count} {extra_ns}"))?;
            let at = |index| medians.get(index).copied().unwrap_or(f64::NAN);
            Ok(Switch {
                lost_ns: at(0),
                effect_ns: at(1),
            })
        })
    };
    let sampling = Sampling::of("mechanisms").share(0.5);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[mechanism]| {
        let (name, from, _) = MECHANISMS[mechanism];
        Row::of("switches")
            .with("mechanism", name)
            .with("from", from)
    });
    deaths::measure(session, findings)
}

/// The workers of a pipeline, as they measure their own hand-overs: from the decision until the
/// next worker has looked at the rings. `is_spread`: each has a core.
fn observe_workers(
    session: Session<'_>,
    window: Duration,
    is_spread: bool,
) -> Result<Switch, Error> {
    let policy = Parameters::Cooperative { reads: 8 };
    let mut setup = LiveSetup::shared(CYCLES.to_vec(), Some(policy))?;
    if is_spread {
        setup = setup.on_own_cores()?;
    }
    let ns = setup.observe(session.program, window)?.switch_us * 1e3;
    Ok(Switch {
        lost_ns: ns,
        effect_ns: ns,
    })
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let ratio = |one, other, figure| {
        let [one, other] = [one, other].map(|mechanism| subjects.at(samples, [mechanism]));
        one.ratio(&other, figure)
    };
    let id = |figure, one: usize, other: usize| {
        let [one, other] = [one, other].map(|mechanism| MECHANISMS[mechanism].0);
        format!("{figure}, {one} / {other}")
    };
    let mut claims = Vec::new();
    for outside in [FLIP, PREEMPT, STOP] {
        let lost = ratio(FUTEX, outside, "lost");
        claims.push(Claim::at_most(
            id("lost", FUTEX, outside),
            lost,
            OUTSIDE_BOUND,
        ));
    }
    let effect = ratio(FUTEX, WEIGHTS, "effect_ns");
    let until = "until the next one runs";
    claims.push(Claim::at_most(
        id(until, FUTEX, WEIGHTS),
        effect,
        WEIGHTS_BOUND,
    ));
    let workers = ratio(WORKERS, FUTEX, "lost");
    claims.push(Claim::at_most(
        id("hand-over", WORKERS, FUTEX),
        workers,
        WORKERS_BOUND,
    ));
    let bare = ratio(FUTEX, YIELD, "lost");
    claims.push(Claim::shown(id("bare hand-over", FUTEX, YIELD), bare));
    claims
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;
    use crate::judged::Judged;

    /// The verdicts if a hand-over by a futex loses so much, ns.
    fn verdicts(futex_ns: f64) -> Judged {
        let lost_ns = [600.0, futex_ns, 2500.0, 3300.0, 5300.0, 200.0, 4400.0];
        let mut samples = Deployments::default();
        for _ in 0..8 {
            let all = lost_ns.iter().enumerate();
            samples.push(subjects().observed(all.map(|(mechanism, lost_ns)| Switch {
                lost_ns: *lost_ns,
                effect_ns: if mechanism == WEIGHTS { 4e6 } else { *lost_ns },
            })));
        }
        Judged::of(claims(&samples))
    }

    #[test]
    fn a_slow_hand_over_turns_its_claims() {
        assert!(verdicts(1000.0).with(Verdict::False).is_empty());
        assert_eq!(
            verdicts(1000.0 + SLOW_NS as f64).with(Verdict::False),
            [
                "lost, futex / flip",
                "lost, futex / preempt",
                "lost, futex / stop",
                "until the next one runs, futex / weights"
            ]
        );
    }

    #[test]
    fn every_mechanism_has_its_place() {
        let names = [YIELD, FUTEX, WORKERS, FLIP, PREEMPT, WEIGHTS, STOP];
        let names = names.map(|mechanism| MECHANISMS[mechanism].0);
        assert_eq!(
            names,
            [
                "yield",
                "futex",
                "workers, futex",
                "flip",
                "preempt",
                "weights",
                "stop"
            ]
        );
    }
}
