use std::time::Instant;

use super::*;
use crate::process::Process;
use crate::tests::{Child, root_or_skip};

/// Removes the group that a failed test leaves behind.
struct Guard(String);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = remove(&self.0);
    }
}

/// Returns whether a group with that path exists in any hierarchy.
fn exists(path: &str) -> bool {
    let hierarchies = Hierarchies::detect().unwrap();
    hierarchies
        .iter()
        .any(|hierarchy| hierarchy.mount.join(path).exists())
}

fn guard_of_group(name: &str) -> Guard {
    // Each test uses another run, because the tests run in parallel.
    Guard(format!("myelin-t{}-{name}/group", std::process::id()))
}

fn wait_until(goal: &str, mut is_reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_reached() {
        assert!(Instant::now() < deadline, "not reached in time: {goal}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_share_gives_a_valid_quota() {
    let ms = Duration::from_millis;
    assert_eq!(compute_quota(500), (ms(5), ms(10)));
    assert_eq!(compute_quota(2000), (ms(20), ms(10)));
    assert_eq!(compute_quota(10), (ms(1), ms(100)));
    assert_eq!(compute_quota(1), (ms(1), ms(1000)));
    assert_eq!(compute_quota(0), compute_quota(1));
    for millicores in 1..=100 {
        let (quota, period) = compute_quota(millicores);
        assert!(quota >= MIN_QUOTA && period <= ms(1000), "{millicores}");
        let share = quota.as_secs_f64() / period.as_secs_f64() * 1e3;
        assert!((share - f64::from(millicores)).abs() < 0.1, "{millicores}");
    }
}

#[test]
fn the_kernel_accepts_every_small_share() {
    if !root_or_skip("the_kernel_accepts_every_small_share") {
        return;
    }
    let guard = guard_of_group("shares");
    let limits = |millicores| Limits {
        cpu_millicores: Some(millicores),
        memory_bytes: None,
        ..Limits::default()
    };
    let group = Cgroup::create(&guard.0, &limits(100)).unwrap();
    for millicores in 1..=100 {
        group.limit(&limits(millicores)).unwrap();
    }
}

/// Makes a v2 hierarchy in a directory. The root group cannot delegate controllers.
fn hierarchies_without_delegation(mount: &Path) -> Hierarchies {
    fs::create_dir(mount.join("cgroup.subtree_control")).unwrap();
    Hierarchies(vec![hierarchy::Hierarchy {
        mount: mount.to_owned(),
        controllers: vec!["cpu".to_owned(), "memory".to_owned()],
        unified: true,
    }])
}

#[test]
fn only_limits_need_a_delegated_controller() {
    let mount = tempfile::tempdir().unwrap();
    let hierarchies = hierarchies_without_delegation(mount.path());
    let make = |limits: &Limits| {
        Cgroup::make_directories("myelin-t/group", &hierarchies, limits, "create a group")
    };
    let group = make(&Limits::default()).unwrap();
    assert!(group.cpu.is_none() && group.memory.is_none());
    assert_eq!(group.directories, [mount.path().join("myelin-t/group")]);
    group.limit(&Limits::default()).unwrap();
    fs::write(group.directories[0].join("cpu.stat"), "usage_usec 7\n").unwrap();
    assert_eq!(group.usage().cpu_ns, 7000);
    let limits = Limits {
        cpu_millicores: None,
        memory_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let error = make(&limits).unwrap_err().to_string();
    assert!(error.contains("write +memory to"), "{error}");
}

#[test]
fn an_empty_run_directory_is_removed() {
    if !root_or_skip("an_empty_run_directory_is_removed") {
        return;
    }
    let guard = guard_of_group("bare");
    let run = guard.0.split('/').next().unwrap();
    let hierarchies = Hierarchies::detect().unwrap();
    let directories: Vec<PathBuf> = hierarchies
        .iter()
        .map(|hierarchy| hierarchy.mount.join(run))
        .collect();
    for directory in &directories {
        fs::create_dir(directory).unwrap();
    }
    remove(&guard.0).unwrap();
    assert!(directories.iter().all(|directory| !directory.exists()));
}

#[test]
fn paths_of_other_programs_are_refused() {
    for bad in [
        "system.slice/x",
        "myelin-a",
        "myelin-a/b/../c",
        "myelin-a/..",
        "myelin-/../x",
        "myelin-a/",
        "/myelin-a/b",
        "myelin-a/b c",
        "",
    ] {
        assert_eq!(remove(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        assert!(Cgroup::create(bad, &Limits::default()).is_err(), "{bad}");
    }
}

#[test]
fn removal_ends_all_processes_of_a_group() {
    if !root_or_skip("removal_ends_all_processes_of_a_group") {
        return;
    }
    let guard = guard_of_group("members");
    let group = Cgroup::create(&guard.0, &Limits::default()).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "setsid sleep 62 & sleep 62 & wait"]);
    group.join(&mut command).unwrap();
    let mut child = Child::spawn(&mut command);
    wait_until("three members", || group.processes().len() == 3);
    let members: Vec<Process> = group
        .processes()
        .into_iter()
        .map(|pid| Process::of(pid).unwrap())
        .collect();
    assert!(exists(&guard.0));
    let run = guard.0.split('/').next().unwrap();
    remove(&guard.0).unwrap();
    child.wait().unwrap();
    // An ended process may still be a zombie.
    assert!(members.iter().all(|member| !member.is_alive()));
    assert!(!exists(&guard.0));
    for hierarchy in Hierarchies::detect().unwrap().iter() {
        assert!(!hierarchy.mount.join(run).exists(), "{hierarchy:?}");
    }
    remove(&guard.0).unwrap();
}

#[test]
fn removal_keeps_groups_of_other_runs() {
    if !root_or_skip("removal_keeps_groups_of_other_runs") {
        return;
    }
    let (first, second) = (guard_of_group("first"), guard_of_group("second"));
    Cgroup::create(&first.0, &Limits::default()).unwrap();
    let kept = Cgroup::create(&second.0, &Limits::default()).unwrap();
    remove(&first.0).unwrap();
    assert!(exists(&second.0) && kept.directories[0].is_dir());
}

/// Limits a spinning process to a tenth of a core until the kernel has throttled it, then raises
/// the limit. Returns the share of a core that the process used before; `None` without root.
fn measure_share_of_spinning_process(name: &str) -> Option<f64> {
    if !root_or_skip("a spinning process") {
        return None;
    }
    let guard = guard_of_group(name);
    let limits = Limits {
        cpu_millicores: Some(100),
        memory_bytes: None,
        ..Limits::default()
    };
    let group = Cgroup::create(&guard.0, &limits).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    group.join(&mut command).unwrap();
    let started = Instant::now();
    let _child = Child::spawn(&mut command);
    wait_until("the kernel throttles the process", || {
        group.usage().throttled_periods >= 20
    });
    let usage = group.usage();
    let share = usage.cpu_ns as f64 / started.elapsed().as_nanos() as f64;
    assert!(usage.cpu_ns > 0, "{usage:?}");
    assert!(usage.throttled_ns > 0, "{usage:?}");
    // The limit can be raised while the process runs.
    let more = Limits {
        cpu_millicores: Some(2000),
        ..limits
    };
    group.limit(&more).unwrap();
    let before = group.usage().cpu_ns;
    wait_until("the raised limit applies", || {
        group.usage().cpu_ns > before + 50_000_000
    });
    Some(share)
}

#[test]
fn a_spinning_process_is_throttled_until_its_limit_is_raised() {
    measure_share_of_spinning_process("throttled");
}

#[test]
#[ignore = "thorough: measures a share of CPU time on a quiet machine"]
fn a_spinning_process_is_limited_to_its_share() {
    // The process would use a whole core. The test accepts twice its share, because timing is
    // inexact.
    if let Some(share) = measure_share_of_spinning_process("cpu") {
        assert!(share < 0.2, "{share}");
    }
}

#[test]
fn the_kernel_kills_a_process_at_the_memory_limit() {
    if !root_or_skip("the_kernel_kills_a_process_at_the_memory_limit") {
        return;
    }
    let guard = guard_of_group("memory");
    let limits = Limits {
        cpu_millicores: None,
        memory_bytes: Some(16 << 20),
        ..Limits::default()
    };
    let group = Cgroup::create(&guard.0, &limits).unwrap();
    let mut command = Command::new("tail");
    // `tail` buffers its input up to the end of a line, and this input has no end of a line.
    command.arg("/dev/zero");
    group.join(&mut command).unwrap();
    let mut child = Child::spawn(&mut command);
    let status = child.wait().unwrap();
    assert!(!status.success());
    let usage = group.usage();
    assert_eq!(usage.oom_kills, 1, "{usage:?}");
    assert!(usage.memory_bytes <= 16 << 20, "{usage:?}");
}

#[test]
fn real_time_priority_and_a_group_exclude_each_other() {
    if !root_or_skip("real_time_priority_and_a_group_exclude_each_other") {
        return;
    }
    // The policy is that of this thread only.
    let guard = guard_of_group("real-time");
    let group = guard.0.clone();
    let error = std::thread::spawn(move || {
        crate::sched::set(0, Policy::Fifo(1)).unwrap();
        Cgroup::create(&group, &Limits::default()).unwrap_err()
    });
    let error = error.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("SCHED_FIFO 1"), "{error}");
    assert!(!exists(&guard.0));
}

#[test]
fn a_frozen_group_runs_no_instruction_until_it_thaws() {
    if !root_or_skip("a_frozen_group_runs_no_instruction_until_it_thaws") {
        return;
    }
    let guard = guard_of_group("frozen");
    let mut group = Cgroup::create(&guard.0, &Limits::default()).unwrap();
    if let Err(error) = group.set_frozen(false) {
        println!("SKIP: {error}");
        return;
    }
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    group.join(&mut command).unwrap();
    let mut child = Child::spawn(&mut command);
    let runs_on = |group: &Cgroup| {
        let before = group.usage().cpu_ns;
        wait_until("the process runs", || group.usage().cpu_ns > before);
    };
    runs_on(&group);
    group.set_frozen(true).unwrap();
    let frozen = |child: &Child| {
        let wchan = format!("/proc/{}/stat", child.id());
        let stat = fs::read_to_string(wchan).unwrap_or_default();
        !stat.contains(") R ")
    };
    wait_until("the process stands", || frozen(&child));
    let stands_at = group.usage().cpu_ns;
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(group.usage().cpu_ns, stands_at);
    group.set_frozen(false).unwrap();
    runs_on(&group);
    group.set_frozen(true).unwrap();
    // A frozen process does not keep its group.
    remove(&guard.0).unwrap();
    child.wait().unwrap();
    assert!(!exists(&guard.0));
}

#[test]
fn the_kernel_takes_each_weight_within_the_limits() {
    if !root_or_skip("the_kernel_takes_each_weight_within_the_limits") {
        return;
    }
    let guard = guard_of_group("weights");
    let limits = Limits {
        cpu_millicores: Some(1000),
        memory_bytes: None,
        ..Limits::default()
    };
    let group = Cgroup::create(&guard.0, &limits).unwrap();
    for weight in [1, DEFAULT_WEIGHT, MAX_WEIGHT] {
        group.set_weight(weight).unwrap();
        let cpu = group.cpu.as_ref().unwrap();
        let (file, expected) = if cpu.unified {
            ("cpu.weight", weight)
        } else {
            ("cpu.shares", weight * 1024 / DEFAULT_WEIGHT)
        };
        assert_eq!(cpu.read_file(file).trim(), expected.to_string());
    }
}
