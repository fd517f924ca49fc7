//! `calvin-technologies`: one function with every technology (CALVIN, Fig. 11).

use myelin_measure::Mode;
use myelin_metrics::stats::Deployments;

use crate::published::{Published, calvin};
use crate::round_trips::TripSubjects;
use crate::variants::{self, PathKind, VariantSpec};
use crate::{Claim, Error, Experiment, Findings, Row, Session, experiment};

const MODES: [Mode; 2] = [Mode::Inline, Mode::Blocking];

/// The paper's functions, and Myelin's kinds.
const FUNCTIONS: [(&str, &str); 3] = [
    ("FWD", "kind: forward"),
    ("ATS", "kind: timestamp"),
    ("XOR", "kind: xor, config: { key: 0x5a }"),
];
/// Key of XOR.
const XOR_KEY: u8 = 0x5a;

/// The technology with DPDK devices, which not every machine has, and the bare forwarder.
const DPDK_PORT: &str = "DPDK port";
const DPDK_REFERENCE: &str = "DPDK FWD";

/// Largest cost of ATS and XOR over that of FWD.
const FUNCTION_BOUND: f64 = 1.05;
/// Largest cost of a forwarding function on the DPDK port over that of the bare forwarder.
const DPDK_BOUND: f64 = 1.03;

const KERNEL: &str = "kernel forwarding";
const XDP: &str = "XDP compact FWD";
/// Published ratios of mean round trips: subject, reference, payload, ratio.
const PUBLISHED: [(&str, &str, usize, Published); 3] = [
    (KERNEL, XDP, 1400, calvin::KERNEL_FORWARDING_OF_XDP),
    (DPDK_REFERENCE, XDP, 256, calvin::DPDK_OF_XDP_SMALL),
    (DPDK_REFERENCE, XDP, 1400, calvin::DPDK_OF_XDP_LARGE),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-technologies",
    about: "round trip through FWD, ATS and XOR by every technology, inline and blocking (CALVIN, Fig. 11)",
    differs: "hosts and functions are in network namespaces of one machine, not in virtual machines; a packet follows the reply to the packet before it, without the paper's interval of 5 ms (`--interval 5ms`)",
    run,
    plots: include_str!("../../plots/calvin-technologies.yaml"),
};

/// The variants: each function with each technology that has chains.
fn specs() -> Result<Vec<VariantSpec>, Error> {
    let text = include_str!("../../cases/calvin-technologies.yaml");
    let technologies: Vec<VariantSpec> = experiment::parse_list("calvin-technologies", text)?;
    let each_function = |technology: VariantSpec| {
        FUNCTIONS.map(|(function, kind)| VariantSpec {
            name: format!("{} {function}", technology.name),
            function: kind.to_owned(),
            key: if function == "XOR" { XOR_KEY } else { 0 },
            ..technology.clone()
        })
    };
    let of = |technology: VariantSpec| {
        if is_chain(&technology) {
            each_function(technology).into()
        } else {
            vec![technology]
        }
    };
    Ok(technologies.into_iter().flat_map(of).collect())
}

fn is_chain(spec: &VariantSpec) -> bool {
    matches!(spec.path, PathKind::Chain | PathKind::DpdkChain)
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let mut specs = specs()?;
    let dpdk = myelin_dpdk::version();
    specs.retain(|spec| spec.path != PathKind::DpdkChain || dpdk.is_ok());
    let build = || variants::build(&specs, session);
    let claims = |samples: &Deployments, subjects: &TripSubjects| claims(samples, subjects, &specs);
    let trips = session.round_trips(1.0, &MODES, findings, build, claims)?;
    if let Err(reason) = dpdk {
        findings.add_row(Findings::skipped_row("variant", DPDK_PORT, &reason));
    }
    for subject in trips.subjects.all() {
        let (technology, function) = technology_and_function(&subject.variant.name);
        findings.add_row(
            Row::of("round trips")
                .with("variant", subject.variant.name.as_str())
                .with("technology", technology)
                .with("function", function)
                .with("payload_bytes", subject.payload)
                .with("mode", subject.conditions.to_string())
                .with_estimate("rtt_mean", "_us", trips.samples.mean(subject.slot))
                .with("times_direct", trips.times_first(&subject))
                .with("what", subject.variant.about.as_str()),
        );
    }
    findings.set("probe_modes", "inline, blocking");
    findings.set(
        "directions",
        "one function forwards packets to the server; replies pass a tc redirect to the peer",
    );
    Ok(())
}

/// Technology and function of a variant. Bridge and router forward; a cable has no function.
fn technology_and_function(name: &str) -> (&str, &str) {
    let of_function = |(function, _): &(&'static str, &str)| {
        let technology = name.strip_suffix(function)?.trim_end();
        Some((technology, *function))
    };
    match FUNCTIONS.iter().find_map(of_function) {
        Some(parts) => parts,
        None if name == "direct" => (name, "none"),
        None => (name, "FWD"),
    }
}

fn claims(samples: &Deployments, subjects: &TripSubjects, specs: &[VariantSpec]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for spec in specs.iter().filter(|spec| is_chain(spec)) {
        let (technology, function) = technology_and_function(&spec.name);
        if function == "FWD" {
            continue;
        }
        let forward = format!("{technology} FWD");
        let what = format!("{technology}, {function} / FWD");
        for ratio in subjects.ratios(samples, &what, [&spec.name, &forward]) {
            claims.push(calvin::FUNCTION_OF_FORWARD.add_to(ratio.at_most(FUNCTION_BOUND)));
        }
    }
    if specs.iter().any(|spec| spec.path == PathKind::DpdkChain) {
        let port = format!("{DPDK_PORT} FWD");
        let what = format!("{port} / {DPDK_REFERENCE}");
        let ratios = subjects.ratios(samples, &what, [&port, DPDK_REFERENCE]);
        let inline = ratios
            .into_iter()
            .filter(|ratio| ratio.conditions.mode == Mode::Inline);
        claims.extend(inline.map(|ratio| ratio.at_most(DPDK_BOUND)));
    }
    for (subject, reference, of_payload, published) in PUBLISHED {
        let what = format!("{subject} / {reference}");
        let ratios = subjects.ratios(samples, &what, [subject, reference]);
        for ratio in ratios
            .into_iter()
            .filter(|ratio| ratio.payload == of_payload)
        {
            // The paper's figure beside ours, without a bound.
            claims.push(published.add_to(Claim::shown(ratio.id, ratio.ratio)));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_trips::PAYLOADS;

    #[test]
    fn variant_names_contain_technology_and_function() {
        for (name, expected) in [
            ("direct", ("direct", "none")),
            ("Linux bridge", ("Linux bridge", "FWD")),
            ("XDP distributed ATS", ("XDP distributed", "ATS")),
            ("DPDK FWD", ("DPDK", "FWD")),
            ("DPDK port XOR", ("DPDK port", "XOR")),
        ] {
            assert_eq!(technology_and_function(name), expected);
        }
    }

    #[test]
    fn published_ratios_name_existing_variants() {
        let specs = specs().unwrap();
        let is_variant = |name| specs.iter().any(|spec| spec.name == name);
        for (subject, reference, payload, _) in PUBLISHED {
            assert!(is_variant(subject), "{subject}");
            assert!(is_variant(reference), "{reference}");
            assert!(PAYLOADS.contains(&payload));
        }
    }
}
