//! Refused files change nothing. `down --all` cleans up after killed processes.

mod common;

use std::time::Duration;

use common::{Myelin, sh, skip_unless_root, wait_for};

const USER: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @u }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions: [ { name: f, kind: forward, space: user } ]
";

#[test]
fn invalid_files_exit_with_status_2_and_start_no_agent() {
    let myelin = Myelin::new_shared();
    let missing = myelin.run_failing(2, &["plan", "no-such-file.yaml"]);
    assert!(missing.contains("no-such-file.yaml"), "{missing}");
    for (text, expected) in [
        ("metadata: [", "chain"),
        (
            "apiVersion: myelin.dev/v1alpha1\nkind: Nonsense\n",
            "Nonsense",
        ),
        (&*USER.replace("kind: forward", "kind: fowrard"), "forward"),
        (
            &*USER.replace("spec:", "spec:\n  sla: { latency: 350 }"),
            "350us",
        ),
        (
            &*USER.replace("functions: [ {", "functons: [ {"),
            "functions",
        ),
    ] {
        let file = myelin.write_file(text);
        for command in ["plan", "up", "run"] {
            let error = myelin.run_failing(2, &[command, file.to_str().unwrap()]);
            assert!(error.contains(expected), "{command}: {error}");
        }
    }
    assert!(
        !myelin.run_dir().exists(),
        "an invalid file started an agent"
    );
}

