//! Clusters of packets through chains whose traffic is shaped where it leaves: what arrives is in
//! profile, and all of it.

mod common;

use std::time::Duration;

use common::conformance::Monitor;
use common::load::{read_count, send_clusters, wait_until_settled};
use common::{Myelin, sh, skip_unless_root};
use myelin_packet::fixtures::Meter;
use myelin_packet::traffic::{Bucket, Profile};

/// Clusters, and packets in each.
const CLUSTERS: u64 = 4;
const CLUSTER: u64 = 64;
const RATE: u64 = 2000;
const BURST: u64 = 4;
/// By how much a busy machine may have packets come closer together than they left, packets: 10 ms,
/// and this only where it was seen to stand still.
const TOLERANCE: u64 = 20;
/// What a timer alone may do, packets.
const LATE: u64 = 2;
/// How often clusters are sent before it is said that what is looked for does not happen. A busy
/// machine keeps the sender, a worker or the receiver from running, which spoils one try, or
/// several, but not so many.
const TRIES: u64 = 50;

/// A chain of these functions that may be sent clusters and lets out packets one by one. All
/// clusters together find room in its queue, so nothing is lost if a worker stands still while they
/// come.
fn shaped(functions: &str, more: &str) -> String {
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

/// Sends clusters of packets, and gives when the server's kernel received each, ns.
fn arrivals(myelin: &Myelin) -> Vec<u64> {
    let chain = myelin.chain("shaped");
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
        total = CLUSTERS * CLUSTER
    );
    let client = format!(
        "import os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while not os.path.exists('{ready}'): time.sleep(0.01)
for i in range({total}):
    s.sendto(b'%6d' % i, ('10.0.0.2', 9000))
    if i % {CLUSTER} == {CLUSTER} - 1: time.sleep(0.1)",
        total = CLUSTERS * CLUSTER
    );
    let out = sh(&format!(
        "ip netns exec myelin-{chain}-client timeout 300 python3 -c \"{client}\" &
         ip netns exec myelin-{chain}-server timeout 300 python3 -c \"{server}\"; wait"
    ));
    let times = out.lines().map(|line| line.parse().expect("a time"));
    times.collect()
}

/// The burst that the packets really had.
fn burst(times: &[u64]) -> u64 {
    let profile = Profile {
        packets: Bucket::new(RATE, BURST).ok(),
        bits: None,
    };
    let mut meter = Meter::new(&profile);
    for time in times {
        meter.record(*time, 48);
    }
    meter.packets().expect("a bucket").burst()
}

/// By how many packets those that arrived may have closed up: what the rate brings in the longest
/// time in which none of a cluster came.
fn tolerance(times: &[u64]) -> u64 {
    let gaps = times
        .chunks(CLUSTER as usize)
        .flat_map(|cluster| cluster.windows(2))
        .map(|pair| pair[1].saturating_sub(pair[0]));
    let late_ns = gaps
        .max()
        .unwrap_or_default()
        .saturating_sub(1_000_000_000 / RATE);
    TOLERANCE.min(LATE + late_ns * RATE / 1_000_000_000)
}

/// How many packets the chain's shaper made wait; `None` where that is not told.
fn delayed(myelin: &Myelin) -> Option<u64> {
    myelin.status("shaped")["shaper"]["delayed"].as_u64()
}

/// All packets arrive, and as the profile has it, though they came to the shaper in clusters;
/// without one a whole cluster arrives together. Gives how many were sent.
fn assert_shaped(myelin: &Myelin) -> u64 {
    let mut bursts = Vec::new();
    for tries in 1..=TRIES {
        let before = delayed(myelin);
        let times = arrivals(myelin);
        assert_eq!(times.len() as u64, CLUSTERS * CLUSTER, "{times:?}");
        // A cluster that the sender was long at is less of one, and proves nothing.
        let was_sent = before
            .zip(delayed(myelin))
            .is_none_or(|(before, now)| now - before > CLUSTERS * CLUSTER / 4);
        let burst = burst(&times);
        if was_sent && burst <= BURST + tolerance(&times) {
            return tries * CLUSTERS * CLUSTER;
        }
        bursts.push((burst, was_sent));
    }
    panic!("bursts, and whether the shaper was sent clusters: {bursts:?}");
}

#[test]
fn a_worker_lets_a_cluster_out_packet_by_packet() {
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
        let text = shaped(functions, "") + &format!("  mapping: {mapping}\n");
        let file = myelin.file(&text);
        myelin.ok(&["up", file.to_str().unwrap()]);
        assert_shaped(&myelin);
        let status = myelin.status("shaped");
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
        let text = myelin.ok(&["ps", "-v", &myelin.chain("shaped")]);
        assert!(
            text.contains("shaper (worker)") && text.contains("delayed"),
            "{text}"
        );
        if functions != between {
            let sojourn = status["sojourn"]["max_us"].as_f64().unwrap();
            assert!(sojourn > 1e3, "the wait is in the sojourn: {sojourn}");
        }
    }
}

