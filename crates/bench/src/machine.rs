//! The state of the machine while an experiment ran: a figure taken on a busy machine says so.

use std::time::Duration;

use myelin_linux::procfs::{self, CpuTimes};
use myelin_probe::environment::Environment;

use crate::Error;

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
            environment: Environment::detect(),
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

/// CPU time of this process and its descendants so far. One that ended counts no more unless it was waited for: its share
/// is then taken for the others', which errs on the side of calling the machine busy.
fn own_time() -> Duration {
    let root = std::process::id();
    let parents: Vec<(u32, u32)> = procfs::processes()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    parents
        .iter()
        .filter(|(pid, _)| descends(*pid, root, &parents))
        .filter_map(|(pid, _)| procfs::run_time(*pid).ok())
        .sum()
}

/// Whether `pid` is `root` or a descendant of it.
fn descends(mut pid: u32, root: u32, parents: &[(u32, u32)]) -> bool {
    // Bounded, should a number have come round meanwhile.
    for _ in 0..64 {
        if pid == root {
            return true;
        }
        match parents.iter().find(|(child, _)| *child == pid) {
            Some((_, parent)) => pid = *parent,
            None => return false,
        }
    }
    false
}

/// The parent of a process: the fourth field of its `stat`, behind a name that may hold anything (proc(5)).
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
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
        let parents = [(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)];
        assert!(descends(7, 5, &parents) && descends(5, 5, &parents));
        assert!(!descends(8, 5, &parents) && !descends(9, 5, &parents));
        assert_eq!(
            parent(std::process::id()),
            Some(nix::unistd::getppid().as_raw() as u32)
        );
    }

    #[test]
    fn own_work_is_own() {
        let before = own_time();
        while procfs::run_time(std::process::id()).unwrap() < before + Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        assert!(own_time() >= before + Duration::from_millis(50));
        let environment = Watch::start().unwrap().stop().unwrap();
        assert!(environment.settings.contains_key("steal_share"));
    }
}