#[test]
fn a_missing_interface_is_refused_and_running_chains_stay_unchanged() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let good = myelin.write_file(USER);
    myelin.run_ok(&["up", good.to_str().unwrap()]);
    let ports = |ingress: &str, egress: &str| {
        USER.replace("@u", "@p").replace(
            "  functions:",
            &format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions:"),
        )
    };
    let file = myelin.write_file(&ports("nosuchif0", "lo"));
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    assert!(error.contains("nosuchif0"), "{error}");
    let text = myelin.run_ok(&["up", good.to_str().unwrap()]);
    assert!(text.contains("unchanged"), "{text}");
    assert_eq!(myelin.probe("u", 64, 50)["lost"], 0);
    myelin.expect_chains(1);
    // If one chain of a file is refused, no chain of that file is deployed.
    let both = format!(
        "{}---{}",
        USER.replace("@u", "@v"),
        ports("nosuchif0", "lo")
    );
    let file = myelin.write_file(&both);
    myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    myelin.expect_chains(1);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_killed_worker_is_restarted() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(USER);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let before = myelin.read_status("u")["worker"].clone();
    common::kill(&before["pid"]);
    wait_for("a new worker", || {
        myelin.read_status("u")["worker"]["restarts"] == 1
    });
    let after = myelin.read_status("u")["worker"].clone();
    assert_eq!(after["restarts"], 1);
    assert_ne!(after["pid"], before["pid"]);
    assert_eq!(myelin.probe("u", 64, 50)["lost"], 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_chain_is_refused_on_a_worker_that_the_supervisor_no_longer_restarts() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let there = USER.replace("spec:", "spec:\n  reverse: @back");
    let back = USER
        .replace("@u", "@back")
        .replace("10.0.0.2/32", "10.0.0.1/32");
    let both = myelin.write_file(&format!("{there}---{back}"));
    myelin.run_ok(&["up", both.to_str().unwrap()]);
    myelin.kill_until_failed("u", |status| status["worker"].clone());
    myelin.run_ok(&["down", &myelin.chain_name("back")]);
    let error = myelin.run_failing(1, &["up", both.to_str().unwrap()]);
    assert!(
        error.contains("no longer restarted") && error.contains("myelin down"),
        "{error}"
    );
    myelin.expect_chains(1);
    myelin.run_ok(&["down", &myelin.chain_name("u")]);
    myelin.run_ok(&["up", both.to_str().unwrap()]);
    assert_eq!(myelin.probe("u", 64, 50)["lost"], 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_worker_that_does_not_answer_delays_no_restart_of_another() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let monitored = USER.replace("kind: forward", "kind: monitor");
    let file = myelin.write_file(&format!("{monitored}---{}", USER.replace("@u", "@v")));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let pid = |name| myelin.read_status(name)["worker"]["pid"].clone();
    let (stuck, other) = (pid("u"), pid("v"));
    sh(&format!("kill -STOP {stuck}"));
    // `ps --flows` makes the agent wait up to 10 s for the answer of the stopped worker.
    let mut reader = myelin
        .command(&["ps", "--flows"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the client starts");
    std::thread::sleep(Duration::from_millis(300));
    common::kill(&other);
    // Reads the process list, because `ps` would wait for the stopped worker.
    let id = myelin_api::RunDir::resolve(Some(&myelin.run_dir())).id();
    let old_pids = [&stuck, &other].map(serde_json::Value::as_u64);
    let workers = || sh(&format!("pgrep -f '^myelin-worker@{id}'"));
    let has_new_worker = || {
        let workers = workers();
        let mut pids = workers.lines();
        pids.any(|pid| !old_pids.contains(&pid.parse().ok()))
    };
    wait_for("a new worker", has_new_worker);
    let in_time = has_new_worker();
    sh(&format!("kill -CONT {stuck}"));
    let _ = reader.wait();
    assert!(in_time, "the restart waited for the stopped worker");
    assert_eq!(
        (&pid("u"), &myelin.read_status("v")["worker"]["restarts"]),
        (&stuck, &1.into())
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn down_all_returns_after_the_agent_has_removed_everything() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(USER);
    for _ in 0..5 {
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        myelin.run_ok(&["down", "--all"]);
        // Checks at once, because `down --all` must not return earlier.
        assert_eq!(myelin.list_leftovers(), Vec::<String>::new());
    }
}

#[test]
fn chains_carry_packets_after_their_agent_is_killed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(USER);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    myelin.kill_agent();
    let client = format!("myelin-{}-client", myelin.chain_name("u"));
    let ping = sh(&format!("ip netns exec {client} ping -c 2 -W 60 10.0.0.2"));
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    // Ping matches no chain. UDP passes the chain and its worker.
    let ready = myelin.run_dir().with_extension("ready");
    sh(&format!(
        "ip netns exec myelin-{chain}-server timeout 240 python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.0.0.2', 9000)); s.settimeout(120)
open('{ready}', 'w')
d, a = s.recvfrom(2000); s.sendto(d, a)\" &
         for i in $(seq 600); do [ -e {ready} ] && break; sleep 0.1; done
         ip netns exec {client} python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
s.sendto(b'through', ('10.0.0.2', 9000)); assert s.recv(2000) == b'through'\"
         wait",
        chain = myelin.chain_name("u"),
        ready = ready.display()
    ));
    let status = myelin.run_json(&["ps", "--json"]);
    assert!(
        status.as_array().unwrap().is_empty() || status[0]["state"] == "orphaned",
        "{status}"
    );
    let stderr = String::from_utf8(myelin.run(&["ps"]).stderr).unwrap();
    assert!(
        stderr.contains("was killed") && stderr.contains("down --all"),
        "{stderr}"
    );
    let text = myelin.run_ok(&["down", "--all"]);
    assert!(text.contains("recovered"), "{text}");
    myelin.assert_clean();
}

#[test]
fn down_all_cleans_up_after_an_agent_killed_during_up() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(USER);
    for delay_ms in [0, 2, 4, 6, 8, 10, 13, 16, 20, 25, 30, 40, 60] {
        myelin.kill_agent_during_up(&file, Duration::from_millis(delay_ms));
    }
}

/// For example, `myelin ps | head` must print no error.
#[test]
fn a_closed_pipe_ends_a_command_without_an_error_message() {
    for arguments in [["completions", "zsh"], ["functions", "--json"]] {
        let (reader, writer) = std::io::pipe().expect("the pipe opens");
        drop(reader);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_myelin"))
            .args(arguments)
            .stdout(writer)
            .output()
            .expect("the binary runs");
        assert_eq!(output.status.code(), Some(141), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_run_whose_client_is_killed_removes_its_chain() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(USER);
    let mut run = myelin
        .command(&[
            "run",
            file.to_str().unwrap(),
            "--count",
            "1000",
            "--repeats",
            "50",
        ])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the client starts");
    wait_for("the chain", || {
        !myelin
            .list_leftovers()
            .iter()
            .all(|object| !object.starts_with("namespace"))
    });
    run.kill().expect("the client is killed");
    let _ = run.wait();
    wait_for("the end of the chain", || {
        myelin
            .run_json(&["ps", "--json"])
            .as_array()
            .unwrap()
            .is_empty()
    });
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        0
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn up_without_root_says_to_use_sudo() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(USER);
    let output = std::process::Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--clear-groups",
            env!("CARGO_BIN_EXE_myelin"),
            "up",
        ])
        .arg("/dev/stdin")
        .env("MYELIN_RUN_DIR", "/run/myelin-test-nobody")
        .stdin(std::fs::File::open(file).expect("the file opens"))
        .output()
        .expect("setpriv runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("root") && text.contains("sudo"), "{text}");
}
