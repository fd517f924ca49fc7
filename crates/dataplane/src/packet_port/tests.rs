//! Tests the port between two virtual links, and with any bytes.

use std::process::Command;

use myelin_packet::five_tuple::TCP;
use myelin_packet::traffic::{Bucket, Profile};
use myelin_packet::{Match, checksum, fixtures::build, parse};
use myelin_spec::FunctionConfig;
use proptest::prelude::*;

use super::*;
use crate::chain::{SocketId, UserChain, UserExit, UserSegment};
use crate::forwarder::Forwarder;
use crate::packet_socket::PacketSocket;
use crate::stats::Stats;

const FRAMES: u32 = 96;
const SPI: u32 = 7;
const PARTIAL: u8 = 1;
const GSO_TCP_V4: u8 = 1;

fn memory() -> &'static FrameMemory {
    let memory = FrameMemory::private(FRAMES, 128 << 10).unwrap();
    Box::leak(Box::new(memory))
}

/// Two veth pairs. Packets go from `a` over `b`, the port, and `c` to `d`.
struct Links(String);

impl Links {
    fn new(letter: char) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: needs root for veth pairs and packet sockets");
            return None;
        }
        let links = Self(format!("my{}{letter}", std::process::id()));
        for (near, far) in [("a", "b"), ("c", "d")] {
            links.ip(&format!("link add DEV{near} type veth peer name DEV{far}"));
            for end in [near, far] {
                let path = format!("/proc/sys/net/ipv6/conf/{}{end}/disable_ipv6", links.0);
                let _ = std::fs::write(path, "1");
                links.ip(&format!("link set DEV{end} up"));
            }
        }
        links.wait_until_up();
        Some(links)
    }

    /// The kernel drops what an end sends before it has noticed that the other end is up.
    fn wait_until_up(&self) {
        for end in ["a", "b", "c", "d"] {
            let path = format!("/sys/class/net/{}{end}/operstate", self.0);
            while std::fs::read_to_string(&path).unwrap().trim() != "up" {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            // Waits for the lock that the kernel holds meanwhile.
            self.ip(&format!("link set DEV{end} up"));
        }
    }

    fn ip(&self, command: &str) {
        let command = command.replace("DEV", &self.0);
        let status = Command::new("ip")
            .args(command.split(' '))
            .status()
            .unwrap();
        assert!(status.success(), "ip {command}");
    }

    fn socket(&self, end: char, receives: bool) -> PacketSocket {
        let name = format!("{}{end}", self.0);
        let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).unwrap();
        let index = index.trim().parse().unwrap();
        let opened = if receives {
            PacketSocket::receiver(&name, index)
        } else {
            PacketSocket::sender(&name, index)
        };
        opened.unwrap()
    }

    fn port(
        &self,
        end: char,
        receives: bool,
        number: usize,
        memory: &'static FrameMemory,
    ) -> PacketPort {
        let fd = self
            .socket(end, receives)
            .fd()
            .try_clone_to_owned()
            .unwrap();
        PacketPort::new((fd, None), receives, Borrower::new(number).unwrap(), memory)
    }

    /// Returns a forwarder with one function between `b` and `c`.
    fn forwarder(&self, stats: &Stats, policing: Profile) -> Forwarder<'static, PacketPort> {
        let memory = memory();
        let mut forwarder = Forwarder::in_process(memory, 32, stats).unwrap();
        forwarder.add_port(0, self.port('b', true, 0, memory));
        forwarder.add_port(1, self.port('c', false, 1, memory));
        let chain = UserChain {
            spi: SPI,
            generation: 0,
            positions: 1,
            segments: vec![UserSegment {
                first_position: 0,
                functions: vec![FunctionConfig::Forward.into()],
                exit: UserExit::Port(SocketId(1)),
                shaping: None,
            }],
        };
        forwarder.deploy(&chain, stats).unwrap();
        let redirect = ChainRedirect {
            matches: Match {
                protocol: Some(TCP),
                ..Match::default()
            },
            ingress: SocketId(0),
            policing,
            spi: SPI,
            generation: 0,
        };
        let door = forwarder.port_mut(0).unwrap();
        door.redirect(&redirect, stats.door_counters(SPI).unwrap())
            .unwrap();
        forwarder.start();
        forwarder
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for end in ["a", "c"] {
            let _ = Command::new("ip")
                .args(["link", "del", &format!("{}{end}", self.0)])
                .status();
        }
    }
}

/// Returns a TCP packet with a payload of `len` bytes and a partial checksum.
fn tcp_packet(len: usize) -> Vec<u8> {
    let payload = build::payload(len);
    let mut frame = build::tcp(build::client_v4(), build::server_v4(), &payload);
    let headers = parse(&frame).unwrap();
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    let tcp_len = (frame.len() - l4) as u64;
    let sum = checksum::sum(&frame[l3 + 12..l3 + 20]) + u64::from(TCP) + tcp_len;
    frame[l4 + 16..l4 + 18].copy_from_slice(&checksum::fold(sum).to_be_bytes());
    frame
}

