//! `rate-bucket`: throughput and delay over the size of the buckets, for one router and for eight
//! (Rathore et al. 2022, Figs. 8 to 11).

use std::time::Duration;

use myelin_metrics::stats::Deployments;
use myelin_packet::sojourn::Histogram;

use crate::figures::Column::{Hidden, Interval, Median, Sum};
use crate::figures::{Figure, Subjects};
use crate::generator::check_offered;
use crate::published::rate_control;
use crate::routers::{RouterKind, RouterTurn, Routers};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Findings, Row, Session};

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
const SEARCH_TIME: Duration = Duration::from_millis(100);
/// Least share of the target with a wide policer.
const TARGET_BOUND: f64 = 0.99;
/// Largest share of their allowance that the limited routers may forward. The allowance includes
/// full buckets.
const LIMITED_BOUND: f64 = 1.01;
/// Least share of their load that the generator must offer the limited routers.
const OFFERED_BOUND: f64 = 0.95;

/// The routers, and the share of the time limit of each. The paper's have a policer and a shaper.
/// Routers in namespaces only police: their packets leave by a redirect past every queue. So they
/// have no claim about a target.
const KINDS: [(RouterKind, f64); 3] = [
    (RouterKind::Process, 0.4),
    (RouterKind::KernelTcx, 0.25),
    (RouterKind::Namespace, 0.35),
];

/// One point of a figure.
#[derive(Debug, Clone, Copy)]
struct Setting {
    table: &'static str,
    /// Buckets of the first router, packets.
    policer: u64,
    /// `None` if the router only polices.
    shaper: Option<u64>,
    /// Share of the capacity.
    load: f64,
    routers: usize,
}

/// A turn of all routers in a setting.
struct SettingTurn {
    turns: Vec<RouterTurn>,
    capacity_pps: f64,
    /// HTB counts a packet when it enters, so the sojourn would lack the wait in its queue.
    has_sojourn: bool,
}

impl SettingTurn {
    fn first(&self) -> &RouterTurn {
        &self.turns[0]
    }

    fn others(&self, of: fn(&RouterTurn) -> f64) -> f64 {
        self.turns[1..].iter().map(of).sum()
    }

    /// A value of the first router's sojourn, in us.
    fn sojourn_us(&self, of: impl Fn(&Histogram) -> Option<f64>) -> f64 {
        let ns = of(&self.first().counters.sojourn).filter(|_| self.has_sojourn);
        ns.map_or(f64::NAN, |ns| ns / 1e3)
    }

    fn sojourn_quantile_us(&self, share: f64) -> f64 {
        self.sojourn_us(|sojourn| sojourn.quantile(share).map(|ns| ns as f64))
    }

    /// Packets that the other routers may forward. The limit holds for all of them together. Their
    /// buckets are full at the start.
    fn allowed(&self) -> f64 {
        let others = self.turns.len() as u64 - 1;
        OTHERS_LIMIT * self.capacity_pps * self.first().sent.seconds
            + (others * OTHERS_BUCKET) as f64
    }
}

const FIGURES: &[Figure<SettingTurn>] = &[
    // Packets received from the first router, as a share of its rate times the time.
    Figure::new("of_target", Interval(""), |turn| {
        turn.first().counters.packets_out as f64 / turn.first().sent.due
    }),
    Figure::new("offered_of_target", Median, |turn| {
        turn.first().sent.offered()
    }),
    Figure::new("forgone", Sum, |turn| turn.first().sent.forgone()),
    Figure::new("policed", Sum, |turn| turn.first().counters.policed as f64),
    Figure::new("sojourn_mean", Interval("_us"), |turn| {
        turn.sojourn_us(Histogram::mean_ns)
    }),
    Figure::new("sojourn_p50_us", Median, |turn| {
        turn.sojourn_quantile_us(0.5)
    }),
    Figure::new("sojourn_p99_us", Median, |turn| {
        turn.sojourn_quantile_us(0.99)
    }),
    // Without other routers, the next two are not numbers.
    Figure::new("others_of_allowed", Median, |turn| match turn.turns.len() {
        1 => f64::NAN,
        _ => turn.others(|other| other.counters.packets_out as f64) / turn.allowed(),
    }),
    Figure::new("others_offered", Hidden, |turn| {
        turn.others(|other| other.sent.packets as f64) / turn.others(|other| other.sent.due)
    }),
];

