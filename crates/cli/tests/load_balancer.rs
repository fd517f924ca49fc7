//! A load balancer spreads flows over two addresses, keeps the address of each flow, and restores
//! the source address of replies.

mod common;

use std::process::{Child, Stdio};

use common::{Myelin, skip_unless_root, skip_without, wait_for};

fn format_chain_pair(space: &str, backends: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @there }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32 }}
  functions:
    - {{ name: spread, kind: load-balancer, space: {space}, config: {{ backends: [ {backends} ] }} }}
  reverse: @back
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @back }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.1/32 }}
  functions:
    - {{ name: restore, kind: load-balancer, config: {{ reverseOf: spread }} }}
  reverse: @there
"
    )
}

/// Listens on two addresses; replies with the last byte of the address.
const SERVER: &str = "
import select, socket
sockets = []
for last in (11, 12):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('10.0.0.%d' % last, 9000))
    sockets.append((s, str(last).encode()))
print('ready', flush=True)
while True:
    for s, answer in sockets:
        if select.select([s], [], [], 0.002)[0]:
            data, client = s.recvfrom(2048)
            s.sendto(answer, client)
";

/// Sends three datagrams from each of 40 ports; prints the three replies of a port in one line. A
/// connected socket accepts replies only from the address that it sent to.
const CLIENT: &str = "
import socket
for port in range(20000, 20040):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('10.0.0.1', port))
    s.connect(('10.0.0.2', 9000))
    s.settimeout(60)
    seen = []
    for _ in range(3):
        s.send(b'question')
        seen.append(s.recv(2048).decode())
    print(*seen)
";

struct Server(Child);

impl Server {
    /// Adds the addresses of the backends to the server host, and starts the server.
    fn start(myelin: &Myelin) -> Self {
        for last in [11, 12] {
            let address = format!("10.0.0.{last}/32");
            myelin.run_ok(&[
                "exec", "server", "--", "ip", "address", "add", &address, "dev", "eth0",
            ]);
        }
        let mut child = myelin
            .command(&["exec", "server", "--", "python3", "-c", SERVER])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut ready = [0; 6];
        let output = child.stdout.as_mut().expect("standard output is piped");
        std::io::Read::read_exact(output, &mut ready).expect("the server is ready");
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the backend of each port; asserts that the three replies come from one backend.
fn query_backends(myelin: &Myelin) -> Vec<String> {
    let text = myelin.run_ok(&["exec", "client", "--", "python3", "-c", CLIENT]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 40, "{text}");
    lines
        .iter()
        .map(|line| {
            let seen: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(seen, [seen[0]; 3], "a flow changed its backend");
            seen[0].to_owned()
        })
        .collect()
}

fn assert_flows_are_spread(space: &str) {
    let myelin = Myelin::new();
    let both = format_chain_pair(space, "{ address: 10.0.0.11 }, { address: 10.0.0.12 }");
    let file = myelin.write_file(&both);
    myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
    let server = Server::start(&myelin);
    let first = query_backends(&myelin);
    for last in ["11", "12"] {
        let share = first.iter().filter(|answer| *answer == last).count();
        assert!((8..=32).contains(&share), "{share} flows to 10.0.0.{last}");
    }
    assert_eq!(query_backends(&myelin), first);
    // A worker counts a packet after it sent the packet.
    wait_for("the last counts", || {
        ["there", "back"].map(|name| myelin.read_status(name)["packets_out"].clone()) == [240, 240]
    });
    let status = myelin.run_json(&["ps", "--json"]);
    for chain in status.as_array().expect("the JSON is a list") {
        assert_eq!(chain["packets_out"], 240, "{chain}");
        assert_eq!(chain["hops"][0]["drops"], 0, "{chain}");
        assert_eq!(chain["hops"][0]["space"], space, "{chain}");
    }
    let flows = myelin.run_json(&["ps", "--flows", "--json"]);
    let function = &flows[0];
    assert_eq!(
        (&function["begun"], &function["evicted"]),
        (&40.into(), &0.into()),
        "{function}"
    );
    let flows = function["flows"].as_array().expect("the JSON is a list");
    assert!(
        flows.len() == 40 && flows.iter().all(|flow| flow["packets"] == 6),
        "{function}"
    );
    for flow in flows {
        let port = flow["source_port"]
            .as_u64()
            .expect("the flow has a source port") as usize;
        let answered = format!("10.0.0.{}", first[port - 20_000]);
        assert_eq!(flow["backend"], *answered, "{flow}");
    }
    let table = myelin.run_ok(&["ps", "--flows"]);
    assert!(table.contains("backend"), "{table}");
    drop(server);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_load_balancer_in_the_kernel_spreads_flows_and_restores_reply_sources() {
    if !skip_unless_root() && !skip_without("python3") {
        assert_flows_are_spread("kernel");
    }
}

#[test]
fn a_load_balancer_in_user_space_spreads_flows_and_restores_reply_sources() {
    if !skip_unless_root() && !skip_without("python3") {
        assert_flows_are_spread("user");
    }
}

#[test]
fn a_load_balancer_without_backends_counts_packets_as_drops() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&format_chain_pair("kernel", ""));
    myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
    let send = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(5): s.sendto(b'x', ('10.0.0.2', 9000))";
    myelin.run_ok(&["exec", "client", "--", "python3", "-c", send]);
    wait_for("five packets", || {
        myelin.read_status("there")["packets_in"] == 5
    });
    let status = myelin.run_json(&["ps", "--json"]);
    let there = status
        .as_array()
        .expect("the JSON is a list")
        .iter()
        .find(|chain| chain["chain"] == myelin.chain_name("there").as_str())
        .expect("the chain runs");
    assert_eq!(there["hops"][0]["drops"], 5, "{there}");
    assert_eq!(there["packets_out"], 0, "{there}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
