//! Black boxes: programs that Myelin knows nothing of, as functions of a chain.

#[path = "external/boxes.rs"]
mod boxes;
mod common;
#[path = "live/traffic.rs"]
mod traffic;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use boxes::{
    A_WHILE, ECHO, FORWARDER, LONG, arrives, black_box, chain, probe, send, status, wait_for_sleep,
};
use common::{Myelin, is_alive, root, sh, skip_unless_root, skip_without, wait_for};
use traffic::Traffic;

/// The example as it stands, under a name of this instance: real traffic goes through it, whole and
/// in order.
fn the_example_forwards(file: &str, name: &str, position: usize) {
    let myelin = Myelin::new();
    let text = std::fs::read_to_string(root().join("examples").join(file)).expect("it");
    let path = myelin.file(&text.replace(&format!("name: {name} }}"), "name: @e }"));
    let plan = myelin.json(&["plan", path.to_str().unwrap(), "--json"]);
    assert_eq!(plan[0]["mapping"], "distributed");
    assert!(plan[0]["hops"][position]["cost_ns"].is_null(), "{plan}");
    myelin.ok(&["up", path.to_str().unwrap()]);
    for payload in ["64", "1400"] {
        let row = probe(&myelin, "e", payload);
        assert_eq!(
            (&row["lost"], &row["corrupted"]),
            (&0.into(), &0.into()),
            "{row}"
        );
        assert_eq!(row["reordered"], 0, "{row}");
    }
    let status = status(&myelin, "e");
    let sent = status["packets_in"].as_u64().unwrap();
    assert!(sent >= 600, "{status}");
    assert_eq!(status["packets_out"], sent, "{status}");
    let hop = &status["hops"][position];
    assert_eq!(
        (&hop["packets_in"], &hop["drops"]),
        (&sent.into(), &0.into()),
        "{hop}"
    );
    assert_eq!(hop["black_box"]["packets_out"], sent, "{hop}");
    assert_eq!(hop["black_box"]["restarts"], 0, "{hop}");
    assert!(
        status["sojourn"].is_null(),
        "nothing tells the whole: {status}"
    );
    let sections = status["sojourn_sections"].as_array().unwrap();
    assert_eq!(sections.len(), 2);
    for section in sections {
        assert_eq!(section["packets"], sent, "{status}");
        assert!(section["p50_us"].as_f64().unwrap() > 0.0);
    }
    let shown = myelin.ok(&["ps", "-v", &myelin.chain("e")]);
    assert!(
        shown.contains("packets out") && shown.contains(" | "),
        "{shown}"
    );
    let process = hop["black_box"]["pid"].clone();
    let log = hop["black_box"]["log"].as_str().unwrap().to_owned();
    assert!(is_alive(&process) && Path::new(&log).exists());
    myelin.ok(&["down", "--all"]);
    assert!(!is_alive(&process) && !Path::new(&log).exists());
    myelin.assert_clean();
}

#[test]
fn an_unmodified_dpdk_program_is_a_function() {
    if skip_unless_root() || skip_without("dpdk-testpmd") {
        return;
    }
    the_example_forwards("external-dpdk.yaml", "with-testpmd", 1);
}

#[test]
fn a_program_with_packet_sockets_is_a_function() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    the_example_forwards("external-packet.yaml", "with-python", 0);
}

#[test]
fn a_bridge_with_nftables_is_a_function() {
    if skip_unless_root() || skip_without("nft") {
        return;
    }
    the_example_forwards("external-nft.yaml", "with-nft", 0);
}

