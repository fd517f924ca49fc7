//! `chain-length`: the cost of each further function in each mapping.

use myelin_measure::Mode;
use myelin_metrics::stats::{Deployments, Estimate};

use crate::agents::EmbeddedAgent;
use crate::round_trips::{PAYLOADS, RoundTrips, TripSubjects};
use crate::variant::Variant;
use crate::{Claim, Error, Experiment, Findings, Row, Session, variants};

/// Layouts: name, space, lines of `spec`, lengths. With few cores, the processes of a long pipeline
/// wait for each other.
const LAYOUTS: [(&str, &str, &str, &[usize]); 4] = [
    (
        "compact kernel",
        "kernel",
        "  mapping: compact\n  hook: tcx\n",
        &[1, 2, 8, 32],
    ),
    (
        "compact user",
        "user",
        "  mapping: compact\n",
        &[1, 2, 8, 32],
    ),
    (
        "distributed kernel",
        "kernel",
        "  mapping: distributed\n",
        &[1, 2, 4, 8],
    ),
    ("pipeline", "user", "  mapping: pipeline\n", &[2, 4]),
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
    let claims = |samples: &Deployments, _: &TripSubjects| {
        let mut claims = Vec::new();
        for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
            for (layout, bound) in TWO {
                let slots = [2, 0].map(|functions| slot(layout, functions, payload_index));
                let id = format!("{layout}, two functions / direct, {payload} B");
                claims.push(Claim::at_most(id, samples.ratio(slots[0], slots[1]), bound));
            }
            for (layout, bound) in STEPS {
                let id = format!("{layout}, each further function, us, {payload} B");
                claims.push(Claim::at_most(
                    id,
                    step(samples, layout, payload_index),
                    bound,
                ));
            }
        }
        claims
    };
    let build = || Ok((build(session)?, Vec::new()));
    let RoundTrips { samples, .. } =
        session.round_trips(1.0, &[Mode::Inline], findings, build, claims)?;
    for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
        for (layout, _, _, lengths) in LAYOUTS {
            for length in lengths {
                let [at, direct] = [*length, 0].map(|length| slot(layout, length, payload_index));
                findings.add_row(
                    Row::of("round trips")
                        .with("layout", layout)
                        .with("functions", *length)
                        .with("payload_bytes", payload)
                        .with_estimate("rtt_p50", "_us", samples.median(at))
                        .with("times_direct", samples.ratio_value(at, direct)),
                );
            }
            findings.add_row(
                Row::of("each further function")
                    .with("layout", layout)
                    .with("payload_bytes", payload)
                    .with_estimate("step", "_us", step(&samples, layout, payload_index)),
            );
        }
    }
    findings.set("probe_mode", Mode::Inline);
    Ok(())
}

/// The slot of a layout with that many functions. None is the direct link.
fn slot(layout: &str, functions: usize, payload_index: usize) -> usize {
    let all = LAYOUTS
        .into_iter()
        .flat_map(|(layout, _, _, lengths)| lengths.iter().map(move |length| (layout, *length)));
    let chain = all
        .into_iter()
        .position(|chain| chain == (layout, functions));
    chain.map_or(0, |chain| 1 + chain) * PAYLOADS.len() + payload_index
}

/// What a further function of a layout adds to a round trip, us.
fn step(samples: &Deployments, layout: &str, payload_index: usize) -> Option<Estimate> {
    let (.., lengths) = LAYOUTS.into_iter().find(|(name, ..)| *name == layout)?;
    let (fewest, most) = (*lengths.first()?, *lengths.last()?);
    let [fewer, more] = [fewest, most].map(|length| slot(layout, length, payload_index));
    samples.median_of(|round| (round(more) - round(fewer)) / (most - fewest) as f64)
}

/// The direct link, then every layout with every length.
fn build(session: Session<'_>) -> Result<Vec<Variant>, Error> {
    let agent = EmbeddedAgent::open(session.program)?;
    let mut made = vec![variants::direct()?];
    for (layout, space, more, lengths) in LAYOUTS {
        for length in lengths {
            session.check()?;
            let worker = match layout {
                "compact user" => variants::spinning_worker()?,
                // The processes of a pipeline share the polling core, so they sleep when idle.
                _ => String::new(),
            };
            let name = format!("c{}", made.len());
            made.push(variants::deploy_chain(
                &agent,
                &name,
                layout,
                &vec![("kind: forward", space); *length],
                &format!("{more}{worker}"),
            )?);
        }
    }
    Ok(made)
}
