//! `unis-batches`: throughput and delay of functions that share a simulated core, over the length
//! of turns, chains, batches and rings (Anthony et al. 2020, Figs. 4, 5, 7, 9 to 11 and 13).

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::UnisParameters;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subject, Subjects};
use crate::published::{Published, unis};
use crate::sampling::{Sampling, Turns};
use crate::simulated::{
    self, CoreScheduler, FAIR_SLICE_NS, HEAVY, KINDS, LIGHT, LINE_RATE_PPS, MEDIUM, MIXED,
    Observation, RING, Seeds, SimulatedChain, Span, Testbed, YIELD_NS,
};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Functions of a chain, unless stated.
const FUNCTIONS: usize = 5;
/// Offered rate over the throughput, while delays are measured.
const LOAD: f64 = 0.8;
/// Slices with [`Fault::FixedTurns`], ns.
const FAULTY_SLICE_NS: u64 = 10_000_000;
/// Least throughput of `deadline` over `cooperative`, k = 8.
const DEADLINE_BOUND: f64 = 0.95;
/// Largest p99 of `deadline` over that of `unis`.
const DEADLINE_DELAY_BOUND: f64 = 0.7;
/// Least throughput of `deadline` over that of the best rival.
const RIVAL_BOUND: f64 = 0.97;
/// Chain lengths with claims.
const CLAIMED_LENGTHS: std::ops::RangeInclusive<usize> = 3..=8;
/// Switches with claims, us: a yield, a hand-over, a flip, a preemptor on the shared core.
const CLAIMED_SWITCHES_US: [f64; 4] = [1.0, 3.0, 9.0, 24.0];

/// Kinds with a published least throughput of UNiS over `cooperative`, k = 8.
const PUBLISHED: [(usize, Published); 3] = [
    (LIGHT, unis::LIGHT),
    (MEDIUM, unis::MEDIUM),
    (MIXED, unis::MIXED),
];

const ALL_KINDS: [usize; 4] = [LIGHT, MEDIUM, HEAVY, MIXED];

/// What a subject is made of.
struct Case {
    scheduler: CoreScheduler,
    functions: usize,
    ring: u32,
}

