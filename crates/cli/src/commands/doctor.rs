//! `myelin doctor`: tests which features of Myelin this machine can run.

use std::fmt::Display;
use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_kernel::State;
use myelin_linux::capability;
use myelin_linux::cgroup::Hierarchies;
use myelin_linux::feature::{self, Answer, Feature};
use myelin_linux::machine::Machine;
use myelin_linux::pm_qos;
use myelin_report::terminal::{self, Column};
use serde::Serialize;

use crate::output;

/// Arguments of `myelin doctor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sudo myelin doctor           ready or not, and what is missing\n  \
                  sudo myelin doctor -v        every check\n\n\
                  Each check tries its feature in a temporary namespace. Most of them need root.\n\
                  Exit status 1: this machine lacks a feature that every chain needs."
)]
pub(crate) struct Arguments {
    /// Show every check.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    /// `yes`, `no` or `unknown`, with the reason.
    answer: String,
    /// Whether every chain needs the feature.
    required: bool,
    /// The consequence of a missing feature. Empty if the feature is present.
    consequence: String,
    /// How to get a missing feature. Empty if the feature is present.
    remedy: String,
}

impl Finding {
    /// A feature that is present, or that no chain needs.
    fn new(what: &str, answer: impl Display, is_present: bool, lack: Lack<'_>) -> Self {
        let unless_present = |text: &str| if is_present { "" } else { text }.to_owned();
        Self {
            what: what.to_owned(),
            answer: answer.to_string(),
            required: false,
            consequence: unless_present(lack.consequence),
            remedy: unless_present(lack.remedy),
        }
    }

    fn is_missing(&self) -> bool {
        self.answer.starts_with("no")
    }

    fn is_unknown(&self) -> bool {
        self.answer.starts_with("unknown")
    }

    /// The missing feature, its consequence and its remedy.
    fn advice(&self, width: u16) -> String {
        let severity = if self.required { "missing" } else { "warning" };
        let reason = match self.answer.split_once(": ") {
            Some((_, reason)) => reason,
            None => "not on this machine",
        };
        let text = format!("{severity}: {}: {reason}", self.what);
        let mut out = terminal::wrap(&text, 2, width) + "\n";
        terminal::add_field(&mut out, "effect", &self.consequence, width);
        terminal::add_field(&mut out, "remedy", &self.remedy, width);
        out
    }
}

/// The consequence of a missing feature, and how to get it.
#[derive(Clone, Copy)]
struct Lack<'a> {
    consequence: &'a str,
    remedy: &'a str,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    usable: bool,
    machine: Machine,
    findings: Vec<Finding>,
}

/// Prints the findings.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let diagnosis = examine();
    if arguments.json {
        output::json(&diagnosis)?;
    } else {
        print!("{}", diagnosis.summary(output::width()));
        if arguments.verbose {
            println!("\n{}", diagnosis.table());
        }
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
        "no: this user is not root"
    };
    let lack = Lack {
        consequence: "only `plan`, `functions` and the clients of a running agent work",
        remedy: "sudo myelin doctor",
    };
    let mut findings = vec![Finding {
        required: true,
        ..Finding::new("root", root, is_root, lack)
    }];
    findings.extend(kernel.all.iter().map(|feature| {
        let lack = Lack {
            consequence: feature.consequence,
            remedy: feature.remedy,
        };
        let is_present = feature.state == State::Yes;
        Finding {
            required: feature.required,
            ..Finding::new(feature.name, &feature.state, is_present, lack)
        }
    }));
    findings.extend(Feature::ALL.into_iter().map(|feature| {
        let (consequence, module) = without(feature);
        let remedy = format!("modprobe {module}, or use a kernel that has it");
        let lack = Lack {
            consequence,
            remedy: &remedy,
        };
        let answer = feature::probe(feature);
        Finding::new(feature.name(), &answer, answer == Answer::Yes, lack)
    }));
    findings.extend(programs_and_libraries());
    let scaling = machine.cpufreq_driver.as_deref();
    let lack = Lack {
        consequence: "measured figures drift with the clock of the cores",
        remedy: "measure on a machine whose kernel controls the clock (cpufreq)",
    };
    let answer = scaling.unwrap_or("no: the kernel does not control the clock");
    findings.push(Finding::new(
        "frequency scaling",
        answer,
        scaling.is_some(),
        lack,
    ));
    Diagnosis {
        usable: kernel.usable() && is_root,
        machine,
        findings,
    }
}

fn programs_and_libraries() -> [Finding; 5] {
    [
        optional(
            "control groups",
            control_groups(),
            Lack {
                consequence: "these `limits` of a function cannot be held",
                remedy: "enable the controllers in the kernel's command line (cgroup_enable=memory)",
            },
        ),
        optional(
            "runc",
            myelin_agent::runc_version(),
            Lack {
                consequence: "no function can have `isolation: container`",
                remedy: "apt install runc",
            },
        ),
        optional(
            "DPDK",
            myelin_dpdk::version(),
            Lack {
                consequence: "chains cannot use ports over DPDK (`dpdk` in `spec.ports`)",
                remedy: "apt install libdpdk-dev pkg-config, then build Myelin again",
            },
        ),
        optional(
            "idle states",
            pm_qos::idle_driver(),
            Lack {
                consequence: "the wake-up time of cores cannot be limited (`spec.cpuLatency`)",
                remedy: "use a machine or hypervisor with idle states and /dev/cpu_dma_latency",
            },
        ),
        optional(
            "Hyperscan",
            myelin_functions::dpi::library::version(),
            Lack {
                consequence: "no chain can have a function of the kind `dpi`",
                remedy: "apt install libhyperscan5, or libvectorscan5 where there is none",
            },
        ),
    ]
}

