//! `kernel-chain`: the cost of each further function of a kernel chain, from 1 to 32.

use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_measure::Mode;
use myelin_spec::FunctionConfig;

use super::lookup::Door;
use crate::agents::EmbeddedAgent;
use crate::variant::{Measured, PAYLOADS, measure};
use crate::{Error, Findings, Row, Session, ebpf, frames, variants};

const LENGTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Largest round trip of 32 functions over that of one.
const ROUND_TRIP_BOUND: f64 = 1.12;
/// Largest cost of a further function, ns.
const FUNCTION_BOUND_NS: f64 = 20.0;
/// Repeats in a test run.
const RUNS: u32 = 20_000;

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let deployments = session.effort.rounds(6, 20);
    let mut findings = Findings::default()
        .with("probe_mode", "inline")
        .with("deployments", deployments.to_string());
    for hook in Hook::ALL {
        measure_test_runs(hook, session, &mut findings)?;
    }
    for hook in Hook::ALL {
        measure_round_trips(hook, deployments, session, &mut findings)?;
    }
    Ok(findings)
}

fn measure_round_trips(
    hook: Hook,
    deployments: usize,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let more = format!("  hook: {hook}\n");
    let build = || {
        let agent = EmbeddedAgent::open(session.program)?;
        let mut chains = Vec::new();
        for length in LENGTHS {
            session.progress("deploying", chains.len(), LENGTHS.len())?;
            let functions = vec![("kind: forward", "kernel"); length];
            let name = format!("{hook}-{length}");
            chains.push(variants::deploy_chain(
                &agent, &name, "", &functions, &more,
            )?);
        }
        Ok((chains, ()))
    };
    let Measured { rounds, .. } = measure(session, deployments, &[Mode::Inline], build)?;
    for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
        let subject = |length: usize| length * PAYLOADS.len() + payload_index;
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let ratio = rounds.ratio(subject(index), subject(0))?;
            findings.add_row(
                Row::of("round trips")
                    .with("hook", hook.to_string())
                    .with("functions", length)
                    .with("payload_bytes", payload)
                    .with_estimate("rtt_p50", "_us", rounds.median(subject(index)))
                    .with("times_one", ratio.value),
            );
        }
        let ratio = rounds.ratio(subject(LENGTHS.len() - 1), subject(0))?;
        let id = format!("32 functions / 1, {hook}, {payload} B");
        findings.claim_at_most(id, ratio, ROUND_TRIP_BOUND);
    }
    Ok(())
}

fn measure_test_runs(
    hook: Hook,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let doors = LENGTHS
        .iter()
        .map(|&length| Door::new(hook, false, None, &vec![FunctionConfig::Forward; length]))
        .collect::<Result<Vec<_>, _>>()?;
    let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let stage = format!("test runs at {hook}");
    let mut rounds = session.measure(&stage, doors.len(), (40, 200), |subject| {
        let program = doors[subject].port.program(hook)?;
        ebpf::mean_ns(program.as_fd(), hook, &frame, RUNS)
    })?;
    for (index, length) in LENGTHS.into_iter().enumerate() {
        let more = (length as f64 - 1.0).max(1.0);
        let each = rounds.derive(index, 0, |all, one| (all - one) / more);
        findings.add_row(
            Row::of("test runs")
                .with("hook", hook.to_string())
                .with("functions", length)
                .with_estimate("chain", "_ns", rounds.median(index))
                .with(
                    "each_further_ns",
                    (length > 1).then(|| rounds.median(each).map(|e| e.value)),
                ),
        );
        if length == 32 {
            findings.claim_median_at_most(
                format!("each further function, ns, {hook}"),
                rounds.median(each),
                FUNCTION_BOUND_NS,
            );
        }
    }
    Ok(())
}
