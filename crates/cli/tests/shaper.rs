//! Sends clusters of packets (back to back) through chains with a shaper. All packets arrive and
//! conform to the profile.

mod common;

use std::time::Duration;

use common::conformance::Monitor;
use common::load::{read_count, send_clusters, wait_until_settled};
use common::{Myelin, sh, skip_unless_root};
use myelin_packet::fixtures::Meter;
use myelin_packet::traffic::{Bucket, Profile};

/// Number of clusters, and packets in each.
const CLUSTERS: u64 = 4;
const CLUSTER_SIZE: u64 = 64;
const RATE: u64 = 2000;
const BURST: u64 = 4;
/// Increase of the measured burst that a stall of the machine may cause, packets: 10 ms at the
/// rate. Allowed only where the arrivals show a stall.
const TOLERANCE: u64 = 20;
/// Increase of the burst that a late timer may cause, packets.
const TIMER_TOLERANCE: u64 = 2;
/// Most attempts. A busy machine delays the sender, a worker or the receiver, which spoils some
/// attempts.
const TRIES: u64 = 50;

/// Formats a chain whose policer passes clusters and whose shaper sends packets one by one. The
/// queue has room for all clusters, so a stalled worker loses no packet.
fn format_shaped_chain(functions: &str, more: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @shaped }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}
  functions:
{functions}
  sla: {{ rate: 2kpps, burst: 4, policingBurst: 64, shaper: {{ queue: 512, delay: 5s }}{more} }}
"
    )
}

/// Sends clusters; returns the kernel's receive time of each packet at the server, ns.
fn measure_arrivals(myelin: &Myelin) -> Vec<u64> {
    let chain = myelin.chain_name("shaped");
    let ready = myelin.run_dir().with_extension("ready");
    let _ = std::fs::remove_file(&ready);
    let ready = ready.display();
    let server = format!(
        "import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.0.0.2', 9000))
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 21); s.setsockopt(socket.SOL_SOCKET, 35, 1)
s.settimeout(30); open('{ready}', 'w')
try:
    for i in range({total}):
        data, control, flags, peer = s.recvmsg(2000, 100)
        assert data == b'%6d' % i, (data, i)
        seconds, ns = struct.unpack('qq', control[0][2])
        print(seconds * 10**9 + ns)
except socket.timeout: pass",
        total = CLUSTERS * CLUSTER_SIZE
    );
    let client = format!(
        "import os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while not os.path.exists('{ready}'): time.sleep(0.01)
for i in range({total}):
    s.sendto(b'%6d' % i, ('10.0.0.2', 9000))
    if i % {CLUSTER_SIZE} == {CLUSTER_SIZE} - 1: time.sleep(0.1)",
        total = CLUSTERS * CLUSTER_SIZE
    );
    let out = sh(&format!(
        "ip netns exec myelin-{chain}-client timeout 300 python3 -c \"{client}\" &
         ip netns exec myelin-{chain}-server timeout 300 python3 -c \"{server}\"; wait"
    ));
    let times = out
        .lines()
        .map(|line| line.parse().expect("the time is a number"));
    times.collect()
}

/// Measures the burst of the arrivals at the rate, packets.
fn measure_burst(times: &[u64]) -> u64 {
    let profile = Profile {
        packets: Bucket::new(RATE, BURST).ok(),
        bits: None,
    };
    let mut meter = Meter::new(&profile);
    for time in times {
        meter.record(*time, 48);
    }
    meter.packets().expect("the meter has a bucket").burst()
}

/// Computes the tolerance of the burst, packets: the rate times the longest gap within a cluster.
fn compute_tolerance(times: &[u64]) -> u64 {
    let gaps = times
        .chunks(CLUSTER_SIZE as usize)
        .flat_map(|cluster| cluster.windows(2))
        .map(|pair| pair[1].saturating_sub(pair[0]));
    let late_ns = gaps
        .max()
        .unwrap_or_default()
        .saturating_sub(1_000_000_000 / RATE);
    TOLERANCE.min(TIMER_TOLERANCE + late_ns * RATE / 1_000_000_000)
}

/// Reads the number of packets that the shaper delayed; `None` if the discipline does not count
/// these packets.
fn read_delayed(myelin: &Myelin) -> Option<u64> {
    myelin.read_status("shaped")["shaper"]["delayed"].as_u64()
}

