//! The SLA monitor accounts for each packet of a chain, and its events name the hop and the cause
//! of a violation.

mod common;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Myelin, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

/// A policed chain. The limits of latency and loss are wide, for a busy machine. The rate is so low
/// that a worker without a core for seconds loses no packet.
const PROFILE: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @p }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions:
    - { name: filter, kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] } }
    - { name: coder, kind: xor, space: SPACE, config: { key: 0x21 } }
  sla: { rate: 100pps, burst: 8, latency: 10s, percentile: 50, loss: 5%, enforce: policer }
";

/// A chain whose firewall drops all packets.
const WALL: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @w }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions:
    - { name: first, kind: forward }
    - { name: wall, kind: firewall, config: { rules: [ { action: deny, source: 0.0.0.0/0 } ] } }
  sla: { latency: 10s, loss: 1% }
";

/// A thread that sends up to ten packets a millisecond from the client to the server. Dropping the
/// sender stops the thread.
struct Sender {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sender {
    fn start(up: &Value) -> Self {
        let host = |at: usize| {
            let host = &up["hosts"][at];
            let address = host["address"].as_str().expect("the host has an address");
            let netns = host["netns"].as_str().expect("the host has a namespace");
            (
                Netns::open(netns).expect("the host has a namespace"),
                address.parse().expect("the host has an address"),
            )
        };
        let ((client, from), (_, to)) = (host(0), host(1));
        let socket = client
            .enter(|| UdpSocket::bind(SocketAddr::new(from, 0)))
            .expect("the thread enters the namespace")
            .expect("the socket binds");
        let stop = Arc::new(AtomicBool::new(false));
        let stop_requested = Arc::clone(&stop);
        let to = SocketAddr::new(to, 9000);
        let thread = std::thread::spawn(move || {
            while !stop_requested.load(Ordering::Relaxed) {
                for _ in 0..10 {
                    // No socket listens, so ICMP errors arrive and some calls fail.
                    let _ = socket.send_to(&[0; 64], to);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read_count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Sums the packets that the SLA monitor counts as lost, over all places.
fn sum_lost_packets(window: &Value) -> u64 {
    let places = window["lost"]
        .as_object()
        .expect("the losses are an object");
    places.values().map(read_count).sum()
}

/// Asserts that the account has each packet once: as out, policed, dropped, lost, or still in the
/// chain (`under_way`).
fn assert_account_adds_up(status: &Value) {
    let account = &status["account"];
    let count = |key: &str| read_count(&account[key]);
    let places = |key: &str| {
        account[key]
            .as_object()
            .expect("the losses are an object")
            .values()
            .map(read_count)
            .sum::<u64>()
    };
    let other_packets = ["packets_out", "policed", "under_way"]
        .map(count)
        .iter()
        .sum::<u64>();
    let dropped_or_lost = places("dropped") + places("lost");
    assert_eq!(
        count("packets_in") + count("made"),
        other_packets + dropped_or_lost,
        "{account}"
    );
    assert_eq!(account["packets_in"], status["packets_in"], "{status}");
}

#[test]
fn packets_that_a_full_ring_loses_are_in_the_account() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let text = PROFILE
        .replace("SPACE", "user")
        .replace("rate: 100pps, burst: 8, ", "");
    let file = myelin.write_file(&text.replace(", enforce: policer", ""));
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let worker = read_count(&myelin.read_status("p")["worker"]["pid"]);
    common::sh(&format!("kill -STOP {worker}"));
    let sender = Sender::start(&up[0]);
    wait_for("packets lost at the ring", || {
        let status = myelin.read_status("p");
        assert_account_adds_up(&status);
        status["account"]["lost"]["ring"].as_u64() > Some(0)
    });
    common::sh(&format!("kill -CONT {worker}"));
    drop(sender);
    wait_for("an empty ring", || {
        myelin.read_status("p")["account"]["under_way"] == 0
    });
    let status = myelin.read_status("p");
    assert_account_adds_up(&status);
    let lost = read_count(&status["account"]["lost"]["ring"]);
    let text = myelin.run_ok(&["ps"]);
    assert!(text.contains(&format!("{lost} ring")), "{text}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn packets_above_the_profile_count_as_policed_and_not_as_lost() {
    if skip_unless_root() {
        return;
    }
    for space in ["kernel", "user"] {
        let myelin = Myelin::new();
        let file = myelin.write_file(&PROFILE.replace("SPACE", space));
        let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
        let sender = Sender::start(&up[0]);
        wait_for("two judged seconds", || {
            myelin.read_status("p")["sla"]["judged_s"].as_u64() >= Some(2)
        });
        drop(sender);
        // The account of the next second has the last packets.
        wait_for("the last second", || {
            let status = myelin.read_status("p");
            status["sla"]["life"]["packets_in"] == status["packets_in"]
                && status["sla"]["under_way"] == 0
        });
        let status = myelin.read_status("p");
        let (sla, life) = (&status["sla"], &status["sla"]["life"]);
        assert!(read_count(&life["policed"]) > 0, "{space}: {status}");
        assert_eq!(life["policed"], status["policed"], "{space}: {status}");
        assert_eq!(
            status["account"]["policed"], status["policed"],
            "{space}: {status}"
        );
        assert_account_adds_up(&status);
        assert_eq!(status["account"]["under_way"], 0, "{space}: {status}");
        assert_eq!(sum_lost_packets(life), 0, "{space}: {status}");
        assert_eq!(life["loss_percent"], 0.0, "{space}: {status}");
        assert_eq!(
            read_count(&life["packets_in"]),
            read_count(&life["policed"]) + read_count(&life["packets_out"]),
            "{space}: {status}"
        );
        assert_eq!(
            life["sojourn"]["packets"], life["packets_out"],
            "{space}: {status}"
        );
        assert_eq!(sla["state"], "kept", "{space}: {status}");
        assert_eq!(sla["contract"]["rate_pps"], 100);
        assert_eq!(sla["contract"]["burst_packets"], 8);
        assert_eq!(
            myelin.run_json(&["events", "--json"]),
            Value::Array(Vec::new()),
            "{space}"
        );
        let text = myelin.run_ok(&["ps", "-v", &myelin.chain_name("p")]);
        assert!(
            text.contains("kept") && text.contains("burst 8 packets"),
            "{text}"
        );
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

#[test]
fn an_event_names_the_hop_and_the_cause_of_a_violation() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(WALL);
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let chain = myelin.chain_name("w");
    let mut follow = myelin
        .command(&["events", &chain, "--follow", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let sender = Sender::start(&up[0]);
    let event = || myelin.read_status("w")["sla"]["last_event"].clone();
    wait_for("a violation that lasts", || {
        event()["seconds"].as_u64() >= Some(2)
    });
    let text = myelin.run_ok(&["ps", "-v", &chain]);
    assert!(text.contains("violated"), "{text}");
    drop(sender);
    wait_for("the end of the event", || event()["end"].is_string());
    let events = myelin.run_json(&["events", &chain, "--json"]);
    assert_eq!(events.as_array().map(Vec::len), Some(1), "{events}");
    let first = &events[0];
    assert_eq!(first["cause"], "function", "{first}");
    assert_eq!(first["hop"], "wall", "{first}");
    assert_eq!(first["terms"], serde_json::json!(["loss"]), "{first}");
    assert_eq!(first["worst_loss_percent"], 100.0, "{first}");
    let status = myelin.read_status("w");
    let life = &status["sla"]["life"];
    assert_eq!(life["lost_in"]["wall"], status["packets_in"], "{status}");
    assert_eq!(
        sum_lost_packets(life),
        read_count(&status["packets_in"]),
        "{status}"
    );
    assert_eq!(
        status["account"]["dropped"]["wall"], status["packets_in"],
        "{status}"
    );
    assert_account_adds_up(&status);
    assert_eq!(status["account"]["under_way"], 0, "{status}");
    let text = myelin.run_ok(&["events"]);
    assert!(text.contains("cause function, hop wall"), "{text}");
    // `--follow` prints the event at its beginning and at its end.
    let mut lines = BufReader::new(follow.stdout.take().expect("standard output is piped")).lines();
    for has_ended in [false, true] {
        let line = lines
            .next()
            .expect("the command prints an event")
            .expect("a line is readable");
        let event: Value = serde_json::from_str(&line).expect("the output is JSON");
        assert_eq!(event["serial"], events[0]["serial"]);
        assert_eq!(event["end"].is_string(), has_ended, "{event}");
    }
    let _ = follow.kill();
    let _ = follow.wait();
    // A chain that is deployed again starts with an empty account.
    myelin.run_ok(&["down", &chain]);
    let error = myelin.run_failing(1, &["events", &chain]);
    assert!(error.contains("myelin ps"), "{error}");
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    wait_for("the first second of the chain", || {
        myelin.read_status("w")["sla"].is_object()
    });
    assert_eq!(myelin.read_status("w")["sla"]["state"], "kept");
    assert_eq!(myelin.read_status("w")["sla"]["life"]["packets_in"], 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn ps_seconds_shows_each_of_the_last_seconds() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&PROFILE.replace("SPACE", "kernel"));
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let chain = myelin.chain_name("p");
    let sender = Sender::start(&up[0]);
    wait_for("three judged seconds", || {
        myelin.read_status("p")["sla"]["judged_s"].as_u64() >= Some(3)
    });
    drop(sender);
    wait_for("the last second", || {
        let status = myelin.read_status("p");
        status["sla"]["life"]["packets_in"] == status["packets_in"]
            && status["sla"]["under_way"] == 0
    });
    let life = myelin.read_status("p")["sla"]["life"].clone();
    let all = myelin.run_json(&["ps", &chain, "--seconds", "--json"]);
    let all = all.as_array().expect("the JSON is a list");
    assert!(all.len() >= 3, "{all:?}");
    for count in ["packets_in", "policed", "packets_out"] {
        let sum: u64 = all.iter().map(|second| read_count(&second[count])).sum();
        assert_eq!(sum, read_count(&life[count]), "{count}: {all:?}");
    }
    let ends: Vec<_> = all
        .iter()
        .map(|second| second["end"].as_str().unwrap())
        .collect();
    assert!(ends.is_sorted(), "{ends:?}");
    let last = myelin.run_json(&["ps", &chain, "--seconds", "2", "--json"]);
    let last = last.as_array().expect("the JSON is a list");
    assert_eq!(last.len(), 2);
    assert!(last[0]["end"].as_str() >= Some(ends[ends.len() - 2]));
    let text = myelin.run_ok(&["ps", &chain, "--seconds"]);
    assert!(
        text.contains("policed") && text.contains(&ends[0][11..19]),
        "{text}"
    );
    let error = myelin.run_failing(1, &["ps", "missing", "--seconds"]);
    assert!(error.contains("missing"), "{error}");
    myelin.run_failing(2, &["ps", "--seconds", "3"]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_account_continues_over_a_live_change() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&PROFILE.replace("SPACE", "kernel"));
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let sender = Sender::start(&up[0]);
    wait_for("a judged second", || {
        myelin.read_status("p")["sla"]["judged_s"].as_u64() >= Some(1)
    });
    let before = myelin.read_status("p")["sla"]["life"]["packets_in"].clone();
    let file = myelin.write_file(&PROFILE.replace("SPACE", "user"));
    let changed = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    assert_eq!(changed[0]["change"], "changed");
    let judged = read_count(&myelin.read_status("p")["sla"]["judged_s"]);
    wait_for("two more seconds", || {
        myelin.read_status("p")["sla"]["judged_s"].as_u64() >= Some(judged + 2)
    });
    drop(sender);
    wait_for("the last second", || {
        let status = myelin.read_status("p");
        status["sla"]["life"]["packets_in"] == status["packets_in"]
            && status["sla"]["under_way"] == 0
    });
    let status = myelin.read_status("p");
    let life = &status["sla"]["life"];
    assert!(life["packets_in"].as_u64() > before.as_u64(), "{status}");
    assert_eq!(sum_lost_packets(life), 0, "{status}");
    assert_eq!(status["sla"]["state"], "kept", "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn top_prints_the_chains_at_each_interval() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    assert_eq!(myelin.run_ok(&["top", "--count", "1"]), "no chain runs\n");
    let file = myelin.write_file(&PROFILE.replace("SPACE", "user"));
    let up = myelin.run_json(&["up", file.to_str().unwrap(), "--json"]);
    let sender = Sender::start(&up[0]);
    let chain = myelin.chain_name("p");
    wait_for("a second", || {
        myelin.read_status("p")["sla"]["judged_s"].as_u64() >= Some(1)
    });
    let text = myelin.run_ok(&[
        "top",
        &chain,
        "--count",
        "2",
        "--interval",
        "1500ms",
        "--json",
    ]);
    let samples: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("the output is JSON"))
        .collect();
    assert_eq!(samples.len(), 2);
    for sample in &samples {
        let status = &sample["chains"][0];
        assert_eq!(status["chain"], chain.as_str());
        assert_eq!(status["mapping"], "compact");
        assert!(
            status["sla"]["second"]["in_pps"].as_f64() > Some(0.0),
            "{status}"
        );
        assert!(status["sla"]["second"]["worker_cores"].is_f64(), "{status}");
    }
    assert!(samples[0]["at_unix_s"].as_f64() < samples[1]["at_unix_s"].as_f64());
    let text = myelin.run_ok(&["top", "--count", "1"]);
    assert!(
        text.contains("POLICED/s") && text.contains(&chain),
        "{text}"
    );
    myelin.run_failing(1, &["top", "missing", "--count", "1"]);
    drop(sender);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