/// Returns a kernel header for a packet of [`tcp_packet`] behind `removed` bytes of tags.
fn header(segment_len: u16, removed: u16) -> Vec<u8> {
    let kind = if segment_len == 0 { 0 } else { GSO_TCP_V4 };
    let words = [54, segment_len, 34 + removed, 16].map(u16::to_ne_bytes);
    [vec![PARTIAL, kind], words.concat()].concat()
}

/// Sends a packet over an entry link: behind two tags with the stamp.
fn send_relayed(socket: &PacketSocket, packet: &[u8], segment_len: u16, stamp_ns: u64) -> bool {
    let [.., a, b, c, d] = stamp_ns.to_be_bytes();
    let tags = [0x88, 0xa8, a, b, 0x88, 0xa8, c, d];
    let frame = [&packet[..ADDRESSES], &tags, &packet[ADDRESSES..]].concat();
    let sent = [header(segment_len, 8), frame].concat();
    nix::unistd::write(socket.fd(), &sent).is_ok()
}

/// Receives what arrives within a second: the kernel's header and the packet.
fn receive(socket: &PacketSocket) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut fds = [libc::pollfd {
        fd: socket.fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }];
    crate::sys::poll(&mut fds, Some(std::time::Duration::from_secs(1))).unwrap();
    let mut bytes = vec![0; 70_000];
    let len = nix::unistd::read(socket.fd(), &mut bytes).ok()?;
    let packet = bytes[KERNEL_HEADER_LEN..len].to_vec();
    bytes.truncate(KERNEL_HEADER_LEN);
    Some((bytes, packet))
}

/// Processes packets until the condition holds. The kernel may deliver a packet late, and packets
/// of its own.
fn process_until(forwarder: &mut Forwarder<'static, PacketPort>, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !condition() && std::time::Instant::now() < deadline {
        forwarder.process_batches();
        forwarder.flush_and_refill();
    }
    assert!(condition(), "the packets arrive");
}

/// Processes packets until the front door has counted `packets`.
fn process(forwarder: &mut Forwarder<'static, PacketPort>, stats: &Stats, packets: u64) {
    process_until(forwarder, || {
        stats.door(SPI).is_some_and(|door| door.packets >= packets)
    });
}

#[test]
fn super_packets_stay_whole_and_count_as_their_segments() {
    let Some(links) = Links::new('s') else { return };
    let (near, far) = (links.socket('a', false), links.socket('d', true));
    let stats = Stats::create().unwrap();
    let mut forwarder = links.forwarder(&stats, Profile::default());
    let free = forwarder.free_frames();
    let stamp_ns = monotonic_ns() - 5_000_000;
    let mut packets = 0;
    for (len, segment_len, segments) in [(100, 0, 1), (4000, 1000, 4), (60_000, 1448, 42)] {
        let packet = tcp_packet(len);
        assert!(send_relayed(&near, &packet, segment_len, stamp_ns));
        packets += segments;
        process(&mut forwarder, &stats, packets);
        let (header, arrived) = receive(&far).unwrap();
        assert!(arrived == packet, "{len}: the packet arrived changed");
        assert_eq!(header[0], PARTIAL, "the checksum stays partial");
        assert_eq!(header[1] == GSO_TCP_V4, segments > 1);
        assert_eq!(u16::from_ne_bytes([header[4], header[5]]), segment_len);
        let chain = stats.chain(SPI, 0).unwrap();
        let door = stats.door(SPI).unwrap();
        assert_eq!((door.packets, chain.transmitted), (packets, packets));
        assert_eq!(chain.positions[0].packets_in, packets);
        assert_eq!(chain.sojourn.count(), packets);
        assert_eq!(door.last_ns, stamp_ns, "the stamp crossed the link");
        assert!(chain.sojourn.min_ns() >= Some(5_000_000));
    }
    assert_eq!(forwarder.free_frames(), free, "no frame is lost");
}

#[test]
fn refused_packets_are_lost_and_never_out() {
    let Some(links) = Links::new('r') else { return };
    let near = links.socket('a', false);
    let stats = Stats::create().unwrap();
    let mut forwarder = links.forwarder(&stats, Profile::default());
    let free = forwarder.free_frames();
    links.ip("link set DEVc mtu 600");
    assert!(send_relayed(&near, &tcp_packet(1000), 0, monotonic_ns()));
    process(&mut forwarder, &stats, 1);
    links.ip("link set DEVc down");
    assert!(send_relayed(&near, &tcp_packet(9000), 1000, monotonic_ns()));
    process(&mut forwarder, &stats, 10);
    let chain = stats.chain(SPI, 0).unwrap();
    assert_eq!((chain.transmitted, chain.transmit_drops), (0, 1 + 9));
    assert_eq!(chain.sojourn.count(), 0);
    assert_eq!(forwarder.free_frames(), free, "no frame is lost");
}

