//! `timestamp` in the kernel gives the bytes of its twin in user space.

use std::net::SocketAddrV4;

use myelin_functions::timestamp::{MTU, Timestamp};
use myelin_functions::{Discard, Function, Packet, Verdict};
use myelin_kernel::test_run::{Outcome, TestRun, run};
use myelin_kernel::{Hook, XdpMode};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Match, Meta, checksum, parse};
use myelin_spec::FunctionConfig;
use proptest::prelude::*;

use crate::net::{Net, PATIENCE, SILENCE, receive};
use crate::stand::{Stand, for_all, is_root, kernel_chain, plane, runs};

const STAMP_NS: u64 = 0x0011_2233_4455_6677;

fn stand(hook: Hook, functions: usize) -> Stand {
    Stand::new(hook, &vec![FunctionConfig::Timestamp; functions])
}

fn meta_of(frame: &[u8]) -> Meta {
    Meta::new(STAMP_NS, 0x00ab_cdef, 7, 0, &parse(frame).unwrap())
}

/// Runs the function without the front door, whose stamp nobody could know.
fn kernel(stand: &Stand, frame: &[u8]) -> Outcome {
    let program = stand.chain.program(0).unwrap();
    let test = TestRun {
        meta: Some(meta_of(frame)),
        ..TestRun::new(frame)
    };
    run(program, stand.hook, &test).unwrap()
}

/// The twin, at that time.
fn user(frame: &[u8], now_ns: u64) -> Option<(Vec<u8>, Meta)> {
    let mut buffer = [frame, &[0; 16]].concat();
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta_of(frame), 0).unwrap();
    let mut function = Timestamp::default();
    function.set_time(now_ns);
    let verdict = function.process(&mut packet, &mut Discard);
    (verdict == Verdict::Forward).then(|| (packet.bytes().to_vec(), *packet.meta()))
}

/// The times at the end of the payload.
fn times(frame: &[u8], end: u16) -> (u64, u64) {
    let tail: &[u8; 16] = frame[..end.into()].last_chunk().unwrap();
    let time = |at: usize| u64::from_be_bytes(*tail[at..].first_chunk().unwrap());
    (time(0), time(8))
}

fn assert_same(stand: &Stand, frame: &[u8], name: &str) {
    let hook = stand.hook;
    let outcome = kernel(stand, frame);
    let Some((_, after)) = user(frame, 0) else {
        assert_eq!(
            outcome.verdict,
            hook.drop(),
            "{hook}: {name} was not dropped"
        );
        return;
    };
    assert_eq!(
        outcome.verdict,
        hook.redirect(),
        "{hook}: {name} was dropped"
    );
    let (received, sent) = times(&outcome.frame, after.end);
    assert_eq!(received, STAMP_NS, "{hook}: {name}");
    let (expected, _) = user(frame, sent).unwrap();
    assert_eq!(outcome.frame, expected, "{hook}: {name}");
    let meta = outcome.meta.unwrap();
    assert_eq!(
        (meta.payload, meta.end, meta.stamp_ns),
        (after.payload, after.end, STAMP_NS),
        "{hook}: {name}"
    );
}

#[test]
fn every_fixture_comes_out_as_from_the_twin() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let stand = stand(hook, 1);
        let mut count = 0;
        for fixture in fixtures::all() {
            if fixture.expected.is_ok() && runs(hook, &fixture.frame) {
                assert_same(&stand, &fixture.frame, fixture.name);
                count += 1;
            }
        }
        assert!(count > 40, "only {count} fixtures");
    }
}

#[test]
fn payloads_of_every_length_up_to_the_mtu() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let stand = stand(hook, 1);
        for len in (0..70).chain(MTU - 80..MTU) {
            assert_same(&stand, &build::udp_v4(len), "IPv4");
            assert_same(&stand, &build::udp_v6(len), "IPv6");
            let padded = build::padded(build::udp_v4(len), len + 50);
            assert_same(&stand, &padded, "padded");
        }
    }
}

