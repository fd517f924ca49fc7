//! `myelin conform` on links of this test, and at the egress of policed and shaped chains.

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use common::conformance::Monitor;
use common::load::{read_count, wait_until_settled};
use common::{Myelin, sh, skip_unless_root, skip_without};
use serde_json::Value;

/// Arguments: address, rounds, seconds between two rounds, ports. A round sends one datagram to
/// each port.
const SENDER: &str = "
import socket, sys, time
to, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(count):
    for port in sys.argv[4:]:
        s.sendto(b'x' * 100, (to, int(port)))
    if pause:
        time.sleep(pause)
";

/// Two namespaces and a veth pair between them, each end named `eth0`. Dropping the link removes
/// the namespaces.
struct Link {
    sender: String,
    receiver: String,
}

impl Link {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |role| format!("myelin-conform-{}-{number}-{role}", std::process::id());
        let link = Self {
            sender: name("s"),
            receiver: name("r"),
        };
        let (sender, receiver) = (&link.sender, &link.receiver);
        sh(&format!("ip netns add {sender}; ip netns add {receiver}"));
        for netns in [sender, receiver] {
            // IPv6 sends router solicitations, which would count as packets.
            sh(&format!(
                "ip netns exec {netns} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"
            ));
        }
        sh(&format!(
            "ip -n {sender} link add eth0 type veth peer name eth0 netns {receiver}
             ip -n {sender} address add 10.9.0.1/24 dev eth0; ip -n {sender} link set eth0 up
             ip -n {receiver} address add 10.9.0.2/24 dev eth0; ip -n {receiver} link set eth0 up
             ip netns exec {sender} ping -c 1 -W 10 10.9.0.2"
        ));
        link
    }

    fn send(&self, rounds: u32, pause_s: &str, ports: &[&str]) {
        let status = Command::new("ip")
            .args(["netns", "exec", &self.sender, "python3", "-c", SENDER])
            .args(["10.9.0.2", &rounds.to_string(), pause_s])
            .args(ports)
            .status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for netns in [&self.sender, &self.receiver] {
            let _ = Command::new("ip").args(["netns", "delete", netns]).status();
        }
    }
}

fn skip_without_tools() -> bool {
    skip_unless_root() || skip_without("ip") || skip_without("python3") || skip_without("ping")
}

#[test]
fn even_traffic_conforms_and_bursts_do_not() {
    if skip_without_tools() {
        return;
    }
    let (myelin, link) = (Myelin::new(), Link::new());
    let options = ["--match", "destinationPort=4000", "--duration", "60s"];
    let receiver = ["--netns", &link.receiver];
    let sender = ["--netns", &link.sender, "--direction", "out"];
    // 100 rounds at less than half of the rate. Of the two datagrams of a round, one matches the
    // filter. A stall of the machine makes no gap at the sender shorter. Packets may arrive at the
    // receiver together, so the burst there holds all.
    let even = [
        (&sender[..], "out", "64,80kbit"),
        (&receiver[..], "in", "100,120kbit"),
    ]
    .map(|(end, direction, burst)| {
        let rate = ["--rate", "500pps,1Mbit", "--burst", burst];
        let arguments = [end, &options, &rate, &["--count", "100", "--json"]].concat();
        (Monitor::start(&myelin, &arguments), direction)
    });
    link.send(100, "0.005", &["4000", "4001"]);
    for (monitor, direction) in even {
        let (status, report) = monitor.wait_for_report();
        assert_eq!(status, Some(0), "{report}");
        assert_eq!(report["packets"], 100, "{report}");
        assert_eq!(report["bytes"], 100 * 142, "{report}");
        assert_eq!(report["conforms"], true, "{report}");
        assert_eq!(report["direction"], direction);
        let most = if direction == "out" { 64 } else { 100 };
        let burst = report["buckets"][0]["measured_burst"].as_u64();
        assert!(
            burst.is_some_and(|burst| (1..=most).contains(&burst)),
            "{report}"
        );
        assert_eq!(report["buckets"][1]["quantity"], "bits");
    }

    // Monitors at both ends. At 1 pps each second of tolerance admits one packet.
    let bounds = ["--rate", "1pps", "--burst", "8", "--count", "50"];
    let bursts = [&sender[..], &options, &bounds].concat();
    let monitors = [
        Monitor::start(&myelin, &[&bursts[..], &["--json"]].concat()),
        Monitor::start(&myelin, &[&receiver[..], &options, &bounds].concat()),
        Monitor::start(
            &myelin,
            &[&bursts[..], &["--json", "--tolerance", "42s"]].concat(),
        ),
    ];
    link.send(50, "0", &["4000"]);
    let [out, table, tolerant] = monitors;
    let (status, report) = out.wait_for_report();
    assert_eq!(status, Some(5), "{report}");
    assert_eq!(report["conforms"], false, "{report}");
    let bucket = &report["buckets"][0];
    let burst = bucket["measured_burst"].as_u64().unwrap_or_default();
    assert!((30..=50).contains(&burst), "{report}");
    assert_eq!(report["above"], report["above_with_tolerance"]);
    assert_eq!(report["first_violations"][0]["packets"], report["above"]);
    let (status, text) = table.wait_for_output();
    assert_eq!(status, Some(5), "{text}");
    assert!(
        text.starts_with("does not conform: ") && text.contains("measured burst"),
        "{text}"
    );
    let (status, report) = tolerant.wait_for_report();
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(report["conforms_strictly"], false, "{report}");
}

