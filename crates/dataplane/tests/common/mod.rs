//! Two network namespaces with a worker between them.

// Every test file is a separate crate and uses only a part of this module.
#![allow(unreachable_pub, dead_code)]

pub mod xdp;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use myelin_dataplane::{
    Idle, Role, SocketId, UserChain, UserExit, UserSegment, WorkerConfig, WorkerHandle, Xsk,
    XskConfig,
};
use myelin_spec::FunctionConfig;
use nix::sched::{CloneFlags, setns};

use xdp::FrontDoor;

/// The chains of the packets from the client and from the server.
pub const TO_SERVER: u32 = 1;
pub const TO_CLIENT: u32 = 2;

/// Returns whether this test runs as root. Otherwise prints that it is skipped.
pub fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("SKIP: needs root for network namespaces and AF_XDP sockets");
    }
    is_root
}

/// Runs a system command. Panics with its error output if it fails.
pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().expect("a command"))
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Client and server, each in a namespace with a veth pair to the test's namespace. Dropping the
/// value removes them.
pub struct Network {
    number: u32,
}

static NETWORKS: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EndHost {
    Client,
    Server,
}

impl EndHost {
    fn letter(self) -> char {
        match self {
            Self::Client => 'c',
            Self::Server => 's',
        }
    }

    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::Client => Ipv4Addr::new(10, 77, 0, 1),
            Self::Server => Ipv4Addr::new(10, 77, 0, 2),
        }
    }

    fn mac(self) -> &'static str {
        match self {
            Self::Client => "02:00:00:00:77:01",
            Self::Server => "02:00:00:00:77:02",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl Network {
    pub fn new() -> Self {
        let network = Self {
            number: NETWORKS.fetch_add(1, Ordering::Relaxed),
        };
        for end in [EndHost::Client, EndHost::Server] {
            let (namespace, port) = (network.namespace(end), network.port(end));
            run(&format!("ip netns add {namespace}"));
            run(&format!(
                "ip link add {port} type veth peer name eth0 address {} netns {namespace}",
                end.mac()
            ));
            run(&format!(
                "ip -n {namespace} addr add {}/24 dev eth0",
                end.address()
            ));
            // Set the end host's link up last, because a link that is set up without a carrier
            // drops its first packets.
            run(&format!("ip link set {port} up"));
            run(&format!("ip -n {namespace} link set eth0 up"));
            run(&format!("ip netns exec {namespace} ethtool -K eth0 tx off"));
            let other = end.other();
            run(&format!(
                "ip -n {namespace} neigh add {} lladdr {} dev eth0",
                other.address(),
                other.mac()
            ));
        }
        network
    }

    fn namespace(&self, end: EndHost) -> String {
        format!(
            "myelin-t{}-{}{}",
            std::process::id(),
            self.number,
            end.letter()
        )
    }

    /// Returns the interface in this namespace whose peer is the end host's.
    pub fn port(&self, end: EndHost) -> String {
        format!("my{}{}{}", std::process::id(), end.letter(), self.number)
    }

    pub fn ifindex(&self, end: EndHost) -> u32 {
        let path = format!("/sys/class/net/{}/ifindex", self.port(end));
        let text = std::fs::read_to_string(path).expect("the port");
        text.trim().parse().expect("a number")
    }

    /// Returns a UDP socket in an end host's namespace, bound to its address.
    pub fn udp(&self, end: EndHost, port: u16) -> UdpSocket {
        let namespace = format!("/run/netns/{}", self.namespace(end));
        // A namespace belongs to a thread, and the test's thread must stay in its own namespace.
        std::thread::spawn(move || {
            let file = std::fs::File::open(namespace).expect("the namespace");
            setns(file, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
            UdpSocket::bind(SocketAddrV4::new(end.address(), port)).expect("bind")
        })
        .join()
        .expect("a socket")
    }

    pub fn delete_link(&self, end: EndHost) {
        run(&format!("ip link del {}", self.port(end)));
    }

    pub fn set_link(&self, end: EndHost, up: bool) {
        let state = if up { "up" } else { "down" };
        run(&format!("ip link set {} {state}", self.port(end)));
        if up {
            // The kernel removes static neighbour entries when a link goes down.
            let (namespace, other) = (self.namespace(end), end.other());
            run(&format!(
                "ip -n {namespace} neigh replace {} lladdr {} dev eth0",
                other.address(),
                other.mac()
            ));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for end in [EndHost::Client, EndHost::Server] {
            // Removing the namespace removes the pair.
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(end)])
                .output();
        }
    }
}

/// A worker that forwards UDP between client and server, in both directions.
pub struct UdpPath {
    pub worker: WorkerHandle,
    pub client: SocketId,
    pub server: SocketId,
    pub doors: [Arc<FrontDoor>; 2],
}

pub fn config(batch: u16, idle: Idle) -> WorkerConfig {
    let mut config = WorkerConfig::new(
        env!("CARGO_BIN_EXE_myelin-dataplane-worker"),
        format!("t{}", std::process::id()),
    );
    config.batch = batch;
    config.idle = idle;
    config
}

impl UdpPath {
    pub fn new(network: &Network, config: WorkerConfig, to_server: Vec<FunctionConfig>) -> Self {
        Self::with_binding(network, config, to_server, false)
    }

    /// Makes a path. `bind_late` binds the sockets late, as required before Linux 6.4.
    pub fn with_binding(
        network: &Network,
        config: WorkerConfig,
        to_server: Vec<FunctionConfig>,
        bind_late: bool,
    ) -> Self {
        let mut worker = WorkerHandle::spawn(config).expect("a worker");
        let [(client, client_door), (server, server_door)] =
            [(EndHost::Client, TO_SERVER), (EndHost::Server, TO_CLIENT)].map(|(end, spi)| {
                let ifindex = network.ifindex(end);
                let config = XskConfig {
                    bind_late,
                    ..XskConfig::new(network.port(end), ifindex, 0, Role::Ingress)
                };
                let door = Arc::new(FrontDoor::attach(ifindex, spi).expect("a front door"));
                let redirect_door = Arc::clone(&door);
                let xsk = Xsk::bind(worker.umem(), &config, worker.first_socket())
                    .expect("a socket")
                    .with_redirect(Arc::new(move |socket| {
                        redirect_door
                            .set_socket(0, socket)
                            .map_err(|error| error.to_string())
                    }));
                (worker.add_socket(xsk).expect("added"), door)
            });
        worker
            .add_chain(chain(TO_SERVER, to_server, server))
            .expect("the chain to the server");
        worker
            .add_chain(chain(TO_CLIENT, vec![FunctionConfig::Forward], client))
            .expect("the chain to the client");
        Self {
            worker,
            client,
            server,
            doors: [client_door, server_door],
        }
    }

    /// Counts frames in rings, frames in two rings, lent frames and free frames. Without traffic,
    /// `in_rings` equals `lent`, and `lent` plus `free` equals `frames`.
    pub fn count_frames(&self) -> FrameCounts {
        let mut in_rings: Vec<u64> = [self.client, self.server]
            .into_iter()
            .filter_map(|id| self.worker.socket(id))
            .flat_map(|xsk| xsk.frames_in_rings().expect("the rings"))
            .map(|address| address / u64::from(self.worker.umem().frame_size()))
            .collect();
        let total = in_rings.len();
        in_rings.sort_unstable();
        in_rings.dedup();
        FrameCounts {
            in_rings: in_rings.len(),
            in_two_rings: total - in_rings.len(),
            lent: self.worker.umem().lent().expect("the holder table"),
            free: self.worker.stats().worker().free_frames as usize,
            frames: self.worker.umem().frames() as usize,
        }
    }

    /// Waits until the frame counts match. Panics with the counts if they do not match in time.
    pub fn assert_all_frames_accounted(&self) {
        let is_complete = wait_until(|| {
            let counts = self.count_frames();
            counts.in_two_rings == 0
                && counts.in_rings == counts.lent
                && counts.lent + counts.free == counts.frames
        });
        assert!(
            is_complete,
            "{:?} {:?}",
            self.count_frames(),
            self.worker.stats().worker()
        );
        assert_eq!(self.worker.stats().worker().invalid_descriptors, 0);
    }
}

#[derive(Debug)]
pub struct FrameCounts {
    pub in_rings: usize,
    pub in_two_rings: usize,
    pub lent: usize,
    pub free: usize,
    pub frames: usize,
}

pub fn chain(spi: u32, functions: Vec<FunctionConfig>, out: SocketId) -> UserChain {
    UserChain {
        spi,
        generation: 0,
        positions: functions.len() as u8,
        segments: vec![UserSegment {
            first_position: 0,
            functions: functions.into_iter().map(Into::into).collect(),
            exit: UserExit::Port(out),
            shaping: None,
        }],
    }
}

/// Maximum time to wait for an event on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Calls `condition` until it returns true or [`MAX_WAIT`] is over. Returns its last result.
pub fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + MAX_WAIT;
    while Instant::now() < deadline {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    condition()
}

/// Returns how long the threads of a process ran or were ready to run (/proc/PID/schedstat), ms.
/// Other processes do not change it: a thread that spins is always ready, one that sleeps never is.
pub fn ready_ms(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process");
    let ready_ns = tasks.map(|task| {
        let path = task.expect("a thread").path().join("schedstat");
        let figures = std::fs::read_to_string(path).expect("its times");
        let mut times = figures
            .split_whitespace()
            .map(|ns| ns.parse::<u64>().unwrap());
        times.next().unwrap() + times.next().unwrap()
    });
    ready_ns.sum::<u64>() / 1_000_000
}

/// Checks by their counters that workers without packets sleep, also if a port has unsent packets.
pub fn assert_sleeping(workers: &[&WorkerHandle]) {
    for worker in workers {
        assert!(wait_until(|| is_asleep(worker.pid())), "a worker is busy");
    }
    let count = |worker: &&WorkerHandle| worker.stats().worker().sleeps;
    let start = Instant::now();
    let before: Vec<u64> = workers.iter().map(count).collect();
    std::thread::sleep(Duration::from_millis(200));
    for (worker, before) in workers.iter().zip(before) {
        let sleeps = count(worker) - before;
        // With unsent packets the sleeps take 1, 2, 4 ... 64 ms, then 64 ms each.
        let most = 8 + start.elapsed().as_millis() as u64 / 64;
        assert!(sleeps <= most, "{sleeps} sleeps, at most {most} expected");
    }
}

/// Returns whether the first thread of a process, the worker's loop, sleeps (/proc/PID/stat).
fn is_asleep(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process");
    let (_, state) = stat.rsplit_once(") ").expect("the state after the name");
    state.starts_with('S')
}

const PORT: u16 = 9000;

pub const ADAPTIVE: Idle = Idle::Adaptive {
    spin: Duration::from_micros(50),
};

/// Returns a connected client socket and a server socket, with a receive timeout.
pub fn connect_udp(network: &Network) -> (UdpSocket, UdpSocket) {
    let client = network.udp(EndHost::Client, 0);
    let server = network.udp(EndHost::Server, PORT);
    client.connect((EndHost::Server.address(), PORT)).unwrap();
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(MAX_WAIT)).unwrap();
    }
    (client, server)
}

