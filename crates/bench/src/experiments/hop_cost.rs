//! `hop-cost`: the round trip through one hop of every technology.

use myelin_measure::Mode;
use myelin_metrics::stats::Deployments;

use crate::round_trips::TripSubjects;
use crate::variant::polling_core;
use crate::variants::{self, VariantSpec};
use crate::{Error, Experiment, Fault, Findings, Session, experiment};

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
    let text = include_str!("../../cases/hop-cost.yaml");
    let mut specs: Vec<VariantSpec> = experiment::parse_list("hop-cost", text)?;
    if session.has_fault(Fault::SleepingForwarder) {
        for idle in specs.iter_mut().filter_map(|spec| spec.idle.as_mut()) {
            "sleep".clone_into(idle);
        }
    }
    let claims = |samples: &Deployments, subjects: &TripSubjects| {
        let claims = CLAIMS.into_iter().flat_map(|(subject, reference, bound)| {
            let pair = format!("{subject} / {reference}");
            let ratios = subjects.ratios(samples, &pair, [subject, reference]);
            ratios.into_iter().map(move |ratio| ratio.at_most(bound))
        });
        claims.collect()
    };
    let build = || variants::build(&specs, session);
    let trips = session.round_trips(1.0, &[Mode::Inline], findings, build, claims)?;
    findings.rows.extend(trips.rows(|row, _| row));
    findings.set("probe_mode", Mode::Inline);
    findings.set("polling_core", polling_core()?);
    findings.set(
        "directions",
        "one function, redirect or forwarder forwards packets to the server; replies pass a tc redirect to the peer",
    );
    Ok(())
}
