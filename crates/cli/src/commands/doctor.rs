//! `myelin doctor`: what this kernel and machine can and cannot do, and what follows.

use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_kernel::State;
use myelin_linux::capability;
use myelin_linux::cgroup::Hierarchies;
use myelin_linux::feature::{self, Answer, Feature};
use myelin_linux::machine::Machine;
use myelin_linux::pm_qos;
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
    let mut findings = vec![Finding {
        what: "root".to_owned(),
        answer: if capability::is_root() {
            "yes"
        } else {
            "no: most answers below are unknown"
        }
        .to_owned(),
        required: true,
        consequence: consequence(
            capability::is_root(),
            "only `plan`, `functions` and the clients of a running agent work",
        ),
    }];
    findings.extend(kernel.all.iter().map(|feature| Finding {
        what: feature.name.to_owned(),
        answer: feature.state.to_string(),
        required: feature.required,
        consequence: consequence(feature.state == State::Yes, feature.consequence),
    }));
    findings.extend(Feature::ALL.into_iter().map(|feature| {
        let answer = feature::probe(feature);
        let consequence = consequence(answer == Answer::Yes, without(feature));
        Finding {
            what: feature.name().to_owned(),
            answer: answer.to_string(),
            required: false,
            consequence,
        }
    }));
    findings.extend(sandboxes());
    findings.extend([
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
    ]);
    findings.push(Finding {
        what: "frequency scaling".to_owned(),
        answer: machine
            .cpufreq_driver
            .clone()
            .unwrap_or_else(|| "no".to_owned()),
        required: false,
        consequence: consequence(
            machine.cpufreq_driver.is_some(),
            "figures drift with a clock nobody here controls",
        ),
    });
    Diagnosis {
        usable: kernel.usable() && capability::is_root(),
        machine,
        findings,
    }
}

/// What Myelin runs without, and what is missing then.
fn optional(
    what: &str,
    found: Result<impl std::fmt::Display, impl std::fmt::Display>,
    without: &'static str,
) -> Finding {
    Finding {
        what: what.to_owned(),
        consequence: consequence(found.is_ok(), without),
        answer: match found {
            Ok(version) => format!("yes: {version}"),
            Err(error) => format!("no: {error}"),
        },
        required: false,
    }
}

/// What functions with limits, and in containers, need.
fn sandboxes() -> [Finding; 2] {
    let groups = Hierarchies::detect().unwrap_or_default();
    let missing: Vec<&str> = ["cpu", "memory"]
        .into_iter()
        .filter(|controller| !groups.has(controller))
        .collect();
    let runc = myelin_agent::runc_version();
    [
        Finding {
            what: "control groups".to_owned(),
            answer: if missing.is_empty() {
                format!("yes: {}", groups.mode())
            } else {
                format!("no: {}, without {}", groups.mode(), missing.join(" and "))
            },
            required: false,
            consequence: consequence(
                missing.is_empty(),
                "these `limits` of a function cannot be held",
            ),
        },
        Finding {
            what: "runc".to_owned(),
            consequence: consequence(runc.is_ok(), "no function can have `isolation: container`"),
            answer: match runc {
                Ok(version) => format!("yes: {version}"),
                Err(error) => format!("no: {error}"),
            },
            required: false,
        },
    ]
}

fn consequence(there: bool, text: &str) -> String {
    if there {
        String::new()
    } else {
        text.to_owned()
    }
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
    let mut table = output::table(["feature", "here", "needed", "what follows"]);
    for finding in &diagnosis.findings {
        table.add_row([
            finding.what.clone(),
            finding.answer.clone(),
            if finding.required { "yes" } else { "" }.to_owned(),
            finding.consequence.clone(),
        ]);
    }
    println!("{table}");
    println!(
        "{}",
        if diagnosis.usable {
            "chains can run on this machine"
        } else {
            "chains cannot run here as it is: see the needed features above"
        }
    );
}
