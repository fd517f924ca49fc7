//! Ports with an MTU of 68 to 9000: datagrams that fill the MTU pass, or `up` refuses the chain and
//! names the MTU.

use std::net::UdpSocket;

use crate::common::port_pair::PortPair;
use crate::common::streams::PATIENCE;
use crate::common::{Myelin, skip_unless_root, wait_for};

const USER: &str = "[ { name: a, kind: monitor, space: user } ]";
const KERNEL: &str = "[ { name: a, kind: firewall, space: kernel } ]";
/// Headers of IPv4 and UDP, bytes.
const HEADERS: usize = 28;

/// Functions of a chain, lines of its `spec`, MTUs that the chain takes, and one that it refuses.
const CHAINS: [(&str, &str, &[usize], Option<usize>); 5] = [
    (KERNEL, "", &[68, 576, 1500, 9000], None),
    (KERNEL, "  hook: xdp\n", &[68, 1500, 3400], Some(3401)),
    // Workers have larger frames above 1600.
    (
        USER,
        "",
        &[68, 576, 1500, 1600, 1601, 1800, 2000, 3400],
        Some(3401),
    ),
    (
        USER,
        "  mapping: distributed\n",
        &[68, 1601, 3400],
        Some(9000),
    ),
    (USER, crate::SUPER_PACKETS, &[68, 1500, 3401, 9000], None),
];

#[test]
fn datagrams_that_fill_the_mtu_pass_or_up_refuses_the_mtu() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    for (functions, spec, taken, refused) in CHAINS {
        for &mtu in taken {
            ports.set_mtu(mtu);
            let file = myelin.write_file(&ports.both_ways(functions, spec));
            myelin.run_ok(&["up", file.to_str().unwrap()]);
            pass_full_datagrams(&myelin, &ports, &server, mtu);
            myelin.run_ok(&["down", "--all"]);
        }
        if let Some(mtu) = refused {
            ports.set_mtu(mtu);
            let file = myelin.write_file(&ports.both_ways(functions, spec));
            let output = myelin.run(&["up", file.to_str().unwrap()]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{functions} {spec}: MTU {mtu}");
            let cause = format!("interface {} has an MTU of {mtu}", ports.ingress);
            assert!(error.contains(&cause) && error.contains("3400"), "{error}");
        }
    }
    drop(ports);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Sends ten datagrams that must not be fragmented. Each must arrive, and leave the chain.
fn pass_full_datagrams(myelin: &Myelin, ports: &PortPair, server: &UdpSocket, mtu: usize) {
    let length = mtu - HEADERS;
    // IP_MTU_DISCOVER: IP_PMTUDISC_DO.
    ports.run_on_client(&format!(
        "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(0, 10, 2)
s.connect((\"10.77.0.2\", 9000))
for i in range(10): s.send(bytes([i]) * {length})"
    ));
    let mut buffer = vec![0; length + 1];
    for i in 0..10_u8 {
        let received = server.recv(&mut buffer).unwrap_or_else(|error| {
            let status = myelin.read_status("there");
            panic!("MTU {mtu}, datagram {i}: {error}: {status}")
        });
        assert!(buffer[..received] == vec![i; length], "MTU {mtu}");
    }
    wait_for("all packets in the account", || {
        let status = myelin.read_status("there");
        status["packets_in"] == 10 && status["packets_out"] == 10
    });
}
