//! Chains on links that Myelin did not make: veth pairs with the kernel's default offloads. Their
//! senders leave checksums and segmentation to the link, and no far end has NAPI.

mod common;
#[path = "own_links/iperf.rs"]
mod iperf;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use common::port_pair::PortPair;
use common::{Myelin, skip_unless_root, wait_for};

/// Functions of a chain, and lines of its `spec`.
const CHAINS: [(&str, &str, &str); 7] = [
    ("user", "[ { name: a, kind: monitor, space: user } ]", ""),
    (
        "kernel",
        "[ { name: a, kind: firewall, space: kernel } ]",
        "",
    ),
    (
        "kernel at XDP",
        "[ { name: a, kind: monitor, space: kernel } ]",
        "  hook: xdp\n",
    ),
    ("payloads at tcx", CODER_IN_KERNEL, "  hook: tcx\n"),
    (
        "kernel, user, kernel",
        "[ { name: a, kind: firewall, space: kernel }, { name: b, kind: monitor, space: user }, { name: c, kind: forward, space: kernel } ]",
        "",
    ),
    (
        "both spaces change payloads",
        "[ { name: a, kind: xor, space: kernel, config: { key: 90 } }, { name: b, kind: xor, space: user, config: { key: 90 } } ]",
        "",
    ),
    (
        "distributed",
        "[ { name: a, kind: monitor, space: kernel }, { name: b, kind: monitor, space: user } ]",
        "  mapping: distributed\n",
    ),
];
const CODER_IN_KERNEL: &str = "[ { name: a, kind: xor, space: kernel, config: { key: 90 } }, { name: b, kind: xor, space: kernel, config: { key: 90 } } ]";
/// Longer than many super-packets.
const STREAM: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn datagrams_pass_chains_between_hosts_with_default_offloads() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    for (name, functions, spec) in CHAINS {
        let file = myelin.write_file(&ports.both_ways(functions, spec));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        // Ten datagrams with partial checksums, then two super-packets of ten datagrams each
        // (SOL_UDP, UDP_SEGMENT).
        ports.run_on_client(
            "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((\"10.77.0.2\", 9000))
for i in range(10): s.send(bytes([i]) * 700)
s.setsockopt(17, 103, 700)
for i in range(10, 30, 10): s.send(b\"\".join(bytes([j]) * 700 for j in range(i, i + 10)))",
        );
        let mut buffer = [0; 2000];
        for i in 0..30_u8 {
            let length = server.recv(&mut buffer);
            let length = length.unwrap_or_else(|error| panic!("{name}: datagram {i}: {error}"));
            assert_eq!(&buffer[..length], &[i; 700], "{name}");
        }
        wait_for("all packets in the account", || {
            myelin.read_status("there")["packets_out"] == 30
        });
        let status = myelin.read_status("there");
        assert_eq!(status["packets_in"], 30, "{name}: {status}");
        myelin.run_ok(&["down", "--all"]);
    }
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn streams_pass_chains_between_hosts_with_default_offloads() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let listen = || TcpListener::bind("10.77.0.2:9000").unwrap();
    let listener = ports.open_server().enter(listen).unwrap();
    let sent: Vec<u8> = (0..STREAM).map(|at| (at / 7) as u8).collect();
    for (name, functions, spec) in CHAINS {
        let file = myelin.write_file(&ports.both_ways(functions, spec));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let connect = || TcpStream::connect_timeout(&"10.77.0.2:9000".parse().unwrap(), PATIENCE);
        let mut client = ports.open_client().enter(connect).unwrap().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        pass_stream(&mut client, &mut server, &sent, name);
        pass_stream(&mut server, &mut client, &sent, name);
        drop((client, server));
        myelin.run_ok(&["down", "--all"]);
    }
    drop(ports);
    myelin.assert_clean();
}

fn pass_stream(from: &mut TcpStream, to: &mut TcpStream, sent: &[u8], name: &str) {
    let mut received = vec![0; sent.len()];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| from.write_all(sent));
        let read = to.read_exact(&mut received);
        read.unwrap_or_else(|error| panic!("{name}: {error}"));
        writer
            .join()
            .unwrap()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    });
    assert!(received == sent, "{name}: the stream arrived changed");
}