/// A chain with a policer, and one with a shaper too: function and `enforce`.
const POLICED_CHAINS: [(&str, &str); 2] = [
    ("{ name: fwd, kind: forward }", "policer"),
    (
        "{ name: coder, kind: xor, space: user, config: { key: 0x21 } }",
        "both",
    ),
];

#[test]
fn monitors_at_both_ends_of_a_flooded_chain_count_each_packet() {
    if skip_without_tools() {
        return;
    }
    for (function, enforce) in POLICED_CHAINS {
        flood_chain(function, enforce);
    }
}

#[test]
#[ignore = "thorough: judges the times of packets behind a policer and a shaper"]
fn the_output_of_a_flooded_chain_conforms_to_its_profile() {
    if skip_without_tools() {
        return;
    }
    for (function, enforce) in POLICED_CHAINS {
        let (verdicts, report) = flood_chain(function, enforce);
        assert_eq!(verdicts, [Some(0), Some(5)], "{report}");
    }
}

/// Sends 20 times the rate of a chain and checks the counts at both ends. Returns the exit statuses
/// of the monitors at server and client, and the report of the first.
fn flood_chain(function: &str, enforce: &str) -> ([Option<i32>; 2], Value) {
    let myelin = Myelin::new();
    let file = myelin.write_file(&format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @p }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}
  functions: [ {function} ]
  sla: {{ rate: 1kpps, burst: 8, enforce: {enforce} }}
"
    ));
    myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
    // The tolerance allows a stall of half a second between the policer and the monitor. The flood
    // holds the packets of 20 s.
    let profile = ["--rate", "1kpps", "--burst", "8", "--tolerance", "500ms"];
    let filter = ["--match", "protocol=udp,destinationPort=9000", "--json"];
    let server = format!("{}/server", myelin.chain_name("p"));
    let options = [&profile[..], &filter].concat();
    let at_server = Monitor::start(&myelin, &[&options[..], &["--host", &server]].concat());
    let client = ["--host", "client", "--direction", "out"];
    let at_client = Monitor::start(&myelin, &[&options[..], &client].concat());
    let ports = ["9000"; 20];
    let sent = 20 * 1000;
    let flood = [
        "exec", "client", "--", "python3", "-c", SENDER, "10.0.0.2", "1000", "0.001",
    ];
    let start = Instant::now();
    myelin.run_ok(&[&flood[..], &ports].concat());
    // The policer was open for less than this time. The burst and one packet come on top.
    let due = (start.elapsed().as_secs_f64() * 1000.0) as u64 + 8 + 1;
    let status = wait_until_settled(&myelin, "p");
    at_server.interrupt();
    at_client.interrupt();
    let (at_server, report) = at_server.wait_for_report();
    let passed = report["packets"].as_u64().unwrap_or_default();
    assert!((8..sent.min(due)).contains(&passed), "{due}: {report}");
    assert_eq!(status["packets_out"], passed, "{status}");
    // After a stall of the worker, more packets come at once than the shaper's queue holds.
    let dropped = read_count(&status["policed"]) + read_count(&status["drops"]);
    assert_eq!(dropped, sent - passed, "{status}");
    let (at_client, flooded) = at_client.wait_for_report();
    assert_eq!(flooded["packets"], sent, "{flooded}");
    assert_eq!(flooded["conforms_strictly"], false, "{flooded}");
    ([at_server, at_client], report)
}

