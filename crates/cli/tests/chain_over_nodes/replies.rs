//! Pairs of chains over nodes: replies pass the nodes in the reverse order, and functions of both
//! directions share their state on their node.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use myelin_linux::netns::Netns;
use serde_json::Value;

use super::lab::up;
use crate::common::streams::PATIENCE;
use crate::common::{Myelin, kill, repository_root, sh, skip_unless_root, wait_for};

/// The address that the server sees. Nobody has it.
const OUTSIDE: &str = "10.9.9.9";

/// `h1 -- n1 -- n2 -- h2`: n1 translates addresses, n2 changes each byte.
const PAIR: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @line }
spec:
  hosts: [ h1, h2 ]
  nodes: [ n1, n2 ]
  links: [ { ends: [ h1, n1 ] }, { ends: [ n1, n2 ] }, { ends: [ n2, h2 ] } ]
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @back }
spec:
  match: { protocol: udp, source: 10.0.0.2, destination: 10.9.9.9 }
  functions:
    - { name: decode, kind: xor, node: n2, config: { key: 0x10 } }
    - { name: restore, kind: nat, config: { reverseOf: masquerade } }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @there }
spec:
  match: { protocol: udp, destination: 10.0.0.2, destinationPort: 9000 }
  functions:
    - { name: masquerade, kind: nat, SPACE node: n1, config: { address: 10.9.9.9, ports: 20000-60000 } }
    - { name: code, kind: xor, node: n2, config: { key: KEY } }
  reverse: @back
  ports: { ingress: @line/h1, egress: @line/h2 }
";

struct Pair {
    myelin: Myelin,
    client: UdpSocket,
    server: UdpSocket,
}

impl Pair {
    fn up(space: &str) -> Self {
        let myelin = Myelin::new_shared();
        up(&myelin, &text(space, "0x01"));
        let netns = |host: &str| format!("myelin-{}-{host}", myelin.chain_name("line"));
        let socket = |host: &str, address: &str| {
            let netns = Netns::open(&netns(host)).unwrap();
            let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
            let timeout = Some(Duration::from_millis(200));
            socket.set_read_timeout(timeout).unwrap();
            socket
        };
        let (h1, h2) = (netns("h1"), netns("h2"));
        sh(&format!(
            "mac=$(ip netns exec {h1} cat /sys/class/net/eth0/address)
             ip -n {h2} neighbour replace {OUTSIDE} lladdr $mac dev eth0"
        ));
        let (client, server) = (socket("h1", "10.0.0.1:5000"), socket("h2", "10.0.0.2:9000"));
        Self {
            myelin,
            client,
            server,
        }
    }

    /// Sends a byte; returns the byte at the server, and the source of the packet.
    fn ask(&self, sent: u8) -> Option<(u8, SocketAddr)> {
        let mut byte = [0; 8];
        let _ = self.client.send_to(&[sent], "10.0.0.2:9000");
        let (_, source) = self.server.recv_from(&mut byte).ok()?;
        Some((byte[0], source))
    }

    /// Sends a byte back; returns the byte at the client, and the source of the packet.
    fn reply(&self, sent: u8, to: SocketAddr) -> Option<(u8, SocketAddr)> {
        let mut byte = [0; 8];
        let _ = self.server.send_to(&[sent], to);
        let (_, source) = self.client.recv_from(&mut byte).ok()?;
        Some((byte[0], source))
    }

    fn status(&self, chain: &str) -> Value {
        let name = self.myelin.chain_name(chain);
        self.myelin.run_json(&["ps", &name, "--json"])
    }
}

fn text(space: &str, key: &str) -> String {
    PAIR.replace("SPACE", space).replace("KEY", key)
}

#[test]
fn replies_pass_the_same_translation_on_their_way_back() {
    if skip_unless_root() {
        return;
    }
    let server: SocketAddr = "10.0.0.2:9000".parse().unwrap();
    for space in ["", "space: user,"] {
        let pair = Pair::up(space);
        let mut outside = None;
        wait_for("a datagram with another source", || {
            outside = pair.ask(0x40).filter(|(byte, _)| *byte == 0x41);
            outside.is_some()
        });
        let (_, outside) = outside.unwrap();
        assert_eq!(outside.ip().to_string(), OUTSIDE);
        wait_for("a reply", || {
            pair.reply(0x40, outside) == Some((0x50, server))
        });
        let status = pair.status("back");
        let nodes = status["parts"].as_array().unwrap().iter();
        let nodes: Vec<_> = nodes.map(|part| part["node"].as_str().unwrap()).collect();
        assert_eq!(nodes, ["n2", "n1"], "{status}");
        assert_eq!(status["reverse"], pair.myelin.chain_name("there"));
        let there = pair.status("there");
        assert_ne!(there["path"], status["path"]);
        assert_eq!(there["reverse"], pair.myelin.chain_name("back"));

        // A change of one direction keeps the mapping that the other one uses.
        let changed = up(&pair.myelin, &text(space, "0x02"));
        assert!(changed.contains("generation 1"), "{changed}");
        wait_for("the changed byte from the same source", || {
            pair.ask(0x40) == Some((0x42, outside))
        });
        wait_for("a reply", || {
            pair.reply(0x40, outside) == Some((0x50, server))
        });
        pair.myelin.run_ok(&["down", "--all"]);
        pair.myelin.assert_clean();
    }
}

