//! The policer, from the chain file to its counters: floods, profiles in bits, live changes.

mod common;

use std::net::{IpAddr, UdpSocket};
use std::time::Instant;

use common::{Myelin, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

const PORT: u16 = 9000;

fn format_chain(name: &str, space: &str, more: &str, sla: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp }}
  functions: [ {{ name: one, kind: forward, space: {space} }} ]
{more}  sla: {{ {sla} }}
"
    )
}

/// Opens a socket on the client of a chain; returns it with the address of the server. An
/// unconnected socket reports no ICMP error of a port without a listener.
fn open_client(status: &Value) -> (UdpSocket, IpAddr) {
    let host = |role: &str| {
        let hosts = status["hosts"].as_array().unwrap();
        hosts
            .iter()
            .find(|host| host["role"] == role)
            .unwrap()
            .clone()
    };
    let (client, server) = (host("client"), host("server"));
    let netns = Netns::open(client["netns"].as_str().unwrap()).unwrap();
    let socket = netns
        .enter(|| UdpSocket::bind((client["address"].as_str().unwrap(), 0)).unwrap())
        .unwrap();
    (socket, server["address"].as_str().unwrap().parse().unwrap())
}

fn read_count(status: &Value, key: &str) -> u64 {
    status[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {status}"))
}

/// Waits until `sent` packets have arrived, and each is counted as out, policed or dropped; returns
/// the status.
fn wait_until_settled(myelin: &Myelin, name: &str, sent: u64) -> Value {
    let mut status = myelin.read_status(name);
    wait_for("the last packet", || {
        status = myelin.read_status(name);
        let counted = ["packets_out", "policed", "drops"].map(|key| read_count(&status, key));
        [read_count(&status, "packets_in"), counted.iter().sum()] == [sent; 2]
    });
    status
}

#[test]
fn no_flood_passes_more_than_its_profile() {
    if skip_unless_root() {
        return;
    }
    // A debug build on a busy machine reaches 100 times this rate.
    let (rate, burst) = (100_u64, 10_u64);
    for (space, more) in [
        ("kernel", "  hook: tcx\n"),
        ("kernel", "  hook: xdp\n"),
        ("user", ""),
    ] {
        let myelin = Myelin::new();
        let sla = format!("rate: {rate}pps, burst: {burst}, enforce: policer");
        let file = myelin.write_file(&format_chain("f", space, more, &sla));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let (socket, server) = open_client(&myelin.read_status("f"));
        let send = |port: u16, payload: &[u8]| {
            assert_eq!(
                socket.send_to(payload, (server, port)).unwrap(),
                payload.len()
            );
        };
        let start = Instant::now();
        let mut sent = 0;
        // The link before the chain holds two hundred packets, so it loses none.
        let mut count_and_wait = || {
            sent += 1;
            if sent % 200 == 0 {
                wait_for("two hundred packets", || {
                    read_count(&myelin.read_status("f"), "packets_in") == sent
                });
            }
        };
        // The smallest frames, the largest frames, then 10,000 flows.
        for payload in [0, 1472] {
            for _ in 0..2000 {
                send(PORT, &vec![0; payload]);
                count_and_wait();
            }
        }
        for flow in 1..=10_000 {
            send(flow, b"one of many");
            count_and_wait();
        }
        let status = wait_until_settled(&myelin, "f", 14_000);
        let elapsed_s = start.elapsed().as_secs_f64();
        let (out, policed) = (
            read_count(&status, "packets_out"),
            read_count(&status, "policed"),
        );
        // Plus one, because the first packet may precede the read of the clock.
        let due = (elapsed_s * rate as f64) as u64 + burst + 1;
        assert!(
            out <= due,
            "{space} {more}: {out} packets left, at most {due} allowed"
        );
        assert!(out >= burst, "{space} {more}: {out} packets left");
        assert!(policed >= 14_000 - due, "{space} {more}: {policed} policed");
        assert_eq!(read_count(&status, "drops"), 0, "{status}");
        assert!(
            read_count(&status, "policed_bytes") > 1000 * 1514,
            "{status}"
        );
        let shown = myelin.run_ok(&["ps", "-v", &myelin.chain_name("f")]);
        assert!(
            shown.contains("policed") && shown.contains(&policed.to_string()),
            "{shown}"
        );
        myelin.run_ok(&["down", &myelin.chain_name("f")]);
    }
}

#[test]
fn profiles_in_packets_and_bits_apply_together_and_bits_count_whole_frames() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    // The burst in bits admits ten small frames or one large frame. The rates are so low that the
    // buckets gain almost no tokens.
    let sla = "rate: [ 1pps, 8bit ], burst: [ 1000, 1600B ], enforce: policer";
    let file = myelin.write_file(&format_chain("bits", "kernel", "", sla));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let (socket, server) = open_client(&myelin.read_status("bits"));
    for _ in 0..30 {
        socket.send_to(&[0; 118], (server, PORT)).unwrap();
    }
    let status = wait_until_settled(&myelin, "bits", 30);
    assert_eq!(read_count(&status, "packets_out"), 10, "{status}");
    for _ in 0..5 {
        socket.send_to(&[0; 1400], (server, PORT)).unwrap();
    }
    let status = wait_until_settled(&myelin, "bits", 35);
    assert_eq!(read_count(&status, "packets_out"), 10, "{status}");
    assert_eq!(read_count(&status, "policed_bytes"), 20 * 160 + 5 * 1442);
}

#[test]
fn a_live_change_refills_the_bucket_only_if_the_profile_changes() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let up = |more: &str, sla: &str| {
        let file = myelin.write_file(&format_chain("live", "kernel", more, sla));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
    };
    up("", "rate: 1pps, burst: 5, enforce: policer");
    let (socket, server) = open_client(&myelin.read_status("live"));
    let mut sent = 0;
    let mut send = || {
        for _ in 0..20 {
            socket.send_to(b"a packet", (server, PORT)).unwrap();
        }
        sent += 20;
        read_count(&wait_until_settled(&myelin, "live", sent), "packets_out")
    };
    let start = Instant::now();
    let earned = || start.elapsed().as_secs() + 1;
    let first = send();
    assert!((5..=5 + earned()).contains(&first), "{first}");
    up(
        "  onFailure: drop\n",
        "rate: 1pps, burst: 5, enforce: policer",
    );
    let second = send();
    assert!((first..=5 + earned()).contains(&second), "{second}");
    up("", "rate: 1pps, burst: 6, enforce: policer");
    let third = send();
    assert!(
        (second + 6..=second + 6 + earned()).contains(&third),
        "{third}"
    );
    up("", "rate: 1pps, burst: 6, enforce: none");
    assert_eq!(send(), third + 20);
    let status = myelin.read_status("live");
    assert_eq!(read_count(&status, "policed"), 60 - third, "{status}");
    assert_eq!(read_count(&status, "packets_in"), 80, "{status}");
}