#[test]
fn without_a_shaper_a_cluster_stays_together() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let text = shaped(
        "    - { name: one, kind: forward, space: user }",
        ", enforce: policer",
    );
    let file = myelin.file(&text);
    myelin.ok(&["up", file.to_str().unwrap()]);
    // As soon as the sender is quick enough once.
    let mut bursts = (0..TRIES).map(|_| burst(&arrivals(&myelin)));
    assert!(bursts.any(|burst| burst > BURST + TOLERANCE));
    assert_eq!(myelin.status("shaped")["shaper"], serde_json::Value::Null);
}

/// What waits when a chain goes leaves first; what waits when a worker dies is counted.
#[test]
fn what_waits_is_let_out_or_counted() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let slow = shaped("    - { name: one, kind: forward, space: user }", "")
        .replace("rate: 2kpps, burst: 4", "rate: 20pps, burst: 1")
        .replace("delay: 5s", "delay: 60s");
    let file = myelin.file(&slow);
    myelin.ok(&["up", file.to_str().unwrap()]);
    let chain = myelin.chain("shaped");
    sh(&format!(
        "ip netns exec myelin-{chain}-client python3 -c \"import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(50): s.sendto(b'x', ('10.0.0.2', 9000))\""
    ));
    let shaper = |name: &str| myelin.status("shaped")["shaper"][name].as_u64().unwrap();
    common::wait_for("packets in the queue", || shaper("delayed") > 40);
    assert!(shaper("waiting") > 10, "{}", myelin.status("shaped"));
    let status = myelin.status("shaped");
    common::kill(&status["worker"]["pid"]);
    common::wait_for("another worker", || shaper("lost") > 0);
    let (lost, left) = (
        shaper("lost"),
        myelin.status("shaped")["packets_out"].as_u64().unwrap(),
    );
    assert_eq!(lost + left, 50, "{}", myelin.status("shaped"));
    assert_eq!(shaper("waiting"), 0);
    assert_eq!(myelin.status("shaped")["drops"].as_u64(), Some(lost));
}

const KERNEL: &str = "    - { name: one, kind: forward, space: kernel }";

/// The discipline that chains of the kernel are shaped by here.
fn shaped_by(myelin: &Myelin) -> &'static str {
    let doctor = myelin.json(&["doctor", "--json"]);
    let mut findings = doctor["findings"].as_array().expect("findings").iter();
    let fq = findings.find(|finding| finding["what"] == "fq");
    let answer = fq.and_then(|finding| finding["answer"].as_str());
    if answer.expect("what it says of fq").starts_with("yes") {
        "fq"
    } else {
        "htb"
    }
}

/// The discipline of the chain's egress interface, as `tc` shows it.
fn discipline(myelin: &Myelin) -> String {
    let egress = myelin.status("shaped")["egress"]
        .as_str()
        .unwrap()
        .to_owned();
    sh(&format!("tc qdisc show dev {egress} root"))
}

