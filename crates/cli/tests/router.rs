//! Routers carry real traffic, count the time to live down, and tell the sender when it ran out.

mod common;

use std::process::{Child, Stdio};

use common::{Myelin, skip_unless_root, skip_without};

fn chain_file(space: &str, routes: &str) -> String {
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

/// Receives one datagram on port 9000 and prints its length and time to live.
const RECEIVE: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 12, 1)
s.bind(('10.0.0.2', 9000))
s.settimeout(5)
print('ready', flush=True)
data, ancillary, _, _ = s.recvmsg(2048, 64)
print(len(data), int.from_bytes(ancillary[0][2], 'little'))
";

/// Sends a datagram with the time to live of the argument, and prints the ICMP error that comes, if
/// one does: its source, type and code.
const SEND: &str = "
import select, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, int(sys.argv[1]))
s.setsockopt(socket.IPPROTO_IP, 11, 1)
s.sendto(b'x' * 100, ('10.0.0.2', 9000))
poll = select.poll()
poll.register(s, 0)
if poll.poll(700):
    _, ancillary, _, _ = s.recvmsg(2048, 512, 0x2000)
    error = ancillary[0][2]
    print(socket.inet_ntoa(error[20:24]), error[5], error[6])
";

fn receiver(myelin: &Myelin) -> Child {
    let mut child = myelin
        .command(&["exec", "server", "--", "python3", "-c", RECEIVE])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a receiver");
    let mut ready = [0; 6];
    let output = child.stdout.as_mut().expect("its output");
    std::io::Read::read_exact(output, &mut ready).expect("it is ready");
    child
}

fn send(myelin: &Myelin, time_to_live: &str) -> String {
    myelin.ok(&["exec", "client", "--", "python3", "-c", SEND, time_to_live])
}

fn drops(myelin: &Myelin) -> u64 {
    let list = myelin.json(&["ps", "--json"]);
    list[0]["hops"][0]["drops"].as_u64().expect("drops")
}

/// Through a router in that space; gives what the sender of an expired packet was told.
fn through(space: &str) -> String {
    let myelin = Myelin::new();
    // The server takes only what is addressed to it, so the route must rewrite the address rightly
    // or not at all.
    let file = myelin.file(&chain_file(space, "{ prefix: 10.0.0.0/24 }"));
    myelin.ok(&["up", file.to_str().expect("a path")]);
    let receiver = receiver(&myelin);
    assert_eq!(send(&myelin, "64"), "");
    let output = receiver.wait_with_output().expect("its output");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "100 63\n");
    assert_eq!(drops(&myelin), 0);
    let told = send(&myelin, "1");
    assert_eq!(drops(&myelin), 1);

    // The next hop's address, as the server says it is.
    let mac = myelin.ok(&["exec", "server", "--", "cat", "/sys/class/net/eth0/address"]);
    myelin.ok(&["down", &myelin.chain("r")]);
    let route = format!("{{ prefix: 10.0.0.2, mac: \"{}\" }}", mac.trim());
    let file = myelin.file(&chain_file(space, &route));
    myelin.ok(&["up", file.to_str().expect("a path")]);
    let receiver = self::receiver(&myelin);
    assert_eq!(send(&myelin, "2"), "");
    let output = receiver.wait_with_output().expect("its output");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "100 1\n");
    myelin.ok(&["down", &myelin.chain("r")]);

    // No route.
    let file = myelin.file(&chain_file(space, "{ prefix: 192.0.2.0/24 }"));
    myelin.ok(&["up", file.to_str().expect("a path")]);
    assert_eq!(send(&myelin, "64"), "");
    assert_eq!(drops(&myelin), 1);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
    told
}

#[test]
fn a_router_in_user_space_tells_the_sender_that_the_time_ran_out() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    assert_eq!(through("user"), "10.0.0.254 11 0\n");
}

#[test]
fn a_router_in_the_kernel_drops_what_ran_out_of_time() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    assert_eq!(through("kernel"), "");
}

/// More than small limits on requests and on YAML would let through.
#[test]
fn a_long_list_of_routes_comes_up() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let text = chain_file("kernel", "{ prefix: 10.0.0.0/24 }")
        .replace("addresses:", "routesFile: routes.yaml, addresses:");
    let file = myelin.file(&text);
    let mut routes = String::new();
    for route in 0..60_000_u32 {
        let [_, a, b, c] = (0x0b_0000 + route).to_be_bytes();
        let route =
            format!("- {{ prefix: {a}.{b}.{c}.0/24, mac: \"02:00:00:00:{b:02x}:{c:02x}\" }}\n");
        routes.push_str(&route);
    }
    let beside = file.parent().expect("a directory").join("routes.yaml");
    std::fs::write(beside, routes).expect("the routes");
    myelin.ok(&["up", file.to_str().expect("a path")]);
    let receiver = receiver(&myelin);
    assert_eq!(send(&myelin, "64"), "");
    let output = receiver.wait_with_output().expect("its output");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "100 63\n");
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}
