//! Routers forward traffic, decrement the TTL, and send ICMP time exceeded to the sender.

mod common;

use std::process::{Child, Stdio};

use common::port_pair::PortPair;
use common::{Myelin, becomes_true, sh, skip_unless_root, skip_without, wait_for};
use serde_json::Value;

fn format_chain(space: &str, routes: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @r }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32 }}
  functions:
    - {{ name: core, kind: router, space: {space}, config: {{ routes: [ {routes} ], addresses: [ 10.0.0.254 ] }} }}
"
    )
}

/// Receives one datagram on port 9000; prints its length and TTL. 12 is IP_RECVTTL.
const RECEIVE: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 12, 1)
s.bind(('10.0.0.2', 9000))
s.settimeout(60)
print('ready', flush=True)
data, ancillary, _, _ = s.recvmsg(2048, 64)
print(len(data), int.from_bytes(ancillary[0][2], 'little'))
";

/// Sends a datagram with the TTL of its first argument; prints source, type and code of the ICMP
/// error, if one arrives within the milliseconds of its second argument. 11 is IP_RECVERR, 0x2000
/// is MSG_ERRQUEUE.
const SEND: &str = "
import select, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, int(sys.argv[1]))
s.setsockopt(socket.IPPROTO_IP, 11, 1)
s.sendto(b'x' * 100, ('10.0.0.2', 9000))
poll = select.poll()
poll.register(s, 0)
if poll.poll(int(sys.argv[2])):
    _, ancillary, _, _ = s.recvmsg(2048, 512, 0x2000)
    error = ancillary[0][2]
    print(socket.inet_ntoa(error[20:24]), error[5], error[6])
";

fn start_receiver(myelin: &Myelin) -> Child {
    let mut child = myelin
        .command(&["exec", "server", "--", "python3", "-c", RECEIVE])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the receiver starts");
    let mut ready = [0; 6];
    let output = child.stdout.as_mut().expect("standard output is piped");
    std::io::Read::read_exact(output, &mut ready).expect("the receiver is ready");
    child
}

fn send(myelin: &Myelin, ttl: &str) -> String {
    run_sender(myelin, ttl, "700")
}

fn run_sender(myelin: &Myelin, ttl: &str, wait_ms: &str) -> String {
    myelin.run_ok(&["exec", "client", "--", "python3", "-c", SEND, ttl, wait_ms])
}

fn read_drops(myelin: &Myelin) -> u64 {
    let list = myelin.run_json(&["ps", "--json"]);
    list[0]["hops"][0]["drops"]
        .as_u64()
        .expect("the drops are a number")
}

/// Asserts that the router drops one packet.
fn expect_drop(myelin: &Myelin) {
    wait_for("a drop", || read_drops(myelin) == 1);
    assert_eq!(read_drops(myelin), 1);
}

/// Asserts that a router in this space forwards; returns the ICMP error that [`SEND`] prints for
/// TTL 1.
fn assert_router_forwards(space: &str) -> String {
    let myelin = Myelin::new();
    // The server accepts only frames to its own Ethernet address. A route without `mac` must keep
    // this address.
    let file = myelin.write_file(&format_chain(space, "{ prefix: 10.0.0.0/24 }"));
    myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
    let receiver = start_receiver(&myelin);
    assert_eq!(send(&myelin, "64"), "");
    let output = receiver
        .wait_with_output()
        .expect("standard output is piped");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "100 63\n");
    assert_eq!(read_drops(&myelin), 0);
    let icmp_error = run_sender(&myelin, "1", "60000");
    expect_drop(&myelin);

    // A route with the Ethernet address of the server as the next hop.
    let mac = myelin.run_ok(&["exec", "server", "--", "cat", "/sys/class/net/eth0/address"]);
    myelin.run_ok(&["down", &myelin.chain_name("r")]);
    let route = format!("{{ prefix: 10.0.0.2, mac: \"{}\" }}", mac.trim());
    let file = myelin.write_file(&format_chain(space, &route));
    myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
    let receiver = start_receiver(&myelin);
    assert_eq!(send(&myelin, "2"), "");
    let output = receiver
        .wait_with_output()
        .expect("standard output is piped");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "100 1\n");
    myelin.run_ok(&["down", &myelin.chain_name("r")]);

    // Without a route to the server the router drops the packet.
    let file = myelin.write_file(&format_chain(space, "{ prefix: 192.0.2.0/24 }"));
    myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
    assert_eq!(send(&myelin, "64"), "");
    expect_drop(&myelin);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
    icmp_error
}

