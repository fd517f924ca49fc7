//! Fragmented datagrams through chains whose match names a port: all fragments take the chain of
//! the first one, in both spaces and both families.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::port_pair::PortPair;
use common::{Myelin, sh, skip_unless_root, wait_for};
use serde_json::Value;

const SIZES: [usize; 3] = [3000, 9000, 60_000];
const PORT: u16 = 9000;

/// A client and a server with addresses of one family.
struct Hosts {
    pair: PortPair,
    is_ipv6: bool,
}

impl Hosts {
    fn new(is_ipv6: bool) -> Self {
        let pair = PortPair::new();
        let client = pair.client_namespace();
        let server = pair.server_namespace();
        sh(&format!(
            "ip -n {client} addr add fd77::1/64 dev eth0 nodad
             ip -n {server} addr add fd77::2/64 dev eth0 nodad
             ip -n {client} neigh add fd77::2 lladdr {} dev eth0
             mac=$(ip netns exec {client} cat /sys/class/net/eth0/address)
             ip -n {server} neigh add fd77::1 lladdr $mac dev eth0",
            pair.server_mac()
        ));
        Self { pair, is_ipv6 }
    }

    fn addresses(&self) -> [&'static str; 2] {
        if self.is_ipv6 {
            ["fd77::1", "fd77::2"]
        } else {
            ["10.77.0.1", "10.77.0.2"]
        }
    }

    /// Returns the number of fragments of a datagram.
    fn count_fragments(&self, size: usize) -> u64 {
        // A fragment header of IPv6 has 8 bytes.
        let room = if self.is_ipv6 { 1448 } else { 1480 };
        (size + 8).div_ceil(room) as u64
    }

