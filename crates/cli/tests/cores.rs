//! A chain loses its core to another program, or to the cpuset controller. Its event names the
//! cause. The chain on the other core keeps its contract.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::chains::format_chains_on_two_cores;
use common::load::{
    Sender, assert_contract_kept, assert_core_returned, assert_last_event_ended, read_count,
    read_judged_seconds, sum_lost_packets, wait_until_settled,
};
use common::taps::{Hosts, skip_without_dpdk};
use common::{Myelin, skip, skip_unless_root, wait_for};
use myelin_linux::affinity;
use myelin_linux::sched::{self, Policy};
use serde_json::Value;

/// Returns the last core; `None`, with a printed reason, on a machine of one core.
fn find_last_core() -> Option<usize> {
    let core = affinity::get(0).unwrap_or_default().last().copied();
    let core = core.filter(|core| *core > 0);
    if core.is_none() {
        skip("needs two cores");
    }
    core
}

/// A thread that occupies a core with real-time priority for 4/5 of the time.
struct RealTimeLoad {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RealTimeLoad {
    const BUSY: Duration = Duration::from_millis(400);
    const PAUSE: Duration = Duration::from_millis(100);
    /// Stops after this time even if the test hangs.
    const MAX_TIME: Duration = Duration::from_secs(120);

