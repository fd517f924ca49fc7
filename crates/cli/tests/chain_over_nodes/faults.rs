//! Agents of nodes that are killed or silent, while a chain over nodes is up, comes up or changes.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;
use serde_json::Value;

use super::lab::{Lab, TARGET, file, pass, up, with_functions};
use crate::common::{self, kill, skip_unless_root, wait_for};

#[test]
fn a_chain_over_two_nodes_is_whole_again_after_its_agents() {
    if skip_unless_root() {
        return;
    }
    let good = file(&[1, 2], 2, &[0x01, 0x02]);
    let lab = Lab::up(&good);
    lab.expect(0x40, 0x43);
    assert!(up(&lab.myelin, &good).contains("unchanged"));
    for node in [2, 1] {
        kill(&lab.node_pid(node));
        lab.expect_restored(node);
        lab.expect(0x40, 0x43);
        assert_eq!((lab.chains_on(1), lab.chains_on(2)), (1, 1));
    }
    lab.end();
}

/// Kills the agent of a node this time after the start of `up`. Returns whether `up` succeeded.
fn kill_during_up(lab: &Lab, file: &Path, (node, milliseconds): (usize, u64)) -> bool {
    let pid = lab.node_pid(node);
    let mut client = lab
        .myelin
        .command(&["up", file.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(milliseconds));
    kill(&pid);
    client.wait().unwrap().success()
}

/// Whichever agent is killed, and when: the chain is up whole, or no node has a part.
#[test]
fn a_killed_agent_leaves_no_half_chain() {
    if skip_unless_root() {
        return;
    }
    let only_topology = file(&[1], 2, &[1]);
    let only_topology = only_topology.split("---").next().unwrap();
    let chain = file(&[1, 2], 2, &[0x01, 0x02]);
    for (node, milliseconds) in [(1, 0), (2, 0), (2, 20), (1, 40), (2, 60), (1, 90)] {
        let lab = Lab::up(only_topology);
        let path = lab.myelin.write_file(&chain);
        if kill_during_up(&lab, &path, (node, milliseconds)) {
            // The agent ended before the request, which started it anew, or after the request.
            let _ = lab.myelin.run(&["down", &lab.myelin.chain_name("over")]);
        }
        up(&lab.myelin, only_topology);
        let left = |node: usize| {
            let output = lab
                .myelin
                .run(&["--node", &format!("n{node}"), "ps", "--json"]);
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        for node in 1..=2 {
            assert_eq!(left(node), "[]", "node {node} after {milliseconds} ms");
        }
        // The chain comes up afterwards, over an agent that is started anew.
        lab.myelin.run_ok(&["up", path.to_str().unwrap()]);
        lab.expect(0x40, 0x43);
        lab.end();
    }
}

/// Whichever agent is killed during a change: afterwards the chain is whole, in one of both
/// descriptions.
#[test]
fn a_change_over_a_killed_agent_is_finished_or_undone() {
    if skip_unless_root() {
        return;
    }
    let keys = [[0x01, 0x02, 0x04], [0x10, 0x20, 0x40]];
    let [old, new] =
        keys.map(|keys| file(&[1, 2, 1], 2, &keys).replace("[ n2, h2 ]", "[ n1, h2 ]"));
    let lab = Lab::up(&old);
    lab.expect(0x80, 0x87);
    for (round, (node, milliseconds)) in [(2, 0), (1, 30), (2, 60), (1, 90), (2, 120), (1, 150)]
        .into_iter()
        .enumerate()
    {
        let path = lab.myelin.write_file([&new, &old][round % 2]);
        kill_during_up(&lab, &path, (node, milliseconds));
        wait_for("a whole chain", || {
            lab.status()["state"] == "active"
                && [Some(0x87), Some(0xf0)].contains(&lab.pass(0x80))
                && [lab.chains_on(1), lab.chains_on(2)] == [2, 1]
        });
        // The next round changes the chain in any case.
        lab.myelin.run_ok(&["up", path.to_str().unwrap()]);
        lab.expect(0x80, [0xf0, 0x87][round % 2]);
    }
    lab.end();
}

/// The functions of a silent node are placed anew.
#[test]
fn functions_leave_a_silent_node() {
    if skip_unless_root() {
        return;
    }
    let functions = [(0, Some(1)), (1, None), (2, Some(4))].map(|(number, node)| {
        let node = node.map_or(String::new(), |node| format!("node: n{node}, "));
        let key = 1 << number;
        format!(
            "    - {{ name: f{number}, kind: xor, {node}antiAffinity: apart, config: {{ key: {key} }} }}\n"
        )
    });
    let lab = Lab::up(&with_functions(4, &functions.concat()));
    lab.expect(0x40, 0x47);
    let node_of = |status: &Value| status["parts"][1]["node"].as_str().unwrap().to_owned();
    let node = node_of(&lab.status());
    let pid = lab.node_pid(node[1..].parse().unwrap());
    common::sh(&format!("kill -STOP {pid}"));
    wait_for("the function on another node", || {
        let status = lab.status();
        node_of(&status) != node && status["state"] == "active" && status["restored"].is_string()
    });
    lab.expect(0x40, 0x47);
    let event = lab.myelin.run_ok(&["ps", &lab.myelin.chain_name("over")]);
    assert!(event.contains("brought up again"), "{event}");
    let line = lab.myelin.run_ok(&["ps", &lab.myelin.chain_name("line")]);
    assert!(line.contains("did not answer"), "{line}");
    let events = lab.myelin.run_json(&["events", "--json"]);
    let kinds = ["silent", "ended", "restored"].map(|kind| find_event(&events, kind, &node));
    let order = kinds.map(|event| event.unwrap_or_else(|| panic!("{events}"))["serial"].as_u64());
    assert!(order.is_sorted(), "{events}");
    let now = node_of(&lab.status());
    let words = format!("`f1` placed anew: from {node} to {now}");
    let over = lab.myelin.chain_name("over");
    let events = lab.myelin.run_ok(&["events", &over]);
    // The text is wrapped.
    let events = events.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(events.contains(&words), "{events}");
    wait_for("the return of the silent node", || {
        let events = lab.myelin.run_json(&["events", "--json"]);
        find_event(&events, "back", &node).is_some()
    });
    lab.end();
}

/// Finds the event of a node.
fn find_event<'e>(events: &'e Value, kind: &str, node: &str) -> Option<&'e Value> {
    let mut events = events.as_array()?.iter();
    events.find(|event| event["kind"] == kind && event["node"] == node)
}