/// Subjects with all values of one parameter.
struct Sweep {
    /// Its table; also the parameter's field.
    table: &'static str,
    field: &'static str,
    kinds: &'static [usize],
    values: &'static [f64],
    schedulers: fn() -> Vec<CoreScheduler>,
    set: fn(&mut Case, f64),
    claims: Option<fn(&Sampled<'_>) -> Vec<Claim>>,
}

const SWEEPS: [Sweep; 7] = [
    Sweep {
        table: "simulated schedulers",
        field: "functions",
        kinds: &ALL_KINDS,
        values: &[FUNCTIONS as f64],
        schedulers: all_schedulers,
        set: |_, _| (),
        claims: Some(claims_of_schedulers),
    },
    Sweep {
        table: "simulated chain lengths",
        field: "functions",
        kinds: &ALL_KINDS,
        values: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        schedulers: main_schedulers,
        set: |case, functions| case.functions = functions as usize,
        claims: Some(claims_of_lengths),
    },
    Sweep {
        table: "simulated switches",
        field: "switch_us",
        kinds: &[LIGHT, MEDIUM, MIXED],
        values: &[0.5, 1.0, 2.0, 3.0, 5.0, 9.0, 24.0],
        schedulers: || vec![cooperative(), published_unis()],
        set: |case, us| case.scheduler = case.scheduler.with_switch((us * 1e3) as u64),
        claims: Some(claims_of_switches),
    },
    Sweep {
        table: "simulated batches",
        field: "batch_packets",
        kinds: &[LIGHT, MEDIUM],
        values: &[8.0, 16.0, 32.0, 64.0, 128.0, 256.0],
        schedulers: main_schedulers,
        set: |case, batch| case.scheduler = case.scheduler.with_batch(batch as u32),
        claims: None,
    },
    Sweep {
        table: "simulated theta_min",
        field: "theta_min_packets",
        kinds: &[LIGHT, MEDIUM],
        values: &[0.0, 8.0, 24.0, 56.0, 120.0, 248.0, 504.0, 1016.0],
        schedulers: || vec![published_unis()],
        set: |case, packets| {
            let set = |unis: &mut UnisParameters| unis.theta_min = packets as u32;
            case.scheduler = case.scheduler.with_unis(set);
        },
        claims: None,
    },
    Sweep {
        table: "simulated gamma",
        field: "gamma",
        kinds: &[LIGHT, MEDIUM],
        values: &[0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0],
        schedulers: || vec![published_unis()],
        set: |case, gamma| {
            case.scheduler = case.scheduler.with_unis(|unis| {
                unis.slice_share = gamma;
                unis.theta_max_share = gamma;
            });
        },
        claims: None,
    },
    Sweep {
        table: "simulated rings",
        field: "ring_packets",
        kinds: &[LIGHT, MEDIUM],
        values: &[256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0],
        schedulers: main_schedulers,
        set: |case, packets| case.ring = packets as u32,
        claims: None,
    },
];

fn cooperative() -> CoreScheduler {
    CoreScheduler::cooperative("cooperative k=8", 8)
}

fn published_unis() -> CoreScheduler {
    CoreScheduler::unis("unis", UnisParameters::default())
}

fn main_schedulers() -> Vec<CoreScheduler> {
    vec![cooperative(), published_unis(), CoreScheduler::deadline()]
}

/// Those of [`main_schedulers`], then the others.
fn all_schedulers() -> Vec<CoreScheduler> {
    let others = [
        CoreScheduler::cooperative("cooperative k=16", 16),
        CoreScheduler::cooperative("cooperative k=24", 24),
        CoreScheduler::load_based(),
        CoreScheduler::fair("os 100 us", FAIR_SLICE_NS),
        CoreScheduler::fair("os 3 ms", 3_000_000),
        CoreScheduler::round_robin("round-robin 25 us", 25_000),
        CoreScheduler::round_robin("round-robin 50 us", 50_000),
        CoreScheduler::round_robin("round-robin 100 us", 100_000),
        CoreScheduler::round_robin("round-robin 200 us", 200_000),
    ];
    main_schedulers().into_iter().chain(others).collect()
}

/// Places of these in the lists above.
const COOPERATIVE: usize = 0;
const UNIS: usize = 1;
const DEADLINE: usize = 2;
const LONG_TURNS: [(usize, &str); 2] = [(3, "k=16"), (4, "k=24")];
/// Those that functions need not know: load-based weights, the kernel, fixed slices.
const RIVALS: std::ops::Range<usize> = 5..12;

/// A core that is offered a full line, and one that is offered a share of its throughput.
struct CoreTurn {
    overload: Observation,
    loaded: Observation,
}

impl CoreTurn {
    fn sojourn_us(&self, quantile: f64) -> f64 {
        let ns = self.loaded.sojourn(0).quantile(quantile);
        ns.map_or(f64::NAN, |ns| ns as f64 / 1e3)
    }

