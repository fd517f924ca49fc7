//! Chains over the nodes of a topology: real packets, live changes, faults, and removal.

mod common;

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::Duration;

use common::traffic::Traffic;
use common::{Myelin, kill, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

const TARGET: &str = "10.0.0.2:9000";

/// Nodes in a line, a host at each end, and a chain over them.
fn file(places: &[usize], nodes: usize, keys: &[u8]) -> String {
    let functions = places.iter().zip(keys).enumerate();
    let functions =
        functions.map(|(at, (place, key))| function(at as u8, *place, &format!("key: {key}")));
    with_functions(nodes, &functions.collect::<String>())
}

/// Even functions run in the kernel, odd ones in user space.
fn function(number: u8, node: usize, config: &str) -> String {
    let space = if number.is_multiple_of(2) {
        "kernel"
    } else {
        "user"
    };
    format!(
        "    - {{ name: f{number}, kind: xor, node: n{node}, config: {{ {config} }}, space: {space} }}\n"
    )
}

/// A chain of these functions, each with its node. The key of a function tells its number.
fn ordered(functions: &[(u8, usize)]) -> String {
    let functions = functions.iter();
    let functions =
        functions.map(|(number, node)| function(*number, *node, &format!("key: {}", 1 << number)));
    with_functions(3, &functions.collect::<String>())
}

fn with_functions(nodes: usize, functions: &str) -> String {
    let names: Vec<String> = (1..=nodes).map(|node| format!("n{node}")).collect();
    let links = (1..nodes).map(|node| format!("    - {{ ends: [ n{node}, n{} ] }}\n", node + 1));
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: @line }}\nspec:\n  \
         hosts: [ h1, h2 ]\n  nodes: [ {} ]\n  links:\n    - {{ ends: [ h1, n1 ] }}\n{}    \
         - {{ ends: [ n{nodes}, h2 ] }}\n---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @over }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}\n  functions:\n{}  \
         ports: {{ ingress: @line/h1, egress: @line/h2 }}\n",
        names.join(", "),
        links.collect::<String>(),
        functions,
    )
}

struct Lab {
    myelin: Myelin,
    h1: UdpSocket,
    h2: UdpSocket,
}

impl Lab {
    fn up(text: &str) -> Self {
        let myelin = Myelin::new_shared();
        up(&myelin, text);
        let socket = |host: &str, address: &str| {
            let name = format!("myelin-{}-{host}", myelin.chain_name("line"));
            let netns = Netns::open(&name).unwrap();
            let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
            let timeout = Duration::from_millis(200);
            socket.set_read_timeout(Some(timeout)).unwrap();
            socket
        };
        let (h1, h2) = (socket("h1", "10.0.0.1:0"), socket("h2", TARGET));
        Self { myelin, h1, h2 }
    }

    /// Sends a byte; returns the byte that arrives.
    fn pass(&self, sent: u8) -> Option<u8> {
        pass(&self.h1, &self.h2, sent)
    }

    fn expect(&self, sent: u8, arrives: u8) {
        wait_for("a datagram that the functions changed", || {
            self.pass(sent) == Some(arrives)
        });
    }

    fn status(&self) -> Value {
        let name = self.myelin.chain_name("over");
        self.myelin.run_json(&["ps", &name, "--json"])
    }

    /// Waits until the chain is up again after the end of the agent of a node.
    fn expect_restored(&self, node: usize) {
        let reason = format!("`n{node}`");
        wait_for("a restored chain", || {
            let status = self.status();
            let restored = status["restored"].as_str().unwrap_or_default();
            restored.contains(&reason) && status["state"] == "active"
        });
    }

    fn node_pid(&self, number: usize) -> Value {
        let name = self.myelin.chain_name("line");
        let status = self.myelin.run_json(&["ps", &name, "--json"]);
        status["hosts"][1 + number]["agent"]["pid"].clone()
    }