/// Asserts that all packets of clusters arrive and conform to the profile; returns the number sent.
fn assert_shaped(myelin: &Myelin) -> u64 {
    let mut bursts = Vec::new();
    for tries in 1..=TRIES {
        let before = read_delayed(myelin);
        let times = measure_arrivals(myelin);
        assert_eq!(times.len() as u64, CLUSTERS * CLUSTER_SIZE, "{times:?}");
        // With a slow sender the shaper delays few packets, and the attempt proves nothing.
        let received_clusters = before
            .zip(read_delayed(myelin))
            .is_none_or(|(before, now)| now - before > CLUSTERS * CLUSTER_SIZE / 4);
        let burst = measure_burst(&times);
        if received_clusters && burst <= BURST + compute_tolerance(&times) {
            return tries * CLUSTERS * CLUSTER_SIZE;
        }
        bursts.push((burst, received_clusters));
    }
    panic!("bursts, and whether the shaper received clusters: {bursts:?}");
}

#[test]
fn a_worker_shapes_a_cluster_to_single_packets() {
    if skip_unless_root() {
        return;
    }
    let one = "    - { name: one, kind: forward, space: user }";
    let between = "    - { name: one, kind: forward, space: user }\n    - { name: two, kind: forward, space: kernel }";
    let two = "    - { name: one, kind: forward, space: user }\n    - { name: two, kind: forward, space: user }";
    for (functions, mapping) in [
        (one, "compact"),
        (between, "compact"),
        (two, "pipeline"),
        (two, "distributed"),
    ] {
        let myelin = Myelin::new();
        let text = format_shaped_chain(functions, "") + &format!("  mapping: {mapping}\n");
        let file = myelin.write_file(&text);
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        assert_shaped(&myelin);
        let status = myelin.read_status("shaped");
        let shaper = &status["shaper"];
        assert_eq!(shaper["by"], "worker", "{mapping}");
        assert_eq!(
            (&shaper["rate_pps"], &shaper["burst_packets"]),
            (&RATE.into(), &BURST.into())
        );
        assert_eq!(
            (&shaper["waiting"], &status["drops"]),
            (&0.into(), &0.into())
        );
        let text = myelin.run_ok(&["ps", "-v", &myelin.chain_name("shaped")]);
        assert!(
            text.contains("shaper (worker)") && text.contains("delayed"),
            "{text}"
        );
        if functions != between {
            let sojourn = status["sojourn"]["max_us"].as_f64().unwrap();
            assert!(
                sojourn > 1e3,
                "the sojourn lacks the time in the shaper: {sojourn}"
            );
        }
    }
}

#[test]
fn without_a_shaper_a_cluster_leaves_as_a_burst() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let text = format_shaped_chain(
        "    - { name: one, kind: forward, space: user }",
        ", enforce: policer",
    );
    let file = myelin.write_file(&text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    // One attempt with a fast sender is enough.
    let mut bursts = (0..TRIES).map(|_| measure_burst(&measure_arrivals(&myelin)));
    assert!(bursts.any(|burst| burst > BURST + TOLERANCE));
    assert_eq!(
        myelin.read_status("shaped")["shaper"],
        serde_json::Value::Null
    );
}

#[test]
fn packets_in_the_shaper_of_a_killed_worker_count_as_lost() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let slow = format_shaped_chain("    - { name: one, kind: forward, space: user }", "")
        .replace("rate: 2kpps, burst: 4", "rate: 20pps, burst: 1")
        .replace("delay: 5s", "delay: 60s");
    let file = myelin.write_file(&slow);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let chain = myelin.chain_name("shaped");
    sh(&format!(
        "ip netns exec myelin-{chain}-client python3 -c \"import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(50): s.sendto(b'x', ('10.0.0.2', 9000))\""
    ));
    let shaper = |name: &str| {
        myelin.read_status("shaped")["shaper"][name]
            .as_u64()
            .unwrap()
    };
    common::wait_for("packets in the queue", || shaper("delayed") > 40);
    assert!(shaper("waiting") > 10, "{}", myelin.read_status("shaped"));
    let status = myelin.read_status("shaped");
    common::kill(&status["worker"]["pid"]);
    common::wait_for("another worker", || shaper("lost") > 0);
    let (lost, left) = (
        shaper("lost"),
        myelin.read_status("shaped")["packets_out"]
            .as_u64()
            .unwrap(),
    );
    assert_eq!(lost + left, 50, "{}", myelin.read_status("shaped"));
    assert_eq!(shaper("waiting"), 0);
    assert_eq!(myelin.read_status("shaped")["drops"].as_u64(), Some(lost));
}

const KERNEL: &str = "    - { name: one, kind: forward, space: kernel }";

