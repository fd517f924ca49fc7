//! Chains between end hosts that Myelin made: their links keep their offloads while all functions
//! take super-packets.

mod common;

use common::streams::Streams;
use common::{Myelin, skip_unless_root, wait_for};
use myelin_linux::ethtool::Ethtool;
use myelin_linux::netns::Netns;

const CHAIN: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @bulk }
spec:
  match: { destination: 10.0.0.2/32 }
  functions: [ { name: f, kind: KIND } ]
";

/// Whether a host sends super-packets and packets whose checksum is left to the card.
fn sends_super_packets(host: &Netns) -> bool {
    let features = host.enter(|| Ethtool::open().unwrap().features("eth0").unwrap());
    let features = features.unwrap();
    let is_on = |name: &str| features[name].active;
    assert_eq!(
        is_on("tx-tcp-segmentation"),
        is_on("tx-checksum-ip-generic")
    );
    is_on("tx-tcp-segmentation")
}

/// The packets that entered the chain, and the frames that its ingress port received. A
/// super-packet is one frame with the packets that are its segments.
fn counts(myelin: &Myelin) -> [u64; 2] {
    let status = myelin.read_status("bulk");
    let ingress = status["ingress"].as_str().unwrap();
    let path = format!("/sys/class/net/{ingress}/statistics/rx_packets");
    let frames = std::fs::read_to_string(path).unwrap();
    [
        status["packets_in"].as_u64().unwrap(),
        frames.trim().parse().unwrap(),
    ]
}

#[test]
fn end_hosts_send_super_packets_while_each_function_takes_them() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let up = |kind: &str, spec: &str| {
        let text = format!("{}{spec}", CHAIN.replace("KIND", kind));
        let file = myelin.write_file(&text);
        myelin.run_ok(&["up", file.to_str().unwrap()]);
    };
    up("monitor, space: kernel", "");
    let status = myelin.read_status("bulk");
    let open = |host: usize| Netns::open(status["hosts"][host]["netns"].as_str().unwrap()).unwrap();
    let (client, server) = (open(0), open(1));
    let streams = Streams::between(open(0), &server, "10.0.0.2:9000");
    let rate = |burst: u32| format!("  sla: {{ rate: 200kpps, burst: {burst} }}\n");
    let steps = [
        (
            "header function",
            "monitor, space: kernel",
            String::new(),
            true,
        ),
        (
            "payload",
            "xor, space: kernel, config: { key: 0 }",
            String::new(),
            false,
        ),
        ("header function again", "firewall", String::new(), true),
        ("burst below a super-packet", "firewall", rate(100), false),
        ("burst of a super-packet", "firewall", rate(200), true),
        ("user space", "monitor, space: user", String::new(), false),
    ];
    for (step, kind, spec, is_whole) in steps {
        up(kind, &spec);
        wait_for(step, || sends_super_packets(&client) == is_whole);
        assert!(
            sends_super_packets(&server),
            "{step}: no chain enters there"
        );
        if spec.is_empty() {
            let before = counts(&myelin);
            streams.pass_both_ways(step);
            let segments = streams.length() as u64 / 1460;
            wait_for("the segments in the account", || {
                counts(&myelin)[0] >= before[0] + segments
            });
            let [packets, frames] = [0, 1].map(|at| counts(&myelin)[at] - before[at]);
            assert_eq!(
                frames < packets / 4,
                is_whole,
                "{step}: {frames} frames with {packets} packets"
            );
        }
    }
    drop((client, server, streams));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
