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
