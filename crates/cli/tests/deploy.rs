//! Chains come up, carry real traffic and go away without a trace.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Myelin, root, sh, skip_unless_root, skip_without, wait_for};

const KERNEL: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @k }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions:
    - { name: fw, kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] } }
    - { name: fwd, kind: forward }
  sla: { latency: 50ms }
";

const MIXED: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @m }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions:
    - { name: fw, kind: firewall, space: kernel }
    - { name: one, kind: xor, space: user, config: { key: 0x21 } }
    - { name: two, kind: forward, space: kernel }
    - { name: three, kind: xor, space: user, config: { key: 0x21 } }
    - { name: four, kind: forward, space: kernel }
  sla: { latency: 50ms }
";

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

fn chain(myelin: &Myelin, name: &str) -> serde_json::Value {
    let list = myelin.json(&["ps", "--json"]);
    let name = myelin.chain(name);
    list.as_array()
        .expect("a list")
        .iter()
        .find(|one| one["chain"] == name.as_str())
        .expect("the chain")
        .clone()
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
    assert_eq!(chain(&myelin, "k")["packets_in"], 0);
    let report = myelin.json(&[
        "probe",
        &myelin.chain("k"),
        "--mode",
        "inline",
        "--payload",
        "256",
        "--count",
        "200",
        "--repeats",
        "2",
        "--interval",
        "0us",
        "--json",
    ]);
    assert_eq!(report["rows"][0]["lost"], 0, "{report}");
    let status = chain(&myelin, "k");
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
    // Two xor functions with one key: what arrives is what was sent, checksums included, or UDP would not deliver it.
    let report = myelin.json(&[
        "probe",
        &myelin.chain("m"),
        "--mode",
        "inline",
        "--payload",
        "1400",
        "--count",
        "200",
        "--repeats",
        "2",
        "--interval",
        "0us",
        "--json",
    ]);
    assert_eq!(report["rows"][0]["lost"], 0, "{report}");
    assert_eq!(report["rows"][0]["corrupted"], 0, "{report}");
    let status = chain(&myelin, "m");
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
    let server = |command: &[&str]| {
        let mut arguments = vec!["exec", "server", "--"];
        arguments.extend(command);
        let server = Server::start(myelin.command(&arguments));
        std::thread::sleep(Duration::from_millis(300));
        server
    };
    let irtt = server(&["irtt", "server", "-b", "10.0.0.2"]);
    let text = myelin.ok(&[
        "exec", "client", "--", "irtt", "client", "-i", "10ms", "-d", "500ms", "-q", "10.0.0.2",
    ]);
    drop(irtt);
    assert!(
        text.contains("packets received/lost") || text.contains("RTT"),
        "{text}"
    );
    let iperf = server(&["iperf3", "-s", "-1", "-B", "10.0.0.2"]);
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
    let sockperf = server(&["sockperf", "server", "-i", "10.0.0.2"]);
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

/// Two hosts made with `ip`, and the two interfaces between which a chain can lie; not Myelin's.
struct Wire {
    tag: String,
    ingress: String,
    egress: String,
}

impl Wire {
    fn new() -> Self {
        // A namespace's links go some time after it, so no two wires have the same names.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!(
            "{}{}",
            std::process::id(),
            (b'm' + NEXT.fetch_add(1, Ordering::Relaxed) as u8) as char
        );
        let (ingress, egress) = (format!("tp{tag}a"), format!("tp{tag}b"));
        let (client, server) = (format!("myelin-tp{tag}c"), format!("myelin-tp{tag}s"));
        let wire = Self {
            tag,
            ingress,
            egress,
        };
        sh(&format!(
            "ip netns add {client}; ip netns add {server}
             ip link add {one} type veth peer name eth0 netns {client}
             ip link add {two} type veth peer name eth0 netns {server}
             ip link set {one} up; ip link set {two} up
             ip -n {client} addr add 10.77.0.1/24 dev eth0; ip -n {client} link set eth0 up
             ip -n {server} addr add 10.77.0.2/24 dev eth0; ip -n {server} link set eth0 up
             mac=$(ip netns exec {server} cat /sys/class/net/eth0/address)
             ip -n {client} neigh add 10.77.0.2 lladdr $mac dev eth0
             ip netns exec {client} ethtool -K eth0 tx off >/dev/null",
            one = wire.ingress,
            two = wire.egress,
        ));
        wire
    }

    /// A chain file's text, put between the two interfaces.
    fn between(&self, text: &str) -> String {
        text.replace("10.0.0.2/32", "10.77.0.2/32").replace(
            "  functions:",
            &format!(
                "  ports: {{ ingress: {}, egress: {} }}\n  functions:",
                self.ingress, self.egress
            ),
        )
    }

    /// What `ip` says of the interfaces.
    fn links(&self) -> String {
        sh(&format!(
            "ip -d link show {}; ip -d link show {}",
            self.ingress, self.egress
        ))
    }

    /// Sends ten datagrams to that port of the server.
    fn send_ten(&self, port: u16) {
        sh(&format!(
            "ip netns exec myelin-tp{}c python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(10): s.sendto(b'x' * 100, ('10.77.0.2', {port}))\"",
            self.tag
        ));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let tag = &self.tag;
        sh(&format!(
            "ip netns del myelin-tp{tag}c; ip netns del myelin-tp{tag}s"
        ));
    }
}

