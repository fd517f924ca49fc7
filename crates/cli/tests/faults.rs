//! Bad input changes nothing; whoever is killed leaves what `down --all` can clean.

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

fn kill(pid: i64) {
    sh(&format!("kill -9 {pid}"));
}

fn worker(myelin: &Myelin) -> serde_json::Value {
    myelin.json(&["ps", "--json"])[0]["worker"].clone()
}

fn probe(myelin: &Myelin) -> serde_json::Value {
    myelin.json(&[
        "probe",
        &myelin.chain("u"),
        "--mode",
        "inline",
        "--payload",
        "64",
        "--count",
        "50",
        "--repeats",
        "1",
        "--interval",
        "0us",
        "--json",
    ])["rows"][0]
        .clone()
}

#[test]
fn bad_files_are_status_2_and_change_nothing() {
    let myelin = Myelin::new();
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
    let myelin = Myelin::new();
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
    assert_eq!(probe(&myelin)["lost"], 0);
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 1);
    // One bad chain of a file takes the good ones of that file with it.
    let both = format!(
        "{}---{}",
        USER.replace("@u", "@v"),
        ports("nosuchif0", "lo")
    );
    let file = myelin.file(&both);
    myelin.fails(1, &["up", file.to_str().unwrap()]);
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 1);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_killed_worker_is_started_again() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(USER);
    myelin.ok(&["up", file.to_str().unwrap()]);
    let before = worker(&myelin);
    kill(before["pid"].as_i64().unwrap());
    wait_for("a new worker", Duration::from_secs(2), || {
        worker(&myelin)["restarts"] == 1
    });
    let after = worker(&myelin);
    assert_eq!(after["restarts"], 1);
    assert_ne!(after["pid"], before["pid"]);
    assert_eq!(probe(&myelin)["lost"], 0);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn chains_go_on_without_their_agent() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(USER);
    myelin.ok(&["up", file.to_str().unwrap()]);
    kill(i64::from(myelin.agent_pid()));
    let client = format!("myelin-{}-client", myelin.chain("u"));
    let ping = sh(&format!("ip netns exec {client} ping -c 2 -W 2 10.0.0.2"));
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    // And through the chain itself, worker included.
    sh(&format!(
        "ip netns exec myelin-{chain}-server timeout 5 python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.0.0.2', 9000)); s.settimeout(4)
d, a = s.recvfrom(2000); s.sendto(d, a)\" & sleep 0.5
         ip netns exec {client} python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(4)
s.sendto(b'through', ('10.0.0.2', 9000)); assert s.recv(2000) == b'through'\"
         wait",
        chain = myelin.chain("u")
    ));
    let status = myelin.json(&["ps", "--json"]);
    assert!(
        status.as_array().unwrap().is_empty() || status[0]["state"] == "orphaned",
        "{status}"
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
    let myelin = Myelin::new();
    let file = myelin.file(USER);
    for delay_ms in [0, 2, 4, 6, 8, 10, 13, 16, 20, 25, 30, 40, 60] {
        // The agent first, so that the delay falls into the deployment.
        myelin.ok(&["ps"]);
        let mut agent = myelin
            .command(&["agent"])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("an agent");
        wait_for("the agent", Duration::from_secs(3), || {
            myelin.run_dir().join("agent.sock").exists()
        });
        let mut up = myelin
            .command(&["up", file.to_str().unwrap()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("a client");
        std::thread::sleep(Duration::from_millis(delay_ms));
        agent.kill().expect("kill -9");
        let _ = agent.wait();
        let _ = up.wait();
        myelin.ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

#[test]
fn an_interrupted_run_tears_down() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
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
    wait_for("the chain", Duration::from_secs(5), || {
        !myelin
            .leftovers()
            .iter()
            .all(|one| !one.starts_with("namespace"))
    });
    run.kill().expect("kill");
    let _ = run.wait();
    wait_for("the end of the chain", Duration::from_secs(5), || {
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
    let myelin = Myelin::new();
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
