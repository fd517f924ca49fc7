//! `bulk`: TCP through one box, by applications of the distribution: bulk, files, connections.
//!
//! Hosts and box are network namespaces on veth pairs with the kernel's default offloads. Clients,
//! servers and workers run where the scheduler puts them, as a user starts them.

mod paths;

use std::collections::BTreeMap;
use std::time::Duration;

use myelin_metrics::stats::{Deployments, Estimate};

use self::paths::{
    C_FORWARDER, DeployedPath, KERNEL_OF_1, KERNEL_OF_5, PathSpec, ROUTER_WITH_RULE, USER_OF_1,
    USER_OF_5,
};
use crate::applications::{Load, Workload};
use crate::experiment::Effort;
use crate::figures::Column::Hidden;
use crate::figures::{Figure, Subjects};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Findings, Row, Session};

/// Least ratio of a chain's rate to that of another path, for each workload: chain, (other path,
/// bound).
const BOUNDS: [(&str, [(&str, f64); 4]); 4] = [
    (KERNEL_OF_1, against_router([1.0, 1.0, 1.05, 1.05])),
    (KERNEL_OF_5, against_router([0.95, 0.95, 1.0, 1.0])),
    (USER_OF_1, against_both([0.95, 0.95, 0.75, 0.9])),
    (USER_OF_5, against_both([0.85, 0.85, 0.7, 0.85])),
];

const fn against_router(bounds: [f64; 4]) -> [(&'static str, f64); 4] {
    let [bulk, large, small, connections] = bounds;
    [
        (ROUTER_WITH_RULE, bulk),
        (ROUTER_WITH_RULE, large),
        (ROUTER_WITH_RULE, small),
        (ROUTER_WITH_RULE, connections),
    ]
}

/// Long transfers against the program in C, short ones against the kernel.
const fn against_both(bounds: [f64; 4]) -> [(&'static str, f64); 4] {
    let [bulk, large, small, connections] = bounds;
    [
        (C_FORWARDER, bulk),
        (C_FORWARDER, large),
        (ROUTER_WITH_RULE, small),
        (ROUTER_WITH_RULE, connections),
    ]
}

const FIGURES: &[Figure<Load>] = &[
    Figure::new("rate", Hidden, |load| load.rate),
    Figure::new("p99", Hidden, |load| load.p99_us),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "bulk",
    about: "TCP bulk (iperf3), files and connections (nginx, wrk) through one box between links with the kernel's default offloads: chains of 1, 2 and 5 header functions, router, bridge, a forwarder in C",
    differs: "",
    run,
    plots: include_str!("../../plots/bulk.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let workloads = available(&Workload::ALL, |workload| {
        (workload.name(), workload.check_installed())
    });
    let paths = available(&wanted(session), |path| (path.name, path.check_available()));
    for (field, skipped) in [("workload", &workloads.1), ("path", &paths.1)] {
        let rows = skipped.iter();
        let rows = rows.map(|(name, reason)| Findings::skipped_row(field, *name, reason));
        findings.rows.extend(rows);
    }
    let measured = Measured {
        workloads: workloads.0,
        paths: paths.0,
    };
    let window = window(session.effort);
    findings.set("window_ms", window.as_millis());
    findings.set(
        "http",
        "32 connections of one client thread to one server process",
    );
    if measured.workloads.is_empty() {
        return Ok(());
    }
    let subjects = measured.subjects();
    let mut rates = BTreeMap::new();
    let sampling = Sampling::of("bulk, files, connections").rounds(session.effort.choose(1, 1, 2));
    let deploy = |turns: &mut Turns<'_>| {
        let deployed = measured.deploy(session)?;
        subjects.measure(turns, |at| {
            let [workload, path] = at;
            let workload = measured.workloads[workload];
            let window = match workload {
                // A retransmission timeout is 200 ms at least.
                Workload::Bulk => 2 * window,
                _ => window,
            };
            let load = deployed[path].load(workload, window, rates.get(&at).copied(), session)?;
            rates.insert(at, load.rate);
            Ok(load)
        })
    };
    let claims = |samples: &Deployments, (): &()| measured.claims(samples);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings.rows.extend(measured.rows(&samples));
    Ok(())
}

