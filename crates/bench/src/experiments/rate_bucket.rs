//! `rate-bucket`: throughput and delay over the size of the buckets, for one router and for eight
//! (Rathore et al. 2022, Figs. 8 to 11).

use std::time::Duration;

use myelin_metrics::stats::{CONFIDENCE, mean_ci, median_ci};
use myelin_packet::sojourn::Histogram;

use crate::published::rate_control;
use crate::rounds::ratio_to_one;
use crate::routers::{RouterKind, Routers};
use crate::{Claim, Error, Findings, Row, Session};

/// Buckets of Figs. 8 and 10, packets.
const BUCKETS: [u64; 5] = [1, 5, 20, 50, 100];
/// Buckets of Fig. 9.
const LOAD_BUCKETS: [u64; 3] = [1, 5, 20];
/// Loads of Fig. 9, shares of the capacity; the paper's are 100 to 1800 of some 2050 kpps.
const LOADS: [f64; 6] = [0.05, 0.2, 0.35, 0.5, 0.7, 0.85];
/// Buckets of the shaper in Fig. 11, and that of its policer.
const SHAPERS: [u64; 5] = [1, 2, 3, 4, 5];
/// Largest delay that a shaper in a process with a shared core catches up on. A strict shaper only
/// sends while its process runs. At the paper's rates a burst of 5 packets is 15 us, shorter than a
/// wake-up and the turns of seven others.
const TOLERANCE: &str = "4ms";
/// Tables with and without this tolerance.
const TOLERANT: &str = "wide policer, tolerance";
const STRICT: &str = "wide policer";
const WIDE: u64 = 20;
/// Load of the single router, share of the capacity: the paper's 1400 of 1730 kpps.
const SINGLE_LOAD: f64 = 0.8;
/// Routers of Figs. 10 and 11. Shares of the capacity: load of the first one; offered load and
/// limit of all others together. The paper's are 900, 1000 and 350 of 1730 kpps.
const ROUTERS: usize = 8;
const FIRST_LOAD: f64 = 0.45;
const OTHERS_OFFERED: f64 = 0.5;
const OTHERS_LIMIT: f64 = 0.175;
/// Bucket of the others, packets. The paper's 1000 would never be empty in our short turns.
const OTHERS_BUCKET: u64 = 100;
/// Length of a shaper's queue, packets.
const QUEUE: u64 = 1000;
/// Longest wait in that queue.
const WAIT: &str = "8ms";
/// Duration of a turn, and of the search for the capacity.
const TURN_TIME: Duration = Duration::from_millis(15);
const SEARCH_TIME: Duration = Duration::from_millis(200);
/// Turns after each change of the setting.
const TURNS: usize = 10;
/// Least share of the target with a wide policer.
const TARGET_BOUND: f64 = 0.99;
/// Largest share of their allowance that the limited routers may forward. The allowance includes
/// full buckets.
const LIMITED_BOUND: f64 = 1.01;

/// One point of a figure.
#[derive(Debug, Clone, Copy)]
struct Setting {
    table: &'static str,
    /// Buckets of the first router, packets.
    policer: u64,
    shaper: u64,
    /// Share of the capacity.
    load: f64,
    routers: usize,
}

/// Results of a setting, one figure for each turn.
#[derive(Debug, Default)]
struct SettingResults {
    kept: Vec<f64>,
    mean_us: Vec<f64>,
    sojourn: Histogram,
    policed: u64,
    /// Packets of the other routers, as a share of their allowance.
    others: Vec<f64>,
}

fn settings(kind: RouterKind) -> Vec<Setting> {
    let of = |table, policer, shaper, load, routers| Setting {
        table,
        policer,
        shaper,
        load,
        routers,
    };
    let mut all: Vec<Setting> = BUCKETS
        .iter()
        .map(|&bucket| of("one router", bucket, bucket, SINGLE_LOAD, 1))
        .collect();
    if kind == RouterKind::Namespace {
        for bucket in LOAD_BUCKETS {
            all.extend(LOADS.map(|load| of("load", bucket, bucket, load, 1)));
        }
    }
    all.extend(BUCKETS.map(|bucket| of("eight routers", bucket, bucket, FIRST_LOAD, ROUTERS)));
    all.extend(SHAPERS.map(|shaper| of(STRICT, WIDE, shaper, FIRST_LOAD, ROUTERS)));
    if kind == RouterKind::Process {
        all.extend(SHAPERS.map(|shaper| of(TOLERANT, WIDE, shaper, FIRST_LOAD, ROUTERS)));
    }
    all
}

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let mut findings =
        Findings::default().with("frame_bytes", crate::routers::FRAME_BYTES.to_string());
    for kind in [RouterKind::Process, RouterKind::Namespace] {
        measure(kind, session, &mut findings)?;
    }
    Ok(findings)
}

/// Value of `enforce`: a router without a queue cannot shape.
fn enforce(kind: RouterKind) -> &'static str {
    match kind {
        RouterKind::Worker | RouterKind::Process | RouterKind::Tcx => "both",
        RouterKind::Namespace | RouterKind::NamespaceXdp | RouterKind::Kernel | RouterKind::Xdp => {
            "policer"
        }
    }
}