#[test]
fn random_packets_come_out_as_from_the_twin() {
    if !is_root() {
        return;
    }
    let stands = Hook::ALL.map(|hook| stand(hook, 1));
    let byte = prop_oneof![Just(0_u8), Just(0xff), any::<u8>()];
    let case = (
        any::<bool>(),
        prop::collection::vec(byte, 0..300),
        prop::option::of(prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()]),
        0..3_usize,
    );
    for_all(700, &case, |(is_v6, payload, held, tags)| {
        let (client, server) = if is_v6 {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        let mut frame = build::udp(client, server, &payload);
        if let Some(held) = held {
            let field = checksum::l4_offset(&parse(&frame).unwrap()).unwrap();
            frame[field..field + 2].copy_from_slice(&held.to_be_bytes());
        }
        let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
        for stand in &stands {
            assert_same(stand, &frame, "random packet");
        }
    });
}

#[test]
fn times_are_those_of_the_clock_and_each_function_appends_its_own() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let stand = stand(hook, 2);
        let frame = build::udp_v4(33);
        // Through the front door, which stamps.
        let out = stand.run(&frame).frame;
        let headers = parse(&out).unwrap();
        assert_eq!(out.len(), frame.len() + 32);
        assert_eq!(checksum::l4_is_valid(&out, &headers), Some(true));
        assert_eq!(checksum::checksum(&out[14..34]), 0);
        let (received, first) = times(&out, headers.end - 16);
        let (again, second) = times(&out, headers.end);
        assert_eq!(received, again);
        assert!(received <= first && first <= second && second - received < 1_000_000_000);
    }
}

#[test]
fn what_cannot_be_stamped_is_dropped_and_counted() {
    if !is_root() {
        return;
    }
    let segment = build::udp_segment(build::client_v4(), build::server_v4(), &[7; 64]);
    for hook in Hook::ALL {
        let stand = stand(hook, 1);
        let frames = [
            build::ipv4_fragment(17, &segment[..48], 0, true),
            build::tcp_v4(10),
            build::echo_request(build::client_v4().ip(), build::server_v4().ip(), b"ping"),
            build::udp_v4(MTU - 28 - 15),
            fixtures::named("udp-v4-surplus").frame,
        ];
        for frame in &frames {
            assert_eq!(stand.run(frame).verdict, hook.drop());
        }
        let slot = stand.chain.counter_slot(0).unwrap();
        assert_eq!(stand.plane.counters().read(slot).drops, frames.len() as u64);
    }
    let stand = stand(Hook::Tcx, 1);
    let frame = build::udp_v4(1000);
    let outcome = stand.run_with(&TestRun {
        gso_segs: 4,
        gso_size: 250,
        ..TestRun::new(&frame)
    });
    assert_eq!((outcome.verdict, outcome.frame), (Hook::Tcx.drop(), frame));
    let slot = stand.chain.counter_slot(0).unwrap();
    assert_eq!(stand.plane.counters().read(slot).drops, 4);
}

/// Over real links: with checksums that the sender leaves to its card, with whole ones, and at XDP. The receiver's stack
/// drops what is wrong.
#[test]
fn stamped_packets_arrive_over_real_links() {
    let Some(net) = Net::new() else { return };
    for (hook, transmit_checksums) in [(Hook::Tcx, "on"), (Hook::Tcx, "off"), (Hook::Xdp, "off")] {
        for host in net.hosts() {
            host.offloads(&["tx", transmit_checksums, "gro", "on"]);
        }
        let plane = plane();
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
        let (sender, receiver) = (net.client.udp(1000), net.server.udp(9000));
        let to = SocketAddrV4::new(net.server.address, 9000);
        let longest = MTU - 28 - 16;
        // A frame without room at its tail moves: every length of what is left over by whole words.
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
        assert_eq!(plane.counters().read(slot).drops, 1, "{hook}");
    }
}
