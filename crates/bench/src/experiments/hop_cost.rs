//! `hop-cost`: the round trip through one hop of every technology.

use myelin_measure::Mode;
use myelin_metrics::stats::Deployments;

use crate::agents::EmbeddedAgent;
use crate::reference::Reference;
use crate::round_trips::{RoundTrips, TripSubjects};
use crate::variant::{Variant, polling_core};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session, variants};

const FORWARD: &str = "kind: forward";

/// Variant, reference, and bound on the ratio. No paper published a ratio of these pairs.
const CLAIMS: [(&str, &str, f64); 5] = [
    ("tcx", "kernel-forwarding", 0.95),
    ("tcx", "direct", 1.12),
    ("xdp", "xdp-redirect", 1.03),
    ("user", "c-afxdp", 1.02),
    ("user", "dpdk-afxdp", 1.0),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "hop-cost",
    about: "round trip through one function at tcx, at XDP and over AF_XDP, against cable, bridge, router and bare forwarders",
    differs: "",
    run,
    plots: include_str!("../../plots/hop-cost.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let claims = |samples: &Deployments, subjects: &TripSubjects| {
        let claim = |(subject, reference, bound): (&'static str, &'static str, f64)| {
            let ratios = subjects.ratios(samples, subject, reference).into_iter();
            ratios.map(move |(payload, _, ratio)| {
                let id = format!("{subject} / {reference}, {payload} B");
                Claim::at_most(id, ratio, bound)
            })
        };
        CLAIMS.into_iter().flat_map(claim).collect()
    };
    let RoundTrips {
        samples, subjects, ..
    } = session.round_trips(1.0, &[Mode::Inline], findings, || build(session), claims)?;
    for subject in subjects.all() {
        findings.add_row(
            Row::of("round trips")
                .with("variant", subject.variant.name.as_str())
                .with("payload_bytes", subject.payload)
                .with_estimate("rtt_p50", "_us", samples.median(subject.slot))
                .with(
                    "times_direct",
                    samples.ratio_value(subject.slot, subject.first),
                )
                .with("what", subject.variant.about.as_str()),
        );
    }
    findings.set("probe_mode", Mode::Inline);
    findings.set("polling_core", polling_core()?);
    findings.set(
        "directions",
        "one function, redirect or forwarder forwards packets to the server; replies pass a tc redirect to the peer",
    );
    Ok(())
}

/// All variants that are available here, the direct link first, and a row for each missing one.
fn build(session: Session<'_>) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let agent = EmbeddedAgent::open(session.program)?;
    let spinning = if session.has_fault(Fault::SleepingForwarder) {
        variants::worker("sleep", variants::BATCH)?
    } else {
        variants::spinning_worker()?
    };
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
