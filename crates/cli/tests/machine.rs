//! A CPU goes offline, and the wall clock is set. Both change the whole machine, so these
//! tests run only where `MYELIN_TEST_MACHINE=1` is set, as in the emulated machine of
//! `scripts/test-old-kernel`.

mod common;

use std::time::{Instant, SystemTime};

use common::chains::format_chains_on_two_cores;
use common::load::{
    Sender, assert_contract_kept, assert_core_returned, assert_last_event_ended, read_count,
    read_judged_seconds, sum_lost_packets, wait_until_settled,
};
use common::{Myelin, is_dedicated_machine, sh, skip, skip_unless_root, wait_for};
use myelin_linux::affinity;
use myelin_linux::sched::{self, Policy};
use serde_json::Value;

/// Returns true, and prints a reason, unless only the tests use this machine.
fn skip_on_a_shared_machine() -> bool {
    let is_dedicated = is_dedicated_machine();
    if !is_dedicated {
        skip("other programs may use this machine: MYELIN_TEST_MACHINE is not 1");
    }
    !is_dedicated
}

/// An offline CPU. Dropping the value brings the CPU online.
struct OfflineCpu(usize);

impl OfflineCpu {
    fn start(cpu: usize) -> Self {
        let offline = Self(cpu);
        offline.write("0").expect("the kernel supports CPU hotplug");
        offline
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        std::fs::write(
            format!("/sys/devices/system/cpu/cpu{}/online", self.0),
            text,
        )
    }
}

impl Drop for OfflineCpu {
    fn drop(&mut self) {
        self.write("1").expect("the kernel supports CPU hotplug");
    }
}

/// Reads `Cpus_allowed_list` of each thread of a process. The list includes offline CPUs.
fn read_allowed_cpus(pid: i32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process has threads");
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let tasks = tasks.flatten().filter_map(status);
    tasks
        .map(|status| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.expect("the thread has allowed CPUs").trim().to_owned()
        })
        .collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one course of events")]
