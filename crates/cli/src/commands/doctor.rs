//! `myelin doctor`: tests which features of Myelin this machine can run.

use std::fmt::Display;
use std::process::{Command, ExitCode, Stdio};

use myelin_api::ApiError;
use myelin_kernel::FeatureState;
use myelin_linux::capability;
use myelin_linux::cgroup::Hierarchies;
use myelin_linux::feature::{self, Feature, ProbeResult};
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
    /// Name of the feature, the program or the library.
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
    /// Makes the finding of a feature that not every chain needs.
    fn new(what: &str, answer: impl Display, is_present: bool, advice: Advice<'_>) -> Self {
        let unless_present = |text: &str| if is_present { "" } else { text }.to_owned();
        Self {
            what: what.to_owned(),
            answer: answer.to_string(),
            required: false,
            consequence: unless_present(advice.consequence),
            remedy: unless_present(advice.remedy),
        }
    }

    fn is_missing(&self) -> bool {
        self.answer.starts_with("no")
    }

    fn is_unknown(&self) -> bool {
        self.answer.starts_with("unknown")
    }

    /// Formats the missing feature, its consequence and its remedy.
    fn format_advice(&self, width: u16) -> String {
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

/// The consequence and the remedy of a missing feature.
#[derive(Clone, Copy)]
struct Advice<'a> {
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
    let diagnosis = diagnose();
    if arguments.json {
        output::print_json(&diagnosis)?;
    } else {
        print!("{}", diagnosis.format_summary(output::width()));
        if arguments.verbose {
            println!("\n{}", diagnosis.format_table());
        }
    }
    Ok(if diagnosis.usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn diagnose() -> Diagnosis {
    let kernel = myelin_kernel::test_features();
    let machine = Machine::detect();
    let is_root = capability::is_root();
    let root = if is_root {
        "yes"
    } else {
        "no: this user is not root"
    };
    let advice = Advice {
        consequence: "only `plan`, `functions` and the clients of a running agent work",
        remedy: "sudo myelin doctor",
    };
    let mut findings = vec![Finding {
        required: true,
        ..Finding::new("root", root, is_root, advice)
    }];
    findings.extend(kernel.all.iter().map(|feature| {
        let advice = Advice {
            consequence: feature.consequence,
            remedy: feature.remedy,
        };
        let is_present = feature.state == FeatureState::Yes;
        Finding {
            required: feature.required,
            ..Finding::new(feature.name, &feature.state, is_present, advice)
        }
    }));
    findings.extend(Feature::ALL.into_iter().map(|feature| {
        let (consequence, module) = describe_feature(feature);
        let remedy = format!("modprobe {module}, or use a kernel with this module");
        let advice = Advice {
            consequence,
            remedy: &remedy,
        };
        let answer = feature::probe(feature);
        Finding::new(feature.name(), &answer, answer == ProbeResult::Yes, advice)
    }));
    findings.extend(check_programs_and_libraries());
    let scaling = machine.cpufreq_driver.as_deref();
    let advice = Advice {
        consequence: "measured figures drift with the clock of the cores",
        remedy: "measure on a machine whose kernel controls the clock (cpufreq)",
    };
    let answer = scaling.unwrap_or("no: the kernel does not control the clock");
    findings.push(Finding::new(
        "frequency scaling",
        answer,
        scaling.is_some(),
        advice,
    ));
    Diagnosis {
        usable: kernel.are_usable() && is_root,
        machine,
        findings,
    }
}

fn check_programs_and_libraries() -> [Finding; 7] {
    [
        make_optional_finding(
            "control groups",
            check_control_groups(),
            Advice {
                consequence: "Myelin cannot enforce these `limits` of a function",
                remedy: "enable the controllers in the kernel's command line (cgroup_enable=memory)",
            },
        ),
        make_optional_finding(
            "runc",
            myelin_agent::runc_version(),
            Advice {
                consequence: "no function can have `isolation: container`",
                remedy: "apt install runc",
            },
        ),
        make_optional_finding(
            "CRIU",
            check_criu(),
            Advice {
                consequence: "no state hook can save the memory of a program: a service must write its state itself",
                remedy: "apt install criu, of a version that knows this kernel",
            },
        ),
        make_optional_finding(
            "Open vSwitch",
            myelin_agent::open_vswitch_version(),
            Advice {
                consequence: "no switch of a topology can have `openflow`",
                remedy: "apt install openvswitch-switch",
            },
        ),
        make_optional_finding(
            "DPDK",
            myelin_dpdk::version(),
            Advice {
                consequence: "chains cannot use ports over DPDK (`dpdk` in `spec.ports`)",
                remedy: "apt install libdpdk-dev pkg-config, then build Myelin again",
            },
        ),
        make_optional_finding(
            "idle states",
            pm_qos::idle_driver(),
            Advice {
                consequence: "the wake-up time of cores cannot be limited (`spec.cpuLatency`)",
                remedy: "use a machine or hypervisor with idle states and /dev/cpu_dma_latency",
            },
        ),
        make_optional_finding(
            "Hyperscan",
            myelin_functions::dpi::library::version(),
            Advice {
                consequence: "no chain can have a function of the kind `dpi`",
                remedy: "apt install libhyperscan5, or libvectorscan5 on distributions without libhyperscan5",
            },
        ),
    ]
}

/// Makes the finding of a program or a library from its version, or from the error of the check.
fn make_optional_finding(
    what: &str,
    version: Result<impl Display, impl Display>,
    advice: Advice<'_>,
) -> Finding {
    match version {
        Ok(version) => Finding::new(what, format_args!("yes: {version}"), true, advice),
        Err(error) => Finding::new(what, format_args!("no: {error}"), false, advice),
    }
}

/// Runs the check of CRIU itself, which takes a moment.
fn check_criu() -> Result<&'static str, String> {
    let mut check = Command::new("timeout");
    check.args(["20s", "criu", "check"]).stdin(Stdio::null());
    let output = check.output().map_err(|error| error.to_string())?;
    match output.status.code() {
        Some(0) => Ok("`criu check` passes"),
        // Of `timeout`, for an unknown program.
        Some(127) => Err("not installed".to_owned()),
        _ => {
            let messages = String::from_utf8_lossy(&output.stderr);
            let last = messages.trim().lines().last().unwrap_or("no message");
            Err(format!("`criu check` fails: {last}"))
        }
    }
}

/// Returns the mode of the control groups, if they have the controllers that `limits` need.
fn check_control_groups() -> Result<String, String> {
    let groups = Hierarchies::detect().unwrap_or_default();
    let mut missing = vec!["cpu", "memory"];
    missing.retain(|controller| !groups.has_controller(controller));
    if missing.is_empty() {
        return Ok(groups.mode().to_string());
    }
    let missing = missing.join(" and ");
    Err(format!("{}, without {missing}", groups.mode()))
}

/// Returns the consequence of a missing feature of the kernel's network, and the module that
/// provides the feature.
fn describe_feature(feature: Feature) -> (&'static str, &'static str) {
    match feature {
        Feature::Netem => (
            "links of topologies cannot have `by: netem`; the delay line emulates delay, rate and loss",
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
            "VXLAN links cannot be made; chains need no VXLAN links",
            "vxlan",
        ),
    }
}

impl Diagnosis {
    /// Formats the verdict, then each missing feature with its consequence and remedy.
    fn format_summary(&self, width: u16) -> String {
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
                format_count(missing.len(), "needed feature")
            )
        };
        let machine = &self.machine;
        let mut out = format!(
            "{verdict}; {}\nLinux {} on {}, {}{}\n",
            format_count(rest.len(), "warning"),
            machine.kernel,
            machine.cpu,
            format_count(machine.cores, "core"),
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
            out += &finding.format_advice(width);
        }
        out
    }

    /// Formats a table of every check.
    fn format_table(&self) -> String {
        let columns: [Column<Finding>; 4] = [
            ("feature", |finding| finding.what.clone()),
            ("here", |finding| finding.answer.clone()),
            ("needed", |finding| {
                if finding.required { "yes" } else { "" }.to_owned()
            }),
            ("effect", |finding| finding.consequence.clone()),
        ];
        output::format_table(&columns, &self.findings)
    }
}

fn format_count(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_starts_with_the_verdict_and_lists_needed_features_before_warnings() {
        let advice = Advice {
            consequence: "no chain runs",
            remedy: "install it",
        };
        let present = Finding::new("maps", "yes", true, advice);
        let warning = Finding::new("fq", "no", false, advice);
        let unknown = Finding::new("tcx", "unknown: the test needs root", false, advice);
        let needed = Finding {
            required: true,
            ..Finding::new("kernel", "no: this is 5.4", false, advice)
        };
        let diagnosis = Diagnosis {
            usable: false,
            machine: Machine::detect(),
            findings: vec![present, warning, unknown, needed],
        };
        let text = diagnosis.format_summary(100);
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
        assert!(diagnosis.format_table().contains("maps"));
    }
}
