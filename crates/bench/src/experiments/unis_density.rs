//! `unis-density`: how many functions a simulated core carries at a target throughput (Anthony et
//! al. 2020, Fig. 6).

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::UnisParameters;

use crate::figures::Column::Interval;
use crate::figures::{Figure, Subjects};
use crate::published::unis;
use crate::sampling::{Sampling, Turns};
use crate::simulated::{
    self, CoreScheduler, FAIR_SLICE_NS, KINDS, Kind, LINE_RATE_PPS, Seeds, SimulatedChain, Span,
    Testbed, YIELD_NS,
};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Light, medium, heavy.
const KIND_COUNT: usize = 3;
const TARGETS_MPPS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
/// Cost of a switch with [`Fault::SlowSwitch`], ns.
const SLOW_SWITCH_NS: u64 = 100_000;

const COOPERATIVE: usize = 0;
const UNIS: usize = 1;
const UNIS_BY_YIELDS: usize = 2;
const DEADLINE: usize = 3;
/// Least density of `deadline` over that of cooperative functions.
const DEADLINE_BOUND: f64 = 0.9;

fn schedulers() -> [CoreScheduler; 6] {
    let published = UnisParameters::default();
    [
        CoreScheduler::cooperative("cooperative k=8", 8),
        CoreScheduler::unis("unis", published),
        CoreScheduler::unis("unis, switch as cooperative", published).with_switch(YIELD_NS),
        CoreScheduler::deadline(),
        CoreScheduler::load_based(),
        CoreScheduler::fair("os 100 us", FAIR_SLICE_NS),
    ]
}

/// Functions that a core carries.
struct Density {
    /// It is offered a full line and delivers the target.
    of_full_line: usize,
    /// It is offered the target and loses no packet.
    without_loss: usize,
}

const FIGURES: &[Figure<Density>] = &[
    Figure::new("functions", Interval(""), |density| {
        density.of_full_line as f64
    }),
    Figure::new("functions_without_loss", Interval(""), |density| {
        density.without_loss as f64
    }),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-density",
    about: "simulated: functions that one core carries at 1 to 8 Mpps: UNiS, its rivals, deadlines",
    differs: "cores, switches and packets are simulated; the paper's targets are not stated, these are 1 to 8 Mpps",
    run,
    plots: include_str!("../../plots/unis-density.yaml"),
};

fn subjects() -> Subjects<Density, 3> {
    Subjects::new(
        FIGURES,
        [KIND_COUNT, TARGETS_MPPS.len(), schedulers().len()],
    )
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    simulated::describe(findings);
    // In a whole run, a ring of 2048 packets overflows at an overload of 2 %.
    let span = Span::of(session.effort).times(session.effort.choose(1, 2, 1));
    let (subjects, schedulers) = (subjects(), schedulers());
    let mut seeds = Seeds::default();
    let is_slow = session.has_fault(Fault::SlowSwitch);
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |at| {
            let [kind, target, scheduler] = at;
            let mut scheduler = schedulers[scheduler];
            if is_slow && scheduler.is_unis() {
                scheduler = scheduler.with_switch(SLOW_SWITCH_NS);
            }
            let seed = seeds.next(at);
            Ok(search(
                KINDS[kind],
                TARGETS_MPPS[target],
                scheduler,
                seed,
                span,
            ))
        })
    };
    let sampling = Sampling::of("functions of a simulated core").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[kind, target, scheduler]| {
        Row::of("simulated density")
            .with("kind", KINDS[kind].name)
            .with("target_mpps", TARGETS_MPPS[target])
            .with("scheduler", schedulers[scheduler].name)
    });
    Ok(())
}

/// Finds the longest chains.
fn search(
    kind: Kind,
    target_mpps: f64,
    scheduler: CoreScheduler,
    seed: u64,
    span: Span,
) -> Density {
    let observe = |functions, rate_pps| {
        let chain = SimulatedChain::on_one_core(kind, functions, rate_pps);
        Testbed::of(scheduler, vec![chain]).observe(seed, span)
    };
    // Without any switch.
    let most = 1e6 / (target_mpps * kind.mean_cost_ps() as f64);
    let most = most as usize;
    Density {
        of_full_line: longest(most, |functions| {
            observe(functions, LINE_RATE_PPS).throughput_mpps(0) >= target_mpps
        }),
        without_loss: longest(most, |functions| {
            observe(functions, target_mpps * 1e6).is_lossless(0)
        }),
    }
}

/// The largest number of functions, of `most`, up to which a core carries them, by halving.
fn longest(mut most: usize, carries: impl Fn(usize) -> bool) -> usize {
    let mut least = 0;
    while least < most {
        let middle = (least + most).div_ceil(2);
        if carries(middle) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

/// For each comparison, a claim for each kind and target.
fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let compare = |what: &str, scheduler: usize, figure: &str| {
        let mut compared = Vec::new();
        for (kind, of) in KINDS[..KIND_COUNT].iter().enumerate() {
            for (target, mpps) in TARGETS_MPPS.iter().enumerate() {
                let reference = subjects.at(samples, [kind, target, COOPERATIVE]);
                let own = subjects.at(samples, [kind, target, scheduler]);
                let id = format!("simulated {what}, {}, {mpps} Mpps", of.name);
                compared.push((id, own.ratio(&reference, figure)));
            }
        }
        compared
    };
    let mut claims = Vec::new();
    for (scheduler, what) in [
        (UNIS, "density, unis by flips / cooperative k=8 by yields"),
        (
            UNIS_BY_YIELDS,
            "density, same mechanism, unis / cooperative k=8",
        ),
    ] {
        let compared = compare(what, scheduler, "functions").into_iter();
        claims.extend(compared.map(|(id, ratio)| {
            unis::DENSITY.add_to(Claim::at_least(id, ratio, unis::DENSITY.value))
        }));
    }
    let what = "density, deadline / cooperative k=8";
    let compared = compare(what, DEADLINE, "functions").into_iter();
    claims.extend(compared.map(|(id, ratio)| Claim::at_least(id, ratio, DEADLINE_BOUND)));
    let what = "density without loss, unis / cooperative k=8";
    let compared = compare(what, UNIS, "functions_without_loss").into_iter();
    claims.extend(compared.map(|(id, ratio)| Claim::shown(id, ratio)));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effort;

    #[test]
    fn halving_finds_the_longest_chain() {
        for most in [0, 1, 17, 62] {
            assert_eq!(longest(62, |functions| functions <= most), most);
        }
    }

    #[test]
    fn a_core_carries_what_its_costs_allow() {
        let [cooperative, unis, ..] = schedulers();
        let span = Span::of(Effort::Quick);
        let density = |scheduler| search(KINDS[1], 4.0, scheduler, 1, span);
        // 250 ns for a packet: five functions of 46 ns and their switches.
        assert_eq!(density(cooperative).of_full_line, 5);
        assert_eq!(density(cooperative).without_loss, 5);
        let slow = density(unis.with_switch(SLOW_SWITCH_NS)).of_full_line;
        assert!(slow < 4, "{slow}");
    }
}
