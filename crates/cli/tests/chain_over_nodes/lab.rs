//! Nodes in a line, a host at each end, and a chain over the nodes.

use std::net::UdpSocket;
use std::time::Duration;

use myelin_linux::netns::Netns;
use serde_json::Value;

use crate::common::{Myelin, wait_for};

pub(crate) const TARGET: &str = "10.0.0.2:9000";

/// Nodes in a line, a host at each end, and a chain over them.
pub(crate) fn file(places: &[usize], nodes: usize, keys: &[u8]) -> String {
    let functions = places.iter().zip(keys).enumerate();
    let functions =
        functions.map(|(at, (place, key))| function(at as u8, *place, &format!("key: {key}")));
    with_functions(nodes, &functions.collect::<String>())
}

/// Even functions run in the kernel, odd ones in user space.
pub(crate) fn function(number: u8, node: usize, config: &str) -> String {
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
pub(crate) fn ordered(functions: &[(u8, usize)]) -> String {
    let functions = functions.iter();
    let functions =
        functions.map(|(number, node)| function(*number, *node, &format!("key: {}", 1 << number)));
    with_functions(3, &functions.collect::<String>())
}

pub(crate) fn with_functions(nodes: usize, functions: &str) -> String {
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

pub(crate) struct Lab {
    pub(crate) myelin: Myelin,
    pub(crate) h1: UdpSocket,
    pub(crate) h2: UdpSocket,
}

impl Lab {
    pub(crate) fn up(text: &str) -> Self {
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
    pub(crate) fn pass(&self, sent: u8) -> Option<u8> {
        pass(&self.h1, &self.h2, sent)
    }

    /// Sends a byte.
    pub(crate) fn send(&self, sent: u8) {
        let _ = self.h1.send_to(&[sent], TARGET);
    }

    pub(crate) fn expect(&self, sent: u8, arrives: u8) {
        wait_for("a datagram that the functions changed", || {
            self.pass(sent) == Some(arrives)
        });
    }

    pub(crate) fn status(&self) -> Value {
        let name = self.myelin.chain_name("over");
        self.myelin.run_json(&["ps", &name, "--json"])
    }

    /// Waits until the chain is up again after the end of the agent of a node.
    pub(crate) fn expect_restored(&self, node: usize) {
        let reason = format!("`n{node}`");
        wait_for("a restored chain", || {
            let status = self.status();
            let restored = status["restored"].as_str().unwrap_or_default();
            restored.contains(&reason) && status["state"] == "active"
        });
    }

    pub(crate) fn node_pid(&self, number: usize) -> Value {
        let name = self.myelin.chain_name("line");
        let status = self.myelin.run_json(&["ps", &name, "--json"]);
        let mut hosts = status["hosts"].as_array().unwrap().iter();
        let node = hosts.find(|host| host["name"] == format!("n{number}"));
        node.unwrap()["agent"]["pid"].clone()
    }

    /// The chains that the agent of a node runs.
    pub(crate) fn chains_on(&self, number: usize) -> usize {
        let list = self
            .myelin
            .run_json(&["--node", &format!("n{number}"), "ps", "--json"]);
        list.as_array().unwrap().len()
    }

    pub(crate) fn end(self) {
        drop((self.h1, self.h2));
        self.myelin.run_ok(&["down", "--all"]);
        self.myelin.assert_clean();
    }
}

/// Sends a byte from one host to the other; returns the byte that arrives.
pub(crate) fn pass(h1: &UdpSocket, h2: &UdpSocket, sent: u8) -> Option<u8> {
    let mut byte = [0; 8];
    let _ = h1.send_to(&[sent], TARGET);
    h2.recv(&mut byte).ok().map(|_| byte[0])
}

pub(crate) fn up(myelin: &Myelin, text: &str) -> String {
    let file = myelin.write_file(text);
    myelin.run_ok(&["up", file.to_str().unwrap()])
}
