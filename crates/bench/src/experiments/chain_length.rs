//! `chain-length`: the cost of each further function in each mapping.

use myelin_measure::Mode;

use crate::agents::EmbeddedAgent;
use crate::variant::{Measured, PAYLOADS, Variant, measure};
use crate::{Error, Findings, Row, Session, variants};

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

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let deployments = session.effort.rounds(4, 20);
    let build = || Ok((build(session)?, ()));
    let Measured { mut rounds, .. } = measure(session, deployments, &[Mode::Inline], build)?;
    let mut findings = Findings::default()
        .with("probe_mode", "inline")
        .with("deployments", deployments.to_string());
    for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
        let at = |variant: usize| variant * PAYLOADS.len() + payload_index;
        let mut variant = 1;
        for (layout, _, _, lengths) in LAYOUTS {
            let (first, last) = (variant, variant + lengths.len() - 1);
            for length in lengths {
                findings.add_row(
                    Row::of("round trips")
                        .with("layout", layout)
                        .with("functions", *length)
                        .with("payload_bytes", payload)
                        .with_estimate("rtt_p50", "_us", rounds.median(at(variant)))
                        .with("times_direct", rounds.ratio_value(at(variant), at(0))?),
                );
                if *length == 2
                    && let Some((_, bound)) = TWO.iter().find(|(name, _)| *name == layout)
                {
                    let ratio = rounds.ratio(at(variant), at(0))?;
                    let id = format!("{layout}, two functions / direct, {payload} B");
                    findings.claim_at_most(id, ratio, *bound);
                }
                variant += 1;
            }
            let further = (lengths[lengths.len() - 1] - lengths[0]) as f64;
            let step = rounds.derive(at(last), at(first), |many, one| (many - one) / further);
            findings.add_row(
                Row::of("each further function")
                    .with("layout", layout)
                    .with("payload_bytes", payload)
                    .with_estimate("step", "_us", rounds.median(step)),
            );
            if let Some((_, bound)) = STEPS.iter().find(|(name, _)| *name == layout) {
                let id = format!("{layout}, each further function, us, {payload} B");
                findings.claim_median_at_most(id, rounds.median(step), *bound);
            }
        }
    }
    Ok(findings)
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
