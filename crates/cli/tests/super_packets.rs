//! Chains whose worker takes super-packets (`worker: { superPackets: true }`), between hosts with
//! the kernel's default offloads.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use common::port_pair::PortPair;
use common::{Myelin, kill, sh, skip_unless_root, skip_without, wait_for};

const SPEC: &str = "  worker: { superPackets: true, batch: 8 }\n";
const MONITOR: &str = "[ { name: a, kind: monitor } ]";
/// Longer than many super-packets.
const STREAM: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A translator: the server sees the client as 198.51.100.7.
fn translator(ports: &PortPair) -> String {
    let there =
        "[ { name: masquerade, kind: nat, config: { address: 198.51.100.7, ports: 1000-2000 } } ]";
    let back = "[ { name: restore, kind: nat, config: { reverseOf: masquerade } } ]";
    let text = ports.both_ways(there, SPEC);
    let (first, second) = text.split_once("---").expect("two chains");
    let second = second.replace(there, back).replace(
        "source: 10.77.0.2",
        "source: 10.77.0.2, destination: 198.51.100.7",
    );
    format!("{first}---{second}")
}

/// Sends a stream from the client to the server and checks it.
fn pass_stream(ports: &PortPair, listener: &TcpListener, what: &str) {
    let sent: Vec<u8> = (0..STREAM).map(|at| (at / 7) as u8).collect();
    let connect = || TcpStream::connect_timeout(&"10.77.0.2:9000".parse().unwrap(), PATIENCE);
    let mut client = ports.open_client().enter(connect).unwrap().unwrap();
    let (mut server, peer) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            client.write_all(&sent)?;
            client.shutdown(Shutdown::Write)
        });
        server
            .read_to_end(&mut received)
            .unwrap_or_else(|error| panic!("{what}: {error} from {peer}"));
        writer.join().unwrap().unwrap();
    });
    assert!(received == sent, "{what}: the stream arrived changed");
}

fn listen(ports: &PortPair) -> TcpListener {
    let listen = || TcpListener::bind("10.77.0.2:9000").unwrap();
    ports.open_server().enter(listen).unwrap()
}

