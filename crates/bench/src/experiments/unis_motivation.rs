//! `unis-motivation`: two poll-mode functions on one core that the operating system shares, against
//! a core for each (Anthony et al. 2020, Fig. 1).

use myelin_linux::priorities;
use myelin_linux::sched::Policy as Class;
use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::Parameters;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::{self, LiveSetup, LiveWindow, chain_of};
use crate::published::unis;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

const FUNCTIONS: usize = 2;
/// Kinds, and the cycles of a packet.
const KINDS: [(&str, &[u32]); 2] = [("light", &[50]), ("heavy", &[250])];
const ARRANGEMENTS: [&str; 5] = [
    "own cores",
    "fair class",
    "real-time round-robin class",
    "unis",
    "deadline",
];
const OWN_CORES: usize = 0;
const FAIR: usize = 1;
const ROUND_ROBIN: usize = 2;
const UNIS: usize = 3;
const DEADLINE: usize = 4;
/// Most throughput on a core that the operating system shares, over that with own cores.
const SHARED_BOUND: f64 = 0.1;
/// Least throughput on a core that the functions hand over. Half of it is their work.
const TURNS_BOUND: f64 = 0.4;

const FIGURES: &[Figure<LiveWindow>] = &[
    Figure::new("throughput", Interval("_mpps"), LiveWindow::mpps),
    Figure::new("lost_inside_of_delivered", Median, LiveWindow::lost_inside),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-motivation",
    about: "two poll-mode functions on one core that the operating system shares, against a core for each",
    differs: "two functions in place of three, because the machine has two cores; packets come from memory and go nowhere",
    run,
    plots: include_str!("../../plots/unis-motivation.yaml"),
};

fn subjects() -> Subjects<LiveWindow, 2> {
    Subjects::new(FIGURES, [KINDS.len(), ARRANGEMENTS.len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("functions", FUNCTIONS);
    let cores = myelin_linux::affinity::get(0)?.len();
    if cores < FUNCTIONS {
        let reason = "a core for each of two functions needs two cores";
        let row = Findings::skipped_row("arrangement", ARRANGEMENTS[OWN_CORES], &reason);
        findings.add_row(row);
        return Ok(());
    }
    // The kernel's slices take milliseconds.
    let window = live_core::window(session, [60, 300, 600], findings);
    let is_spread = session.has_fault(Fault::OwnCores);
    let has_turns = !session.has_fault(Fault::NoTurns);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[kind, arrangement]| {
            setup(kind, arrangement, is_spread, has_turns)?.observe(session.program, window)
        })
    };
    let sampling = Sampling::of("functions on one core and on two").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[kind, arrangement]| {
        Row::of("pipelines")
            .with("kind", KINDS[kind].0)
            .with("arrangement", ARRANGEMENTS[arrangement])
    });
    Ok(())
}

/// The pipeline of a subject. `is_spread`: also functions that the operating system should let
/// share a core have a core each. Without `has_turns`, it shares all cores.
fn setup(
    kind: usize,
    arrangement: usize,
    is_spread: bool,
    has_turns: bool,
) -> Result<LiveSetup, Error> {
    let policy = match arrangement {
        UNIS if has_turns => Some(Parameters::Unis(live_core::unis())),
        DEADLINE if has_turns => Some(live_core::deadline()),
        _ => None,
    };
    let shared = LiveSetup::shared(chain_of(KINDS[kind].1, FUNCTIONS), policy)?;
    Ok(match arrangement {
        OWN_CORES => shared.on_own_cores()?,
        FAIR | ROUND_ROBIN if is_spread => shared.on_own_cores()?,
        ROUND_ROBIN => shared.in_class(Class::RoundRobin(priorities::WAITING_FUNCTION)),
        _ => shared,
    })
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (kind, (name, _)) in KINDS.into_iter().enumerate() {
        let at = |arrangement| subjects.at(samples, [kind, arrangement]);
        let over = |arrangement| at(arrangement).ratio(&at(OWN_CORES), "throughput");
        let id = |arrangement: usize| {
            let arrangement = ARRANGEMENTS[arrangement];
            format!("throughput, {arrangement} / own cores, {FUNCTIONS} {name}")
        };
        for arrangement in [FAIR, ROUND_ROBIN] {
            let claim = Claim::at_most(id(arrangement), over(arrangement), SHARED_BOUND);
            claims.push(unis::OPERATING_SYSTEM.add_to(claim));
        }
        for arrangement in [UNIS, DEADLINE] {
            claims.push(Claim::at_least(
                id(arrangement),
                over(arrangement),
                TURNS_BOUND,
            ));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims of made-up throughputs, Mpps, by arrangement.
    fn judge(mpps: [u64; ARRANGEMENTS.len()]) -> Vec<Option<bool>> {
        let window = |packets: u64| LiveWindow {
            seconds: 1e-3,
            packets: packets * 1000,
            taken: packets * 1000,
            ..LiveWindow::default()
        };
        let mut all = Deployments::default();
        for _ in 0..8 {
            let both = mpps.into_iter().chain(mpps).map(window);
            all.push(subjects().observed(both));
        }
        claims(&all).into_iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn claims_compare_with_own_cores() {
        assert_eq!(judge([20, 1, 1, 9, 9]), [Some(true); 8]);
        let shared_well = judge([20, 15, 15, 9, 9]);
        assert_eq!(shared_well[..2], [Some(false); 2]);
        let bad_turns = judge([20, 1, 1, 5, 5]);
        assert_eq!(bad_turns[2..4], [Some(false); 2]);
    }
}
