//! Black boxes: programs of other authors as functions of a chain.

#[path = "external/boxes.rs"]
mod boxes;
mod common;

use std::path::Path;
use std::process::{Child, Stdio};

use boxes::{
    ECHO, FORWARDER, LOSS_WAIT, STARTUP_WAIT, can_reach_server, format_chain, probe,
    read_black_box, read_status, send, wait_for_sleep,
};
use common::traffic::Traffic;
use common::{Myelin, is_alive, repository_root, sh, skip_unless_root, skip_without, wait_for};

/// Formats the argument of a `sleep` that only this test process starts.
fn unique_sleep(seconds: u32) -> String {
    format!("{seconds}.{}", std::process::id())
}

/// Asserts that an example deploys and that its black box forwards all packets in order.
fn assert_example_forwards(file: &str, name: &str, position: usize) {
    let myelin = Myelin::new();
    let text = std::fs::read_to_string(repository_root().join("examples").join(file))
        .expect("the example is readable");
    let path = myelin.write_file(&text.replace(&format!("name: {name} }}"), "name: @e }"));
    let plan = myelin.run_json(&["plan", path.to_str().unwrap(), "--json"]);
    assert_eq!(plan[0]["mapping"], "distributed");
    assert!(plan[0]["hops"][position]["cost_ns"].is_null(), "{plan}");
    myelin.run_ok(&["up", path.to_str().unwrap()]);
    for payload in ["64", "1400"] {
        let row = probe(&myelin, "e", payload);
        assert_eq!(
            (&row["lost"], &row["corrupted"]),
            (&0.into(), &0.into()),
            "{row}"
        );
        assert_eq!(row["reordered"], 0, "{row}");
    }
    let status = read_status(&myelin, "e");
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
        "sections replace the total: {status}"
    );
    let sections = status["sojourn_sections"].as_array().unwrap();
    assert_eq!(sections.len(), 2);
    for section in sections {
        assert_eq!(section["packets"], sent, "{status}");
        assert!(section["p50_us"].as_f64().unwrap() > 0.0);
    }
    let shown = myelin.run_ok(&["ps", "-v", &myelin.chain_name("e")]);
    assert!(
        shown.contains("packets out") && shown.contains(" | "),
        "{shown}"
    );
    let process = hop["black_box"]["pid"].clone();
    let log = hop["black_box"]["log"].as_str().unwrap().to_owned();
    assert!(is_alive(&process) && Path::new(&log).exists());
    myelin.run_ok(&["down", "--all"]);
    assert!(!is_alive(&process) && !Path::new(&log).exists());
    myelin.assert_clean();
}

#[test]
fn testpmd_forwards_as_a_black_box() {
    if skip_unless_root() || skip_without("dpdk-testpmd") {
        return;
    }
    assert_example_forwards("external-dpdk.yaml", "with-testpmd", 1);
}

#[test]
fn a_program_with_packet_sockets_forwards_as_a_black_box() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    assert_example_forwards("external-packet.yaml", "with-python", 0);
}

#[test]
fn a_bridge_with_nftables_forwards_as_a_black_box() {
    if skip_unless_root() || skip_without("nft") {
        return;
    }
    assert_example_forwards("external-nft.yaml", "with-nft", 0);
}

