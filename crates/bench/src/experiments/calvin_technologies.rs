//! `calvin-technologies`: one function with every technology (CALVIN, Fig. 11).

use std::sync::Arc;

use myelin_measure::Mode;
use myelin_metrics::stats::Deployments;

use crate::agents::EmbeddedAgent;
use crate::published::{Published, calvin};
use crate::reference::Reference;
use crate::round_trips::{RoundTrips, TripSubjects};
use crate::variant::Variant;
use crate::{Claim, Error, Experiment, Findings, Row, Session, variants};

const MODES: [Mode; 2] = [Mode::Inline, Mode::Blocking];

/// The paper's functions, and Myelin's kinds.
const FUNCTIONS: [(&str, &str); 3] = [
    ("FWD", "kind: forward"),
    ("ATS", "kind: timestamp"),
    ("XOR", "kind: xor, config: { key: 0x5a }"),
];
/// Key of XOR.
const XOR_KEY: u8 = 0x5a;

/// Technologies that run all three functions: name, description, space, lines of `spec`.
const TECHNOLOGIES: [(&str, &str, &str, &str); 4] = [
    ("tcx", "kernel function at tcx", "kernel", "  hook: tcx\n"),
    (
        "XDP compact",
        "kernel function at XDP",
        "kernel",
        "  hook: xdp\n",
    ),
    (
        "XDP distributed",
        "kernel function at XDP in a separate namespace",
        "kernel",
        "  mapping: distributed\n  hook: xdp\n",
    ),
    ("AF_XDP", "user-space function, polling", "user", ""),
];

/// The technology with DPDK devices, which not every machine has.
const DPDK_PORT: &str = "DPDK port";
const DPDK_REFERENCE: &str = "DPDK FWD";

/// Largest cost of ATS and XOR over that of FWD.
const FUNCTION_BOUND: f64 = 1.05;
/// Largest cost of a forwarding function on the DPDK port over that of the bare forwarder.
const DPDK_BOUND: f64 = 1.03;