/// The finding of a program or a library with a version, or the error that it gives.
fn optional(what: &str, version: Result<impl Display, impl Display>, lack: Lack<'_>) -> Finding {
    match version {
        Ok(version) => Finding::new(what, format_args!("yes: {version}"), true, lack),
        Err(error) => Finding::new(what, format_args!("no: {error}"), false, lack),
    }
}

/// The mode of the control groups, if they have the controllers that `limits` need.
fn control_groups() -> Result<String, String> {
    let groups = Hierarchies::detect().unwrap_or_default();
    let mut missing = vec!["cpu", "memory"];
    missing.retain(|controller| !groups.has(controller));
    if missing.is_empty() {
        return Ok(groups.mode().to_string());
    }
    let missing = missing.join(" and ");
    Err(format!("{}, without {missing}", groups.mode()))
}

/// The consequence of a missing feature of the kernel's network, and the module that has it.
fn without(feature: Feature) -> (&'static str, &'static str) {
    match feature {
        Feature::Netem => (
            "tc cannot emulate link delay and loss; the function kind `lossy-link` emulates loss",
            "sch_netem",
        ),
        Feature::Htb => (
            "without fq, `enforce: both` does not shape chains of kernel functions alone",
            "sch_htb",
        ),
        Feature::Tbf => (
            "without fq, chains of kernel functions alone cannot be shaped to a rate in bits",
            "sch_tbf",
        ),
        Feature::Fq => (
            "chains of kernel functions alone are shaped by htb",
            "sch_fq",
        ),
        Feature::Clsact => (
            "the front door needs tcx (Linux 6.6 or newer)",
            "sch_ingress",
        ),
        Feature::ClsBpf => (
            "before Linux 6.6 the front door cannot be attached",
            "cls_bpf",
        ),
        Feature::Bridge => ("`myelin bench hop-cost` runs without its bridge", "bridge"),
        Feature::Vxlan => (
            "VXLAN links cannot be made; chains do not need them",
            "vxlan",
        ),
    }
}

impl Diagnosis {
    /// Ready or not, then each missing feature with its consequence and remedy.
    fn summary(&self, width: u16) -> String {
        let (missing, rest): (Vec<_>, Vec<_>) = self
            .findings
            .iter()
            .filter(|finding| finding.is_missing())
            .partition(|finding| finding.required);
        let verdict = if self.usable {
            "ready: chains can run on this machine".to_owned()
        } else {
            format!(
                "not ready: this machine lacks {}",
                counted(missing.len(), "needed feature")
            )
        };
        let machine = &self.machine;
        let mut out = format!(
            "{verdict}; {}\nLinux {} on {}, {}{}\n",
            counted(rest.len(), "warning"),
            machine.kernel,
            machine.cpu,
            counted(machine.cores, "core"),
            if machine.virtualized {
                ", virtualized"
            } else {
                ""
            }
        );
        let unknown = self.findings.iter().filter(|finding| finding.is_unknown());
        let unknown: Vec<_> = unknown.map(|finding| &*finding.what).collect();
        if !unknown.is_empty() {
            let text = format!("not tested: {}; -v shows why", unknown.join(", "));
            out += &(terminal::wrap(&text, 2, width) + "\n");
        }
        for finding in missing.into_iter().chain(rest) {
            out.push('\n');
            out += &finding.advice(width);
        }
        out
    }

    /// Every check.
    fn table(&self) -> String {
        let columns: [Column<Finding>; 4] = [
            ("feature", |finding| finding.what.clone()),
            ("here", |finding| finding.answer.clone()),
            ("needed", |finding| {
                if finding.required { "yes" } else { "" }.to_owned()
            }),
            ("effect", |finding| finding.consequence.clone()),
        ];
        output::listing(&columns, &self.findings)
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_comes_first_and_needed_features_before_warnings() {
        let lack = Lack {
            consequence: "no chain runs",
            remedy: "install it",
        };
        let present = Finding::new("maps", "yes", true, lack);
        let warning = Finding::new("fq", "no", false, lack);
        let unknown = Finding::new("tcx", "unknown: needs root to try", false, lack);
        let needed = Finding {
            required: true,
            ..Finding::new("kernel", "no: this is 5.4", false, lack)
        };
        let diagnosis = Diagnosis {
            usable: false,
            machine: Machine::detect(),
            findings: vec![present, warning, unknown, needed],
        };
        let text = diagnosis.summary(100);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "not ready: this machine lacks 1 needed feature; 1 warning"
        );
        assert_eq!(lines[2], "not tested: tcx; -v shows why");
        assert_eq!(
            lines[4..],
            [
                "missing: kernel: this is 5.4",
                "  effect      no chain runs",
                "  remedy      install it",
                "",
                "warning: fq: not on this machine",
                "  effect      no chain runs",
                "  remedy      install it",
            ]
        );
        assert!(!text.contains("maps"), "{text}");
        assert!(diagnosis.table().contains("maps"));
    }
}
