//! `sharing-delay`: sojourn of packets whose workers share one core, by policy.

use std::time::Duration;

use myelin_metrics::stats::{Deployments, Estimate};
use myelin_packet::sojourn::Histogram;

use crate::figures::Column::{Hidden, Interval, Median};
use crate::figures::{Figure, Subject, Subjects};
use crate::generator::check_offered;
use crate::routers::{RouterKind, RouterTurn, Routers, quantile_us};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

const SCHEDULERS: [&str; 6] = [
    "deadline",
    "unis",
    "cooperative",
    "round-robin",
    "os",
    "auto",
];
const DEADLINE: usize = 0;
const UNIS: usize = 1;
const OS: usize = 4;
const AUTO: usize = 5;
/// Policy in place of `deadline` with [`Fault::TurnsWithoutBudget`].
const WITHOUT_BUDGET: &str = "round-robin";

/// The cases, and the SLA of each chain in them.
const CASES: [(&str, &[&str]); 2] = [
    (
        "80 % load",
        &["latency: 1ms", "latency: 1ms", "latency: 1ms"],
    ),
    ("beside a backlog", &["latency: 350us", ""]),
];
const LOADED: usize = 0;
const PAIR: usize = 1;
/// Offered rate of all chains together over the rate that one worker alone forwards.
const LOAD: f64 = 0.8;
/// Offered rate of the chain with a backlog over that rate.
const BACKLOG: f64 = 1.5;
/// Rate of the chain with a tight budget, packets a second, and its largest share of that rate.
const TIGHT_PPS: f64 = 100e3;
const TIGHT_SHARE: f64 = 0.25;

/// Functions of each chain behind its router, so that a core and not the sender is the limit: 1 us
/// of a core at 3 GHz.
const FUNCTIONS: &[&str] = &["kind: work, config: { cycles: 3000 }"];
/// Time of the packets of a case.
const TURN_TIME: Duration = Duration::from_millis(100);
/// Time of the search for the rate of a worker.
const SEARCH_TIME: Duration = Duration::from_millis(100);
/// Least share of the due packets that the generator must send.
const OFFERED_BOUND: f64 = 0.95;
/// Largest p99 of `deadline` over that of UNiS, in each case.
const DELAY_BOUNDS: [f64; 2] = [0.7, 0.5];
/// Least throughput of the chain with a backlog over that with UNiS.
const BACKLOG_BOUND: f64 = 0.95;
/// Least share of their packets that the chains of a loaded core forward with `deadline`.
const KEPT_BOUND: f64 = 0.99;
/// `auto` may be worse than the better of both by this factor.
const AUTO_BOUND: f64 = 1.03;

/// A turn of all chains of a core.
struct CoreTurn {
    chains: Vec<RouterTurn>,
    rate_pps: f64,
}

impl CoreTurn {
    fn kpps(&self, packets: impl Fn(&RouterTurn) -> u64) -> f64 {
        let rates = self.chains.iter().map(|chain| chain.kpps(packets(chain)));
        rates.sum()
    }

    /// Sojourn of the chains with a budget.
    fn sojourn_us(&self, share: f64) -> f64 {
        let has_budget = |slas: &&[&str]| slas.len() == self.chains.len();
        let slas = CASES.iter().map(|(_, slas)| *slas).find(has_budget);
        let mut all = Histogram::new();
        for (chain, sla) in self.chains.iter().zip(slas.unwrap_or_default()) {
            if !sla.is_empty() {
                all.merge(&chain.counters.sojourn);
            }
        }
        quantile_us(&all, share)
    }

    /// Forwarded packets, as a share of those that were sent.
    fn kept(&self) -> f64 {
        self.kpps(|chain| chain.counters.packets_out) / self.kpps(|chain| chain.sent.packets)
    }

    fn offered(&self) -> f64 {
        let shares = self.chains.iter().map(|chain| chain.sent.offered());
        shares.fold(f64::INFINITY, f64::min)
    }
}