/// Time of a measurement with wrk. The clients add their start, wrk up to 100 ms of its timer.
fn window(effort: Effort) -> Duration {
    Duration::from_millis(effort.choose(100, 120, 250))
}

/// The paths of a run. A quick run and a known-bad system need those of the claims only.
fn wanted(session: Session<'_>) -> Vec<PathSpec> {
    let is_whole = session.effort != Effort::Quick && session.fault.is_none();
    let in_claims = |name: &str| {
        let mut pairs = BOUNDS.iter();
        pairs
            .any(|(chain, others)| *chain == name || others.iter().any(|(other, _)| *other == name))
    };
    let all = paths::all(session.fault).into_iter();
    all.filter(|path| is_whole || in_claims(path.name))
        .collect()
}

/// Those that are available here, and the reason of each other one.
fn available<T: Copy>(
    all: &[T],
    check: impl Fn(&T) -> (&'static str, Result<(), Error>),
) -> (Vec<T>, Vec<(&'static str, Error)>) {
    let (mut available, mut skipped) = (Vec::new(), Vec::new());
    for one in all {
        match check(one) {
            (_, Ok(())) => available.push(*one),
            (name, Err(reason)) => skipped.push((name, reason)),
        }
    }
    (available, skipped)
}

/// Paths and workloads that are measured.
struct Measured {
    paths: Vec<PathSpec>,
    workloads: Vec<Workload>,
}

impl Measured {
    /// Workload and path. Paths of a workload take turns.
    fn subjects(&self) -> Subjects<Load, 2> {
        Subjects::new(FIGURES, [self.workloads.len(), self.paths.len()])
    }

    fn deploy(&self, session: Session<'_>) -> Result<Vec<DeployedPath>, Error> {
        let mut deployed = Vec::new();
        for path in &self.paths {
            session.check()?;
            deployed.push(path.deploy(&self.workloads, session.program)?);
        }
        Ok(deployed)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.paths.iter().position(|path| path.name == name)
    }

    /// The ratio of the rate of a path to that of another one.
    fn ratio(
        &self,
        samples: &Deployments,
        [path, other]: [usize; 2],
        workload: usize,
    ) -> Option<Estimate> {
        let subjects = self.subjects();
        let [path, other] = [path, other].map(|path| subjects.at(samples, [workload, path]));
        path.ratio(&other, "rate")
    }

    /// The claims about paths and workloads that are available here.
    fn claims(&self, samples: &Deployments) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (index, workload) in self.workloads.iter().enumerate() {
            let place = Workload::ALL.iter().position(|one| one == workload);
            for (chain, others) in &BOUNDS {
                let (other, bound) = others[place.unwrap_or_default()];
                let (Some(ours), Some(theirs)) = (self.find(chain), self.find(other)) else {
                    continue;
                };
                let id = format!("{}, {chain} / {other}", workload.name());
                let ratio = self.ratio(samples, [ours, theirs], index);
                claims.push(Claim::at_least(id, ratio, bound));
            }
        }
        claims
    }

    /// A row for each subject. The tables of bulk and of requests have different units.
    fn rows(&self, samples: &Deployments) -> Vec<Row> {
        let subjects = self.subjects();
        let mut rows = Vec::new();
        for (index, workload) in self.workloads.iter().enumerate() {
            for (place, path) in self.paths.iter().enumerate() {
                let load = subjects.at(samples, [index, place]);
                let rate = load.median("rate");
                let times = |other| {
                    let other = self.find(other)?;
                    Some(self.ratio(samples, [place, other], index)?.value)
                };
                let row = match workload {
                    Workload::Bulk => Row::of("TCP bulk").with("path", path.name).with_estimate(
                        "goodput_gbit",
                        "_s",
                        rate.map(|rate| rate.scaled(1e-9)),
                    ),
                    _ => Row::of("HTTP")
                        .with("workload", workload.name())
                        .with("path", path.name)
                        .with_estimate("requests_per", "_s", rate)
                        .with("p99_us", load.median("p99").map(|p99| p99.value)),
                };
                rows.push(
                    row.with("times_router_with_rule", times(ROUTER_WITH_RULE))
                        .with("times_c_forwarder", times(C_FORWARDER))
                        .with("what", path.about),
                );
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;
    use crate::Fault;

    /// The claims of deployments in which each path has these rates, in the order of `paths::all`.
    fn claims_of(rates: [f64; 12], deployments: usize) -> Vec<Claim> {
        let measured = Measured {
            paths: paths::all(None),
            workloads: Workload::ALL.into(),
        };
        let mut samples = Deployments::default();
        for number in 0..deployments {
            let drift = 1.0 + number as f64 / 100.0;
            let loads = rates.map(|rate| Load {
                rate: rate * drift,
                p99_us: 400.0,
            });
            samples.push(measured.subjects().observed([loads; 4].concat()));
        }
        assert_eq!(measured.rows(&samples).len(), 48);
        measured.claims(&samples)
    }

    fn verdict(claims: &[Claim], id: &str) -> Option<Verdict> {
        claims.iter().find(|claim| claim.id == id)?.verdict()
    }

    /// Made-up rates in Gbit/s or so: direct, router, router with rule, bridge, kernel chains, user
    /// chains, user chain of wire size, C.
    const GOOD: [f64; 12] = [
        19.5, 18.2, 18.0, 18.6, 19.2, 19.1, 19.0, 17.0, 16.8, 16.6, 3.5, 11.0,
    ];

    #[test]
    fn fast_chains_keep_all_bounds() {
        let claims = claims_of(GOOD, 8);
        assert_eq!(claims.len(), 16);
        for claim in &claims {
            assert_eq!(claim.verdict(), Some(Verdict::Holds), "{claim:?}");
        }
        let early = claims_of(GOOD, 7);
        let is_undecided = |claim: &Claim| claim.verdict() == Some(Verdict::Undecided);
        assert!(early.iter().all(is_undecided));
    }

    #[test]
    fn links_without_offloads_turn_the_claims() {
        let (name, parts) = Fault::LinksWithoutOffloads.target();
        assert_eq!(name, EXPERIMENT.name);
        let mut rates = GOOD;
        rates[4..10].fill(9.8);
        let claims = claims_of(rates, 8);
        let is_target = |claim: &&Claim| claim.id.contains(parts[0]);
        let mut turned = claims.iter().filter(is_target);
        assert!(turned.all(|claim| claim.verdict() == Some(Verdict::False)));
        let held = "TCP bulk, user chain of 5 / C forwarder";
        assert_eq!(verdict(&claims, held), Some(Verdict::Holds), "9.8 of 11");
        let small = "6 B files, user chain of 5 / router with rule";
        assert_eq!(verdict(&claims, small), Some(Verdict::False));
    }

    #[test]
    fn claims_need_both_paths() {
        let mut paths = paths::all(None);
        paths.retain(|path| path.name != ROUTER_WITH_RULE);
        let measured = Measured {
            paths,
            workloads: vec![Workload::Connections, Workload::Bulk],
        };
        let claims = measured.claims(&Deployments::default());
        let ids: Vec<_> = claims.iter().map(|claim| claim.id.as_str()).collect();
        let expected = [
            "TCP bulk, user chain of 1 / C forwarder",
            "TCP bulk, user chain of 5 / C forwarder",
        ];
        assert_eq!(ids, expected);
        assert!(measured.rows(&Deployments::default()).len() == 22);
    }
}