#[test]
fn segments_above_the_profile_are_policed_as_on_the_wire() {
    let Some(links) = Links::new('p') else { return };
    let near = links.socket('a', false);
    let stats = Stats::create().unwrap();
    let packets = Bucket::new(1, 4).ok();
    let policing = Profile {
        packets,
        bits: None,
    };
    let mut forwarder = links.forwarder(&stats, policing);
    for packets in [3, 6] {
        assert!(send_relayed(&near, &tcp_packet(3000), 1000, monotonic_ns()));
        process(&mut forwarder, &stats, packets);
    }
    let door = stats.door(SPI).unwrap();
    assert_eq!((door.packets, door.policed), (6, 3));
    assert_eq!(door.policed_bytes, 3 * (54 + 1000));
    assert_eq!(stats.chain(SPI, 0).unwrap().transmitted, 3);
}

#[test]
fn packets_that_crossed_no_entry_link_and_other_protocols_are_dropped() {
    let Some(links) = Links::new('u') else { return };
    let near = links.socket('a', false);
    let stats = Stats::create().unwrap();
    let mut forwarder = links.forwarder(&stats, Profile::default());
    let free = forwarder.free_frames();
    let untagged = [header(0, 0), tcp_packet(100)].concat();
    nix::unistd::write(near.fd(), &untagged).unwrap();
    let udp = build::udp(build::client_v4(), build::server_v4(), &[0; 100]);
    send_relayed(&near, &udp, 0, monotonic_ns());
    process_until(&mut forwarder, || stats.worker().invalid_descriptors >= 2);
    // A packet of the chain comes behind both.
    assert!(send_relayed(&near, &tcp_packet(100), 0, monotonic_ns()));
    process(&mut forwarder, &stats, 1);
    assert_eq!(stats.door(SPI).unwrap().packets, 1);
    assert_eq!(forwarder.free_frames(), free, "no frame is lost");
}

#[test]
fn a_full_buffer_counts_the_packets_that_it_drops() {
    let Some(links) = Links::new('f') else { return };
    let (near, far) = (links.socket('a', false), links.socket('b', true));
    let facts = crate::WorkerFacts::new(None, crate::Idle::Spin);
    facts.add_packet_socket(SocketId(3), far.shared_fd());
    assert_eq!(facts.overflowed(SocketId(3)), Some(0));
    let packet = tcp_packet(60_000);
    let mut sent = 0;
    while facts.overflowed(SocketId(3)) == Some(0) {
        assert!(sent < 10_000, "the buffer is never full");
        assert!(send_relayed(&near, &packet, 1448, monotonic_ns()));
        sent += 1;
    }
    assert!(sent > 50, "{sent} super-packets fill the buffer");
    let dropped = facts.overflowed(SocketId(3));
    assert_eq!(facts.overflowed(SocketId(3)), dropped);
    assert!(dropped >= Some(1));
    facts.forget_socket(SocketId(3));
    assert_eq!(facts.overflowed(SocketId(3)), None);
}

fn port_without_socket() -> PacketPort {
    let null = File::options().write(true).open("/dev/null").unwrap();
    PacketPort::new(
        (null.into(), None),
        true,
        Borrower::new(0).unwrap(),
        memory(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_packet_is_dropped_or_lies_in_its_frame(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        packet_len in 0..2000_usize,
        is_relayed: bool,
        tag: (u16, u16),
        len in 0..70_000_usize,
    ) {
        let mut port = port_without_socket();
        let stats = Stats::create().unwrap();
        let redirect = ChainRedirect {
            matches: Match { protocol: Some(TCP), ..Match::default() },
            ingress: SocketId(0),
            policing: Profile::default(),
            spi: SPI,
            generation: 0,
        };
        port.redirect(&redirect, stats.door_counters(SPI).unwrap()).unwrap();
        let mut frame = vec![0; 128 << 10];
        let packet = tcp_packet(packet_len);
        let packet = [&packet[..12], &[0x88, 0xa8, 1, 2], &packet[12..]].concat();
        frame[PACKET_AT..PACKET_AT + packet.len()].copy_from_slice(&packet);
        let valid = header(100, 4);
        frame[..valid.len()].copy_from_slice(&valid);
        // Overwrites the header, or more.
        let changed = if bytes.len() < 64 { bytes.len().min(KERNEL_HEADER_LEN) } else { bytes.len() };
        frame[..changed].copy_from_slice(&bytes[..changed]);
        let (tag, len) = if is_relayed { ((RELAY_TYPE, 9), packet.len()) } else { (tag, len) };
        if let Some((offset, len)) = port.admit(&mut frame, len, tag) {
            prop_assert!(offset >= OFFLOAD_LEN + META_LEN && offset + len <= frame.len());
        }
    }
}
