//! Sends clusters of packets (back to back) through chains with a shaper. Each packet of each run
//! must conform, without a tolerance for a busy machine: at the server no packet arrives before the
//! earliest time that the profile allows, computed from the sending times. A busy machine only
//! delays packets.
//!
//! The tests of `myelin-dataplane` check the departure times of a worker's shaper. The kernel suite
//! checks the departure times that a program gives to packets for `fq`.
//!
//! A packet that arrives late is no fault of the shaper. The tests print the lateness; the thorough
//! tests limit it.

mod common;
#[path = "shaper/egress.rs"]
mod egress;

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime};

use common::load::{open_host, read_count, send_clusters, wait_until_settled};
use common::{Myelin, sh, skip_unless_root};
use nix::sys::socket::{self, ControlMessageOwned, MsgFlags, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use serde_json::Value;

/// Number of clusters, and packets in each.
const CLUSTERS: u64 = 4;
const CLUSTER_SIZE: u64 = 64;
const KERNEL: &str = "    - { name: one, kind: forward, space: kernel }";
const RATE: u64 = 2000;
const BURST: u64 = 4;
/// Earliness of a packet that the rounding of the kernel's rates may cause.
const ROUNDING: Duration = Duration::from_micros(50);
/// Most lateness of a packet. Covers long stalls of a busy machine.
const MAX_LATENESS: Duration = Duration::from_secs(1);

/// Formats a chain whose policer passes clusters and whose shaper sends packets one by one. The
/// policer passes all clusters together and the queue has room for them, so a stalled worker loses
/// no packet.
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
  sla: {{ rate: 2kpps, burst: 4, policingBurst: 256, shaper: {{ queue: 512, delay: 5s }}{more} }}
"
    )
}

/// Sending and arrival time of a packet, CLOCK_REALTIME, ns.
struct Transit {
    /// Read before the call that sends the packet.
    sent_ns: u64,
    /// The receive time of the server's kernel.
    arrived_ns: u64,
}

/// Sends clusters from the client of a chain; returns the times of each packet at the server.
fn measure_transits(myelin: &Myelin) -> Vec<Transit> {
    let status = myelin.read_status("shaped");
    let open_socket = |role, port| {
        let (host, address) = open_host(&status, role);
        let socket = host.enter(|| UdpSocket::bind((address, port)));
        let socket = socket.expect("the namespace").expect("a socket");
        (socket, address)
    };
    let ((client, _), (server, to)) = (open_socket("client", 0), open_socket("server", 9000));
    setsockopt(&server, sockopt::RcvBufForce, &(1 << 21)).expect("a buffer for all packets");
    setsockopt(&server, sockopt::ReceiveTimestampns, &true).expect("receive times");
    server
        .set_read_timeout(Some(Duration::from_secs(120)))
        .expect("a time limit");
    let send = |number: u64| {
        let now = SystemTime::UNIX_EPOCH.elapsed().expect("a time");
        (client.send_to(&number.to_be_bytes()[2..], (to, 9000))).expect("sent");
        if number % CLUSTER_SIZE == CLUSTER_SIZE - 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        now.as_nanos() as u64
    };
    let numbers = 0..CLUSTERS * CLUSTER_SIZE;
    std::thread::scope(|scope| {
        // Until the kernel stamps all packets, it stamps those that a socket reads.
        let receiver = scope.spawn(|| -> Vec<u64> {
            let arrivals = numbers.clone().map(|number| receive(&server, number));
            arrivals.collect()
        });
        let sent: Vec<u64> = numbers.clone().map(send).collect();
        let arrived = receiver.join().expect("all packets");
        let transits = sent.into_iter().zip(arrived);
        transits
            .map(|(sent_ns, arrived_ns)| Transit {
                sent_ns,
                arrived_ns,
            })
            .collect()
    })
}

/// Receives the packet with this number; returns its receive time.
fn receive(server: &UdpSocket, number: u64) -> u64 {
    let (mut payload, mut control) = ([0; 8], nix::cmsg_space!(TimeSpec));
    let mut parts = [IoSliceMut::new(&mut payload[2..])];
    let flags = MsgFlags::empty();
    let message = socket::recvmsg::<()>(server.as_raw_fd(), &mut parts, Some(&mut control), flags);
    let message = message.unwrap_or_else(|error| panic!("packet {number}: {error}"));
    let stamp = message.cmsgs().expect("control messages").next();
    let Some(ControlMessageOwned::ScmTimestampns(time)) = stamp else {
        panic!("no receive time: {stamp:?}");
    };
    assert_eq!(u64::from_be_bytes(payload), number, "lost or reordered");
    Duration::from(time).as_nanos() as u64
}

/// Returns how long before its earliest departure at this rate each packet arrived, ns; negative
/// for a later arrival. The earliest departures are those of the generic cell rate algorithm (ITU-T
/// I.371), which shares no code with the shapers.
fn measure_earliness(transits: &[Transit], rate: u64) -> Vec<i64> {
    let gap_ns = 1_000_000_000 / rate;
    let mut theoretical_ns = 0_u64;
    let earliness = transits.iter().map(|transit| {
        let eligible_ns = transit
            .sent_ns
            .max(theoretical_ns.saturating_sub((BURST - 1) * gap_ns));
        theoretical_ns = theoretical_ns.max(eligible_ns) + gap_ns;
        eligible_ns.cast_signed() - transit.arrived_ns.cast_signed()
    });
    earliness.collect()
}

