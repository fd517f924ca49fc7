//! Workers that take turns on one core (`worker: { sharing: NAME }`).

mod common;

use common::load::{Sender, wait_until_settled};
use common::{Myelin, kill, sh, skip_unless_root, wait_for};
use serde_json::Value;

/// The policies, with a parameter where one has it.
const POLICIES: [&str; 7] = [
    "cooperative",
    "{ policy: cooperative, reads: 24 }",
    "{ policy: round-robin, slice: 20us }",
    "{ policy: load-based, round: 500us }",
    "{ policy: unis, gamma: 0.5 }",
    "deadline",
    "auto",
];
/// Datagrams a second of the other chain.
const RATE: u32 = 5000;

/// A chain whose two XOR functions restore the payload.
fn chain(name: &str, more: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp }}
  functions:
    - {{ name: one, kind: forward, space: user }}
    - {{ name: two, kind: xor, space: user, config: {{ key: 7 }} }}
    - {{ name: three, kind: xor, space: user, config: {{ key: 7 }} }}
{more}"
    )
}

fn two_chains(more: &str) -> String {
    format!("{}---{}", chain("left", more), chain("right", more))
}

fn worker(sharing: &str) -> String {
    format!("  worker: {{ sharing: {sharing}, batch: 32 }}\n")
}

/// The cores of `myelin top`.
fn cores(myelin: &Myelin) -> Vec<Value> {
    let line = myelin.run_ok(&["top", "--json", "--count", "1"]);
    let top: Value = serde_json::from_str(line.trim()).expect("top prints JSON");
    top["cores"].as_array().expect("the cores").clone()
}

/// The only core, with this number of tasks, all alive.
fn expect_core(myelin: &Myelin, tasks: usize) -> Value {
    let mut found = Value::Null;
    // A task is alive as soon as its loop has seen its table.
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
    found
}

fn assert_no_answer_missing(myelin: &Myelin, name: &str, what: &str) {
    let probe = myelin.probe(name, 64, 50);
    assert_eq!(probe["lost"], 0, "{what}: {probe} {:?}", cores(myelin));
}

/// The packets of a chain at rest: in is out plus what the chain dropped and lost.
fn assert_all_accounted_for(status: &Value) {
    let account = &status["account"];
    let count = |name: &str| account[name].as_u64().unwrap();
    let sum = |name: &str| -> u64 {
        let places = account[name].as_object().unwrap().values();
        places.map(|count| count.as_u64().unwrap()).sum()
    };
    assert!(count("packets_in") > 0, "{account}");
    let gone = count("packets_out") + count("policed") + sum("dropped") + sum("lost");
    assert_eq!(count("packets_in") + count("made"), gone, "{account}");
}

