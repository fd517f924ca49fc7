//! `pendulum`: inverted pendulums whose sensor and motor are one host and whose controller is
//! another. Chains and an emulated link carry their datagrams.

mod control_loop;
mod lab;

use myelin_metrics::stats::Deployments;

use self::control_loop::Trace;
use self::lab::Loops;
use crate::figures::Column::{Interval, Sum};
use crate::figures::{Figure, Subjects};
use crate::published::calvin;
use crate::sampling::{Sampling, Turns, quantile};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// A loop of Fig. 1.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// Column of its angle, deg.
    angle: &'static str,
    /// From the sensor through the controller to the motor, ms.
    delay_ms: u64,
    /// Between two datagrams of the sensor, ms.
    interval_ms: u64,
}

const SETTINGS: [Setting; 5] = [
    Setting::new("angle_50_ms_deg", 50, 1),
    Setting::new("angle_40_ms_deg", 40, 1),
    Setting::new("angle_1_ms_deg", 1, 1),
    Setting::new("angle_5_ms_apart_deg", 1, 5),
    Setting::new("angle_10_ms_apart_deg", 1, 10),
];
/// The delay of the loops of 1 ms with [`Fault::SlowLoop`], and of that of 40 ms with
/// [`Fault::SwappedLoops`], ms.
const SLOW_MS: u64 = 60;
/// Angle at the start, deg.
const START_DEG: f64 = 5.0;
/// A pendulum stands within this share of its first angle.
const STANDS: f64 = 0.02;
/// Least angle at the end of a pendulum that does not stand, of its first.
const SWINGS_BOUND: f64 = 0.5;
/// Longest time until the pendulum stands with 40 ms, s. The paper: about 3 s.
const SETTLED_BOUND_S: f64 = 4.0;
/// Largest median delay of a loop of 1 ms, ms.
const DELAY_BOUND_MS: f64 = 2.0;
/// Least share of the datagrams that the chains forward, percent.
const CHAINED_BOUND: f64 = 99.0;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "pendulum",
    about: "inverted pendulums balanced over a live network: the datagrams of sensor and motor pass chains and a delayed link, the controller is another host (CALVIN, Fig. 1)",
    differs: "the paper simulates network and pendulum, and does not state the parameters of pendulum and controller; here the pendulum alone is a model, in real time, and its controller has gains whose delay limit is 44 ms",
    run,
    plots: include_str!("../../plots/pendulum.yaml"),
};

impl Setting {
    const fn new(angle: &'static str, delay_ms: u64, interval_ms: u64) -> Self {
        Self {
            angle,
            delay_ms,
            interval_ms,
        }
    }

    fn delayed_by(self, delay_ms: u64) -> Self {
        Self { delay_ms, ..self }
    }
}

/// Names a loop in claims.
fn name_of(setting: Setting) -> String {
    match setting.interval_ms {
        1 => format!("{} ms", setting.delay_ms),
        apart => format!("{} ms, {apart} ms apart", setting.delay_ms),
    }
}

const FIGURES: &[Figure<Trace>] = &[
    Figure::new("last", Interval("_deg"), Trace::last_deg),
    Figure::new("stands_after", Interval("_s"), |trace| {
        trace.settled_s(STANDS * START_DEG)
    }),
    Figure::new("delay_p50", Interval("_ms"), |trace| delay_ms(trace, 0.5)),
    Figure::new("delay_p99", Interval("_ms"), |trace| delay_ms(trace, 0.99)),
    Figure::new("unanswered", Sum, |trace| trace.unanswered() as f64),
];