#[test]
fn follow_prints_a_report_each_second() {
    if skip_without_tools() {
        return;
    }
    let (myelin, link) = (Myelin::new(), Link::new());
    // The burst holds all packets, however late some of them arrive.
    let arguments = [
        "--netns",
        &link.receiver,
        "--rate",
        "1kpps",
        "--burst",
        "64",
        "--follow",
    ];
    let mut monitors = [
        Monitor::start(&myelin, &[&arguments[..], &["--json"]].concat()),
        Monitor::start(&myelin, &arguments),
    ];
    link.send(15, "0.1", &["4000"]);
    let [first_json, first_text] = monitors.each_mut().map(|monitor| {
        let line = monitor.wait_for_line();
        monitor.interrupt();
        line
    });
    let [json, text] = monitors;
    let (status, lines) = json.wait_for_output();
    assert_eq!(status, Some(0), "{lines}");
    let lines = first_json + &lines;
    let reports: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("the output is JSON"))
        .collect();
    assert!(reports.len() >= 2, "{lines}");
    assert!(
        reports
            .last()
            .is_some_and(|last| last["packets"].as_u64() >= Some(15))
    );
    let (status, text) = text.wait_for_output();
    assert_eq!(status, Some(0), "{text}");
    let text = first_text + &text;
    assert!(
        text.contains(" above\n") && text.contains("\nconforms\neth0 (in): "),
        "{text}"
    );
}

#[test]
fn wrong_arguments_are_refused_with_a_remedy() {
    let myelin = Myelin::new();
    let usage = |arguments: &[&str]| myelin.run_failing(2, &[&["conform"], arguments].concat());
    let message = usage(&["eth0", "--rate", "20kps"]);
    assert!(
        message.contains("--rate: `20kps` has the unknown unit `kps`"),
        "{message}"
    );
    let message = usage(&["eth0", "--rate", "20kpps", "--burst", "64kbit"]);
    assert!(
        message.contains("--burst: a burst in bits has no effect"),
        "{message}"
    );
    let message = usage(&["eth0", "--burst", "32"]);
    assert!(message.contains("--rate"), "{message}");
    let message = usage(&["eth0", "--rate", "20kpps", "--match", "sourcPort=9"]);
    assert!(message.contains("write `sourcePort`"), "{message}");
    if skip_without_tools() {
        return;
    }
    let link = Link::new();
    let message = usage(&["etho", "--netns", &link.receiver, "--rate", "20kpps"]);
    assert!(message.contains("no interface `etho`"), "{message}");
    assert!(message.contains("did you mean `eth0`?"), "{message}");
    let message = usage(&["eth0", "--netns", "no-such-namespace", "--rate", "20kpps"]);
    assert!(message.contains("no-such-namespace"), "{message}");
    let arguments = ["conform", "eth0", "--rate", "1kpps"];
    let message = myelin.run_failing(1, &[&arguments[..], &["--host", "client"]].concat());
    assert!(message.contains("no agent runs"), "{message}");
    let quiet = [
        "--netns",
        &link.receiver,
        "--duration",
        "1ms",
        "--match",
        "protocol=99",
    ];
    let message = myelin.run_failing(1, &[&arguments[..], &quiet].concat());
    assert!(
        message.contains("saw no packet that matches `protocol=99`"),
        "{message}"
    );
}