/// All packets come through it whole; then it goes.
fn assert_carries(myelin: &Myelin, chain: &str, payload: &str) {
    let row = probe(myelin, chain, payload);
    assert_eq!(
        (&row["lost"], &row["corrupted"]),
        (&0.into(), &0.into()),
        "{row}"
    );
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_redirect_of_traffic_control_is_a_function() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let command = "tc qdisc add dev $MYELIN_INGRESS clsact
tc filter add dev $MYELIN_INGRESS ingress protocol all u32 match u32 0 0 action mirred egress redirect dev {egress}
exec sleep infinity";
    let file = myelin.file(&chain("t", 9000, "", command, "1ms"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    wait_for_sleep(&myelin, "t");
    assert_carries(&myelin, "t", "1400");
}

/// The kernel of its namespace routes; `pkttype` is what makes packets for somebody else's Ethernet
/// address its own.
#[test]
fn a_namespace_that_routes_is_a_function() {
    if skip_unless_root() || skip_without("nft") {
        return;
    }
    let myelin = Myelin::beside_others();
    let command = "echo 1 > /proc/sys/net/ipv4/ip_forward
ip addr add 10.0.0.253/32 dev egress
ip route add 10.0.0.2/32 dev egress
ip neigh add 10.0.0.2 lladdr $SERVER dev egress
ip route add 10.0.0.1/32 dev ingress
nft 'add table netdev take; add chain netdev take in { type filter hook ingress device \"ingress\" priority 0; }; add rule netdev take in meta pkttype set host'
exec sleep infinity";
    let plain = myelin.file(&chain("r", 9000, "", "exec sleep infinity", "1ms"));
    let up = myelin.json(&["up", plain.to_str().unwrap(), "--json"]);
    let server = up[0]["hosts"][1]["netns"].as_str().unwrap();
    let mac = sh(&format!(
        "ip -n {server} -o link show eth0 | grep -o 'ether [0-9a-f:]*'"
    ));
    let mac = mac.trim().trim_start_matches("ether ").to_owned();
    let text = chain("r", 9000, "", command, "1ms").replace(
        "        startup",
        &format!("        environment: {{ SERVER: \"{mac}\" }}\n        startup"),
    );
    let file = myelin.file(&text);
    myelin.ok(&["up", file.to_str().unwrap()]);
    wait_for_sleep(&myelin, "r");
    assert_carries(&myelin, "r", "256");
}

#[test]
fn what_it_sends_back_goes_to_the_sender() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(&chain("b", 9000, "", ECHO, "5s"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    let answers = myelin.ok(&[
        "exec",
        "client",
        "--",
        "python3",
        "-c",
        "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
for i in range(10):
    s.sendto(b'%d back' % i, ('10.0.0.2', 9000)); assert s.recv(100) == b'%d back' % i
print('all')",
    ]);
    assert_eq!(answers.trim(), "all");
    let status = status(&myelin, "b");
    assert_eq!(
        status["hops"][0]["black_box"]["packets_back"], 10,
        "{status}"
    );
    assert_eq!(status["hops"][0]["drops"], 0, "{status}");
    assert_eq!(status["packets_out"], 0, "{status}");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_program_that_ends_at_once_is_told_with_its_last_words() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let text = chain(
        "x",
        9000,
        "",
        "echo first; echo no such device >&2; exit 7",
        "5s",
    );
    let file = myelin.file(&text);
    let error = myelin.fails(1, &["up", file.to_str().unwrap()]);
    for part in [
        "yaml:9:",
        "function `box`",
        "exited with status 7",
        "first\n  no such device",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 0);
    let logs = sh(&format!(
        "ls {} | grep -v agent.log | grep 'log$' || true",
        myelin.run_dir().display()
    ));
    assert_eq!(logs, "");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_program_that_is_not_there_is_told_with_where_it_was_looked_for() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let of = |command: &str| {
        let text = chain("n", 9000, "", "", "1s");
        let at = text.find("        command:").expect("it");
        myelin.file(&format!("{}        command: {command}\n", &text[..at]))
    };
    for (command, expected) in [
        (
            "[no-such-program]",
            "program `no-such-program` is not in PATH (/usr/local/sbin:",
        ),
        ("[/nowhere/box]", "program /nowhere/box does not exist"),
        ("[/etc/passwd]", "/etc/passwd is not an executable file"),
    ] {
        let error = myelin.fails(1, &["up", of(command).to_str().unwrap()]);
        assert!(
            error.contains(expected) && error.contains("function `box`"),
            "{error}"
        );
    }
    let error = myelin.fails(2, &["plan", of("[./box]").to_str().unwrap()]);
    assert!(
        error.contains("neither an absolute path nor a plain name"),
        "{error}"
    );
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn it_stands_in_a_namespace_of_its_own_or_nowhere() {
    let myelin = Myelin::beside_others();
    for mapping in ["compact", "pipeline"] {
        let spec = format!("  mapping: {mapping}");
        let file = myelin.file(&chain("m", 9000, &spec, "exec sleep 1", "1s"));
        let error = myelin.fails(2, &["plan", file.to_str().unwrap()]);
        assert!(
            error.contains("yaml:7:") && error.contains("write `mapping: distributed`"),
            "{error}"
        );
    }
    let spec = "  ports: { ingress: { dpdk: net_null0 }, egress: { dpdk: net_null1 } }";
    let file = myelin.file(&chain("m", 9000, spec, "exec sleep 1", "1s"));
    let error = myelin.fails(2, &["plan", file.to_str().unwrap()]);
    assert!(error.contains("a black box needs interfaces"), "{error}");
    let kinds = myelin.json(&["functions", "external", "--json"]);
    let cost = &kinds[0]["user"];
    assert!(
        cost["per_packet_ns"].is_null() && cost["why"].is_string(),
        "{cost}"
    );
    let file = myelin.file(&chain("m", 9000, "", "exec sleep 1", "1s"));
    let plan = myelin.ok(&["plan", "-v", file.to_str().unwrap()]);
    for part in [
        "unknown",
        "`box` is a black box",
        "what happens in `box` is unknown",
    ] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
}

#[test]
fn one_that_ends_is_started_again_until_it_ends_too_often() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    for (on_failure, passes) in [("pass", true), ("drop", false)] {
        let myelin = Myelin::beside_others();
        let spec = format!("  onFailure: {on_failure}");
        let file = myelin.file(&chain("k", 9000, &spec, FORWARDER, "5s"));
        myelin.ok(&["up", file.to_str().unwrap()]);
        for restarts in 1..=3 {
            let pid = black_box(&myelin, "k", 0)["pid"]
                .as_u64()
                .expect("a process");
            sh(&format!("kill -9 {pid}"));
            wait_for("another one", || {
                let now = black_box(&myelin, "k", 0);
                now["restarts"] == restarts && !now["pid"].is_null()
            });
            let now = black_box(&myelin, "k", 0);
            assert_eq!(now["restarts"], restarts);
            assert!(
                now["last_end"].as_str().unwrap().contains("signal 9"),
                "{now}"
            );
        }
        assert!(arrives(&myelin, "k", 9000, LONG), "the last one forwards");
        // The window may have passed meanwhile on a busy machine: then it takes one more.
        wait_for("the end of it", || {
            if let Some(pid) = black_box(&myelin, "k", 0)["pid"].as_u64() {
                sh(&format!("kill -9 {pid} || true"));
            }
            status(&myelin, "k")["state"] == "failed"
        });
        assert_eq!(status(&myelin, "k")["state"], "failed");
        assert!(black_box(&myelin, "k", 0)["pid"].is_null());
        let patience = if passes { LONG } else { A_WHILE };
        assert_eq!(
            arrives(&myelin, "k", 9000, patience),
            passes,
            "onFailure: {on_failure}"
        );
        let error = myelin.fails(
            1,
            &[
                "up",
                myelin
                    .file(&chain("k", 9001, &spec, FORWARDER, "5s"))
                    .to_str()
                    .unwrap(),
            ],
        );
        assert!(error.contains("kept dying"), "{error}");
        myelin.ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

/// What it leaves behind in its namespace forwards without it, but not when the chain drops.
#[test]
fn what_it_set_up_is_cut_off_when_it_is_given_up() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let command = "ip link show br0 >/dev/null 2>&1 || ip link add br0 type bridge
ip link set br0 up
ip link set egress master br0
ip link set ingress master br0
sleep 7332.25 &
exec sleep infinity";
    let file = myelin.file(&chain("c", 9000, "  onFailure: drop", command, "5s"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    assert!(arrives(&myelin, "c", 9000, LONG));
    wait_for("its end", || {
        if let Some(pid) = black_box(&myelin, "c", 0)["pid"].as_u64() {
            sh(&format!("kill -9 {pid} || true"));
        }
        status(&myelin, "c")["state"] == "failed"
    });
    assert_eq!(status(&myelin, "c")["state"], "failed");
    assert!(
        !arrives(&myelin, "c", 9000, A_WHILE),
        "the bridge is still there"
    );
    let left = sh("pgrep -f '^sleep 7332.25' || true");
    assert_eq!(left, "", "what it started lives on");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn one_that_never_reads_loses_its_own_packets_only() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(&chain("s", 9000, "", "exec sleep infinity", "1ms"));
    let other = myelin.file(&chain("o", 9000, "", FORWARDER, "5s"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    myelin.ok(&["up", other.to_str().unwrap()]);
    send(&myelin, "s", 9000, 3000);
    let row = probe(&myelin, "o", "256");
    assert_eq!(row["lost"], 0, "{row}");
    let stuck = status(&myelin, "s");
    assert_eq!(stuck["packets_in"], 3000, "{stuck}");
    assert_eq!(
        (&stuck["drops"], &stuck["packets_out"]),
        (&3000.into(), &0.into()),
        "{stuck}"
    );
    assert_eq!(stuck["hops"][0]["packets_in"], 3000, "{stuck}");
    assert_eq!(stuck["state"], "active", "it runs: {stuck}");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn one_that_spins_is_held_to_its_limit() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let text = chain("s", 9000, "", "while :; do :; done", "1ms").replace(
        "      kind: external",
        "      kind: external\n      limits: { cpu: 0.1cores }",
    );
    let file = myelin.file(&text);
    let other = myelin.file(&chain("o", 9000, "", FORWARDER, "5s"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    myelin.ok(&["up", other.to_str().unwrap()]);
    let used = || black_box(&myelin, "s", 0)["cpu_s"].as_f64().unwrap();
    let (before, start) = (used(), std::time::Instant::now());
    let row = probe(&myelin, "o", "256");
    assert_eq!(row["lost"], 0, "{row}");
    std::thread::sleep(Duration::from_secs(2));
    let share = (used() - before) / start.elapsed().as_secs_f64();
    assert!(share < 0.2, "{share} of a core");
    let limit = status(&myelin, "s")["hops"][0]["sandbox"]["cpu_limit_cores"].as_f64();
    assert_eq!(limit, Some(0.1));
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn what_nobody_can_read_is_dropped_once() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    // The first ten become something that is no IP packet.
    let command = FORWARDER
        .replace("while True:", "n = 0\nwhile True:")
        .replace(
            "        b.send(frame)",
            "        n += 1
        b.send(frame if n > 10 else frame[:12] + b\"\\x12\\x34\" + frame[14:])",
        );
    let myelin = Myelin::new();
    let file = myelin.file(&chain("u", 9000, "", &command, "30s"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    send(&myelin, "u", 9000, 12);
    // In their order, so the others are out too.
    let packets_out = || black_box(&myelin, "u", 0)["packets_out"].clone();
    wait_for("the last two", || packets_out() == 2);
    let status = status(&myelin, "u");
    assert_eq!(status["hops"][0]["packets_in"], 12, "{status}");
    assert_eq!(status["hops"][0]["drops"], 10, "{status}");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Starts `up` for a black box that takes its time, and waits until that one is being waited for.
fn begin_up(myelin: &Myelin, file: &Path) -> Child {
    let client = myelin
        .command(&["up", file.to_str().unwrap()])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a client");
    let is_begun = || !sh("pgrep -f '^sleep 7333.25' || true").is_empty();
    wait_for("the program", is_begun);
    assert!(is_begun());
    client
}

#[test]
fn a_wait_for_a_program_is_called_off() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::beside_others();
    let file = myelin.file(&chain("w", 9000, "", "exec sleep 7333.25", "60s"));
    // By the end of the client: else the chain would be up when `ps` gets its turn.
    let mut client = begin_up(&myelin, &file);
    client.kill().expect("kill");
    let _ = client.wait();
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 0);
    // By a client that removes everything, or stops the agent.
    for stops in [false, true] {
        let client = begin_up(&myelin, &file);
        if stops {
            sh(&format!("kill -TERM {}", myelin.agent_pid()));
        } else {
            myelin.ok(&["down", "--all"]);
        }
        let output = client.wait_with_output().expect("its end");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains("function `box`") && error.contains("cancelled"),
            "{error}"
        );
        myelin.assert_clean();
    }
}

/// Make before break: the next generation has a black box of its own, and no packet is lost.
#[test]
fn a_chain_is_changed_around_its_black_box_under_traffic() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let form = |key: u8| {
        let text = chain("l", 9000, "", FORWARDER, "10s");
        let after =
            format!("    - {{ name: key, kind: xor, space: kernel, config: {{ key: {key} }} }}\n");
        myelin.file(&(text + &after))
    };
    let bring = |key: u8| myelin.json(&["up", form(key).to_str().unwrap(), "--json"])[0].clone();
    let traffic = Traffic::start(&bring(1), 9000);
    traffic.wait_for_packets(100);
    let first = black_box(&myelin, "l", 0)["pid"].clone();
    for key in [2, 4, 8] {
        let changed = bring(key);
        assert_eq!(changed["change"], "changed", "{changed}");
        traffic.wait_for_packets(300);
    }
    let (sent, arrivals) = traffic.stop();
    assert_eq!((arrivals.damaged, arrivals.duplicates), (0, 0));
    assert_eq!(arrivals.keys.len() as u64, sent, "packets were lost");
    let seen: std::collections::BTreeSet<u8> = arrivals.keys.into_values().collect();
    assert_eq!(seen, [1, 2, 4, 8].into());
    assert!(!is_alive(&first), "the one of the first generation is gone");
    let status = status(&myelin, "l");
    assert_eq!(status["packets_in"], sent, "{status}");
    assert_eq!(
        status["sojourn_sections"][1]["packets"], sent,
        "of all generations"
    );
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_change_whose_black_box_does_not_come_up_leaves_the_chain_as_it_was() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::beside_others();
    let good = myelin.file(&chain("g", 9000, "", FORWARDER, "5s"));
    myelin.ok(&["up", good.to_str().unwrap()]);
    let before = black_box(&myelin, "g", 0)["pid"].clone();
    let bad = myelin.file(&chain("g", 9000, "", "exit 3", "5s"));
    let error = myelin.fails(1, &["up", bad.to_str().unwrap()]);
    assert!(
        error.contains("exited with status 3") && error.contains("it wrote nothing"),
        "{error}"
    );
    assert_eq!(black_box(&myelin, "g", 0)["pid"], before);
    assert!(arrives(&myelin, "g", 9000, LONG));
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn it_goes_on_without_its_agent_and_is_removed_with_what_it_started() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::beside_others();
    let command = format!("sleep 7331.25 &\n{FORWARDER}");
    let file = myelin.file(&chain("a", 9000, "", &command, "5s"));
    myelin.ok(&["up", file.to_str().unwrap()]);
    let black_box = black_box(&myelin, "a", 0);
    let child = sh("pgrep -f '^sleep 7331.25'");
    myelin.kill_agent();
    assert!(arrives(&myelin, "a", 9000, LONG));
    assert!(is_alive(&black_box["pid"]));
    let text = myelin.ok(&["down", "--all"]);
    assert!(text.contains("recovered"), "{text}");
    assert!(!is_alive(&black_box["pid"]));
    assert!(
        !is_alive(&child.trim().parse::<u64>().unwrap().into()),
        "its child"
    );
    assert!(!Path::new(black_box["log"].as_str().unwrap()).exists());
    myelin.assert_clean();
}
