//! Datagrams that go on until they are told to end, while the test looks on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use myelin_linux::affinity;
use myelin_linux::netns::Netns;
use myelin_linux::sched::{self, Policy};
use serde_json::Value;

/// Datagrams that are sent without a look at the clock, at most; what is due beyond that is forgone.
const MOST_AT_ONCE: u64 = 1000;

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// The server.
    pub(crate) to: SocketAddr,
    /// Destination ports from that one on, in turn.
    pub(crate) flows: u16,
    /// Bytes of a datagram.
    pub(crate) payload: usize,
    /// Datagrams a second. Below 1000 one that could not be sent in time is forgone, so that they never come closer together.
    pub(crate) rate: u32,
}

/// Sends from the first core, until it is dropped.
pub(crate) struct Sender {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    /// From a host with that address.
    pub(crate) fn start(host: &Netns, from: IpAddr, load: Load) -> Self {
        let socket = host
            .enter(|| UdpSocket::bind((from, 0)))
            .expect("the namespace")
            .expect("a socket");
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (told, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let _ = affinity::set(0, &[0]);
            load.send(&socket, &told, &counted);
        });
        Self {
            stop,
            sent,
            thread: Some(thread),
        }
    }

    /// From the client of a chain to its server, so many small datagrams a second.
    pub(crate) fn through(status: &Value, rate: u32) -> Self {
        let ((client, from), (_, to)) = (host(status, "client"), host(status, "server"));
        let load = Load {
            to: SocketAddr::new(to, 9000),
            flows: 1,
            payload: 64,
            rate,
        };
        Self::start(&client, from, load)
    }

    /// From the client of a [`Wire`](super::wire::Wire).
    pub(crate) fn over(wire: &super::wire::Wire, load: Load) -> Self {
        Self::start(&wire.client(), Ipv4Addr::new(10, 77, 0, 1).into(), load)
    }

    /// Datagrams sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends, and tells how many there were.
    pub(crate) fn end(mut self) -> u64 {
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

/// The namespace and the address of an end host of a chain.
fn host(status: &Value, role: &str) -> (Netns, IpAddr) {
    let mut hosts = status["hosts"].as_array().expect("hosts").iter();
    let host = hosts.find(|host| host["role"] == role).expect("a host");
    let address = host["address"].as_str().and_then(|text| text.parse().ok());
    (
        Netns::open(host["netns"].as_str().expect("a name")).expect("a namespace"),
        address.expect("an address"),
    )
}

/// Sends so many datagrams at once from the client of a chain to its server, so many times.
pub(crate) fn send_clusters(status: &Value, size: u64, times: u64, pause: Duration) {
    let ((client, from), (_, to)) = (host(status, "client"), host(status, "server"));
    let socket = client.enter(|| UdpSocket::bind((from, 0)));
    let socket = socket.expect("the namespace").expect("a socket");
    for _ in 0..times {
        for _ in 0..size {
            socket.send_to(&[0; 64], (to, 9000)).expect("sent");
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
        // Letters in no order: what compresses has work with them.
        let letter = |at: usize| b'a' + (at.wrapping_mul(2_654_435_761) >> 13) as u8 % 16;
        let bytes: Vec<u8> = (0..self.payload).map(letter).collect();
        let step = if self.rate >= 1000 {
            Duration::from_millis(1)
        } else {
            Duration::from_secs(1) / self.rate
        };
        let mut flow = 0;
        let start = Instant::now();
        let (mut next, mut done) = (start, 0);
        while !stop.load(Ordering::Relaxed) {
            let due = match self.rate {
                0..1000 => 1,
                rate => (start.elapsed().as_secs_f64() * f64::from(rate)) as u64 - done,
            };
            done += due;
            for _ in 0..due.min(MOST_AT_ONCE) {
                let mut to = self.to;
                to.set_port(self.to.port() + flow);
                flow = (flow + 1) % self.flows;
                // Nobody listens, and the server's host says so.
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

/// Waits until each packet of a chain has left or has a place in the account of the monitor; the chain's status then.
pub(crate) fn settled(myelin: &super::Myelin, name: &str) -> Value {
    let mut status = Value::Null;
    super::wait_for("the last second", || {
        status = myelin.status(name);
        status["sla"]["life"]["packets_in"] == status["packets_in"]
            && status["sla"]["under_way"] == 0
    });
    status
}

/// Seconds of a chain in which there was traffic to judge.
pub(crate) fn judged(myelin: &super::Myelin, name: &str) -> u64 {
    // In its first second nothing is told.
    let judged = &myelin.status(name)["sla"]["judged_s"];
    judged.as_u64().unwrap_or_default()
}

/// A count in a status.
pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// All packets that the monitor has a place of loss for.
pub(crate) fn lost(window: &Value) -> u64 {
    let places = window["lost"].as_object().expect("places");
    places.values().map(number).sum()
}

/// A chain has lost nothing and turned nothing away, and its contract stands.
pub(crate) fn assert_kept(myelin: &super::Myelin, name: &str) {
    let status = settled(myelin, name);
    assert!(number(&status["packets_in"]) > 0, "{status}");
    assert_eq!(status["packets_out"], status["packets_in"], "{status}");
    assert_eq!(
        (&status["policed"], lost(&status["sla"]["life"])),
        (&0.into(), 0),
        "{status}"
    );
    assert_eq!(status["sla"]["state"], "kept", "{status}");
    assert_eq!(
        (&status["state"], &status["best_effort"]),
        (&"active".into(), &false.into()),
        "{status}"
    );
    let events = myelin.json(&["events", &myelin.chain(name), "--json"]);
    assert_eq!(events, Value::Array(Vec::new()));
}

/// The worker of a chain that had lost its core has it back, and the chain its promise.
pub(crate) fn assert_back_on(core: usize, myelin: &super::Myelin, name: &str) {
    let mut status = Value::Null;
    let mut is_back = false;
    super::wait_for("the core to be back", || {
        status = myelin.status(name);
        let pid = number(&status["worker"]["pid"]) as u32;
        is_back = affinity::get(pid).is_ok_and(|cpus| cpus == [core])
            && sched::get(pid).is_ok_and(|policy| policy == Policy::Other)
            && status["sla"]["lost_cores"].is_null();
        is_back
    });
    assert!(is_back, "{status}");
    assert_eq!(status["best_effort"], false, "{status}");
}

/// The last event of a chain has ended.
pub(crate) fn assert_over(myelin: &super::Myelin, name: &str) {
    super::wait_for("the event's end", || {
        myelin.status(name)["sla"]["last_event"]["end"].is_string()
    });
    let events = myelin.json(&["events", &myelin.chain(name), "--json"]);
    assert!(events[0]["end"].is_string(), "{events}");
}
