//! Hosts that switch offloads while a stream passes a chain: the connection goes on, and the
//! account adds up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::port_pair::PortPair;
use crate::common::streams::PATIENCE;
use crate::common::{Myelin, becomes_true, sh, skip_unless_root, skip_without};
use crate::iperf::check_account;

/// Arguments of `ethtool -K`, in this order.
const SWITCHES: [&str; 6] = [
    "tso off",
    "gro off",
    "gso off",
    "tx off",
    "tx on sg on gso on",
    "tso on gro on",
];
/// Bytes that pass after each switch: more than the sockets hold.
const BETWEEN_SWITCHES: u64 = 4 << 20;
const BLOCK: usize = 7 << 16;

/// Stops the sender, also after a failure.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn byte_at(at: usize) -> u8 {
    (at / 7) as u8
}

/// Sends until `stop`.
fn send(mut to: TcpStream, stop: &AtomicBool) -> std::io::Result<()> {
    // A block has each byte seven times, and a multiple of 256 such bytes.
    let block: Vec<u8> = (0..BLOCK).map(byte_at).collect();
    while !stop.load(Ordering::Relaxed) {
        to.write_all(&block)?;
    }
    to.shutdown(Shutdown::Write)
}

/// Receives and checks a stream until its end. Counts its bytes.
fn receive(mut from: TcpStream, received: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        for (offset, byte) in buffer[..length].iter().enumerate() {
            assert_eq!(*byte, byte_at(at + offset), "byte {}", at + offset);
        }
        at += length;
        received.store(at as u64, Ordering::Relaxed);
    }
}

/// Passes a stream while both hosts switch their offloads, one at a time.
fn switch_under_stream(ports: &PortPair, [from, to]: [&TcpStream; 2], what: &str) {
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let [from, to] = [from, to].map(|stream| stream.try_clone().unwrap());
    let hosts = [ports.client_namespace(), ports.server_namespace()];
    std::thread::scope(|scope| {
        let stop_sender = StopOnDrop(&stop);
        let sender = scope.spawn(|| send(from, &stop));
        let receiver = scope.spawn(|| receive(to, &received));
        for switch in SWITCHES {
            for host in &hosts {
                sh(&format!("ip netns exec {host} ethtool -K eth0 {switch}"));
                let enough = received.load(Ordering::Relaxed) + BETWEEN_SWITCHES;
                let goes_on = becomes_true(|| {
                    received.load(Ordering::Relaxed) > enough || receiver.is_finished()
                });
                assert!(
                    goes_on && !receiver.is_finished(),
                    "{what}: the stream stopped after `{switch}` in {host}"
                );
            }
        }
        drop(stop_sender);
        sender.join().unwrap().unwrap();
        receiver.join().unwrap().unwrap();
    });
}

#[test]
fn a_stream_passes_while_its_hosts_switch_offloads() {
    if skip_unless_root() || skip_without("ethtool") {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let listen = || TcpListener::bind("10.77.0.2:9000").unwrap();
    let listener = ports.open_server().enter(listen).unwrap();
    for (name, functions, spec) in [
        (
            "kernel",
            "[ { name: a, kind: firewall, space: kernel } ]",
            "",
        ),
        ("user", "[ { name: a, kind: monitor, space: user } ]", ""),
        (
            "super-packets",
            "[ { name: a, kind: monitor } ]",
            crate::SUPER_PACKETS,
        ),
    ] {
        let file = myelin.write_file(&ports.both_ways(functions, spec));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        let connect = || TcpStream::connect_timeout(&"10.77.0.2:9000".parse().unwrap(), PATIENCE);
        let client = ports.open_client().enter(connect).unwrap().unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        switch_under_stream(&ports, [&client, &server], name);
        switch_under_stream(&ports, [&server, &client], name);
        drop((client, server));
        for direction in ["there", "back"] {
            check_account(&myelin, direction);
        }
        myelin.run_ok(&["down", "--all"]);
    }
    drop(ports);
    myelin.assert_clean();
}
