//! `kernel-chain`: the cost of each further function of a kernel chain, from 1 to 32.

use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_measure::Mode;
use myelin_metrics::stats::Deployments;
use myelin_spec::{FunctionConfig, XorConfig};

use super::classifier::Door;
use crate::round_trips::TripSubjects;
use crate::sampling::{Sampling, Turns};
use crate::variants::{self, VariantSpec};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session, ebpf, frames};

const LENGTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Largest round trip of 32 functions over that of one.
const ROUND_TRIP_BOUND: f64 = 1.12;
/// Largest cost of a further function, ns.
const FUNCTION_BOUND_NS: f64 = 20.0;
/// Repeats in a test run.
const RUNS: u32 = 20_000;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "kernel-chain",
    about: "round trip and processing time of 1 to 32 kernel functions in one chain, at both hooks",
    differs: "",
    run,
    plots: include_str!("../../plots/kernel-chain.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    for hook in Hook::ALL {
        test_runs(hook, session, findings)?;
    }
    for hook in Hook::ALL {
        round_trips(hook, session, findings)?;
    }
    findings.set("probe_mode", Mode::Inline);
    Ok(())
}

fn round_trips(hook: Hook, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let specs = LENGTHS.map(|length| VariantSpec {
        name: length.to_string(),
        spaces: vec!["kernel".to_owned(); length],
        hook: Some(hook.to_string()),
        ..VariantSpec::default()
    });
    let build = || variants::build(&specs, session);
    let claims = |samples: &Deployments, subjects: &TripSubjects| {
        let what = format!("32 functions / 1, {hook}");
        let ratios = subjects.ratios(samples, &what, ["32", "1"]).into_iter();
        ratios
            .map(|ratio| ratio.at_most(ROUND_TRIP_BOUND))
            .collect()
    };
    let trips = session.round_trips(0.35, &[Mode::Inline], findings, build, claims)?;
    for subject in trips.subjects.all() {
        findings.add_row(
            Row::of("round trips")
                .with("hook", hook.to_string())
                .with("functions", subject.variant.name.parse::<usize>().ok())
                .with("payload_bytes", subject.payload)
                .with_estimate("rtt_p50", "_us", trips.samples.median(subject.slot))
                .with("times_one", trips.times_first(&subject)),
        );
    }
    Ok(())
}

fn test_runs(hook: Hook, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let sampling = Sampling::of(format!("test runs at {hook}"))
        .rounds(5)
        .share(0.15);
    let function = if session.has_fault(Fault::SlowFunction) {
        FunctionConfig::Xor(XorConfig { key: 90 })
    } else {
        FunctionConfig::Forward
    };
    let deploy = |turns: &mut Turns<'_>| {
        let doors = LENGTHS
            .iter()
            .map(|&length| Door::new(hook, false, None, &vec![function.clone(); length]))
            .collect::<Result<Vec<_>, _>>()?;
        turns.measure(doors.len(), |subject| {
            let program = doors[subject].port.program(hook)?;
            ebpf::mean_ns(program.as_fd(), hook, &frame, RUNS)
        })
    };
    let each = |samples: &Deployments, index: usize| {
        let more = (LENGTHS[index] - 1) as f64;
        samples.median_of(|round| (round(index) - round(0)) / more)
    };
    let claims = |samples: &Deployments, (): &()| {
        vec![Claim::at_most(
            format!("each further function, ns, {hook}"),
            each(samples, LENGTHS.len() - 1),
            FUNCTION_BOUND_NS,
        )]
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (index, length) in LENGTHS.into_iter().enumerate() {
        findings.add_row(
            Row::of("test runs")
                .with("hook", hook.to_string())
                .with("functions", length)
                .with_estimate("chain", "_ns", samples.median(index))
                .with("each_further_ns", each(&samples, index).map(|e| e.value)),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;

    #[test]
    fn slow_functions_turn_the_claim() {
        // Made-up costs of a further function, ns: a forward costs 8, an XOR over the frame 60.
        for (costs, deployments, expected) in [
            ([8.0, 9.0], 8, Verdict::Holds),
            ([8.0, 9.0], 7, Verdict::Undecided),
            ([8.0, 30.0], 8, Verdict::Undecided),
            ([60.0, 70.0], 8, Verdict::False),
        ] {
            let mut samples = Deployments::default();
            for number in 0..deployments {
                let chain_ns = |length: usize| 150.0 + costs[number % 2] * length as f64;
                samples.push(LENGTHS.map(|length| vec![chain_ns(length)]).into());
            }
            let more = (LENGTHS[LENGTHS.len() - 1] - 1) as f64;
            let each = samples.median_of(|round| (round(LENGTHS.len() - 1) - round(0)) / more);
            let claim = Claim::at_most("each further function", each, FUNCTION_BOUND_NS);
            assert_eq!(claim.verdict(), Some(expected), "{claim:?}");
        }
    }
}