#[test]
fn chains_between_named_interfaces_leave_them_as_they_were() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let wire = Wire::new();
    let before = wire.links();
    let file = myelin.file(&wire.between(KERNEL));
    myelin.ok(&["up", file.to_str().unwrap()]);
    wire.send_ten(9000);
    wait_for("ten packets", Duration::from_secs(2), || {
        chain(&myelin, "k")["packets_out"] == 10
    });
    assert_eq!(chain(&myelin, "k")["packets_out"], 10);
    assert!(
        wire.links().contains("PROMISC"),
        "frames for the next hop must be taken"
    );
    let error = myelin.fails(1, &["probe", &myelin.chain("k")]);
    assert!(error.contains("spec.ports"), "{error}");
    myelin.ok(&["down", "--all"]);
    assert_eq!(wire.links(), before);
    // The same after an agent that had no time to clean up.
    myelin.ok(&["up", file.to_str().unwrap()]);
    sh(&format!("kill -9 {}", myelin.agent_pid()));
    myelin.ok(&["down", "--all"]);
    assert_eq!(wire.links(), before);
    drop(wire);
    myelin.assert_clean();
}

#[test]
fn chains_of_one_owner_share_port_and_worker_and_another_owner_has_links_of_its_own() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let wire = Wire::new();
    let one = wire.between(MIXED);
    let other = one
        .replace("@m", "@n")
        .replace("10.77.0.2/32 }", "10.77.0.2/32, destinationPort: 9001 }");
    let file = myelin.file(&format!("{one}---{other}"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    assert_eq!(
        chain(&myelin, "m")["worker"]["pid"],
        chain(&myelin, "n")["worker"]["pid"]
    );
    // The more specific match wins.
    for (port, name) in [(9000, "m"), (9001, "n")] {
        wire.send_ten(port);
        wait_for("ten packets", Duration::from_secs(2), || {
            chain(&myelin, name)["packets_out"] == 10
        });
        assert_eq!(chain(&myelin, name)["packets_out"], 10, "{name}");
    }
    let foreign = other
        .replace("@n", "@o")
        .replace("metadata: {", "metadata: { namespace: somebody-else,")
        .replace("9001", "9002");
    let file = myelin.file(&foreign.replace("spec:", "spec:\n  mapping: compact"));
    let error = myelin.fails(1, &["up", file.to_str().unwrap()]);
    assert!(
        error.contains(&wire.ingress) && error.contains("owner") && error.contains("distributed"),
        "{error}"
    );
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 2);
    let up = myelin.json(&["up", myelin.file(&foreign).to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["plan"]["mapping"], "distributed", "{up}");
    let why = up[0]["plan"]["mapping_why"].as_str().unwrap();
    assert!(why.contains("owners share no frames"), "{why}");
    let theirs = chain(&myelin, "o")["worker"]["pid"].clone();
    assert!(theirs.is_number() && theirs != chain(&myelin, "m")["worker"]["pid"]);
    wire.send_ten(9002);
    wait_for("ten packets", Duration::from_secs(2), || {
        chain(&myelin, "o")["packets_out"] == 10
    });
    assert_eq!(chain(&myelin, "o")["packets_out"], 10);
    assert_eq!(
        chain(&myelin, "m")["packets_out"],
        10,
        "it took another owner's"
    );
    myelin.ok(&["down", &myelin.chain("o")]);
    // One goes, the other stays.
    myelin.ok(&["down", &myelin.chain("m")]);
    wire.send_ten(9001);
    wait_for("ten more", Duration::from_secs(2), || {
        chain(&myelin, "n")["packets_out"] == 20
    });
    assert_eq!(chain(&myelin, "n")["packets_out"], 20);
    myelin.ok(&["down", "--all"]);
    drop(wire);
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
    let report = myelin.json(&[
        "probe",
        &myelin.chain("there"),
        "--mode",
        "inline",
        "--payload",
        "256",
        "--count",
        "100",
        "--repeats",
        "1",
        "--interval",
        "0us",
        "--json",
    ]);
    assert_eq!(report["rows"][0]["lost"], 0, "{report}");
    assert_eq!(report["rows"][0]["corrupted"], 0, "{report}");
    assert!(chain(&myelin, "back")["packets_out"].as_u64().unwrap() >= 100);
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
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
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
fn an_sla_that_cannot_be_met_is_status_3() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(&KERNEL.replace("latency: 50ms", "latency: 50ms, roundTrip: 1us"));
    let output = myelin.run(&[
        "run",
        file.to_str().unwrap(),
        "--mode",
        "inline",
        "--count",
        "50",
        "--repeats",
        "2",
        "--interval",
        "0us",
    ]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not met"), "{text}");
}

#[test]
fn an_idle_chain_costs_no_core() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(MIXED);
    myelin.ok(&["up", file.to_str().unwrap()]);
    std::thread::sleep(Duration::from_millis(200));
    let before = chain(&myelin, "m")["worker"]["cpu_s"].as_f64().unwrap();
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let used = chain(&myelin, "m")["worker"]["cpu_s"].as_f64().unwrap() - before;
    assert!(
        used < 0.1 * start.elapsed().as_secs_f64(),
        "an idle worker used {used} s of CPU in a second"
    );
}
