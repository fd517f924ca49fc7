//! Mapping `distributed`: each function runs in its own network namespace.

mod common;

use std::time::Duration;

use common::traffic::Traffic;
use common::{Myelin, repository_root, sh, skip_unless_root, skip_without, wait_for};

const KERNEL: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @k }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  mapping: distributed
  functions:
    - { name: fw, kind: firewall, space: kernel, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] } }
    - { name: one, kind: xor, space: kernel, config: { key: 0x21 } }
    - { name: two, kind: xor, space: kernel, config: { key: 0x21 } }
";

const MIXED: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @m }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  mapping: distributed
  functions:
    - { name: one, kind: xor, space: kernel, config: { key: 0x21 } }
    - { name: two, kind: xor, space: user, config: { key: 0x43 } }
    - { name: three, kind: xor, space: kernel, config: { key: 0x62 } }
    - { name: four, kind: forward, space: user }
";

fn read_status(myelin: &Myelin) -> serde_json::Value {
    myelin.run_json(&["ps", "--json"])[0].clone()
}

/// Asserts that each function took each packet, dropped no packet, and that all packets have left.
fn assert_all_packets_counted(status: &serde_json::Value, min_packets: u64) {
    let sent = status["packets_in"].as_u64().unwrap();
    assert!(sent >= min_packets, "{status}");
    for hop in status["hops"].as_array().unwrap() {
        assert_eq!(hop["packets_in"].as_u64(), Some(sent), "{hop}");
        assert_eq!(hop["drops"], 0, "{hop}");
    }
    assert_eq!(status["packets_out"].as_u64(), Some(sent), "{status}");
    assert_eq!(status["sojourn"]["packets"].as_u64(), Some(sent));
    assert!(status["sojourn"]["p50_us"].as_f64().unwrap() > 0.0);
}

/// Sends `count` datagrams to an echo server on the server host; returns `all` if all return.
fn echo_packets(myelin: &Myelin, chain: &str, count: u32) -> String {
    let chain = myelin.chain_name(chain);
    let ready = myelin.run_dir().with_extension("ready");
    let _ = std::fs::remove_file(&ready);
    let ready = ready.display();
    sh(&format!(
        "ip netns exec myelin-{chain}-server timeout 240 python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.0.0.2', 9000)); s.settimeout(120)
open('{ready}', 'w')
for i in range({count}):
    d, a = s.recvfrom(2000); s.sendto(d, a)\" &
         for i in $(seq 600); do [ -e {ready} ] && break; sleep 0.1; done
         timeout 120 ip netns exec myelin-{chain}-client python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
for i in range({count}):
    m = b'%d through' % i
    s.sendto(m, ('10.0.0.2', 9000)); assert s.recv(2000) == m
print('all')\"
         wait"
    ))
}

#[test]
fn kernel_functions_run_in_their_own_namespaces_at_tcx() {
    assert_kernel_functions_at("tcx", KERNEL);
}

#[test]
fn kernel_functions_run_in_their_own_namespaces_at_xdp() {
    assert_kernel_functions_at(
        "xdp",
        &KERNEL.replace("  mapping:", "  hook: xdp\n  mapping:"),
    );
}

fn assert_kernel_functions_at(hook: &str, text: &str) {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(text);
    let plan = myelin.run_json(&["plan", file.to_str().unwrap(), "--json"]);
    assert_eq!(plan[0]["mapping"], "distributed", "{plan}");
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    for function in ["fw", "one", "two"] {
        let links = sh(&format!(
            "ip -n myelin-{}.{function}.0 -o link show up",
            myelin.chain_name("k")
        ));
        assert!(links.contains("eth0"), "{links}");
        assert_eq!(links.contains("xdp"), hook == "xdp", "{links}");
    }
    for payload in [64, 1400] {
        let row = myelin.probe("k", payload, 400);
        assert_eq!(
            (&row["lost"], &row["corrupted"]),
            (&0.into(), &0.into()),
            "{row}"
        );
    }
    let status = read_status(&myelin);
    assert_eq!(status["mapping"], "distributed");
    assert_eq!(status["hook"], hook);
    assert_all_packets_counted(&status, 800);
    myelin.run_ok(&["down", &myelin.chain_name("k")]);
    assert_eq!(
        sh("ip netns list")
            .lines()
            .filter(|line| line.contains(&myelin.chain_name("k")))
            .count(),
        0
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn functions_of_both_spaces_run_in_their_own_namespaces() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(MIXED);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    // The XOR of the three keys is 0, so the server must receive the original payload.
    for payload in [64, 1400] {
        let row = myelin.probe("m", payload, 400);
        assert_eq!(
            (&row["lost"], &row["corrupted"]),
            (&0.into(), &0.into()),
            "{row}"
        );
    }
    let before = read_status(&myelin);
    assert_all_packets_counted(&before, 800);
    let first = before["worker"]["pid"].as_i64().unwrap();
    let second = before["more_workers"][0]["pid"].as_i64().unwrap();
    assert_ne!(first, second, "each user function has its own worker");

    sh(&format!("kill -9 {first}"));
    wait_for("a new worker", || {
        read_status(&myelin)["worker"]["restarts"] == 1
    });
    assert_eq!(read_status(&myelin)["worker"]["restarts"], 1);
    assert_eq!(read_status(&myelin)["more_workers"][0]["restarts"], 0);
    assert_eq!(myelin.probe("m", 256, 400)["lost"], 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_distributed_chain_carries_packets_after_its_agent_is_killed() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(MIXED);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    myelin.kill_agent();
    assert_eq!(echo_packets(&myelin, "m", 20).trim(), "all");
    let text = myelin.run_ok(&["down", "--all"]);
    assert!(text.contains("recovered"), "{text}");
    myelin.assert_clean();
}

#[test]
fn down_all_cleans_up_after_an_agent_killed_while_it_makes_namespaces() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(MIXED);
    for delay_ms in [2, 6, 10, 15, 20, 26, 33, 41, 50, 70] {
        myelin.kill_agent_during_up(&file, Duration::from_millis(delay_ms));
    }
}

#[test]
fn on_failure_pass_bypasses_a_chain_whose_worker_keeps_dying() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let pass = MIXED
        .replace("0x43", "0x63")
        .replace("  mapping:", "  onFailure: pass\n  mapping:");
    let file = myelin.write_file(&pass);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    myelin.kill_until_failed("m", |status| status["worker"].clone());
    // The XOR of the keys is not 0, so the payload is unchanged only if packets bypass the chain.
    assert_eq!(echo_packets(&myelin, "m", 3).trim(), "all");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// The reply of a user function leaves over its own link and bypasses the functions before it.
#[test]
fn a_router_in_a_namespace_sends_time_exceeded_to_the_sender() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @r }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  mapping: distributed
  functions:
    - { name: first, kind: forward, space: kernel }
    - name: core
      kind: router
      space: user
      config: { routes: [ { prefix: 10.0.0.0/24 } ], addresses: [ 10.0.0.254 ] }