/// The node with the shared state of both directions loses its agent. Both come up again.
#[test]
fn both_directions_survive_the_agent_of_their_node() {
    if skip_unless_root() {
        return;
    }
    let server: SocketAddr = "10.0.0.2:9000".parse().unwrap();
    let pair = Pair::up("");
    let passes = || {
        let asked = pair.ask(0x40).filter(|(byte, _)| *byte == 0x41);
        asked.is_some_and(|(_, outside)| pair.reply(0x40, outside) == Some((0x50, server)))
    };
    wait_for("a reply", passes);
    let line = pair.myelin.chain_name("line");
    let network = pair.myelin.run_json(&["ps", &line, "--json"]);
    let hosts = network["hosts"].as_array().unwrap();
    let node = hosts.iter().find(|host| host["name"] == "n1").unwrap();
    kill(&node["agent"]["pid"]);
    for chain in ["there", "back"] {
        wait_for("a restored chain", || {
            let status = pair.status(chain);
            let restored = status["restored"].as_str().unwrap_or_default();
            restored.contains("`n1`") && status["state"] == "active"
        });
    }
    wait_for("a reply", passes);
    pair.myelin.run_ok(&["down", "--all"]);
    pair.myelin.assert_clean();
}

/// Length of the messages of a connection, with room for the headers between nodes.
const MESSAGE: usize = 512;
const MESSAGES: u8 = 20;

/// Takes a connection, and sends each message back. Returns the first byte of each.
fn echo(listener: &TcpListener) -> Vec<u8> {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut message = [0; MESSAGE];
    let messages = (0..MESSAGES).map(|_| {
        stream.read_exact(&mut message).unwrap();
        stream.write_all(&message).unwrap();
        message[0]
    });
    messages.collect()
}

/// The example as it stands. A connection that opens, and is tracked in both directions, passes the
/// same function on its way there and back.
#[test]
fn a_connection_passes_the_nodes_there_and_back() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = repository_root().join("examples/replies-over-nodes.yaml");
    let file = file.to_str().unwrap();
    myelin.run_ok(&["up", file]);
    let netns = |host: &str| Netns::open(&format!("myelin-pair-{host}")).unwrap();
    let address: SocketAddr = "10.0.0.2:9000".parse().unwrap();
    let listen = || TcpListener::bind(address).unwrap();
    let listener = netns("h2").enter(listen).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| echo(&listener));
        let connect = || TcpStream::connect_timeout(&address, PATIENCE);
        let mut client = netns("h1").enter(connect).unwrap().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        for number in 0..MESSAGES {
            let (sent, mut received) = ([number; MESSAGE], [0xff; MESSAGE]);
            client.write_all(&sent).unwrap();
            client.read_exact(&mut received).unwrap();
            assert_eq!(received, sent, "message {number}");
        }
        let seen = server.join().unwrap();
        assert!(
            seen.into_iter()
                .eq((0..MESSAGES).map(|number| number ^ 0x41))
        );
    });
    let flows = myelin.run_json(&["--node", "n1", "ps", "--flows", "--json"]);
    // The functions of both directions share one table.
    let tables = flows.as_array().unwrap();
    assert_eq!(tables.len(), 1, "{flows}");
    let flow = &tables[0]["flows"][0];
    for count in ["packets", "reply_packets"] {
        assert!(flow[count].as_u64() > Some(MESSAGES.into()), "{flows}");
    }
    for (chain, nodes) in [("requests", ["n1", "n2"]), ("replies", ["n2", "n1"])] {
        let status = myelin.run_json(&["ps", chain, "--json"]);
        let parts = status["parts"].as_array().unwrap();
        assert!(parts.iter().map(|part| &part["node"]).eq(nodes), "{status}");
        for part in parts {
            assert!(
                part["packets_out"].as_u64() > Some(MESSAGES.into()),
                "{status}"
            );
        }
    }
    myelin.run_ok(&["down", file]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
