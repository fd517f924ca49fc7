//! `sfc-rendering`: time to bring a chain up over the nodes of a cluster.

use std::time::Instant;

use myelin_metrics::stats::Deployments;
use myelin_spec::Space;

use crate::cluster::placements::{ALGORITHMS, crossings, places};
use crate::cluster::rivals::{Rival, RivalChain};
use crate::cluster::{Cluster, DELAY_NS, LONGEST, NODES, with_mean};
use crate::figures::Column::Interval;
use crate::figures::{Figure, Subjects};
use crate::published::sfc;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Largest time of ten functions over the published one.
const PUBLISHED_BOUND: f64 = 0.1;
/// Largest time on ten nodes over that on one.
const NODES_BOUND: f64 = 2.0;
/// Largest time over that of functions in Python.
const PYTHON_BOUND: f64 = 1.0;
/// Nodes of the wide cluster.
const WIDE: usize = 10;
/// Time that each node more takes longer with [`Fault::SlowNodes`], ms.
const SLOW_MS: f64 = 1000.0;
/// Time that each chain takes longer with [`Fault::SlowRendering`], ms.
const LONG_MS: f64 = 20_000.0;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "sfc-rendering",
    about: "Fig. 2.4(a): time to bring up a chain of 1 to 10 functions over four nodes, with the placements lb, lc and lblc, beside functions in Python, and of ten functions on ten nodes",
    differs: "the dissertation boots virtual machines on four servers; here an agent for each node runs already, on one machine, and a function is an eBPF program",
    run,
    plots: include_str!("../../plots/sfc-rendering.yaml"),
};

const FIGURES: &[Figure<f64>] = &[Figure::new("up", Interval("_ms"), |ms| *ms)];
const PYTHON: &str = "python";

/// What renders a chain: Myelin with one of [`ALGORITHMS`], or functions in Python.
fn renderer(number: usize) -> &'static str {
    ALGORITHMS
        .get(number)
        .map_or(PYTHON, |algorithm| algorithm.as_str())
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("nodes", NODES);
    measure_lengths(session, findings)?;
    measure_nodes(session, findings)
}

fn measure_lengths(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let lengths: &[usize] = session.effort.choose(
        &[1, LONGEST],
        &[1, 4, 7, LONGEST],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, LONGEST],
    );
    let python = Rival::find_python();
    if let Err(reason) = &python {
        findings.add_row(Findings::skipped_row("renderer", PYTHON, reason));
    }
    let renderers = ALGORITHMS.len() + usize::from(python.is_ok());
    let subjects = Subjects::new(FIGURES, [renderers, lengths.len()]);
    let more_ms = if session.has_fault(Fault::SlowRendering) {
        LONG_MS
    } else {
        0.0
    };
    let deploy = |turns: &mut Turns<'_>| {
        let cluster = Cluster::start(session.program, NODES, DELAY_NS)?;
        subjects.measure(turns, |[renderer, length]| {
            let length = lengths[length];
            match (ALGORITHMS.get(renderer), &python) {
                (Some(algorithm), _) => {
                    Ok(up_ms(&cluster, &places(*algorithm, NODES, length)?)? + more_ms)
                }
                (None, Ok(python)) => python_ms(&cluster, python, length),
                (None, Err(reason)) => Err(Error::Internal(reason.to_string())),
            }
        })
    };
    let longest = lengths.len() - 1;
    let claims = |samples: &Deployments, (): &()| {
        let of = |renderer| subjects.at(samples, [renderer, longest]);
        let seconds = of(0).median("up").map(|up| up.scaled(1e-3));
        let bound = PUBLISHED_BOUND * sfc::RENDERING_S.value;
        let claim = Claim::at_most(format!("{LONGEST} functions, lb, s"), seconds, bound);
        let mut claims = vec![sfc::RENDERING_S.add_to(claim)];
        if renderers > ALGORITHMS.len() {
            claims.push(Claim::at_most(
                format!("{LONGEST} functions, lblc / functions in Python"),
                of(2).ratio(&of(ALGORITHMS.len()), "up"),
                PYTHON_BOUND,
            ));
        }
        claims
    };
    let sampling = Sampling::of("lengths").rounds(1).share(0.6);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for at in subjects.all() {
        let [number, length] = at;
        let placed = ALGORITHMS.get(number).copied().unwrap_or(ALGORITHMS[2]);
        let row = Row::of("rendering")
            .with("renderer", renderer(number))
            .with("functions", lengths[length])
            .with(
                "crossings",
                crossings(&places(placed, NODES, lengths[length])?),
            );
        let subject = subjects.at(&samples, at);
        let row = with_mean(subject.add_to(row), "up", "_ms", &subject);
        findings.add_row(row);
    }
    Ok(())
}

/// Measures ten functions on one node, and one on each of ten nodes.
fn measure_nodes(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    const USED: [usize; 2] = [1, WIDE];
    let subjects = Subjects::new(FIGURES, [USED.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let cluster = Cluster::start(session.program, WIDE, DELAY_NS)?;
        subjects.measure(turns, |[used]| {
            let used = USED[used];
            let places: Vec<usize> = (0..LONGEST).map(|at| at * used / LONGEST).collect();
            let more = if session.has_fault(Fault::SlowNodes) {
                SLOW_MS * (used - 1) as f64
            } else {
                0.0
            };
            Ok(up_ms(&cluster, &places)? + more)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let [one, ten] = [0, 1].map(|used| subjects.at(samples, [used]));
        let id = format!("{LONGEST} functions, {WIDE} nodes / 1 node");
        vec![Claim::at_most(id, ten.ratio(&one, "up"), NODES_BOUND)]
    };
    let sampling = Sampling::of("nodes").rounds(2).share(0.4);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[used]| {
        Row::of("rendering on nodes").with("nodes", USED[used])
    });
    findings.rows.extend(rows);
    Ok(())
}

/// The time from the request to the answer that the chain is active. Packets pass it then.
fn up_ms(cluster: &Cluster, places: &[usize]) -> Result<f64, Error> {
    let ends = cluster.ends(places)?;
    ends.wait_for(0)?;
    let start = Instant::now();
    cluster.up(places, Space::Kernel)?;
    let up_ms = start.elapsed().as_secs_f64() * 1e3;
    ends.wait_for(places.len())?;
    cluster.down()?;
    Ok(up_ms)
}

/// The time to make the namespaces and links of functions in Python, and to start them.
fn python_ms(cluster: &Cluster, python: &Rival, length: usize) -> Result<f64, Error> {
    let places = places(ALGORITHMS[2], NODES, length)?;
    let start = Instant::now();
    let chain = RivalChain::start(&cluster.agent, python, &places)?;
    let up_ms = start.elapsed().as_secs_f64() * 1e3;
    chain.ends()?.wait_for(chain.altering())?;
    Ok(up_ms)
}
