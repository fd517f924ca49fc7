//! `hop-cost`: the round trip through one hop of every technology.

use myelin_measure::Mode;

use crate::agents::EmbeddedAgent;
use crate::reference::Reference;
use crate::variant::{PAYLOADS, Variant, measure, polling_core};
use crate::{Error, Findings, Row, Session, variants};

const FORWARD: &str = "kind: forward";

/// Variant, reference, and bound on the ratio. No paper published a ratio of these pairs.
const CLAIMS: [(&str, &str, f64); 5] = [
    ("tcx", "kernel-forwarding", 0.95),
    ("tcx", "direct", 1.12),
    ("xdp", "xdp-redirect", 1.03),
    ("user", "c-afxdp", 1.02),
    ("user", "dpdk-afxdp", 1.0),
];

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let deployments = session.effort.rounds(12, 40);
    let measured = measure(session, deployments, &[Mode::Inline], || build(session))?;
    let mut findings = Findings::default()
        .with("probe_mode", "inline")
        .with("packets_a_round", session.effort.packets().to_string())
        .with("deployments", deployments.to_string())
        .with("polling_core", polling_core()?.to_string())
        .with("directions", "one function, redirect or forwarder forwards packets to the server; replies pass a tc redirect to the peer");
    let rounds = &measured.rounds;
    for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
        let at = |variant: usize| measured.subject(variant, payload_index, 0);
        for (index, variant) in measured.variants.iter().enumerate() {
            findings.add_row(
                Row::of("round trips")
                    .with("variant", variant.name.as_str())
                    .with("payload_bytes", payload)
                    .with_estimate("rtt_p50", "_us", rounds.median(at(index)))
                    .with("times_direct", rounds.ratio_value(at(index), at(0))?)
                    .with("what", variant.about.as_str()),
            );
        }
    }
    findings.rows.extend_from_slice(&measured.rest);
    for (subject, reference, bound) in CLAIMS {
        let both = (measured.find(subject), measured.find(reference));
        let (Some(one), Some(other)) = both else {
            continue;
        };
        for (index, payload) in PAYLOADS.into_iter().enumerate() {
            let at = |variant: usize| measured.subject(variant, index, 0);
            let ratio = rounds.ratio(at(one), at(other))?;
            findings.claim_at_most(
                format!("{subject} / {reference}, {payload} B"),
                ratio,
                bound,
            );
        }
    }
    Ok(findings)
}

/// All variants that are available here, the direct link first, and a row for each missing one.
fn build(session: Session<'_>) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let agent = EmbeddedAgent::open(session.program)?;
    let spinning = variants::spinning_worker()?;
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
        session.progress("making the variants", made.len(), total)
    };
    add(variants::direct()?)?;
    add(variants::bridge()?)?;
    add(variants::kernel_forwarding()?)?;
    add(variants::tc_redirect()?)?;
    add(variants::xdp_redirect()?)?;
    add(variants::deploy_chain(
        &agent,
        "tcx",
        "chain of one forward at tcx",
        &[(FORWARD, "kernel")],
        "  hook: tcx\n",
    )?)?;
    add(variants::deploy_chain(
        &agent,
        "xdp",
        "chain of one forward at XDP",
        &[(FORWARD, "kernel")],
        "  hook: xdp\n",
    )?)?;
    add(variants::deploy_chain(
        &agent,
        "user",
        "chain of one forward in user space",
        &[(FORWARD, "user")],
        &spinning,
    )?)?;
    let (programs, skipped) = variants::start_references(&references)?;
    for program in programs {
        add(program)?;
    }
    Ok((made, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_name_existing_variants() {
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
