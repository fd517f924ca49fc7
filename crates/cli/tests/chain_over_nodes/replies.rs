//! Pairs of chains over nodes: replies pass the nodes in the reverse order, and functions of both
//! directions share their state on their node.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use myelin_linux::netns::Netns;
use serde_json::Value;

use super::lab::up;
use crate::common::{Myelin, sh, skip_unless_root, wait_for};

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