    fn start(core: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_requested = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            affinity::set(0, &[core]).expect("the thread runs on the core");
            // A control group without a real-time budget refuses FIFO; nice -20 takes nearly all of
            // the core too.
            sched::set(0, Policy::Fifo(1))
                .or_else(|_| sched::set_nice(0, -20))
                .expect("the thread gets a priority");
            let start = Instant::now();
            while !stop_requested.load(Ordering::Relaxed) && start.elapsed() < Self::MAX_TIME {
                let busy_since = Instant::now();
                while busy_since.elapsed() < Self::BUSY && !stop_requested.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                std::thread::sleep(Self::PAUSE);
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for RealTimeLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_real_time_program_on_a_core_violates_only_the_chain_on_that_core() {
    if skip_unless_root() {
        return;
    }
    let Some(core) = find_last_core() else {
        return;
    };
    let myelin = Myelin::new();
    // One packet in ten may be late.
    let file = myelin.write_file(&format_chains_on_two_cores(core, "30ms, percentile: 90"));
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["plan"]["admitted"], true, "{up}");
    let senders = [&up[0], &up[1]].map(|up| Sender::start_through_chain(up, 100));
    wait_for("a second", || read_judged_seconds(&myelin, "taken") >= 1);
    let load = RealTimeLoad::start(core);
    let mut event = Value::Null;
    wait_for("a violation", || {
        let events = myelin.run_json(&["events", &myelin.chain_name("taken"), "--json"]);
        let mut events = events.as_array().expect("the JSON is a list").iter();
        // `steal` if the hypervisor took more time than the program.
        let has_expected_cause =
            |event: &&Value| event["cause"] == "neighbour" || event["cause"] == "steal";
        event = events.find(has_expected_cause).cloned().unwrap_or_default();
        !event.is_null()
    });
    drop(load);
    let all_events = myelin.run_json(&["events", "--json"]);
    assert_eq!(event["hop"], "one", "{all_events}");
    let terms = event["terms"].as_array().expect("the event lists terms");
    assert!(terms.contains(&"latency".into()), "{all_events}");
    let evidence = event["evidence"].to_string();
    assert!(
        evidence.contains(&format!("on core {core}")),
        "{all_events}"
    );
    for sender in senders {
        assert!(sender.stop() > 0);
    }
    // The ring has room for the waiting packets, so the chain loses no packet.
    let status = wait_until_settled(&myelin, "taken");
    assert_eq!(status["packets_out"], status["packets_in"], "{status}");
    assert_eq!(sum_lost_packets(&status["sla"]["life"]), 0, "{status}");
    assert_eq!(status["sla"]["state"], "violated", "{status}");
    assert_eq!(
        status["best_effort"], false,
        "the worker is still bound to the core"
    );
    assert_contract_kept(&myelin, "other");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// A control group of the cpuset controller. Dropping the group moves its processes to the parent.
/// The group is named after this process, and a polling worker without its core takes the time of
/// other tests, so each test makes its `Myelin` first, which excludes other tests.
struct CpuSet {
    path: PathBuf,
    parent: PathBuf,
}

impl CpuSet {
    /// Makes a group with all cores but `core`; `None`, with a printed reason, without the
    /// controller.
    fn without_core(core: usize) -> Option<Self> {
        let parent = Self::find_hierarchy();
        let Some(parent) = parent.filter(|_| nix::unistd::geteuid().is_root()) else {
            skip("no cpuset controller");
            return None;
        };
        let path = parent.join(format!("my{}cpuset", std::process::id()));
        // In v2 the parent must enable the controller for its children.
        let _ = std::fs::write(parent.join("cgroup.subtree_control"), "+cpuset");
        let cpus: Vec<_> = affinity::get(0)
            .expect("the affinity is readable")
            .into_iter()
            .filter(|cpu| *cpu != core)
            .map(|cpu| cpu.to_string())
            .collect();
        let result = std::fs::create_dir(&path)
            .and_then(|()| std::fs::write(path.join("cpuset.cpus"), cpus.join(",")))
            .and_then(|()| {
                let memory = [
                    "cpuset.mems.effective",
                    "cpuset.effective_mems",
                    "cpuset.mems",
                ];
                let mut memory = memory.into_iter();
                let memory =
                    memory.find_map(|file| std::fs::read_to_string(parent.join(file)).ok());
                std::fs::write(path.join("cpuset.mems"), memory.unwrap_or_default())
            });
        let set = Self { path, parent };
        if let Err(error) = result {
            skip(&format!("no cpuset controller: {error}"));
            return None;
        }
        Some(set)
    }

    fn find_hierarchy() -> Option<PathBuf> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let mounts = mounts.lines().map(|line| line.split_whitespace().collect());
        let mut mounts = mounts.filter(|words: &Vec<&str>| words.len() > 3);
        mounts.find_map(|words| {
            let path = PathBuf::from(words[1]);
            let is_v1 = words[2] == "cgroup" && words[3].split(',').any(|word| word == "cpuset");
            let controllers = std::fs::read_to_string(path.join("cgroup.controllers"));
            let is_v2 = words[2] == "cgroup2"
                && controllers
                    .is_ok_and(|text| text.split_whitespace().any(|word| word == "cpuset"));
            (is_v1 || is_v2).then_some(path)
        })
    }

    fn add(&self, pid: u32) {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string())
            .expect("the process joins the group");
    }

    fn move_processes_back(&self) {
        let procs = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            // The process may have ended.
            let _ = std::fs::write(self.parent.join("cgroup.procs"), pid);
        }
    }
}

impl Drop for CpuSet {
    fn drop(&mut self) {
        self.move_processes_back();
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[test]
fn a_chain_whose_core_leaves_the_cpuset_is_best_effort_until_the_core_returns() {
    if skip_unless_root() {
        return;
    }
    let Some(core) = find_last_core() else {
        return;
    };
    let myelin = Myelin::new();
    let Some(set) = CpuSet::without_core(core) else {
        return;
    };
    let file = myelin.write_file(&format_chains_on_two_cores(core, "10s, percentile: 50"));
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let senders = [&up[0], &up[1]].map(|up| Sender::start_through_chain(up, 100));
    let worker = || read_count(&myelin.read_status("taken")["worker"]["pid"]) as u32;
    assert_eq!(affinity::get(worker()).expect("an affinity"), [core]);

    // Adds the agent too: the agent starts the next worker, which inherits the cpuset.
    set.add(worker());
    set.add(myelin.read_agent_pid().cast_unsigned());
    let lost_cores = || myelin.read_status("taken")["sla"]["lost_cores"].clone();
    wait_for("the core to be reported lost", || lost_cores()[0] == core);
    let status = myelin.read_status("taken");
    assert_eq!(status["state"], "active", "{status}");
    assert_eq!(status["best_effort"], true, "{status}");
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
    assert_eq!(event["terms"], serde_json::json!(["core"]), "{status}");
    let evidence = event["evidence"].to_string();
    assert!(
        evidence.contains(&format!("no longer includes core {core}"))
            && evidence.contains("remedy: add core"),
        "{evidence}"
    );
    let shown = myelin.run_ok(&["ps", "-v", &myelin.chain_name("taken")]);
    assert!(
        shown.contains("effort") && shown.contains(&format!("core {core} is unavailable")),
        "{shown}"
    );
    // SCHED_IDLE: on the remaining cores the worker takes no time from chains with a contract.
    let mut is_idle_class = false;
    wait_for("the worker to run with SCHED_IDLE", || {
        let pid = worker();
        is_idle_class = affinity::get(pid).is_ok_and(|cpus| !cpus.contains(&core))
            && sched::get(pid).is_ok_and(|policy| policy == Policy::Idle);
        is_idle_class
    });
    assert!(is_idle_class, "{}", myelin.read_status("taken"));
    // The chain still carries packets, and the agent restarts its worker.
    let out = || read_count(&myelin.read_status("taken")["packets_out"]);
    let before = out();
    wait_for("more packets", || out() > before);
    assert!(out() > before, "{}", myelin.read_status("taken"));
    common::kill(&worker().into());
    wait_for("a new worker", || {
        let status = myelin.read_status("taken");
        read_count(&status["worker"]["restarts"]) >= 1 && status["sla"]["lost_cores"][0] == core
    });
    let status = myelin.read_status("taken");
    assert!(read_count(&status["worker"]["restarts"]) >= 1, "{status}");
    assert_eq!(
        (&status["state"], &status["sla"]["lost_cores"][0]),
        (&"active".into(), &core.into()),
        "{status}"
    );
    let before = out();
    wait_for("more packets", || out() > before);
    assert!(out() > before, "{}", myelin.read_status("taken"));

    set.move_processes_back();
    assert_core_returned(core, &myelin, "taken");
    assert_last_event_ended(&myelin, "taken");
    drop(senders);
    assert_contract_kept(&myelin, "other");
    myelin.run_ok(&["down", "--all"]);
    drop(set);
    myelin.assert_clean();
}

#[test]
#[expect(clippy::too_many_lines, reason = "one course of events")]
fn a_dpdk_worker_that_dies_without_its_core_is_restarted_on_the_remaining_cores() {
    if skip_unless_root() || skip_without_dpdk() {
        return;
    }
    let Some(core) = find_last_core() else {
        return;
    };
    let (myelin, hosts) = (Myelin::new(), Hosts::new('c'));
    let Some(set) = CpuSet::without_core(core) else {
        return;
    };
    let links = ["a", "b"].map(|end| hosts.link(end));
    let file = myelin.write_file(&format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @taken }}
spec:
  match: {{ protocol: udp, destination: 10.78.0.2/32, destinationPort: 9000 }}
  functions: [ {{ name: one, kind: forward }} ]
  ports: {{ ingress: {{ dpdk: \"net_tap0,iface={}\" }}, egress: {{ dpdk: \"net_tap1,iface={}\" }} }}
  worker: {{ cores: [{core}] }}
",
        links[0], links[1]
    ));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let links = [&*links[0], &*links[1]];
    hosts.add_links(links);
    let status = || myelin.read_status("taken");
    let worker = || read_count(&status()["worker"]["pid"]) as u32;
    let assert_carries_packets = || {
        let client = hosts.open_socket("a", "10.78.0.1:0");
        let before = read_count(&status()["packets_out"]);
        wait_for("packets", || {
            client
                .send_to(&[0; 32], "10.78.0.2:9000")
                .expect("the datagram is sent");
            read_count(&status()["packets_out"]) > before
        });
        assert!(
            read_count(&status()["packets_out"]) > before,
            "{}",
            status()
        );
    };
    assert_carries_packets();
    assert_eq!(
        affinity::get(worker()).expect("the process has an affinity"),
        [core]
    );

    set.add(worker());
    set.add(myelin.read_agent_pid().cast_unsigned());
    // Reads events, not `ps`: `ps` asks the worker, which answers late on a shared core, and the
    // agent checks only workers that no request holds.
    let is_core_lost = || {
        let events = myelin.run_json(&["events", &myelin.chain_name("taken"), "--json"]);
        let mut events = events.as_array().expect("the JSON is a list").iter();
        events.any(|event| event["cause"] == "core" && event["end"].is_null())
    };
    wait_for("the core to be reported lost", is_core_lost);
    assert!(is_core_lost(), "{}\n{}", status(), myelin.read_agent_log());
    assert_eq!(status()["sla"]["lost_cores"][0], core, "{}", status());
    assert_carries_packets();
    common::kill(&worker().into());
    let mut is_idle_class = false;
    wait_for("a new worker with SCHED_IDLE", || {
        let now = status();
        let pid = read_count(&now["worker"]["pid"]) as u32;
        is_idle_class = now["worker"]["restarts"] == 1
            && pid > 0
            && affinity::get(pid).is_ok_and(|cpus| !cpus.is_empty() && !cpus.contains(&core))
            && sched::get(pid).is_ok_and(|policy| policy == Policy::Idle);
        is_idle_class
    });
    assert!(is_idle_class, "{}\n{}", status(), myelin.read_agent_log());
    assert!(is_core_lost(), "{}\n{}", status(), myelin.read_agent_log());
    let now = status();
    assert_eq!(
        (
            &now["state"],
            &now["best_effort"],
            &now["worker"]["restarts"]
        ),
        (&"active".into(), &true.into(), &1.into()),
        "{now}"
    );
    let evidence = now["sla"]["last_event"]["evidence"].to_string();
    assert!(
        evidence.contains(&format!("remedy: add core {core}")),
        "{evidence}"
    );
    // The new worker creates the tap interfaces again.
    hosts.add_links(links);
    assert_carries_packets();

    set.move_processes_back();
    assert_core_returned(core, &myelin, "taken");
    assert_carries_packets();
    myelin.run_ok(&["down", "--all"]);
    drop(set);
    myelin.assert_clean();
}
