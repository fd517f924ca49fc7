//! Two network namespaces with a worker between them.

// Every test file is a crate of its own and uses a part of this.
#![allow(unreachable_pub, dead_code)]

pub mod xdp;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use myelin_dataplane::{
    Idle, Role, SocketId, UserChain, UserExit, UserSegment, WorkerConfig, WorkerHandle, Xsk,
    XskConfig,
};
use myelin_spec::FunctionConfig;
use nix::sched::{CloneFlags, setns};

use xdp::FrontDoor;

/// Chain of the packets from the client, and of those from the server.
pub const FORTH: u32 = 1;
pub const BACK: u32 = 2;

/// Whether this test may run; says why not. While it runs, no other one does: they look at processor time, and there are two cores.
pub fn privileged() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: needs root for network namespaces and AF_XDP sockets");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a command of the system; panics with what it said when it fails.
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

/// Client and server, each in a namespace, each joined by a veth pair to this one. Gone when dropped.
pub struct Network {
    number: u32,
}

static NETWORKS: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Client,
    Server,
}

impl End {
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
        for end in [End::Client, End::Server] {
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
            // The end host's link last: one that comes up without a carrier drops its first packets.
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

    fn namespace(&self, end: End) -> String {
        format!(
            "myelin-t{}-{}{}",
            std::process::id(),
            self.number,
            end.letter()
        )
    }

    /// The interface in this namespace whose peer is the end host's.
    pub fn port(&self, end: End) -> String {
        format!("my{}{}{}", std::process::id(), end.letter(), self.number)
    }

    pub fn ifindex(&self, end: End) -> u32 {
        let path = format!("/sys/class/net/{}/ifindex", self.port(end));
        let text = std::fs::read_to_string(path).expect("the port");
        text.trim().parse().expect("a number")
    }

    /// A UDP socket in an end host's namespace, bound to its address.
    pub fn udp(&self, end: End, port: u16) -> UdpSocket {
        let namespace = format!("/run/netns/{}", self.namespace(end));
        // A thread of its own: a namespace belongs to a thread, and the test's must stay where it is.
        std::thread::spawn(move || {
            let file = std::fs::File::open(namespace).expect("the namespace");
            setns(file, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
            UdpSocket::bind(SocketAddrV4::new(end.address(), port)).expect("bind")
        })
        .join()
        .expect("a socket")
    }

    pub fn delete_link(&self, end: End) {
        run(&format!("ip link del {}", self.port(end)));
    }

    pub fn set_link(&self, end: End, up: bool) {
        let state = if up { "up" } else { "down" };
        run(&format!("ip link set {} {state}", self.port(end)));
        if up {
            // The kernel forgets static neighbours of a link that goes down.
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
        for end in [End::Client, End::Server] {
            // Removing the namespace removes the pair.
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(end)])
                .output();
        }
    }
}

/// A worker that carries UDP between the ends, both ways.
pub struct Path {
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

impl Path {
    pub fn new(network: &Network, config: WorkerConfig, forth: Vec<FunctionConfig>) -> Self {
        Self::bound(network, config, forth, false)
    }

    /// With sockets that are bound late, as before Linux 6.4, or at once.
    pub fn bound(
        network: &Network,
        config: WorkerConfig,
        forth: Vec<FunctionConfig>,
        bind_late: bool,
    ) -> Self {
        let mut worker = WorkerHandle::spawn(config).expect("a worker");
        let [(client, client_door), (server, server_door)] =
            [(End::Client, FORTH), (End::Server, BACK)].map(|(end, spi)| {
                let ifindex = network.ifindex(end);
                let config = XskConfig {
                    bind_late,
                    ..XskConfig::new(network.port(end), ifindex, 0, Role::Ingress)
                };
                let door = Arc::new(FrontDoor::attach(ifindex, spi).expect("a front door"));
                let lead = Arc::clone(&door);
                let xsk = Xsk::bind(worker.umem(), &config, worker.first_socket())
                    .expect("a socket")
                    .led_by(Arc::new(move |socket| {
                        lead.set_socket(0, socket)
                            .map_err(|error| error.to_string())
                    }));
                (worker.add_socket(xsk).expect("added"), door)
            });
        worker
            .add_chain(chain(FORTH, forth, server))
            .expect("the way forth");
        worker
            .add_chain(chain(BACK, vec![FunctionConfig::Forward], client))
            .expect("the way back");
        Self {
            worker,
            client,
            server,
            doors: [client_door, server_door],
        }
    }

    /// Frames that are in a ring, twice when they are in two, and frames by the ledger and the pool. At rest the first two and the last two add up.
    pub fn audit(&self) -> Audit {
        let mut in_rings: Vec<u64> = [self.client, self.server]
            .into_iter()
            .filter_map(|id| self.worker.socket(id))
            .flat_map(|xsk| xsk.frames_in_rings().expect("the rings"))
            .map(|address| address / u64::from(self.worker.umem().frame_size()))
            .collect();
        let total = in_rings.len();
        in_rings.sort_unstable();
        in_rings.dedup();
        Audit {
            in_rings: in_rings.len(),
            twice: total - in_rings.len(),
            lent: self.worker.umem().lent().expect("the ledger"),
            free: self.worker.stats().worker().free_frames as usize,
            frames: self.worker.umem().frames() as usize,
        }
    }

    /// Waits until the frames add up, and says how they do not when they never do.
    pub fn assert_all_frames_accounted(&self) {
        let sound = wait_until(|| {
            let audit = self.audit();
            audit.twice == 0
                && audit.in_rings == audit.lent
                && audit.lent + audit.free == audit.frames
        });
        assert!(
            sound,
            "{:?} {:?}",
            self.audit(),
            self.worker.stats().worker()
        );
        assert_eq!(self.worker.stats().worker().invalid_descriptors, 0);
    }
}

#[derive(Debug)]
pub struct Audit {
    pub in_rings: usize,
    pub twice: usize,
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

/// How long something that happens soon may take on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again until it holds or so much time is over that it never will.
pub fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    holds()
}

/// Processor time a process has used, in clock ticks of 10 ms.
pub fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process");
    // Fields 14 and 15, counted behind the name, which may hold spaces.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

const PORT: u16 = 9000;

pub const ADAPTIVE: Idle = Idle::Adaptive {
    spin: Duration::from_micros(50),
};

/// A client socket and a server socket, connected, with a time limit on receiving.
pub fn ends(network: &Network) -> (UdpSocket, UdpSocket) {
    let client = network.udp(End::Client, 0);
    let server = network.udp(End::Server, PORT);
    client.connect((End::Server.address(), PORT)).unwrap();
    for socket in [&client, &server] {
        socket
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
    }
    (client, server)
}

/// One packet there, seen by the server as `expected`, and back.
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

pub fn forward() -> Vec<FunctionConfig> {
    vec![FunctionConfig::Forward]
}

/// Reads what is there.
pub fn drain(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let mut quiet = 0;
    while quiet < 10 {
        if socket.recv(&mut [0; 2048]).is_ok() {
            quiet = 0;
        } else {
            quiet += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    socket.set_nonblocking(false).unwrap();
}

/// Packets back to back for as long as it takes for the worker to have seen `packets` more.
pub fn flood(path: &Path, client: &UdpSocket, packets: u64) {
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
