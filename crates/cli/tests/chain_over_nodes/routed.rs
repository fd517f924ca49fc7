//! Chains over nodes that a router separates: the parts exchange frames in VXLAN.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;
use serde_json::Value;

use super::lab::up;
use crate::common::{Myelin, repository_root, sh, skip_unless_root, wait_for};

/// `h1 -- n1 -- r1 -- n2 -- h2`, and a chain over both nodes in each direction.
const ROUTED: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @line }
spec:
  hosts: [ h1, h2 ]
  nodes: [ n1, n2 ]
  routers: [ { name: r1, addresses: [ NEAR, FAR ] } ]
  links:
    - { ends: [ h1, n1 ] }
    - { ends: [ n1, r1 ], delay: 1ms }
    - { ends: [ r1, n2 ] }
    - { ends: [ n2, h2 ] }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @over }
spec:
  match: { protocol: udp, destinationPort: 9000 }
  functions:
    - { name: f0, kind: xor, node: n1, config: { key: 1 }, space: kernel }
    - { name: f1, kind: xor, node: n2, config: { key: 2 }, space: user }
  sla: { rate: 1kpps, burst: 16, latency: 2s, enforce: policer }
  reverse: @back
  ports: { ingress: @line/h1, egress: @line/h2 }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @back }
spec:
  match: { protocol: udp, sourcePort: 9000 }
  functions:
    - { name: b0, kind: xor, node: n2, config: { key: 4 } }
    - { name: b1, kind: xor, node: n1, config: { key: 8 } }
";