#[test]
fn a_router_in_user_space_sends_time_exceeded() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    assert_eq!(assert_router_forwards("user"), "10.0.0.254 11 0\n");
}

#[test]
fn a_router_in_the_kernel_sends_time_exceeded() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    assert_eq!(assert_router_forwards("kernel"), "10.0.0.254 11 0\n");
}

/// The list exceeds usual size limits of requests and of YAML parsers.
#[test]
fn a_router_with_60000_routes_is_deployed() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let text = format_chain("kernel", "{ prefix: 10.0.0.0/24 }")
        .replace("addresses:", "routesFile: routes.yaml, addresses:");
    let file = myelin.write_file(&text);
    let mut routes = String::new();
    for route in 0..60_000_u32 {
        let [_, a, b, c] = (0x0b_0000 + route).to_be_bytes();
        let route =
            format!("- {{ prefix: {a}.{b}.{c}.0/24, mac: \"02:00:00:00:{b:02x}:{c:02x}\" }}\n");
        routes.push_str(&route);
    }
    let routes_file = file
        .parent()
        .expect("the directory exists")
        .join("routes.yaml");
    std::fs::write(routes_file, routes).expect("the routes are written");
    myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
    let receiver = start_receiver(&myelin);
    assert_eq!(send(&myelin, "64"), "");
    let output = receiver
        .wait_with_output()
        .expect("standard output is piped");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "100 63\n");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// An IPv4 packet above the MTU of the egress link that may be fragmented: the router does not
/// fragment it, the link refuses it, and the account counts it once, as lost.
#[test]
fn a_packet_without_df_above_the_egress_mtu_is_lost_and_counted_once() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let ports = PortPair::new();
    let server = ports.server_namespace();
    sh(&format!(
        "ip link set {} mtu 1300; ip -n {server} link set eth0 mtu 1300",
        ports.egress
    ));
    let program = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: IP_PMTUDISC_DONT
for size in [1350] * 20 + [100] * 5: s.sendto(bytes(size), (\"10.77.0.2\", 9000))
";
    for space in ["kernel", "user"] {
        let myelin = Myelin::new();
        let file = myelin.write_file(&format!(
            "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @r }}
spec:
  match: {{ protocol: udp, destination: 10.77.0.2/32 }}
  ports: {{ ingress: {}, egress: {} }}
  functions: [ {{ name: r, kind: router, space: {space}, config: {{ routes: [ {{ prefix: 0.0.0.0/0 }} ] }} }} ]
",
            ports.ingress, ports.egress
        ));
        myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
        ports.run_on_client(program);
        let mut status = Value::Null;
        let reached = becomes_true(|| {
            status = myelin.read_status("r");
            let (account, life) = (&status["account"], &status["sla"]["life"]);
            (
                &account["packets_in"],
                &account["packets_out"],
                &life["lost"]["link"],
            ) == (&25.into(), &5.into(), &20.into())
        });
        assert!(reached, "{space}: {status}");
        assert_eq!(status["drops"], 0, "{space}: {status}");
        myelin.run_ok(&["down", "--all"]);
    }
}

/// A flood of packets whose time to live expires gets a burst of ten messages, then `icmpRate`.
#[test]
fn routers_limit_their_icmp_messages() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let ports = PortPair::new();
    let program = "import socket, time
icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
icmp.settimeout(2)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(0, 2, 1)
start, count = time.time(), 0
for i in range(500):
    try: s.sendto(bytes(100), (\"10.77.0.2\", 9000))
    except OSError: pass
try:
    while icmp.recv(2000)[20] == 11 and time.time() - start < 10: count += 1
except TimeoutError: pass
print(count, int(time.time() - start))";
    for space in ["kernel", "user"] {
        let myelin = Myelin::new();
        let config =
            "{ addresses: [ 10.77.0.254 ], icmpRate: 1, routes: [ { prefix: 0.0.0.0/0 } ] }";
        let router = format!("[ {{ name: r, kind: router, space: {space}, config: {config} }} ]");
        let file = myelin.write_file(&ports.both_ways(&router, ""));
        myelin.run_ok(&["up", file.to_str().expect("the path is UTF-8")]);
        let output = ports.run_on_client(program);
        let (count, seconds) = output.trim().split_once(' ').expect("two figures");
        let (count, seconds): (u64, u64) = (count.parse().unwrap(), seconds.parse().unwrap());
        assert!((10..=11 + seconds).contains(&count), "{space}: {output}");
        myelin.run_ok(&["down", "--all"]);
    }
}
