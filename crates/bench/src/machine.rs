//! The state of the machine while an experiment ran: a figure taken on a busy machine says so.

use std::time::Duration;

use myelin_linux::procfs::{self, CpuTimes};
use myelin_metrics::Environment;
use nix::unistd::{SysconfVar, sysconf};

use crate::{Error, Row};

/// Shares above these make a machine busy.
const BUSY_STEAL: f64 = 0.02;
const BUSY_OTHERS: f64 = 0.05;

/// A look at the machine from start to end.
pub(crate) struct Watch {
    environment: Environment,
    cpus: Vec<CpuTimes>,
    own: Duration,
}

impl Watch {
    /// Starts now.
    pub(crate) fn start() -> Result<Self, Error> {
        Ok(Self {
            environment: myelin_measure::environment(),
            cpus: procfs::cpu_times()?,
            own: own_time(),
        })
    }

    /// The environment with what happened meanwhile.
    pub(crate) fn stop(self) -> Result<Environment, Error> {
        let mut spent = Spent {
            own: own_time().saturating_sub(self.own),
            ..Spent::default()
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

/// CPU time of all cores together.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    total: Duration,
    steal: Duration,
    /// Not idle, without what the hypervisor took.
    busy: Duration,
    /// Of this process and those it started.
    own: Duration,
}

impl Spent {
    fn settings(&self) -> [(String, String); 3] {
        let total = self.total.as_secs_f64().max(1e-9);
        let steal = self.steal.as_secs_f64() / total;
        let others = self.busy.saturating_sub(self.own).as_secs_f64() / total;
        let quiet = if steal > BUSY_STEAL || others > BUSY_OTHERS {
            "no: others were at work; repeat the run on a quiet machine"
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

/// CPU time of this process and its descendants so far, and of those that they have waited for. One that was waited for by somebody else is taken for
/// the others', which errs on the side of calling the machine busy.
fn own_time() -> Duration {
    let root = std::process::id();
    let tick = tick();
    let family: Vec<Kin> = procfs::processes()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Kin::of(pid, tick))
        .collect();
    family
        .iter()
        .filter(|kin| descends(kin.pid, root, &family))
        .map(|kin| kin.waited_for + procfs::run_time(kin.pid).unwrap_or_default())
        .sum()
}

/// A process, and what is left of those that it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kin {
    pid: u32,
    parent: u32,
    /// CPU time of the children that ended and that it waited for, and of theirs.
    waited_for: Duration,
}

impl Kin {
    /// From fields 4, 16 and 17 of its `stat`, which stand behind a name that may hold anything (proc(5)).
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

/// Memory of processes together, MiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mebibytes {
    pub(crate) resident: f64,
    proportional: f64,
}

impl Mebibytes {
    pub(crate) fn of(pids: &[u32]) -> Result<Self, Error> {
        let mut sum = Self::default();
        for pid in pids {
            let memory = procfs::memory(*pid)?;
            sum.resident += memory.resident_bytes as f64 / f64::from(1 << 20);
            sum.proportional += memory.proportional_bytes as f64 / f64::from(1 << 20);
        }
        Ok(sum)
    }

    /// The row with these figures.
    pub(crate) fn row(self, row: Row) -> Row {
        row.with("resident_mib", self.resident)
            .with("proportional_mib", self.proportional)
    }
}

/// What `stat` counts in.
fn tick() -> Duration {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let per_second = per_second.and_then(|ticks| u32::try_from(ticks).ok());
    Duration::from_secs(1) / per_second.unwrap_or(100).max(1)
}

/// Whether `pid` is `root` or a descendant of it.
fn descends(mut pid: u32, root: u32, family: &[Kin]) -> bool {
    // Bounded, should a number have come round meanwhile.
    for _ in 0..64 {
        if pid == root {
            return true;
        }
        match family.iter().find(|kin| kin.pid == pid) {
            Some(kin) => pid = kin.parent,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_others_do() {
        let seconds = Duration::from_secs;
        let quiet = |spent: Spent| spent.settings()[2].1 == "yes";
        let base = Spent {
            total: seconds(100),
            busy: seconds(60),
            own: seconds(58),
            ..Spent::default()
        };
        assert!(quiet(base));
        assert!(!quiet(Spent {
            own: seconds(50),
            ..base
        }));
        assert!(!quiet(Spent {
            steal: seconds(3),
            ..base
        }));
        assert_eq!(
            Spent {
                steal: seconds(1),
                ..base
            }
            .settings()[0]
                .1,
            "0.010"
        );
        // Accounting by ticks may give the process more than the cores had.
        assert!(quiet(Spent {
            own: seconds(61),
            ..base
        }));
    }

    #[test]
    fn descendants_are_found() {
        let family = [(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)].map(|(pid, parent)| Kin {
            pid,
            parent,
            waited_for: Duration::ZERO,
        });
        assert!(descends(7, 5, &family) && descends(5, 5, &family));
        assert!(!descends(8, 5, &family) && !descends(9, 5, &family));
        let own = Kin::of(std::process::id(), tick()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw() as u32);
    }

    /// Until the process has worked for `WORK`.
    fn wait_for_work(pid: u32, mut meanwhile: impl FnMut()) {
        let before = procfs::run_time(pid).unwrap();
        while procfs::run_time(pid).unwrap() < before + WORK {
            meanwhile();
        }
    }

    const WORK: Duration = Duration::from_millis(100);

    /// What must be seen of it: the time of children that were waited for is told in ticks, user and system each.
    fn seen() -> Duration {
        WORK.saturating_sub(3 * tick())
    }

    #[test]
    fn own_work_is_own() {
        let before = own_time();
        wait_for_work(std::process::id(), std::hint::spin_loop);
        assert!(own_time() >= before + seen());
        let environment = Watch::start().unwrap().stop().unwrap();
        assert!(environment.settings.contains_key("steal_share"));
    }

    #[test]
    fn the_work_of_a_child_that_ended_is_own() {
        let before = own_time();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        wait_for_work(child.id(), || std::thread::sleep(tick()));
        child.kill().unwrap();
        assert!(own_time() >= before + seen(), "not waited for yet");
        child.wait().unwrap();
        assert!(own_time() >= before + seen(), "waited for");
    }
}
