//! CPU time, memory and processes from `/proc` (proc(5)).

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::error::{Error, ErrorKind, Result};

/// CPU time since boot, by kind of work. The resolution is one tick of the kernel's accounting,
/// 10 ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Number of the CPU.
    pub cpu: usize,
    /// Time in programs, including programs of low priority.
    pub user: Duration,
    /// Time in the kernel on behalf of programs.
    pub system: Duration,
    /// Time in hardware interrupts.
    pub irq: Duration,
    /// Time in soft interrupts, which include most packet processing.
    pub softirq: Duration,
    /// Time during which the CPU was ready, but the hypervisor ran another task.
    pub steal: Duration,
    /// Idle time, including waits for a disk.
    pub idle: Duration,
}

impl CpuTimes {
    /// Returns the time since `earlier`. The result is never negative, although the kernel's idle
    /// time may decrease slightly.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu,
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
            idle: self.idle.saturating_sub(earlier.idle),
        }
    }

    /// Returns all time except idle time. Includes stolen time.
    pub fn busy(&self) -> Duration {
        self.user + self.system + self.irq + self.softirq + self.steal
    }

    /// Returns the sum of busy and idle time.
    pub fn total(&self) -> Duration {
        self.busy() + self.idle
    }
}

/// Returns the times of all online CPUs, ascending.
pub fn cpu_times() -> Result<Vec<CpuTimes>> {
    let tick = read_tick()?;
    let text = read("/proc/stat", "read CPU times")?;
    Ok(text
        .lines()
        .filter_map(|line| parse_cpu(line, tick))
        .collect())
}

/// Returns the CPU time of all threads of a process, in program and kernel. The resolution is 1 ns.
pub fn run_time(pid: u32) -> Result<Duration> {
    let failed = |errno| Error::os(format!("read the CPU time of process {pid}"), errno);
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).map_err(failed)?;
    clock_gettime(clock).map(Duration::from).map_err(failed)
}

/// Returns the start time of a process, clock ticks since boot. Number and start time together
/// identify a process, because numbers are reused.
pub fn start_time(pid: u32) -> Result<u64> {
    Stat::read(pid).map(|stat| stat.start_ticks)
}

/// Memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident memory, bytes, with shared pages in full (`VmRSS`).
    pub resident_bytes: u64,
    /// Resident memory, bytes, with each shared page divided among its users (`Pss`). The values of
    /// several processes can be added.
    pub proportional_bytes: u64,
}

/// Reads the memory of a process. The kernel visits all its pages for that.
pub fn memory(pid: u32) -> Result<Memory> {
    Ok(Memory {
        resident_bytes: resident_bytes(pid)?,
        proportional_bytes: read_memory(pid, "smaps_rollup", "Pss:")?,
    })
}

/// Reads the resident memory of a process, bytes, with shared pages in full. The kernel keeps this
/// number.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    read_memory(pid, "status", "VmRSS:")
}

fn read_memory(pid: u32, file: &str, name: &str) -> Result<u64> {
    let action = format!("read the memory of process {pid}");
    let text = read(&format!("/proc/{pid}/{file}"), &action)?;
    kib_field(&text, name).ok_or_else(|| unreadable_error(&action, name))
}

/// Returns the arguments of a process. Empty for kernel threads and ended processes.
pub fn command_line(pid: u32) -> Result<Vec<String>> {
    let file = format!("/proc/{pid}/cmdline");
    let bytes = fs::read(file)
        .map_err(|error| Error::os(format!("read the command line of process {pid}"), error))?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text
        .strip_suffix('\0')
        .map(|text| text.split('\0').map(str::to_owned).collect())
        .unwrap_or_default())
}

/// Returns the processes whose command line satisfies `is_wanted`, ascending.
pub fn find_processes(is_wanted: impl Fn(&[String]) -> bool) -> Result<Vec<u32>> {
    let mut found = processes()?;
    // A process may end before this read of its command line.
    found.retain(|pid| command_line(*pid).is_ok_and(|arguments| is_wanted(&arguments)));
    Ok(found)
}

