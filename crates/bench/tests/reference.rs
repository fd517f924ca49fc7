//! The C reference programs on real links: frames pass while a program runs, and stop when it is
//! stopped.
//!
//! client eth0 -- my<pid>..c | this namespace | my<pid>..s -- eth0 server

use std::fs::File;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use myelin_bench::reference::{Error, ForwardingOptions, Reference, RunningReference};
use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;

const CLIENT: &str = "10.77.0.1";
const SERVER: &str = "10.77.0.2";
const PORT: u16 = 9000;
/// More frames than any program has buffers, so a program that leaks buffers fails.
const ROUNDS: u32 = 5000;

/// Two end hosts without a connection. A drop removes them and their links.
struct EndHosts {
    client: String,
    server: String,
    ingress: String,
    egress: String,
}

impl EndHosts {
    fn create() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let id = format!(
            "{}x{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let hosts = Self {
            client: format!("myelin-t{id}-client"),
            server: format!("myelin-t{id}-server"),
            ingress: format!("my{id}c"),
            egress: format!("my{id}s"),
        };
        for (namespace, link, address, mac, peer, peer_mac) in [
            (
                &hosts.client,
                &hosts.ingress,
                CLIENT,
                "02:00:00:00:00:0a",
                SERVER,
                "02:00:00:00:00:0b",
            ),
            (
                &hosts.server,
                &hosts.egress,
                SERVER,
                "02:00:00:00:00:0b",
                CLIENT,
                "02:00:00:00:00:0a",
            ),
        ] {
            run(&format!("ip netns add {namespace}"));
            run(&format!(
                "ip link add {link} up type veth peer name eth0 address {mac} netns {namespace}"
            ));
            run(&format!(
                "ip -n {namespace} address add {address}/24 dev eth0"
            ));
            run(&format!("ip -n {namespace} link set eth0 up"));
            run(&format!(
                "ip -n {namespace} neighbour replace {peer} lladdr {peer_mac} dev eth0"
            ));
            // XDP forwards frames without computing an offloaded checksum.
            run(&format!("ip netns exec {namespace} ethtool -K eth0 tx off"));
        }
        hosts
    }

    fn forwarding(&self, both: bool) -> ForwardingOptions<'_> {
        ForwardingOptions {
            ingress: &self.ingress,
            egress: &self.egress,
            batch: 1,
            core: None,
            both,
            poll: true,
            swap: false,
        }
    }
}

impl Drop for EndHosts {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server] {
            let _ = Command::new("ip")
                .args(["netns", "delete", namespace])
                .status();
        }
        for link in [&self.ingress, &self.egress] {
            // The removal of its peer may have removed it already.
            let _ = Command::new("ip").args(["link", "delete", link]).output();
        }
    }
}

fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn has_xdp_program(link: &str) -> bool {
    let output = Command::new("ip")
        .args(["link", "show", "dev", link])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
}

/// A connected UDP socket of an end host. A new thread enters the namespace, and the socket stays
/// there.
fn socket(namespace: &str, from: &str, to: &str) -> UdpSocket {
    let (path, from, to) = (
        format!("/run/netns/{namespace}"),
        from.to_owned(),
        to.to_owned(),
    );
    let opened = thread::spawn(move || {
        setns(File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        let socket = UdpSocket::bind((from.as_str(), PORT)).unwrap();
        socket.connect((to.as_str(), PORT)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        socket
    });
    opened.join().unwrap()
}

/// Whether a datagram arrives unchanged.
fn is_delivered(from: &UdpSocket, to: &UdpSocket, payload: &[u8]) -> bool {
    let mut buffer = [0; 2048];
    from.send(payload).unwrap();
    // A stop and continue of the process interrupts its system call.
    let received = loop {
        match to.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received,
        }
    };
    match received {
        Ok(length) => &buffer[..length] == payload,
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                "{error}"
            );
            false
        }
    }
}

/// Whether the test must be skipped; prints the reason.
fn must_skip(reference: Reference) -> bool {
    let reason = match reference.check_built() {
        _ if !geteuid().is_root() => "needs root".to_owned(),
        Err(error) => error.to_string(),
        Ok(()) => return false,
    };
    println!("SKIP: {}: {reason}", reference.name());
    true
}

