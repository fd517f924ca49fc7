//! `emulator-fidelity`: how exact delay, rate and loss of emulated links are, and how many packets
//! the delay line carries.

mod lab;

use myelin_metrics::stats::Deployments;

use self::lab::Pairs;
use crate::figures::Column::Interval;
use crate::figures::{Figure, Subjects};
use crate::sampling::{Sampling, Turns, quantile};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Delay of the link, ns, and time between two packets, ns.
const DELAY_NS: u64 = 10_000_000;
const INTERVAL_NS: u64 = 2_000_000;
/// Rate of the link, bits a second, and loss of the link, percent.
const RATE_BPS: u64 = 20_000_000;
const LOSS_PERCENT: f64 = 1.0;
/// Largest error of the delay over that of a timer thread: median, and 99 % of all packets.
const MEDIAN_BOUND: f64 = 1.5;
const P99_BOUND: f64 = 2.0;
/// Largest error of rate, percent, and of loss, points.
const RATE_BOUND: f64 = 1.0;
const LOSS_BOUND: f64 = 0.1;
/// Least packets a second of the delay line over those of a worker with `forward`.
const PACKETS_BOUND: f64 = 0.7;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "emulator-fidelity",
    about: "emulated links with real packets: error of 10 ms of delay beside a bare timer thread, of 20 Mbit/s and of 1 % loss, and packets a second of the delay line beside a worker",
    differs: "",
    run,
    plots: include_str!("../../plots/emulator-fidelity.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("delay_ms", DELAY_NS as f64 / 1e6);
    findings.set("rate_mbit", RATE_BPS as f64 / 1e6);
    findings.set("loss_percent", LOSS_PERCENT);
    let is_debug = cfg!(debug_assertions);
    findings.set("build", if is_debug { "debug" } else { "release" });
    measure_delay(session, findings)?;
    measure_rate_and_loss(session, findings)?;
    measure_packets(session, findings)
}

/// Times after which packets or wake-ups came too late, us.
#[derive(Debug, Clone)]
struct Lateness {
    sorted_us: Vec<f64>,
}

impl Lateness {
    fn new(late_ns: &[f64]) -> Self {
        let mut sorted_us: Vec<f64> = late_ns.iter().map(|late| late / 1e3).collect();
        sorted_us.sort_unstable_by(f64::total_cmp);
        Self { sorted_us }
    }

    fn quantile(&self, share: f64) -> f64 {
        quantile(&self.sorted_us, share)
    }
}

const LATENESS: &[Figure<Lateness>] = &[
    Figure::new("p50", Interval("_us"), |lateness| lateness.quantile(0.5)),
    Figure::new("p99", Interval("_us"), |lateness| lateness.quantile(0.99)),
];

const DELAYED: [&str; 2] = ["packets of a link", "bare timer thread"];

fn measure_delay(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(50, 300, 1000);
    findings.set("packets_of_delay", packets);
    let subjects = Subjects::new(LATENESS, [DELAYED.len()]);
    let surplus_ns = if session.has_fault(Fault::LongDelay) {
        1_000_000
    } else {
        0
    };
    let mut class = String::new();
    let deploy = |turns: &mut Turns<'_>| {
        let lab = Pairs::start(session.program, DELAY_NS + surplus_ns)?;
        class = lab.class()?;
        let pair = lab.delayed()?;
        subjects.measure(turns, |[subject]| {
            let late_ns = match subject {
                0 => pair.lateness_ns(DELAY_NS, (packets, INTERVAL_NS))?,
                _ => lab::timer_lateness_ns(packets, INTERVAL_NS)?,
            };
            Ok(Lateness::new(&late_ns))
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let [link, timer] = [0, 1].map(|subject| subjects.at(samples, [subject]));
        let ratio = |figure| link.ratio(&timer, figure);
        let id = |what| format!("10 ms of delay, {what}, link / timer thread");
        vec![
            Claim::at_most(id("median error"), ratio("p50"), MEDIAN_BOUND),
            Claim::at_most(id("p99 of the error"), ratio("p99"), P99_BOUND),
        ]
    };
    let sampling = Sampling::of("delay").rounds(3).share(0.4);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings.set("class_of_delay_line", &class);
    let rows = subjects.rows(&samples, |[subject]| {
        Row::of("error of 10 ms").with("subject", DELAYED[subject])
    });
    findings.rows.extend(rows);
    Ok(())
}

fn measure_rate_and_loss(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(10_000, 125_000, 250_000);
    findings.set("packets_of_loss", packets);
    let deploy = |turns: &mut Turns<'_>| {
        let lab = Pairs::start(session.program, DELAY_NS)?;
        let (limited, lossy) = (lab.limited()?, lab.lossy()?);
        turns.measure(1, |_| limited.rate_bps(RATE_BPS))?;
        turns.measure(1, |_| {
            let before = lab.counters("lossy")?;
            lossy.send_paced(packets)?;
            let after = lab.settled_counters("lossy")?;
            let arrived = (after.arrived - before.arrived).max(1);
            Ok((after.lost - before.lost) as f64 / arrived as f64 * 100.0)
        })
    };
    let rate_error =
        |round: &dyn Fn(usize) -> f64| (round(0) / RATE_BPS as f64 - 1.0).abs() * 100.0;
    let loss_error = |round: &dyn Fn(usize) -> f64| (round(1) - LOSS_PERCENT).abs();
    let claims = |samples: &Deployments, (): &()| {
        vec![
            Claim::at_most(
                "20 Mbit/s, error, percent",
                samples.median_of(rate_error),
                RATE_BOUND,
            ),
            Claim::at_most(
                "1 % loss, error, points",
                samples.median_of(loss_error),
                LOSS_BOUND,
            ),
        ]
    };
    let sampling = Sampling::of("rate and loss").rounds(1).share(0.3);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings.add_row(
        Row::of("rate and loss")
            .with("link", "20 Mbit/s")
            .with_estimate(
                "measured",
                "",
                samples.median(0).map(|rate| rate.scaled(1e-6)),
            )
            .with_estimate("error", "", samples.median_of(rate_error)),
    );
    findings.add_row(
        Row::of("rate and loss")
            .with("link", "1 % loss")
            .with_estimate("measured", "", samples.median(1))
            .with_estimate("error", "", samples.median_of(loss_error)),
    );
    Ok(())
}

const CARRIERS: [&str; 2] = ["delay line", "worker with forward"];

const PACKETS: &[Figure<f64>] = &[Figure::new("packets", Interval("_kpps"), |pps| *pps / 1e3)];

fn measure_packets(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let subjects = Subjects::new(PACKETS, [CARRIERS.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let lab = Pairs::start(session.program, DELAY_NS)?;
        let pairs = [lab.flooded()?, lab.chained()?];
        subjects.measure(turns, |[subject]| {
            let carried = || match subject {
                0 => Ok(lab.settled_counters("flooded")?.left),
                _ => lab.packets_of_chain(),
            };
            let before = carried()?;
            let seconds = pairs[subject].flood()?;
            Ok((carried()? - before) as f64 / seconds)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let [line, worker] = [0, 1].map(|subject| subjects.at(samples, [subject]));
        let id = "packets a second, delay line / worker with forward";
        vec![Claim::at_least(
            id,
            line.ratio(&worker, "packets"),
            PACKETS_BOUND,
        )]
    };
    let sampling = Sampling::of("packets a second").rounds(3).share(0.3);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[subject]| {
        Row::of("packets a second").with("carrier", CARRIERS[subject])
    });
    findings.rows.extend(rows);
    Ok(())
}
