//! What tests ask of a chain between the interfaces of a [`PortPair`].

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::Value;

use super::port_pair::PortPair;
use super::streams::PATIENCE;
use super::{Myelin, becomes_true, wait_for};

/// Returns the faults of the chain's interfaces, joined.
pub(crate) fn faults(status: &Value) -> String {
    let faults = status["port_faults"].as_array().into_iter().flatten();
    let faults: Vec<_> = faults.filter_map(Value::as_str).collect();
    faults.join("; ")
}

/// Waits until the chain has this state and its faults contain these words.
pub(crate) fn wait_for_fault(myelin: &Myelin, name: &str, state: &str, words: &str) {
    let mut last = Value::Null;
    let found = becomes_true(|| {
        last = myelin.read_status(name);
        last["state"] == state && faults(&last).contains(words)
    });
    assert!(found, "no {state} chain with `{words}`: {last}");
}

/// Waits until the chain is active and has no faults.
pub(crate) fn wait_until_active(myelin: &Myelin, name: &str) -> Value {
    let mut last = Value::Null;
    let found = becomes_true(|| {
        last = myelin.read_status(name);
        last["state"] == "active" && faults(&last).is_empty()
    });
    let log = myelin.read_agent_log();
    assert!(found, "the chain is not active: {last}\n{log}");
    last
}

/// Sends ten datagrams, which must leave the chain and reach the server.
pub(crate) fn pass_ten(myelin: &Myelin, ports: &PortPair, name: &str) {
    let before = myelin.read_status(name)["packets_out"].as_u64().unwrap();
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    ports.send_ten(9000);
    let mut buffer = [0; 200];
    for at in 0..10 {
        let length = server.recv(&mut buffer);
        let length = length.unwrap_or_else(|error| {
            let (status, log) = (myelin.read_status(name), myelin.read_agent_log());
            panic!("datagram {at}: {error}: {status}\n{log}")
        });
        assert_eq!(&buffer[..length], [b'x'; 100]);
    }
    wait_for("ten packets in the account", || {
        myelin.read_status(name)["packets_out"].as_u64() >= Some(before + 10)
    });
}

/// Sends datagrams until one passes the chain, and waits until no more arrive.
pub(crate) fn wait_until_passing(ports: &PortPair) {
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut buffer = [0; 200];
    wait_for("a datagram that passes", || {
        ports.send_ten(9000);
        server.recv(&mut buffer).is_ok()
    });
    while server.recv(&mut buffer).is_ok() {}
}

/// Asserts that Myelin left neither promiscuous mode nor programs on the interfaces.
pub(crate) fn assert_untouched(ports: &PortPair) {
    let links = ports.show_links();
    assert!(
        !links.contains("PROMISC") && !links.contains("xdp"),
        "{links}"
    );
}

/// Sends a datagram in each of forty flows. The hash of a flow chooses its receive queue. Each
/// datagram must reach the server.
pub(crate) fn pass_flows(ports: &PortPair) {
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    ports.run_on_client(
        "import socket
for i in range(40):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(bytes([i]) * 100, (\"10.77.0.2\", 9000))",
    );
    let mut arrived = Vec::new();
    let mut buffer = [0; 200];
    for _ in 0..40 {
        let length = server.recv(&mut buffer).unwrap();
        assert_eq!(length, 100);
        arrived.push(buffer[0]);
    }
    arrived.sort_unstable();
    assert_eq!(arrived, (0..40).collect::<Vec<u8>>());
}