    fn mean_us(&self) -> f64 {
        let mean_ns = self.loaded.sojourn(0).mean_ns();
        mean_ns.map_or(f64::NAN, |ns| ns / 1e3)
    }
}

const FIGURES: &[Figure<CoreTurn>] = &[
    Figure::new("throughput", Interval("_mpps"), |turn| {
        turn.overload.throughput_mpps(0)
    }),
    Figure::new("switches_per_s", Median, |turn| {
        turn.overload.switches_per_s()
    }),
    Figure::new("work_share", Median, |turn| turn.overload.work_share()),
    Figure::new("lost_inside_of_delivered", Median, |turn| {
        turn.overload.lost_inside(0)
    }),
    // At 80 % of the throughput.
    Figure::new("sojourn_mean", Interval("_us"), CoreTurn::mean_us),
    Figure::new("sojourn_p99", Interval("_us"), |turn| turn.sojourn_us(0.99)),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-batches",
    about: "simulated: throughput and delay of chains on one core, over turns, chain length, cost of a switch, batches, thresholds and rings: UNiS, its rivals, deadlines",
    differs: "cores, switches and packets are simulated, without caches, ticks and interrupts; switches cost what they cost on this kind of machine, a flip from another core 9 us",
    run,
    plots: include_str!("../../plots/unis-batches.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    simulated::describe(findings);
    findings.set("functions", FUNCTIONS);
    findings.set("load_of_delays", LOAD);
    let span = Span::of(session.effort);
    let is_faulty = session.has_fault(Fault::FixedTurns);
    let all_subjects: f64 = SWEEPS.iter().map(Sweep::subject_count).sum();
    for sweep in &SWEEPS {
        let subjects = sweep.subjects();
        let sampling = Sampling::of(sweep.table)
            .rounds(1)
            .share(sweep.subject_count() / all_subjects);
        let mut seeds = Seeds::default();
        let deploy = |turns: &mut Turns<'_>| {
            subjects.measure(turns, |at| {
                Ok(sweep.observe(at, is_faulty, seeds.next(at), span))
            })
        };
        let claims = |samples: &Deployments, (): &()| {
            let subjects = &subjects;
            let sampled = Sampled {
                sweep,
                subjects,
                samples,
            };
            sweep
                .claims
                .map_or_else(Vec::new, |claims| claims(&sampled))
        };
        let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
        findings.rows.extend(sweep.rows(&subjects, &samples));
    }
    Ok(())
}

impl Sweep {
    fn subject_count(&self) -> f64 {
        (self.kinds.len() * self.values.len() * (self.schedulers)().len()) as f64
    }

    /// One for each kind of function, value and scheduler.
    fn subjects(&self) -> Subjects<CoreTurn, 3> {
        let schedulers = (self.schedulers)().len();
        Subjects::new(FIGURES, [self.kinds.len(), self.values.len(), schedulers])
    }

    /// Simulates a subject.
    fn observe(&self, at: [usize; 3], is_faulty: bool, seed: u64, span: Span) -> CoreTurn {
        let [kind, value, scheduler] = at;
        let kind = KINDS[self.kinds[kind]];
        let mut case = Case {
            scheduler: (self.schedulers)()[scheduler],
            functions: FUNCTIONS,
            ring: RING,
        };
        (self.set)(&mut case, self.values[value]);
        if is_faulty && case.scheduler.is_unis() {
            case.scheduler = case.scheduler.with_fixed_slices(FAULTY_SLICE_NS);
        }
        let observe = |rate_pps| {
            let chain = SimulatedChain::on_one_core(kind, case.functions, rate_pps);
            let bed = Testbed {
                ring: case.ring,
                ..Testbed::of(case.scheduler, vec![chain])
            };
            bed.observe(seed, span.times(u64::from(case.ring.div_ceil(RING))))
        };
        let overload = observe(LINE_RATE_PPS);
        let loaded = observe(overload.throughput_mpps(0) * 1e6 * LOAD);
        CoreTurn { overload, loaded }
    }

    fn rows(&self, subjects: &Subjects<CoreTurn, 3>, samples: &Deployments) -> Vec<Row> {
        let schedulers = (self.schedulers)();
        subjects.rows(samples, |[kind, value, scheduler]| {
            Row::of(self.table)
                .with("kind", KINDS[self.kinds[kind]].name)
                .with(self.field, self.values[value])
                .with("scheduler", schedulers[scheduler].name)
        })
    }
}

/// The samples of a sweep.
struct Sampled<'a> {
    sweep: &'a Sweep,
    subjects: &'a Subjects<CoreTurn, 3>,
    samples: &'a Deployments,
}

impl<'a> Sampled<'a> {
    /// A subject of a kind that the sweep has.
    fn at(&self, kind: usize, value: usize, scheduler: usize) -> Subject<'a, CoreTurn> {
        let kinds = self.sweep.kinds.iter();
        let kind = kinds.take_while(|other| **other != kind).count();
        self.subjects.at(self.samples, [kind, value, scheduler])
    }
}

