//! Deploys chains, sends traffic of ordinary tools through them, and removes them completely.

mod common;

use std::time::{Duration, Instant};

use common::chains::{KERNEL, MIXED};
use common::{Myelin, repository_root, skip_unless_root, skip_without, wait_for};

/// A server program. Dropping it kills the process.
struct Server(std::process::Child);

impl Server {
    fn start(mut command: std::process::Command) -> Self {
        let null = || std::process::Stdio::null();
        Self(
            command
                .stdout(null())
                .stderr(null())
                .spawn()
                .expect("the server starts"),
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
fn a_kernel_chain_carries_and_counts_packets() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(KERNEL);
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["chain"], myelin.chain_name("k").as_str());
    // Unmatched traffic passes to the opposite interface, in both directions.
    let ping = myelin.run_ok(&[
        "exec", "client", "--", "ping", "-c", "3", "-i", "0.05", "-W", "60", "10.0.0.2",
    ]);
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    assert_eq!(myelin.read_status("k")["packets_in"], 0);
    let row = myelin.probe("k", 256, 400);
    assert_eq!(row["lost"], 0, "{row}");
    let status = myelin.read_status("k");
    assert!(status["packets_in"].as_u64().unwrap() >= 400, "{status}");
    assert_eq!(status["packets_in"], status["packets_out"]);
    assert_eq!(status["hops"][0]["packets_in"], status["packets_in"]);
    assert_eq!(status["sojourn"]["packets"], status["packets_out"]);
    assert!(status["sojourn"]["p99_us"].as_f64().unwrap() > 0.0);
    myelin.run_ok(&["down", &myelin.chain_name("k")]);
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        0
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_chain_that_changes_space_at_each_function_keeps_payloads_and_counts() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(MIXED);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    // Two xor functions with one key restore the payload. UDP delivers a datagram only if the
    // checksum is right.
    let row = myelin.probe("m", 1400, 400);
    assert_eq!(row["lost"], 0, "{row}");
    assert_eq!(row["corrupted"], 0, "{row}");
    let status = myelin.read_status("m");
    let sent = status["packets_in"].as_u64().unwrap();
    assert!(sent >= 400);
    for hop in status["hops"].as_array().unwrap() {
        assert_eq!(hop["packets_in"].as_u64(), Some(sent), "{hop}");
        assert_eq!(hop["drops"], 0);
    }
    assert_eq!(status["packets_out"].as_u64(), Some(sent));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn irtt_iperf3_and_sockperf_work_through_a_chain_of_both_spaces() {
    if skip_unless_root()
        || skip_without("iperf3")
        || skip_without("irtt")
        || skip_without("sockperf")
    {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&MIXED.replace("protocol: udp, ", ""));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let server = |port: u16, command: &[&str]| {
        let mut arguments = vec!["exec", "server", "--"];
        arguments.extend(command);
        let server = Server::start(myelin.command(&arguments));
        let port = format!(":{port}");
        let listeners = ["exec", "server", "--", "ss", "-Hlntu", "sport", "=", &port];
        wait_for(command[0], || !myelin.run_ok(&listeners).trim().is_empty());
        server
    };
    let irtt = server(2112, &["irtt", "server", "-b", "10.0.0.2"]);
    let text = myelin.run_ok(&[
        "exec", "client", "--", "irtt", "client", "-i", "10ms", "-d", "500ms", "-q", "10.0.0.2",
    ]);
    drop(irtt);
    assert!(
        text.contains("packets received/lost") || text.contains("RTT"),
        "{text}"
    );
    let iperf = server(5201, &["iperf3", "-s", "-1", "-B", "10.0.0.2"]);
    let text = myelin.run_ok(&[
        "exec", "client", "--", "iperf3", "-u", "-b", "5M", "-l", "1200", "-k", "400", "-J", "-c",
        "10.0.0.2",
    ]);
    drop(iperf);
    let iperf: serde_json::Value = serde_json::from_str(&text).expect("iperf3 prints JSON");
    assert_eq!(iperf["end"]["sum"]["packets"], 400, "{text}");
    // The chain loses no packet. The figure of iperf3 includes packets that arrive while its server
    // has no core.
    let counts = || {
        let status = myelin.read_status("m");
        ["packets_in", "packets_out"].map(|name| status[name].as_u64().unwrap())
    };
    wait_for("the last packet", || {
        let [packets_in, packets_out] = counts();
        packets_in == packets_out
    });
    let [packets_in, packets_out] = counts();
    assert!(packets_in >= 400, "{}", myelin.read_status("m"));
    assert_eq!(packets_in, packets_out, "{}", myelin.read_status("m"));
    let sockperf = server(11_111, &["sockperf", "server", "-i", "10.0.0.2"]);
    let text = myelin.run_ok(&[
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
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_reverse_chain_carries_the_replies() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(
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
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let row = myelin.probe("there", 256, 100);
    assert_eq!(row["lost"], 0, "{row}");
    assert_eq!(row["corrupted"], 0, "{row}");
    assert!(myelin.read_status("back")["packets_out"].as_u64().unwrap() >= 100);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn run_reports_and_removes_the_chain() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let text = std::fs::read_to_string(repository_root().join("examples/tactile.yaml"))
        .expect("the example is readable");
    let file = myelin.write_file(&text.replace("name: tactile", "name: @tactile"));
    let page = myelin.run_dir().with_extension("html");
    let nowhere = ["run", file.to_str().unwrap(), "--report", "/nowhere/page"];
    let error = myelin.run_failing(2, &nowhere);
    assert!(
        error.contains("/nowhere/page: cannot write there") && !error.contains(".myelin-page"),
        "{error}"
    );
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
    // Status 5: the SLA was not met, which may happen on a loaded machine.
    assert!(matches!(output.status.code(), Some(0 | 5)), "{output:?}");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("the output is JSON");
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
            .expect("the page is readable")
            .contains("<svg")
    );
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        0
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn run_and_probe_exit_with_status_5_if_the_sla_is_not_met() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&KERNEL.replace("latency: 50ms", "latency: 50ms, roundTrip: 1us"));
    let file = file.to_str().unwrap();
    let options = "--mode inline --count 50 --repeats 2 --interval 0us";
    let options: Vec<&str> = options.split(' ').collect();
    let chain = myelin.chain_name("k");
    for command in [["run", file], ["probe", &chain]] {
        if command[0] == "probe" {
            myelin.run_ok(&["up", file]);
        }
        let output = myelin.run(&[&command[..], &options].concat());
        assert_eq!(output.status.code(), Some(5), "{command:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("not met"), "{text}");
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
#[ignore = "thorough: measures the share of a core that an idle worker uses"]
fn an_idle_worker_uses_less_than_a_tenth_of_a_core() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(MIXED);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let read_cpu_s = |myelin: &Myelin| myelin.read_status("m")["worker"]["cpu_s"].as_f64().unwrap();
    // At most two repeats: the worker may still start, and the kernel may charge it for the time of
    // interrupts.
    let mut shares = (1..=3).map(|second| {
        let (start, before) = (Instant::now(), read_cpu_s(&myelin));
        std::thread::sleep(Duration::from_secs(1));
        let share = (read_cpu_s(&myelin) - before) / start.elapsed().as_secs_f64();
        println!("second {second} of at most 3: the idle worker used {share:.3} of a core");
        share
    });
    assert!(
        shares.any(|share| share < 0.1),
        "the idle worker used a tenth of a core in each of 3 s"
    );
}