fn start(reference: Reference, forwarding: &ForwardingOptions) -> RunningReference {
    reference
        .start(forwarding)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn forwards_both_ways(reference: Reference) {
    if must_skip(reference) {
        return;
    }
    let hosts = EndHosts::create();
    let (client, server) = (
        socket(&hosts.client, CLIENT, SERVER),
        socket(&hosts.server, SERVER, CLIENT),
    );
    assert!(
        !is_delivered(&client, &server, b"early"),
        "the hosts are connected without the program"
    );

    let running = start(reference, &hosts.forwarding(true));
    let by_xdp = reference != Reference::Packet;
    assert_eq!(
        (
            has_xdp_program(&hosts.ingress),
            has_xdp_program(&hosts.egress)
        ),
        (by_xdp, by_xdp)
    );
    for round in 0..ROUNDS {
        // From an empty datagram to a full 1500 byte MTU.
        let payload = vec![round as u8; round as usize * 1472 / (ROUNDS as usize - 1)];
        assert!(is_delivered(&client, &server, &payload), "round {round}");
        assert!(
            is_delivered(&server, &client, &payload),
            "round {round}, back"
        );
    }
    let forwarded = running.stop().unwrap_or_else(|error| panic!("{error}"));
    assert!(forwarded >= u64::from(2 * ROUNDS), "{forwarded}");

    assert!(
        !is_delivered(&client, &server, b"late"),
        "frames pass although the program was stopped"
    );
    assert!(
        !has_xdp_program(&hosts.ingress) && !has_xdp_program(&hosts.egress),
        "an XDP program was left behind"
    );
}

fn forwards_one_way(reference: Reference) {
    if must_skip(reference) {
        return;
    }
    let hosts = EndHosts::create();
    let (client, server) = (
        socket(&hosts.client, CLIENT, SERVER),
        socket(&hosts.server, SERVER, CLIENT),
    );
    let running = start(reference, &hosts.forwarding(false));
    assert_eq!(
        has_xdp_program(&hosts.ingress),
        reference != Reference::Packet
    );
    assert!(
        !has_xdp_program(&hosts.egress),
        "the program must not receive the replies, which the caller handles"
    );
    assert!(is_delivered(&client, &server, b"there"));
    assert!(!is_delivered(&server, &client, b"and back"));
    drop(running);
    assert!(
        !is_delivered(&client, &server, b"late"),
        "frames pass although the guard was dropped"
    );
    assert!(!has_xdp_program(&hosts.ingress));
}

#[test]
fn afxdp_forwards_both_ways_until_stopped() {
    forwards_both_ways(Reference::AfXdp);
}

#[test]
fn afxdp_forwards_one_way_until_dropped() {
    forwards_one_way(Reference::AfXdp);
}

#[test]
fn dpdk_forwards_both_ways_until_stopped() {
    forwards_both_ways(Reference::Dpdk);
}

#[test]
fn dpdk_forwards_one_way_until_dropped() {
    forwards_one_way(Reference::Dpdk);
}

#[test]
fn packet_sockets_forward_both_ways() {
    forwards_both_ways(Reference::Packet);
}

#[test]
fn packet_sockets_forward_one_way() {
    forwards_one_way(Reference::Packet);
}

#[test]
fn error_names_the_missing_interface() {
    for reference in [
        Reference::AfXdp,
        Reference::Dpdk,
        Reference::Packet,
        Reference::Centralized,
    ] {
        if reference.check_built().is_err() {
            continue;
        }
        let nowhere = ForwardingOptions {
            ingress: "my-none",
            egress: "my-none",
            batch: 1,
            core: None,
            both: true,
            poll: true,
            swap: false,
        };
        let error = reference.start(&nowhere).unwrap_err();
        assert!(
            matches!(&error, Error::NotReady { messages, .. } if messages.contains("no interface my-none")),
            "{error}"
        );
    }
}

#[test]
fn program_refuses_a_batch_out_of_range() {
    let forwarding = ForwardingOptions {
        ingress: "lo",
        egress: "lo",
        batch: 0,
        core: None,
        both: false,
        poll: true,
        swap: false,
    };
    let error = Reference::AfXdp.start(&forwarding).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("--batch 0: expected a number from 1 to 256"),
        "{error}"
    );
}