/// The links of the router, and the addresses of both hosts, in one family.
struct Family {
    routers: [&'static str; 2],
    hosts: [&'static str; 2],
}

const IPV4: Family = Family {
    routers: ["10.1.0.254/24", "10.2.0.254/24"],
    hosts: ["10.1.0.1", "10.2.0.1"],
};
const IPV6: Family = Family {
    routers: ["'fd01::fe/64'", "'fd02::fe/64'"],
    hosts: ["[fd01::1]", "[fd02::1]"],
};

struct Routed {
    myelin: Myelin,
    client: UdpSocket,
    server: UdpSocket,
    target: String,
}

impl Routed {
    fn up(family: &Family) -> Self {
        let myelin = Myelin::new_shared();
        let [near, far] = family.routers;
        up(&myelin, &ROUTED.replace("NEAR", near).replace("FAR", far));
        let socket = |host: &str, address: String| {
            let netns = Netns::open(&netns(&myelin, host)).unwrap();
            let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
            let timeout = Duration::from_millis(200);
            socket.set_read_timeout(Some(timeout)).unwrap();
            socket
        };
        let [client, server] = family.hosts;
        let target = format!("{server}:9000");
        let (client, server) = (
            socket("h1", format!("{client}:5000")),
            socket("h2", target.clone()),
        );
        Self {
            myelin,
            client,
            server,
            target,
        }
    }

    /// Sends a byte to the server; returns the byte that arrives.
    fn ask(&self, sent: u8) -> Option<u8> {
        let mut byte = [0; 8];
        let _ = self.client.send_to(&[sent], &self.target);
        self.server.recv(&mut byte).ok().map(|_| byte[0])
    }

    /// Sends a byte to the client; returns the byte that arrives.
    fn reply(&self, sent: u8) -> Option<u8> {
        let mut byte = [0; 8];
        let client = self.client.local_addr().unwrap();
        let _ = self.server.send_to(&[sent], client);
        self.client.recv(&mut byte).ok().map(|_| byte[0])
    }

    fn expect_both_ways(&self) {
        wait_for("a changed byte", || self.ask(0x40) == Some(0x43));
        wait_for("a changed reply", || self.reply(0x40) == Some(0x4c));
    }

    fn status(&self, chain: &str) -> Value {
        let name = self.myelin.chain_name(chain);
        self.myelin.run_json(&["ps", &name, "--json"])
    }

    fn end(self) {
        drop((self.client, self.server));
        self.myelin.run_ok(&["down", "--all"]);
        self.myelin.assert_clean();
    }
}

fn netns(myelin: &Myelin, host: &str) -> String {
    format!("myelin-{}-{host}", myelin.chain_name("line"))
}

/// The number of frames of VXLAN among `frames` of a capture.
fn count_tunnelled(capture: &[u8]) -> usize {
    // The port 4789 in the UDP header of IPv4 and of IPv6.
    let ends = [36, 56];
    let mut frames = Vec::new();
    let mut rest = &capture[24.min(capture.len())..];
    while rest.len() >= 16 {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(&rest[16..(16 + length).min(rest.len())]);
        rest = &rest[(16 + length).min(rest.len())..];
    }
    let is_vxlan = |frame: &&&[u8]| {
        ends.iter()
            .any(|at| frame.get(*at..at + 2) == Some(&[0x12, 0xb5][..]))
    };
    frames.iter().filter(is_vxlan).count()
}

#[test]
fn packets_pass_nodes_on_both_sides_of_a_router() {
    if skip_unless_root() {
        return;
    }
    for family in [IPV4, IPV6] {
        let lab = Routed::up(&family);
        lab.expect_both_ways();
        // Other packets pass the router too.
        let host = family.hosts[1].trim_matches(['[', ']']);
        lab.myelin
            .run_ok(&["exec", "h1", "--", "ping", "-c", "1", "-W", "20", host]);
        let status = lab.status("line");
        assert_eq!(status["hosts"][4]["is_router"], true, "{status}");
        let graph = lab
            .myelin
            .run_ok(&["graph", &lab.myelin.chain_name("line")]);
        assert!(
            graph.contains("1 router,") && graph.contains("r1  router "),
            "{graph}"
        );

        // The chain's frames between the nodes are in the tunnel.
        let file = lab.myelin.write_file("");
        let link = format!("{}/n1-r1", lab.myelin.chain_name("line"));
        let capture = lab
            .myelin
            .command(&["pcap", &link, file.to_str().unwrap()])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for("frames in VXLAN", || {
            let _ = lab.ask(0x40);
            count_tunnelled(&std::fs::read(&file).unwrap_or_default()) >= 3
        });
        let mut capture = capture;
        sh(&format!("kill -INT {}", capture.id()));
        capture.wait().unwrap();
        lab.end();
    }
}

#[test]
fn changed_delays_and_faults_of_links_to_a_router_act_on_the_chain() {
    if skip_unless_root() {
        return;
    }
    let lab = Routed::up(&IPV4);
    lab.expect_both_ways();
    let line = lab.myelin.chain_name("line");
    let slow = format!("{line}/n1-r1");
    lab.myelin.run_ok(&["link", &slow, "--delay", "150ms"]);
    let patience = Duration::from_secs(20);
    lab.server.set_read_timeout(Some(patience)).unwrap();
    let start = Instant::now();
    assert_eq!(lab.ask(0x40), Some(0x43));
    assert!(start.elapsed() >= Duration::from_millis(150));
    lab.myelin.run_ok(&["link", &slow, "--delay", "0ms"]);
    let short = Duration::from_millis(200);
    lab.server.set_read_timeout(Some(short)).unwrap();

    // The kernel of a host forgets the route to its gateway with the link; the agent gives it back.
    for link in ["r1-n2", "h1-n1"] {
        let link = format!("{line}/{link}");
        lab.myelin.run_ok(&["link", &link, "--down"]);
        wait_for("silence", || lab.ask(0x40).is_none());
        lab.myelin.run_ok(&["link", &link, "--up"]);
        wait_for("a packet behind the fault", || lab.ask(0x40) == Some(0x43));
    }
    lab.expect_both_ways();
    lab.end();
}

/// Frames in VXLAN that the neighbour did not send, from the side of the router and of the host.
#[test]
fn forged_tunnels_are_dropped() {
    if skip_unless_root() {
        return;
    }
    let lab = Routed::up(&IPV4);
    lab.expect_both_ways();
    let count = |node: usize, name: &str| {
        let part = lab.status("over")["parts"][node].clone();
        let [at, part] = ["node", "part"].map(|key| part[key].as_str().unwrap().to_owned());
        let status = lab.myelin.run_json(&["--node", &at, "ps", &part, "--json"]);
        status[0]["part"][name].as_u64().unwrap()
    };
    let before = [count(1, "foreign"), count(0, "unknown")];
    let path = lab.status("over")["path"].as_u64().unwrap();
    let send = |host: &str, to: &str, vni: u64| {
        // VXLAN, Ethernet, NSH of the second part (position 1), and a packet.
        let script = format!(
            "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
vxlan = bytes([8, 0, 0, 0]) + ({vni} << 8).to_bytes(4, 'big')
nsh = bytes(12) + b'\\x89\\x4f' + (0x0fc60103).to_bytes(4, 'big') + ({path} << 8 | 254).to_bytes(4, 'big') + bytes(16)
for i in range(3): s.sendto(vxlan + nsh + bytes(60), ('{to}', 4789))"
        );
        let netns = netns(&lab.myelin, host);
        let done = std::process::Command::new("ip")
            .args(["netns", "exec", &netns, "python3", "-c", &script])
            .status()
            .unwrap();
        assert!(done.success());
    };
    // The router is not n1, whatever the identifier.
    send("r1", "10.2.0.2", path);
    send("r1", "10.2.0.2", 7);
    wait_for("foreign frames", || count(1, "foreign") >= before[0] + 6);
    // A host never sends NSH.
    send("h1", "10.2.0.2", path);
    wait_for("frames of users", || count(0, "unknown") >= before[1] + 3);
    assert_eq!(count(1, "foreign"), before[0] + 6);
    lab.expect_both_ways();
    lab.end();
}

#[test]
fn the_example_with_a_router_runs_as_it_stands() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = repository_root().join("examples/chain-over-router.yaml");
    let file = file.to_str().unwrap();
    assert!(myelin.run_ok(&["plan", file]).contains("2 nodes, 1 router"));
    myelin.run_ok(&["up", file]);
    wait_for("a packet that left the last node", || {
        let send = "echo x > /dev/udp/10.2.0.1/9000";
        myelin.run_ok(&["exec", "h1", "--", "bash", "-c", send]);
        let status = myelin.run_json(&["ps", "h1-to-h2", "--json"]);
        status["packets_out"].as_u64() > Some(0)
    });
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
