//! Bad input changes nothing; a killed process leaves what `down --all` can clean.

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
fn bad_files_are_status_2_and_change_nothing() {
    let myelin = Myelin::beside_others();
    let missing = myelin.fails(2, &["plan", "no-such-file.yaml"]);
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
        let file = myelin.file(text);
        for command in ["plan", "up", "run"] {
            let error = myelin.fails(2, &[command, file.to_str().unwrap()]);
            assert!(error.contains(expected), "{command}: {error}");
        }
    }
    assert!(!myelin.run_dir().exists(), "a bad file started an agent");
}

#[test]
fn a_missing_or_taken_interface_is_one_clear_error() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let good = myelin.file(USER);
    myelin.ok(&["up", good.to_str().unwrap()]);
    let ports = |ingress: &str, egress: &str| {
        USER.replace("@u", "@p").replace(
            "  functions:",
            &format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions:"),
        )
    };
    let file = myelin.file(&ports("nosuchif0", "lo"));
    let error = myelin.fails(1, &["up", file.to_str().unwrap()]);
    assert!(error.contains("nosuchif0"), "{error}");
    // The chain is there already.
    let text = myelin.ok(&["up", good.to_str().unwrap()]);
    assert!(text.contains("unchanged"), "{text}");
    // What ran before is untouched.
    assert_eq!(myelin.probe("u", 64, 50)["lost"], 0);
    myelin.expect_chains(1);
    // One bad chain of a file takes the good ones of that file with it.
    let both = format!(
        "{}---{}",
        USER.replace("@u", "@v"),
        ports("nosuchif0", "lo")
    );
    let file = myelin.file(&both);
    myelin.fails(1, &["up", file.to_str().unwrap()]);
    myelin.expect_chains(1);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_killed_worker_is_started_again() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(USER);
    myelin.ok(&["up", file.to_str().unwrap()]);
    let before = myelin.status("u")["worker"].clone();
    common::kill(&before["pid"]);
    wait_for("a new worker", || {
        myelin.status("u")["worker"]["restarts"] == 1
    });
    let after = myelin.status("u")["worker"].clone();
    assert_eq!(after["restarts"], 1);
    assert_ne!(after["pid"], before["pid"]);
    assert_eq!(myelin.probe("u", 64, 50)["lost"], 0);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_chain_that_a_given_up_worker_would_serve_is_refused_with_the_remedy() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let there = USER.replace("spec:", "spec:\n  reverse: @back");
    let back = USER
        .replace("@u", "@back")
        .replace("10.0.0.2/32", "10.0.0.1/32");
    let both = myelin.file(&format!("{there}---{back}"));
    myelin.ok(&["up", both.to_str().unwrap()]);
    myelin.kill_until_failed("u", |status| status["worker"].clone());
    myelin.ok(&["down", &myelin.chain("back")]);
    let error = myelin.fails(1, &["up", both.to_str().unwrap()]);
    assert!(
        error.contains("given up") && error.contains("myelin down"),
        "{error}"
    );
    myelin.expect_chains(1);
    myelin.ok(&["down", &myelin.chain("u")]);
    myelin.ok(&["up", both.to_str().unwrap()]);
    assert_eq!(myelin.probe("u", 64, 50)["lost"], 0);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_worker_that_does_not_answer_delays_nobody_elses_restart() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let one = USER.replace("kind: forward", "kind: monitor");
    let file = myelin.file(&format!("{one}---{}", USER.replace("@u", "@v")));
    myelin.ok(&["up", file.to_str().unwrap()]);
    let pid = |name| myelin.status(name)["worker"]["pid"].clone();
    let (stuck, other) = (pid("u"), pid("v"));
    sh(&format!("kill -STOP {stuck}"));
    // The agent asks the one that does not answer, for 10 s.
    let mut reader = myelin
        .command(&["ps", "--flows"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("a client");
    std::thread::sleep(Duration::from_millis(300));
    common::kill(&other);
    // `ps` would wait behind the other one.
    let id = myelin_api::RunDir::resolve(Some(&myelin.run_dir())).id();
    let known = [&stuck, &other].map(serde_json::Value::as_u64);
    let workers = || sh(&format!("pgrep -f '^myelin-worker@{id}'"));
    let is_back = || {
        let workers = workers();
        let mut pids = workers.lines();
        pids.any(|pid| !known.contains(&pid.parse().ok()))
    };
    wait_for("a new worker", is_back);
    let in_time = is_back();
    sh(&format!("kill -CONT {stuck}"));
    let _ = reader.wait();
    assert!(in_time, "it waited for a worker that does not answer");
    assert_eq!(
        (&pid("u"), &myelin.status("v")["worker"]["restarts"]),
        (&stuck, &1.into())
    );
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn an_agent_that_stopped_has_left_its_directory() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(USER);
    for _ in 0..5 {
        myelin.ok(&["up", file.to_str().unwrap()]);
        myelin.ok(&["down", "--all"]);
        // Not in a moment: now.
        assert_eq!(myelin.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn chains_go_on_without_their_agent() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(USER);
    myelin.ok(&["up", file.to_str().unwrap()]);
    myelin.kill_agent();
    let client = format!("myelin-{}-client", myelin.chain("u"));
    let ping = sh(&format!("ip netns exec {client} ping -c 2 -W 2 10.0.0.2"));
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    // And through the chain itself, worker included.
    let ready = myelin.run_dir().with_extension("ready");
    sh(&format!(
        "ip netns exec myelin-{chain}-server timeout 30 python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.0.0.2', 9000)); s.settimeout(20)
open('{ready}', 'w')
d, a = s.recvfrom(2000); s.sendto(d, a)\" &
         for i in $(seq 200); do [ -e {ready} ] && break; sleep 0.1; done
         ip netns exec {client} python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(4)
s.sendto(b'through', ('10.0.0.2', 9000)); assert s.recv(2000) == b'through'\"
         wait",
        chain = myelin.chain("u"),
        ready = ready.display()
    ));
    let status = myelin.json(&["ps", "--json"]);
    assert!(
        status.as_array().unwrap().is_empty() || status[0]["state"] == "orphaned",
        "{status}"
    );
    let said = String::from_utf8(myelin.run(&["ps"]).stderr).unwrap();
    assert!(
        said.contains("was killed") && said.contains("down --all"),
        "{said}"
    );
    let text = myelin.ok(&["down", "--all"]);
    assert!(text.contains("recovered"), "{text}");
    myelin.assert_clean();
}

#[test]
fn an_agent_killed_at_any_moment_leaves_what_down_all_removes() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(USER);
    for delay_ms in [0, 2, 4, 6, 8, 10, 13, 16, 20, 25, 30, 40, 60] {
        myelin.kill_agent_during_up(&file, Duration::from_millis(delay_ms));
    }
}

/// As with other tools, `myelin ps | head` ends without a word.
#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    for arguments in [["completions", "zsh"], ["functions", "--json"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
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
fn an_interrupted_run_tears_down() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(USER);
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
        .expect("a client");
    wait_for("the chain", || {
        !myelin
            .leftovers()
            .iter()
            .all(|one| !one.starts_with("namespace"))
    });
    run.kill().expect("kill");
    let _ = run.wait();
    wait_for("the end of the chain", || {
        myelin
            .json(&["ps", "--json"])
            .as_array()
            .unwrap()
            .is_empty()
    });
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 0);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn without_root_the_error_says_so() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(USER);
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
        .stdin(std::fs::File::open(file).expect("the file"))
        .output()
        .expect("setpriv");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("root") && text.contains("sudo"), "{text}");
}
