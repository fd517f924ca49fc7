//! Helpers of the black-box tests: chain files, programs, status.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;

use crate::common::load::count_never_answered;
use crate::common::{Myelin, sh, wait_for};

/// Formats a chain of one black box whose shell runs `command`. `spec` holds further keys of the
/// chain.
pub(crate) fn format_chain(
    name: &str,
    port: u16,
    spec: &str,
    command: &str,
    startup: &str,
) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: {port} }}
{spec}
  functions:
    - name: box
      kind: external
      config:
        startup: {startup}
        command:
          - sh
          - -ec
          - |
{}
",
        indent(command)
    )
}

fn indent(text: &str) -> String {
    let lines = text.lines().map(|line| format!("            {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Forwards each frame from ingress to egress.
pub(crate) const FORWARDER: &str = "exec python3 -c '
import os
from socket import *
a = socket(AF_PACKET, SOCK_RAW, htons(3)); a.bind((os.environ[\"MYELIN_INGRESS\"], 0))
b = socket(AF_PACKET, SOCK_RAW); b.bind((\"{egress}\", 0))
while True:
    frame, address = a.recvfrom(65536)
    if address[2] != PACKET_OUTGOING:
        b.send(frame)
'";

/// Sends each frame back to its sender: swaps addresses and ports.
pub(crate) const ECHO: &str = "exec python3 -c '
from socket import *
a = socket(AF_PACKET, SOCK_RAW, htons(3)); a.bind((\"ingress\", 0))
b = socket(AF_PACKET, SOCK_RAW); b.bind((\"egress\", 0))
while True:
    f, address = a.recvfrom(65536)
    if address[2] != PACKET_OUTGOING:
        a.send(f[6:12] + f[:6] + f[12:26] + f[30:34] + f[26:30] + f[36:38] + f[34:36] + f[38:])
'";

/// Probes a chain; returns the row of the report, with `lost` without late packets.
pub(crate) fn probe(myelin: &Myelin, chain: &str, payload: &str) -> serde_json::Value {
    let arguments = [
        "probe",
        &myelin.chain_name(chain),
        "--mode",
        "inline",
        "--payload",
        payload,
        "--count",
        "150",
        "--repeats",
        "2",
        "--json",
    ];
    let output = myelin.run(&arguments);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let mut row = report["rows"][0].clone();
    row["lost"] = count_never_answered(&row).into();
    row
}

pub(crate) fn read_status(myelin: &Myelin, chain: &str) -> serde_json::Value {
    let all = myelin.run_json(&["ps", &myelin.chain_name(chain), "--json"]);
    all[0].clone()
}

/// Reads the status of the black box at this position of the chain.
pub(crate) fn read_black_box(myelin: &Myelin, chain: &str, position: usize) -> serde_json::Value {
    read_status(myelin, chain)["hops"][position]["black_box"].clone()
}

/// Sends `count` datagrams from the client, without waiting for replies.
pub(crate) fn send(myelin: &Myelin, chain: &str, port: u16, count: u32) {
    sh(&format!(
        "timeout 240 ip netns exec myelin-{}-client python3 -c \"
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range({count}):
    s.sendto(b'%06d' % i * 10, ('10.0.0.2', {port}))
    time.sleep(0.0005)\"",
        myelin.chain_name(chain)
    ));
}

/// Time to wait for a packet of a chain that must drop all packets.
pub(crate) const LOSS_WAIT: Duration = Duration::from_secs(2);
/// Longest time that a program takes to start on a busy machine.
pub(crate) const STARTUP_WAIT: Duration = Duration::from_secs(120);

/// Returns whether a datagram of the client reaches the server. Sends a datagram each 50 ms until
/// the first arrives.
pub(crate) fn can_reach_server(myelin: &Myelin, chain: &str, port: u16, timeout: Duration) -> bool {
    let chain = myelin.chain_name(chain);
    let socket = |role: &str, address: (&str, u16)| {
        let host = Netns::open(&format!("myelin-{chain}-{role}")).expect("the host exists");
        let bound = host.enter(|| UdpSocket::bind(address));
        bound
            .expect("the thread enters the namespace")
            .expect("the socket binds")
    };
    let server = socket("server", ("10.0.0.2", port));
    let client = socket("client", ("10.0.0.1", 0));
    let pause = Duration::from_millis(50);
    server
        .set_read_timeout(Some(pause))
        .expect("the timeout is set");
    let start = Instant::now();
    while start.elapsed() < timeout {
        let sent = client.send_to(&[b'x'; 40], ("10.0.0.2", port));
        sent.expect("the datagram is sent");
        if server.recv(&mut [0; 100]).is_ok() {
            return true;
        }
    }
    false
}

/// Waits until the shell of a black box has reached its last command, `exec sleep`.
pub(crate) fn wait_for_sleep(myelin: &Myelin, chain: &str) {
    let pid = read_black_box(myelin, chain, 0)["pid"].clone();
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    wait_for("the commands before `sleep`", || name() == "sleep\n");
    assert_eq!(name(), "sleep\n");
}