/// Sends one packet, checks that the server receives `expected`, and returns it to the client.
pub fn echo(
    client: &UdpSocket,
    server: &UdpSocket,
    sent: &[u8],
    expected: &[u8],
) -> std::io::Result<()> {
    let mut buffer = [0; 2048];
    client.send(sent)?;
    let (len, from) = server.recv_from(&mut buffer)?;
    assert_eq!(&buffer[..len], expected);
    server.send_to(&buffer[..len], from)?;
    let len = client.recv(&mut buffer)?;
    assert_eq!(&buffer[..len], expected);
    Ok(())
}

pub fn forward_function() -> Vec<FunctionConfig> {
    vec![FunctionConfig::Forward]
}

/// Reads all packets that the client has sent. They are in front of a packet that this function
/// sends: its length, which the path keeps, is unique. It sends another one if the first is lost,
/// for example because the server's buffer was full.
pub fn drain(client: &UdpSocket, server: &UdpSocket) {
    let timeout = server.read_timeout().unwrap();
    server
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let arrived = (200..1400).any(|len| {
        client.send(&vec![0x22; len]).unwrap();
        std::iter::from_fn(|| server.recv(&mut [0; 2048]).ok()).any(|received| received == len)
    });
    server.set_read_timeout(timeout).unwrap();
    assert!(arrived, "no packet arrives any more");
}

/// Sends packets back to back until the worker has received `packets` more.
pub fn flood(path: &UdpPath, client: &UdpSocket, packets: u64) {
    let start = path.worker.stats().worker().received;
    let deadline = Instant::now() + Duration::from_secs(60);
    while path.worker.stats().worker().received < start + packets {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            path.worker.stats().worker()
        );
        for _ in 0..256 {
            client.send(&[0x11; 64]).unwrap();
        }
    }
}