/// An agent that was late once, for example because its machine stood still, is not killed.
#[test]
fn an_agent_that_answers_when_it_is_asked_again_stays() {
    if skip_unless_root() {
        return;
    }
    let lab = Lab::up(&file(&[1, 2], 2, &[0x01, 0x02]));
    lab.expect(0x40, 0x43);
    let pid = lab.node_pid(2);
    common::sh(&format!("kill -STOP {pid}"));
    let events = || lab.myelin.run_json(&["events", "--json"]);
    let has = |kind: &str| find_event(&events(), kind, "n2").is_some();
    wait_for("a silent node", || has("silent"));
    common::sh(&format!("kill -CONT {pid}"));
    wait_for("its answer", || has("back"));
    assert!(!has("ended"), "{}", events());
    assert_eq!(lab.node_pid(2), pid);
    lab.expect(0x40, 0x43);
    assert!(lab.status()["restored"].is_null());
    lab.end();
}

/// Two chains over a line of four nodes: `over` to its first link, `spare` over the last two, whose
/// link loses packets.
fn two_chains() -> String {
    let both = file(&[1, 2], 4, &[0x01, 0x02])
        .replace("hosts: [ h1, h2 ]", "hosts: [ h1, h2, h3, h4 ]")
        .replace(
            "    - { ends: [ n4, h2 ] }\n",
            "    - { ends: [ n4, h2 ] }\n    - { ends: [ h3, n3 ] }\n    - { ends: [ n2, h4 ] }\n",
        )
        .replace("ends: [ n3, n4 ]", "ends: [ n3, n4 ], loss: 50%")
        .replace("egress: @line/h2", "egress: @line/h4")
        .replace("destination: 10.0.0.2/32", "destination: 10.0.0.4/32")
        .replace("  ports:", "  sla: { loss: 10% }\n  ports:");
    let (_, over) = both.split_once("---\n").unwrap();
    let spare = over
        .replace("@over", "@spare")
        .replace("destination: 10.0.0.4/32", "destination: 10.0.0.2/32")
        .replace("node: n1", "node: n3")
        .replace("node: n2", "node: n4")
        .replace("@line/h1", "@line/h3")
        .replace("@line/h4", "@line/h2");
    format!("{both}---\n{spare}")
}

/// A silent agent delays neither the restart of another one nor the verdicts on chains elsewhere.
#[test]
fn a_silent_agent_delays_only_itself() {
    if skip_unless_root() {
        return;
    }
    let lab = Lab::up(&two_chains());
    let h3 = Netns::open(&format!("myelin-{}-h3", lab.myelin.chain_name("line"))).unwrap();
    let h3 = h3.enter(|| UdpSocket::bind("10.0.0.3:0")).unwrap().unwrap();
    wait_for("a datagram of the second chain", || {
        pass(&h3, &lab.h2, 0x40) == Some(0x43)
    });
    let [silent, killed] = [1, 2].map(|node| lab.node_pid(node));
    let stopped = Instant::now();
    common::sh(&format!("kill -STOP {silent}"));
    kill(&killed);
    for _ in 0..100 {
        let _ = h3.send_to(&[0x40], TARGET);
    }
    let events = || lab.myelin.run_json(&["events", "--json"]);
    wait_for("the events of the other nodes", || {
        let events = events();
        let spare = lab.myelin.chain_name("spare");
        let mut all = events.as_array().unwrap().iter();
        find_event(&events, "back", "n2").is_some()
            && all.any(|event| event["chain"] == spare && event["lost"].as_u64() > Some(10))
    });
    // The agent of n1 is asked for the first time for 15 s. A slow machine may take longer so far.
    let events = events();
    let is_asked = stopped.elapsed() < Duration::from_secs(15);
    let is_silent = find_event(&events, "silent", "n1").is_some();
    assert!(!(is_asked && is_silent), "{events}");
    common::sh(&format!("kill -CONT {silent}"));
    drop(h3);
    lab.end();
}