/// Finds the queueing discipline that shapes kernel chains on this machine.
fn find_discipline(myelin: &Myelin) -> &'static str {
    let doctor = myelin.run_json(&["doctor", "--json"]);
    let mut findings = doctor["findings"]
        .as_array()
        .expect("doctor lists findings")
        .iter();
    let fq = findings.find(|finding| finding["what"] == "fq");
    let answer = fq.and_then(|finding| finding["answer"].as_str());
    if answer
        .expect("doctor has an answer for fq")
        .starts_with("yes")
    {
        "fq"
    } else {
        "htb"
    }
}

/// Shows the root discipline of the chain's egress interface (`tc qdisc show`).
fn show_egress_discipline(myelin: &Myelin) -> String {
    let egress = myelin.read_status("shaped")["egress"]
        .as_str()
        .unwrap()
        .to_owned();
    sh(&format!("tc qdisc show dev {egress} root"))
}

#[test]
fn the_egress_interface_shapes_a_kernel_chain() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    for bits in [false, true] {
        let myelin = Myelin::new();
        let mut text = format_shaped_chain(KERNEL, ", enforce: both");
        if bits {
            // With frames of 48 B the limit in bits is 2000 packets a second and a burst of four:
            // stricter than the limit in packets.
            text = text
                .replace(
                    "rate: 2kpps, burst: 4",
                    "rate: [ 4kpps, 768kbit ], burst: [ 32, 1536bit ]",
                )
                .replace("policingBurst: 64", "policingBurst: [ 64, 64kbit ]");
        }
        let file = myelin.write_file(&text);
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let discipline = find_discipline(&myelin);
        assert!(show_egress_discipline(&myelin).contains(&format!("qdisc {discipline} 6d79:")));
        let sent = assert_shaped(&myelin);
        let status = myelin.read_status("shaped");
        let shaper = &status["shaper"];
        assert_eq!(
            (&shaper["by"], &shaper["in_sojourn"]),
            (&discipline.into(), &(discipline == "fq").into())
        );
        assert_eq!(
            (&shaper["waiting"], &status["drops"]),
            (&0.into(), &0.into())
        );
        assert_eq!(status["packets_out"], sent);
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

/// Sends clusters through a kernel chain; returns the report of `myelin conform` on the server
/// host.
fn measure_conformance(myelin: &Myelin, up: &serde_json::Value) -> serde_json::Value {
    let server = format!("{}/server", myelin.chain_name("shaped"));
    let profile = ["--rate", "500pps", "--burst", "4", "--tolerance", "10ms"];
    let filter = ["--match", "protocol=udp,destinationPort=9000", "--json"];
    let before = myelin.read_status("shaped");
    let monitor = Monitor::start(
        myelin,
        &[&["--host", &*server], &profile[..], &filter].concat(),
    );
    send_clusters(up, CLUSTER_SIZE, CLUSTERS, Duration::from_millis(50));
    common::wait_for("the last packet's departure", || {
        let now = myelin.read_status("shaped");
        read_count(&now["packets_out"]) - read_count(&before["packets_out"])
            == CLUSTERS * CLUSTER_SIZE
    });
    // With `fq`, a packet counts as out when it gets its departure time. The last packet departs
    // this much later.
    std::thread::sleep(Duration::from_millis(1000 * CLUSTERS * CLUSTER_SIZE / 500));
    monitor.interrupt();
    let (_, report) = monitor.wait_for_report();
    assert_eq!(report["packets"], CLUSTERS * CLUSTER_SIZE, "{report}");
    report
}

#[test]
fn packets_shaped_by_the_egress_interface_conform_at_the_server() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let myelin = Myelin::new();
    let text = format_shaped_chain(KERNEL, ", enforce: both")
        .replace("rate: 2kpps", "rate: 500pps")
        .replace("policingBurst: 64", "policingBurst: 256");
    let file = myelin.write_file(&text);
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let discipline = find_discipline(&myelin);
    let mut attempts = Vec::new();
    for _ in 0..TRIES {
        attempts.push(measure_conformance(&myelin, &up[0]));
        if attempts
            .last()
            .is_some_and(|report| report["conforms"] == true)
        {
            break;
        }
    }
    let last = attempts.last().expect("at least one attempt ran");
    assert_eq!(last["conforms"], true, "{attempts:?}");
    println!(
        "{discipline}: after {} tries {}",
        attempts.len(),
        last["buckets"]
    );
    let status = wait_until_settled(&myelin, "shaped");
    let shaper = &status["shaper"];
    assert_eq!(
        (&shaper["by"], &shaper["in_sojourn"], &status["policed"]),
        (&discipline.into(), &(discipline == "fq").into(), &0.into()),
        "{status}"
    );
    let max_us = status["sojourn"]["max_us"]
        .as_f64()
        .expect("the status has a sojourn");
    if discipline == "fq" {
        // The shaper delays each cluster except its burst.
        assert!(
            read_count(&shaper["delayed"]) > CLUSTERS * CLUSTER_SIZE / 2,
            "{status}"
        );
        assert!(max_us > 1e6 * (CLUSTER_SIZE / 2) as f64 / 500.0, "{status}");
    }
    let shown = myelin.run_ok(&["ps", "-v", &myelin.chain_name("shaped")]);
    assert!(shown.contains(&format!("shaper ({discipline})")), "{shown}");
    let egress = status["egress"]
        .as_str()
        .expect("the chain has an egress interface");
    assert!(show_egress_discipline(&myelin).contains(&format!("qdisc {discipline} 6d79:")));
    // Without the shaper a cluster leaves as a burst.
    let plain = myelin.write_file(&text.replace("enforce: both", "enforce: policer"));
    let up = myelin.run_json(&["up", plain.to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["change"], "changed");
    let disciplines = sh(&format!("tc qdisc show dev {egress} root"));
    assert!(!disciplines.contains("6d79:"), "{disciplines}");
    let mut reports = (0..TRIES).map(|_| measure_conformance(&myelin, &up[0]));
    assert!(reports.any(|report| report["conforms"] == false));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Two existing interfaces for `spec.ports`. Dropping the value removes the interfaces.
struct ExistingPorts {
    names: [String; 2],
}

impl ExistingPorts {
    fn new(tag: &str) -> Self {
        let id = std::process::id() % 10_000;
        let names = ["i", "o"].map(|end| format!("s{tag}{id}{end}"));
        for name in &names {
            sh(&format!(
                "ip link add {name} type veth peer name {name}p; ip link set {name} up; ip link set {name}p up"
            ));
        }
        Self { names }
    }

    fn format_shaped_chain(&self) -> String {
        let [ingress, egress] = &self.names;
        format_shaped_chain(KERNEL, ", enforce: both")
            + &format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n")
    }

    fn show_root_discipline(&self) -> String {
        sh(&format!("tc qdisc show dev {} root", self.names[1]))
    }
}

impl Drop for ExistingPorts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::process::Command::new("ip")
                .args(["link", "del", name])
                .status();
        }
    }
}