const FIGURES: &[Figure<CoreTurn>] = &[
    Figure::new("sojourn_p50", Median, |turn| turn.sojourn_us(0.5)),
    Figure::new("sojourn_p99", Interval("_us"), |turn| turn.sojourn_us(0.99)),
    Figure::new("out", Interval("_kpps"), |turn| {
        turn.kpps(|chain| chain.counters.packets_out)
    }),
    Figure::new("last_chain_out", Interval("_kpps"), |turn| {
        let last = turn.chains.last();
        last.map_or(f64::NAN, |chain| chain.kpps(chain.counters.packets_out))
    }),
    Figure::new("sent_kpps", Median, |turn| {
        turn.kpps(|chain| chain.sent.packets)
    }),
    Figure::new("kept", Interval(""), CoreTurn::kept),
    Figure::new("worker_alone_kpps", Median, |turn| turn.rate_pps / 1e3),
    Figure::new("offered", Hidden, CoreTurn::offered),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "sharing-delay",
    about: "p99 sojourn of packets of chains whose workers share one core, by policy: at 80 % load, and with a tight budget beside a backlog",
    differs: "",
    run,
    plots: include_str!("../../plots/sharing-delay.yaml"),
};

fn subjects() -> Subjects<CoreTurn, 2> {
    Subjects::new(FIGURES, [CASES.len(), SCHEDULERS.len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("frame_bytes", crate::routers::FRAME_BYTES);
    findings.set("turn_ms", TURN_TIME.as_millis() as u64);
    let is_debug = cfg!(debug_assertions);
    findings.set("build", if is_debug { "debug" } else { "release" });
    let has_fault = |fault| session.has_fault(fault);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        let mut all = Vec::new();
        for [case, scheduler] in subjects.all() {
            let policy = match scheduler {
                DEADLINE if has_fault(Fault::TurnsWithoutBudget) => WITHOUT_BUDGET,
                DEADLINE if has_fault(Fault::KernelTurns) => SCHEDULERS[OS],
                AUTO if has_fault(Fault::AutoByKernel) => SCHEDULERS[OS],
                scheduler => SCHEDULERS[scheduler],
            };
            let slas: Vec<String> = CASES[case].1.iter().map(ToString::to_string).collect();
            let kind = RouterKind::Sharing(policy);
            all.push(Routers::new(session.program, kind, FUNCTIONS, &slas)?);
        }
        let (_, rate_pps) = all[DEADLINE].capacity(SEARCH_TIME)?;
        subjects.measure(turns, |[case, scheduler]| {
            let routers = &all[case * SCHEDULERS.len() + scheduler];
            let streams = streams(case, rate_pps);
            let chains = routers.send_and_count(&streams, TURN_TIME)?;
            Ok(CoreTurn { chains, rate_pps })
        })
    };
    let sampling = Sampling::of("chains on one core").rounds(2);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[case, scheduler]| {
        Row::of("chains on one core")
            .with("case", CASES[case].0)
            .with("scheduler", SCHEDULERS[scheduler])
    });
    Ok(())
}

/// The streams of a case, if one worker alone forwards so many packets a second.
fn streams(case: usize, rate_pps: f64) -> Vec<(f64, usize, u64)> {
    let chains = CASES[case].1.len();
    let stream = |pps| (pps, 1, u64::MAX);
    if case == LOADED {
        return vec![stream(LOAD * rate_pps / chains as f64); chains];
    }
    let tight_pps = TIGHT_PPS.min(TIGHT_SHARE * rate_pps);
    vec![stream(tight_pps), stream(BACKLOG * rate_pps)]
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (case, (name, _)) in CASES.into_iter().enumerate() {
        let at = |scheduler| subjects.at(samples, [case, scheduler]);
        let [deadline, unis, auto] = [DEADLINE, UNIS, AUTO].map(at);
        let over = |other: &Subject<'_, CoreTurn>| deadline.ratio(other, "sojourn_p99");
        let offered = |scheduler: &Subject<'_, CoreTurn>| {
            check_offered("traffic", scheduler.median("offered"), OFFERED_BOUND)
        };
        let sent = offered(&deadline).and_then(|()| offered(&unis));
        let id = |what: &str| format!("{name}, {what}");
        let p99 = over(&unis);
        let claim = Claim::at_most(id("p99, deadline / unis"), p99, DELAY_BOUNDS[case]);
        claims.push(claim.provided(sent.clone()));
        if case == LOADED {
            let what = id("packets out of those sent, deadline");
            let claim = Claim::at_least(what, deadline.median("kept"), KEPT_BOUND);
            claims.push(claim.provided(sent.clone()));
        }
        if case == PAIR {
            let kept = deadline.ratio(&unis, "last_chain_out");
            let what = id("packets of the backlog, deadline / unis");
            claims.push(Claim::at_least(what, kept, BACKLOG_BOUND).provided(sent));
        }
        let best = auto_over_best(samples, &auto, [&deadline, &at(OS)]);
        let what = id("p99, auto / the better of os and deadline");
        claims.push(Claim::at_most(what, best, AUTO_BOUND).provided(offered(&auto)));
        for (scheduler, name) in SCHEDULERS.into_iter().enumerate().skip(UNIS + 1) {
            if scheduler != AUTO {
                let what = id(&format!("p99, deadline to {name}"));
                claims.push(Claim::shown(what, over(&at(scheduler))));
            }
        }
    }
    claims
}

