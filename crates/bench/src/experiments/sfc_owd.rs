//! `sfc-owd`: one-way delay of chains over the nodes of a cluster, beside kernel forwarding and
//! functions in Python.

use std::time::Duration;

use myelin_metrics::stats::Deployments;
use myelin_spec::Space;

use crate::cluster::placements::{ALGORITHMS, crossings, places};
use crate::cluster::probe::INTERVAL;
use crate::cluster::rivals::{Rival, RivalChain};
use crate::cluster::{Cluster, DELAY_NS, Joint, LONGEST, NODES, with_mean};
use crate::figures::Column::Interval;
use crate::figures::{Figure, Subjects};
use crate::published::sfc;
use crate::sampling::{Sampling, Turns, quantile};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Largest delay of functions in the kernel over that of kernel forwarding, which alters nothing.
const FORWARDING_BOUND: f64 = 1.2;
/// Largest delay of functions in user space over that of functions in Python.
const PYTHON_BOUND: f64 = 0.5;
/// Largest delay with fewer crossings over that of `lb`.
const CROSSINGS_BOUND: f64 = 1.0;
/// Largest delay in VXLAN behind a router over that on Ethernet behind a switch. The router takes
/// part of the difference.
const VXLAN_BOUND: f64 = 1.15;
/// Times the delay between nodes with [`Fault::FarNodes`].
const FAR: u64 = 20;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "sfc-owd",
    about: "Figs. 2.5(a) and 2.5(b): one-way delay of chains of 1 to 10 functions over four nodes, with the placements lb, lc and lblc, beside kernel forwarding and functions in Python; and of two functions on nodes behind a switch and behind a router",
    differs: "the dissertation has virtual machines on four servers, without functions of Myelin; here four nodes are on one machine, 100 us from each other",
    run,
    plots: include_str!("../../plots/sfc-owd.yaml"),
};

/// Delays of a chain's packets, us.
#[derive(Debug, Clone)]
struct Delays(Vec<f64>);

const FIGURES: &[Figure<Delays>] = &[
    Figure::new("owd_p50", Interval("_us"), |delays| {
        quantile(&delays.0, 0.5)
    }),
    Figure::new("owd", Interval("_us"), |delays| {
        delays.0.iter().sum::<f64>() / delays.0.len() as f64
    }),
];
const P50: &str = "owd_p50";

/// What a chain is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Functions {
    Myelin(Space),
    Rival(Rival),
}

impl Functions {
    fn name(&self) -> &'static str {
        match self {
            Self::Myelin(Space::Kernel) => "kernel function",
            Self::Myelin(Space::User) => "user function",
            Self::Rival(Rival::KernelForwarding) => "kernel forwarding",
            Self::Rival(Rival::Python(_)) => "function in Python",
        }
    }
}

const KERNEL: usize = 0;
const USER: usize = 1;
const FORWARDING: usize = 2;
const PYTHON: usize = 3;

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(5, 15, 30);
    let interval = match session.interval {
        Duration::ZERO => INTERVAL,
        interval => interval,
    };
    findings.set("nodes", NODES);
    findings.set("packets_of_a_figure", packets);
    findings.set("probe_interval_us", interval.as_micros());
    measure_lengths(session, findings, (packets, interval))?;
    measure_joints(session, findings, (packets, interval))
}

fn measure_lengths(
    session: Session<'_>,
    findings: &mut Findings,
    probe: (usize, Duration),
) -> Result<(), Error> {
    let lengths: &[usize] = session.effort.choose(
        &[LONGEST],
        &[1, 4, LONGEST],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, LONGEST],
    );
    let mut functions = vec![
        Functions::Myelin(Space::Kernel),
        Functions::Myelin(Space::User),
        Functions::Rival(Rival::KernelForwarding),
    ];
    match Rival::find_python() {
        Ok(python) => functions.push(Functions::Rival(python)),
        Err(reason) => {
            findings.add_row(Findings::skipped_row(
                "functions",
                "function in Python",
                &reason,
            ));
        }
    }
    let times = if session.has_fault(Fault::FarNodes) {
        FAR
    } else {
        1
    };
    let is_swapped = session.has_fault(Fault::SwappedPlacements);
    let shape = [functions.len(), ALGORITHMS.len(), lengths.len()];
    let subjects = Subjects::new(FIGURES, shape);
    let deploy = |turns: &mut Turns<'_>| {
        let cluster = Cluster::start(session.program, NODES, DELAY_NS * times)?;
        subjects.measure(turns, |[kind, algorithm, length]| {
            let placed = match algorithm {
                0 if is_swapped => ALGORITHMS[2],
                _ if is_swapped => ALGORITHMS[0],
                algorithm => ALGORITHMS[algorithm],
            };
            let places = places(placed, NODES, lengths[length])?;
            measure(&cluster, (&functions[kind], &places), probe)
        })
    };
    let claims = |samples: &Deployments, (): &()| claims(&subjects, &functions, samples);
    let sampling = Sampling::of("one-way delays").rounds(1).share(0.9);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for at in subjects.all() {
        let [kind, algorithm, length] = at;
        let placed = places(ALGORITHMS[algorithm], NODES, lengths[length])?;
        let row = Row::of("one-way delays")
            .with("chain", functions[kind].name())
            .with("placement", ALGORITHMS[algorithm].as_str())
            .with("functions", lengths[length])
            .with("crossings", crossings(&placed));
        let subject = subjects.at(&samples, at);
        findings.add_row(with_mean(subject.add_to(row), "owd", "_us", &subject));
    }
    Ok(())
}