    /// The chains that the agent of a node runs.
    fn chains_on(&self, number: usize) -> usize {
        let list = self
            .myelin
            .run_json(&["--node", &format!("n{number}"), "ps", "--json"]);
        list.as_array().unwrap().len()
    }

    fn end(self) {
        drop((self.h1, self.h2));
        self.myelin.run_ok(&["down", "--all"]);
        self.myelin.assert_clean();
    }
}

/// Sends a byte from one host to the other; returns the byte that arrives.
fn pass(h1: &UdpSocket, h2: &UdpSocket, sent: u8) -> Option<u8> {
    let mut byte = [0; 8];
    let _ = h1.send_to(&[sent], TARGET);
    h2.recv(&mut byte).ok().map(|_| byte[0])
}

fn up(myelin: &Myelin, text: &str) -> String {
    let file = myelin.write_file(text);
    myelin.run_ok(&["up", file.to_str().unwrap()])
}

/// The functions name no node: both hosts have a link to `n1`, so it runs all of them.
#[test]
fn placement_chooses_the_node_between_the_hosts() {
    if skip_unless_root() {
        return;
    }
    let text = file(&[1, 1], 2, &[0x01, 0x02])
        .replace("node: n1, ", "")
        .replace("  functions:\n", "  placement: delay\n  functions:\n")
        .replace("[ n2, h2 ]", "[ n1, h2 ]");
    let lab = Lab::up(&text);
    lab.expect(0x40, 0x43);
    assert_eq!([lab.chains_on(1), lab.chains_on(2)], [1, 0]);
    let file = lab.myelin.write_file(&text);
    let plan = lab.myelin.run_ok(&["plan", file.to_str().unwrap()]);
    assert!(plan.contains("delay, 0 crossings"), "{plan}");
    assert!(plan.contains("n1: least delay found"), "{plan}");
    let plan = lab
        .myelin
        .run_json(&["plan", "--json", file.to_str().unwrap()]);
    assert_eq!(plan[0]["placement"]["functions"][1]["node"], "n1", "{plan}");
    // No placement keeps two functions of a group apart and each next to its host.
    let apart = text.replace("kind: xor", "kind: xor, antiAffinity: copies");
    let file = lab.myelin.write_file(&apart);
    let error = lab.myelin.run_failing(3, &["up", file.to_str().unwrap()]);
    assert!(
        error.contains("no node can run the function `f1`"),
        "{error}"
    );
    lab.end();
}

#[test]
fn a_chain_on_one_node_changes_live_and_survives_its_agent() {
    if skip_unless_root() {
        return;
    }
    let lab = Lab::up(&file(&[1, 1], 1, &[0x01, 0x02]));
    lab.expect(0x40, 0x43);
    let over = lab.myelin.chain_name("over");
    let details = lab.myelin.run_ok(&["ps", &over]);
    assert!(
        details.contains("f0, f1") && details.contains("active"),
        "{details}"
    );
    assert!(lab.myelin.run_ok(&["ps"]).contains("chain over nodes"));

    let same = up(&lab.myelin, &file(&[1, 1], 1, &[0x01, 0x02]));
    assert!(same.contains("unchanged"), "{same}");
    let changed = up(&lab.myelin, &file(&[1, 1], 1, &[0x01, 0x04]));
    assert!(changed.contains("generation 1"), "{changed}");
    lab.expect(0x40, 0x45);
    let error = lab
        .myelin
        .run_failing(1, &["down", &lab.myelin.chain_name("line")]);
    assert!(error.contains(&format!("myelin down {over}")), "{error}");

    // The node loses its part with its agent. Both come back.
    kill(&lab.node_pid(1));
    lab.expect_restored(1);
    lab.expect(0x40, 0x45);
    kill(&lab.node_pid(1));
    lab.myelin.run_ok(&["down", &over]);
    assert!(lab.myelin.run_ok(&["ps"]).contains("no chain runs"));
    assert_eq!(lab.chains_on(1), 0);
    lab.end();
}

