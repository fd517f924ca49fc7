//! Chains on links that Myelin did not make: veth pairs with the kernel's default offloads. Their
//! senders leave checksums and segmentation to the link, and no far end has NAPI.

mod common;
#[path = "own_links/iperf.rs"]
mod iperf;
#[path = "own_links/mtu.rs"]
mod mtu;
#[path = "own_links/offloads.rs"]
mod offloads;

use std::net::{SocketAddr, UdpSocket};

use common::port_chains::{assert_untouched, pass_ten};
use common::port_pair::{PortPair, skip_without_link_kind};
use common::streams::{PATIENCE, Streams};
use common::{Myelin, skip_unless_root, wait_for};

/// Functions of a chain, and lines of its `spec`.
const CHAINS: [(&str, &str, &str); 10] = [
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
        "super-packets",
        "[ { name: a, kind: monitor }, { name: b, kind: firewall } ]",
        SUPER_PACKETS,
    ),
    (
        "super-packets in batches",
        "[ { name: a, kind: forward }, { name: b, kind: flow-tracker } ]",
        "  worker: { superPackets: true, batch: 32 }\n",
    ),
    (
        "distributed",
        "[ { name: a, kind: monitor, space: kernel }, { name: b, kind: monitor, space: user } ]",
        "  mapping: distributed\n",
    ),
    (
        "distributed, kernel function last",
        "[ { name: a, kind: monitor, space: user }, { name: b, kind: firewall, space: kernel } ]",
        "  mapping: distributed\n",
    ),
];
const SUPER_PACKETS: &str = "  worker: { superPackets: true }\n";
const CODER_IN_KERNEL: &str = "[ { name: a, kind: xor, space: kernel, config: { key: 90 } }, { name: b, kind: xor, space: kernel, config: { key: 90 } } ]";

/// The server's addresses.
const SERVERS: [&str; 2] = ["10.77.0.2", "fd77::2"];

#[test]
fn datagrams_pass_chains_between_hosts_with_default_offloads() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    ports.add_ipv6();
    for server in SERVERS {
        let bind = || UdpSocket::bind((server, 9000)).unwrap();
        let socket = ports.open_server().enter(bind).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for (name, functions, spec) in CHAINS {
            let name = format!("{name}, {server}");
            let text = ports.both_ways(functions, spec);
            let file = myelin.write_file(&text.replace(SERVERS[0], server));
            myelin.run_ok(&["up", file.to_str().unwrap()]);
            pass_datagrams(&myelin, &ports, (server, &socket), &name);
            myelin.run_ok(&["down", "--all"]);
        }
    }
    drop(ports);
    myelin.assert_clean();
}