/// Returns the mount points of all file systems of `kind`.
pub fn find_mounts(kind: &str) -> Result<Vec<PathBuf>> {
    let path = "/proc/self/mounts";
    let text =
        fs::read_to_string(path).map_err(|error| Error::os(format!("read {path}"), error))?;
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    Ok(fields
        .filter(|fields| fields.get(2) == Some(&kind))
        // The kernel writes a space as its octal code.
        .map(|fields| fields[1].replace("\\040", " ").into())
        .collect())
}

/// Returns all processes, ascending.
pub fn processes() -> Result<Vec<u32>> {
    let mut pids = list_numbers("/proc", "list processes")?;
    pids.sort_unstable();
    Ok(pids)
}

/// Some fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The parent's process number.
    pub parent: u32,
    /// The process number of the session's leader.
    pub session: u32,
    /// CPU time of ended children that the process waited for, and of their ended children. The
    /// resolution is one tick of the kernel's accounting, 10 ms.
    pub waited_for: Duration,
    /// The exit status in the format of wait(2), of a process that has ended and whose parent has
    /// not yet waited for it.
    pub exit_status: Option<i32>,
    pub(crate) start_ticks: u64,
}

impl Stat {
    /// Reads the fields of a process.
    pub fn read(pid: u32) -> Result<Self> {
        let action = format!("read the state of process {pid}");
        let text = read(&format!("/proc/{pid}/stat"), &action)?;
        Self::parse(&text, read_tick()?).ok_or_else(|| unreadable_error(&action, "stat"))
    }

    fn parse(text: &str, tick: Duration) -> Option<Self> {
        // The name, in parentheses, may contain any character, even parentheses. Field 3 follows
        // the last closing parenthesis.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: field(4)?.try_into().ok()?,
            session: field(6)?.try_into().ok()?,
            waited_for: tick * (field(16)? + field(17)?).try_into().ok()?,
            exit_status: (fields.first() == Some(&"Z"))
                .then(|| fields.get(52 - 3)?.parse().ok())
                .flatten(),
            start_ticks: field(22)?,
        })
    }
}

fn read(path: &str, action: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::os(action, error))
}

fn unreadable_error(action: &str, field: &str) -> Error {
    Error::new(
        action,
        ErrorKind::Other,
        format!("`{field}` is missing or malformed"),
    )
}

