//! Tests `timestamp` behind the front door and over real links. `tests/kinds` checks the bytes.

use std::net::SocketAddrV4;
use std::time::Instant;

use myelin_functions::timestamp::{MTU, STAMPS_LEN};
use myelin_kernel::{Hook, XdpMode};
use myelin_packet::fixtures::build;
use myelin_packet::{Match, checksum, parse};
use myelin_spec::FunctionConfig;

use crate::common::{create_plane, is_root, kernel_chain};
use crate::door_bench::DoorBench;
use crate::net::{Net, PATIENCE, SILENCE, receive, wait_for};

/// Returns the times of reception and departure at the end of the payload.
fn times(frame: &[u8], end: u16) -> (u64, u64) {
    let tail: &[u8; STAMPS_LEN] = frame[..end.into()].last_chunk().unwrap();
    let time = |at: usize| u64::from_be_bytes(*tail[at..].first_chunk().unwrap());
    (time(0), time(8))
}

#[test]
fn each_function_appends_clock_times() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let bench = DoorBench::new(
            hook,
            &[FunctionConfig::Timestamp, FunctionConfig::Timestamp],
        );
        let frame = build::udp_v4(33);
        let start = Instant::now();
        let out = bench.run(&frame).frame;
        let headers = parse(&out).unwrap();
        assert_eq!(out.len(), frame.len() + 32);
        assert_eq!(checksum::l4_is_valid(&out, &headers), Some(true));
        assert_eq!(checksum::checksum(&out[14..34]), 0);
        let (received, first) = times(&out, headers.end - 16);
        let (again, second) = times(&out, headers.end);
        // Each function shows its own reception.
        assert!(received <= first && first < again && again <= second);
        assert!(u128::from(second - received) < start.elapsed().as_nanos());
    }
}

/// Tests real links: with checksums that the NIC would complete, with complete checksums, and at
/// XDP. The receiver's stack drops packets with wrong checksums.
#[test]
fn stamped_packets_arrive_over_real_links() {
    let Some(net) = Net::new() else { return };
    for (hook, transmit_checksums) in [(Hook::Tcx, "on"), (Hook::Tcx, "off"), (Hook::Xdp, "off")] {
        for host in net.hosts() {
            host.set_offloads(&["tx", transmit_checksums, "gro", "on"]);
        }
        let plane = create_plane();
        let port = plane.add_port(net.client_port(true)).unwrap();
        let back = plane.add_port(net.server_port(true)).unwrap();
        let mut config = kernel_chain(hook, 1, &[FunctionConfig::Timestamp]);
        config.segments[0].exit = net.to_server(true);
        let chain = plane.load_chain(&config).unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        port.attach_tcx().unwrap();
        back.attach_tcx().unwrap();
        if hook == Hook::Xdp {
            port.attach_xdp(XdpMode::Native).unwrap();
        }
        let (sender, receiver) = (net.client.open_udp(1000), net.server.open_udp(9000));
        let to = SocketAddrV4::new(net.server.address, 9000);
        let longest = MTU - 28 - 16;
        // The program moves a frame without tailroom, word by word. The loop covers lengths with
        // every remainder.
        for len in (0..longest).step_by(37).chain(100..120).chain([longest]) {
            let payload = build::payload(len);
            sender.send_to(&payload, to).unwrap();
            let received = receive(&receiver, PATIENCE);
            let received = received.unwrap_or_else(|| panic!("{hook}: {len} bytes were lost"));
            let (front, times) = received.split_at(len);
            assert_eq!(
                (front, times.len()),
                (&payload[..], 16),
                "{hook}: {len} bytes"
            );
        }
        sender.send_to(&build::payload(longest + 1), to).unwrap();
        assert_eq!(receive(&receiver, SILENCE), None);
        let slot = chain.counter_slot(0).unwrap();
        wait_for(&(hook, 1), || (hook, plane.counters().read(slot).drops));
    }
}