#[test]
fn two_chains_take_turns_on_one_core_under_every_policy() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    for policy in POLICIES {
        let file = myelin.write_file(&two_chains(&worker(policy)));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        expect_core(&myelin, 2);
        let sender = Sender::start_through_chain(&myelin.read_status("left"), RATE);
        wait_for("turns of both workers", || {
            assert_no_answer_missing(&myelin, "right", policy);
            expect_core(&myelin, 2)["switches"].as_u64() > Some(100)
        });
        let core = expect_core(&myelin, 2);
        let shown = policy.replace("auto", "deadline");
        assert!(shown.contains(core["policy"].as_str().unwrap()), "{core}");
        assert!(core["switch_us"].as_f64() > Some(0.0), "{core}");
        for task in core["tasks"].as_array().unwrap() {
            assert!(task["wait_us"].as_f64() > Some(0.0), "{core}");
        }
        // A live change gets and closes rings under traffic.
        let longer = two_chains(&worker(policy)).replace("kind: forward", "kind: monitor");
        let longer = myelin.write_file(&longer);
        myelin.run_ok(&["up", longer.to_str().unwrap()]);
        expect_core(&myelin, 2);
        assert_no_answer_missing(&myelin, "right", policy);
        sender.stop();
        assert_all_accounted_for(&wait_until_settled(&myelin, "left"));
        // A worker alone has its core.
        myelin.run_ok(&["down", &myelin.chain_name("left")]);
        assert!(cores(&myelin).is_empty());
        assert_no_answer_missing(&myelin, "right", policy);
        myelin.run_ok(&["down", &myelin.chain_name("right")]);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn killed_workers_take_their_turns_again() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(&two_chains(&worker("deadline")));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    for victim in ["left", "right"] {
        let sender = Sender::start_through_chain(&myelin.read_status("left"), RATE);
        let before = myelin.read_status(victim)["worker"]["pid"].clone();
        kill(&before);
        wait_for("the next worker", || {
            let worker = myelin.read_status(victim)["worker"]["pid"].clone();
            worker != before && worker.as_u64() > Some(0)
        });
        sender.stop();
        expect_core(&myelin, 2);
        assert_no_answer_missing(&myelin, "left", victim);
        assert_no_answer_missing(&myelin, "right", victim);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_processes_of_a_pipeline_take_turns_on_the_workers_core() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    for policy in ["unis", "cooperative", "deadline"] {
        let more = format!("  mapping: pipeline\n{}", worker(policy));
        let file = myelin.write_file(&chain("staged", &more));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        expect_core(&myelin, 3);
        assert_no_answer_missing(&myelin, "staged", policy);
        let core = expect_core(&myelin, 3);
        assert!(core["switches"].as_u64() > Some(100), "{core}");
        let status = myelin.read_status("staged");
        let stages = status["more_workers"].as_array().unwrap().iter();
        let allowed = |pid: &Value| {
            sh(&format!("taskset -cp {pid}"))
                .rsplit_once(' ')
                .unwrap()
                .1
                .to_owned()
        };
        let first = allowed(&status["worker"]["pid"]);
        assert_eq!(first.trim(), core["core"].to_string());
        for stage in stages {
            assert_eq!(allowed(&stage["pid"]), first);
        }
        myelin.run_ok(&["down", &myelin.chain_name("staged")]);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_pipeline_in_cooperative_turns_has_a_worst_case_and_passes_its_packets() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let staged = |name: &str, reads: u32, latency: &str| {
        let more = format!(
            "  mapping: pipeline
  worker: {{ sharing: {{ policy: cooperative, reads: {reads} }}, batch: 32 }}
  sla: {{ rate: 10kpps, burst: 64, latency: {latency}, enforce: policer }}
"
        );
        let file = myelin.write_file(&chain(name, &more));
        file.to_str().unwrap().to_owned()
    };
    let plan = |file: &str| {
        let plan = myelin.run_ok(&["plan", file]);
        plan.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let long = plan(&staged("staged", 64, "200ms"));
    for words in [
        "not bounded: the ring to the next process (1024 descriptors)",
        "(64 batches of up to 32 packets)",
        "write `ring: 4096` in `worker`",
    ] {
        assert!(long.contains(words), "{words}: {long}");
    }
    let file = staged("staged", 2, "200ms");
    let shown = plan(&file);
    assert!(
        shown.contains("each process empties its ring in its turn"),
        "{shown}"
    );
    assert!(shown.contains("% of the latency owed"), "{shown}");
    myelin.run_ok(&["up", &file]);
    expect_core(&myelin, 3);
    // Its processes lengthen the rounds of other chains on the core.
    let beside = staged("beside", 2, "200us");
    let refusal = myelin.run_failing(3, &["up", &beside]);
    assert!(refusal.contains("worst-case bound"), "{refusal}");

    let sender = Sender::start_through_chain(&myelin.read_status("staged"), RATE);
    wait_for("turns of all processes", || {
        expect_core(&myelin, 3)["switches"].as_u64() > Some(1000)
    });
    sender.stop();
    let status = wait_until_settled(&myelin, "staged");
    assert_all_accounted_for(&status);
    let (arrived, left) = (&status["packets_in"], &status["packets_out"]);
    assert_eq!(arrived, left, "{status}");
    let bound = &status["plan"]["bound"]["bound_ns"];
    assert!(bound.as_u64() > Some(0), "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_running_worker_gets_another_policy_and_another_core_under_traffic() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let allowed = myelin_linux::affinity::get(0).expect("an affinity");
    let [first, .., last] = allowed[..] else {
        println!("SKIP: needs two cores");
        return;
    };
    let up = |left: &str, right: &str| {
        let worker = |settings: &str| format!("  worker: {{ batch: 32, {settings} }}\n");
        let text = format!(
            "{}---{}",
            chain("left", &worker(left)),
            chain("right", &worker(right))
        );
        myelin.write_file(&text).to_str().unwrap().to_owned()
    };
    myelin.run_ok(&["up", &up("sharing: deadline", "sharing: deadline")]);
    expect_core(&myelin, 2);
    let names = ["left", "right"];
    let pids = || names.map(|name| myelin.read_status(name)["worker"]["pid"].as_u64().unwrap());
    let before = pids();
    let sender = Sender::start_through_chain(&myelin.read_status("left"), RATE);
    // Both together get another policy.
    myelin.run_ok(&["up", &up("sharing: unis", "sharing: unis")]);
    assert_eq!(expect_core(&myelin, 2)["policy"], "unis");
    // One of them alone may not, and then nothing changes.
    let error = myelin.run_failing(3, &["up", &up("sharing: unis", "sharing: cooperative")]);
    assert!(error.contains("all workers of a core need"), "{error}");
    assert_eq!(expect_core(&myelin, 2)["policy"], "unis");
    // One of them leaves the core, and both poll then.
    let moved = format!("cores: [{first}]");
    myelin.run_ok(&["up", &up("sharing: unis", &moved)]);
    assert!(cores(&myelin).is_empty());
    let right = myelin.read_status("right");
    assert_eq!(
        right["plan"]["worker"]["core"].as_u64(),
        Some(first as u64),
        "{right}"
    );
    let on = |pid: u64| myelin_linux::affinity::get(pid as u32).expect("the worker lives");
    assert_eq!(before.map(on), [vec![last], vec![first]]);
    assert_no_answer_missing(&myelin, "right", "on its own core");
    // It comes back, and a restarted process stays there.
    myelin.run_ok(&["up", &up("sharing: unis", "sharing: unis")]);
    expect_core(&myelin, 2);
    assert_eq!(before.map(on), [vec![last], vec![last]]);
    assert_eq!(pids(), before);
    sender.stop();
    let left = wait_until_settled(&myelin, "left");
    assert_eq!(left["packets_in"], left["packets_out"], "{left}");
    kill(&right["worker"]["pid"]);
    wait_for("the next worker", || {
        pids()[1] != before[1] && pids()[1] > 0
    });
    expect_core(&myelin, 2);
    assert_eq!(on(pids()[1] as u32 as u64), [last]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn plan_says_who_is_next_and_up_refuses_two_policies_on_a_core() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let left = myelin.write_file(&chain("left", &worker("cooperative")));
    let left = left.to_str().unwrap();
    let plan = myelin.run_ok(&["plan", left]);
    let plan = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plan.contains("hand it over by `cooperative`"), "{plan}");
    assert!(plan.contains("8 batches of up to 32 packets"), "{plan}");
    myelin.run_ok(&["up", left]);
    for other in ["deadline", "os", "{ policy: cooperative, reads: 9 }"] {
        let right = myelin.write_file(&chain("right", &worker(other)));
        // No force makes two policies share a core.
        for force in [&[][..], &["--force"]] {
            let up = [&["up", right.to_str().unwrap()], force].concat();
            let error = myelin.run_failing(3, &up);
            assert!(
                error.contains("all workers of a core need the same spec.worker.sharing"),
                "{error}"
            );
        }
        assert_eq!(myelin.expect_chains(1).len(), 1);
        // The file's own chains count too.
        let both = format!(
            "{}---{}",
            chain("left", &worker("cooperative")),
            chain("right", &worker(other))
        );
        let both = myelin.write_file(&both);
        let plan = myelin.run(&["plan", both.to_str().unwrap()]);
        assert_eq!(plan.status.code(), Some(3), "{plan:?}");
        let plan = String::from_utf8_lossy(&plan.stdout);
        let plan = plan.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plan.contains("all workers of a core need"), "{plan}");
    }
    // The kernel's functions need no worker.
    let kernel = chain("right", &worker("deadline")).replace("space: user", "space: kernel");
    let kernel = myelin.write_file(&kernel);
    myelin.run_ok(&["up", kernel.to_str().unwrap()]);
    assert_no_answer_missing(&myelin, "left", "a kernel chain beside it");
    let unbounded = myelin.write_file(&chain("right", &worker("unis")));
    let plan = myelin.run_ok(&["plan", unbounded.to_str().unwrap()]);
    let plan = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plan.contains("`round-robin`, `os`, and"), "{plan}");
    for (more, problem) in [
        (
            "  worker: { sharing: { policy: unis, reads: 3 } }\n",
            "`reads` has no effect with `policy: unis`",
        ),
        (
            "  worker: { sharing: fair }\n",
            "one of os, cooperative, round-robin, load-based, unis, deadline",
        ),
        (
            "  ports: { ingress: a0, egress: b0 }\n  worker: { superPackets: true, sharing: unis }\n",
            "packet sockets tell no other worker",
        ),
    ] {
        let xor = "kind: xor, space: user, config: { key: 7 }";
        let text = chain("wrong", more).replace(xor, "kind: monitor, space: user");
        let file = myelin.write_file(&text);
        let output = myelin.run(&["plan", file.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains(problem),
            "{error}"
        );
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