fn list_numbers(directory: &str, action: &str) -> Result<Vec<u32>> {
    let entries = fs::read_dir(directory).map_err(|error| Error::os(action, error))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

/// Returns the length of a tick of the kernel's accounting (`USER_HZ`).
fn read_tick() -> Result<Duration> {
    let per_second = sysconf(SysconfVar::CLK_TCK)
        .map_err(io::Error::from)
        .map_err(|error| Error::os("read the clock tick", error))?;
    let per_second = per_second
        .and_then(|ticks| u32::try_from(ticks).ok())
        .filter(|ticks| *ticks > 0)
        .unwrap_or(100);
    Ok(Duration::from_secs(1) / per_second)
}

fn parse_cpu(line: &str, tick: Duration) -> Option<CpuTimes> {
    let mut fields = line.strip_prefix("cpu")?.split(' ');
    let cpu = fields.next()?.parse().ok()?;
    // Ignore the guest time that follows, because the user time includes the guest time.
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let time = |ticks: u64| Duration::from_nanos((tick.as_nanos() as u64).saturating_mul(ticks));
    Some(CpuTimes {
        cpu,
        user: time(user + nice),
        system: time(system),
        irq: time(irq),
        softirq: time(softirq),
        steal: time(steal),
        idle: time(idle + iowait),
    })
}

/// Returns the value of the line `Name:   123 kB`, in bytes.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Child;
    use std::process;
    use std::time::Instant;

    fn own_pid() -> u32 {
        process::id()
    }

    #[test]
    fn a_line_of_proc_stat_is_parsed() {
        let times = parse_cpu(
            "cpu3 100 20 30 400 50 6 7 8 90 10",
            Duration::from_millis(10),
        )
        .unwrap();
        assert_eq!(
            (times.cpu, times.user, times.idle),
            (3, Duration::from_millis(1200), Duration::from_millis(4500))
        );
        assert_eq!(
            (times.irq, times.softirq, times.steal),
            (
                Duration::from_millis(60),
                Duration::from_millis(70),
                Duration::from_millis(80)
            )
        );
        assert_eq!(times.total(), Duration::from_millis(6210));
        assert_eq!(
            parse_cpu("cpu  1 2 3 4 5 6 7 8", Duration::from_millis(10)),
            None
        );
        assert_eq!(parse_cpu("cpu0 1 2", Duration::from_millis(10)), None);
        assert_eq!(parse_cpu("intr 5", Duration::from_millis(10)), None);
    }

    #[test]
    fn differences_never_go_below_zero() {
        let early = CpuTimes {
            idle: Duration::from_secs(2),
            ..CpuTimes::default()
        };
        let late = CpuTimes {
            idle: Duration::from_secs(1),
            user: Duration::from_secs(3),
            ..CpuTimes::default()
        };
        assert_eq!(late.since(&early).total(), Duration::from_secs(3));
    }

    #[test]
    fn names_with_parentheses_and_spaces_are_parsed() {
        let tick = Duration::from_millis(10);
        let text = "7 (a) b) (c) S 42 7 7 0 -1 4194560 1 2 3 4 55 66 2 5 20 0 1 0 777 8 9\n";
        let stat = Stat::parse(text, tick).unwrap();
        assert_eq!((stat.parent, stat.start_ticks), (42, 777));
        assert_eq!(stat.waited_for, 7 * tick);
        assert!(Stat::parse("7 (a S", tick).is_none() && Stat::parse("7 (a) S 1", tick).is_none());
    }

    #[test]
    fn busy_time_counts_as_cpu_and_run_time() {
        let (cpus, run) = (cpu_times().unwrap(), run_time(own_pid()).unwrap());
        // Wait for CPU time, not wall time, because other programs run too.
        while run_time(own_pid()).unwrap() < run + Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let spent: Duration = cpu_times()
            .unwrap()
            .iter()
            .zip(&cpus)
            .map(|(now, then)| now.since(then).busy())
            .sum();
        assert!(spent >= Duration::from_millis(200), "{spent:?}");
    }

    #[test]
    fn memory_and_start_time_of_this_process_are_read() {
        let before = memory(own_pid()).unwrap();
        let block = vec![1_u8; 8 << 20];
        let after = memory(own_pid()).unwrap();
        assert!(
            after.resident_bytes >= before.resident_bytes + (6 << 20),
            "{before:?} {after:?}"
        );
        assert!(after.proportional_bytes <= after.resident_bytes && block[4096] == 1);
        assert_eq!(
            start_time(own_pid()).unwrap(),
            start_time(own_pid()).unwrap()
        );
        assert!(start_time(u32::MAX >> 1).unwrap_err().is_not_found());
    }

    #[test]
    fn a_process_is_found_by_its_arguments() {
        let mark = format!("3{}.25", process::id());
        let child = Child::spawn_sleep(&mark);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut found = Vec::new();
        // The child has the arguments of this test until it calls exec.
        while found.is_empty() && Instant::now() < deadline {
            found =
                find_processes(|arguments| arguments.len() == 2 && arguments[1] == mark).unwrap();
        }
        assert_eq!(found, [child.id()]);
        assert_eq!(command_line(child.id()).unwrap(), ["sleep", &mark]);
    }
}
