//! Load of the machine during an experiment, so that the report can say whether it was quiet.

use std::collections::BTreeMap;
use std::iter::successors;
use std::time::Duration;

use myelin_linux::procfs::{self, CpuTimes, Stat};
use myelin_measure::cpu::CpuMeter;
use myelin_metrics::Environment;

use crate::Error;

/// Larger shares of the CPU time make a machine busy.
const BUSY_STEAL: f64 = 0.02;
const BUSY_OTHERS: f64 = 0.05;

/// Observes the machine from start to end.
pub(crate) struct MachineMonitor {
    environment: Environment,
    cpus: CpuMeter,
    own: Duration,
}

impl MachineMonitor {
    /// Starts the observation.
    pub(crate) fn start() -> Result<Self, Error> {
        Ok(Self {
            environment: myelin_measure::environment(),
            cpus: CpuMeter::start(&[])?,
            own: own_cpu_time(),
        })
    }

    /// The environment with the load since the start.
    pub(crate) fn stop(self) -> Result<Environment, Error> {
        let own = own_cpu_time().saturating_sub(self.own);
        let mut environment = self.environment;
        environment.settings.extend(load(&self.cpus.spent()?, own));
        Ok(environment)
    }
}

/// The load as settings, from the CPU time of all cores and of this process and its descendants.
fn load(spent: &CpuTimes, own: Duration) -> [(String, String); 3] {
    let total = spent.total().as_secs_f64().max(1e-9);
    let steal = spent.steal.as_secs_f64() / total;
    let others = spent.busy().saturating_sub(spent.steal + own);
    let others = others.as_secs_f64() / total;
    let quiet = if steal > BUSY_STEAL || others > BUSY_OTHERS {
        "no: other work was busy (see the shares); repeat the run on a quiet machine"
    } else {
        "yes"
    };
    [
        ("steal_share".to_owned(), format!("{steal:.3}")),
        ("other_processes_share".to_owned(), format!("{others:.3}")),
        ("quiet".to_owned(), quiet.to_owned()),
    ]
}

/// CPU time of this process and its descendants, including ended ones that they waited for. A
/// descendant that an unrelated process waited for counts as foreign. So the machine may appear too
/// busy, never too quiet.
fn own_cpu_time() -> Duration {
    let processes: BTreeMap<u32, Stat> = procfs::processes()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Some((pid, Stat::read(pid).ok()?)))
        .collect();
    let own = processes
        .iter()
        .filter(|(pid, _)| is_descendant(**pid, std::process::id(), &processes));
    own.map(|(pid, stat)| stat.waited_for + procfs::run_time(*pid).unwrap_or_default())
        .sum()
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

/// Whether `pid` is `root` or a descendant of it.
fn is_descendant(pid: u32, root: u32, processes: &BTreeMap<u32, Stat>) -> bool {
    let parent = |pid: &u32| processes.get(pid).map(|stat| stat.parent);
    // Bounded, because reused process ids could form a cycle.
    let mut ancestors = successors(Some(pid), parent).take(64);
    ancestors.any(|ancestor| ancestor == root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_processes_and_steal_make_the_machine_busy() {
        let seconds = Duration::from_secs;
        let spent = |steal: u64| CpuTimes {
            user: seconds(60),
            steal: seconds(steal),
            idle: seconds(40 - steal),
            ..CpuTimes::default()
        };
        let quiet = |steal, own| load(&spent(steal), seconds(own))[2].1 == "yes";
        assert!(quiet(0, 58) && !quiet(0, 50) && !quiet(3, 58));
        assert_eq!(load(&spent(1), seconds(58))[0].1, "0.010");
        // Counted in ticks, the process may have more time than the cores.
        assert!(quiet(0, 61));
    }

    #[test]
    fn descendants_are_found() {
        let own = Stat::read(std::process::id()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw() as u32);
        let parents = [(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)];
        let processes = BTreeMap::from(parents.map(|(pid, parent)| {
            let mut stat = own;
            stat.parent = parent;
            (pid, stat)
        }));
        assert!(is_descendant(7, 5, &processes) && is_descendant(5, 5, &processes));
        assert!(!is_descendant(8, 5, &processes) && !is_descendant(9, 5, &processes));
    }

    const WORK: Duration = Duration::from_millis(100);
    /// Unit of children's user and system times.
    const TICK: Duration = Duration::from_millis(10);
    /// Least measured time of `WORK`.
    const MIN_MEASURED: Duration = Duration::from_millis(70);

    /// Waits until the process has used `WORK`.
    fn wait_for_work(pid: u32, mut meanwhile: impl FnMut()) {
        let before = procfs::run_time(pid).unwrap();
        while procfs::run_time(pid).unwrap() < before + WORK {
            meanwhile();
        }
    }

    #[test]
    fn own_cpu_time_is_measured() {
        let before = own_cpu_time();
        wait_for_work(std::process::id(), std::hint::spin_loop);
        assert!(own_cpu_time() >= before + MIN_MEASURED);
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
        wait_for_work(child.id(), || std::thread::sleep(TICK));
        child.kill().unwrap();
        assert!(own_cpu_time() >= before + MIN_MEASURED, "before the wait");
        child.wait().unwrap();
        assert!(own_cpu_time() >= before + MIN_MEASURED, "after the wait");
    }
}
