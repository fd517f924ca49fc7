//! Tests chains with real packets over real links.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::time::Instant;

use myelin_kernel::{
    ChainConfig, EntrySpace, Error, Exit, Hook, KernelSegment, LoadedChain, Plane, Port, XdpMode,
};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Match, Unparsed};
use myelin_spec::{FunctionConfig, OnFailure, XorConfig};

use crate::common::create_plane;
use crate::door_bench::forwards;
use crate::net::{Host, Net, PATIENCE, SILENCE, receive, wait_for};

const PORT: u16 = 9000;
const KEY: u8 = 0x5a;
const XOR: FunctionConfig = FunctionConfig::Xor(XorConfig { key: KEY });

/// A chain from client to server for one UDP port. All other traffic bypasses the chain in both
/// directions.
struct Deployed {
    plane: Plane,
    chain: LoadedChain,
    client: Port,
    server: Port,
}

fn config(hook: Hook, functions: &[FunctionConfig], exit: Exit) -> ChainConfig {
    ChainConfig {
        spi: 1,
        generation: 0,
        hook,
        on_failure: OnFailure::Drop,
        policer: None,
        positions: functions.len() as u8,
        entry: EntrySpace::Kernel,
        segments: vec![KernelSegment {
            first_position: 0,
            functions: functions.iter().cloned().map(Into::into).collect(),
            exit,
        }],
    }
}

fn deploy(net: &Net, hook: Hook, functions: &[FunctionConfig], peer: bool) -> Deployed {
    let plane = create_plane();
    let client = plane.add_port(net.client_port(peer)).unwrap();
    let server = plane.add_port(net.server_port(peer)).unwrap();
    let chain = plane
        .load_chain(&config(hook, functions, net.to_server(peer)))
        .unwrap();
    client
        .insert(
            &Match {
                destination_port: Some(PORT),
                ..Match::default()
            },
            &chain,
        )
        .unwrap();
    Deployed {
        plane,
        chain,
        client,
        server,
    }
}

impl Deployed {
    fn attach_tcx(&self) {
        self.client.attach_tcx().unwrap();
        self.server.attach_tcx().unwrap();
    }

    fn packets(&self, slot: u32) -> u64 {
        self.plane.counters().read(slot).packets
    }
}

/// Sends payloads of several sizes through the chain, which is an `xor`, and past the chain.
fn assert_flows(net: &Net, deployed: &Deployed) {
    let sender = net.client.open_udp(1000);
    let (matched, unmatched) = (net.server.open_udp(PORT), net.server.open_udp(PORT + 1));
    let to = |port| SocketAddrV4::new(net.server.address, port);
    let sizes = [0, 1, 31, 64, 555, 1472];
    let start = Instant::now();
    for size in sizes {
        let payload = build::payload(size);
        sender.send_to(&payload, to(PORT)).unwrap();
        let expected: Vec<u8> = payload.iter().map(|byte| byte ^ KEY).collect();
        assert_eq!(
            receive(&matched, PATIENCE),
            Some(expected),
            "{size} bytes through the chain"
        );
        sender.send_to(&payload, to(PORT + 1)).unwrap();
        assert_eq!(
            receive(&unmatched, PATIENCE),
            Some(payload),
            "{size} bytes past the chain"
        );
    }
    let back = build::payload(100);
    matched
        .send_to(&back, SocketAddrV4::new(net.client.address, 1000))
        .unwrap();
    assert_eq!(receive(&sender, PATIENCE), Some(back));

    let count = sizes.len() as u64;
    let slots = [
        deployed.chain.door_slot(),
        deployed.chain.counter_slot(0).unwrap(),
        deployed.chain.egress_slot(),
    ];
    assert_eq!(
        slots.map(|slot| deployed.packets(slot)),
        [count; 3],
        "each hop must count each packet once"
    );
    let sojourn = deployed.chain.sojourn();
    assert_eq!(sojourn.count(), count);
    let max_ns = sojourn.max_ns().unwrap();
    assert!(u128::from(max_ns) < start.elapsed().as_nanos(), "{max_ns}");
    let client_counters = deployed.client.counters();
    assert_eq!(client_counters.unmatched.packets, count);
    // ARP is not IP.
    assert!(client_counters.unparsed(Unparsed::NotIp).packets > 0);
    // A port without chains counts frames and does not parse them.
    let server_counters = deployed.server.counters();
    assert!(
        server_counters.unmatched.packets > 1,
        "the server's port must count the reply and address resolution"
    );
    assert!(
        server_counters
            .unparsed
            .iter()
            .all(|reason| reason.packets == 0)
    );
}

