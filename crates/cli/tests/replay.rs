//! Chains whose worker replays packets from memory and discards those that leave.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::load::read_count;
use common::{Myelin, becomes_true, kill, skip_unless_root, wait_for};
use myelin_packet::{Match, sample};
use serde_json::Value;

const FUNCTIONS: &str =
    "{ name: fwd, kind: forward }, { name: coder, kind: xor, config: { key: 1 } }";

fn write_chain(myelin: &Myelin, replay: &str, functions: &str, rest: &str) -> PathBuf {
    myelin.write_file(&format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @r }}
spec:
  match: {{ protocol: udp, destination: 10.78.0.2/32, destinationPort: 9000 }}
  functions: [ {functions} ]
  ports: {{ ingress: {{ replay: {{ {replay} }} }}, egress: {{ discard: true }} }}
{rest}
"
    ))
}

fn up(myelin: &Myelin, file: &Path) -> Value {
    myelin.run_json(&["up", file.to_str().expect("the path is UTF-8"), "--json"])
}

fn read_status(myelin: &Myelin) -> Value {
    myelin.run_json(&["ps", "--json"])[0].clone()
}

/// Waits until this number of packets has left the chain. Returns the status.
fn wait_for_packets(myelin: &Myelin, packets: u64) -> Value {
    let mut status = Value::Null;
    let have_left = becomes_true(|| {
        status = read_status(myelin);
        read_count(&status["packets_out"]) >= packets
    });
    assert!(have_left, "{status}");
    status
}

/// Makes a frame that the chain takes, or one to another port.
fn frame(port: u16, len: usize) -> Vec<u8> {
    let rule = Match {
        destination: Some("10.78.0.2/32".parse().unwrap()),
        protocol: Some(17),
        destination_port: Some(port),
        ..Match::default()
    };
    sample::frame(&rule, len).unwrap()
}

/// Writes a libpcap file with these frames, 100 us apart.
fn write_capture(path: &Path, frames: &[Vec<u8>]) {
    let word = |value: u32| value.to_le_bytes();
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = header.into_iter().flat_map(word).collect();
    for (index, frame) in (0..).zip(frames) {
        let len = frame.len() as u32;
        let record = [1_700_000_000, 100 * index, len, len];
        file.extend(record.into_iter().flat_map(word));
        file.extend(frame);
    }
    fs::write(path, file).unwrap();
}

#[test]
fn packets_at_a_rate_pass_the_chain_exactly() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let replay = "rate: 20kpps, size: 128B, packets: 5000";
    // A ring with room for all packets: the core may be taken for long.
    let file = write_chain(&myelin, replay, FUNCTIONS, "  worker: { ring: 8192 }");
    up(&myelin, &file);
    wait_for_packets(&myelin, 5000);
    // A status has the counts of the front door from before those of the egress.
    let status = read_status(&myelin);
    assert_eq!(status["packets_in"], 5000);
    assert_eq!(status["bytes_in"], 5000 * 128);
    assert_eq!(status["packets_out"], 5000);
    assert_eq!(status["hops"][1]["packets_in"], 5000);
    assert_eq!(status["sojourn"]["packets"], 5000);
    assert_eq!(status["hook"], "memory");
    assert_eq!(status["ingress"], "replay 20kpps, 128 B");
    assert_eq!(status["egress"], "discard");
    assert_eq!(up(&myelin, &file)[0]["change"], "unchanged");
    // A probe needs end hosts, so other commands measure.
    let summary = myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert!(summary.contains("myelin top"), "{summary}");
    assert!(!summary.contains("myelin probe"), "{summary}");
    let name = myelin.chain_name("r");
    let refused = myelin.run_failing(1, &["probe", &name]);
    assert!(refused.contains("replays packets from memory"), "{refused}");
    assert!(
        refused.contains(&format!("`myelin ps {name}`")),
        "{refused}"
    );
    let other = write_chain(&myelin, "rate: 10kpps", FUNCTIONS, "");
    let refused = myelin.run_failing(1, &["up", other.to_str().unwrap()]);
    assert!(refused.contains("replay"), "{refused}");
    myelin.run_ok(&["down", "--all"]);
}

#[test]
fn a_replay_faster_than_the_front_door_shows_the_packets_that_it_missed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let replay = "rate: 100Mpps, packets: 100000000";
    let file = write_chain(&myelin, replay, FUNCTIONS, "");
    up(&myelin, &file);
    let mut status = Value::Null;
    wait_for("all packets arrive", || {
        status = read_status(&myelin);
        read_count(&status["packets_in"]) + read_count(&status["missed"]) == 100_000_000
    });
    assert!(read_count(&status["missed"]) > 0, "{status}");
    let text = myelin.run_ok(&["ps", &myelin.chain_name("r")]);
    assert!(text.contains("came faster than the front door"), "{text}");
    myelin.run_ok(&["down", "--all"]);
}

#[test]
fn endless_packets_continue_over_a_live_change_and_a_restart() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let first = write_chain(&myelin, "", FUNCTIONS, "  worker: { batch: 32 }");
    up(&myelin, &first);
    let before = wait_for_packets(&myelin, 100_000);
    let second = write_chain(
        &myelin,
        "",
        "{ name: fwd, kind: forward }",
        "  worker: { batch: 32 }",
    );
    let changed = up(&myelin, &second);
    assert_eq!(changed[0]["change"], "changed", "{changed}");
    assert_eq!(changed[0]["generation"], 1);
    let passed = read_count(&before["packets_out"]);
    let after = wait_for_packets(&myelin, passed + 100_000);
    assert_eq!(after["worker"]["restarts"], 0);
    kill(&after["worker"]["pid"]);
    wait_for("the worker restarts", || {
        read_status(&myelin)["worker"]["restarts"] == 1
    });
    let passed = read_count(&read_status(&myelin)["packets_out"]);
    wait_for_packets(&myelin, passed + 100_000);
    myelin.run_ok(&["top", "--count", "1"]);
    myelin.run_ok(&["down", "--all"]);
}

#[test]
fn frames_of_a_file_are_classified_and_policed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let replay = "file: traffic.pcap, rate: recorded, packets: 30000";
    let rest = "  sla: { rate: 2kpps, burst: 8 }\n  worker: { ring: 16384 }";
    let file = write_chain(&myelin, replay, FUNCTIONS, rest);
    let frames = [frame(9000, 60), frame(9001, 90), frame(9000, 1514)];
    write_capture(&file.with_file_name("traffic.pcap"), &frames);
    up(&myelin, &file);
    let mut status = Value::Null;
    // Of three frames, the chain takes two.
    wait_for("all packets arrive", || {
        status = read_status(&myelin);
        status["packets_in"] == 20_000
    });
    let policed = read_count(&status["policed"]);
    // 20 000 packets of 3 s have a profile of about 6000.
    assert!((10_000..19_000).contains(&policed), "{status}");
    wait_for("all packets leave", || {
        status = read_status(&myelin);
        // The shaper drops packets that it would hold too long.
        read_count(&status["packets_out"]) + read_count(&status["drops"]) + policed == 20_000
    });
    let ingress = "replay recorded, traffic.pcap, 1 of 3 frames unmatched";
    assert_eq!(status["ingress"], ingress);
    myelin.run_ok(&["down", "--all"]);
}