#[test]
fn wrong_chains_over_nodes_make_nothing() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let good = file(&[1, 2], 2, &[1, 2]);
    let refuse = |status: i32, text: &str, words: &str| {
        let file = myelin.write_file(text);
        let error = myelin.run_failing(status, &["up", file.to_str().unwrap()]);
        assert!(error.contains(words), "{error}");
        assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    };
    refuse(1, &good.replace("node: n2", "node: n7"), "no node `n7`");
    refuse(
        1,
        &file(&[2, 2], 2, &[1, 2]),
        "no link joins the host `h1` and the node `n2`",
    );
    // The second part cannot come up, so the first does not either.
    let absent = good.replace(
        "kind: xor, node: n2, config: { key: 2 }",
        "kind: external, node: n2, config: { command: [ /absent/program ] }",
    );
    refuse(1, &absent, "node `n2`");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn packets_pass_the_functions_of_several_nodes() {
    if skip_unless_root() {
        return;
    }
    for (places, nodes) in [(&[1, 2][..], 2), (&[1, 2, 1, 2], 2), (&[1, 2, 2, 3, 4], 4)] {
        let keys = [0x01, 0x02, 0x04, 0x08, 0x10];
        let all = keys[..places.len()].iter().fold(0, |all, key| all ^ key);
        let lab = Lab::up(&file(places, nodes, &keys));
        lab.expect(0x40, 0x40 ^ all);
        let list = lab.myelin.run_json(&["ps", "--json"]);
        let status = &list[0];
        let parts = status["parts"].as_array().unwrap();
        let changes = places.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(parts.len(), changes + 1);
        for part in parts {
            assert!(part["packets_out"].as_u64() > Some(0), "{status}");
            assert!(part["sojourn"]["packets"].as_u64() > Some(0), "{status}");
        }
        let top = lab.myelin.run_ok(&["top", "--count", "1"]);
        assert!(top.contains("CHAIN OVER NODES"), "{top}");
        lab.myelin.run_ok(&["down", &lab.myelin.chain_name("over")]);
        assert!((1..=nodes).all(|node| lab.chains_on(node) == 0));
        // The nodes forward what no chain takes.
        lab.expect(0x40, 0x40);
        lab.end();
    }
}

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

/// Each node keeps its share of the contract. The sojourn at the last node is that of the whole.
#[test]
fn a_contract_holds_from_the_first_node_to_the_last() {
    if skip_unless_root() {
        return;
    }
    let text = file(&[1, 2], 2, &[0x01, 0x02]);
    let text = text.replace(
        "  ports:",
        "  sla: { rate: 1kpps, burst: 4, latency: 200ms, loss: 1% }\n  ports:",
    );
    let lab = Lab::up(&text);
    lab.expect(0x40, 0x43);
    let latency = |status: &Value, part: usize| {
        let contract = &status["parts"][part]["sla"]["contract"];
        contract["latency_us"].as_f64().unwrap_or_default()
    };
    wait_for("a judged second of each part", || {
        lab.pass(0x40);
        let status = lab.status();
        [0, 1]
            .iter()
            .all(|part| status["parts"][*part]["sla"]["judged_s"].as_u64() > Some(0))
    });
    let status = lab.status();
    assert!(status["bound_ns"].as_u64() < Some(200_000_000), "{status}");
    let [first, last] = [0, 1].map(|part| latency(&status, part));
    assert!(first > 0.0 && first < last, "{status}");
    assert!((199_000.0..=200_000.0).contains(&last), "{status}");
    lab.end();
}

/// The workers of a node's user functions, by process number.
fn workers_of(myelin: &Myelin, node: usize) -> BTreeSet<u64> {
    let chains = myelin.run_json(&["--node", &format!("n{node}"), "ps", "--json"]);
    let chains = chains.as_array().unwrap().iter();
    chains
        .filter_map(|chain| chain["worker"]["pid"].as_u64())
        .collect()
}

