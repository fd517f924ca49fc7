//! Chains over the nodes of a topology: real packets, live changes, faults, and removal.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::{Myelin, kill, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

const TARGET: &str = "10.0.0.2:9000";

/// Nodes in a line, a host at each end, and a chain over them.
fn file(places: &[usize], nodes: usize, keys: &[u8]) -> String {
    let names: Vec<String> = (1..=nodes).map(|node| format!("n{node}")).collect();
    let links = (1..nodes).map(|node| format!("    - {{ ends: [ n{node}, n{} ] }}\n", node + 1));
    let functions = places.iter().zip(keys).enumerate().map(|(at, (place, key))| {
        format!(
            "    - {{ name: f{at}, kind: xor, node: n{place}, config: {{ key: {key} }}, space: {} }}\n",
            if at % 2 == 0 { "kernel" } else { "user" }
        )
    });
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: @line }}\nspec:\n  \
         hosts: [ h1, h2 ]\n  nodes: [ {} ]\n  links:\n    - {{ ends: [ h1, n1 ] }}\n{}    \
         - {{ ends: [ n{nodes}, h2 ] }}\n---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @over }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}\n  functions:\n{}  \
         ports: {{ ingress: @line/h1, egress: @line/h2 }}\n",
        names.join(", "),
        links.collect::<String>(),
        functions.collect::<String>(),
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

    // The node loses its part with its agent. `up` brings both back.
    kill(&lab.node_pid(1));
    wait_for("the lost part in `ps`", || {
        lab.status()["state"] == "failed"
    });
    up(&lab.myelin, &file(&[1, 1], 1, &[0x01, 0x04]));
    assert_eq!(lab.status()["state"], "active");
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
        let status = lab.status();
        let parts = status["parts"].as_array().unwrap();
        let changes = places.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(parts.len(), changes + 1);
        for part in parts {
            assert!(part["packets_out"].as_u64() > Some(0), "{status}");
            assert!(part["sojourn"]["packets"].as_u64() > Some(0), "{status}");
        }
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
    let changed = lab.myelin.write_file(&file(&[1, 2], 2, &[0x04, 0x08]));
    let error = lab
        .myelin
        .run_failing(1, &["up", changed.to_str().unwrap()]);
    assert!(error.contains("cannot change live"), "{error}");
    lab.expect(0x40, 0x43);
    for node in [2, 1] {
        kill(&lab.node_pid(node));
        wait_for("the lost part in `ps`", || {
            lab.status()["state"] == "failed"
        });
        up(&lab.myelin, &good);
        assert_eq!(lab.status()["state"], "active");
        lab.expect(0x40, 0x43);
        assert_eq!((lab.chains_on(1), lab.chains_on(2)), (1, 1));
    }
    lab.end();
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