/// Counts the packets that arrived before their earliest departure.
fn count_early(earliness: &[i64]) -> usize {
    let early = |ns: &&i64| **ns > ROUNDING.as_nanos() as i64;
    earliness.iter().filter(early).count()
}

/// Asserts that all packets of clusters arrive and conform to the profile. Returns the lateness of
/// the latest packet, ns.
fn assert_shaped(myelin: &Myelin) -> i64 {
    let earliness = measure_earliness(&measure_transits(myelin), RATE);
    let lateness = -earliness.iter().min().expect("packets");
    // A worker counts a packet after it sent the packet.
    common::wait_for("an empty shaper", || {
        myelin.read_status("shaped")["shaper"]["waiting"] == 0
    });
    let shaper = &myelin.read_status("shaped")["shaper"];
    println!(
        "{}: the latest packet was {} us late",
        shaper["by"],
        lateness / 1000
    );
    assert_eq!(
        count_early(&earliness),
        0,
        "ns before the profile allows: {earliness:?}"
    );
    // HTB does not count them.
    if let Some(delayed) = shaper["delayed"].as_u64() {
        assert!(
            delayed > CLUSTERS * CLUSTER_SIZE / 4,
            "no clusters came: {shaper}"
        );
    }
    lateness
}

#[test]
#[ignore = "thorough: measures delays on a quiet machine"]
fn no_shaped_packet_is_a_second_late() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let worker = "    - { name: one, kind: forward, space: user }";
    for (functions, more) in [(worker, ""), (KERNEL, ", enforce: both")] {
        let myelin = Myelin::new();
        let file = myelin.write_file(&format_shaped_chain(functions, more));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let lateness = assert_shaped(&myelin);
        assert!(
            lateness < MAX_LATENESS.as_nanos() as i64,
            "{lateness} ns late"
        );
    }
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

/// Excess waits up to the agreed time and leaves at the rate. The policer drops the rest.
#[test]
fn excess_waits_and_leaves_at_the_rate() {
    if skip_unless_root() || common::skip_without("tc") {
        return;
    }
    let sent = 100;
    // The burst, and the packets of three seconds at 20 packets a second.
    let admitted = 4 + 60;
    let worker = "    - { name: one, kind: forward, space: user }";
    for functions in [worker, KERNEL] {
        let myelin = Myelin::new();
        let sla = "sla: { rate: 20pps, burst: 4, excess: { queue: 3s } }";
        let chain = format_shaped_chain(functions, "");
        let old = chain.lines().find(|line| line.contains("sla:")).unwrap();
        let file = myelin.write_file(&chain.replace(old.trim(), sla));
        let file = file.to_str().unwrap();
        let plan = myelin.run_ok(&["plan", file]);
        assert!(plan.contains("waits for up to 3s"), "{plan}");
        let up = myelin.run_json(&["up", file, "--json"]);
        let bound_ns = read_count(&up[0]["plan"]["bound"]["bound_ns"]);
        assert!(bound_ns > 3_000_000_000, "{bound_ns}");
        send_clusters(&up[0], sent, 1, Duration::ZERO);
        let status = wait_until_settled(&myelin, "shaped");
        let count = |name: &str| read_count(&status[name]);
        let (out, policed) = (count("packets_out"), count("policed"));
        // A slow sender earns credit for more packets.
        assert!(out >= admitted && policed > 0, "{status}");
        assert_eq!((out + policed, count("drops")), (sent, 0), "{status}");
        if status["shaper"]["in_sojourn"] == true {
            // The first packets leave at once, a later one each 50 ms.
            let max_us = status["sojourn"]["max_us"].as_f64().unwrap();
            assert!(max_us > 2.9e6, "{status}");
        }
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

#[test]
fn without_a_shaper_a_cluster_leaves_as_a_burst() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    // So low a rate that even a slow machine sends the clusters earlier than the profile allows.
    let rate = 20;
    let text = format_shaped_chain(
        "    - { name: one, kind: forward, space: user }",
        ", enforce: policer",
    )
    .replace("rate: 2kpps", &format!("rate: {rate}pps"));
    let file = myelin.write_file(&text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let earliness = measure_earliness(&measure_transits(&myelin), rate);
    assert!(
        count_early(&earliness) as u64 > CLUSTERS * CLUSTER_SIZE / 4,
        "{earliness:?}"
    );
    assert_eq!(myelin.read_status("shaped")["shaper"], Value::Null);
}

#[test]
fn packets_in_the_shaper_of_a_killed_worker_count_as_lost() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let slow = format_shaped_chain("    - { name: one, kind: forward, space: user }", "")
        .replace("rate: 2kpps, burst: 4", "rate: 1pps, burst: 1")
        .replace("delay: 5s", "delay: 600s");
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