/// Reads the number of packets that an interface transmitted. A super-packet counts once.
fn count_transmitted(interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_packets");
    std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn super_packets_stay_whole_and_the_account_counts_their_segments() {
    if skip_unless_root() {
        return;
    }
    let (myelin, ports) = (Myelin::new(), PortPair::new());
    let listener = listen(&ports);
    let functions = "[ { name: a, kind: monitor }, { name: b, kind: firewall } ]";
    let file = myelin.write_file(&ports.both_ways(functions, SPEC));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let before = count_transmitted(&ports.egress);
    pass_stream(&ports, &listener, "monitor");
    let transmitted = count_transmitted(&ports.egress) - before;
    let segments = STREAM as u64 / 1460;
    wait_for("all packets in the account", || {
        let status = myelin.read_status("there");
        status["packets_in"].as_u64() >= Some(segments)
            && status["packets_in"] == status["packets_out"]
    });
    let status = myelin.read_status("there");
    assert!(
        transmitted < segments / 4,
        "{transmitted} packets for {segments} segments: {status}"
    );
    let account = &status["account"];
    assert_eq!(account["packets_in"], account["packets_out"], "{account}");
    assert_eq!(
        status["hops"][0]["packets_in"], status["packets_in"],
        "{status}"
    );
    assert_eq!(
        status["sojourn"]["packets"], status["packets_in"],
        "{status}"
    );
    assert_eq!(status["plan"]["super_packets"], true);
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn translated_super_packets_have_right_checksums() {
    if skip_unless_root() || skip_without("ethtool") {
        return;
    }
    let (myelin, ports) = (Myelin::new(), PortPair::new());
    let listener = listen(&ports);
    let mac = ports.run_on_client("print(open(\"/sys/class/net/eth0/address\").read().strip())");
    let mac = mac.trim();
    let add_route = || {
        sh(&format!(
            "ip route add 198.51.100.7 dev eth0
             ip neigh add 198.51.100.7 lladdr {mac} dev eth0"
        ))
    };
    ports.open_server().enter(add_route).unwrap();
    let file = myelin.write_file(&translator(&ports));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    pass_stream(&ports, &listener, "partial checksums");
    // Now the kernel segments and completes the checksums behind the chain, and the server checks.
    for port in [&ports.egress, &ports.ingress] {
        sh(&format!("ethtool -K {port} tx off tso off gso off"));
    }
    pass_stream(&ports, &listener, "whole checksums");
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

/// The router is behind the entry link, and its replies must not take that link back.
#[test]
fn replies_of_a_router_reach_the_sender() {
    if skip_unless_root() {
        return;
    }
    let (myelin, ports) = (Myelin::new(), PortPair::new());
    let mac = ports.run_on_client("print(open(\"/sys/class/net/eth0/address\").read().strip())");
    let functions = format!(
        "[ {{ name: a, kind: router, config: {{ addresses: [ 10.77.0.254 ], routes: [ {{ prefix: 0.0.0.0/0, mac: \"{}\" }} ] }} }} ]",
        mac.trim()
    );
    let file = myelin.write_file(&ports.both_ways(&functions, SPEC));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let source = ports.run_on_client(
        "import socket
r = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
r.settimeout(60)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
s.sendto(bytes(100), (\"10.77.0.2\", 9000))
data, peer = r.recvfrom(2000)
print(peer[0], data[20])",
    );
    assert_eq!(source.trim(), "10.77.0.254 11");
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn chains_survive_changes_and_restarts_of_their_worker() {
    if skip_unless_root() {
        return;
    }
    let (myelin, ports) = (Myelin::new(), PortPair::new());
    let listener = listen(&ports);
    let file = myelin.write_file(&ports.both_ways(MONITOR, SPEC));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    pass_stream(&ports, &listener, "as started");
    let pid = myelin.read_status("there")["worker"]["pid"].clone();
    kill(&pid);
    wait_for("a new worker", || {
        let worker = &myelin.read_status("there")["worker"];
        worker["pid"] != pid && worker["pid"].as_u64() > Some(0)
    });
    pass_stream(&ports, &listener, "after a restart");
    let two = "[ { name: a, kind: monitor }, { name: b, kind: forward } ]";
    let changed = myelin.write_file(&ports.both_ways(two, SPEC));
    myelin.run_ok(&["up", changed.to_str().unwrap()]);
    pass_stream(&ports, &listener, "after a change");
    let small = myelin.write_file(&ports.both_ways(MONITOR, ""));
    let error = myelin.run_failing(1, &["up", small.to_str().unwrap()]);
    assert!(error.contains("superPackets"), "{error}");
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn refused_packets_are_lost_and_segments_above_the_profile_are_policed() {
    if skip_unless_root() {
        return;
    }
    let (myelin, ports) = (Myelin::new(), PortPair::new());
    let send = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(10): s.sendto(bytes(1000), (\"10.77.0.2\", 9000))";
    let file = myelin.write_file(&ports.both_ways(MONITOR, SPEC));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    // The far end refuses long packets.
    let set_mtu = |mtu: &'static str| {
        let set = move || sh(&format!("ip link set eth0 mtu {mtu}"));
        ports.open_server().enter(set).unwrap()
    };
    set_mtu("600");
    ports.run_on_client(send);
    ports.run_on_client(&send.replace("1000", "100"));
    wait_for("the losses in the account", || {
        let account = &myelin.read_status("there")["account"];
        account["packets_in"] == 20
            && account["lost"] == serde_json::json!({ "ring": 10 })
            && account["packets_out"] == 10
    });
    set_mtu("1500");
    myelin.run_ok(&["down", "--all"]);
    let spec = format!("{SPEC}  sla: {{ rate: 1pps, burst: 4 }}\n");
    let file = myelin.write_file(&ports.both_ways(MONITOR, &spec));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    ports.run_on_client(send);
    wait_for("the packets above the profile", || {
        let status = myelin.read_status("there");
        status["policed"].as_u64() >= Some(5) && status["packets_in"] == 10
    });
    let status = myelin.read_status("there");
    let count = |key: &str| status[key].as_u64().unwrap();
    assert_eq!(count("policed") + count("packets_out"), 10, "{status}");
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}