/// Asserts that the chain loses and corrupts no packet, then removes it.
fn assert_no_loss_and_remove(myelin: &Myelin, chain: &str, payload: &str) {
    let row = probe(myelin, chain, payload);
    assert_eq!(
        (&row["lost"], &row["corrupted"]),
        (&0.into(), &0.into()),
        "{row}"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_tc_redirect_forwards_as_a_black_box() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let command = "tc qdisc add dev $MYELIN_INGRESS clsact
tc filter add dev $MYELIN_INGRESS ingress protocol all u32 match u32 0 0 action mirred egress redirect dev {egress}
exec sleep infinity";
    let file = myelin.write_file(&format_chain("t", 9000, "", command, "1ms"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    wait_for_sleep(&myelin, "t");
    assert_no_loss_and_remove(&myelin, "t", "1400");
}

/// The kernel routes only packets to the Ethernet address of the interface. `meta pkttype set host`
/// makes the kernel accept packets to other addresses.
#[test]
fn kernel_routing_in_the_namespace_forwards_as_a_black_box() {
    if skip_unless_root() || skip_without("nft") {
        return;
    }
    let myelin = Myelin::new_shared();
    let command = "echo 1 > /proc/sys/net/ipv4/ip_forward
ip addr add 10.0.0.253/32 dev egress
ip route add 10.0.0.2/32 dev egress
ip neigh add 10.0.0.2 lladdr $SERVER dev egress
ip route add 10.0.0.1/32 dev ingress
nft 'add table netdev take; add chain netdev take in { type filter hook ingress device \"ingress\" priority 0; }; add rule netdev take in meta pkttype set host'
exec sleep infinity";
    let plain = myelin.write_file(&format_chain("r", 9000, "", "exec sleep infinity", "1ms"));
    let up = myelin.run_json(&["up", plain.to_str().unwrap(), "--json"]);
    let server = up[0]["hosts"][1]["netns"].as_str().unwrap();
    let mac = sh(&format!(
        "ip -n {server} -o link show eth0 | grep -o 'ether [0-9a-f:]*'"
    ));
    let mac = mac.trim().trim_start_matches("ether ").to_owned();
    let text = format_chain("r", 9000, "", command, "1ms").replace(
        "        startup",
        &format!("        environment: {{ SERVER: \"{mac}\" }}\n        startup"),
    );
    let file = myelin.write_file(&text);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    wait_for_sleep(&myelin, "r");
    assert_no_loss_and_remove(&myelin, "r", "256");
}

#[test]
fn replies_of_a_black_box_reach_the_sender() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(&format_chain("b", 9000, "", ECHO, "60s"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let answers = myelin.run_ok(&[
        "exec",
        "client",
        "--",
        "python3",
        "-c",
        "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
for i in range(10):
    s.sendto(b'%d back' % i, ('10.0.0.2', 9000)); assert s.recv(100) == b'%d back' % i
print('all')",
    ]);
    assert_eq!(answers.trim(), "all");
    let status = read_status(&myelin, "b");
    assert_eq!(
        status["hops"][0]["black_box"]["packets_back"], 10,
        "{status}"
    );
    assert_eq!(status["hops"][0]["drops"], 0, "{status}");
    assert_eq!(status["packets_out"], 0, "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn up_shows_the_last_output_of_a_program_that_ends_at_once() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let text = format_chain(
        "x",
        9000,
        "",
        "echo first; echo no such device >&2; exit 7",
        "5s",
    );
    let file = myelin.write_file(&text);
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    for part in [
        "yaml:9:",
        "function `box`",
        "exited with status 7",
        "first\n  no such device",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        0
    );
    let logs = sh(&format!(
        "ls {} | grep -v agent.log | grep 'log$' || true",
        myelin.run_dir().display()
    ));
    assert_eq!(logs, "");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn up_names_a_missing_program_and_the_search_path() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let write_file_with_command = |command: &str| {
        let text = format_chain("n", 9000, "", "", "1s");
        let at = text
            .find("        command:")
            .expect("the text has a command");
        myelin.write_file(&format!("{}        command: {command}\n", &text[..at]))
    };
    for (command, expected) in [
        (
            "[no-such-program]",
            "program `no-such-program` is not in PATH (/usr/local/sbin:",
        ),
        ("[/nowhere/box]", "program /nowhere/box does not exist"),
        ("[/etc/passwd]", "/etc/passwd is not an executable file"),
    ] {
        let error = myelin.run_failing(
            1,
            &["up", write_file_with_command(command).to_str().unwrap()],
        );
        assert!(
            error.contains(expected) && error.contains("function `box`"),
            "{error}"
        );
    }
    let error = myelin.run_failing(
        2,
        &["plan", write_file_with_command("[./box]").to_str().unwrap()],
    );
    assert!(
        error.contains("neither an absolute path nor a plain name"),
        "{error}"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_black_box_requires_mapping_distributed_and_interfaces() {
    let myelin = Myelin::new_shared();
    for mapping in ["compact", "pipeline"] {
        let spec = format!("  mapping: {mapping}");
        let file = myelin.write_file(&format_chain("m", 9000, &spec, "exec sleep 1", "1s"));
        let error = myelin.run_failing(2, &["plan", file.to_str().unwrap()]);
        assert!(
            error.contains("yaml:7:") && error.contains("write `mapping: distributed`"),
            "{error}"
        );
    }
    let spec = "  ports: { ingress: { dpdk: net_null0 }, egress: { dpdk: net_null1 } }";
    let file = myelin.write_file(&format_chain("m", 9000, spec, "exec sleep 1", "1s"));
    let error = myelin.run_failing(2, &["plan", file.to_str().unwrap()]);
    assert!(error.contains("a black box needs interfaces"), "{error}");
    let kinds = myelin.run_json(&["functions", "external", "--json"]);
    let cost = &kinds[0]["user"];
    assert!(
        cost["per_packet_ns"].is_null() && cost["why"].is_string(),
        "{cost}"
    );
    let file = myelin.write_file(&format_chain("m", 9000, "", "exec sleep 1", "1s"));
    let plan = myelin.run_ok(&["plan", "-v", file.to_str().unwrap()]);
    for part in [
        "unknown",
        "`box` is a black box",
        "the delay in `box` is unknown (black box)",
    ] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
}

#[test]
fn a_black_box_that_keeps_ending_fails_its_chain() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    for (on_failure, passes) in [("pass", true), ("drop", false)] {
        let myelin = Myelin::new_shared();
        let spec = format!("  onFailure: {on_failure}");
        let file = myelin.write_file(&format_chain("k", 9000, &spec, FORWARDER, "60s"));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        for restarts in 1..=3 {
            let pid = read_black_box(&myelin, "k", 0)["pid"]
                .as_u64()
                .expect("the status has a process number");
            sh(&format!("kill -9 {pid}"));
            wait_for("the restart", || {
                let now = read_black_box(&myelin, "k", 0);
                now["restarts"] == restarts && !now["pid"].is_null()
            });
            let now = read_black_box(&myelin, "k", 0);
            assert_eq!(now["restarts"], restarts);
            assert!(
                now["last_end"].as_str().unwrap().contains("signal 9"),
                "{now}"
            );
        }
        assert!(
            can_reach_server(&myelin, "k", 9000, STARTUP_WAIT),
            "the restarted program forwards"
        );
        // On a busy machine four deaths may take longer than the supervisor's time window. Then
        // the test kills the program again.
        wait_for("the chain to fail", || {
            if let Some(pid) = read_black_box(&myelin, "k", 0)["pid"].as_u64() {
                sh(&format!("kill -9 {pid} || true"));
            }
            read_status(&myelin, "k")["state"] == "failed"
        });
        assert_eq!(read_status(&myelin, "k")["state"], "failed");
        assert!(read_black_box(&myelin, "k", 0)["pid"].is_null());
        let timeout = if passes { STARTUP_WAIT } else { LOSS_WAIT };
        assert_eq!(
            can_reach_server(&myelin, "k", 9000, timeout),
            passes,
            "onFailure: {on_failure}"
        );
        let error = myelin.run_failing(
            1,
            &[
                "up",
                myelin
                    .write_file(&format_chain("k", 9001, &spec, FORWARDER, "60s"))
                    .to_str()
                    .unwrap(),
            ],
        );
        assert!(error.contains("no longer restarted"), "{error}");
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

/// Without its program the bridge in the namespace still forwards, so the agent sets the ingress
/// link down.
#[test]
fn a_black_box_that_keeps_ending_loses_its_link() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let child = unique_sleep(7332);
    let command = format!(
        "ip link show br0 >/dev/null 2>&1 || ip link add br0 type bridge
ip link set br0 up
ip link set egress master br0
ip link set ingress master br0
sleep {child} &
exec sleep infinity"
    );
    let file = myelin.write_file(&format_chain(
        "c",
        9000,
        "  onFailure: drop",
        &command,
        "60s",
    ));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert!(can_reach_server(&myelin, "c", 9000, STARTUP_WAIT));
    wait_for("the chain to fail", || {
        if let Some(pid) = read_black_box(&myelin, "c", 0)["pid"].as_u64() {
            sh(&format!("kill -9 {pid} || true"));
        }
        read_status(&myelin, "c")["state"] == "failed"
    });
    assert_eq!(read_status(&myelin, "c")["state"], "failed");
    assert!(
        !can_reach_server(&myelin, "c", 9000, LOSS_WAIT),
        "the bridge still forwards"
    );
    let children = || sh(&format!("pgrep -f '^sleep {child}$' || true"));
    wait_for("the end of the child", || children().is_empty());
    assert_eq!(children(), "", "a child of the black box still runs");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_black_box_that_never_reads_loses_only_packets_of_its_chain() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&format_chain("s", 9000, "", "exec sleep infinity", "1ms"));
    let other = myelin.write_file(&format_chain("o", 9000, "", FORWARDER, "60s"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    myelin.run_ok(&["up", other.to_str().unwrap()]);
    send(&myelin, "s", 9000, 3000);
    let row = probe(&myelin, "o", "256");
    assert_eq!(row["lost"], 0, "{row}");
    let stuck = read_status(&myelin, "s");
    assert_eq!(stuck["packets_in"], 3000, "{stuck}");
    assert_eq!(
        (&stuck["drops"], &stuck["packets_out"]),
        (&3000.into(), &0.into()),
        "{stuck}"
    );
    assert_eq!(stuck["hops"][0]["packets_in"], 3000, "{stuck}");
    assert_eq!(
        stuck["state"], "active",
        "the chain has not failed: {stuck}"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_cpu_limit_throttles_a_black_box_that_spins() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    throttle_black_box();
}

#[test]
#[ignore = "thorough: measures the share of a core that a black box uses"]
fn a_black_box_uses_no_more_than_its_cpu_limit() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let share = throttle_black_box();
    assert!(share < 0.2, "{share} of a core");
}

/// Deploys a spinning black box with a limit of 0.1 cores; returns its share of a core.
fn throttle_black_box() -> f64 {
    let myelin = Myelin::new();
    let text = format_chain("s", 9000, "", "while :; do :; done", "1ms").replace(
        "      kind: external",
        "      kind: external\n      limits: { cpu: 0.1cores }",
    );
    let file = myelin.write_file(&text);
    let other = myelin.write_file(&format_chain("o", 9000, "", FORWARDER, "60s"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    myelin.run_ok(&["up", other.to_str().unwrap()]);
    let read_cpu_s = || read_black_box(&myelin, "s", 0)["cpu_s"].as_f64().unwrap();
    let (before, start) = (read_cpu_s(), std::time::Instant::now());
    let row = probe(&myelin, "o", "256");
    assert_eq!(row["lost"], 0, "{row}");
    let sandbox = || read_status(&myelin, "s")["hops"][0]["sandbox"].clone();
    // A period lasts 10 ms.
    let is_throttled = || sandbox()["throttled_periods"].as_u64() > Some(150);
    wait_for("a throttled program", is_throttled);
    let share = (read_cpu_s() - before) / start.elapsed().as_secs_f64();
    assert!(is_throttled(), "{}", sandbox());
    assert_eq!(sandbox()["cpu_limit_cores"].as_f64(), Some(0.1));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
    share
}

#[test]
fn a_frame_that_is_no_ip_packet_counts_as_one_drop() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    // The black box gives the first ten frames an unknown EtherType.
    let command = FORWARDER
        .replace("while True:", "n = 0\nwhile True:")
        .replace(
            "        b.send(frame)",
            "        n += 1
        b.send(frame if n > 10 else frame[:12] + b\"\\x12\\x34\" + frame[14:])",
        );
    let myelin = Myelin::new();
    let file = myelin.write_file(&format_chain("u", 9000, "", &command, "60s"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    send(&myelin, "u", 9000, 12);
    // Frames keep their order: if the last two have left, the chain has dropped the first ten.
    let packets_out = || read_black_box(&myelin, "u", 0)["packets_out"].clone();
    wait_for("the last two packets", || packets_out() == 2);
    let status = read_status(&myelin, "u");
    assert_eq!(status["hops"][0]["packets_in"], 12, "{status}");
    assert_eq!(status["hops"][0]["drops"], 10, "{status}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Starts `up` for a black box with a long startup; returns when the program runs.
fn start_slow_up(myelin: &Myelin, file: &Path) -> Child {
    let client = myelin
        .command(&["up", file.to_str().unwrap()])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the client starts");
    wait_for("the program", is_slow_program_running);
    assert!(is_slow_program_running());
    client
}

fn is_slow_program_running() -> bool {
    let sleep = unique_sleep(7333);
    !sh(&format!("pgrep -f '^sleep {sleep}$' || true")).is_empty()
}

#[test]
fn up_is_cancelled_while_it_waits_for_a_black_box() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let command = format!("exec sleep {}", unique_sleep(7333));
    let file = myelin.write_file(&format_chain("w", 9000, "", &command, "60s"));
    // First the client ends. Without the cancellation `ps` would wait until the chain is up.
    let mut client = start_slow_up(&myelin, &file);
    client.kill().expect("the client is killed");
    let _ = client.wait();
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        0
    );
    wait_for("the end of the program", || !is_slow_program_running());
    // Then another client removes all chains, or a signal stops the agent.
    for by_signal in [false, true] {
        let client = start_slow_up(&myelin, &file);
        if by_signal {
            sh(&format!("kill -TERM {}", myelin.read_agent_pid()));
        } else {
            myelin.run_ok(&["down", "--all"]);
        }
        let output = client.wait_with_output().expect("the process ends");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains("function `box`") && error.contains("cancelled"),
            "{error}"
        );
        myelin.assert_clean();
    }
}

/// Make before break: the next generation starts its own black box.
#[test]
fn live_changes_of_a_chain_with_a_black_box_lose_no_packet() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let variant = |key: u8| {
        let text = format_chain("l", 9000, "", FORWARDER, "60s");
        let after =
            format!("    - {{ name: key, kind: xor, space: kernel, config: {{ key: {key} }} }}\n");
        myelin.write_file(&(text + &after))
    };
    let deploy =
        |key: u8| myelin.run_json(&["up", variant(key).to_str().unwrap(), "--json"])[0].clone();
    let traffic = Traffic::start(&deploy(1), 9000);
    traffic.wait_for_packets(100);
    let first = read_black_box(&myelin, "l", 0)["pid"].clone();
    for key in [2, 4, 8] {
        let changed = deploy(key);
        assert_eq!(changed["change"], "changed", "{changed}");
        traffic.wait_for_packets(300);
    }
    let (sent, arrivals) = traffic.stop();
    assert_eq!((arrivals.damaged, arrivals.duplicates), (0, 0));
    assert_eq!(arrivals.keys.len() as u64, sent, "packets were lost");
    let observed_keys: std::collections::BTreeSet<u8> = arrivals.keys.into_values().collect();
    assert_eq!(observed_keys, [1, 2, 4, 8].into());
    assert!(
        !is_alive(&first),
        "the black box of the first generation still runs"
    );
    let status = read_status(&myelin, "l");
    assert_eq!(status["packets_in"], sent, "{status}");
    assert_eq!(
        status["sojourn_sections"][1]["packets"], sent,
        "the count includes all generations"
    );
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_live_change_whose_black_box_ends_leaves_the_chain_unchanged() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let good = myelin.write_file(&format_chain("g", 9000, "", FORWARDER, "60s"));
    myelin.run_ok(&["up", good.to_str().unwrap()]);
    let before = read_black_box(&myelin, "g", 0)["pid"].clone();
    let bad = myelin.write_file(&format_chain("g", 9000, "", "exit 3", "5s"));
    let error = myelin.run_failing(1, &["up", bad.to_str().unwrap()]);
    assert!(
        error.contains("exited with status 3") && error.contains("the program wrote no output"),
        "{error}"
    );
    assert_eq!(read_black_box(&myelin, "g", 0)["pid"], before);
    assert!(can_reach_server(&myelin, "g", 9000, STARTUP_WAIT));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_black_box_survives_its_agent_and_down_removes_it_with_its_children() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new_shared();
    let sleep = unique_sleep(7331);
    let command = format!("sleep {sleep} &\n{FORWARDER}");
    let file = myelin.write_file(&format_chain("a", 9000, "", &command, "60s"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let black_box = read_black_box(&myelin, "a", 0);
    let child = sh(&format!("pgrep -f '^sleep {sleep}$'"));
    myelin.kill_agent();
    assert!(can_reach_server(&myelin, "a", 9000, STARTUP_WAIT));
    assert!(is_alive(&black_box["pid"]));
    let text = myelin.run_ok(&["down", "--all"]);
    assert!(text.contains("recovered"), "{text}");
    assert!(!is_alive(&black_box["pid"]));
    assert!(
        !is_alive(&child.trim().parse::<u64>().unwrap().into()),
        "a child of the black box still runs"
    );
    assert!(!Path::new(black_box["log"].as_str().unwrap()).exists());
    myelin.assert_clean();
}