/// Measures two functions on two nodes that a switch or a router joins, without emulated delays.
fn measure_joints(
    session: Session<'_>,
    findings: &mut Findings,
    probe: (usize, Duration),
) -> Result<(), Error> {
    const JOINTS: [(Joint, &str); 2] = [
        (Joint::Switch, "NSH on Ethernet"),
        (Joint::Router, "NSH in VXLAN"),
    ];
    let subjects = Subjects::new(FIGURES, [JOINTS.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let clusters = JOINTS.map(|(joint, _)| {
            let is_far = joint == Joint::Router && session.has_fault(Fault::FarNodes);
            let delay_ns = if is_far { DELAY_NS * FAR } else { 0 };
            Cluster::start_joined(session.program, (2, delay_ns), joint)
        });
        let clusters = clusters.into_iter().collect::<Result<Vec<_>, _>>()?;
        subjects.measure(turns, |[joint]| {
            let functions = Functions::Myelin(Space::Kernel);
            measure(&clusters[joint], (&functions, &[0, 1]), probe)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let [ethernet, vxlan] = [0, 1].map(|joint| subjects.at(samples, [joint]));
        let id = format!("2 functions, {} / {}", JOINTS[1].1, JOINTS[0].1);
        vec![Claim::at_most(id, vxlan.ratio(&ethernet, P50), VXLAN_BOUND)]
    };
    let sampling = Sampling::of("joints").rounds(4).share(0.1);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[joint]| {
        Row::of("joints of nodes").with("frames", JOINTS[joint].1)
    });
    findings.rows.extend(rows);
    Ok(())
}

/// The claims about the longest chains.
fn claims(
    subjects: &Subjects<Delays, 3>,
    functions: &[Functions],
    samples: &Deployments,
) -> Vec<Claim> {
    let longest = subjects
        .all()
        .map(|[.., length]| length)
        .max()
        .unwrap_or_default();
    let of = |kind: usize, algorithm: usize| subjects.at(samples, [kind, algorithm, longest]);
    let pairs = [
        (KERNEL, FORWARDING, FORWARDING_BOUND),
        (USER, PYTHON, PYTHON_BOUND),
    ];
    let mut claims = Vec::new();
    for (one, other, bound) in pairs
        .into_iter()
        .filter(|(_, other, _)| *other < functions.len())
    {
        let [name, rival] = [one, other].map(|kind| functions[kind].name());
        for (number, algorithm) in ALGORITHMS.into_iter().enumerate() {
            let ratio = of(one, number).ratio(&of(other, number), P50);
            let id = format!("{LONGEST} functions, {algorithm}, {name} / {rival}");
            claims.push(Claim::at_most(id, ratio, bound));
        }
    }
    let placed = [(KERNEL, 1, sfc::LC_OVER_LB), (USER, 2, sfc::LBLC_OVER_LB)];
    for (kind, algorithm, published) in placed {
        let ratio = of(kind, algorithm).ratio(&of(kind, 0), P50);
        let (name, placement) = (functions[kind].name(), ALGORITHMS[algorithm]);
        let id = format!("{LONGEST} functions, {name}, {placement} / lb");
        claims.push(published.add_to(Claim::at_most(id, ratio, CROSSINGS_BOUND)));
    }
    claims
}

/// Makes a chain, sends packets through it, and removes it.
fn measure(
    cluster: &Cluster,
    (functions, places): (&Functions, &[usize]),
    probe: (usize, Duration),
) -> Result<Delays, Error> {
    let delays_ns = match functions {
        Functions::Myelin(space) => {
            let ends = cluster.ends(places)?;
            ends.wait_for(0)?;
            cluster.up(places, *space)?;
            let delays_ns = ends.delays_ns(places.len(), probe)?;
            cluster.down()?;
            delays_ns
        }
        Functions::Rival(rival) => {
            let chain = RivalChain::start(&cluster.agent, rival, places)?;
            chain.ends()?.delays_ns(chain.altering(), probe)?
        }
    };
    let mut delays_us: Vec<f64> = delays_ns.into_iter().map(|ns| ns / 1e3).collect();
    delays_us.sort_unstable_by(f64::total_cmp);
    Ok(Delays(delays_us))
}
