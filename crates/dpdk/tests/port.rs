//! Runs the forwarder over DPDK devices without hardware. Compares packets and counters with a run
//! over memory.
//!
//! The file has one test, because a process has one environment.

use myelin_dataplane::memory_port::MemoryPort;
use myelin_dataplane::port::{Buffer, FramePool, Port};
use myelin_dataplane::umem::{Borrower, FrameMemory, HEADROOM};
use myelin_dataplane::{
    ChainRedirect, DrivenPort, Forwarder, SocketId, Stats, Umem, UserChain, UserExit, UserSegment,
};
use myelin_dpdk::{DpdkPort, Environment, EnvironmentConfig, runtime_directory};
use myelin_packet::fixtures::{self, build};
use myelin_packet::rules::{Action, Rule};
use myelin_packet::traffic::Profile;
use myelin_packet::{Match, Meta};
use myelin_spec::{DpdkDevice, FirewallConfig, FragmentPolicy, FunctionConfig, XorConfig};

const IN: usize = 0;
const OUT: usize = 1;
const SPI: u32 = 5;

fn chain() -> UserChain {
    let mut deny = Rule::any(Action::Deny);
    deny.protocol = Some(6);
    let firewall = FirewallConfig {
        rules: vec![deny],
        default: Action::Allow,
        fragments: FragmentPolicy::Drop,
    };
    let functions = [
        FunctionConfig::Forward,
        FunctionConfig::Firewall(firewall),
        FunctionConfig::Xor(XorConfig { key: 0x5a }),
    ];
    UserChain {
        spi: SPI,
        generation: 2,
        positions: functions.len() as u8,
        segments: vec![UserSegment {
            first_position: 0,
            functions: functions.into_iter().map(Into::into).collect(),
            exit: UserExit::Port(SocketId::of_port(OUT as u16)),
            shaping: None,
        }],
    }
}

/// Returns the fixtures that parse, each several times, so that they fill batches.
fn packets() -> Vec<Vec<u8>> {
    let parsed = fixtures::all()
        .into_iter()
        .filter(|fixture| fixture.expected.is_ok());
    let longest = build::udp_v4(1458);
    let packets: Vec<Vec<u8>> = parsed
        .map(|fixture| fixture.frame)
        .filter(|frame| frame.len() <= 1514)
        .chain([longest])
        .collect();
    packets.iter().cycle().take(300).cloned().collect()
}

/// Runs the chain over memory. Returns its output packets.
fn process_over_memory(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let umem = Umem::create(1024, 2048).unwrap();
    let memory = FrameMemory::map(&umem).unwrap();
    let stats = Stats::create().unwrap();
    let mut forwarder = Forwarder::in_process(&memory, 32, &stats).unwrap();
    for port in [IN, OUT] {
        forwarder.add_port(port, MemoryPort::new(Borrower::new(port).unwrap(), 64));
    }
    forwarder.deploy(&chain(), &stats).unwrap();
    forwarder.start();
    let mut sent = Vec::new();
    for packet in packets {
        let headers = myelin_packet::parse(packet).unwrap();
        let meta = Meta::new(1, SPI, 2, 0, &headers);
        assert!(
            forwarder
                .port_mut(IN)
                .unwrap()
                .inject(&memory, &meta, packet)
        );
        forwarder.process_batches();
        sent.extend(forwarder.port_mut(OUT).unwrap().take_sent());
    }
    sent
}

/// Removes the environment's files even if an assertion fails.
struct FileCleanup(String);

impl Drop for FileCleanup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(runtime_directory(&self.0));
    }
}

fn open(environment: &Environment, device: &str) -> DpdkPort {
    DpdkPort::open(environment, &DpdkDevice::new(device).unwrap()).unwrap()
}

/// Sends test packets to the device at `IN`, without the functions.
struct PacketInjector<'m> {
    memory: &'m FrameMemory,
    free: FramePool,
}

impl<'m> PacketInjector<'m> {
    fn new(memory: &'m FrameMemory) -> Self {
        let free = FramePool::new(std::iter::empty(), 2 * FramePool::RESERVE);
        Self { memory, free }
    }

    fn send(&mut self, forwarder: &mut Forwarder<'_, DpdkPort>, packet: &[u8]) {
        let (memory, port) = (self.memory, forwarder.port_mut(IN).unwrap());
        assert!(port.refill(memory, &mut self.free), "the pool is empty");
        let mut frame = self.free.take().unwrap();
        memory.bytes_mut(&mut frame)[HEADROOM as usize..][..packet.len()].copy_from_slice(packet);
        let buffer = Buffer {
            frame,
            offset: HEADROOM,
            len: packet.len() as u32,
        };
        port.transmit(memory, buffer).unwrap();
        port.flush(memory);
        assert!(!port.is_backlogged(), "the device refused the packet");
    }
}

/// Redirects packets to the chain.
fn redirect(port: &mut DpdkPort, stats: &Stats, matches: Match) {
    let chain = ChainRedirect {
        matches,
        ingress: SocketId::of_port(0),
        policing: Profile::default(),
        spi: SPI,
        generation: 2,
    };
    port.redirect(&chain, stats.door_counters(SPI).unwrap())
        .unwrap();
}

#[test]
fn functions_give_the_same_packets_over_dpdk_as_over_memory() {
    if let Err(error) = myelin_dpdk::version() {
        println!("SKIP: {error}");
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: needs root for DPDK's runtime directory");
        return;
    }
    let prefix = format!("myelin-t{}", std::process::id());
    let _cleanup = FileCleanup(prefix.clone());
    let config = EnvironmentConfig::new(&prefix);
    let environment = Environment::start(&config).unwrap();
    let again = Environment::start(&config).unwrap_err();
    assert!(again.to_string().contains("one environment"), "{again}");

    check_that_the_port_requests_full_bursts(&environment);
    check_that_bytes_equal_those_over_memory(&environment);
    check_that_unmatched_packets_pass(&environment);
    check_that_no_frame_is_lost(&environment);
    check_that_errors_name_the_missing_device(&environment);

    assert!(runtime_directory(&prefix).exists());
    environment.stop();
    assert!(
        !runtime_directory(&prefix).exists(),
        "the environment left files"
    );
}

