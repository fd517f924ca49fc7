//! Functions in containers, and functions with limits.

#[path = "container/black_boxes.rs"]
mod black_boxes;
mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::load::count_never_answered;
use common::traffic::Traffic;
use common::{Myelin, repository_root, sh, skip_unless_root, skip_without, wait_for};
use serde_json::Value;

/// Formats a chain of two user functions. `sandbox` holds keys of the second function.
fn format_chain(sandbox: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @c }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}
  functions:
    - {{ name: plain, kind: forward, space: user }}
    - {{ name: kept, kind: xor, config: {{ key: 0x5a }}, {sandbox} }}
"
    )
}

fn up(myelin: &Myelin, sandbox: &str) -> Value {
    let file = myelin.write_file(&format_chain(sandbox));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    read_status(myelin)
}

fn read_status(myelin: &Myelin) -> Value {
    myelin.run_json(&["ps", "--json"])[0].clone()
}

/// Reads the process number of the worker of `kept`.
fn read_worker_pid(status: &Value) -> u64 {
    status["more_workers"][0]["pid"].as_u64().unwrap()
}

fn sandbox(status: &Value) -> &Value {
    &status["hops"][1]["sandbox"]
}

fn assert_no_loss(myelin: &Myelin) {
    let row = myelin.run_json(&[
        "probe",
        &myelin.chain_name("c"),
        "--mode",
        "inline",
        "--count",
        "200",
        "--repeats",
        "2",
        "--interval",
        "0us",
        "--json",
    ])["rows"][0]
        .clone();
    assert_eq!(
        (count_never_answered(&row), &row["corrupted"]),
        (0, &0.into()),
        "{row}"
    );
}

/// Finds the control group of `kept` in the hierarchy of a controller.
fn find_control_group(myelin: &Myelin, controller: &str) -> PathBuf {
    let id = myelin_api::RunDir::resolve(Some(&myelin.run_dir())).id();
    let found = sh(&format!(
        "find /sys/fs/cgroup -type d -path '*myelin-{id}/{}.kept-*' -prune",
        myelin.chain_name("c")
    ));
    let mut all = found.lines().map(PathBuf::from);
    all.find(|path| {
        let text = path.to_string_lossy();
        text.contains(&format!("/{controller}/"))
            || path.join("cgroup.controllers").exists()
                && fs::read_to_string(path.join("cgroup.controllers"))
                    .unwrap()
                    .contains(controller)
    })
    .unwrap_or_else(|| panic!("no group of {controller} in {found}"))
}

