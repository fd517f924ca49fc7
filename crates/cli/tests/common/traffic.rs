//! Sends numbered packets through a chain. The receiver detects lost, duplicate and damaged
//! packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;

/// Most packets in flight: fewer than any queue on the path holds, so no queue overflows.
const WINDOW: u64 = 32;
/// A packet that has not arrived after this time is lost, whatever arrives behind it.
const LOSS_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of the packets that follow the last one. Once one has arrived, the packets in front of it
/// have arrived too, or are lost.
const MARKER: u64 = u64::MAX;
/// Time for packets that an older generation still holds when the marker arrives.
const SILENCE: Duration = Duration::from_secs(2);
/// Bytes of a payload: a number of 8 bytes, then 8 zero bytes, which turn into the XOR of the keys.
const PAYLOAD: usize = 16;

/// Packets that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Maps a packet's number to the XOR of the keys of all functions that the packet passed.
    pub(crate) keys: BTreeMap<u64, u8>,
    /// Packets whose number had arrived before.
    pub(crate) duplicates: u64,
    /// Payloads that no sequence of xor functions yields.
    pub(crate) damaged: u64,
}

/// Threads that send packets from the client to the server, and receive them.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<Arrivals>,
}

impl Traffic {
    /// Starts to send between the end hosts in the output of `up --json`.
    pub(crate) fn start(up: &serde_json::Value, port: u16) -> Self {
        let host = |at: usize| {
            let host = &up["hosts"][at];
            let netns = Netns::open(host["netns"].as_str().unwrap()).unwrap();
            let address: IpAddr = host["address"].as_str().unwrap().parse().unwrap();
            (netns, address)
        };
        Self::between(host(0), (host(1), port))
    }

    /// Starts to send from one host to a port of the other.
    pub(crate) fn between(
        (client, from): (Netns, IpAddr),
        ((server, to), port): ((Netns, IpAddr), u16),
    ) -> Self {
        let bind = |netns: &Netns, address: SocketAddr| {
            netns
                .enter(|| UdpSocket::bind(address))
                .unwrap()
                .expect("the socket binds")
        };
        let to = SocketAddr::new(to, port);
        let receiving = bind(&server, to);
        let sending = bind(&client, SocketAddr::new(from, 0));
        receiving
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let (stop, sent, arrived) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicU64::new(0)),
        );
        let sender = {
            let (stop, sent, arrived) =
                (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(&arrived));
            std::thread::spawn(move || {
                send(&sending, to, &stop, &sent, &arrived);
                send_markers(&sending, to, &sent, &arrived);
            })
        };
        let receiver = {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            std::thread::spawn(move || receive(&receiving, &stop, &sent, &arrived))
        };
        Self {
            stop,
            sent,
            sender,
            receiver,
        }
    }

    /// Returns the number of packets sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Waits until `packets` more packets were sent.
    pub(crate) fn wait_for_packets(&self, packets: u64) {
        let (until, start) = (self.sent() + packets, Instant::now());
        while self.sent() < until && start.elapsed() < LOSS_TIMEOUT * 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(
            self.sent() >= until,
            "{packets} packets were not sent in 120 s"
        );
    }

    /// Stops sending; returns the number of packets sent and the arrivals.
    pub(crate) fn stop(self) -> (u64, Arrivals) {
        self.stop.store(true, Ordering::Release);
        self.sender.join().expect("the sender does not panic");
        let arrivals = self.receiver.join().expect("the receiver does not panic");
        (self.sent.load(Ordering::Acquire), arrivals)
    }
}

fn send(
    socket: &UdpSocket,
    to: SocketAddr,
    stop: &AtomicBool,
    sent: &AtomicU64,
    arrived: &AtomicU64,
) {
    let mut number = 0_u64;
    let mut last_progress = Instant::now();
    while !stop.load(Ordering::Acquire) {
        if number - arrived.load(Ordering::Acquire) >= WINDOW {
            if last_progress.elapsed() > LOSS_TIMEOUT {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
            continue;
        }
        last_progress = Instant::now();
        socket
            .send_to(&number_payload(number), to)
            .expect("the datagram is sent");
        number += 1;
        sent.store(number, Ordering::Release);
    }
}

/// Sends markers until one has arrived, if packets are missing.
fn send_markers(socket: &UdpSocket, to: SocketAddr, sent: &AtomicU64, arrived: &AtomicU64) {
    let start = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let is_complete = arrived.load(Ordering::Acquire) >= sent.load(Ordering::Acquire);
        if is_complete || start.elapsed() > LOSS_TIMEOUT {
            return;
        }
        socket
            .send_to(&number_payload(MARKER), to)
            .expect("the marker is sent");
    }
}

fn number_payload(number: u64) -> [u8; PAYLOAD] {
    let mut payload = [0; PAYLOAD];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    payload
}

fn receive(
    socket: &UdpSocket,
    stop: &AtomicBool,
    sent: &AtomicU64,
    arrived: &AtomicU64,
) -> Arrivals {
    let mut arrivals = Arrivals::default();
    let (mut quiet_since, mut is_marked) = (Instant::now(), false);
    loop {
        let mut payload = [0; 2 * PAYLOAD];
        let Ok(len) = socket.recv(&mut payload) else {
            let have_all_arrived = arrivals.keys.len() as u64 == sent.load(Ordering::Acquire);
            let patience = if is_marked { SILENCE } else { LOSS_TIMEOUT };
            if stop.load(Ordering::Acquire)
                && (have_all_arrived || quiet_since.elapsed() > patience)
            {
                return arrivals;
            }
            continue;
        };
        let key = payload[8];
        if len != PAYLOAD || payload[8..PAYLOAD].iter().any(|byte| *byte != key) {
            quiet_since = Instant::now();
            arrivals.damaged += 1;
            continue;
        }
        let number = u64::from_be_bytes(std::array::from_fn(|at| payload[at] ^ key));
        if number == MARKER {
            is_marked = true;
            // The sender needs no other one.
            arrived.store(u64::MAX, Ordering::Release);
            continue;
        }
        quiet_since = Instant::now();
        if arrivals.keys.insert(number, key).is_some() {
            arrivals.duplicates += 1;
        } else {
            arrived.fetch_add(1, Ordering::Release);
        }
    }
}