#[test]
fn packets_pass_a_tcx_chain_that_redirects_to_the_peer() {
    let Some(net) = Net::new() else { return };
    // The sender leaves the checksum to the card. A veth computes no checksum, so the packet stays
    // CHECKSUM_PARTIAL.
    let deployed = deploy(&net, Hook::Tcx, &[XOR], true);
    deployed.attach_tcx();
    assert_flows(&net, &deployed);
}

#[test]
fn packets_with_complete_checksums_pass_a_tcx_chain_with_plain_redirect() {
    let Some(net) = Net::new() else { return };
    net.client.set_offloads(&["tx", "off"]);
    let deployed = deploy(&net, Hook::Tcx, &[XOR], false);
    deployed.attach_tcx();
    assert_flows(&net, &deployed);
}

#[test]
fn packets_pass_a_chain_at_clsact() {
    let Some(net) = Net::new() else { return };
    let deployed = deploy(&net, Hook::Tcx, &[XOR], true);
    deployed.client.attach_clsact().unwrap();
    deployed.server.attach_clsact().unwrap();
    assert_flows(&net, &deployed);
    let sender = net.client.open_udp(1001);
    let receiver = net.server.open_udp(PORT + 2);
    deployed.client.detach().unwrap();
    sender
        .send_to(b"gone", SocketAddrV4::new(net.server.address, PORT + 2))
        .unwrap();
    assert_eq!(
        receive(&receiver, SILENCE),
        None,
        "the filter must be detached"
    );
}

/// Prepares the hosts for XDP: complete checksums, and NAPI at the receiving veth.
fn prepare_xdp(net: &Net) {
    for host in net.hosts() {
        host.set_offloads(&["tx", "off", "gro", "on"]);
    }
}

#[test]
fn packets_pass_a_chain_at_native_xdp() {
    let Some(net) = Net::new() else { return };
    prepare_xdp(&net);
    let deployed = deploy(&net, Hook::Xdp, &[XOR], true);
    deployed.attach_tcx();
    deployed.client.attach_xdp(XdpMode::Native).unwrap();
    assert_flows(&net, &deployed);
}

#[test]
fn packets_pass_a_chain_at_generic_xdp() {
    let Some(net) = Net::new() else { return };
    prepare_xdp(&net);
    let deployed = deploy(&net, Hook::Xdp, &[XOR], true);
    deployed.attach_tcx();
    deployed.client.attach_xdp(XdpMode::Generic).unwrap();
    assert_flows(&net, &deployed);
}

#[test]
fn the_tc_door_drops_packets_of_an_xdp_chain_without_its_door() {
    let Some(net) = Net::new() else { return };
    prepare_xdp(&net);
    let deployed = deploy(&net, Hook::Xdp, &[XOR], true);
    deployed.attach_tcx();
    let (sender, receiver) = (net.client.open_udp(1000), net.server.open_udp(PORT));
    let to = SocketAddrV4::new(net.server.address, PORT);
    sender.send_to(b"closed", to).unwrap();
    assert_eq!(receive(&receiver, SILENCE), None);
    deployed.client.attach_xdp(XdpMode::Native).unwrap();
    sender.send_to(b"open", to).unwrap();
    assert!(receive(&receiver, PATIENCE).is_some());
    deployed.client.detach_xdp().unwrap();
    sender.send_to(b"closed", to).unwrap();
    assert_eq!(receive(&receiver, SILENCE), None);
    wait_for(&(1, 2), || {
        let door = deployed.plane.counters().read(deployed.chain.door_slot());
        (door.packets, door.drops)
    });
}

/// Sends `len` bytes from client to server over TCP. Returns the received bytes.
fn stream(net: &Net, len: usize) -> Vec<u8> {
    let address = SocketAddrV4::new(net.server.address, PORT);
    let listener = net.server.inside(|| TcpListener::bind(address).unwrap());
    listener.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let start = Instant::now();
            let mut stream = loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    Err(error) => {
                        assert!(start.elapsed() < PATIENCE, "no client connected: {error}");
                    }
                }
                std::thread::yield_now();
            };
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut received = Vec::new();
            // After a time-out the caller compares the bytes so far.
            let _ = stream.read_to_end(&mut received);
            received
        });
        let mut stream: TcpStream = net
            .client
            .inside(|| TcpStream::connect_timeout(&address.into(), PATIENCE).unwrap());
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&build::payload(len));
        drop(stream);
        receiver.join().unwrap()
    })
}