",
    );
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    // Reads source, type and code of the message from the socket's error queue (IP_RECVERR is 11,
    // MSG_ERRQUEUE 0x2000).
    let answer = myelin.run_ok(&[
        "exec",
        "client",
        "--",
        "python3",
        "-c",
        "
import select, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
s.setsockopt(socket.IPPROTO_IP, 11, 1)
s.sendto(b'x' * 100, ('10.0.0.2', 9000))
poll = select.poll()
poll.register(s, 0)
poll.poll(60000)
_, ancillary, _, _ = s.recvmsg(2048, 512, 0x2000)
error = ancillary[0][2]
print(socket.inet_ntoa(error[20:24]), error[5], error[6])
",
    ]);
    assert_eq!(answer.trim(), "10.0.0.254 11 0");
    let status = read_status(&myelin);
    assert_eq!(status["hops"][1]["drops"], 1, "{status}");
    assert_eq!(status["packets_out"], 0, "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Make before break: the namespaces of two generations exist at the same time.
#[test]
fn live_changes_between_mappings_lose_no_packet() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let variant = |mapping: &str, functions: [(&str, u8); 2]| {
        let [(one, first), (two, second)] = functions;
        let text = format!(
            "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @c }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}
  mapping: {mapping}
  functions:
    - {{ name: a, kind: xor, space: {one}, config: {{ key: {first} }} }}
    - {{ name: b, kind: xor, space: {two}, config: {{ key: {second} }} }}
"
        );
        (myelin.write_file(&text), first ^ second)
    };
    // No mixture of functions of two variants has the XOR of a variant.
    let variants = [
        variant("compact", [("kernel", 0x01), ("kernel", 0x02)]),
        variant("distributed", [("kernel", 0x04), ("kernel", 0x08)]),
        variant("distributed", [("user", 0x10), ("kernel", 0x20)]),
        variant("distributed", [("user", 0x40), ("user", 0x80)]),
        variant("compact", [("user", 0x11), ("kernel", 0x44)]),
    ];
    let deploy = |at: usize| {
        let (file, _) = &variants[at % variants.len()];
        myelin.run_json(&["up", file.to_str().unwrap(), "--json"])[0].clone()
    };
    let traffic = Traffic::start(&deploy(0), 9000);
    traffic.wait_for_packets(100);
    for at in 1..=2 * variants.len() {
        let changed = deploy(at);
        assert_eq!(changed["change"], "changed", "{changed}");
        assert_eq!(changed["generation"], at);
        traffic.wait_for_packets(500);
    }
    let (sent, arrivals) = traffic.stop();
    assert_eq!((arrivals.damaged, arrivals.duplicates), (0, 0));
    assert_eq!(arrivals.keys.len() as u64, sent, "packets were lost");
    let observed_keys: std::collections::BTreeSet<u8> = arrivals.keys.into_values().collect();
    let expected = variants.iter().map(|(_, key)| *key).collect();
    assert_eq!(
        observed_keys, expected,
        "each packet passed one variant, and each variant had packets"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_tcx_hook_is_refused_for_user_functions() {
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(&MIXED.replace("  mapping:", "  hook: tcx\n  mapping:"));
    let error = myelin.run_failing(2, &["plan", file.to_str().unwrap()]);
    assert!(error.contains("write `hook: xdp`"), "{error}");
}

#[test]
fn the_distributed_example_carries_packets() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let text = std::fs::read_to_string(repository_root().join("examples/distributed.yaml"))
        .expect("the example is readable");
    let file = myelin.write_file(&text.replace("name: distributed }", "name: @e }"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert_eq!(myelin.probe("e", 256, 400)["lost"], 0);
    assert_all_packets_counted(&read_status(&myelin), 400);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