fn delay_ms(trace: &Trace, share: f64) -> f64 {
    let mut sorted_ms: Vec<f64> = trace.delays_ns.iter().map(|ns| *ns as f64 / 1e6).collect();
    sorted_ms.sort_unstable_by(f64::total_cmp);
    quantile(&sorted_ms, share)
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let seconds = session.effort.choose(1, 5, 5);
    findings.set("seconds", seconds);
    findings.set("first_angle_deg", START_DEG);
    findings.set(
        "delay_limit_ms",
        myelin_simulator::pendulum::DELAY_LIMIT_S * 1e3,
    );
    let is_debug = cfg!(debug_assertions);
    findings.set("build", if is_debug { "debug" } else { "release" });
    let subjects = Subjects::new(FIGURES, [SETTINGS.len()]);
    let settings = SETTINGS.map(|setting| match setting.delay_ms {
        1 if session.has_fault(Fault::SlowLoop) => setting.delayed_by(SLOW_MS),
        40 if session.has_fault(Fault::SwappedLoops) => setting.delayed_by(SLOW_MS),
        50 if session.has_fault(Fault::SwappedLoops) => setting.delayed_by(1),
        _ => setting,
    });
    let unchained = usize::from(session.has_fault(Fault::UnchainedLoops));
    let deploy = |turns: &mut Turns<'_>| {
        turns.progress()?;
        let loops = Loops::start(session.program, &settings, unchained)?;
        let before = loops.packets_of_chains()?;
        turns.progress()?;
        let cancelled = session.monitor.cancelled;
        let traces = loops.balance(&settings, START_DEG, seconds, cancelled)?;
        let forwarded = loops.packets_of_chains()? - before;
        let sent: usize = traces.iter().map(Trace::sent).sum();
        subjects.record(turns, &traces);
        turns.record([100.0 * forwarded as f64 / sent as f64]);
        Ok(traces)
    };
    let claims = |samples: &Deployments, _: &Vec<Trace>| claims_of(&subjects, samples);
    let (samples, traces) = session.sample(Sampling::of("balancing"), findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[subject]| {
        let setting = SETTINGS[subject];
        Row::of("loops")
            .with("delay_ms", setting.delay_ms)
            .with("apart_ms", setting.interval_ms)
    });
    findings.rows.extend(rows);
    findings.rows.extend(angles_of(&traces));
    Ok(())
}

fn claims_of(subjects: &Subjects<Trace, 1>, samples: &Deployments) -> Vec<Claim> {
    let at = |subject| subjects.at(samples, [subject]);
    let mut claims = Vec::new();
    for (subject, setting) in SETTINGS.into_iter().enumerate() {
        let id = format!("{}, angle at the end / first angle", name_of(setting));
        let last = at(subject).median("last");
        let last = last.map(|last| last.scaled(1.0 / START_DEG));
        claims.push(match setting.delay_ms {
            50 => Claim::at_least(id, last, SWINGS_BOUND),
            _ => Claim::at_most(id, last, STANDS),
        });
    }
    let settled = Claim::at_most(
        "40 ms, time until the pendulum stands, s",
        at(1).median("stands_after"),
        SETTLED_BOUND_S,
    );
    claims.push(calvin::PENDULUM_STANDS_S.add_to(settled));
    claims.push(Claim::at_most(
        "1 ms, median delay of the loop, ms",
        at(2).median("delay_p50"),
        DELAY_BOUND_MS,
    ));
    claims.push(Claim::at_least(
        "datagrams that the chains forwarded, percent",
        samples.median(subjects.slots()),
        CHAINED_BOUND,
    ));
    claims
}

/// A row for each time, with the angles of all pendulums.
fn angles_of(traces: &[Trace]) -> Vec<Row> {
    let times = traces.iter().map(|trace| trace.angles_deg.len()).min();
    let row = |place: usize| {
        let time_s = place as f64 * control_loop::TRACE_NS as f64 / 1e9;
        let both = SETTINGS.iter().zip(traces);
        both.fold(
            Row::of("angles").with("time_s", time_s),
            |row, (setting, trace)| {
                let angle_deg = (trace.angles_deg[place] * 1e3).round() / 1e3;
                row.with(setting.angle, angle_deg)
            },
        )
    };
    (0..times.unwrap_or(0)).map(row).collect()
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;

    /// Eight deployments of pendulums that end with the angles, of their first one.
    fn judge(ends: [f64; SETTINGS.len()]) -> Vec<Claim> {
        let subjects = Subjects::new(FIGURES, [SETTINGS.len()]);
        let mut samples = Deployments::default();
        for deployment in 0..8 {
            let traces = ends.iter().zip(SETTINGS).map(|(end, setting)| {
                let end_deg = end * START_DEG * (1.0 + 0.01 * f64::from(deployment));
                Trace {
                    angles_deg: [vec![START_DEG; 50], vec![end_deg; 150]].concat(),
                    delays_ns: vec![setting.delay_ms * 1_000_000; 5000],
                    samples: 5000,
                    answers: 5000,
                }
            });
            let mut slots = subjects.observed(traces);
            slots.push(vec![100.0]);
            samples.push(slots);
        }
        claims_of(&subjects, &samples)
    }

    #[test]
    fn claims_turn_false() {
        let verdicts = |ends| judge(ends).iter().map(Claim::verdict).collect::<Vec<_>>();
        let as_published = verdicts([1.4, 0.001, 0.0, 0.0, 0.0]);
        assert_eq!(as_published, vec![Some(Verdict::Holds); 8]);
        let reversed = verdicts([0.0, 0.9, 0.9, 0.9, 0.9]);
        // The last two are about datagrams.
        assert_eq!(reversed[..6], [Some(Verdict::False); 6]);
    }
}
