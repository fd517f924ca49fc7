//! `calvin-technologies`: one function with every technology (CALVIN, Fig. 11).

use std::sync::Arc;

use myelin_measure::Mode;

use crate::agents::EmbeddedAgent;
use crate::published::{Published, calvin};
use crate::reference::Reference;
use crate::variant::{Measured, PAYLOADS, Variant, measure};
use crate::{Claim, Error, Findings, Row, Session, variants};

const MODES: [Mode; 2] = [Mode::Inline, Mode::Blocking];
const INLINE: usize = 0;

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

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let deployments = session.effort.rounds(4, 30);
    let measured = measure(session, deployments, &MODES, || build(session))?;
    let rounds = &measured.rounds;
    let mut findings = Findings::default()
        .with("probe_modes", "inline, blocking")
        .with("deployments", deployments.to_string())
        .with(
            "directions",
            "one function forwards packets to the server; replies pass a tc redirect to the peer",
        );
    for (variant_index, variant) in measured.variants.iter().enumerate() {
        for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
            for (mode_index, mode) in MODES.into_iter().enumerate() {
                let at = |variant| measured.subject(variant, payload_index, mode_index);
                let (technology, function) = technology_and_function(&variant.name);
                findings.add_row(
                    Row::of("round trips")
                        .with("variant", variant.name.as_str())
                        .with("technology", technology)
                        .with("function", function)
                        .with("payload_bytes", payload)
                        .with("mode", mode.to_string())
                        .with_estimate("rtt_mean", "_us", rounds.mean(at(variant_index)))
                        .with(
                            "times_direct",
                            rounds.ratio_value(at(variant_index), at(0))?,
                        )
                        .with("what", variant.about.as_str()),
                );
            }
        }
    }
    findings.rows.extend_from_slice(&measured.rest);
    add_claims(&measured, &mut findings)?;
    Ok(findings)
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

fn add_claims(measured: &Measured<Vec<Row>>, findings: &mut Findings) -> Result<(), Error> {
    let rounds = &measured.rounds;
    let find = |name: &str| measured.find(name);
    let names = TECHNOLOGIES.map(|(technology, ..)| technology);
    for technology in names.into_iter().chain([DPDK_PORT]) {
        let Some(forward) = find(&format!("{technology} FWD")) else {
            continue;
        };
        for (function, _) in &FUNCTIONS[1..] {
            let Some(index) = find(&format!("{technology} {function}")) else {
                continue;
            };
            for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
                for (mode_index, mode) in MODES.into_iter().enumerate() {
                    let at = |variant| measured.subject(variant, payload_index, mode_index);
                    let ratio = rounds.ratio(at(index), at(forward))?;
                    let id = format!("{technology}, {function} / FWD, {payload} B, {mode}");
                    let claim = Claim::ratio_at_most(id, ratio, FUNCTION_BOUND);
                    findings.add_claim(calvin::FUNCTION_OF_FORWARD.add_to(claim));
                }
            }
        }
    }
    let port = format!("{DPDK_PORT} FWD");
    if let (Some(one), Some(other)) = (find(&port), find(DPDK_REFERENCE)) {
        for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
            let at = |variant| measured.subject(variant, payload_index, INLINE);
            let ratio = rounds.ratio(at(one), at(other))?;
            let id = format!("{port} / {DPDK_REFERENCE}, {payload} B, {}", MODES[INLINE]);
            findings.claim_at_most(id, ratio, DPDK_BOUND);
        }
    }
    for (subject_name, reference_name, payload, published) in PUBLISHED {
        let (Some(one), Some(other), Some(payload_index)) = (
            find(subject_name),
            find(reference_name),
            PAYLOADS.iter().position(|bytes| *bytes == payload),
        ) else {
            continue;
        };
        for (mode_index, mode) in MODES.into_iter().enumerate() {
            let at = |variant| measured.subject(variant, payload_index, mode_index);
            let id = format!("{subject_name} / {reference_name}, {payload} B, {mode}");
            let ratio = rounds.ratio(at(one), at(other))?;
            // The paper's figure next to ours, without a bound.
            let claim = Claim::ratio_at_most(id, ratio, published.value);
            findings.add_claim(published.add_to(claim.without_bound()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