/// Order, nodes and number of the functions change while packets pass. Each packet passes all
/// functions of one description.
#[test]
fn a_chain_over_nodes_changes_under_traffic() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let first: &[(u8, usize)] = &[(0, 1), (1, 2), (2, 1), (3, 2), (4, 3)];
    up(&myelin, &ordered(first));
    let host = |name: &str, address: &str| {
        let netns = format!("myelin-{}-{name}", myelin.chain_name("line"));
        (Netns::open(&netns).unwrap(), address.parse().unwrap())
    };
    let traffic = Traffic::between(host("h1", "10.0.0.1"), (host("h2", "10.0.0.2"), 9000));
    traffic.wait_for_packets(500);
    let workers = workers_of(&myelin, 2);
    assert_eq!(workers.len(), 1);
    let changes: [&[(u8, usize)]; 6] = [
        // Another order.
        &[(0, 1), (3, 2), (2, 1), (1, 2), (4, 3)],
        // A function moves to another node.
        &[(0, 1), (3, 2), (2, 1), (1, 3), (4, 3)],
        // Functions go, and with them a node.
        &[(0, 1), (4, 3)],
        // Functions come, also in front.
        &[(5, 1), (0, 1), (6, 2), (4, 3), (3, 3)],
        // One function changes its key at its place, in a new generation of all parts.
        &[(5, 1), (0, 1), (6, 2), (4, 3), (1, 3)],
        first,
    ];
    let mut keys = BTreeSet::new();
    let key_of = |functions: &[(u8, usize)]| {
        let keys = functions.iter().map(|(number, _)| 1_u8 << number);
        keys.fold(0, |all, key| all ^ key)
    };
    keys.insert(key_of(first));
    for (number, functions) in changes.into_iter().enumerate() {
        let out = up(&myelin, &ordered(functions));
        assert!(out.contains(&format!("generation {}", number + 1)), "{out}");
        keys.insert(key_of(functions));
        if number == 0 {
            assert_eq!(workers_of(&myelin, 2), workers, "started anew");
        }
        traffic.wait_for_packets(500);
    }
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "lost packets");
    assert_eq!((arrivals.duplicates, arrivals.damaged), (0, 0));
    let seen: BTreeSet<u8> = arrivals.keys.values().copied().collect();
    assert_eq!(seen, keys);
    let over = myelin.chain_name("over");
    wait_for("all packets in the counts of the whole", || {
        let status = myelin.run_json(&["ps", &over, "--json"]);
        [&status["packets_in"], &status["packets_out"]]
            .iter()
            .all(|count| count.as_u64() == Some(sent))
    });
    // No part of an earlier path remains.
    let parts: usize = (1..=3)
        .map(|node| {
            let list = myelin.run_json(&["--node", &format!("n{node}"), "ps", "--json"]);
            list.as_array().unwrap().len()
        })
        .sum();
    assert_eq!(parts, 5);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
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
        let pid = lab.node_pid(node);
        let path = lab.myelin.write_file(&chain);
        let mut client = lab
            .myelin
            .command(&["up", path.to_str().unwrap()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        kill(&pid);
        if client.wait().unwrap().success() {
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
        let pid = lab.node_pid(node);
        let path = lab.myelin.write_file([&new, &old][round % 2]);
        let mut client = lab
            .myelin
            .command(&["up", path.to_str().unwrap()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        kill(&pid);
        client.wait().unwrap();
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
    lab.end();
}

#[test]
fn the_example_runs_as_it_stands() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = common::repository_root().join("examples/chain-over-nodes.yaml");
    let file = file.to_str().unwrap();
    assert!(
        myelin
            .run_ok(&["plan", file])
            .contains("topology line: 2 hosts, 2 nodes")
    );
    myelin.run_ok(&["up", file]);
    wait_for("a packet that left the last node", || {
        myelin.run_ok(&[
            "exec",
            "h1",
            "--",
            "bash",
            "-c",
            "echo x > /dev/udp/10.0.0.2/9000",
        ]);
        let status = myelin.run_json(&["ps", "h1-to-h2", "--json"]);
        status["packets_out"].as_u64() > Some(0)
    });
    myelin.run_ok(&["down", file]);
    assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