/// The longest turns, and the rivals of UNiS, with chains of [`FUNCTIONS`].
fn claims_of_schedulers(sampled: &Sampled<'_>) -> Vec<Claim> {
    let of = |kind, scheduler| sampled.at(kind, 0, scheduler);
    let ratio = |kind, one, other, figure| of(kind, one).ratio(&of(kind, other), figure);
    let chain = |kind: usize| format!("{FUNCTIONS} {}", KINDS[kind].name);
    let mut claims = Vec::new();
    for (scheduler, k) in LONG_TURNS {
        for kind in [LIGHT, MEDIUM] {
            let id = format!(
                "simulated throughput, cooperative, {k} / k=8, {}",
                chain(kind)
            );
            let ratio = ratio(kind, scheduler, COOPERATIVE, "throughput");
            claims.push(if kind == LIGHT {
                unis::LONG_TURNS_LIGHT.add_to(Claim::at_most(id, ratio, 1.0))
            } else {
                unis::LONG_TURNS_MEDIUM.add_to(Claim::at_least(id, ratio, 1.0))
            });
        }
    }
    let light = chain(LIGHT);
    let switches = ratio(LIGHT, UNIS, COOPERATIVE, "switches_per_s");
    let id = format!("simulated switches, unis / cooperative k=8, {light}");
    let bound = unis::SWITCHES.value;
    claims.push(unis::SWITCHES.add_to(Claim::at_most(id, switches, bound)));
    // All functions of the chain cost the same, so all are the slowest.
    let work = ratio(LIGHT, UNIS, COOPERATIVE, "work_share");
    let id = format!("simulated time at work, unis / cooperative k=8, {light}");
    claims.push(unis::CYCLES.add_to(Claim::at_least(id, work, unis::CYCLES.value)));
    let [one, other] =
        [UNIS, COOPERATIVE].map(|scheduler| of(LIGHT, scheduler).slot("sojourn_mean"));
    let above = sampled.samples.median_of(|round| round(one) - round(other));
    let id = format!("simulated mean delay, unis - cooperative k=8, us, {light}");
    let bound = unis::LIGHT_DELAY_US.value;
    claims.push(unis::LIGHT_DELAY_US.add_to(Claim::at_most(id, above, bound)));
    let mean = ratio(HEAVY, UNIS, COOPERATIVE, "sojourn_mean");
    let id = format!(
        "simulated mean delay, unis / cooperative k=8, {}",
        chain(HEAVY)
    );
    let bound = unis::HEAVY_DELAY.value;
    claims.push(unis::HEAVY_DELAY.add_to(Claim::at_most(id, mean, bound)));
    for kind in ALL_KINDS {
        let rivals: Vec<_> = RIVALS
            .map(|rival| of(kind, rival).slot("throughput"))
            .collect();
        for (scheduler, name, bound) in [(UNIS, "unis", 1.0), (DEADLINE, "deadline", RIVAL_BOUND)] {
            let own = of(kind, scheduler).slot("throughput");
            let to_best = sampled.samples.median_of(|round| {
                let rivals = rivals.iter().map(|slot| round(*slot));
                round(own) / rivals.fold(0.0, f64::max)
            });
            let chain = chain(kind);
            let id = format!(
                "simulated throughput, {name} / best of round-robin, os, load-based, {chain}"
            );
            claims.push(Claim::at_least(id, to_best, bound));
        }
        let p99 = ratio(kind, DEADLINE, UNIS, "sojourn_p99");
        let id = format!("simulated p99, deadline / unis, {}", chain(kind));
        claims.push(Claim::at_most(id, p99, DEADLINE_DELAY_BOUND));
    }
    claims
}

