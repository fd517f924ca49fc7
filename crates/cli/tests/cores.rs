//! A core that is taken from a chain: by a program that wants all of it, or for good. The chain says so; the chain on the other core keeps its contract.

mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::chains::on_two_cores;
use common::load::{
    Sender, assert_back_on, assert_kept, assert_over, judged, lost, number, settled,
};
use common::taps::{Hosts, skip_without_dpdk};
use common::{Myelin, skip, skip_unless_root, wait_for};
use myelin_linux::affinity;
use myelin_linux::sched::{self, Policy};
use serde_json::Value;

/// The last core, where the first one is left for the rest of the test.
fn last_core() -> Option<usize> {
    let core = affinity::get(0).unwrap_or_default().last().copied();
    let core = core.filter(|core| *core > 0);
    if core.is_none() {
        skip("needs two cores");
    }
    core
}

/// Runs on a core as nobody else may, most of the time and not for ever.
struct Hog {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Hog {
    /// So long it runs, and so long it rests.
    const TURN: [Duration; 2] = [Duration::from_millis(400), Duration::from_millis(100)];
    const MOST: Duration = Duration::from_secs(15);

    fn on(core: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            affinity::set(0, &[core]).expect("the core");
            // In a control group without a budget for real-time threads the greatest weight does nearly the same.
            sched::set(0, Policy::Fifo(1))
                .or_else(|_| sched::set_nice(0, -20))
                .expect("a priority");
            let start = Instant::now();
            while !told.load(Ordering::Relaxed) && start.elapsed() < Self::MOST {
                let turn = Instant::now();
                while turn.elapsed() < Self::TURN[0] && !told.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                std::thread::sleep(Self::TURN[1]);
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_core_that_another_program_takes_is_told_and_the_other_core_s_chain_kept() {
    if skip_unless_root() {
        return;
    }
    let Some(core) = last_core() else {
        return;
    };
    let myelin = Myelin::new();
    // A packet in ten may be late.
    let file = myelin.file(&on_two_cores(core, "30ms, percentile: 90"));
    let up = myelin.json(&["up", file.to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["plan"]["admitted"], true, "{up}");
    let senders = [&up[0], &up[1]].map(|up| Sender::through(up, 100));
    wait_for("a second", || judged(&myelin, "taken") >= 1);
    let hog = Hog::on(core);
    let mut event = Value::Null;
    wait_for("a violation", || {
        let events = myelin.json(&["events", &myelin.chain("taken"), "--json"]);
        let mut events = events.as_array().expect("a list").iter();
        // What ran there, or the hypervisor, if it took more.
        let known = |event: &&Value| event["cause"] == "neighbour" || event["cause"] == "steal";
        event = events.find(known).cloned().unwrap_or_default();
        !event.is_null()
    });
    drop(hog);
    let told = myelin.json(&["events", "--json"]);
    assert_eq!(event["hop"], "one", "{told}");
    let terms = event["terms"].as_array().expect("terms");
    assert!(terms.contains(&"latency".into()), "{told}");
    let said = event["evidence"].to_string();
    assert!(said.contains(&format!("on core {core}")), "{told}");
    for sender in senders {
        assert!(sender.end() > 0);
    }
    // Its packets were late, and none was lost: its ring has room for them.
    let status = settled(&myelin, "taken");
    assert_eq!(status["packets_out"], status["packets_in"], "{status}");
    assert_eq!(lost(&status["sla"]["life"]), 0, "{status}");
    assert_eq!(status["sla"]["state"], "violated", "{status}");
    assert_eq!(status["best_effort"], false, "the core is still its own");
    assert_kept(&myelin, "other");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// A set of cores for some processes, which had another one before.
struct CpuSet {
    /// One at a time: its name is the process', and a poller without the core takes another one's time.
    _turn: MutexGuard<'static, ()>,
    path: PathBuf,
    parent: PathBuf,
}

impl CpuSet {
    /// With all cores but one; `None`, with a printed reason, where there are no such sets.
    fn without(core: usize) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let parent = Self::root();
        let Some(parent) = parent.filter(|_| nix::unistd::geteuid().is_root()) else {
            skip("no cpuset controller");
            return None;
        };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let path = parent.join(format!("my{}cpuset", std::process::id()));
        // On v2 it has to be handed down first.
        let _ = std::fs::write(parent.join("cgroup.subtree_control"), "+cpuset");
        let cpus: Vec<_> = affinity::get(0)
            .expect("cores")
            .into_iter()
            .filter(|cpu| *cpu != core)
            .map(|cpu| cpu.to_string())
            .collect();
        let made = std::fs::create_dir(&path)
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
        let set = Self {
            _turn: turn,
            path,
            parent,
        };
        if let Err(error) = made {
            skip(&format!("no cpuset controller: {error}"));
            return None;
        }
        Some(set)
    }

    fn root() -> Option<PathBuf> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let mounts = mounts.lines().map(|line| line.split_whitespace().collect());
        let mut mounts = mounts.filter(|words: &Vec<&str>| words.len() > 3);
        mounts.find_map(|words| {
            let path = PathBuf::from(words[1]);
            let is_v1 = words[2] == "cgroup" && words[3].split(',').any(|word| word == "cpuset");
            let controllers = std::fs::read_to_string(path.join("cgroup.controllers"));
            let is_v2 = words[2] == "cgroup2"
                && controllers.is_ok_and(|text| text.split_whitespace().any(|one| one == "cpuset"));
            (is_v1 || is_v2).then_some(path)
        })
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("a process");
    }

    fn give_back(&self) {
        let procs = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            // It may have ended.
            let _ = std::fs::write(self.parent.join("cgroup.procs"), pid);
        }
    }
}

impl Drop for CpuSet {
    fn drop(&mut self) {
        self.give_back();
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[test]
fn a_core_that_is_gone_makes_its_chain_best_effort_until_it_is_back() {
    if skip_unless_root() {
        return;
    }
    let Some(core) = last_core() else {
        return;
    };
    let Some(set) = CpuSet::without(core) else {
        return;
    };
    let myelin = Myelin::new();
    let file = myelin.file(&on_two_cores(core, "10s, percentile: 50"));
    let up = myelin.json(&["up", file.to_str().unwrap(), "--json"]);
    let senders = [&up[0], &up[1]].map(|up| Sender::through(up, 100));
    let worker = || number(&myelin.status("taken")["worker"]["pid"]) as u32;
    assert_eq!(affinity::get(worker()).expect("its cores"), [core]);

    // The agent too, whose next worker is its child.
    set.take(worker());
    set.take(myelin.agent_pid().cast_unsigned());
    let lost_cores = || myelin.status("taken")["sla"]["lost_cores"].clone();
    wait_for("the core to be missed", || lost_cores()[0] == core);
    let status = myelin.status("taken");
    assert_eq!(
        (&status["state"], &status["best_effort"]),
        (&"active".into(), &true.into()),
        "{status}"
    );
    let event = &status["sla"]["last_event"];
    assert_eq!(
        (&event["chain"], &event["cause"], &event["hop"]),
        (&myelin.chain("taken").into(), &"core".into(), &"one".into()),
        "{status}"
    );
    assert_eq!(event["terms"], serde_json::json!(["core"]), "{status}");
    let said = event["evidence"].to_string();
    assert!(
        said.contains(&format!("core {core} was taken out of"))
            && said.contains("remedy: give core"),
        "{said}"
    );
    let shown = myelin.ok(&["ps", "-v", &myelin.chain("taken")]);
    assert!(
        shown.contains("effort") && shown.contains(&format!("core {core} is lost")),
        "{shown}"
    );
    // Where it runs now, others come first.
    let mut gives_way = false;
    wait_for("it to give way", || {
        let pid = worker();
        gives_way = affinity::get(pid).is_ok_and(|cpus| !cpus.contains(&core))
            && sched::get(pid).is_ok_and(|policy| policy == Policy::Idle);
        gives_way
    });
    assert!(gives_way, "{}", myelin.status("taken"));
    // It goes on all the same, also when it dies.
    let out = || number(&myelin.status("taken")["packets_out"]);
    let before = out();
    wait_for("more packets", || out() > before);
    assert!(out() > before, "{}", myelin.status("taken"));
    common::kill(&worker().into());
    wait_for("a new worker", || {
        let status = myelin.status("taken");
        number(&status["worker"]["restarts"]) >= 1 && status["sla"]["lost_cores"][0] == core
    });
    let status = myelin.status("taken");
    assert!(number(&status["worker"]["restarts"]) >= 1, "{status}");
    assert_eq!(
        (&status["state"], &status["sla"]["lost_cores"][0]),
        (&"active".into(), &core.into()),
        "{status}"
    );
    let before = out();
    wait_for("more packets", || out() > before);
    assert!(out() > before, "{}", myelin.status("taken"));

    set.give_back();
    assert_back_on(core, &myelin, "taken");
    assert_over(&myelin, "taken");
    drop(senders);
    assert_kept(&myelin, "other");
    myelin.ok(&["down", "--all"]);
    drop(set);
    myelin.assert_clean();
}

/// A worker of devices is started anew where it may run, like any other, though it was to poll a core that is gone.
#[test]
#[expect(clippy::too_many_lines, reason = "one course of events")]
fn devices_whose_worker_dies_without_its_core_get_another_that_gives_way_until_it_is_back() {
    if skip_unless_root() || skip_without_dpdk() {
        return;
    }
    let Some(core) = last_core() else {
        return;
    };
    let Some(set) = CpuSet::without(core) else {
        return;
    };
    let (myelin, hosts) = (Myelin::new(), Hosts::new('c'));
    let links = ["a", "b"].map(|end| hosts.link(end));
    let file = myelin.file(&format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @taken }}
spec:
  match: {{ protocol: udp, destination: 10.78.0.2/32, destinationPort: 9000 }}
  functions: [ {{ name: one, kind: forward }} ]
  ports: {{ ingress: {{ dpdk: \"net_tap0,iface={}\" }}, egress: {{ dpdk: \"net_tap1,iface={}\" }} }}
  worker: {{ core: {core} }}
",
        links[0], links[1]
    ));
    myelin.ok(&["up", file.to_str().unwrap()]);
    let links = [&*links[0], &*links[1]];
    hosts.join(links);
    let status = || myelin.status("taken");
    let worker = || number(&status()["worker"]["pid"]) as u32;
    let carries = || {
        let client = hosts.socket("a", "10.78.0.1:0");
        let before = number(&status()["packets_out"]);
        wait_for("packets", || {
            client.send_to(&[0; 32], "10.78.0.2:9000").expect("sent");
            number(&status()["packets_out"]) > before
        });
        assert!(number(&status()["packets_out"]) > before, "{}", status());
    };
    carries();
    assert_eq!(affinity::get(worker()).expect("its cores"), [core]);

    set.take(worker());
    set.take(myelin.agent_pid().cast_unsigned());
    // Not by `ps`, for which the worker is asked: the agent looks at those that nobody talks to, and who shares a core with a busy machine is long at an answer.
    let is_missed = || {
        let events = myelin.json(&["events", &myelin.chain("taken"), "--json"]);
        let mut events = events.as_array().expect("a list").iter();
        events.any(|event| event["cause"] == "core" && event["end"].is_null())
    };
    wait_for("the core to be missed", is_missed);
    assert!(is_missed(), "{}\n{}", status(), myelin.agent_log());
    assert_eq!(status()["sla"]["lost_cores"][0], core, "{}", status());
    carries();
    common::kill(&worker().into());
    let mut gives_way = false;
    wait_for("a new worker that gives way", || {
        let now = status();
        let pid = number(&now["worker"]["pid"]) as u32;
        gives_way = now["worker"]["restarts"] == 1
            && pid > 0
            && affinity::get(pid).is_ok_and(|cpus| !cpus.is_empty() && !cpus.contains(&core))
            && sched::get(pid).is_ok_and(|policy| policy == Policy::Idle);
        gives_way
    });
    assert!(gives_way, "{}\n{}", status(), myelin.agent_log());
    assert!(is_missed(), "{}\n{}", status(), myelin.agent_log());
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
    let said = now["sla"]["last_event"]["evidence"].to_string();
    assert!(
        said.contains(&format!("remedy: give core {core}")),
        "{said}"
    );
    // Devices with an interface of their own are made anew with the worker.
    hosts.join(links);
    carries();

    set.give_back();
    assert_back_on(core, &myelin, "taken");
    carries();
    myelin.ok(&["down", "--all"]);
    drop(set);
    myelin.assert_clean();
}
