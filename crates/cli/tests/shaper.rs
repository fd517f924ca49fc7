//! Clusters of packets through chains whose traffic is shaped where it leaves: what arrives is in profile, and all of it.

mod common;

use common::{Myelin, sh, skip_unless_root};
use myelin_traffic::{Bucket, Meter, Profile};

/// Clusters, and packets in each.
const CLUSTERS: u64 = 4;
const CLUSTER: u64 = 64;
const RATE: u64 = 2000;
const BURST: u64 = 4;
/// By how much a busy machine may have packets come closer together than they left, packets: 10 ms.
const TOLERANCE: u64 = 20;

/// A chain of these functions that may be sent clusters and lets out packets one by one.
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
  sla: {{ rate: 2kpps, burst: 4, policingBurst: 64, shaper: {{ queue: 128, delay: 200ms }}{more} }}
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
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20); s.setsockopt(socket.SOL_SOCKET, 35, 1)
s.settimeout(3); open('{ready}', 'w')
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
        "ip netns exec myelin-{chain}-client timeout 60 python3 -c \"{client}\" &
         ip netns exec myelin-{chain}-server timeout 60 python3 -c \"{server}\"; wait"
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
        meter.see(*time, 48);
    }
    meter.packets().expect("a bucket").burst()
}

/// All packets arrive, and as the profile has it; without a shaper a whole cluster arrives together.
fn assert_shaped(myelin: &Myelin) {
    let times = arrivals(myelin);
    assert_eq!(times.len() as u64, CLUSTERS * CLUSTER, "{times:?}");
    let burst = burst(&times);
    assert!(burst <= BURST + TOLERANCE, "a burst of {burst}");
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
        // A cluster that the sender was long at is less of one.
        assert!(
            shaper["delayed"].as_u64() > Some(CLUSTERS * CLUSTER / 4),
            "{status}"
        );
        assert_eq!(
            (&shaper["waiting"], &status["drops"]),
            (&0.into(), &0.into())
        );
        let text = myelin.ok(&["ps", &myelin.chain("shaped")]);
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
    let burst = burst(&arrivals(&myelin));
    assert!(
        burst > 2 * (BURST + TOLERANCE) / 2 + TOLERANCE / 2,
        "a burst of {burst}"
    );
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
        .replace("200ms", "60s");
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
