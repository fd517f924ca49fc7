//! Measures the CPU use during a measurement.

use myelin_linux::procfs::{self, CpuTimes};
use myelin_metrics::{CoreUse, CpuUse, ProcessUse, Shares};

use crate::Error;
use crate::clock::now_ns;

/// A running measurement of CPU use.
#[derive(Debug)]
pub struct CpuMeter {
    started_ns: u64,
    cpus: Vec<CpuTimes>,
    processes: Vec<(String, u32, std::time::Duration)>,
}

impl CpuMeter {
    /// Starts the measurement. Also measures `processes`, each given by name and process number.
    ///
    /// # Errors
    /// [`Error::Linux`] if `/proc/stat` cannot be read or a process does not exist.
    pub fn start(processes: &[(&str, u32)]) -> Result<Self, Error> {
        let processes = processes
            .iter()
            .map(|&(name, pid)| Ok((name.to_owned(), pid, procfs::run_time(pid)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Self {
            processes,
            cpus: procfs::cpu_times()?,
            started_ns: now_ns(),
        })
    }

    /// Sums the CPU times of all cores since the start. A short window ends between two ticks, so
    /// add the times of windows ([`sum_times`]) before computing shares.
    ///
    /// # Errors
    /// [`Error::Linux`] if `/proc/stat` cannot be read.
    pub fn spent(&self) -> Result<CpuTimes, Error> {
        Ok(sum_times(spent_by_core(&self.cpus, &procfs::cpu_times()?)))
    }

    /// Computes the CPU use since the start.
    ///
    /// # Errors
    /// [`Error::Linux`] if `/proc/stat` cannot be read.
    pub fn usage(&self) -> Result<CpuUse, Error> {
        let duration_s = now_ns().saturating_sub(self.started_ns) as f64 / 1e9;
        let (overall, per_core) = compute_shares(&self.cpus, &procfs::cpu_times()?);
        let processes = self
            .processes
            .iter()
            .map(|(name, pid, before)| {
                let cpu_s = procfs::run_time(*pid)
                    .ok()
                    .map(|now| now.saturating_sub(*before).as_secs_f64());
                ProcessUse {
                    name: name.clone(),
                    pid: *pid,
                    cpu_s,
                    cores: cpu_s.map(|s| s / duration_s.max(1e-9)),
                }
            })
            .collect();
        Ok(CpuUse {
            duration_s,
            overall,
            per_core,
            processes,
        })
    }
}

/// Sums the times of several cores or windows. The core number of the sum has no meaning.
pub fn sum_times(times: impl IntoIterator<Item = CpuTimes>) -> CpuTimes {
    let add = |sum: CpuTimes, times: CpuTimes| CpuTimes {
        cpu: 0,
        user: sum.user + times.user,
        system: sum.system + times.system,
        irq: sum.irq + times.irq,
        softirq: sum.softirq + times.softirq,
        steal: sum.steal + times.steal,
        idle: sum.idle + times.idle,
    };
    times.into_iter().fold(CpuTimes::default(), add)
}

/// Returns the times spent by each core that was online at both readings.
fn spent_by_core(earlier: &[CpuTimes], later: &[CpuTimes]) -> Vec<CpuTimes> {
    let spent = |now: &CpuTimes| {
        let before = earlier.iter().find(|before| before.cpu == now.cpu)?;
        Some(now.since(before))
    };
    later.iter().filter_map(spent).collect()
}

fn compute_shares(earlier: &[CpuTimes], later: &[CpuTimes]) -> (Option<Shares>, Vec<CoreUse>) {
    let cores = spent_by_core(earlier, later);
    let per_core = cores.iter().filter_map(|spent| {
        shares(spent).map(|shares| CoreUse {
            core: spent.cpu,
            shares,
        })
    });
    let per_core = per_core.collect();
    (shares(&sum_times(cores)), per_core)
}

/// Computes the share of each use of the time. `None` if less than a tick passed.
pub fn shares(times: &CpuTimes) -> Option<Shares> {
    let total = times.total().as_secs_f64();
    let share = |part: std::time::Duration| part.as_secs_f64() / total;
    (total > 0.0).then(|| Shares {
        user_share: share(times.user),
        system_share: share(times.system),
        irq_share: share(times.irq),
        softirq_share: share(times.softirq),
        steal_share: share(times.steal),
        idle_share: share(times.idle),
    })
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use std::time::Duration;

    use super::*;

    fn times(cpu: usize, ms: [u64; 6]) -> CpuTimes {
        let [user, system, irq, softirq, steal, idle] = ms.map(Duration::from_millis);
        CpuTimes {
            cpu,
            user,
            system,
            irq,
            softirq,
            steal,
            idle,
        }
    }

    #[test]
    fn shares_cover_each_core_and_all_cores_together() {
        let earlier = [
            times(0, [10, 10, 0, 0, 0, 10]),
            times(1, [0; 6]),
            times(3, [0; 6]),
        ];
        let later = [
            times(0, [260, 260, 0, 0, 0, 510]),
            times(1, [0, 0, 50, 450, 500, 0]),
            times(2, [9; 6]),
            times(3, [0; 6]),
        ];
        let (overall, cores) = compute_shares(&earlier, &later);
        let overall = overall.unwrap();
        let rounded = overall.parts().map(|(_, share)| (share * 1000.0).round());
        assert_eq!(rounded, [125.0, 125.0, 225.0, 25.0, 250.0, 250.0]);
        assert_eq!(
            cores.iter().map(|c| c.core).collect::<Vec<_>>(),
            [0, 1],
            "core 2 came online later, core 3 had no tick"
        );
        assert!((cores[0].shares.idle_share - 0.5).abs() < 1e-9);
        assert!((cores[1].shares.softirq_share - 0.45).abs() < 1e-9);
        assert_eq!(compute_shares(&earlier, &earlier), (None, vec![]));
        // Two windows with a tick of 10 ms each, of different kinds.
        let windows = [
            times(0, [10, 0, 0, 0, 0, 20]),
            times(0, [0, 0, 0, 10, 0, 0]),
        ];
        let shares = shares(&sum_times(windows)).unwrap();
        assert_eq!((shares.user_share, shares.softirq_share), (0.25, 0.25));
    }

    #[test]
    fn a_busy_thread_is_measured() {
        let own = std::process::id();
        let meter = CpuMeter::start(&[("probe", own)]).unwrap();
        let before = procfs::run_time(own).unwrap();
        while procfs::run_time(own).unwrap() < before + Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let used = meter.usage().unwrap();
        let sum: f64 = used.overall.unwrap().parts().iter().map(|(_, s)| s).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{used:?}");
        assert!(used.overall.unwrap().idle_share < 0.95);
        let process = &used.processes[0];
        assert!(
            process.cpu_s.unwrap() >= 0.3 && process.cores.unwrap() > 0.0,
            "{process:?}"
        );
        let json = serde_json::to_value(&used).unwrap();
        assert!(json["user_share"].is_number() && json["per_core"][0]["softirq_share"].is_number());
    }

    #[test]
    fn start_fails_with_the_number_of_a_missing_process() {
        // Process numbers are below 2^22 (PID_MAX_LIMIT).
        let error = CpuMeter::start(&[("ghost", 1 << 22)]).unwrap_err();
        assert!(error.to_string().contains("4194304"), "{error}");
    }

    #[test]
    fn an_ended_process_has_no_figure() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let meter = CpuMeter::start(&[("sleeper", child.id())]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(meter.usage().unwrap().processes[0].cpu_s, None);
    }
}