/// UNiS by flips, and deadlines by hand-over, over cooperative functions that yield.
fn claims_of_lengths(sampled: &Sampled<'_>) -> Vec<Claim> {
    let ratio = |kind, functions, scheduler| {
        let reference = sampled.at(kind, functions - 1, COOPERATIVE);
        let own = sampled.at(kind, functions - 1, scheduler);
        own.ratio(&reference, "throughput")
    };
    let id = |what: &str, kind: usize, functions: usize| {
        let kind = KINDS[kind].name;
        format!(
            "simulated throughput, {what} / cooperative k=8 by yields, {kind}, {functions} functions"
        )
    };
    let mut claims = Vec::new();
    for (kind, published) in PUBLISHED {
        claims.extend(CLAIMED_LENGTHS.map(|functions| {
            let id = id("unis by flips", kind, functions);
            let ratio = ratio(kind, functions, UNIS);
            published.add_to(Claim::at_least(id, ratio, published.value))
        }));
    }
    for kind in ALL_KINDS {
        claims.extend(CLAIMED_LENGTHS.map(|functions| {
            let id = id("deadline", kind, functions);
            Claim::at_least(id, ratio(kind, functions, DEADLINE), DEADLINE_BOUND)
        }));
    }
    claims
}

/// UNiS over cooperative functions whose switch costs the same, and over those that yield.
fn claims_of_switches(sampled: &Sampled<'_>) -> Vec<Claim> {
    let switches = sampled.sweep.values;
    let place = |us: f64| switches.iter().position(|one| one.total_cmp(&us).is_eq());
    let yields = place(YIELD_NS as f64 / 1e3).unwrap_or(usize::MAX);
    let ratio = |kind, value, reference| {
        let own = sampled.at(kind, value, UNIS);
        own.ratio(&sampled.at(kind, reference, COOPERATIVE), "throughput")
    };
    let mut claims = Vec::new();
    for (kind, published) in PUBLISHED {
        for us in CLAIMED_SWITCHES_US {
            let value = place(us).unwrap_or(usize::MAX);
            let id = format!(
                "simulated throughput, same mechanism, unis / cooperative k=8, {FUNCTIONS} {}, switch of {us} us",
                KINDS[kind].name
            );
            claims.push(Claim::at_least(
                id,
                ratio(kind, value, value),
                published.value,
            ));
        }
    }
    for (kind, published) in PUBLISHED {
        for (value, us) in switches.iter().enumerate() {
            let id = format!(
                "simulated throughput, unis / cooperative k=8 by yields, {FUNCTIONS} {}, switch of {us} us",
                KINDS[kind].name
            );
            claims.push(published.add_to(Claim::shown(id, ratio(kind, value, yields))));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effort;

    #[test]
    fn fixed_turns_lose_most_packets() {
        let span = Span::of(Effort::Trial);
        let unis = [MEDIUM, FUNCTIONS - 1, UNIS];
        let throughput = |is_faulty| {
            let turn = SWEEPS[1].observe(unis, is_faulty, 1, span);
            turn.overload.throughput_mpps(0)
        };
        assert!(throughput(true) < 0.2 * throughput(false));
    }

    #[test]
    fn a_chain_that_is_offered_its_share_loses_nothing() {
        for scheduler in [COOPERATIVE, UNIS, DEADLINE] {
            let at = [MEDIUM, FUNCTIONS - 1, scheduler];
            let turn = SWEEPS[1].observe(at, false, 1, Span::of(Effort::Quick));
            assert!(turn.mean_us() > 1.0 && turn.sojourn_us(0.99) > turn.mean_us());
            let chain = &turn.loaded.chains[0];
            let lost = chain.lost_at_entry + chain.lost_inside + chain.shed;
            assert_eq!(lost, 0, "{scheduler}: {chain:?}");
        }
    }

    #[test]
    fn claims_name_schedulers_that_the_sweeps_have() {
        let all = all_schedulers();
        let name = |scheduler: usize| all[scheduler].name;
        assert_eq!(name(COOPERATIVE), "cooperative k=8");
        assert!(all[UNIS].is_unis());
        assert_eq!(name(DEADLINE), "deadline");
        for (scheduler, k) in LONG_TURNS {
            assert!(name(scheduler).ends_with(k));
        }
        assert_eq!(
            [name(RIVALS.start), name(RIVALS.end - 1)],
            ["load-based", "round-robin 200 us"]
        );
        assert_eq!(RIVALS.end, all.len());
    }
}
