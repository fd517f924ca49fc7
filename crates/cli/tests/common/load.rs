//! Sends datagrams until the test stops the sender, and checks the chain under this traffic.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use myelin_linux::affinity;
use myelin_linux::netns::Netns;
use myelin_linux::sched::{self, Policy};
use serde_json::Value;

/// Most datagrams sent between two reads of the clock. The sender skips further due datagrams.
const MAX_BATCH: u64 = 1000;

/// Rate and shape of the traffic that a sender makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Address of the server and its first port.
    pub(crate) to: SocketAddr,
    /// Number of destination ports, from the first one on, in turn.
    pub(crate) flows: u16,
    /// Bytes of a payload.
    pub(crate) payload: usize,
    /// Datagrams a second. Below 1000 the sender skips late datagrams, so the gaps never shrink.
    pub(crate) rate: u32,
}

/// A thread that sends from the first core. Dropping it stops the thread.
pub(crate) struct Sender {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    /// Sends from address `from` of a host.
    pub(crate) fn start(host: &Netns, from: IpAddr, load: Load) -> Self {
        let socket = host
            .enter(|| UdpSocket::bind((from, 0)))
            .expect("the thread enters the namespace")
            .expect("the socket binds");
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stop_requested, counter) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let _ = affinity::set(0, &[0]);
            load.send(&socket, &stop_requested, &counter);
        });
        Self {
            stop,
            sent,
            thread: Some(thread),
        }
    }

    /// Sends `rate` small datagrams a second from the client of a chain to its server.
    pub(crate) fn start_through_chain(status: &Value, rate: u32) -> Self {
        let ((client, from), (_, to)) = (open_host(status, "client"), open_host(status, "server"));
        let load = Load {
            to: SocketAddr::new(to, 9000),
            flows: 1,
            payload: 64,
            rate,
        };
        Self::start(&client, from, load)
    }

    /// Sends from the client behind a [`PortPair`](super::port_pair::PortPair).
    pub(crate) fn start_through_ports(ports: &super::port_pair::PortPair, load: Load) -> Self {
        Self::start(
            &ports.open_client(),
            Ipv4Addr::new(10, 77, 0, 1).into(),
            load,
        )
    }

    /// Returns the number of datagrams sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops the thread; returns the number of datagrams sent.
    pub(crate) fn stop(mut self) -> u64 {
        self.join();
        self.sent()
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens the namespace of an end host of a chain; returns it with the host's address.
pub(crate) fn open_host(status: &Value, role: &str) -> (Netns, IpAddr) {
    let mut hosts = status["hosts"].as_array().expect("hosts").iter();
    let host = hosts.find(|host| host["role"] == role).expect("a host");
    let address = host["address"].as_str().and_then(|text| text.parse().ok());
    (
        Netns::open(host["netns"].as_str().expect("the name is a string"))
            .expect("the host has a namespace"),
        address.expect("the host has an address"),
    )
}

/// Sends `times` clusters of `size` datagrams from the client of a chain to its server.
pub(crate) fn send_clusters(status: &Value, size: u64, times: u64, pause: Duration) {
    let ((client, from), (_, to)) = (open_host(status, "client"), open_host(status, "server"));
    let socket = client.enter(|| UdpSocket::bind((from, 0)));
    let socket = socket
        .expect("the thread enters the namespace")
        .expect("the socket binds");
    for _ in 0..times {
        for _ in 0..size {
            socket
                .send_to(&[0; 64], (to, 9000))
                .expect("the datagram is sent");
        }
        std::thread::sleep(pause);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.join();
    }
}

impl Load {
    fn send(&self, socket: &UdpSocket, stop: &AtomicBool, sent: &AtomicU64) {
        // Pseudo-random letters, so that compression takes time.
        let letter = |at: usize| b'a' + (at.wrapping_mul(2_654_435_761) >> 13) as u8 % 16;
        let bytes: Vec<u8> = (0..self.payload).map(letter).collect();
        let step = if self.rate >= 1000 {
            Duration::from_millis(1)
        } else {
            Duration::from_secs(1) / self.rate
        };
        let mut flow = 0;
        let start = Instant::now();
        let (mut next, mut scheduled) = (start, 0);
        while !stop.load(Ordering::Relaxed) {
            let due = match self.rate {
                0..1000 => 1,
                rate => (start.elapsed().as_secs_f64() * f64::from(rate)) as u64 - scheduled,
            };
            scheduled += due;
            for _ in 0..due.min(MAX_BATCH) {
                let mut to = self.to;
                to.set_port(self.to.port() + flow);
                flow = (flow + 1) % self.flows;
                // No socket listens, so ICMP errors arrive and some calls fail.
                if socket.send_to(&bytes, to).is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
            let now = Instant::now();
            next = (next + step).max(now);
            std::thread::sleep(next - now);
        }
    }
}

/// Waits until the SLA monitor has counted the last packets and all packets have left; returns the
/// status.
pub(crate) fn wait_until_settled(myelin: &super::Myelin, name: &str) -> Value {
    let mut status = Value::Null;
    super::wait_for("the last second of the account", || {
        status = myelin.read_status(name);
        status["sla"]["life"]["packets_in"] == status["packets_in"]
            && status["sla"]["under_way"] == 0
    });
    status
}

/// Reads the number of seconds with traffic that the SLA monitor has judged.
pub(crate) fn read_judged_seconds(myelin: &super::Myelin, name: &str) -> u64 {
    // `sla` is absent in the first second.
    let judged = &myelin.read_status(name)["sla"]["judged_s"];
    judged.as_u64().unwrap_or_default()
}

/// Reads a count of a status; panics if the value is no count.
pub(crate) fn read_count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Reads how many packets of a probe never came back. A probe counts a packet without an answer in
/// 200 ms as lost, and as late too if the answer comes. On a busy machine answers are late.
pub(crate) fn count_never_answered(row: &Value) -> u64 {
    read_count(&row["lost"]) - read_count(&row["late"])
}

/// Sums the packets that the SLA monitor counts as lost, over all places.
pub(crate) fn sum_lost_packets(window: &Value) -> u64 {
    let places = window["lost"]
        .as_object()
        .expect("the losses are an object");
    places.values().map(read_count).sum()
}

/// Asserts that a chain lost and policed no packet, and that its contract is kept.
pub(crate) fn assert_contract_kept(myelin: &super::Myelin, name: &str) {
    let status = wait_until_settled(myelin, name);
    assert!(read_count(&status["packets_in"]) > 0, "{status}");
    assert_eq!(status["packets_out"], status["packets_in"], "{status}");
    assert_eq!(
        (&status["policed"], sum_lost_packets(&status["sla"]["life"])),
        (&0.into(), 0),
        "{status}"
    );
    assert_eq!(status["sla"]["state"], "kept", "{status}");
    assert_eq!(
        (&status["state"], &status["best_effort"]),
        (&"active".into(), &false.into()),
        "{status}"
    );
    let events = myelin.run_json(&["events", &myelin.chain_name(name), "--json"]);
    assert_eq!(events, Value::Array(Vec::new()));
}

/// Asserts that a worker is bound to its lost core again and that its chain is no longer best
/// effort.
pub(crate) fn assert_core_returned(core: usize, myelin: &super::Myelin, name: &str) {
    let mut status = Value::Null;
    let mut is_on_core = false;
    super::wait_for("the worker to return to its core", || {
        status = myelin.read_status(name);
        let pid = read_count(&status["worker"]["pid"]) as u32;
        is_on_core = affinity::get(pid).is_ok_and(|cpus| cpus == [core])
            && sched::get(pid).is_ok_and(|policy| policy == Policy::Other)
            && status["sla"]["lost_cores"].is_null();
        is_on_core
    });
    assert!(is_on_core, "{status}");
    assert_eq!(status["best_effort"], false, "{status}");
}

/// Asserts that the last event of a chain has ended.
pub(crate) fn assert_last_event_ended(myelin: &super::Myelin, name: &str) {
    super::wait_for("the event's end", || {
        myelin.read_status(name)["sla"]["last_event"]["end"].is_string()
    });
    let events = myelin.run_json(&["events", &myelin.chain_name(name), "--json"]);
    assert!(events[0]["end"].is_string(), "{events}");
}
