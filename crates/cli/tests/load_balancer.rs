//! A load balancer spreads flows over two addresses, keeps each flow on one, and restores the
//! source address of replies.

mod common;

use std::process::{Child, Stdio};

use common::{Myelin, skip_unless_root, skip_without};

fn chain_file(space: &str, backends: &str) -> String {
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

/// Listens on two addresses; replies with the last number of the address.
const SERVE: &str = "
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
const ASK: &str = "
import socket
for port in range(20000, 20040):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('10.0.0.1', port))
    s.connect(('10.0.0.2', 9000))
    s.settimeout(2)
    seen = []
    for _ in range(3):
        s.send(b'question')
        seen.append(s.recv(2048).decode())
    print(*seen)
";

struct Server(Child);

impl Server {
    /// Adds two addresses to the server host, which only the list of backends names.
    fn start(myelin: &Myelin) -> Self {
        for last in [11, 12] {
            let address = format!("10.0.0.{last}/32");
            myelin.ok(&[
                "exec", "server", "--", "ip", "address", "add", &address, "dev", "eth0",
            ]);
        }
        let mut child = myelin
            .command(&["exec", "server", "--", "python3", "-c", SERVE])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut ready = [0; 6];
        let output = child.stdout.as_mut().expect("its output");
        std::io::Read::read_exact(output, &mut ready).expect("it is ready");
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
fn ask(myelin: &Myelin) -> Vec<String> {
    let text = myelin.ok(&["exec", "client", "--", "python3", "-c", ASK]);
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

fn spreads(space: &str) {
    let myelin = Myelin::new();
    let both = chain_file(space, "{ address: 10.0.0.11 }, { address: 10.0.0.12 }");
    let file = myelin.file(&both);
    myelin.ok(&["up", file.to_str().expect("a path")]);
    let server = Server::start(&myelin);
    let first = ask(&myelin);
    for last in ["11", "12"] {
        let share = first.iter().filter(|answer| *answer == last).count();
        assert!((8..=32).contains(&share), "{share} flows to 10.0.0.{last}");
    }
    assert_eq!(ask(&myelin), first);
    let status = myelin.json(&["ps", "--json"]);
    for chain in status.as_array().expect("a list") {
        assert_eq!(chain["packets_out"], 240, "{chain}");
        assert_eq!(chain["hops"][0]["drops"], 0, "{chain}");
        assert_eq!(chain["hops"][0]["space"], space, "{chain}");
    }
    let flows = myelin.json(&["ps", "--flows", "--json"]);
    let known = &flows[0];
    assert_eq!(
        (&known["begun"], &known["evicted"]),
        (&40.into(), &0.into()),
        "{known}"
    );
    let flows = known["flows"].as_array().expect("a list");
    assert!(
        flows.len() == 40 && flows.iter().all(|flow| flow["packets"] == 6),
        "{known}"
    );
    for flow in flows {
        let port = flow["source_port"].as_u64().expect("a port") as usize;
        let answered = format!("10.0.0.{}", first[port - 20_000]);
        assert_eq!(flow["backend"], *answered, "{flow}");
    }
    let table = myelin.ok(&["ps", "--flows"]);
    assert!(table.contains("backend"), "{table}");
    drop(server);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_load_balancer_in_the_kernel_spreads_flows_and_restores_reply_sources() {
    if !skip_unless_root() && !skip_without("python3") {
        spreads("kernel");
    }
}

#[test]
fn a_load_balancer_in_user_space_spreads_flows_and_restores_reply_sources() {
    if !skip_unless_root() && !skip_without("python3") {
        spreads("user");
    }
}

#[test]
fn a_load_balancer_without_backends_counts_packets_as_drops() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(&chain_file("kernel", ""));
    myelin.ok(&["up", file.to_str().expect("a path")]);
    let send = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(5): s.sendto(b'x', ('10.0.0.2', 9000))";
    myelin.ok(&["exec", "client", "--", "python3", "-c", send]);
    let status = myelin.json(&["ps", "--json"]);
    let there = status
        .as_array()
        .expect("a list")
        .iter()
        .find(|chain| chain["chain"] == myelin.chain("there").as_str())
        .expect("the chain");
    assert_eq!(there["hops"][0]["drops"], 5, "{there}");
    assert_eq!(there["packets_out"], 0, "{there}");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}
