//! `rate-bucket`: throughput and delay over the size of the buckets, for one router and for eight (Rathore et al. 2022, Figs. 8 to 11).

use std::time::Duration;

use myelin_metrics::stats::{CONFIDENCE, mean_ci, median_ci};
use myelin_packet::sojourn::Histogram;

use crate::published::rate_control;
use crate::rounds::to_one;
use crate::routers::{Kind, Routers};
use crate::{Claim, Error, Findings, Row, Session};

/// Buckets of Figs. 8 and 10, packets.
const BUCKETS: [u64; 5] = [1, 5, 20, 50, 100];
/// Buckets of Fig. 9.
const LOADED: [u64; 3] = [1, 5, 20];
/// Loads of Fig. 9, of the capacity; the paper's 100 to 1800 of some 2050 kpps.
const LOADS: [f64; 6] = [0.05, 0.2, 0.35, 0.5, 0.7, 0.85];
/// Buckets of the shaper in Fig. 11, and that of its policer.
const SHAPERS: [u64; 5] = [1, 2, 3, 4, 5];
/// How late processes that share a core may let a packet go and make that good. A stricter shaper in such a process lets out what is due while it
/// runs, and at the paper's rates a burst of 5 packets is 15 us: shorter than any wake-up, let alone the turns of seven others.
const TOLERANCE: &str = "4ms";
/// Its settings, and those without.
const TOLERANT: &str = "wide policer, tolerance";
const STRICT: &str = "wide policer";
const WIDE: u64 = 20;
/// The lone router's load, of the capacity: the paper's 1400 of 1730 kpps.
const LONE_LOAD: f64 = 0.8;
/// Routers of Figs. 10 and 11; the first one's load, and what the others are offered and limited to together, of the capacity:
/// the paper's 900, 1000 and 350 of 1730 kpps.
const MANY: usize = 8;
const FIRST_LOAD: f64 = 0.45;
const OTHERS_OFFERED: f64 = 0.5;
const OTHERS_LIMIT: f64 = 0.175;
/// Bucket of the others, packets; the paper's 1000 would never be empty in a turn as short as ours.
const OTHERS_BUCKET: u64 = 100;
/// Packets that a shaper may hold.
const QUEUE: u64 = 1000;
/// How long a packet may wait there.
const WAIT: &str = "8ms";
/// How long a setting is measured in a turn, and how long the capacity is looked for.
const TURN: Duration = Duration::from_millis(15);
const SEARCH: Duration = Duration::from_millis(200);
/// Turns of a setting each time it is set.
const TURNS: usize = 10;
/// Least share of the target with a wide policer.
const TARGET_BOUND: f64 = 0.99;
/// What the limited routers may be above their limit, for what a full bucket lets through at the start of a turn.
const LIMITED_BOUND: f64 = 1.01;

/// One point of a figure.
#[derive(Debug, Clone, Copy)]
struct Setting {
    table: &'static str,
    /// Of the first router, in packets.
    policer: u64,
    shaper: u64,
    /// Of the capacity.
    load: f64,
    routers: usize,
}

/// What a setting showed, a figure a turn.
#[derive(Debug, Default)]
struct Shown {
    kept: Vec<f64>,
    mean_us: Vec<f64>,
    sojourn: Histogram,
    policed: u64,
    /// What left the other routers, of their limit.
    others: Vec<f64>,
}

