//! Black boxes that take turns on one core, given by a preemptor.

#[path = "external/boxes.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod boxes;
mod common;
#[path = "shared_core/costs.rs"]
mod costs;
#[path = "shared_core/start.rs"]
mod start;

use boxes::can_reach_server;
use common::load::{Sender, read_count};
use common::{
    Myelin, is_alive, kill, repository_root, sh, skip_unless_root, skip_without, wait_for,
};
use serde_json::Value;
use std::time::Duration;

/// The core of all tests.
const CORE: u32 = 1;
/// Datagrams a second.
const RATE: u32 = 2000;
/// A program without packets gets a turn each 20 ms, so this is long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls both interfaces without a pause, as poll-mode programs do.
const POLLER: &str = "
import os
from socket import *
a = socket(AF_PACKET, SOCK_RAW, htons(3)); a.bind((\"ingress\", 0)); a.setblocking(False)
b = socket(AF_PACKET, SOCK_RAW); b.bind((\"egress\", 0))
while True:
    try:
        frame, address = a.recvfrom(65536)
    except BlockingIOError:
        continue
    if address[2] != PACKET_OUTGOING:
        b.send(frame)";
/// Takes both interfaces, and polls without reading.
const NEVER_READS: &str = "
from socket import *
a = socket(AF_PACKET, SOCK_RAW, htons(3)); a.bind((\"ingress\", 0))
b = socket(AF_PACKET, SOCK_RAW, htons(3)); b.bind((\"egress\", 0))
while True:
    pass";
/// Forwards in a child's child, and starts further children that poll for nothing.
const FORKS: &str = "
import os, time
if os.fork():
    while True:
        if os.fork() == 0:
            end = time.time() + 0.02
            while time.time() < end:
                pass
            os._exit(0)
        os.wait()";

/// A function that runs a Python program, which begins on a new line. `more` holds further keys of
/// `config`.
fn function(name: &str, program: &str, more: &str) -> String {
    let indented = program
        .lines()
        .flat_map(|line| ["            ", line, "\n"]);
    let program: String = indented.collect();
    format!(
        "    - name: {name}
      kind: external
      config:
        cores: [{CORE}]
        {more}
        startup: 20s
        command:
          - python3
          - -c
          - |
{program}"
    )
}

fn chain(name: &str, port: u16, functions: &[String]) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: {port} }}
  functions:
{}",
        functions.concat()
    )
}

/// A chain of two programs that poll.
fn two_pollers(name: &str, more: &str) -> String {
    let functions = ["one", "two"].map(|name| function(name, POLLER, more));
    chain(name, 9000, &functions)
}

fn cores(myelin: &Myelin) -> Vec<Value> {
    let line = myelin.run_ok(&["top", "--json", "--count", "1"]);
    let top: Value = serde_json::from_str(line.trim()).expect("top prints JSON");
    top["cores"].as_array().expect("the cores").clone()
}

/// Waits until the core has this number of tasks, all alive.
fn expect_core(myelin: &Myelin, tasks: usize) -> Value {
    let mut found = Value::Null;
    wait_for("the tasks of the core", || {
        let cores = cores(myelin);
        let is_alive = |task: &Value| task["alive"] == true;
        let is_complete = cores.len() == 1
            && cores[0]["tasks"]
                .as_array()
                .is_some_and(|all| all.len() == tasks && all.iter().all(is_alive));
        found = cores.into_iter().next().unwrap_or_default();
        is_complete
    });
    assert_eq!(found["core"], CORE, "{found}");
    found
}

fn assert_no_answer_missing(myelin: &Myelin, name: &str, what: &str) {
    let probe = myelin.probe(name, 64, 50);
    let lost = never_answered(&probe);
    assert_eq!(lost, 0, "{what}: {probe} {:?}", cores(myelin));
}

/// Probe packets without an answer, also a late one. On a busy machine an answer to one of the
/// packets before the counted ones may be late too.
fn never_answered(probe: &Value) -> u64 {
    read_count(&probe["lost"]).saturating_sub(read_count(&probe["late"]))
}

/// The children of a process whose command line has these words.
fn children(parent: &Value, words: &str) -> Vec<Value> {
    let listed = sh(&format!("pgrep -P {parent} -f -- '{words}' || true"));
    let pids = listed.split_whitespace().map(str::parse::<u64>);
    pids.map(|pid| pid.expect("pgrep prints numbers").into())
        .collect()
}

/// The preemptor and its guardian.
fn preemptor(myelin: &Myelin) -> (Value, Value) {
    let agent = Value::from(myelin.read_agent_pid());
    let mut found = (Value::Null, Value::Null);
    wait_for("a preemptor and its guardian", || {
        let preemptors = children(&agent, "preemptor --name");
        let guardians = preemptors
            .first()
            .map_or(Vec::new(), |pid| children(pid, "preemptor --guardian"));
        found = (
            preemptors.first().cloned().unwrap_or_default(),
            guardians.first().cloned().unwrap_or_default(),
        );
        (preemptors.len(), guardians.len()) == (1, 1)
    });
    found
}

/// The scheduling classes of all threads of a chain's black boxes, without repetition.
fn classes(boxes: &[Value]) -> Vec<String> {
    let pids: Vec<_> = boxes.iter().map(Value::to_string).collect();
    let listed = sh(&format!("ps -L -o cls= -p {} || true", pids.join(",")));
    let mut classes: Vec<_> = listed.split_whitespace().map(str::to_owned).collect();
    classes.sort();
    classes.dedup();
    classes
}

/// The processes of a chain's black boxes.
fn boxes_of(myelin: &Myelin, name: &str) -> Vec<Value> {
    let status = myelin.read_status(name);
    let hops = status["hops"].as_array().expect("the hops").iter();
    let pids = hops.map(|hop| hop["black_box"]["pid"].clone());
    pids.filter(|pid| !pid.is_null()).collect()
}

#[test]
fn two_testpmd_and_a_worker_take_turns_by_each_mechanism() {
    if skip_unless_root() || skip_without("dpdk-testpmd") {
        return;
    }
    let myelin = Myelin::new();
    let text = std::fs::read_to_string(repository_root().join("examples/shared-core.yaml"))
        .expect("the example is readable")
        .replace("name: shared-core }", "name: @s }");
    for mechanism in ["auto", "flip", "preempt", "weights", "freezer"] {
        let sharing = format!("sharing: {{ policy: unis, mechanism: {mechanism} }}");
        let text = text.replace("sharing: unis", &sharing);
        let file = myelin.write_file(&text);
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let core = expect_core(&myelin, 3);
        if mechanism != "auto" {
            assert_eq!(core["mechanism"], mechanism, "{core}");
        }
        assert_no_answer_missing(&myelin, "s", mechanism);
        let sender = Sender::start_through_chain(&myelin.read_status("s"), RATE);
        wait_for("turns of all tasks", || {
            let core = expect_core(&myelin, 3);
            let mut tasks = core["tasks"].as_array().unwrap().iter();
            tasks.all(|task| task["turns"].as_u64() > Some(20))
        });
        sender.stop();
        assert_no_answer_missing(&myelin, "s", mechanism);
        myelin.run_ok(&["down", &myelin.chain_name("s")]);
        assert!(cores(&myelin).is_empty());
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn traffic_goes_on_when_preemptor_guardian_or_agent_are_killed() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let more = "sharing: { policy: round-robin, slice: 1ms, mechanism: flip }";
    let file = myelin.write_file(&two_pollers("k", more));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    expect_core(&myelin, 2);
    let boxes = boxes_of(&myelin, "k");
    assert_eq!(classes(&boxes), ["FF"]);
    for victim in ["preemptor", "guardian"] {
        let (preemptor_pid, guardian_pid) = preemptor(&myelin);
        kill(if victim == "preemptor" {
            &preemptor_pid
        } else {
            &guardian_pid
        });
        wait_for("the end of both", || {
            !is_alive(&preemptor_pid) && !is_alive(&guardian_pid)
        });
        // The agent starts another one.
        assert_ne!(preemptor(&myelin).0, preemptor_pid);
        expect_core(&myelin, 2);
        assert_no_answer_missing(&myelin, "k", victim);
    }
    // Without an agent, nobody starts another one.
    let (preemptor_pid, guardian_pid) = preemptor(&myelin);
    myelin.kill_agent();
    assert!(can_reach_server(&myelin, "k", 9000, PATIENCE));
    assert!(is_alive(&preemptor_pid) && is_alive(&guardian_pid));
    assert_eq!(classes(&boxes), ["FF"]);
    kill(&preemptor_pid);
    wait_for("the fair class", || classes(&boxes) == ["TS"]);
    assert!(can_reach_server(&myelin, "k", 9000, PATIENCE));
    wait_for("the end of the guardian", || !is_alive(&guardian_pid));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn down_all_ends_the_preemptor_of_a_killed_agent() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&two_pollers("a", "sharing: unis"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    expect_core(&myelin, 2);
    let (preemptor_pid, guardian_pid) = preemptor(&myelin);
    let boxes = boxes_of(&myelin, "a");
    myelin.kill_agent();
    myelin.run_ok(&["down", "--all"]);
    wait_for("the end of all processes", || {
        let mut all = boxes.iter().chain([&preemptor_pid, &guardian_pid]);
        !all.any(is_alive)
    });
    myelin.assert_clean();
}

/// Deaths at one instant. The others must give the tasks back, if there is one that can.
#[test]
fn tasks_are_the_kernels_again_after_several_deaths_and_down_all_leaves_nothing() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&two_pollers(
        "d",
        "sharing: { policy: unis, mechanism: flip }",
    ));
    for (has_preemptor, has_guardian) in [(false, true), (true, false), (false, false)] {
        let survivors = format!("preemptor {has_preemptor}, guardian {has_guardian}");
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        expect_core(&myelin, 2);
        let boxes = boxes_of(&myelin, "d");
        assert_eq!(classes(&boxes), ["FF"]);
        let agent = Value::from(myelin.read_agent_pid());
        let (preemptor, guardian) = preemptor(&myelin);
        match (has_preemptor, has_guardian) {
            (false, false) => kill_at_once(&[&agent, &preemptor, &guardian]),
            (false, true) => kill_at_once(&[&agent, &preemptor]),
            _ => {
                // Nobody reads the preemptor's messages any more.
                myelin.kill_agent();
                kill(&guardian);
            }
        }
        wait_for("the end of agent, preemptor and guardian", || {
            [&agent, &preemptor, &guardian]
                .into_iter()
                .all(|pid| !is_alive(pid))
        });
        if has_preemptor || has_guardian {
            assert_eq!(classes(&boxes), ["TS"], "{survivors}");
            assert!(
                can_reach_server(&myelin, "d", 9000, PATIENCE),
                "{survivors}"
            );
        }
        myelin.run_ok(&["down", "--all"]);
        wait_for("the end of both programs", || !boxes.iter().any(is_alive));
        myelin.assert_clean();
    }
}

/// Kills processes by one command.
fn kill_at_once(pids: &[&Value]) {
    let pids: Vec<_> = pids
        .iter()
        .map(|pid| pid.as_u64().filter(|pid| *pid > 1).expect("a process"))
        .map(|pid| pid.to_string())
        .collect();
    sh(&format!("kill -9 {}", pids.join(" ")));
}

#[test]
fn programs_that_fork_die_or_never_read_leave_the_core_to_the_others() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let sharing = "sharing: unis";
    let good = function("good", POLLER, sharing);
    let forks = format!("{FORKS}{POLLER}");
    let text = chain(
        "f",
        9000,
        &[good.clone(), function("forks", &forks, sharing)],
    );
    let file = myelin.write_file(&text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    expect_core(&myelin, 2);
    assert_no_answer_missing(&myelin, "f", "a program that forks");
    // A program dies, most likely in its turn: it has the packets.
    let sender = Sender::start_through_chain(&myelin.read_status("f"), RATE);
    let victim = boxes_of(&myelin, "f")[0].clone();
    kill(&victim);
    wait_for("the next process", || {
        let boxes = boxes_of(&myelin, "f");
        boxes.len() == 2 && boxes[0] != victim
    });
    sender.stop();
    wait_for("packets through both", || {
        never_answered(&myelin.probe("f", 64, 10)) == 0
    });
    myelin.run_ok(&["down", &myelin.chain_name("f")]);

    let deaf = function("deaf", NEVER_READS, sharing);
    let text = format!(
        "{}---{}",
        chain("g", 9000, &[good]),
        chain("n", 9000, &[deaf])
    );
    let file = myelin.write_file(&text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    expect_core(&myelin, 2);
    let sender = Sender::start_through_chain(&myelin.read_status("n"), RATE);
    assert_no_answer_missing(&myelin, "g", "beside a program that never reads");
    sender.stop();
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn plan_tells_the_turns_and_wrong_ones_are_refused() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let write = |more: &str| myelin.write_file(&two_pollers("p", more));
    let file = write("sharing: { policy: unis, mechanism: preempt }");
    let plan = myelin.run_ok(&["plan", file.to_str().unwrap()]);
    let plan = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "core 1, `one` gets turns by `unis`, mechanism `preempt`; longest turn 384 packets",
        "not bounded",
    ] {
        assert!(plan.contains(words), "{words}: {plan}");
    }
    for (more, words) in [
        ("sharing: cooperative", "takes no cooperative turns"),
        (
            "sharing: { policy: os, mechanism: flip }",
            "`mechanism` has no effect with `policy: os`",
        ),
        (
            "sharing: { policy: unis, mechanism: signals }",
            "one of auto, flip, preempt, weights, freezer",
        ),
    ] {
        let error = myelin.run_failing(2, &["plan", write(more).to_str().unwrap()]);
        assert!(error.contains(words), "{words}: {error}");
    }
    let without_core = two_pollers("p", "sharing: unis").replace("        cores: [1]\n", "");
    let file = myelin.write_file(&without_core);
    let error = myelin.run_failing(2, &["plan", file.to_str().unwrap()]);
    assert!(error.contains("turns are those of one core"), "{error}");
    let with_quota = |mechanism: &str| {
        let more = format!("sharing: {{ policy: unis, mechanism: {mechanism} }}");
        let text = two_pollers("q", &more);
        let limited = "kind: external\n      limits: { cpu: 0.5cores }";
        myelin.write_file(&text.replace("kind: external", limited))
    };
    let output = myelin.run(&["plan", with_quota("flip").to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("needs a real-time priority"), "{error}");
    // Beside a quota the kernel's fair class decides, by weights.
    myelin.run_ok(&["up", with_quota("auto").to_str().unwrap()]);
    assert_eq!(expect_core(&myelin, 2)["mechanism"], "weights");
    assert_no_answer_missing(&myelin, "q", "weights beside a quota");
    // Another policy on the same core.
    let text = two_pollers("o", "sharing: round-robin");
    let file = myelin.write_file(&text);
    let error = myelin.run_failing(3, &["up", file.to_str().unwrap()]);
    assert!(error.contains("need the same"), "{error}");
    let functions = [
        function("one", POLLER, "sharing: unis"),
        function("two", POLLER, "sharing: deadline"),
    ];
    let file = myelin.write_file(&chain("d", 9000, &functions));
    let output = myelin.run(&["plan", file.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("core 1 has one and two"), "{error}");
    expect_core(&myelin, 2);
    assert_no_answer_missing(&myelin, "q", "after a refused chain");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
