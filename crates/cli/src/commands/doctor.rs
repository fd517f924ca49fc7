//! `myelin doctor`: what this kernel and machine can and cannot do, and what follows.

use std::fmt::Display;
use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_kernel::State;
use myelin_linux::capability;
use myelin_linux::cgroup::Hierarchies;
use myelin_linux::feature::{self, Answer, Feature};
use myelin_linux::machine::Machine;
use myelin_linux::pm_qos;
use myelin_report::terminal::Column;
use serde::Serialize;

use crate::output;

/// Arguments of `myelin doctor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Everything is found out by trying it, in a namespace that is thrown away; most of that needs root.\n\
                  Exit status 1: this machine lacks something that every chain needs."
)]
pub(crate) struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One finding.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    /// `yes`, `no` or `unknown`, with the reason.
    answer: String,
    required: bool,
    /// What follows when the answer is no.
    consequence: String,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    usable: bool,
    machine: Machine,
    findings: Vec<Finding>,
}

/// Examines.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let diagnosis = examine();
    if arguments.json {
        output::json(&diagnosis)?;
    } else {
        print(&diagnosis);
    }
    Ok(if diagnosis.usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn examine() -> Diagnosis {
    let kernel = myelin_kernel::features();
    let machine = Machine::detect();
    let is_root = capability::is_root();
    let root = if is_root {
        "yes"
    } else {
        "no: most answers below are unknown"
    };
    let mut findings = vec![finding(
        "root",
        root,
        is_root,
        "only `plan`, `functions` and the clients of a running agent work",
    )];
    findings[0].required = true;
    findings.extend(kernel.all.iter().map(|feature| Finding {
        required: feature.required,
        ..finding(
            feature.name,
            &feature.state,
            feature.state == State::Yes,
            feature.consequence,
        )
    }));
    findings.extend(Feature::ALL.into_iter().map(|feature| {
        let answer = feature::probe(feature);
        finding(
            feature.name(),
            &answer,
            answer == Answer::Yes,
            without(feature),
        )
    }));
    let scaling = machine.cpufreq_driver.as_deref();
    findings.extend([
        optional(
            "control groups",
            control_groups(),
            "these `limits` of a function cannot be held",
        ),
        optional(
            "runc",
            myelin_agent::runc_version(),
            "no function can have `isolation: container`",
        ),
        optional(
            "DPDK",
            myelin_dpdk::version(),
            "chains cannot lie between devices of DPDK (`dpdk` in `spec.ports`); all else works",
        ),
        optional(
            "idle states",
            pm_qos::idle_driver(),
            "how long cores take to wake cannot be limited (`spec.cpuLatency`)",
        ),
        optional(
            "Hyperscan",
            myelin_functions::dpi::library::version(),
            "no chain can have a function of the kind `dpi`; all else works",
        ),
        finding(
            "frequency scaling",
            scaling.unwrap_or("no"),
            scaling.is_some(),
            "figures drift with a clock nobody here controls",
        ),
    ]);
    Diagnosis {
        usable: kernel.usable() && is_root,
        machine,
        findings,
    }
}

/// What was found, and what follows where it is not there. Myelin runs without it.
fn finding(what: &str, answer: impl Display, is_there: bool, without: &str) -> Finding {
    Finding {
        what: what.to_owned(),
        answer: answer.to_string(),
        required: false,
        consequence: if is_there { "" } else { without }.to_owned(),
    }
}

/// The finding of a program or a library with a version, or why there is none.
fn optional(what: &str, found: Result<impl Display, impl Display>, without: &str) -> Finding {
    match found {
        Ok(version) => finding(what, format_args!("yes: {version}"), true, without),
        Err(error) => finding(what, format_args!("no: {error}"), false, without),
    }
}

/// The form of control groups here, if functions with limits have what they need.
fn control_groups() -> Result<String, String> {
    let groups = Hierarchies::detect().unwrap_or_default();
    let mut missing = vec!["cpu", "memory"];
    missing.retain(|controller| !groups.has(controller));
    if missing.is_empty() {
        return Ok(groups.mode().to_string());
    }
    Err(format!(
        "{}, without {}",
        groups.mode(),
        missing.join(" and ")
    ))
}

/// What follows when the kernel's network lacks a feature.
fn without(feature: Feature) -> &'static str {
    match feature {
        Feature::Netem => "link delay and loss cannot be made by the kernel",
        Feature::Htb => {
            "without fq, chains of kernel functions alone cannot be shaped (`enforce: both`)"
        }
        Feature::Tbf => "without fq, such chains cannot be shaped to a rate in bits",
        Feature::Fq => "chains of kernel functions alone are shaped by htb",
        Feature::Clsact => "tcx is needed for the front door",
        Feature::ClsBpf => "before Linux 6.6 the front door cannot be attached",
        Feature::Bridge => "`myelin bench hop-cost` goes without its bridge",
        Feature::Vxlan => "links of this kind cannot be made; chains do not need them",
    }
}

fn print(diagnosis: &Diagnosis) {
    let machine = &diagnosis.machine;
    println!(
        "Linux {} on {}, {} cores{}",
        machine.kernel,
        machine.cpu,
        machine.cores,
        if machine.virtualized {
            ", virtualized"
        } else {
            ""
        }
    );
    let columns: [Column<Finding>; 4] = [
        ("feature", |finding| finding.what.clone()),
        ("here", |finding| finding.answer.clone()),
        ("needed", |finding| {
            if finding.required { "yes" } else { "" }.to_owned()
        }),
        ("what follows", |finding| finding.consequence.clone()),
    ];
    println!("{}", output::listing(&columns, &diagnosis.findings));
    println!(
        "{}",
        if diagnosis.usable {
            "chains can run on this machine"
        } else {
            "chains cannot run here as it is: see the needed features above"
        }
    );
}