fn settings(kind: Kind) -> Vec<Setting> {
    let of = |table, policer, shaper, load, routers| Setting {
        table,
        policer,
        shaper,
        load,
        routers,
    };
    let mut all: Vec<Setting> = BUCKETS
        .iter()
        .map(|&bucket| of("one router", bucket, bucket, LONE_LOAD, 1))
        .collect();
    if kind == Kind::Namespace {
        for bucket in LOADED {
            all.extend(LOADS.map(|load| of("load", bucket, bucket, load, 1)));
        }
    }
    all.extend(BUCKETS.map(|bucket| of("eight routers", bucket, bucket, FIRST_LOAD, MANY)));
    all.extend(SHAPERS.map(|shaper| of(STRICT, WIDE, shaper, FIRST_LOAD, MANY)));
    if kind == Kind::Process {
        all.extend(SHAPERS.map(|shaper| of(TOLERANT, WIDE, shaper, FIRST_LOAD, MANY)));
    }
    all
}

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let mut findings =
        Findings::default().with("frame_bytes", crate::routers::FRAME_BYTES.to_string());
    for kind in [Kind::Process, Kind::Namespace] {
        measure(kind, session, &mut findings)?;
    }
    Ok(findings)
}

/// What of the two holds the traffic of routers of this kind: where nothing can queue packets, nothing shapes them.
fn enforce(kind: Kind) -> &'static str {
    match kind {
        Kind::Worker | Kind::Process | Kind::Tcx => "both",
        Kind::Namespace | Kind::NamespaceXdp | Kind::Kernel | Kind::Xdp => "policer",
    }
}

fn measure(kind: Kind, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    session.progress(&format!("capacity of the {} router", kind.name()), 0, 1)?;
    let free = |_| "enforce: none".to_owned();
    let mut lone = Routers::new(session.program, kind, &[], &[free(0)])?;
    let capacity_pps = capacity(&lone)?;
    let slas: Vec<String> = (0..MANY).map(free).collect();
    let mut many = Routers::new(session.program, kind, &[], &slas)?;
    let settings = settings(kind);
    let mut shown: Vec<Shown> = settings.iter().map(|_| Shown::default()).collect();
    let passes = session.effort.choose(1, 3, 20);
    let turns = session.effort.rounds(TURNS, TURNS);
    for pass in 0..passes {
        let stage = format!("{} routers", kind.name());
        session.progress(&stage, pass, passes)?;
        for (setting, shown) in settings.iter().zip(&mut shown) {
            session.check()?;
            let routers = if setting.routers == 1 {
                &mut lone
            } else {
                &mut many
            };
            let slas: Vec<String> = (0..setting.routers)
                .map(|number| sla(kind, setting, number, capacity_pps))
                .collect();
            routers.set_slas(&slas)?;
            for _ in 0..turns {
                turn(routers, setting, capacity_pps, shown)?;
            }
        }
    }
    for (setting, shown) in settings.iter().zip(&shown) {
        findings.row(row(kind, setting, shown, capacity_pps));
    }
    claims(kind, &settings, &shown, findings)
}

/// The first router's profile, or another one's.
fn sla(kind: Kind, setting: &Setting, number: usize, capacity_pps: f64) -> String {
    let (rate_pps, policer, shaper) = if number == 0 {
        (setting.load * capacity_pps, setting.policer, setting.shaper)
    } else {
        let limit = OTHERS_LIMIT * capacity_pps / (MANY - 1) as f64;
        (limit, OTHERS_BUCKET, OTHERS_BUCKET)
    };
    let tolerance = if setting.table == TOLERANT {
        format!(", tolerance: {TOLERANCE}")
    } else {
        String::new()
    };
    format!(
        "rate: {:.0}pps, burst: {shaper}, policingBurst: {policer}, enforce: {}, \
         shaper: {{ queue: {QUEUE}, delay: {WAIT}{tolerance} }}",
        rate_pps.max(1.0),
        enforce(kind)
    )
}

fn capacity(routers: &Routers) -> Result<f64, Error> {
    let (_, did) = routers.turn(&[(1e9, 1, u64::MAX)], SEARCH)?;
    Ok(did[0].packets_out as f64 / SEARCH.as_secs_f64())
}

