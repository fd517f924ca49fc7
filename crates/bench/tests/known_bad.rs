//! Runs experiments with known-bad systems. Each fault turns its claims false, or undecided if it
//! is a fault of the measurement. Without this, an experiment that cannot fail would pass
//! unnoticed.

mod program;

use std::process::ExitCode;

use libtest_mimic::Trial;
use myelin_bench::{Claim, Effort, Fault, Options, Verdict, experiments};

fn main() -> ExitCode {
    program::main(Fault::ALL.map(test_of).into())
}

/// The fewest that decide a claim.
const DEPLOYMENTS: usize = 8;

/// Thorough, unless cores are simulated: its verdict rests on what this machine measures. Unit
/// tests of the experiments judge made-up figures of the same faults.
fn test_of(fault: Fault) -> Trial {
    let mut targets = experiments().iter();
    let is_simulated = targets.any(|one| one.name == fault.target().0 && one.is_simulated());
    program::test(fault.name().to_owned(), move || check_fault(fault))
        .with_ignored_flag(!is_simulated)
}

fn check_fault(fault: Fault) {
    let (experiment, parts) = fault.target();
    // A trial does not calibrate the costs on which a bound rests.
    let effort = match experiment {
        "bound" => Effort::Quick,
        _ => Effort::Trial,
    };
    let options = Options {
        fault: Some(fault),
        deployments: Some(DEPLOYMENTS),
        ..program::options(effort)
    };
    let report = program::measure(experiment, &options);
    assert_eq!(report.ended_early, None, "{fault}");
    assert_eq!(report.environment.settings["fault"], fault.name());
    let judged = report
        .claims
        .iter()
        .filter(|claim| claim.verdict().is_some());
    let judged: Vec<&Claim> = judged.collect();
    for part in parts {
        let is_there = judged.iter().any(|claim| claim.id.contains(part));
        assert!(is_there, "{fault}, {part}: {:#?}", report.claims);
    }
    let is_target = |claim: &&Claim| parts.iter().any(|part| claim.id.contains(part));
    let targets: Vec<&Claim> = judged.into_iter().filter(is_target).collect();
    let expected = match fault {
        Fault::HalfRateGenerator => Verdict::Undecided,
        _ => Verdict::False,
    };
    for claim in &targets {
        assert_eq!(claim.verdict(), Some(expected), "{fault}: {claim:?}");
    }
    program::check_leftovers(fault.name());
    println!("{fault}: {experiment}, {} claims turned", targets.len());
}