fn a_chain_whose_cpu_is_offline_is_best_effort_until_the_cpu_is_online() {
    if skip_on_a_shared_machine() || skip_unless_root() {
        return;
    }
    let core = 1;
    let myelin = Myelin::new();
    let text = format_chains_on_two_cores(core, "10s, percentile: 50");
    let file = myelin.write_file(&text);
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let senders = [&up[0], &up[1]].map(|up| Sender::start_through_chain(up, 100));
    let worker = || read_count(&myelin.read_status("taken")["worker"]["pid"]) as u32;
    assert_eq!(
        affinity::get(worker()).expect("the process has an affinity"),
        [core]
    );
    assert_eq!(up[0]["plan"]["admitted"], true, "{up}");
    let allowed_before = read_allowed_cpus(myelin.read_agent_pid());

    let offline = OfflineCpu::start(core);
    let lost_cores = || myelin.read_status("taken")["sla"]["lost_cores"].clone();
    wait_for("the core to be reported lost", || lost_cores()[0] == core);
    let status = myelin.read_status("taken");
    assert_eq!(
        (&status["state"], &status["best_effort"]),
        (&"active".into(), &true.into()),
        "{status}"
    );
    let event = &status["sla"]["last_event"];
    assert_eq!(
        (&event["chain"], &event["cause"], &event["hop"]),
        (
            &myelin.chain_name("taken").into(),
            &"core".into(),
            &"one".into()
        ),
        "{status}"
    );
    let evidence = event["evidence"].to_string();
    let remedy = format!("write 1 to /sys/devices/system/cpu/cpu{core}/online");
    assert!(
        evidence.contains(&format!("core {core} is offline")) && evidence.contains(&remedy),
        "{evidence}"
    );
    let mut is_idle_class = false;
    wait_for("the worker to run with SCHED_IDLE", || {
        let pid = worker();
        is_idle_class = affinity::get(pid).is_ok_and(|cpus| cpus == [0])
            && sched::get(pid).is_ok_and(|policy| policy == Policy::Idle);
        is_idle_class
    });
    assert!(is_idle_class, "{}", myelin.read_status("taken"));
    // The chain still carries packets: now, after a change of the other chain, and after the death
    // of its worker.
    let out = || read_count(&myelin.read_status("taken")["packets_out"]);
    let assert_carries_packets = || {
        let before = out();
        wait_for("more packets", || out() > before);
        assert!(out() > before, "{}", myelin.read_status("taken"));
    };
    assert_carries_packets();
    let (taken, other) = text.split_once("---").expect("the file has two chains");
    let changed = other.replace("name: one, kind: forward", "name: one, kind: monitor");
    let changed = myelin.write_file(&format!("{taken}---{changed}"));
    let up = myelin.run_json(&["up", changed.to_str().unwrap(), "--json"]);
    assert_eq!(
        (&up[0]["change"], &up[1]["change"]),
        (&"unchanged".into(), &"changed".into()),
        "{up}"
    );
    assert_carries_packets();
    common::kill(&worker().into());
    wait_for("a new worker", || {
        let status = myelin.read_status("taken");
        read_count(&status["worker"]["restarts"]) >= 1 && status["sla"]["lost_cores"][0] == core
    });
    assert_eq!(lost_cores()[0], core, "{}", myelin.read_status("taken"));
    assert_carries_packets();
    // The agent refuses a new chain on the offline core.
    let late = taken.replace("@taken", "@late").replace("9000", "9001");
    let error = myelin.run_failing(2, &["up", myelin.write_file(&late).to_str().unwrap()]);
    assert!(
        error.contains(&format!("there is no core {core} to use")),
        "{error}"
    );
    myelin.expect_chains(2);

    drop(offline);
    assert_core_returned(core, &myelin, "taken");
    assert_last_event_ended(&myelin, "taken");
    drop(senders);
    assert_contract_kept(&myelin, "other");
    // The agent bound none of its threads to a core.
    let all_cpus = &allowed_before[0];
    let allowed_now = read_allowed_cpus(myelin.read_agent_pid());
    assert!(
        allowed_now.iter().all(|cpus| cpus == all_cpus),
        "{allowed_before:?} {allowed_now:?}"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// The wall clock. Dropping the value sets the right time again.
struct WallClock {
    start: SystemTime,
    since: Instant,
}

impl WallClock {
    fn new() -> Self {
        Self {
            start: SystemTime::now(),
            since: Instant::now(),
        }
    }

    /// Sets the clock to the right time plus `off_s` seconds.
    fn set(&self, off_s: i64) {
        let right = self.start + self.since.elapsed();
        let right = right.duration_since(SystemTime::UNIX_EPOCH);
        let right_s = right
            .expect("the time is after 1970")
            .as_secs()
            .cast_signed();
        sh(&format!("date -s @{}", right_s + off_s));
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        self.set(0);
    }
}

const HOUR_S: i64 = 3600;

#[test]
#[expect(clippy::too_many_lines, reason = "one course of events")]
fn setting_the_wall_clock_changes_only_dates() {
    if skip_on_a_shared_machine() || skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let (rate, burst) = (200, 20);
    let chain = |name: &str, port: u16, space: &str, profile: &str| {
        format!(
            "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: {port} }}
  functions: [ {{ name: one, kind: monitor, space: {space} }} ]
  sla: {{ {profile}, latency: 10s, percentile: 50, loss: 0.1% }}
"
        )
    };
    let quiet = "rate: 1kpps, burst: 256";
    let file = myelin.write_file(
        &[
            chain("kernel", 9000, "kernel", quiet),
            chain("user", 9000, "user", &format!("{quiet}, enforce: both")),
            chain(
                "loud",
                9000,
                "kernel",
                &format!("rate: {rate}pps, burst: {burst}, enforce: policer"),
            ),
        ]
        .join("---"),
    );
    let start = Instant::now();
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let senders = [
        Sender::start_through_chain(&up[0], 100),
        Sender::start_through_chain(&up[1], 100),
        Sender::start_through_chain(&up[2], 10 * rate),
    ];
    let names = ["kernel", "user", "loud"];
    let assert_two_seconds_judged = || {
        for name in names {
            let since = Instant::now();
            let before = read_judged_seconds(&myelin, name);
            wait_for("two judged seconds", || {
                read_judged_seconds(&myelin, name) >= before + 2
            });
            let more = read_judged_seconds(&myelin, name) - before;
            // CLOCK_MONOTONIC counts the seconds of the SLA monitor, not the wall clock.
            let at_most = since.elapsed().as_secs() + 2;
            assert!(
                (2..=at_most).contains(&more),
                "{name}: {more} of {at_most} seconds"
            );
        }
    };
    let clock = WallClock::new();
    assert_two_seconds_judged();
    for off_s in [HOUR_S, -HOUR_S, 0] {
        clock.set(off_s);
        assert_two_seconds_judged();
    }
    drop(clock);
    // The dates follow the wall clock: an hour forward, two hours back, an hour forward.
    let seconds = myelin.run_json(&[
        "ps",
        &myelin.chain_name("user"),
        "--seconds",
        "300",
        "--json",
    ]);
    let ends: Vec<_> = seconds
        .as_array()
        .expect("the JSON lists seconds")
        .iter()
        .map(|second| second["end"].as_str().expect("the second has a date"))
        .collect();
    let decreases = ends.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert_eq!(decreases, 1, "{ends:?}");

    let sent = senders.map(Sender::stop);
    let elapsed_s = start.elapsed().as_secs_f64();
    for name in names {
        let status = wait_until_settled(&myelin, name);
        let max_us = status["sojourn"]["max_us"]
            .as_f64()
            .expect("the status has a sojourn");
        assert!((0.1..60e6).contains(&max_us), "{name}: {status}");
        assert_eq!(
            (&status["drops"], sum_lost_packets(&status["sla"]["life"])),
            (&0.into(), 0),
            "{name}: {status}"
        );
    }
    for name in ["kernel", "user"] {
        assert_contract_kept(&myelin, name);
    }
    assert_eq!(
        myelin.run_json(&["events", "--json"]),
        Value::Array(Vec::new())
    );
    // On the wall clock the policer would have earned the tokens of an hour.
    let status = myelin.read_status("loud");
    let out = read_count(&status["packets_out"]);
    let due = (elapsed_s * f64::from(rate)) as u64 + burst + 1;
    assert!(
        out <= due,
        "{out} packets left, at most {due} allowed: {status}"
    );
    assert!(out > burst && sent[2] > out, "{sent:?}: {status}");
    assert!(read_count(&status["policed"]) > 0, "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
