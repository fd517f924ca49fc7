//! `hop-cost`: the round trip through one hop, by every way there is to make one.

use myelin_measure::Mode;

use crate::reference::Reference;
use crate::rounds::Rounds;
use crate::stand::Stand;
use crate::variant::{About, Measured, PAYLOADS, Variant, measure, polling_core};
use crate::{Error, Experiment, Findings, Monitor, Options, Row, variants};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "hop-cost",
    about: "round trip through one function at tcx, at XDP and over AF_XDP, against cable, bridge, router and bare forwarders",
    run,
    plots: include_str!("../../plots/hop-cost.yaml"),
};

const FORWARD: &str = "kind: forward";

/// Variant, what it is compared with, and the bound on the ratio. Multiples of the direct link were published for none
/// of these pairs, hence no paper's figure.
const CLAIMS: [(&str, &str, f64); 5] = [
    ("tcx", "kernel-forwarding", 0.95),
    ("tcx", "direct", 1.12),
    ("xdp", "xdp-redirect", 1.03),
    ("user", "c-afxdp", 1.02),
    ("user", "dpdk-afxdp", 1.0),
];

fn run(options: &Options, monitor: &Monitor<'_>) -> Result<Findings, Error> {
    let deployments = options.rounds(12, 40);
    let Measured {
        rounds,
        variants,
        rest: skipped,
        ..
    } = measure(
        || build(options, monitor),
        deployments,
        &[Mode::Inline],
        options,
        monitor,
    )?;
    let mut findings = Findings::with([
            ("probe_mode", "inline".to_owned()),
            ("packets_a_round", options.packets().to_string()),
            ("deployments", deployments.to_string()),
            ("polling_core", polling_core()?.to_string()),
            ("directions", "one function, redirect or forwarder takes the packets to the server; replies pass a tc redirect to the peer".to_owned()),
        ]);
    for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
        for (index, variant) in variants.iter().enumerate() {
            let subject = index * PAYLOADS.len() + payload_index;
            findings
                .rows
                .push(row(&rounds, variant, payload, subject, payload_index)?);
        }
    }
    findings.rows.extend(skipped);
    claims(&mut findings, &variants, &rounds)?;
    Ok(findings)
}

/// Every variant that can be had here, the direct link first, and a row for each that cannot.
fn build(options: &Options, monitor: &Monitor<'_>) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let stand = Stand::open(&options.program)?;
    let spinning = variants::spinning()?;
    let references = [
        (
            Reference::AfXdp,
            "c-afxdp",
            "minimal AF_XDP forwarder in C, to the server",
        ),
        (
            Reference::Dpdk,
            "dpdk-afxdp",
            "DPDK over net_af_xdp, to the server",
        ),
    ];
    let mut made = Vec::new();
    let total = 8 + references.len();
    let mut add = |variant: Variant| {
        made.push(variant);
        monitor.progress("making the variants", made.len(), total)
    };
    add(variants::direct()?)?;
    add(variants::bridge()?)?;
    add(variants::kernel_forwarding()?)?;
    add(variants::tc_redirect()?)?;
    add(variants::xdp_redirect()?)?;
    add(variants::chain(
        &stand,
        "tcx",
        "chain of one forward at tcx",
        &[(FORWARD, "kernel")],
        "  hook: tcx\n",
    )?)?;
    add(variants::chain(
        &stand,
        "xdp",
        "chain of one forward at XDP",
        &[(FORWARD, "kernel")],
        "  hook: xdp\n",
    )?)?;
    add(variants::chain(
        &stand,
        "user",
        "chain of one forward in user space",
        &[(FORWARD, "user")],
        &spinning,
    )?)?;
    let (programs, skipped) = variants::references(&references)?;
    for program in programs {
        add(program)?;
    }
    Ok((made, skipped))
}

fn row(
    rounds: &Rounds,
    variant: &About,
    payload: usize,
    subject: usize,
    direct: usize,
) -> Result<Row, Error> {
    Ok(Row::of("round trips")
        .with("variant", variant.name.as_str())
        .with("payload_bytes", payload)
        .with_estimate("rtt_p50", "_us", rounds.median(subject))
        .with("times_direct", rounds.times(subject, direct)?)
        .with("what", variant.about.as_str()))
}

fn claims(findings: &mut Findings, variants: &[About], rounds: &Rounds) -> Result<(), Error> {
    let find = |name: &str| variants.iter().position(|variant| variant.name == name);
    for (subject, reference, bound) in CLAIMS {
        let (Some(subject_index), Some(reference_index)) = (find(subject), find(reference)) else {
            continue;
        };
        for (index, payload) in PAYLOADS.into_iter().enumerate() {
            let at = |variant: usize| variant * PAYLOADS.len() + index;
            let ratio = rounds.ratio(at(subject_index), at(reference_index))?;
            let id = format!("{subject} / {reference}, {payload} B");
            findings.at_most(id, &ratio, bound);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_name_variants_that_are_made() {
        let names = [
            "direct",
            "bridge",
            "kernel-forwarding",
            "xdp-redirect",
            "tcx",
            "xdp",
            "user",
            "c-afxdp",
            "dpdk-afxdp",
        ];
        for (subject, reference, bound) in CLAIMS {
            assert!(names.contains(&subject) && names.contains(&reference));
            assert!((0.9..1.2).contains(&bound));
        }
    }
}
