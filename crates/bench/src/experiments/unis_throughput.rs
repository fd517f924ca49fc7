//! `unis-throughput`: pipelines of poll-mode functions that share one core: UNiS, its rivals,
//! deadlines, and the operating system (Anthony et al. 2020, Figs. 4 and 7).

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::Parameters;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::{self, LiveSetup, LiveWindow, chain_of};
use crate::published::{Published, unis};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Functions of a chain.
const LENGTHS: [usize; 3] = [3, 5, 8];
/// Kinds, and the cycles of the functions in turn (Sections 5.1.2 and 5.3).
const KINDS: [(&str, &[u32], Published); 4] = [
    ("light", &[50], unis::LIGHT),
    ("medium", &[150], unis::MEDIUM),
    ("heavy", &[250], unis::MEDIUM),
    ("mixed", &[150, 250], unis::MIXED),
];
const SCHEDULERS: [&str; 7] = [
    "cooperative k=8",
    "cooperative k=16",
    "cooperative k=24",
    "unis",
    "deadline",
    "round-robin 100 us",
    "os",
];
const COOPERATIVE: usize = 0;
const UNIS: usize = 3;
const DEADLINE: usize = 4;
const OS: usize = 6;
/// Least throughput of `deadline` over that of cooperative workers.
const DEADLINE_BOUND: f64 = 0.95;
/// Most of the core that a policy takes for its decisions.
const DECISION_BOUND: f64 = 0.05;
/// Share of a ring that fills a slice of UNiS with [`Fault::ShortSlices`].
const SHORT_SLICE: f64 = 0.001;

const FIGURES: &[Figure<LiveWindow>] = &[
    Figure::new("throughput", Interval("_mpps"), LiveWindow::mpps),
    Figure::new("switches_per_s", Median, LiveWindow::switches_per_s),
    Figure::new("switch_us", Median, |seen| seen.switch_us),
    Figure::new("decisions_of_core", Median, |seen| {
        seen.decide_s / seen.seconds
    }),
    Figure::new("lost_inside_of_delivered", Median, LiveWindow::lost_inside),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-throughput",
    about: "pipelines of 3 to 8 poll-mode functions on one core: UNiS, cooperative turns, deadlines, the operating system",
    differs: "all policies hand the core over by a futex, between batches; the published UNiS changes priorities from another core; packets come from memory and go nowhere",
    run,
    plots: include_str!("../../plots/unis-throughput.yaml"),
};

fn subjects() -> Subjects<LiveWindow, 3> {
    Subjects::new(FIGURES, [KINDS.len(), LENGTHS.len(), SCHEDULERS.len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let window = live_core::window(session, [30, 100, 200], findings);
    let is_short = session.has_fault(Fault::ShortSlices);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[kind, length, scheduler]| {
            let (_, cycles, _) = KINDS[kind];
            let cycles = chain_of(cycles, LENGTHS[length]);
            let setup = LiveSetup::shared(cycles, policy(scheduler, is_short))?;
            setup.observe(session.program, window)
        })
    };
    let sampling = Sampling::of("pipelines on one core").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[kind, length, scheduler]| {
        Row::of("pipelines")
            .with("kind", KINDS[kind].0)
            .with("functions", LENGTHS[length])
            .with("scheduler", SCHEDULERS[scheduler])
    });
    Ok(())
}

/// The policy of a scheduler; `None` for the operating system.
fn policy(scheduler: usize, is_short: bool) -> Option<Parameters> {
    let cooperative = |reads| Some(Parameters::Cooperative { reads });
    match scheduler {
        COOPERATIVE => cooperative(8),
        1 => cooperative(16),
        2 => cooperative(24),
        UNIS => {
            let mut unis = live_core::unis();
            if is_short {
                unis.slice_share = SHORT_SLICE;
            }
            Some(Parameters::Unis(unis))
        }
        DEADLINE => Some(live_core::deadline()),
        OS => None,
        _ => Some(Parameters::RoundRobin { slice_ns: 100_000 }),
    }
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (kind, (name, _, published)) in KINDS.into_iter().enumerate() {
        for (length, functions) in LENGTHS.into_iter().enumerate() {
            let at = |scheduler| subjects.at(samples, [kind, length, scheduler]);
            let over = |scheduler| at(scheduler).ratio(&at(COOPERATIVE), "throughput");
            let id =
                |what: &str| format!("throughput, {what} / cooperative k=8, {functions} {name}");
            let unis = Claim::at_least(id("unis"), over(UNIS), published.value);
            claims.push(published.add_to(unis));
            claims.push(Claim::at_least(
                id("deadline"),
                over(DEADLINE),
                DEADLINE_BOUND,
            ));
            claims.push(Claim::shown(id("cooperative k=24"), over(2)));
            claims.push(Claim::shown(id("os"), over(OS)));
            for scheduler in [UNIS, DEADLINE] {
                let id = format!(
                    "share of the core for decisions, {}, {functions} {name}",
                    SCHEDULERS[scheduler]
                );
                let share = at(scheduler).median("decisions_of_core");
                claims.push(Claim::at_most(id, share, DECISION_BOUND));
            }
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheduler_but_the_last_has_a_policy() {
        for scheduler in 0..SCHEDULERS.len() {
            assert_eq!(policy(scheduler, false).is_none(), scheduler == OS);
        }
        assert_ne!(policy(UNIS, true), policy(UNIS, false));
    }
}
