//! `chain-length`: the cost of each further function in each mapping.

use myelin_measure::Mode;
use myelin_metrics::stats::{Deployments, Estimate};

use crate::round_trips::{PAYLOADS, TripSubjects};
use crate::variants::{self, VariantSpec};
use crate::{Claim, Error, Experiment, Findings, Row, Session, experiment};

/// Lengths of the layouts. With few cores, the processes of a long pipeline wait for each other.
const LAYOUTS: [(&str, &[usize]); 4] = [
    ("compact kernel", &[1, 2, 8, 32]),
    ("compact user", &[1, 2, 8, 32]),
    ("distributed kernel", &[1, 2, 4, 8]),
    ("pipeline", &[2, 4]),
];

/// Largest addition of a further function to a round trip, us: layout, bound.
const STEPS: [(&str, f64); 2] = [("compact kernel", 0.05), ("distributed kernel", 0.7)];
/// Largest round trip of two kernel functions over the direct link's: layout, bound.
const TWO: [(&str, f64); 2] = [("compact kernel", 1.15), ("distributed kernel", 1.7)];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "chain-length",
    about: "round trips through 1 to 32 functions in every mapping, and the cost of each further one",
    differs: "",
    run,
    plots: include_str!("../../plots/chain-length.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let specs = specs()?;
    let build = || variants::build(&specs, session);
    let claims = |samples: &Deployments, subjects: &TripSubjects| {
        let mut claims = Vec::new();
        for (layout, bound) in TWO {
            let what = format!("{layout}, two functions / direct");
            let ratios = subjects.ratios(samples, &what, [&format!("{layout}, 2"), "direct"]);
            claims.extend(ratios.into_iter().map(|ratio| ratio.at_most(bound)));
        }
        for (layout, bound) in STEPS {
            for (index, payload) in PAYLOADS.into_iter().enumerate() {
                let id = format!("{layout}, each further function, us, {payload} B");
                let step = step(samples, subjects, layout, index);
                claims.push(Claim::at_most(id, step, bound));
            }
        }
        claims
    };
    let trips = session.round_trips(1.0, &[Mode::Inline], findings, build, claims)?;
    let samples = &trips.samples;
    for (index, payload) in PAYLOADS.into_iter().enumerate() {
        for (layout, lengths) in LAYOUTS {
            for length in lengths {
                let at = slot(&trips.subjects, layout, *length, index);
                let times_direct = at.and_then(|at| samples.ratio_value(at, index));
                findings.add_row(
                    Row::of("round trips")
                        .with("layout", layout)
                        .with("functions", *length)
                        .with("payload_bytes", payload)
                        .with_estimate("rtt_p50", "_us", at.and_then(|at| samples.median(at)))
                        .with("times_direct", times_direct),
                );
            }
            let step = step(samples, &trips.subjects, layout, index);
            findings.add_row(
                Row::of("each further function")
                    .with("layout", layout)
                    .with("payload_bytes", payload)
                    .with_estimate("step", "_us", step),
            );
        }
    }
    findings.set("probe_mode", Mode::Inline);
    Ok(())
}

/// The direct link, then every layout with every length.
fn specs() -> Result<Vec<VariantSpec>, Error> {
    let text = include_str!("../../cases/chain-length.yaml");
    let mut specs: Vec<VariantSpec> = experiment::parse_list("chain-length", text)?;
    let layouts = specs.split_off(1);
    for (layout, (_, lengths)) in layouts.iter().zip(LAYOUTS) {
        specs.extend(lengths.iter().map(|length| layout.repeated(*length)));
    }
    Ok(specs)
}

/// The slot of a layout with that many functions.
fn slot(subjects: &TripSubjects, layout: &str, functions: usize, payload: usize) -> Option<usize> {
    let variant = subjects.find(&format!("{layout}, {functions}"))?;
    Some(subjects.slot(variant, payload, 0))
}

/// What a further function of a layout adds to a round trip, us.
fn step(
    samples: &Deployments,
    subjects: &TripSubjects,
    layout: &str,
    payload: usize,
) -> Option<Estimate> {
    let (_, lengths) = LAYOUTS.into_iter().find(|(name, _)| *name == layout)?;
    let (fewest, most) = (*lengths.first()?, *lengths.last()?);
    let fewer = slot(subjects, layout, fewest, payload)?;
    let more = slot(subjects, layout, most, payload)?;
    samples.median_of(|round| (round(more) - round(fewer)) / (most - fewest) as f64)
}
