//! Chains come up, carry real traffic and go away without a trace.

mod common;

use std::time::{Duration, Instant};

use common::chains::{KERNEL, MIXED};
use common::{Myelin, root, skip_unless_root, skip_without, wait_for};

/// A program that is killed when the test is done with it.
struct Server(std::process::Child);

impl Server {
    fn start(mut command: std::process::Command) -> Self {
        let quiet = || std::process::Stdio::null();
        Self(
            command
                .stdout(quiet())
                .stderr(quiet())
                .spawn()
                .expect("a server"),
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_kernel_chain_carries_and_counts() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(KERNEL);
    let up = myelin.json(&["up", file.to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["chain"], myelin.chain("k").as_str());
    // Unmatched traffic goes to the opposite end, both ways.
    let ping = myelin.ok(&[
        "exec", "client", "--", "ping", "-c", "3", "-i", "0.05", "-W", "2", "10.0.0.2",
    ]);
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    assert_eq!(myelin.status("k")["packets_in"], 0);
    let row = myelin.probe("k", 256, 400);
    assert_eq!(row["lost"], 0, "{row}");
    let status = myelin.status("k");
    assert!(status["packets_in"].as_u64().unwrap() >= 400, "{status}");
    assert_eq!(status["packets_in"], status["packets_out"]);
    assert_eq!(status["hops"][0]["packets_in"], status["packets_in"]);
    assert_eq!(status["sojourn"]["packets"], status["packets_out"]);
    assert!(status["sojourn"]["p99_us"].as_f64().unwrap() > 0.0);
    myelin.ok(&["down", &myelin.chain("k")]);
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 0);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_chain_crosses_spaces_as_often_as_its_order_needs() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(MIXED);
    myelin.ok(&["up", file.to_str().unwrap()]);
    // Two xor functions with one key: what arrives is what was sent, checksums included, or UDP
    // would not deliver it.
    let row = myelin.probe("m", 1400, 400);
    assert_eq!(row["lost"], 0, "{row}");
    assert_eq!(row["corrupted"], 0, "{row}");
    let status = myelin.status("m");
    let sent = status["packets_in"].as_u64().unwrap();
    assert!(sent >= 400);
    for hop in status["hops"].as_array().unwrap() {
        assert_eq!(hop["packets_in"].as_u64(), Some(sent), "{hop}");
        assert_eq!(hop["drops"], 0);
    }
    assert_eq!(status["packets_out"].as_u64(), Some(sent));
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn ordinary_tools_work_through_a_chain_with_both_spaces() {
    if skip_unless_root()
        || skip_without("iperf3")
        || skip_without("irtt")
        || skip_without("sockperf")
    {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(&MIXED.replace("protocol: udp, ", ""));
    myelin.ok(&["up", file.to_str().unwrap()]);
    let server = |port: u16, command: &[&str]| {
        let mut arguments = vec!["exec", "server", "--"];
        arguments.extend(command);
        let server = Server::start(myelin.command(&arguments));
        let port = format!(":{port}");
        let listeners = ["exec", "server", "--", "ss", "-Hlntu", "sport", "=", &port];
        wait_for(command[0], || !myelin.ok(&listeners).trim().is_empty());
        server
    };
    let irtt = server(2112, &["irtt", "server", "-b", "10.0.0.2"]);
    let text = myelin.ok(&[
        "exec", "client", "--", "irtt", "client", "-i", "10ms", "-d", "500ms", "-q", "10.0.0.2",
    ]);
    drop(irtt);
    assert!(
        text.contains("packets received/lost") || text.contains("RTT"),
        "{text}"
    );
    let iperf = server(5201, &["iperf3", "-s", "-1", "-B", "10.0.0.2"]);
    let text = myelin.ok(&[
        "exec", "client", "--", "iperf3", "-u", "-b", "5M", "-l", "1200", "-t", "1", "-J", "-c",
        "10.0.0.2",
    ]);
    drop(iperf);
    let iperf: serde_json::Value = serde_json::from_str(&text).expect("iperf3's JSON");
    assert!(
        iperf["end"]["sum"]["packets"].as_u64().unwrap() > 100,
        "{text}"
    );
    assert!(
        iperf["end"]["sum"]["lost_percent"].as_f64().unwrap() < 5.0,
        "{text}"
    );
    let sockperf = server(11_111, &["sockperf", "server", "-i", "10.0.0.2"]);
    let text = myelin.ok(&[
        "exec",
        "client",
        "--",
        "sockperf",
        "ping-pong",
        "-i",
        "10.0.0.2",
        "-t",
        "1",
        "-m",
        "200",
    ]);
    drop(sockperf);
    assert!(
        text.contains("avg-latency") || text.contains("Summary"),
        "{text}"
    );
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_reverse_chain_takes_the_replies() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @there }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions: [ { name: x, kind: xor, config: { key: 7 } } ]
  reverse: @back
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @back }
spec:
  match: { protocol: udp, destination: 10.0.0.1/32 }
  functions: [ { name: x, kind: xor, space: user, config: { key: 7 } } ]
  reverse: @there
",
    );
    myelin.ok(&["up", file.to_str().unwrap()]);
    let row = myelin.probe("there", 256, 100);
    assert_eq!(row["lost"], 0, "{row}");
    assert_eq!(row["corrupted"], 0, "{row}");
    assert!(myelin.status("back")["packets_out"].as_u64().unwrap() >= 100);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn run_reports_and_tears_down() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let text = std::fs::read_to_string(root().join("examples/tactile.yaml")).expect("the example");
    let file = myelin.file(&text.replace("name: tactile", "name: @tactile"));
    let page = myelin.run_dir().with_extension("html");
    // Refused before anything is measured.
    let nowhere = ["run", file.to_str().unwrap(), "--report", "/nowhere/page"];
    let error = myelin.fails(2, &nowhere);
    assert!(error.contains("--report /nowhere/page"), "{error}");
    assert!(!myelin.run_dir().exists());
    let output = myelin.run(&[
        "run",
        file.to_str().unwrap(),
        "--json",
        "--count",
        "100",
        "--repeats",
        "3",
        "--interval",
        "200us",
        "--report",
        page.to_str().unwrap(),
    ]);
    // On a loaded machine the SLA may not be met: that is an answer too, with a status of its own.
    assert!(matches!(output.status.code(), Some(0 | 5)), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["environment"]["kernel"].is_string(), "{report}");
    let row = &report["rows"][0];
    for key in ["rtt_p99_us", "sojourn_p99_us", "lost"] {
        assert!(row[key].is_number(), "{key} in {row}");
    }
    assert!(
        report["claims"]
            .as_array()
            .is_some_and(|claims| !claims.is_empty())
    );
    assert!(
        std::fs::read_to_string(page)
            .expect("the page")
            .contains("<svg")
    );
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 0);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn an_sla_that_is_not_met_is_status_5() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(&KERNEL.replace("latency: 50ms", "latency: 50ms, roundTrip: 1us"));
    let file = file.to_str().unwrap();
    let options = "--mode inline --count 50 --repeats 2 --interval 0us";
    let options: Vec<&str> = options.split(' ').collect();
    let chain = myelin.chain("k");
    for command in [["run", file], ["probe", &chain]] {
        if command[0] == "probe" {
            myelin.ok(&["up", file]);
        }
        let output = myelin.run(&[&command[..], &options].concat());
        assert_eq!(output.status.code(), Some(5), "{command:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("not met"), "{text}");
    }
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn an_idle_chain_costs_no_core() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(MIXED);
    myelin.ok(&["up", file.to_str().unwrap()]);
    let used = |myelin: &Myelin| myelin.status("m")["worker"]["cpu_s"].as_f64().unwrap();
    // It may have something to do at first, and the kernel may count what is not the worker's.
    let mut looks = (0..10).map(|_| {
        let (start, before) = (Instant::now(), used(&myelin));
        std::thread::sleep(Duration::from_secs(1));
        (used(&myelin) - before) / start.elapsed().as_secs_f64()
    });
    assert!(looks.any(|share| share < 0.1), "an idle worker uses a core");
}