#[test]
fn the_egress_interface_shapes_a_chain_of_the_kernel() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    for bits in [false, true] {
        let myelin = Myelin::new();
        let mut text = shaped(KERNEL, ", enforce: both");
        if bits {
            // Frames of 48 B: of both limits this is the one of 2000 packets a second, four at
            // once.
            text = text
                .replace(
                    "rate: 2kpps, burst: 4",
                    "rate: [ 4kpps, 768kbit ], burst: [ 32, 1536bit ]",
                )
                .replace("policingBurst: 64", "policingBurst: [ 64, 64kbit ]");
        }
        let file = myelin.file(&text);
        myelin.ok(&["up", file.to_str().unwrap()]);
        let by = shaped_by(&myelin);
        assert!(discipline(&myelin).contains(&format!("qdisc {by} 6d79:")));
        let sent = assert_shaped(&myelin);
        let status = myelin.status("shaped");
        let shaper = &status["shaper"];
        assert_eq!(
            (&shaper["by"], &shaper["in_sojourn"]),
            (&by.into(), &(by == "fq").into())
        );
        assert_eq!(
            (&shaper["waiting"], &status["drops"]),
            (&0.into(), &0.into())
        );
        assert_eq!(status["packets_out"], sent);
        myelin.ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

/// Sends clusters through a chain of the kernel, and gives what `myelin conform` says of what
/// arrives behind its egress interface.
fn seen_at_the_far_end(myelin: &Myelin, up: &serde_json::Value) -> serde_json::Value {
    let server = format!("{}/server", myelin.chain("shaped"));
    let profile = ["--rate", "500pps", "--burst", "4", "--tolerance", "10ms"];
    let filter = ["--match", "protocol=udp,destinationPort=9000", "--json"];
    let before = myelin.status("shaped");
    let monitor = Monitor::start(
        myelin,
        &[&["--host", &*server], &profile[..], &filter].concat(),
    );
    send_clusters(up, CLUSTER, CLUSTERS, Duration::from_millis(50));
    common::wait_for("the last packet's departure", || {
        let now = myelin.status("shaped");
        read_count(&now["packets_out"]) - read_count(&before["packets_out"]) == CLUSTERS * CLUSTER
    });
    // With departure times a packet is counted out when it gets one, the last of all this long
    // before it.
    std::thread::sleep(Duration::from_millis(1000 * CLUSTERS * CLUSTER / 500));
    monitor.interrupt();
    let (_, report) = monitor.wait_for_report();
    assert_eq!(report["packets"], CLUSTERS * CLUSTER, "{report}");
    report
}

#[test]
fn what_the_egress_interface_shapes_conforms_at_the_far_end() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let myelin = Myelin::new();
    let text = shaped(KERNEL, ", enforce: both")
        .replace("rate: 2kpps", "rate: 500pps")
        .replace("policingBurst: 64", "policingBurst: 256");
    let file = myelin.file(&text);
    let up = myelin.json(&["up", file.to_str().unwrap(), "--json"]);
    let by = shaped_by(&myelin);
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        seen.push(seen_at_the_far_end(&myelin, &up[0]));
        if seen.last().is_some_and(|report| report["conforms"] == true) {
            break;
        }
    }
    let last = seen.last().expect("a try");
    assert_eq!(last["conforms"], true, "{seen:?}");
    println!("{by}: after {} tries {}", seen.len(), last["buckets"]);
    let status = wait_until_settled(&myelin, "shaped");
    let shaper = &status["shaper"];
    assert_eq!(
        (&shaper["by"], &shaper["in_sojourn"], &status["policed"]),
        (&by.into(), &(by == "fq").into(), &0.into()),
        "{status}"
    );
    let max_us = status["sojourn"]["max_us"].as_f64().expect("a sojourn");
    if by == "fq" {
        // Each cluster but its burst, and all of the last ones.
        assert!(
            read_count(&shaper["delayed"]) > CLUSTERS * CLUSTER / 2,
            "{status}"
        );
        assert!(max_us > 1e6 * (CLUSTER / 2) as f64 / 500.0, "{status}");
    }
    let shown = myelin.ok(&["ps", "-v", &myelin.chain("shaped")]);
    assert!(shown.contains(&format!("shaper ({by})")), "{shown}");
    let egress = status["egress"].as_str().expect("an interface");
    assert!(discipline(&myelin).contains(&format!("qdisc {by} 6d79:")));
    // Without the shaper a cluster stays one.
    let plain = myelin.file(&text.replace("enforce: both", "enforce: policer"));
    let up = myelin.json(&["up", plain.to_str().unwrap(), "--json"]);
    assert_eq!(up[0]["change"], "changed");
    let left = sh(&format!("tc qdisc show dev {egress} root"));
    assert!(!left.contains("6d79:"), "{left}");
    let mut reports = (0..TRIES).map(|_| seen_at_the_far_end(&myelin, &up[0]));
    assert!(reports.any(|report| report["conforms"] == false));
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Interfaces of somebody else, as a chain between them sees them.
struct Foreign {
    names: [String; 2],
}

impl Foreign {
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

    fn chain(&self) -> String {
        let [ingress, egress] = &self.names;
        shaped(KERNEL, ", enforce: both")
            + &format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n")
    }

    fn root(&self) -> String {
        sh(&format!("tc qdisc show dev {} root", self.names[1]))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::process::Command::new("ip")
                .args(["link", "del", name])
                .status();
        }
    }
}

#[test]
fn a_discipline_of_somebody_else_is_never_replaced() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let (foreign, myelin) = (Foreign::new("f"), Myelin::new());
    let egress = &foreign.names[1];
    sh(&format!(
        "tc qdisc add dev {egress} root tbf rate 1gbit burst 100k limit 1m"
    ));
    let before = foreign.root();
    let file = myelin.file(&foreign.chain());
    let error = myelin.fails(1, &["up", file.to_str().unwrap()]);
    for word in [egress, "`tbf`", "`enforce: policer`", "tc qdisc del"] {
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(foreign.root(), before);
    myelin.expect_chains(0);
}

#[test]
fn the_default_discipline_comes_back_also_after_kill_9() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let (foreign, myelin) = (Foreign::new("k"), Myelin::new());
    let before = foreign.root();
    let file = myelin.file(&foreign.chain());
    let up = || myelin.ok(&["up", file.to_str().unwrap()]);
    up();
    let by = shaped_by(&myelin);
    assert!(
        foreign.root().contains(&format!("{by} 6d79:")),
        "{}",
        foreign.root()
    );
    myelin.ok(&["down", &myelin.chain("shaped")]);
    assert_eq!(foreign.root(), before);
    up();
    // Another profile: a class of its own beside the old one, which goes.
    let other = myelin.file(&foreign.chain().replace("rate: 2kpps", "rate: 3kpps"));
    myelin.ok(&["up", other.to_str().unwrap()]);
    if by == "htb" {
        let classes = sh(&format!("tc class show dev {}", foreign.names[1]));
        assert_eq!(classes.matches("class htb").count(), 1, "{classes}");
    }
    myelin.kill_agent();
    myelin.ok(&["down", "--all"]);
    assert_eq!(foreign.root(), before);
    myelin.assert_clean();
}