fn shapes(kind: RouterKind) -> bool {
    kind != RouterKind::Namespace
}

fn settings(kind: RouterKind) -> Vec<Setting> {
    let of = |table, policer, shaper, load, routers| Setting {
        table,
        policer,
        shaper: shapes(kind).then_some(shaper),
        load,
        routers,
    };
    let alone = |bucket| of("one router", bucket, bucket, SINGLE_LOAD, 1);
    let mut all: Vec<Setting> = BUCKETS.map(alone).into();
    if kind == RouterKind::Namespace {
        for bucket in LOAD_BUCKETS {
            all.extend(LOADS.map(|load| of("load", bucket, bucket, load, 1)));
        }
    }
    all.extend(BUCKETS.map(|bucket| of("eight routers", bucket, bucket, FIRST_LOAD, ROUTERS)));
    let wide = |table| SHAPERS.map(|shaper| of(table, WIDE, shaper, FIRST_LOAD, ROUTERS));
    if shapes(kind) {
        all.extend(wide(STRICT));
    }
    if kind == RouterKind::Process {
        all.extend(wide(TOLERANT));
    }
    all
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rate-bucket",
    about: "throughput and delay over bucket sizes: one router and eight, in processes, in the kernel and in namespaces, policer wider than shaper",
    differs: "routers are chains on one core; rates are shares of the capacity of that core; the other routers have a bucket of 100 packets instead of 1000, because turns are short; routers in namespaces only police, because the planner refuses a shaper behind them",
    run,
    plots: include_str!("../../plots/rate-bucket.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("frame_bytes", crate::routers::FRAME_BYTES);
    for (kind, share) in KINDS {
        let sampling = Sampling::of(format!("{} routers", kind.name()))
            .rounds(session.effort.choose(2, 2, 10))
            .share(share);
        let settings = settings(kind);
        let subjects = Subjects::new(FIGURES, [settings.len()]);
        let deploy = |turns: &mut Turns<'_>| measure(kind, &settings, session, turns);
        let judge = |samples: &Deployments, _: &Vec<_>| claims(kind, &settings, samples);
        let (samples, shapers) = session.sample(sampling, findings, deploy, judge)?;
        let capacity_pps = samples.median(subjects.slots());
        findings.rows.extend(subjects.rows(&samples, |[number]| {
            let setting = &settings[number];
            let offered = capacity_pps.map(|capacity| setting.load * capacity.value / 1e3);
            Row::of(setting.table)
                .with("routers", kind.name())
                .with("shaper", shapers[number].as_deref())
                .with("bucket_packets", setting.policer)
                .with("shaper_packets", setting.shaper)
                .with("of_capacity", setting.load)
                .with("offered_kpps", offered)
        }));
    }
    Ok(())
}

/// Measures all settings. Returns what shapes the packets in each.
fn measure(
    kind: RouterKind,
    settings: &[Setting],
    session: Session<'_>,
    turns: &mut Turns<'_>,
) -> Result<Vec<Option<String>>, Error> {
    let deploy = |slas: &[String]| Routers::new(session.program, kind, &[], slas);
    let single = deploy(&["enforce: none".to_owned()])?;
    let (_, capacity_pps) = single.capacity(SEARCH_TIME)?;
    let slas: Vec<String> = (0..ROUTERS)
        .map(|number| sla(&settings[0], number, capacity_pps))
        .collect();
    let many = deploy(&slas)?;
    let mut shapers = Vec::new();
    for setting in settings {
        let routers = if setting.routers == 1 { &single } else { &many };
        routers.set_sla(&sla(setting, 0, capacity_pps))?;
        let shaper = routers.shaper()?;
        Subjects::new(FIGURES, [1]).measure(turns, |_| {
            Ok(SettingTurn {
                turns: routers.send_and_count(&streams(setting, capacity_pps), TURN_TIME)?,
                capacity_pps,
                has_sojourn: shaper.as_deref() != Some("htb"),
            })
        })?;
        shapers.push(shaper);
    }
    turns.record([capacity_pps]);
    Ok(shapers)
}

/// The SLA of a router.
fn sla(setting: &Setting, number: usize, capacity_pps: f64) -> String {
    let (rate_pps, policer, shaper) = if number == 0 {
        let shaper = setting.shaper.unwrap_or(setting.policer);
        (setting.load * capacity_pps, setting.policer, shaper)
    } else {
        let limit = OTHERS_LIMIT * capacity_pps / (ROUTERS - 1) as f64;
        (limit, OTHERS_BUCKET, OTHERS_BUCKET)
    };
    let enforce = match setting.shaper {
        Some(_) => "both",
        None => "policer",
    };
    let tolerance = if setting.table == TOLERANT {
        format!(", tolerance: {TOLERANCE}")
    } else {
        String::new()
    };
    format!(
        "rate: {:.0}pps, burst: {shaper}, policingBurst: {policer}, enforce: {enforce}, \
         shaper: {{ queue: {QUEUE}, delay: {WAIT}{tolerance} }}",
        rate_pps.max(1.0),
    )
}

/// The streams of the routers: rate, cluster and burst.
fn streams(setting: &Setting, capacity_pps: f64) -> Vec<(f64, usize, u64)> {
    // The first stream is even, as the paper's generator. After a delay it sends at most half a
    // bucket at once and forgoes the other late packets, so the policer need not drop any.
    let late = (setting.policer / 2).max(1);
    let mut streams = vec![(setting.load * capacity_pps, 1, late)];
    let other = OTHERS_OFFERED / (ROUTERS - 1) as f64 * capacity_pps;
    streams.resize(setting.routers, (other, 1, u64::MAX));
    streams
}

fn claims(kind: RouterKind, settings: &[Setting], samples: &Deployments) -> Vec<Claim> {
    let subjects = Subjects::new(FIGURES, [settings.len()]);
    let mut claims = Vec::new();
    for (number, setting) in settings.iter().enumerate() {
        let subject = subjects.at(samples, [number]);
        let shaper = match setting.shaper {
            Some(shaper) => format!(", shaper {shaper}"),
            None => String::new(),
        };
        let name = format!(
            "{}: {}, policer {}{shaper}",
            kind.name(),
            setting.table,
            setting.policer
        );
        // A strict shaper in a process with a shared core cannot keep the rate: `plan` warns.
        let table = if kind == RouterKind::Process {
            TOLERANT
        } else {
            STRICT
        };
        if setting.table == table {
            let id = format!("{name}: share of its target");
            let claim = Claim::at_least(id, subject.median("of_target"), TARGET_BOUND);
            let offered = subject.median("offered_of_target");
            let offered = check_offered("target of the first router", offered, TARGET_BOUND);
            claims.push(rate_control::TARGET_REACHED.add_to(claim.provided(offered)));
        }
        if setting.routers > 1 {
            let id = format!("{name}: the others, of what their profile allows");
            let claim = Claim::at_most(id, subject.median("others_of_allowed"), LIMITED_BOUND);
            let offered = subject.median("others_offered");
            let offered = check_offered("load of the others", offered, OFFERED_BOUND);
            claims.push(rate_control::LIMITED.add_to(claim.provided(offered)));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;

    #[test]
    fn all_figures_have_their_points() {
        let count = |kind, table: &str| {
            let all = settings(kind);
            all.iter().filter(|setting| setting.table == table).count()
        };
        for (kind, _) in KINDS {
            assert_eq!(count(kind, "one router"), BUCKETS.len());
            assert_eq!(count(kind, "eight routers"), BUCKETS.len());
            let strict = if shapes(kind) { SHAPERS.len() } else { 0 };
            assert_eq!(count(kind, STRICT), strict);
        }
        assert_eq!(count(RouterKind::Process, TOLERANT), SHAPERS.len());
        assert_eq!(
            count(RouterKind::Namespace, "load"),
            LOAD_BUCKETS.len() * LOADS.len()
        );
    }

    /// Capacity, packets a second; a turn takes a second.
    const PPS: f64 = 100_000.0;

    /// Claims about routers. The generator sends `offered` of each stream; the first router
    /// forwards `passed` of what it gets, each other one what its profile allows times `leak`.
    fn judged(kind: RouterKind, offered: f64, passed: f64, leak: f64) -> Vec<Claim> {
        let settings = settings(kind);
        let turn = |due: f64, most: f64| {
            let packets = (due * offered) as u64;
            let packets_out = (packets as f64 * passed).min(most) as u64;
            RouterTurn::forwarded(due, packets, packets_out)
        };
        let limit = OTHERS_LIMIT * PPS / (ROUTERS - 1) as f64 + OTHERS_BUCKET as f64;
        let mut samples = Deployments::default();
        for _ in 0..8 {
            let mut slots = Vec::new();
            for setting in &settings {
                let streams = streams(setting, PPS).into_iter().enumerate();
                let turns: Vec<_> = streams
                    .map(|(number, (rate, ..))| match number {
                        0 => turn(rate, f64::MAX),
                        _ => turn(rate, limit * leak),
                    })
                    .collect();
                slots.extend(Subjects::new(FIGURES, [1]).observed([SettingTurn {
                    turns,
                    capacity_pps: PPS,
                    has_sojourn: true,
                }]));
            }
            samples.push(slots);
        }
        claims(kind, &settings, &samples)
    }

    /// Number of claims with each verdict: about a target, and about the limited routers.
    fn count(claims: &[Claim], verdict: Verdict) -> [usize; 2] {
        ["share of its target", "of what their profile allows"].map(|about| {
            let those = claims.iter().filter(|claim| claim.id.contains(about));
            those
                .filter(|claim| claim.verdict() == Some(verdict))
                .count()
        })
    }

    #[test]
    fn routers_that_keep_their_rates_fulfil_all_claims() {
        for (kind, targets, limits) in [
            (RouterKind::Process, 5, 15),
            (RouterKind::KernelTcx, 5, 10),
            (RouterKind::Namespace, 0, 5),
        ] {
            let claims = judged(kind, 1.0, 1.0, 1.0);
            assert_eq!(claims.len(), targets + limits);
            assert_eq!(
                count(&claims, Verdict::Holds),
                [targets, limits],
                "{claims:?}"
            );
        }
    }

    #[test]
    fn faulty_routers_are_found() {
        let lossy = judged(RouterKind::KernelTcx, 1.0, 0.98, 1.0);
        assert_eq!(count(&lossy, Verdict::False), [5, 0]);
        let leaky = judged(RouterKind::KernelTcx, 1.0, 1.0, 1.05);
        assert_eq!(count(&leaky, Verdict::False), [0, 10]);
    }

    #[test]
    fn a_generator_that_does_not_offer_the_rate_decides_nothing() {
        let half = judged(RouterKind::KernelTcx, 0.5, 1.0, 1.0);
        assert_eq!(count(&half, Verdict::Undecided), [5, 10]);
        let reason = half[0].undecided.as_deref().unwrap_or_default();
        assert!(reason.contains("offered 50.0 %"), "{reason}");
        // The target needs the whole rate, the limit does not.
        let most = judged(RouterKind::KernelTcx, 0.97, 1.0, 1.0);
        assert_eq!(count(&most, Verdict::Undecided), [5, 0]);
    }
}
