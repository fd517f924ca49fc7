//! Numbered packets through a chain, and what arrives of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;

/// Packets under way at most: fewer than any queue on the way holds, so that a loss is the chain's.
const WINDOW: u64 = 32;
/// A packet that is not there after this time is lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// A number, and as many zeros, which the xor functions make their keys' sum.
const PAYLOAD: usize = 16;

/// What has arrived.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// By number of the packet: the XOR of the keys of all functions that it passed.
    pub(crate) keys: BTreeMap<u64, u8>,
    pub(crate) duplicates: u64,
    /// Payloads that no row of whole functions explains.
    pub(crate) damaged: u64,
}

/// Packets from the client to the server, as fast as they arrive.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<Arrivals>,
}

impl Traffic {
    /// Starts sending between the end hosts of a chain, as `up --json` shows it.
    pub(crate) fn start(up: &serde_json::Value, port: u16) -> Self {
        let host = |at: usize| {
            let host = &up["hosts"][at];
            let netns = Netns::open(host["netns"].as_str().unwrap()).unwrap();
            let address: IpAddr = host["address"].as_str().unwrap().parse().unwrap();
            (netns, address)
        };
        let ((client, from), (server, to)) = (host(0), host(1));
        let bind = |netns: &Netns, address: SocketAddr| {
            netns
                .enter(|| UdpSocket::bind(address))
                .unwrap()
                .expect("a socket")
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
            std::thread::spawn(move || send(&sending, to, &stop, &sent, &arrived))
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

    /// How many packets were sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Waits until so many packets more were sent.
    pub(crate) fn wait_for_packets(&self, packets: u64) {
        let (until, start) = (self.sent() + packets, Instant::now());
        while self.sent() < until && start.elapsed() < PATIENCE * 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(self.sent() >= until, "the traffic stands still");
    }

    /// Stops, and gives what was sent and what has arrived.
    pub(crate) fn stop(self) -> (u64, Arrivals) {
        self.stop.store(true, Ordering::Release);
        self.sender.join().expect("the sender");
        let arrivals = self.receiver.join().expect("the receiver");
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
            if last_progress.elapsed() > PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
            continue;
        }
        last_progress = Instant::now();
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, to).expect("send");
        number += 1;
        sent.store(number, Ordering::Release);
    }
}

fn receive(
    socket: &UdpSocket,
    stop: &AtomicBool,
    sent: &AtomicU64,
    arrived: &AtomicU64,
) -> Arrivals {
    let mut arrivals = Arrivals::default();
    let mut quiet_since = Instant::now();
    loop {
        let mut payload = [0; 2 * PAYLOAD];
        let Ok(len) = socket.recv(&mut payload) else {
            let all = arrivals.keys.len() as u64 == sent.load(Ordering::Acquire);
            if stop.load(Ordering::Acquire) && (all || quiet_since.elapsed() > PATIENCE) {
                return arrivals;
            }
            continue;
        };
        quiet_since = Instant::now();
        let key = payload[8];
        if len != PAYLOAD || payload[8..PAYLOAD].iter().any(|byte| *byte != key) {
            arrivals.damaged += 1;
            continue;
        }
        let number: [u8; 8] = std::array::from_fn(|at| payload[at] ^ key);
        if arrivals
            .keys
            .insert(u64::from_be_bytes(number), key)
            .is_some()
        {
            arrivals.duplicates += 1;
        } else {
            arrived.fetch_add(1, Ordering::Release);
        }
    }
}