#[test]
fn up_refuses_to_replace_a_configured_discipline() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let (ports, myelin) = (ExistingPorts::new("f"), Myelin::new());
    let egress = &ports.names[1];
    sh(&format!(
        "tc qdisc add dev {egress} root tbf rate 1gbit burst 100k limit 1m"
    ));
    let before = ports.show_root_discipline();
    let file = myelin.write_file(&ports.format_shaped_chain());
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    for word in [egress, "`tbf`", "`enforce: policer`", "tc qdisc del"] {
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(ports.show_root_discipline(), before);
    myelin.expect_chains(0);
}

#[test]
fn down_restores_the_default_discipline_also_after_a_killed_agent() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let (ports, myelin) = (ExistingPorts::new("k"), Myelin::new());
    let before = ports.show_root_discipline();
    let file = myelin.write_file(&ports.format_shaped_chain());
    let up = || myelin.run_ok(&["up", file.to_str().unwrap()]);
    up();
    let discipline = find_discipline(&myelin);
    assert!(
        ports
            .show_root_discipline()
            .contains(&format!("{discipline} 6d79:")),
        "{}",
        ports.show_root_discipline()
    );
    myelin.run_ok(&["down", &myelin.chain_name("shaped")]);
    assert_eq!(ports.show_root_discipline(), before);
    up();
    // Another profile gets a new class; the agent removes the old one.
    let other = myelin.write_file(
        &ports
            .format_shaped_chain()
            .replace("rate: 2kpps", "rate: 3kpps"),
    );
    myelin.run_ok(&["up", other.to_str().unwrap()]);
    if discipline == "htb" {
        let classes = sh(&format!("tc class show dev {}", ports.names[1]));
        assert_eq!(classes.matches("class htb").count(), 1, "{classes}");
    }
    myelin.kill_agent();
    myelin.run_ok(&["down", "--all"]);
    assert_eq!(ports.show_root_discipline(), before);
    myelin.assert_clean();
}
