//! Properties of the machine for a report.

use std::fs;

use serde::Serialize;

use crate::cgroup::{self, Hierarchies};
use crate::procfs;

/// Properties of the machine. Properties that the kernel does not report stay empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Kernel release, as from `uname -r`.
    pub kernel: String,
    /// `x86_64`, `aarch64`, ...
    pub architecture: String,
    /// CPU model.
    pub cpu: String,
    /// Number of online CPUs.
    pub cores: usize,
    /// Whether the machine runs under a hypervisor.
    pub virtualized: bool,
    /// The hypervisor or the virtual machine's product name, if known.
    pub hypervisor: Option<String>,
    /// Driver of frequency scaling. `None` if no program can set or read the frequency.
    pub cpufreq_driver: Option<String>,
    /// Source of energy measurements.
    pub power_source: PowerSource,
    /// The kernel's clock. A read of `tsc` is fast; a read of another clock takes a microsecond.
    pub clock_source: Option<String>,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Huge pages of the default size.
    pub huge_pages: HugePages,
    /// The mounted versions of cgroup.
    pub cgroup: cgroup::Mode,
}

/// A meter of energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PowerSource {
    /// Running average power limit counters of the CPU.
    Rapl,
    /// No meter. A report can only model the energy, and must say so.
    None,
}

/// Huge pages of the default size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// Size of a page, bytes.
    pub size_bytes: u64,
    /// Number of reserved pages.
    pub total: u64,
    /// Number of reserved pages that are unused.
    pub free: u64,
}

impl Machine {
    /// Reads the properties of the machine, in about a millisecond.
    pub fn detect() -> Self {
        let cpuinfo = read_trimmed("/proc/cpuinfo").unwrap_or_default();
        let meminfo = read_trimmed("/proc/meminfo").unwrap_or_default();
        let hypervisor = detect_hypervisor();
        Self {
            kernel: release(),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu: cpu_model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cores: procfs::cpu_times().map_or(0, |cpus| cpus.len()),
            virtualized: hypervisor.is_some() || has_flag(&cpuinfo, "hypervisor"),
            hypervisor,
            cpufreq_driver: read_trimmed("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"),
            power_source: detect_power_source(),
            clock_source: read_trimmed(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            memory_bytes: procfs::kib_field(&meminfo, "MemTotal:").unwrap_or(0),
            huge_pages: parse_huge_pages(&meminfo),
            cgroup: Hierarchies::detect().map_or(cgroup::Mode::Absent, |found| found.mode()),
        }
    }
}

/// Returns the release of the running kernel, as from `uname -r`.
pub fn release() -> String {
    read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// Returns the major and minor number of a kernel release; `None` if the release is malformed.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    next().zip(next())
}

/// Returns the trimmed content of a file; `None` if the file is missing or empty.
fn read_trimmed(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    // x86 uses "model name". Other architectures use another of these keys, or only numbers.
    ["model name", "Hardware", "cpu model", "uarch"]
        .into_iter()
        .find_map(|key| value_of(cpuinfo, key))
}

fn value_of<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    value_of(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_whitespace().any(|word| word == flag))
}

fn detect_hypervisor() -> Option<String> {
    if let Some(kind) = read_trimmed("/sys/hypervisor/type") {
        return Some(kind);
    }
    let product = read_trimmed("/sys/class/dmi/id/product_name").unwrap_or_default();
    let vendor = read_trimmed("/sys/class/dmi/id/sys_vendor").unwrap_or_default();
    let machine = format!("{vendor} {product}");
    let virtual_machines = [
        "KVM",
        "QEMU",
        "VMware",
        "VirtualBox",
        "Virtual Machine",
        "Xen",
        "Bochs",
        "Amazon EC2",
        "Google",
        "OpenStack",
        "Firecracker",
    ];
    if virtual_machines.iter().any(|name| machine.contains(name)) && !machine.contains("metal") {
        return Some(machine.trim().to_owned());
    }
    // A minimal machine has no DMI tables, but the machine's kernel offers the hypervisor's clock.
    let clocks =
        read_trimmed("/sys/devices/system/clocksource/clocksource0/available_clocksource")?;
    [
        ("kvm-clock", "KVM"),
        ("hyperv_clocksource_tsc_page", "Hyper-V"),
        ("xen", "Xen"),
    ]
    .into_iter()
    .find_map(|(clock, name)| {
        clocks
            .split_whitespace()
            .any(|word| word == clock)
            .then(|| name.to_owned())
    })
}

fn detect_power_source() -> PowerSource {
    // Check only that the counter exists, because since CVE-2020-8694 only root can read the
    // counter.
    let zones = fs::read_dir("/sys/class/powercap")
        .into_iter()
        .flatten()
        .flatten();
    let rapl = zones.into_iter().any(|zone| {
        zone.file_name().to_string_lossy().contains("rapl:")
            && zone.path().join("energy_uj").exists()
    });
    if rapl {
        PowerSource::Rapl
    } else {
        PowerSource::None
    }
}

fn parse_huge_pages(meminfo: &str) -> HugePages {
    let count = |name: &str| {
        value_of(meminfo, name)
            .and_then(|value| value.parse().ok())
            .unwrap_or(0)
    };
    HugePages {
        size_bytes: procfs::kib_field(meminfo, "Hugepagesize:").unwrap_or(0),
        total: count("HugePages_Total"),
        free: count("HugePages_Free"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_detected() {
        let machine = Machine::detect();
        assert!(
            !machine.kernel.is_empty() && machine.cores > 0 && machine.memory_bytes > 1 << 20,
            "{machine:?}"
        );
        let json = serde_json::to_value(&machine).unwrap();
        for key in [
            "kernel",
            "cpu",
            "cores",
            "virtualized",
            "power_source",
            "clock_source",
            "cgroup",
        ] {
            assert!(json.get(key).is_some(), "{key} in {json}");
        }
    }

    #[test]
    fn files_of_other_machines_are_parsed() {
        let x86 = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor sse\n";
        assert_eq!(cpu_model(x86), Some("AMD EPYC"));
        assert!(has_flag(x86, "hypervisor") && !has_flag(x86, "hyper"));
        assert_eq!(
            cpu_model("processor: 0\nHardware\t: BCM2835\n"),
            Some("BCM2835")
        );
        assert_eq!(cpu_model("processor: 0\n"), None);
        assert!(!has_flag("flags2: hypervisor\nflags: fpu\n", "hypervisor"));
        let pages = parse_huge_pages(
            "HugePages_Total:      16\nHugePages_Free:        7\nHugepagesize:       2048 kB\n",
        );
        assert_eq!(
            pages,
            HugePages {
                size_bytes: 2 << 20,
                total: 16,
                free: 7
            }
        );
        assert_eq!(parse_huge_pages(""), HugePages::default());
    }
}
