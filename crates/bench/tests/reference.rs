//! The C reference programs on real links: frames pass while a program runs, and stop when it is
//! stopped.
//!
//! client eth0 -- port | this namespace | port -- eth0 server

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use myelin_bench::reference::{Error, ForwardingOptions, Reference};
use myelin_emulator::{Config, EndHosts, Host};
use myelin_linux::capability;
use myelin_linux::ethtool::Ethtool;
use myelin_linux::journal::Journal;
use myelin_linux::netlink::Netlink;
use myelin_packet::Match;

const PORT: u16 = 9000;
/// More frames than any program has buffers, so a program that leaks buffers fails.
const ROUNDS: usize = 5000;
/// Largest payload of a 1500 byte MTU.
const MAX_PAYLOAD: usize = 1472;

/// Time within which a frame arrives, also on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which a frame that has not arrived is taken for lost.
const ABSENCE: Duration = Duration::from_millis(200);

/// Two end hosts without a connection. A drop removes them and their links.
fn create_end_hosts() -> EndHosts {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        run: &format!("test {}", std::process::id()),
        chain: &format!("t{}-{number}", std::process::id()),
        matches: &Match::default(),
        mtu: 1500,
    };
    let journal = Journal::open(&directory.path().join("journal")).unwrap();
    EndHosts::create(&config, &journal).unwrap()
}

fn forwarding<'a>(ingress: &'a str, egress: &'a str) -> ForwardingOptions<'a> {
    ForwardingOptions {
        ingress,
        egress,
        batch: 1,
        core: None,
        poll: true,
        swap: false,
    }
}

fn has_xdp_program(host: &Host) -> bool {
    let link = Netlink::open().unwrap().link(&host.port.name).unwrap();
    link.xdp_program.is_some()
}

/// A UDP socket of an end host, connected to the far one.
fn socket(host: &Host, far: &Host) -> UdpSocket {
    let open = || {
        let socket = UdpSocket::bind((host.addresses[0], PORT)).unwrap();
        socket.connect((far.addresses[0], PORT)).unwrap();
        socket
    };
    host.enter(open).unwrap()
}

/// Whether a datagram arrives unchanged within this time.
fn is_delivered(from: &UdpSocket, to: &UdpSocket, payload: &[u8], within: Duration) -> bool {
    let mut buffer = [0; 2048];
    to.set_read_timeout(Some(within)).unwrap();
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
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            false
        }
    }
}

fn forwards_until_dropped(reference: Reference) {
    if let Err(reason) = reference.check_built() {
        return println!("SKIP: {}: {reason}", reference.name());
    }
    if !capability::is_root() {
        return println!("SKIP: {}: needs root", reference.name());
    }
    let hosts = create_end_hosts();
    if reference != Reference::VnetHeader {
        // The other programs take packets of wire size with whole checksums only.
        for host in [&hosts.client, &hosts.server] {
            let set = || Ethtool::open()?.set_transmit_offloads(&host.link.name, false);
            host.enter(set).unwrap().unwrap();
        }
    }
    let (client, server) = (
        socket(&hosts.client, &hosts.server),
        socket(&hosts.server, &hosts.client),
    );
    let is_connected = || is_delivered(&client, &server, b"frame", ABSENCE);
    assert!(!is_connected(), "early");

    let options = forwarding(&hosts.client.port.name, &hosts.server.port.name);
    let running = reference.start(&options).unwrap();
    let uses_packet_sockets = matches!(reference, Reference::Packet | Reference::VnetHeader);
    assert_eq!(has_xdp_program(&hosts.client), !uses_packet_sockets);
    assert!(
        !has_xdp_program(&hosts.server),
        "the program must not receive the replies, which the caller handles"
    );
    for round in 0..ROUNDS {
        // From an empty datagram to a full one.
        let payload = vec![round as u8; round * MAX_PAYLOAD / (ROUNDS - 1)];
        let arrived = is_delivered(&client, &server, &payload, PATIENCE);
        assert!(arrived, "round {round}");
    }
    let is_both_ways = reference == Reference::VnetHeader;
    let patience = if is_both_ways { PATIENCE } else { ABSENCE };
    let is_answered = is_delivered(&server, &client, b"and back", patience);
    assert_eq!(is_answered, is_both_ways);

    drop(running);
    assert!(!is_connected(), "late");
    assert!(
        !has_xdp_program(&hosts.client),
        "an XDP program was left behind"
    );
}

#[test]
fn afxdp_forwards_until_dropped() {
    forwards_until_dropped(Reference::AfXdp);
}

#[test]
fn dpdk_forwards_until_dropped() {
    forwards_until_dropped(Reference::Dpdk);
}

#[test]
fn packet_sockets_forward_until_dropped() {
    forwards_until_dropped(Reference::Packet);
}

#[test]
fn packet_sockets_with_virtio_headers_forward_until_dropped() {
    forwards_until_dropped(Reference::VnetHeader);
}

#[test]
fn error_names_the_missing_interface() {
    for reference in [
        Reference::AfXdp,
        Reference::Dpdk,
        Reference::Packet,
        Reference::VnetHeader,
        Reference::Centralized,
    ] {
        if reference.check_built().is_err() {
            continue;
        }
        let error = reference.start(&forwarding("my-none", "my-none"));
        let error = error.unwrap_err();
        assert!(
            matches!(&error, Error::Failed { messages, .. } if messages.contains("no interface my-none")),
            "{error}"
        );
    }
}

#[test]
fn program_refuses_a_batch_out_of_range() {
    let options = ForwardingOptions {
        batch: 0,
        ..forwarding("lo", "lo")
    };
    let error = Reference::AfXdp.start(&options).unwrap_err().to_string();
    assert!(
        error.contains("--batch 0: expected a number from 1 to 256"),
        "{error}"
    );
}