/// The p99 sojourn of `auto` over the lower one of others, by round.
fn auto_over_best(
    samples: &Deployments,
    auto: &Subject<'_, CoreTurn>,
    others: [&Subject<'_, CoreTurn>; 2],
) -> Option<Estimate> {
    let [auto, one, other] =
        [auto, others[0], others[1]].map(|subject| subject.slot("sojourn_p99"));
    samples.median_of(|round| round(auto) / round(one).min(round(other)))
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;
    use crate::judged::Judged;

    /// A chain whose packets take this time.
    fn chain(sojourn_us: u64, sent: f64, packets_out: u64) -> RouterTurn {
        let due = packets_out as f64;
        let mut turn = RouterTurn::forwarded(due, (due * sent) as u64, 0);
        turn.counters.packets_out = packets_out;
        turn.counters.sojourn = Histogram::new();
        turn.counters.sojourn.record_many(sojourn_us * 1000, 100);
        turn
    }

    /// The verdicts if packets of `deadline` take this time, those of UNiS 1000 us and those of all
    /// others 2000 us.
    fn verdicts(deadline_us: u64, auto_us: u64, sent: f64) -> Judged {
        let mut samples = Deployments::default();
        for _ in 0..8 {
            samples.push(
                subjects().observed(subjects().all().map(|[case, scheduler]| {
                    let us = match scheduler {
                        DEADLINE => deadline_us,
                        UNIS => 1000,
                        AUTO => auto_us,
                        _ => 2000,
                    };
                    let slas = CASES[case].1.iter();
                    // The sojourn of a chain without a budget does not count.
                    let chains = slas.map(|sla| match *sla {
                        "" => chain(9000, sent, 200_000),
                        _ => chain(us, sent, 100_000),
                    });
                    CoreTurn {
                        chains: chains.collect(),
                        rate_pps: 4e5,
                    }
                })),
            );
        }
        Judged::of(claims(&samples))
    }

    #[test]
    fn short_sojourns_fulfil_all_claims() {
        let all = verdicts(300, 300, 1.0);
        assert_eq!(all.counts(Verdict::Holds), (6, 6), "{all:?}");
    }

    #[test]
    fn turns_without_budget_are_found() {
        let all = verdicts(1000, 1000, 1.0);
        assert_eq!(
            all.with(Verdict::False),
            [
                "80 % load, p99, deadline / unis",
                "beside a backlog, p99, deadline / unis"
            ]
        );
    }

    #[test]
    fn an_auto_that_chooses_the_worse_is_found() {
        let all = verdicts(300, 2000, 1.0);
        let wrong = all.with(Verdict::False);
        assert_eq!(wrong.len(), 2, "{all:?}");
        assert!(wrong.iter().all(|id| id.contains("auto")));
    }

    #[test]
    fn a_generator_that_sends_half_decides_nothing() {
        let all = verdicts(300, 300, 0.5);
        assert_eq!(all.counts(Verdict::Undecided), (6, 6), "{all:?}");
    }
}