/// The port requests a full burst even for one packet. It keeps the other packets, and returns
/// their frames to the pool on close. All rounds together receive more packets than the pool has
/// frames.
fn check_that_the_port_requests_full_bursts(environment: &Environment) {
    for round in 0..300 {
        // The device returns as many packets as requested, as long as frames are free.
        let mut port = open(environment, &format!("net_null4{round},size=64"));
        assert_eq!(port.poll_arrivals(1), 1);
        assert_eq!(
            port.poll_arrivals(256),
            32,
            "round {round}: packets of the first burst"
        );
    }
}

/// A ring device is a loop: packets that a port sends to the device arrive at the same device. So
/// packets arrive at the first port, leave through the second port, and arrive again there. They
/// match no chain of the second port and pass to the third port, where the test checks them.
fn check_that_bytes_equal_those_over_memory(environment: &Environment) {
    let memory = environment.memory();
    let packets = packets();
    for batch in [1, 32, 256] {
        let stats = Stats::create().unwrap();
        let mut forwarder = Forwarder::in_process(memory, batch, &stats).unwrap();
        let names = [0, 1, 2].map(|at| format!("net_ring{batch}{at}"));
        let [mut ingress, mut egress, mut seen] =
            names.each_ref().map(|name| open(environment, name));
        redirect(&mut ingress, &stats, Match::default());
        egress.set_opposite(&seen);
        forwarder.add_port(IN, ingress);
        forwarder.add_port(OUT, egress);
        forwarder.deploy(&chain(), &stats).unwrap();
        forwarder.start();
        let mut injector = PacketInjector::new(memory);
        let mut sent = Vec::new();
        for chunk in packets.chunks(64) {
            for packet in chunk {
                injector.send(&mut forwarder, packet);
            }
            while forwarder.process_batches() > 0 {
                sent.extend(seen.collect(memory));
            }
        }
        let expected = process_over_memory(&packets);
        assert_eq!(sent.len(), expected.len(), "batch {batch}");
        assert!(sent == expected, "batch {batch}: the bytes differ");
        let done = stats.chain(SPI, 2).unwrap();
        assert_eq!(done.positions[0].packets_in, packets.len() as u64);
        assert_eq!(done.transmitted, expected.len() as u64);
        assert_eq!(done.sojourn.count(), expected.len() as u64);
        assert!(done.positions[1].drops > 0, "the firewall drops packets");
        assert_eq!(stats.door(SPI).unwrap().packets, packets.len() as u64);
        assert_eq!(stats.worker().invalid_descriptors, 0);
    }
}

fn check_that_unmatched_packets_pass(environment: &Environment) {
    let memory = environment.memory();
    let stats = Stats::create().unwrap();
    let mut forwarder = Forwarder::in_process(memory, 8, &stats).unwrap();
    let mut injector = PacketInjector::new(memory);
    let mut ingress = open(environment, "net_ring20");
    let mut egress = open(environment, "net_ring21");
    let tcp = Match {
        protocol: Some(6),
        ..Match::default()
    };
    redirect(&mut ingress, &stats, tcp);
    ingress.set_opposite(&egress);
    forwarder.add_port(IN, ingress);
    forwarder.start();
    let unknown_ethertype = build::ethernet(0x88cc);
    let frames = [unknown_ethertype, build::udp_v4(100), build::udp_v6(1)];
    for frame in &frames {
        injector.send(&mut forwarder, frame);
    }
    while forwarder.process_batches() > 0 {}
    assert_eq!(egress.collect(memory), frames);
    assert_eq!(stats.door(SPI).unwrap().packets, 0);
}

/// Sends far more packets than the pool has frames. A function drops half of the packets. Checks
/// that all frames return to the pool.
fn check_that_no_frame_is_lost(environment: &Environment) {
    let memory = environment.memory();
    let stats = Stats::create().unwrap();
    let mut forwarder = Forwarder::in_process(memory, 32, &stats).unwrap();
    let mut injector = PacketInjector::new(memory);
    let mut ingress = open(environment, "net_ring30");
    redirect(&mut ingress, &stats, Match::default());
    forwarder.add_port(IN, ingress);
    forwarder.add_port(OUT, open(environment, "net_null30,size=64"));
    forwarder.deploy(&chain(), &stats).unwrap();
    forwarder.start();
    let (tcp, udp) = (build::tcp_v4(60), build::udp_v4(60));
    for _ in 0..2000 {
        for packet in [&tcp, &udp].into_iter().cycle().take(16) {
            injector.send(&mut forwarder, packet);
        }
        forwarder.process_batches();
    }
    let done = stats.chain(SPI, 2).unwrap();
    assert_eq!(
        (done.positions[1].drops, done.transmitted),
        (16_000, 16_000)
    );
}

fn check_that_errors_name_the_missing_device(environment: &Environment) {
    for (device, words) in [
        ("net_af_xdp9,iface=nosuch0", ["net_af_xdp9", "interface"]),
        ("net_nosuch0", ["net_nosuch0", "driver"]),
        ("0000:ff:1f.7", ["0000:ff:1f.7", "vfio-pci"]),
    ] {
        let name = DpdkDevice::new(device).unwrap();
        let error = DpdkPort::open(environment, &name).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