fn measure(kind: RouterKind, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    session.progress(&format!("capacity of the {} router", kind.name()), 0, 1)?;
    let no_enforcement = |_| "enforce: none".to_owned();
    let mut single = Routers::new(session.program, kind, &[], &[no_enforcement(0)])?;
    let capacity_pps = measure_capacity(&single)?;
    let slas: Vec<String> = (0..ROUTERS).map(no_enforcement).collect();
    let mut many = Routers::new(session.program, kind, &[], &slas)?;
    let settings = settings(kind);
    let mut results: Vec<SettingResults> =
        settings.iter().map(|_| SettingResults::default()).collect();
    let passes = session.effort.choose(1, 3, 20);
    let turns = session.effort.rounds(TURNS, TURNS);
    for pass in 0..passes {
        let stage = format!("{} routers", kind.name());
        session.progress(&stage, pass, passes)?;
        for (setting, results) in settings.iter().zip(&mut results) {
            session.check()?;
            let routers = if setting.routers == 1 {
                &mut single
            } else {
                &mut many
            };
            let slas: Vec<String> = (0..setting.routers)
                .map(|number| sla(kind, setting, number, capacity_pps))
                .collect();
            routers.set_slas(&slas)?;
            for _ in 0..turns {
                measure_turn(routers, setting, capacity_pps, results)?;
            }
        }
    }
    for (setting, results) in settings.iter().zip(&results) {
        findings.add_row(row(kind, setting, results, capacity_pps));
    }
    add_claims(kind, &settings, &results, findings)
}

/// The SLA of a router.
fn sla(kind: RouterKind, setting: &Setting, number: usize, capacity_pps: f64) -> String {
    let (rate_pps, policer, shaper) = if number == 0 {
        (setting.load * capacity_pps, setting.policer, setting.shaper)
    } else {
        let limit = OTHERS_LIMIT * capacity_pps / (ROUTERS - 1) as f64;
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

fn measure_capacity(routers: &Routers) -> Result<f64, Error> {
    let (_, counters) = routers.send_and_count(&[(1e9, 1, u64::MAX)], SEARCH_TIME)?;
    Ok(counters[0].packets_out as f64 / SEARCH_TIME.as_secs_f64())
}

fn measure_turn(
    routers: &Routers,
    setting: &Setting,
    capacity_pps: f64,
    results: &mut SettingResults,
) -> Result<(), Error> {
    let others = (ROUTERS - 1) as f64;
    // The first stream is even, as the paper's generator: late packets are skipped, not sent at
    // once.
    let mut streams = vec![(setting.load * capacity_pps, 1, 1)];
    let other = (OTHERS_OFFERED / others * capacity_pps, 1, u64::MAX);
    streams.resize(setting.routers, other);
    let (sent, counters) = routers.send_and_count(&streams, TURN_TIME)?;
    let first = &counters[0];
    results
        .kept
        .push((first.packets_out as f64 / sent[0].packets.max(1) as f64).max(1e-6));
    if let Some(mean_ns) = first.sojourn.mean_ns() {
        results.mean_us.push(mean_ns / 1e3);
    }
    results.sojourn.merge(&first.sojourn);
    results.policed += first.policed;
    if setting.routers > 1 {
        let out: u64 = counters[1..].iter().map(|other| other.packets_out).sum();
        // Their buckets are full at the start.
        let limit = OTHERS_LIMIT * capacity_pps * TURN_TIME.as_secs_f64();
        let allowed = limit + others * OTHERS_BUCKET as f64;
        results.others.push((out as f64 / allowed).max(1e-6));
    }
    Ok(())
}

fn row(kind: RouterKind, setting: &Setting, results: &SettingResults, capacity_pps: f64) -> Row {
    let us = |quantile| {
        let ns = results.sojourn.quantile(quantile);
        ns.map(|ns| ns as f64 / 1e3)
    };
    Row::of(setting.table)
        .with("routers", kind.name())
        .with("bucket_packets", setting.policer)
        .with("shaper_packets", setting.shaper)
        .with("of_capacity", setting.load)
        .with("offered_kpps", setting.load * capacity_pps / 1e3)
        .with_estimate("kept", "", median_ci(&results.kept, CONFIDENCE))
        .with("policed", results.policed)
        .with_estimate("sojourn_mean", "_us", mean_ci(&results.mean_us, CONFIDENCE))
        .with("sojourn_p50_us", us(0.5))
        .with("sojourn_p99_us", us(0.99))
        .with(
            "others_of_allowed",
            median_ci(&results.others, CONFIDENCE).map(|e| e.value),
        )
}

fn add_claims(
    kind: RouterKind,
    settings: &[Setting],
    results: &[SettingResults],
    findings: &mut Findings,
) -> Result<(), Error> {
    for (setting, results) in settings.iter().zip(results) {
        let name = format!(
            "{}: {}, policer {}, shaper {}",
            kind.name(),
            setting.table,
            setting.policer,
            setting.shaper
        );
        // No claim for a strict shaper in a process with a shared core: `plan` warns about it.
        let has_claim = match kind {
            RouterKind::Process => setting.table == TOLERANT,
            _ => setting.table == STRICT,
        };
        if has_claim {
            findings.add_claim(rate_control::TARGET_REACHED.add_to(Claim::ratio_at_least(
                format!("{name}: share of its target"),
                ratio_to_one(&results.kept)?,
                TARGET_BOUND,
            )));
        }
        if setting.routers > 1 {
            findings.add_claim(rate_control::LIMITED.add_to(Claim::ratio_at_most(
                format!("{name}: the others, of what their profile allows"),
                ratio_to_one(&results.others)?,
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
        for kind in [RouterKind::Process, RouterKind::Namespace] {
            assert_eq!(count(kind, "one router"), BUCKETS.len());
            assert_eq!(count(kind, "eight routers"), BUCKETS.len());
            assert_eq!(count(kind, STRICT), SHAPERS.len());
        }
        assert_eq!(count(RouterKind::Process, TOLERANT), SHAPERS.len());
        assert_eq!(
            count(RouterKind::Namespace, "load"),
            LOAD_BUCKETS.len() * LOADS.len()
        );
    }
}