    /// Opens the sockets of the client and the server.
    fn open_sockets(&self) -> (UdpSocket, UdpSocket) {
        let [client, server] = self.addresses();
        let open = |netns: myelin_linux::netns::Netns, address: &'static str, port: u16| {
            let bind = move || UdpSocket::bind((address, port)).unwrap();
            netns.enter(bind).unwrap()
        };
        let server = open(self.pair.open_server(), server, PORT);
        let timeout = Some(Duration::from_secs(20));
        server.set_read_timeout(timeout).unwrap();
        (open(self.pair.open_client(), client, 0), server)
    }

    /// Sends one fragment of a datagram of 32 bytes with this identification; `first` has 16 bytes
    /// with the UDP header.
    fn send_fragment(&self, identification: u16, first: bool) {
        let [client, server] = self.addresses();
        let program = format!(
            "
import socket, struct
v6 = {v6}
family = socket.AF_INET6 if v6 else socket.AF_INET
a, b = (socket.inet_pton(family, x) for x in (\"{client}\", \"{server}\"))
udp = struct.pack(\"!HHHH\", 5000, {PORT}, 40, 0) + bytes(32)
total = sum(struct.unpack(\"!20H\", udp)) + 17 + len(udp)
total += sum(struct.unpack(\"!%dH\" % (len(a) // 2), a)) + sum(struct.unpack(\"!%dH\" % (len(b) // 2), b))
while total > 0xffff: total = (total >> 16) + (total & 0xffff)
udp = udp[:6] + struct.pack(\"!H\", ~total & 0xffff) + udp[8:]
part = udp[:24] if {first} else udp[24:]
units = 0 if {first} else 3
if v6:
    frag = struct.pack(\"!BBHI\", 17, 0, units << 3 | {first}, {identification})
    head = struct.pack(\"!IHBB\", 6 << 28, len(part) + 8, 44, 64) + a + b + frag
else:
    head = struct.pack(\"!BBHHHBBH\", 0x45, 0, 20 + len(part), {identification}, {first} << 13 | units, 64, 17, 0) + a + b
s = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
s.sendto(head + part, (\"{server}\", 0))
",
            v6 = u8::from(self.is_ipv6),
            first = u8::from(first),
        );
        self.pair.run_on_client(&program);
    }

    fn chain(&self, function: &str, space: &str, fragments: &str) -> String {
        let [_, server] = self.addresses();
        format!(
            "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @f }}
spec:
  match: {{ protocol: udp, destination: '{server}', destinationPort: {PORT}{fragments} }}
  ports: {{ ingress: {}, egress: {} }}
  functions: [ {{ name: one, {function}, space: {space} }} ]
",
            self.pair.ingress, self.pair.egress
        )
    }
}

fn read_count(status: &Value, key: &str) -> u64 {
    let count = status[key].as_u64();
    count.unwrap_or_else(|| panic!("{key}: {status}"))
}

fn wait_for_counts(myelin: &Myelin, expected: [(&str, u64); 2]) {
    let mut status = Value::Null;
    let reached = common::becomes_true(|| {
        status = myelin.read_status("f");
        expected
            .iter()
            .all(|(key, count)| read_count(&status, key) == *count)
    });
    assert!(reached, "{expected:?}: {status}");
}

/// Runs `check` with a chain of this function, for both families and both spaces.
fn for_each_chain(function: &str, check: impl Fn(&Myelin, &Hosts, &str)) {
    for is_ipv6 in [false, true] {
        let hosts = Hosts::new(is_ipv6);
        for space in ["kernel", "user"] {
            println!("{function}, {space}, IPv6: {is_ipv6}");
            let myelin = Myelin::new();
            let file = myelin.write_file(&hosts.chain(function, space, ""));
            myelin.run_ok(&["up", file.to_str().unwrap()]);
            check(&myelin, &hosts, space);
        }
    }
}

/// Sends a datagram of each size. Returns the number of fragments.
fn send_datagrams(hosts: &Hosts, client: &UdpSocket) -> u64 {
    let [_, server] = hosts.addresses();
    for size in SIZES {
        client.send_to(&vec![7; size], (server, PORT)).unwrap();
    }
    SIZES.iter().map(|&size| hosts.count_fragments(size)).sum()
}

#[test]
fn a_monitor_counts_and_passes_every_fragment() {
    if skip_unless_root() {
        return;
    }
    for_each_chain("kind: monitor", |myelin, hosts, _| {
        let (client, server) = hosts.open_sockets();
        let sent = send_datagrams(hosts, &client);
        let mut buffer = vec![0; 65_536];
        for size in SIZES {
            let received = server.recv(&mut buffer).unwrap();
            assert_eq!(received, size);
            assert!(buffer[..size].iter().all(|&byte| byte == 7));
        }
        wait_for_counts(myelin, [("packets_in", sent), ("packets_out", sent)]);

        // The later fragment comes first: dropped and counted. Then in order: both pass.
        hosts.send_fragment(0x7701, false);
        wait_for_counts(myelin, [("packets_in", sent), ("dropped_fragments", 1)]);
        let shown = myelin.run_ok(&["ps", &myelin.chain_name("f")]);
        assert!(shown.contains("1 dropped at the ingress"), "{shown}");
        hosts.send_fragment(0x7702, true);
        hosts.send_fragment(0x7702, false);
        assert_eq!(server.recv(&mut buffer).unwrap(), 32);
        wait_for_counts(myelin, [("packets_in", sent + 2), ("dropped_fragments", 1)]);
    });
}

/// The front door in a worker: a packet socket behind an entry link.
#[test]
fn a_worker_that_takes_super_packets_follows_fragments_too() {
    if skip_unless_root() {
        return;
    }
    for is_ipv6 in [false, true] {
        let hosts = Hosts::new(is_ipv6);
        let myelin = Myelin::new();
        let mut chain = hosts.chain("kind: monitor", "user", "");
        chain += "  worker: { superPackets: true }\n";
        let file = myelin.write_file(&chain);
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let (client, server) = hosts.open_sockets();
        let sent = send_datagrams(&hosts, &client);
        for size in SIZES {
            assert_eq!(server.recv(&mut vec![0; 65_536]).unwrap(), size);
        }
        wait_for_counts(&myelin, [("packets_in", sent), ("packets_out", sent)]);
        hosts.send_fragment(0x7701, false);
        wait_for_counts(&myelin, [("packets_in", sent), ("dropped_fragments", 1)]);
    }
}

/// Checks that a chain of this function drops all fragments.
fn assert_drops_all(function: &str) {
    for_each_chain(function, |myelin, hosts, _| {
        let before = hosts.pair.count_received();
        let (client, server) = hosts.open_sockets();
        let sent = send_datagrams(hosts, &client);
        wait_for_counts(myelin, [("packets_in", sent), ("drops", sent)]);
        server.set_nonblocking(true).unwrap();
        assert!(server.recv(&mut [0; 16]).is_err());
        // The server may receive neighbour discovery.
        assert!(hosts.pair.count_received() < before + sent);
    });
}

#[test]
fn a_firewall_that_denies_all_lets_no_fragment_through() {
    if skip_unless_root() {
        return;
    }
    assert_drops_all("kind: firewall, config: { default: deny }");
}

/// The server receives whole datagrams from the external address.
#[test]
fn nat_translates_every_fragment() {
    if skip_unless_root() {
        return;
    }
    let function = "kind: nat, config: { address: [ 10.77.0.9, 'fd77::9' ] }";
    for_each_chain(function, |myelin, hosts, _| {
        let (client, server) = hosts.open_sockets();
        let sent = send_datagrams(hosts, &client);
        let external = if hosts.is_ipv6 {
            "fd77::9"
        } else {
            "10.77.0.9"
        };
        let external: std::net::IpAddr = external.parse().unwrap();
        let mut buffer = vec![0; 65_536];
        for size in SIZES {
            let (received, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!((received, from.ip()), (size, external));
            assert!(buffer[..size].iter().all(|&byte| byte == 7));
        }
        wait_for_counts(myelin, [("packets_in", sent), ("packets_out", sent)]);
    });
}

/// A later fragment takes from the bucket of its chain like any packet.
#[test]
fn a_policer_drops_fragments_above_the_profile() {
    if skip_unless_root() {
        return;
    }
    for is_ipv6 in [false, true] {
        let hosts = Hosts::new(is_ipv6);
        for space in ["kernel", "user"] {
            let myelin = Myelin::new();
            let chain = hosts.chain("kind: forward", space, "")
                + "  sla: { rate: 1pps, burst: 3, enforce: policer }\n";
            let file = myelin.write_file(&chain);
            myelin.run_ok(&["up", file.to_str().unwrap()]);
            let (client, server) = hosts.open_sockets();
            let (size, [_, to]) = (60_000, hosts.addresses());
            client.send_to(&vec![7; size], (to, PORT)).unwrap();
            wait_for_counts(
                &myelin,
                [("packets_in", hosts.count_fragments(size)), ("drops", 0)],
            );
            wait_for("all fragments in the account", || {
                let status = myelin.read_status("f");
                let out = read_count(&status, "packets_out");
                out >= 3 && out + read_count(&status, "policed") == hosts.count_fragments(size)
            });
            assert!(read_count(&myelin.read_status("f"), "policed") > 0);
            server.set_nonblocking(true).unwrap();
            assert!(
                server.recv(&mut [0; 16]).is_err(),
                "a datagram passed the policer"
            );
        }
    }
}

#[test]
fn xor_drops_every_fragment() {
    if skip_unless_root() {
        return;
    }
    assert_drops_all("kind: xor, config: { key: 0x5a }");
}

#[test]
fn a_match_drops_or_passes_fragments_after_a_live_change() {
    if skip_unless_root() {
        return;
    }
    let hosts = Hosts::new(false);
    let myelin = Myelin::new();
    let up = |fragments| {
        let file = myelin.write_file(&hosts.chain("kind: forward", "kernel", fragments));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
    };
    let (client, _server) = hosts.open_sockets();
    let dropped = || read_count(&myelin.read_status("f"), "dropped_fragments");
    up("");
    let sent = send_datagrams(&hosts, &client);
    wait_for_counts(&myelin, [("packets_in", sent), ("dropped_fragments", 0)]);
    up(", fragments: drop");
    send_datagrams(&hosts, &client);
    wait_for("dropped fragments", || dropped() == sent);
    // The fragments pass by the chain, into the host's stack.
    up(", fragments: pass");
    send_datagrams(&hosts, &client);
    up("");
    send_datagrams(&hosts, &client);
    wait_for_counts(
        &myelin,
        [("packets_in", 2 * sent), ("dropped_fragments", sent)],
    );
}