fn turn(
    routers: &Routers,
    setting: &Setting,
    capacity_pps: f64,
    shown: &mut Shown,
) -> Result<(), Error> {
    let others = (MANY - 1) as f64;
    // The first one evenly, as the paper's generator; what it could not send in time it does not send at once.
    let mut streams = vec![(setting.load * capacity_pps, 1, 1)];
    let other = (OTHERS_OFFERED / others * capacity_pps, 1, u64::MAX);
    streams.resize(setting.routers, other);
    let (sent, did) = routers.turn(&streams, TURN)?;
    let first = &did[0];
    shown
        .kept
        .push((first.packets_out as f64 / sent[0].packets.max(1) as f64).max(1e-6));
    if let Some(mean_ns) = first.sojourn.mean_ns() {
        shown.mean_us.push(mean_ns / 1e3);
    }
    shown.sojourn.merge(&first.sojourn);
    shown.policed += first.policed;
    if setting.routers > 1 {
        let out: u64 = did[1..].iter().map(|other| other.packets_out).sum();
        // Their buckets were full at the start.
        let limit = OTHERS_LIMIT * capacity_pps * TURN.as_secs_f64();
        let allowed = limit + others * OTHERS_BUCKET as f64;
        shown.others.push((out as f64 / allowed).max(1e-6));
    }
    Ok(())
}

fn row(kind: Kind, setting: &Setting, shown: &Shown, capacity_pps: f64) -> Row {
    let us = |quantile| {
        let ns = shown.sojourn.quantile(quantile);
        ns.map(|ns| ns as f64 / 1e3)
    };
    Row::of(setting.table)
        .with("routers", kind.name())
        .with("bucket_packets", setting.policer)
        .with("shaper_packets", setting.shaper)
        .with("of_capacity", setting.load)
        .with("offered_kpps", setting.load * capacity_pps / 1e3)
        .with_estimate("kept", "", median_ci(&shown.kept, CONFIDENCE))
        .with("policed", shown.policed)
        .with_estimate("sojourn_mean", "_us", mean_ci(&shown.mean_us, CONFIDENCE))
        .with("sojourn_p50_us", us(0.5))
        .with("sojourn_p99_us", us(0.99))
        .with(
            "others_of_allowed",
            median_ci(&shown.others, CONFIDENCE).map(|e| e.value),
        )
}

fn claims(
    kind: Kind,
    settings: &[Setting],
    shown: &[Shown],
    findings: &mut Findings,
) -> Result<(), Error> {
    for (setting, shown) in settings.iter().zip(shown) {
        let name = format!(
            "{}: {}, policer {}, shaper {}",
            kind.name(),
            setting.table,
            setting.policer,
            setting.shaper
        );
        // A strict shaper in a process that shares its core is shown without a claim: `plan` warns of it.
        let meets = match kind {
            Kind::Process => setting.table == TOLERANT,
            _ => setting.table == STRICT,
        };
        if meets {
            findings.claim(rate_control::TARGET_REACHED.beside(Claim::ratio_at_least(
                format!("{name}: share of its target"),
                to_one(&shown.kept)?,
                TARGET_BOUND,
            )));
        }
        if setting.routers > 1 {
            findings.claim(rate_control::LIMITED.beside(Claim::ratio_at_most(
                format!("{name}: the others, of what their profile allows"),
                to_one(&shown.others)?,
                LIMITED_BOUND,
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_figures_have_their_points() {
        let count = |kind, table: &str| {
            let all = settings(kind);
            all.iter().filter(|setting| setting.table == table).count()
        };
        for kind in [Kind::Process, Kind::Namespace] {
            assert_eq!(count(kind, "one router"), BUCKETS.len());
            assert_eq!(count(kind, "eight routers"), BUCKETS.len());
            assert_eq!(count(kind, STRICT), SHAPERS.len());
        }
        assert_eq!(count(Kind::Process, TOLERANT), SHAPERS.len());
        assert_eq!(count(Kind::Namespace, "load"), LOADED.len() * LOADS.len());
    }
}
