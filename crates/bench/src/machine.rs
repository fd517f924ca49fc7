//! Load of the machine during an experiment, so that the report can say whether it was quiet.

use std::time::Duration;

use myelin_linux::procfs::{self, CpuTimes};
use myelin_metrics::Environment;
use nix::unistd::{SysconfVar, sysconf};

use crate::Error;

/// Larger shares of the CPU time make a machine busy.
const BUSY_STEAL: f64 = 0.02;
const BUSY_OTHERS: f64 = 0.05;

/// Observes the machine from start to end.
pub(crate) struct MachineMonitor {
    environment: Environment,
    cpus: Vec<CpuTimes>,
    own: Duration,
}

impl MachineMonitor {
    /// Starts the observation.
    pub(crate) fn start() -> Result<Self, Error> {
        Ok(Self {
            environment: myelin_measure::environment(),
            cpus: procfs::cpu_times()?,
            own: own_cpu_time(),
        })
    }

    /// The environment with the load since the start.
    pub(crate) fn stop(self) -> Result<Environment, Error> {
        let mut spent = CpuTotals {
            own: own_cpu_time().saturating_sub(self.own),
            ..CpuTotals::default()
        };
        for now in procfs::cpu_times()? {
            if let Some(before) = self.cpus.iter().find(|before| before.cpu == now.cpu) {
                let part = now.since(before);
                spent.total += part.total();
                spent.steal += part.steal;
                spent.busy += part.busy().saturating_sub(part.steal);
            }
        }
        let mut environment = self.environment;
        environment.settings.extend(spent.settings());
        Ok(environment)
    }
}

/// CPU time of all cores.
#[derive(Debug, Clone, Copy, Default)]
struct CpuTotals {
    total: Duration,
    steal: Duration,
    /// Neither idle nor stolen.
    busy: Duration,
    /// CPU time of this process and its descendants.
    own: Duration,
}

impl CpuTotals {
    fn settings(&self) -> [(String, String); 3] {
        let total = self.total.as_secs_f64().max(1e-9);
        let steal = self.steal.as_secs_f64() / total;
        let others = self.busy.saturating_sub(self.own).as_secs_f64() / total;
        let quiet = if steal > BUSY_STEAL || others > BUSY_OTHERS {
            "no: other processes were busy; repeat the run on a quiet machine"
        } else {
            "yes"
        };
        [
            ("steal_share".to_owned(), format!("{steal:.3}")),
            ("other_processes_share".to_owned(), format!("{others:.3}")),
            ("quiet".to_owned(), quiet.to_owned()),
        ]
    }
}

/// CPU time of this process and its descendants, including ended ones that they waited for. A
/// descendant that an unrelated process waited for counts as foreign. So the machine may appear too
/// busy, never too quiet.
fn own_cpu_time() -> Duration {
    let root = std::process::id();
    let tick = tick();
    let processes: Vec<ProcessEntry> = procfs::processes()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| ProcessEntry::of(pid, tick))
        .collect();
    processes
        .iter()
        .filter(|process| is_descendant(process.pid, root, &processes))
        .map(|process| process.waited_for + procfs::run_time(process.pid).unwrap_or_default())
        .sum()
}

/// A process, with the CPU time of its ended children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessEntry {
    pid: u32,
    parent: u32,
    /// CPU time of ended children that it waited for, and of their ended children.
    waited_for: Duration,
}

impl ProcessEntry {
    /// Reads fields 4, 16 and 17 of its `stat`. They follow the name, which may contain any
    /// character (proc(5)).
    fn of(pid: u32, tick: Duration) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u32>().ok();
        Some(Self {
            pid,
            parent: field(4)?,
            waited_for: tick * (field(16)? + field(17)?),
        })
    }
}

/// Memory of several processes, MiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MemoryMib {
    pub(crate) resident: f64,
    proportional: f64,
}

impl MemoryMib {
    pub(crate) fn of(pids: &[u32]) -> Result<Self, Error> {
        let mut sum = Self::default();
        for pid in pids {
            let memory = procfs::memory(*pid)?;
            sum.resident += memory.resident_bytes as f64 / f64::from(1 << 20);
            sum.proportional += memory.proportional_bytes as f64 / f64::from(1 << 20);
        }
        Ok(sum)
    }

    /// Both figures.
    pub(crate) fn figures(self) -> [f64; 2] {
        [self.resident, self.proportional]
    }
}

/// Unit of times in `stat`.
fn tick() -> Duration {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let per_second = per_second.and_then(|ticks| u32::try_from(ticks).ok());
    Duration::from_secs(1) / per_second.unwrap_or(100).max(1)
}

/// Whether `pid` is `root` or a descendant of it.
fn is_descendant(mut pid: u32, root: u32, processes: &[ProcessEntry]) -> bool {
    // Bounded, because reused process ids could form a cycle.
    for _ in 0..64 {
        if pid == root {
            return true;
        }
        match processes.iter().find(|process| process.pid == pid) {
            Some(process) => pid = process.parent,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_processes_and_steal_make_the_machine_busy() {
        let seconds = Duration::from_secs;
        let quiet = |spent: CpuTotals| spent.settings()[2].1 == "yes";
        let base = CpuTotals {
            total: seconds(100),
            busy: seconds(60),
            own: seconds(58),
            ..CpuTotals::default()
        };
        assert!(quiet(base));
        assert!(!quiet(CpuTotals {
            own: seconds(50),
            ..base
        }));
        assert!(!quiet(CpuTotals {
            steal: seconds(3),
            ..base
        }));
        assert_eq!(
            CpuTotals {
                steal: seconds(1),
                ..base
            }
            .settings()[0]
                .1,
            "0.010"
        );
        // Counted in ticks, the process may have more time than the cores.
        assert!(quiet(CpuTotals {
            own: seconds(61),
            ..base
        }));
    }

    #[test]
    fn descendants_are_found() {
        let processes =
            [(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)].map(|(pid, parent)| ProcessEntry {
                pid,
                parent,
                waited_for: Duration::ZERO,
            });
        assert!(is_descendant(7, 5, &processes) && is_descendant(5, 5, &processes));
        assert!(!is_descendant(8, 5, &processes) && !is_descendant(9, 5, &processes));
        let own = ProcessEntry::of(std::process::id(), tick()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw() as u32);
    }

    /// Waits until the process has used `WORK`.
    fn wait_for_work(pid: u32, mut meanwhile: impl FnMut()) {
        let before = procfs::run_time(pid).unwrap();
        while procfs::run_time(pid).unwrap() < before + WORK {
            meanwhile();
        }
    }

    const WORK: Duration = Duration::from_millis(100);

    /// Least measured time: children's user and system times are counted in ticks.
    fn min_measured() -> Duration {
        WORK.saturating_sub(3 * tick())
    }

    #[test]
    fn own_cpu_time_is_measured() {
        let before = own_cpu_time();
        wait_for_work(std::process::id(), std::hint::spin_loop);
        assert!(own_cpu_time() >= before + min_measured());
        let environment = MachineMonitor::start().unwrap().stop().unwrap();
        assert!(environment.settings.contains_key("steal_share"));
    }

    #[test]
    fn the_cpu_time_of_an_ended_child_is_measured() {
        let before = own_cpu_time();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        wait_for_work(child.id(), || std::thread::sleep(tick()));
        child.kill().unwrap();
        assert!(own_cpu_time() >= before + min_measured(), "before the wait");
        child.wait().unwrap();
        assert!(own_cpu_time() >= before + min_measured(), "after the wait");
    }
}