#[test]
fn a_worker_in_a_container_has_its_own_namespaces_and_no_privileges() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new_shared();
    let before = up(
        &myelin,
        "isolation: container, limits: { cpu: 900m, memory: 128MiB }",
    );
    assert_eq!(before["mapping"], "distributed");
    assert_no_loss(&myelin);
    let status = read_status(&myelin);
    assert_eq!(status["hops"][0]["sandbox"], Value::Null);
    let sandbox = sandbox(&status);
    assert_eq!(sandbox["isolation"], "container");
    assert_eq!(sandbox["cpu_limit_cores"], 0.9);
    assert_eq!(sandbox["memory_limit_bytes"], 128 << 20);
    assert!(sandbox["cpu_s"].as_f64().unwrap() > 0.0, "{sandbox}");
    assert!(
        sandbox["memory_bytes"].as_u64().unwrap() > 1 << 20,
        "{sandbox}"
    );
    assert_eq!(sandbox["oom_kills"], 0);
    let text = myelin.run_ok(&["ps", "-v", &myelin.chain_name("c")]);
    assert!(text.contains("kept: container myelin-"), "{text}");

    let pid = read_worker_pid(&status);
    for namespace in ["pid", "mnt", "net", "ipc", "uts"] {
        let read_namespace =
            |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_ne!(
            read_namespace(&pid.to_string()),
            read_namespace("self"),
            "{namespace}"
        );
    }
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
    assert!(text.contains("CapBnd:\t0000000000000000"), "{text}");
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
    for place in ["x", "usr/x"] {
        let error = fs::write(format!("/proc/{pid}/root/{place}"), "").unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ReadOnlyFilesystem,
            "{error}"
        );
    }
    let links = sh(&format!("nsenter --net=/proc/{pid}/ns/net ip -br link"));
    assert_eq!(links.lines().count(), 1, "{links}");

    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_killed_worker_in_a_container_is_restarted_under_traffic() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&format_chain("isolation: container"));
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"])[0].clone();
    let mut pid = read_worker_pid(&read_status(&myelin));
    let container = sandbox(&read_status(&myelin))["container"]
        .as_str()
        .unwrap()
        .to_owned();
    let runc_root = myelin.run_dir().join("runc");
    let kill_commands = [
        format!("kill -9 {pid}"),
        format!("runc --root {} kill {container} KILL", runc_root.display()),
    ];
    let traffic = Traffic::start(&up, 9000);
    for (number, command) in kill_commands.iter().enumerate() {
        sh(command);
        wait_for("another worker", || {
            let now = read_status(&myelin);
            let restarts = now["more_workers"][0]["restarts"].as_u64();
            restarts == Some(number as u64 + 1)
                && read_worker_pid(&now) != pid
                && read_worker_pid(&now) != 0
        });
        let now = read_worker_pid(&read_status(&myelin));
        assert_ne!(now, pid, "{command}");
        pid = now;
        traffic.wait_for_packets(1000);
    }
    let (sent, arrivals) = traffic.stop();
    assert_eq!((arrivals.damaged, arrivals.duplicates), (0, 0));
    // Only packets that the two killed workers held may be lost.
    let lost = sent - arrivals.keys.len() as u64;
    assert!(lost <= 4, "{lost} of {sent} packets were lost");
    assert_no_loss(&myelin);
    assert_eq!(read_status(&myelin)["state"], "active");
    let log = fs::read_to_string(myelin.run_dir().join("agent.log")).unwrap();
    assert!(log.contains("a worker died and was restarted"), "{log}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_live_change_keeps_the_worker_in_its_container() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new();
    let old_pid = read_worker_pid(&up(&myelin, "isolation: container"));
    let changed = format_chain("isolation: container").replace(
        "    - { name: plain",
        "    - { name: first, kind: forward, space: kernel }\n    - { name: plain",
    );
    myelin.run_ok(&["up", myelin.write_file(&changed).to_str().unwrap()]);
    assert_no_loss(&myelin);
    let status = read_status(&myelin);
    assert_eq!(
        (read_worker_pid(&status), &status["generation"]),
        (old_pid, &1.into())
    );
    // The old generation owned the namespace of the worker. A new worker must start without it.
    sh(&format!("kill -9 {old_pid}"));
    wait_for("another worker", || {
        let now = read_worker_pid(&read_status(&myelin));
        now != old_pid && now != 0
    });
    assert_no_loss(&myelin);
    let file =
        myelin.write_file(&changed.replace("isolation: container", "limits: { cpu: 1core }"));
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    assert!(
        error.contains("cannot be changed while its worker runs"),
        "{error}"
    );
    assert_no_loss(&myelin);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn down_removes_the_containers_of_a_killed_agent() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new_shared();
    let pid = read_worker_pid(&up(
        &myelin,
        "isolation: container, limits: { memory: 64MiB }",
    ));
    myelin.kill_agent();
    assert!(
        PathBuf::from(format!("/proc/{pid}")).exists(),
        "the worker runs without its agent"
    );
    assert!(
        myelin
            .list_leftovers()
            .iter()
            .any(|object| object.starts_with("control group"))
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn down_removes_a_container_of_an_agent_killed_during_up() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    for delay_ms in [20, 60, 100, 140, 200] {
        let myelin = Myelin::new_shared();
        // Starts the agent first, so that the delay counts from the beginning of the deployment.
        myelin.run_ok(&[
            "up",
            myelin
                .write_file(&format_chain("space: user"))
                .to_str()
                .unwrap(),
        ]);
        myelin.run_ok(&["down", &myelin.chain_name("c")]);
        let file = myelin.write_file(&format_chain(
            "isolation: container, limits: { memory: 64MiB }",
        ));
        let mut client = myelin
            .command(&["up", file.to_str().unwrap()])
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        myelin.kill_agent();
        client.wait().unwrap();
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

#[test]
fn up_makes_nothing_without_runc() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&format_chain("isolation: container"));
    let path: Vec<String> = std::env::var("PATH")
        .unwrap()
        .split(':')
        .filter(|directory| !PathBuf::from(directory).join("runc").exists())
        .map(str::to_owned)
        .collect();
    let output = myelin
        .command(&["up", file.to_str().unwrap()])
        .env("PATH", path.join(":"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("`runc`") && error.contains("apt install runc"),
        "{error}"
    );
    let run: Vec<_> = myelin
        .run_json(&["ps", "--json"])
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(run, Vec::<Value>::new());
    assert_eq!(myelin.list_journaled_kinds(), Vec::<String>::new());
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_cpu_limit_throttles_a_polling_worker() {
    if skip_unless_root() {
        return;
    }
    throttle_worker();
}

#[test]
#[ignore = "thorough: measures the share of a core that a worker uses"]
fn a_worker_uses_no_more_than_its_cpu_limit() {
    if skip_unless_root() {
        return;
    }
    let [before, after] = throttle_worker();
    let increase = |name: &str, select: fn(&Value) -> &Value| {
        select(&after)[name].as_f64().unwrap() - select(&before)[name].as_f64().unwrap()
    };
    let share = increase("cpu_s", sandbox) / increase("up_s", |status| status);
    assert!(share < 0.3, "{share}: {after}");
}

/// Deploys a polling worker with a limit of 0.1 cores; returns its status before and after the
/// kernel has throttled it.
fn throttle_worker() -> [Value; 2] {
    let myelin = Myelin::new();
    let text = format_chain("limits: { cpu: 0.1cores }")
        .replace("spec:\n", "spec:\n  worker: { idle: spin }\n");
    myelin.run_ok(&["up", myelin.write_file(&text).to_str().unwrap()]);
    let before = read_status(&myelin);
    assert_eq!(sandbox(&before)["isolation"], "process");
    wait_for("a throttled worker", || {
        sandbox(&read_status(&myelin))["throttled_periods"].as_u64() > Some(50)
    });
    let after = read_status(&myelin);
    assert!(
        sandbox(&after)["throttled_s"].as_f64().unwrap() > 0.0,
        "{after}"
    );
    let text = myelin.run_ok(&["ps", "-v", &myelin.chain_name("c")]);
    assert!(text.contains("limited to 0.1 cores"), "{text}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
    [before, after]
}

#[test]
fn a_worker_killed_at_its_memory_limit_is_restarted_and_reported() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let pid = read_worker_pid(&up(&myelin, "limits: { memory: 48MiB }"));
    let group = find_control_group(&myelin, "memory");
    assert!(
        fs::read_to_string(group.join("cgroup.procs"))
            .unwrap()
            .contains(&pid.to_string())
    );
    // The score makes the kernel kill the worker first, then the program that took the memory.
    fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").unwrap();
    let allocate = format!(
        "echo $$ > {}/cgroup.procs; exec timeout 120 tail /dev/zero",
        group.display()
    );
    let _ = Command::new("sh").args(["-c", &allocate]).status().unwrap();
    wait_for("another worker", || {
        let now = read_worker_pid(&read_status(&myelin));
        now != pid && now != 0
    });
    let now = read_status(&myelin);
    assert_eq!(now["state"], "active", "{now}");
    assert!(sandbox(&now)["oom_kills"].as_u64() >= Some(2), "{now}");
    let text = myelin.run_ok(&["ps", "-v", &myelin.chain_name("c")]);
    assert!(text.contains("at its memory limit"), "{text}");
    let log = fs::read_to_string(myelin.run_dir().join("agent.log")).unwrap();
    assert!(
        log.contains("exceeded its memory limit") && log.contains("48MiB"),
        "{log}"
    );
    assert_no_loss(&myelin);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn up_fails_if_a_function_exceeds_its_memory_limit() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new_shared();
    for isolation in ["process", "container"] {
        let text = format_chain(&format!(
            "isolation: {isolation}, limits: {{ memory: 24MiB }}"
        ))
        .replace(
            "kind: xor, config: { key: 0x5a }",
            "kind: monitor, config: { flows: 1000000 }",
        );
        let error = myelin.run_failing(1, &["up", myelin.write_file(&text).to_str().unwrap()]);
        assert!(error.contains("memory limit of 24MiB"), "{error}");
        let running = myelin.run_json(&["ps", "--json"]);
        assert_eq!(running.as_array().map(Vec::len), Some(0), "{running}");
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn an_impossible_isolation_or_limit_is_refused_with_its_line() {
    let myelin = Myelin::new_shared();
    let assert_refused = |sandbox: &str, spec: &str, words: &[&str]| {
        let text = format_chain(sandbox).replace("spec:\n", &format!("spec:\n{spec}"));
        let file = myelin.write_file(&text);
        let error = myelin.run_failing(2, &["plan", file.to_str().unwrap()]);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    };
    assert_refused(
        "isolation: container",
        "  mapping: compact\n",
        &[":10:", "mapping: compact", "mapping: distributed"],
    );
    assert_refused(
        "limits: { cpu: 1core }",
        "  mapping: pipeline\n",
        &[":10:", "mapping: pipeline"],
    );
    assert_refused(
        "space: user",
        "  mapping: compact\n  isolation: container\n",
        &[":7:", "mapping: compact"],
    );
    assert_refused(
        "limits: { cpu: 1core }, space: kernel",
        "",
        &["has no process", "space: user"],
    );
    assert_refused("limits: { cpu: 0.5 }", "", &["0.5 has no unit", "0.5cores"]);
    assert_refused(
        "limits: { memory: 1MiB }",
        "",
        &["1MiB is out of range", "16MiB"],
    );
    assert_refused(
        "isolation: container, rootfs: /srv/x",
        "",
        &["`rootfs` for a function of the kind `xor`"],
    );
    assert_refused("isolation: containr", "", &["write `container`"]);
}

#[test]
fn a_plan_says_why_limits_force_mapping_distributed() {
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(&format_chain("limits: { cpu: 1core }"));
    let plan = myelin.run_json(&["plan", file.to_str().unwrap(), "--json"])[0].clone();
    assert_eq!(plan["mapping"], "distributed");
    let why = plan["mapping_why"].as_str().unwrap();
    assert!(why.contains("`kept` has `limits`"), "{why}");
    assert_eq!(plan["hops"][1]["space"], "user");
    assert_eq!(plan["hops"][1]["why"], "`limits` needs a process");
}

#[test]
fn the_container_example_runs() {
    if skip_unless_root() || skip_without("runc") {
        return;
    }
    let myelin = Myelin::new();
    let example = repository_root().join("examples/container.yaml");
    let text = fs::read_to_string(example)
        .unwrap()
        .replace("name: contained", "name: @contained");
    let output = myelin.run(&[
        "run",
        myelin.write_file(&text).to_str().unwrap(),
        "--mode",
        "inline",
        "--count",
        "100",
        "--repeats",
        "2",
        "--json",
    ]);
    // Status 5: the SLA was not met, which may happen on a loaded machine.
    assert!(matches!(output.status.code(), Some(0 | 5)), "{output:?}");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("the output is JSON");
    assert_eq!(count_never_answered(&report["rows"][0]), 0, "{report}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