/// Published ratios of mean round trips: subject, reference, payload, ratio.
const PUBLISHED: [(&str, &str, usize, Published); 3] = [
    (
        "kernel forwarding",
        "XDP compact FWD",
        1400,
        calvin::KERNEL_FORWARDING_OF_XDP,
    ),
    (
        "DPDK FWD",
        "XDP compact FWD",
        256,
        calvin::DPDK_OF_XDP_SMALL,
    ),
    (
        "DPDK FWD",
        "XDP compact FWD",
        1400,
        calvin::DPDK_OF_XDP_LARGE,
    ),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-technologies",
    about: "round trip through FWD, ATS and XOR by every technology, inline and blocking (CALVIN, Fig. 11)",
    differs: "hosts and functions are in network namespaces of one machine, not in virtual machines; a packet follows the reply to the packet before it, without the paper's interval of 5 ms (`--interval 5ms`)",
    run,
    plots: include_str!("../../plots/calvin-technologies.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let RoundTrips {
        samples, subjects, ..
    } = session.round_trips(1.0, &MODES, findings, || build(session), claims)?;
    for subject in subjects.all() {
        let (technology, function) = technology_and_function(&subject.variant.name);
        findings.add_row(
            Row::of("round trips")
                .with("variant", subject.variant.name.as_str())
                .with("technology", technology)
                .with("function", function)
                .with("payload_bytes", subject.payload)
                .with("mode", subject.conditions.to_string())
                .with_estimate("rtt_mean", "_us", samples.mean(subject.slot))
                .with(
                    "times_direct",
                    samples.ratio_value(subject.slot, subject.first),
                )
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

/// All variants that are available here, the direct link first, and a row for each missing one.
fn build(session: Session<'_>) -> Result<(Vec<Variant>, Vec<Row>), Error> {
    let agent = EmbeddedAgent::open(session.program)?;
    let mut made = vec![
        variants::direct()?,
        variants::bridge()?.with_name("Linux bridge"),
        variants::kernel_forwarding()?.with_name("kernel forwarding"),
    ];
    for technology in TECHNOLOGIES {
        for function in FUNCTIONS {
            session.check()?;
            let name = format!("c{}", made.len());
            made.push(chain(&agent, &name, technology, function)?);
        }
    }
    let (programs, mut skipped) = variants::start_references(&[
        (
            Reference::Dpdk,
            DPDK_REFERENCE,
            "DPDK over net_af_xdp, polling",
        ),
        (
            Reference::Packet,
            "AF_PACKET FWD",
            "plain packet sockets, polling",
        ),
    ])?;
    made.extend(programs);
    match myelin_dpdk::version() {
        Ok(_) => {
            for (function, kind) in FUNCTIONS {
                session.check()?;
                let variant = variants::deploy_dpdk_chain(
                    session.program,
                    &format!("c{}", made.len()),
                    "user-space function between devices of DPDK over net_af_xdp, polling",
                    kind,
                    variants::BATCH,
                )?;
                made.push(with_name_and_key(variant, DPDK_PORT, function));
            }
        }
        Err(reason) => skipped.push(Findings::skipped_row("variant", DPDK_PORT, &reason)),
    }
    Ok((made, skipped))
}

fn chain(
    agent: &Arc<EmbeddedAgent>,
    name: &str,
    (technology, about, space, more): (&str, &str, &str, &str),
    (function, kind): (&str, &str),
) -> Result<Variant, Error> {
    let more = match space {
        "user" => variants::spinning_worker()?,
        _ => more.to_owned(),
    };
    let variant = variants::deploy_chain(agent, name, about, &[(kind, space)], &more)?;
    Ok(with_name_and_key(variant, technology, function))
}

fn with_name_and_key(variant: Variant, technology: &str, function: &str) -> Variant {
    let key = if function == "XOR" { XOR_KEY } else { 0 };
    variant
        .with_name(&format!("{technology} {function}"))
        .with_key(key)
}

fn claims(samples: &Deployments, subjects: &TripSubjects) -> Vec<Claim> {
    let mut claims = Vec::new();
    let names = TECHNOLOGIES.map(|(technology, ..)| technology);
    for technology in names.into_iter().chain([DPDK_PORT]) {
        for (function, _) in &FUNCTIONS[1..] {
            let [one, forward] = [function, "FWD"].map(|name| format!("{technology} {name}"));
            for (payload, mode, ratio) in subjects.ratios(samples, &one, &forward) {
                let id = format!("{technology}, {function} / FWD, {payload} B, {mode}");
                let claim = Claim::at_most(id, ratio, FUNCTION_BOUND);
                claims.push(calvin::FUNCTION_OF_FORWARD.add_to(claim));
            }
        }
    }
    let port = format!("{DPDK_PORT} FWD");
    for (payload, conditions, ratio) in subjects.ratios(samples, &port, DPDK_REFERENCE) {
        if conditions.mode == Mode::Inline {
            let id = format!("{port} / {DPDK_REFERENCE}, {payload} B, {conditions}");
            claims.push(Claim::at_most(id, ratio, DPDK_BOUND));
        }
    }
    for (subject, reference, of_payload, published) in PUBLISHED {
        for (payload, mode, ratio) in subjects.ratios(samples, subject, reference) {
            if payload == of_payload {
                let id = format!("{subject} / {reference}, {payload} B, {mode}");
                // The paper's figure beside ours, without a bound.
                claims.push(published.add_to(Claim::shown(id, ratio)));
            }
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
        let mut names: Vec<String> = TECHNOLOGIES
            .iter()
            .flat_map(|(technology, ..)| {
                FUNCTIONS.map(|(function, _)| format!("{technology} {function}"))
            })
            .collect();
        names.extend(["kernel forwarding", "DPDK FWD"].map(String::from));
        for (subject, reference, payload, _) in PUBLISHED {
            assert!(names.iter().any(|name| name == subject), "{subject}");
            assert!(names.iter().any(|name| name == reference), "{reference}");
            assert!(PAYLOADS.contains(&payload));
        }
    }
}