/// Passes ten datagrams with partial checksums, then two super-packets of ten datagrams each
/// (`SOL_UDP`, `UDP_SEGMENT`).
fn pass_datagrams(
    myelin: &Myelin,
    ports: &PortPair,
    (server, socket): (&str, &UdpSocket),
    name: &str,
) {
    ports.run_on_client(&format!(
        "import socket
s = socket.socket(socket.AF_INET6 if \":\" in \"{server}\" else socket.AF_INET, socket.SOCK_DGRAM)
s.connect((\"{server}\", 9000))
for i in range(10): s.send(bytes([i]) * 700)
s.setsockopt(17, 103, 700)
for i in range(10, 30, 10): s.send(b\"\".join(bytes([j]) * 700 for j in range(i, i + 10)))",
    ));
    let mut buffer = [0; 2000];
    for i in 0..30_u8 {
        let length = socket.recv(&mut buffer);
        let length = length.unwrap_or_else(|error| panic!("{name}: datagram {i}: {error}"));
        assert_eq!(&buffer[..length], &[i; 700], "{name}");
    }
    wait_for("all packets in the account", || {
        myelin.read_status("there")["packets_out"] == 30
    });
    let status = myelin.read_status("there");
    assert_eq!(status["packets_in"], 30, "{name}: {status}");
}

#[test]
fn streams_pass_chains_between_hosts_with_default_offloads() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    ports.add_ipv6();
    for server in SERVERS {
        let address = SocketAddr::new(server.parse().unwrap(), 9000).to_string();
        let streams = Streams::between(ports.open_client(), &ports.open_server(), &address);
        for (name, functions, spec) in CHAINS {
            let text = ports.both_ways(functions, spec);
            let file = myelin.write_file(&text.replace(SERVERS[0], server));
            myelin.run_ok(&["up", file.to_str().unwrap()]);
            streams.pass_both_ways(&format!("{name}, {server}"));
            myelin.run_ok(&["down", "--all"]);
        }
    }
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn streams_pass_chains_between_bridges_and_between_macvlans() {
    if skip_unless_root() {
        return;
    }
    for kind in ["bridge", "macvlan"] {
        pass_between_stacked_links(kind);
    }
}

#[test]
fn packets_pass_chains_between_vlan_devices() {
    if skip_unless_root() || skip_without_link_kind("vlan") {
        return;
    }
    pass_between_stacked_links("vlan");
}

#[test]
fn tagged_packets_pass_chains_between_veths() {
    if skip_unless_root() || skip_without_link_kind("vlan") {
        return;
    }
    let ports = PortPair::new();
    ports.move_hosts_into_vlan();
    pass_through_chains("tagged", ports);
}

#[test]
fn packets_pass_chains_between_bonds() {
    if skip_unless_root() || skip_without_link_kind("bond") {
        return;
    }
    pass_between_stacked_links("bond");
}

/// Passes packets through chains between links of this kind, each over a veth.
fn pass_between_stacked_links(kind: &str) {
    let mut ports = PortPair::new();
    ports.stack(kind);
    pass_through_chains(kind, ports);
}

/// Passes datagrams and streams through each of the chains.
fn pass_through_chains(kind: &str, ports: PortPair) {
    let myelin = Myelin::new();
    let streams = Streams::between(ports.open_client(), &ports.open_server(), "10.77.0.2:9000");
    for (name, functions, spec) in CHAINS {
        let name = format!("{kind}, {name}");
        let file = myelin.write_file(&ports.both_ways(functions, spec));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        pass_ten(&myelin, &ports, "there");
        streams.pass_both_ways(&name);
        wait_until_accounted(&myelin);
        myelin.run_ok(&["down", "--all"]);
        assert_untouched(&ports);
    }
    drop(ports);
    myelin.assert_clean();
}

/// Sends frames with the headers of `virtio_net` from the client's interface. Prints the number of
/// segments in the frames that the kernel took. Frames with other sizes than that of a segment do
/// not count.
const SEND_ODD_SUPER_PACKETS: &str = "
import socket, struct
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
link.setsockopt(263, 15, 1)
link.bind((\"eth0\", 0))
mac = bytes.fromhex(MAC)
def ip(protocol, options, length):
    return struct.pack(\">BBHHHBBH4s4s\", 0x45 + len(options) // 4, 0, 20 + len(options) + length, 7, 0, 64,
        protocol, 0, bytes([10, 77, 0, 1]), bytes([10, 77, 0, 2])) + options
def frame(protocol, options, tag, payload):
    body = bytes(payload)
    if protocol == 6: l4 = struct.pack(\">HHIIBBHHH\", 4000, 9001, 1, 1, 0x50, 0x18, 500, 0, 0)
    else: l4 = struct.pack(\">HHHH\", 4000, 9001, 8 + len(body), 0)
    return mac + bytes(6) + tag + b\"\\x08\\x00\" + ip(protocol, options, len(l4) + len(body)) + l4 + body
segments = 0
for protocol, gso, check in ((6, 1, 16), (17, 5, 6)):
    for options in (b\"\", b\"\\x01\" * 8):
        for tag in (b\"\", b\"\\x81\\x00\\x00\\x05\"):
            for size in (0, 1, 7, 1000, 1448, 9000, 65535):
                for start in (34, 42, 65000):
                    for flags in (0, 1):
                        header = struct.pack(\"<BBHHHH\", flags, gso, 54, size, start, check)
                        try: link.send(header + frame(protocol, options, tag, 4000))
                        except OSError: continue
                        if 0 < size < 4000: segments += -(-4000 // size)
print(segments)";

/// Waits until each packet that entered the chain has left, or is dropped or lost in its account.
fn wait_until_accounted(myelin: &Myelin) {
    wait_for("all packets in the account", || {
        let status = myelin.read_status("there");
        let count = |of: &serde_json::Value| {
            let parts = of.as_object().into_iter().flatten();
            parts.filter_map(|(_, count)| count.as_u64()).sum::<u64>()
        };
        let account = &status["account"];
        let gone = count(&account["dropped"]) + count(&account["lost"]);
        let out = status["packets_out"].as_u64().unwrap();
        status["packets_in"].as_u64().unwrap() == out + gone
    });
}

#[test]
fn odd_super_packets_stop_no_chain() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mac = ports.server_mac().replace(':', "");
    let program = SEND_ODD_SUPER_PACKETS.replace("MAC", &format!("\"{mac}\""));
    for (name, functions, spec) in CHAINS {
        let file = myelin.write_file(&ports.both_ways(functions, spec));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let segments: u64 = ports.run_on_client(&program).trim().parse().unwrap();
        assert!(
            segments > 4000,
            "{name}: the kernel took {segments} segments"
        );
        wait_for("the odd packets in the account", || {
            myelin.read_status("there")["packets_in"].as_u64() >= Some(segments)
        });
        // The datagrams must not meet a full ring.
        wait_until_accounted(&myelin);
        ports.send_ten(9000);
        let mut buffer = [0; 2000];
        for _ in 0..10 {
            let length = server.recv(&mut buffer);
            let length = length.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(&buffer[..length], [b'x'; 100], "{name}");
        }
        wait_until_accounted(&myelin);
        myelin.run_ok(&["down", "--all"]);
    }
    drop(ports);
    myelin.assert_clean();
}

/// A program between two packet sockets: the lines before its loop, and its loop.
const BLACK_BOX: &str = "
from socket import *
a = socket(AF_PACKET, SOCK_RAW, htons(3)); a.bind((\"ingress\", 0))
b = socket(AF_PACKET, SOCK_RAW); b.bind((\"egress\", 0))
while True:
    f, address = a.recvfrom(65536)
    if address[2] == PACKET_OUTGOING: continue
";
const FORWARD: &str = "    b.send(f)\n";
/// Swaps the addresses and ports of a datagram.
const ECHO: &str =
    "    a.send(f[6:12] + f[:6] + f[12:26] + f[30:34] + f[26:30] + f[36:38] + f[34:36] + f[38:])\n";

#[test]
fn packets_of_a_black_box_leave_at_interfaces_without_napi() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let up = |step: &str| {
        let program = myelin.write_file(&format!("{BLACK_BOX}{step}"));
        let program = program.to_str().unwrap();
        let functions = format!(
            "[ {{ name: box, kind: external, config: {{ startup: 500ms, command: [ python3, {program} ] }} }} ]"
        );
        let file = myelin.write_file(&ports.both_ways(&functions, "  mapping: distributed\n"));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
    };
    let address = "10.77.0.2:9000";
    up(FORWARD);
    let streams = Streams::between(ports.open_client(), &ports.open_server(), address);
    streams.pass_both_ways("forwarding black box");
    myelin.run_ok(&["down", "--all"]);
    up(ECHO);
    let bind = || UdpSocket::bind("10.77.0.1:9000").unwrap();
    let client = ports.open_client().enter(bind).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    for i in 0..10_u8 {
        client.send_to(&[i; 700], address).unwrap();
        let mut buffer = [0; 2000];
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..length], from.to_string().as_str()),
            (&[i; 700][..], address)
        );
    }
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn a_router_answers_senders_over_its_ingress_interface() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let config = "{ mtu: 1400, addresses: [ 10.77.0.254 ], routes: [ { prefix: 0.0.0.0/0 } ] }";
    // A datagram whose time to live expires, and one above the router's MTU that must not be
    // fragmented. The answers are in the error queue (ip(7)): type and code.
    let program = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(60)
s.setsockopt(0, 11, 1)
s.setsockopt(0, 10, 3)
s.connect((\"10.77.0.2\", 9000))
def answer(size, ttl):
    s.setsockopt(0, 2, ttl)
    s.send(bytes(size))
    try: s.recv(1)
    except TimeoutError: sys.exit(\"no answer\")
    except OSError: pass
    _, extra, _, _ = s.recvmsg(100, 1000, 0x2000)
    print(extra[0][2][5], extra[0][2][6])
answer(100, 1)
answer(1472, 64)";
    for (space, more) in [("user", ""), ("user", SUPER_PACKETS), ("kernel", "")] {
        let router = format!("[ {{ name: r, kind: router, space: {space}, config: {config} }} ]");
        let file = myelin.write_file(&ports.both_ways(&router, more));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        assert_eq!(
            ports.run_on_client(program),
            "11 0\n3 4\n",
            "{space} {more}"
        );
        myelin.run_ok(&["down", "--all"]);
    }
    drop(ports);
    myelin.assert_clean();
}