#[test]
fn gso_streams_pass_functions_that_keep_the_payload() {
    let Some(net) = Net::new() else { return };
    let deployed = deploy(&net, Hook::Tcx, &forwards(2), true);
    deployed.attach_tcx();
    let len = 4_000_000;
    assert_eq!(stream(&net, len), build::payload(len));
    let door = deployed.plane.counters().read(deployed.chain.door_slot());
    let segments = len as u64 / 1448;
    assert!(
        door.packets > segments,
        "the door must count more than {segments} segments, not {}",
        door.packets
    );
}

/// TCP packets are not linear, because headers and payload are in separate buffers. Two `xor` with
/// one key cancel out.
#[test]
fn tcp_streams_pass_functions_that_change_the_payload() {
    let Some(net) = Net::new() else { return };
    for settings in [["tx", "on"], ["tx", "off"]] {
        net.client.set_offloads(&settings);
        net.client.set_offloads(&["tso", "off", "gso", "off"]);
        let deployed = deploy(&net, Hook::Tcx, &[XOR, XOR], true);
        deployed.attach_tcx();
        let len = 500_000;
        assert_eq!(stream(&net, len), build::payload(len), "{settings:?}");
        let function = deployed
            .plane
            .counters()
            .read(deployed.chain.counter_slot(1).unwrap());
        assert_eq!(function.drops, 0);
        assert!(function.packets > len as u64 / 1460);
    }
}

#[test]
fn unparsed_frames_pass_and_are_counted_by_reason() {
    let Some(net) = Net::new() else { return };
    let deployed = deploy(&net, Hook::Tcx, &[XOR], true);
    deployed.attach_tcx();
    let mut expected = [0; Unparsed::ALL.len()];
    for fixture in fixtures::all() {
        // The sending socket refuses frames shorter than a header or longer than the MTU. The
        // receiving stack refuses a truncated tag.
        if let Err(reason) = fixture.expected
            && (15..1500).contains(&fixture.frame.len())
            && !["vlan-cut", "second-tag-cut"].contains(&fixture.name)
        {
            net.client.send_frame(&fixture.frame);
            expected[usize::from(reason.code()) - 1] += 1;
        }
    }
    assert!(expected.iter().all(|&count| count > 0), "{expected:?}");
    wait_for_unparsed(&deployed.client, expected);
}

#[test]
fn vlan_tags_in_the_skb_count_as_tags() {
    let Some(net) = Net::new() else { return };
    let deployed = deploy(&net, Hook::Tcx, &forwards(1), true);
    deployed.attach_tcx();
    let frame = build::udp(build::client_v4(), build::server_v4(), b"tagged");
    let tagged = |tags: &[u16]| build::with_tags(frame.clone(), tags);
    net.client.send_frame(&tagged(&[build::VLAN]));
    net.client.send_frame(&tagged(&[build::QINQ, build::VLAN]));
    net.client
        .send_frame(&tagged(&[build::QINQ, build::VLAN, build::VLAN]));
    let mut expected = [0; Unparsed::ALL.len()];
    expected[usize::from(Unparsed::TooManyTags.code()) - 1] = 1;
    wait_for_unparsed(&deployed.client, expected);
    wait_for(&2, || deployed.packets(deployed.chain.door_slot()));
}

/// Waits for the expected counts of unparsed frames.
fn wait_for_unparsed(port: &Port, expected: [u64; Unparsed::ALL.len()]) {
    wait_for(&expected, || {
        port.counters().unparsed.map(|counters| counters.packets)
    });
}

#[test]
fn programs_that_another_plane_attached_stay_attached() {
    let Some(net) = Net::new() else { return };
    let theirs = deploy(&net, Hook::Xdp, &[XOR], true);
    theirs.client.attach_xdp(XdpMode::Native).unwrap();
    let ours = deploy(&net, Hook::Xdp, &[XOR], true);
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let error = ours.client.attach_xdp(mode).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot attach to {} at XDP", net.client.link)),
            "{error}"
        );
        assert!(error.contains("another XDP program is attached"), "{error}");
    }
    drop(theirs);
    ours.client.attach_xdp(XdpMode::Native).unwrap();
    // A second call changes nothing.
    ours.client.attach_xdp(XdpMode::Native).unwrap();
}

#[test]
fn a_removed_interface_is_an_error() {
    let Some(net) = Net::new() else { return };
    let deployed = deploy(&net, Hook::Xdp, &[XOR], true);
    let Net {
        client: Host { link, .. },
        ..
    } = &net;
    crate::net::ip(&["link", "delete", link]);
    for error in [
        deployed.client.attach_xdp(XdpMode::Native),
        deployed.client.attach_tcx(),
        deployed.client.attach_clsact(),
    ] {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Attach { .. }), "{error}");
        assert!(
            error.to_string().contains("does not exist any more"),
            "{error}"
        );
    }
}
