//! Source NAT between end hosts: the server sees translated addresses, and replies and ICMP errors
//! reach the client.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Instant;

use common::{Myelin, skip_unless_root, skip_without, wait_for};
use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use serde_json::{Value, json};

const PAIR: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @out }
spec:
  match: { destination: 10.0.0.2 }
  functions:
    - { name: masquerade, kind: nat, SPACE config: { address: 198.51.100.7, ports: 20000-60000 } }
  reverse: @back
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @back }
spec:
  match: { source: 10.0.0.2, destination: 198.51.100.7 }
  functions:
    - { name: first, kind: forward }
    - { name: restore, kind: nat, config: { reverseOf: masquerade } }
  reverse: @out
";

/// Replies to each datagram and each connection with the peer's address and port and the data.
const SERVER: &str = "
import socket, threading
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(('10.0.0.2', 9000))
t = socket.create_server(('10.0.0.2', 9001))
def answer(data, peer):
    return peer[0].encode() + b' %d ' % peer[1] + data
def udp():
    while True:
        data, peer = u.recvfrom(2000)
        u.sendto(answer(data, peer), peer)
threading.Thread(target=udp, daemon=True).start()
print('ready', flush=True)
while True:
    c, peer = t.accept()
    data = b''
    while not data.endswith(b'.'):
        data += c.recv(65536)
    c.sendall(answer(data, peer))
    c.close()
";

/// Arguments: source address and port. Sends a datagram and prints the reply.
const UDP_CLIENT: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(60)
s.bind((sys.argv[1], int(sys.argv[2])))
s.sendto(b'hello', ('10.0.0.2', 9000))
data, peer = s.recvfrom(2000)
print(data.decode(), 'from', *peer)
";

/// Arguments: source address and port. Sends 100001 bytes and prints the reply and its length.
const TCP_CLIENT: &str = "
import socket, sys
s = socket.create_connection(('10.0.0.2', 9001), 60, (sys.argv[1], int(sys.argv[2])))
s.sendall(b'x' * 100000 + b'.')
data = b''
while part := s.recv(65536):
    data += part
print(data[:data.rindex(b' ')].decode(), len(data.split(b' ')[2]))
";

/// A server program. Dropping it kills the process.
struct Server(Child);

impl Server {
    fn start(myelin: &Myelin, program: &str) -> Self {
        let mut command = myelin.command(&["exec", "server", "--", "python3", "-c", program]);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let output = child.stdout.take().expect("standard output is piped");
        let mut line = String::new();
        BufReader::new(output.take(64))
            .read_line(&mut line)
            .expect("a line is readable");
        let server = Self(child);
        assert_eq!(line, "ready\n");
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Replaces the IPv4 addresses of a text with IPv6 addresses if `v6` is true.
fn convert_addresses(text: &str, v6: bool) -> String {
    if !v6 {
        return text.to_owned();
    }
    [
        ("10.0.0.", "fd00::"),
        ("198.51.100.7", "2001:db8::7"),
        ("AF_INET", "AF_INET6"),
        (
            "create_server(('fd00::2', 9001))",
            "create_server(('fd00::2', 9001), family=socket.AF_INET6)",
        ),
        ("*peer)", "*peer[:2])"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (v4, v6)| text.replace(v4, v6))
}

/// Compares the mappings of `ps --flows` with the addresses in the server's replies. All mappings
/// are younger than `start`.
fn assert_mappings(
    myelin: &Myelin,
    convert: &impl Fn(&str) -> String,
    second_port: u16,
    start: Instant,
) {
    let all = myelin.run_json(&["ps", "--flows", "--json"]);
    let longest_age_ms = start.elapsed().as_secs_f64() * 1e3;
    assert_eq!(all.as_array().unwrap().len(), 1, "both sides share a table");
    assert_eq!(all[0]["function"], "masquerade", "{all}");
    let mappings = all[0]["flows"].as_array().expect("the JSON is a list");
    let assert_mapping = |protocol: u8, inside: &str, port: u16| {
        let inside = convert(inside);
        let is_match = |entry: &&Value| entry["protocol"] == protocol && entry["source"] == *inside;
        let mapping = mappings
            .iter()
            .find(is_match)
            .expect("the table has the mapping");
        assert_eq!(mapping["source_port"], 40_000, "{mapping}");
        let translated = json!({ "address": convert("198.51.100.7"), "port": port });
        assert_eq!(mapping["translated"], translated, "{mapping}");
        assert_eq!(mapping["destination"], Value::Null, "{mapping}");
        let expires_in_ms = mapping["expires_in_ms"].as_f64().unwrap();
        let max_ms = if protocol == TCP { 240e3 } else { 120e3 };
        assert!(
            (max_ms - longest_age_ms..=max_ms).contains(&expires_in_ms),
            "{mapping}, at most {longest_age_ms} ms old"
        );
    };
    assert_mapping(UDP, "10.0.0.1", 40_000);
    // The connection is closed.
    assert_mapping(TCP, "10.0.0.1", 40_000);
    assert_mapping(UDP, "10.0.0.9", second_port);
    let is_echo = |entry: &&Value| entry["protocol"] == ICMP || entry["protocol"] == ICMPV6;
    assert_eq!(mappings.iter().filter(is_echo).count(), 1, "{all}");
    let table = myelin.run_ok(&["ps", "--flows"]);
    let translated =
        SocketAddr::new(convert("198.51.100.7").parse().unwrap(), second_port).to_string();
    assert!(
        table.contains(&translated) && !table.contains("packets"),
        "{table}"
    );
}

/// Asserts UDP, TCP and ping through NAT, and that mappings survive a live change of both chains.
fn assert_nat_translates(space: &str, v6: bool) {
    if skip_unless_root() || skip_without("python3") || skip_without("ping") {
        return;
    }
    let convert = |text: &str| convert_addresses(text, v6);
    let myelin = Myelin::new();
    let pair = convert(&PAIR.replace("SPACE", space));
    myelin.run_ok(&["up", myelin.write_file(&pair).to_str().unwrap()]);
    let server = Server::start(&myelin, &convert(SERVER));
    let start = Instant::now();
    let send = |program: &str, from: &str| {
        let (program, from) = (convert(program), convert(from));
        myelin.run_ok(&[
            "exec", "client", "--", "python3", "-c", &program, &from, "40000",
        ])
    };
    assert_eq!(
        send(UDP_CLIENT, "10.0.0.1"),
        convert("198.51.100.7 40000 hello from 10.0.0.2 9000\n"),
        "NAT keeps a free port"
    );
    assert_eq!(
        send(TCP_CLIENT, "10.0.0.1"),
        convert("198.51.100.7 40000 100001\n")
    );
    let ping = myelin.run_ok(&[
        "exec",
        "client",
        "--",
        "ping",
        "-c",
        "3",
        "-i",
        "0.05",
        "-W",
        "60",
        &convert("10.0.0.2"),
    ]);
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    // A second internal address sends from the same port.
    let second = convert("10.0.0.9") + if v6 { "/128" } else { "/32" };
    let mut add = vec![
        "exec", "client", "--", "ip", "address", "add", &second, "dev", "lo",
    ];
    if v6 {
        add.push("nodad");
    }
    myelin.run_ok(&add);
    let answer = send(UDP_CLIENT, "10.0.0.9");
    let port = answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap();
    assert!(
        answer.starts_with(&convert("198.51.100.7 "))
            && (20_000..=60_000).contains(&port)
            && port != 40_000,
        "{answer}"
    );
    assert_mappings(&myelin, &convert, port, start);
    for chain in myelin
        .run_json(&["ps", "--json"])
        .as_array()
        .expect("the JSON is a list")
    {
        for hop in chain["hops"].as_array().expect("the status lists hops") {
            assert_eq!(hop["drops"], 0, "{chain}");
            assert!(hop["packets_in"].as_u64().unwrap() > 10, "{chain}");
        }
    }
    // If the live change lost the mappings, the second address would get port 40000, because the
    // first address sends nothing after the change.
    let changed = pair
        .replace("    - { name: first, kind: forward }\n", "")
        .replace(
            "    - { name: masq",
            "    - { name: before, kind: forward }\n    - { name: masq",
        );
    myelin.run_ok(&["up", myelin.write_file(&changed).to_str().unwrap()]);
    assert_eq!(send(UDP_CLIENT, "10.0.0.9"), answer, "after the change");
    drop(server);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn kernel_nat_translates_ipv4_requests_and_replies() {
    assert_nat_translates("", false);
}

#[test]
fn user_space_nat_translates_ipv4_requests_and_replies() {
    assert_nat_translates("space: user,", false);
}

#[test]
fn kernel_nat_translates_ipv6_requests_and_replies() {
    assert_nat_translates("", true);
}

#[test]
fn user_space_nat_translates_ipv6_requests_and_replies() {
    assert_nat_translates("space: user,", true);
}

/// A host behind the server, which is its router. Prints its process id and waits for its link. Its
/// route advertises a segment that is too long for the link. Counts the bytes of each connection.
const FAR_HOST: &str = "
import os, socket, subprocess, time
print(os.getpid(), flush=True)
for command in (
    'ip link set eth0 up',
    'ip address add 10.9.0.99/PREFIX dev eth0 nodad',
    'ip route add default via 10.9.0.1 dev eth0 advmss 1420',
):
    while subprocess.run(command.split(), capture_output=True).returncode:
        time.sleep(0.01)
t = socket.create_server(('10.9.0.99', 9001)FAMILY)
print('ready', flush=True)
while True:
    c, peer = t.accept()
    length = 0
    while data := c.recv(65536):
        length += len(data)
    c.sendall(b'%d' % length)
    c.close()
";

/// Makes the server the router of the far host, over a link with an MTU of 1400.
const FAR_LINK: &str = "
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ip link add far mtu 1400 type veth peer name eth0 mtu 1400 netns PID
ip link set far up
ip address add 10.9.0.1/PREFIX dev far nodad
";

/// Sends 300000 bytes over the small link, then a datagram to a closed port.
const FAR_CLIENT: &str = "
import socket
s = socket.create_connection(('10.9.0.99', 9001), 60)
s.sendall(b'x' * 300000)
s.shutdown(socket.SHUT_WR)
print(s.recv(100).decode())
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(60)
u.connect(('10.9.0.99', 4444))
u.send(b'x')
try:
    u.recv(10)
except ConnectionRefusedError:
    print('refused')
";

/// Sends an ICMP error about no packet to the external address.
const FORGED_ERROR: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_PROTOCOL)
s.sendto(bytes([KIND, 3, 0xfc, 0xfc] + [0] * 60), ('198.51.100.7', 0))
";

/// Returns the dropped ICMP errors of the function `restore`.
fn dropped_errors(myelin: &Myelin) -> u64 {
    let chains = myelin.run_json(&["ps", "--json"]);
    let mut hops = chains
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|chain| chain["hops"].as_array().into_iter().flatten());
    let restore = hops.find(|hop| hop["name"] == "restore").unwrap();
    restore["counters"]["icmp-errors-dropped"].as_u64().unwrap()
}

/// Asserts that the ICMP errors of a router and of a host reach the client through NAT.
fn assert_errors_return(space: &str, v6: bool) {
    if skip_unless_root() || skip_without("python3") || skip_without("unshare") {
        return;
    }
    let (prefix, family) = if v6 {
        ("64", ", family=socket.AF_INET")
    } else {
        ("24", "")
    };
    let convert = |text: &str| {
        let text = text.replace("10.9.0.", if v6 { "fd00:9::" } else { "10.9.0." });
        let text = text.replace("PREFIX", prefix).replace("FAMILY", family);
        convert_addresses(&text, v6)
    };
    let myelin = Myelin::new();
    let pair = PAIR
        .replace("SPACE", space)
        .replace(
            "match: { destination: 10.0.0.2 }",
            "match: { source: 10.0.0.1 }",
        )
        .replace("source: 10.0.0.2, ", "");
    myelin.run_ok(&["up", myelin.write_file(&convert(&pair)).to_str().unwrap()]);
    let far_host = convert(FAR_HOST);
    let unshare = [
        "exec", "server", "--", "unshare", "--net", "python3", "-c", &far_host,
    ];
    let mut child = myelin
        .command(&unshare)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let far = Server(child);
    let id = lines.next().unwrap().unwrap();
    let link = convert(FAR_LINK).replace("PID", &id);
    myelin.run_ok(&["exec", "server", "--", "sh", "-ec", &link]);
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let client = convert(FAR_CLIENT);
    let answer = myelin.run_ok(&["exec", "client", "--", "python3", "-c", &client]);
    assert_eq!(answer, "300000\nrefused\n");
    assert_eq!(dropped_errors(&myelin), 0);
    let (protocol, kind) = if v6 { ("ICMPV6", "1") } else { ("ICMP", "3") };
    let forged = convert(FORGED_ERROR)
        .replace("PROTOCOL", protocol)
        .replace("KIND", kind);
    myelin.run_ok(&["exec", "server", "--", "python3", "-c", &forged]);
    wait_for("the error is counted", || dropped_errors(&myelin) == 1);
    drop(far);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn icmp_errors_pass_nat_in_the_kernel() {
    assert_errors_return("", false);
    assert_errors_return("", true);
}

#[test]
fn icmp_errors_pass_nat_in_user_space() {
    assert_errors_return("space: user,", false);
    assert_errors_return("space: user,", true);
}

#[test]
fn nat_with_its_reverse_in_user_space_refuses_mapping_distributed() {
    let myelin = Myelin::new();
    let text = PAIR.replace("SPACE", "space: user,").replace(
        "  reverse: @back",
        "  mapping: distributed\n  reverse: @back",
    );
    let error = myelin.run_failing(2, &["plan", myelin.write_file(&text).to_str().unwrap()]);
    assert!(
        error.contains("`masquerade`") && error.contains("mapping: compact"),
        "{error}"
    );
}
