//! Tests the programs at the ends of the wire between two nodes, on frames that no neighbour sends
//! too: each program decides as the reference in Rust. Real packets pass the links of
//! `crates/cli/tests/parts.rs`.

use std::os::fd::AsFd;
use std::sync::Arc;

use myelin_kernel::test_run::{self, Outcome, TestRun};
use myelin_kernel::{
    BehindLink, Exit, Hook, Neighbour, PartArrival, PartFrames, PartTtl, Plane, PortConfig,
    UserPort, WireDoor, WireDrops, WireExit, WireExitConfig,
};
use myelin_packet::fixtures::wire::{Refused, Sender, complete, receive};
use myelin_packet::maglev::MaglevTable;
use myelin_packet::wire::{FIRST_TTL, Tunnel, WireHeader, header_len};
use myelin_packet::{FlowKey, MacAddr, Match, fixtures, parse};
use proptest::prelude::*;

use crate::chain::clock_ns;
use crate::common::{LOOPBACK, can_run, create_plane, for_all, is_root, kernel_chain};
use crate::door_bench::forwards;

const PATH: u32 = 0x80_0001;
const INDEX: u8 = 253;

fn tunnels() -> [Option<Tunnel>; 3] {
    let tunnel = |local: &str, remote: &str| Tunnel {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
        vni: 0x01_0203,
    };
    [
        None,
        Some(tunnel("10.0.0.1", "10.0.0.2")),
        Some(tunnel("2001:db8::1", "2001:db8::2")),
    ]
}

/// The headers of the frames that the neighbour sends.
fn header(tunnel: Option<Tunnel>) -> WireHeader {
    WireHeader {
        source: MacAddr([2, 0, 0, 0, 0, 1]),
        // The address of the loopback interface, where test runs arrive.
        next_hop: MacAddr([0; 6]),
        path: PATH,
        index: INDEX,
        tunnel,
        destination: None,
    }
}

/// Reads one of the counts of dropped frames.
type ReadCount = fn(&WireDrops) -> u64;

/// An interface that takes the frames of one part from the neighbour.
struct Arrival {
    door: WireDoor,
    neighbour: Neighbour,
    users: Option<UserPort>,
    _part: PartArrival,
}

impl Arrival {
    fn new(plane: &Plane, header: &WireHeader, ttl: &Arc<PartTtl>) -> Self {
        let door = plane.add_wire_door(("lo", LOOPBACK)).unwrap();
        let neighbour = match header.tunnel {
            None => Neighbour::Ethernet(header.source),
            Some(tunnel) => Neighbour::Vxlan(Tunnel {
                local: tunnel.remote,
                remote: tunnel.local,
                ..tunnel
            }),
        };
        let frames = PartFrames {
            path: PATH,
            index: INDEX,
            neighbour,
            near: LOOPBACK,
        };
        let part = door.insert(&frames, ttl).unwrap();
        let again = door.insert(&frames, ttl).unwrap_err().to_string();
        assert!(again.contains("add a part of a chain to"), "{again}");
        Self {
            door,
            neighbour,
            users: None,
            _part: part,
        }
    }

    fn run(&self, frame: &[u8]) -> Outcome {
        test_run::run(self.door.program(), Hook::Tcx, &TestRun::new(frame)).unwrap()
    }

    /// The verdict and the counter that the reference expects.
    fn expected(&self, frame: &[u8]) -> (u32, Option<ReadCount>) {
        let (pass, drop) = (Hook::Tcx.pass(), Hook::Tcx.drop());
        let is_to_host = frame[..6] == [0; 6];
        let is_to_group = frame[0] & 1 == 1;
        if !is_to_host && !is_to_group {
            let has_nsh = !matches!(receive(frame), Err(Refused::Other));
            let is_forged = self.users.is_some() && has_nsh;
            let unknown: ReadCount = |drops| drops.unknown.packets;
            return if is_forged {
                (drop, Some(unknown))
            } else {
                (pass, None)
            };
        }
        let received = match receive(frame) {
            Err(Refused::Other) => return (pass, None),
            Err(Refused::Malformed) => return (drop, Some(|drops| drops.malformed.packets)),
            // The reference does not know the paths.
            Err(Refused::Expired) => return (drop, Some(WireDrops::total)),
            Ok(received) => received,
        };
        let is_neighbour = match (received.sender, self.neighbour) {
            (Sender::Ethernet(source), Neighbour::Ethernet(mac)) => source == mac,
            (Sender::Vxlan { remote, local, vni }, Neighbour::Vxlan(tunnel)) => {
                (remote, local, vni) == (tunnel.remote, tunnel.local, tunnel.vni)
            }
            _ => false,
        };
        if (received.path, received.index) != (PATH, INDEX) {
            (drop, Some(|drops| drops.unknown.packets))
        } else if !is_neighbour || !is_to_host {
            (drop, Some(|drops| drops.foreign.packets))
        } else {
            (Hook::Tcx.redirect(), None)
        }
    }

    fn check(&self, frame: &[u8]) {
        let before = self.door.drops();
        let (verdict, counter) = self.expected(frame);
        let outcome = self.run(frame);
        assert_eq!(outcome.verdict, verdict, "{frame:02x?}");
        assert_eq!(outcome.frame, frame, "the front door removes the headers");
        let after = self.door.drops();
        let counted = counter.map_or(0, |read| read(&after) - read(&before));
        assert_eq!(counted, u64::from(counter.is_some()), "{frame:02x?}");
        assert_eq!(after.total() - before.total(), counted, "{frame:02x?}");
    }
}

#[test]
fn only_the_neighbours_frames_of_a_known_path_pass() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let inner = fixtures::named("udp-v4").frame;
    for tunnel in tunnels() {
        let header = header(tunnel);
        let ttl = plane.add_part_ttl().unwrap();
        let mut arrival = Arrival::new(&plane, &header, &ttl);
        let frame = complete(&header, &inner);
        assert_eq!(arrival.run(&frame).verdict, Hook::Tcx.redirect());
        let others = [
            WireHeader {
                next_hop: MacAddr([2, 0, 0, 0, 0, 7]),
                ..header
            },
            WireHeader {
                path: PATH + 1,
                ..header
            },
            WireHeader {
                index: INDEX - 1,
                ..header
            },
            WireHeader {
                source: MacAddr([2, 0, 0, 0, 0, 9]),
                ..header
            },
            WireHeader {
                tunnel: tunnel.map(|tunnel| Tunnel { vni: 7, ..tunnel }),
                ..header
            },
            WireHeader {
                tunnel: tunnel.map(|tunnel| Tunnel {
                    local: tunnel.remote,
                    ..tunnel
                }),
                ..header
            },
        ];
        for header in &others {
            arrival.check(&complete(header, &inner));
        }
        arrival.users = Some(arrival.door.add_user_port().unwrap());
        for header in &others {
            arrival.check(&complete(header, &inner));
        }
        arrival.users = None;
        // Every byte of the headers, changed.
        for at in 12..frame.len() - inner.len() {
            for value in [0, 1, 0x45, 0xff, frame[at] ^ 1, frame[at] ^ 0x80] {
                let mut forged = frame.clone();
                forged[at] = value;
                // A test run refuses frames of IP that are shorter than its header.
                arrival.check(&forged);
            }
        }
        for len in 60..frame.len() {
            arrival.check(&frame[..len]);
        }
        for fixture in fixtures::all() {
            if can_run(Hook::Tcx, &fixture.frame) {
                arrival.check(&fixture.frame);
            }
        }
        for other in tunnels() {
            let other = WireHeader {
                tunnel: other,
                ..header
            };
            arrival.check(&complete(&other, &inner));
        }
        let strategy = (60..frame.len(), any::<[u8; 4]>());
        for_all(200, &strategy, |(at, bytes)| {
            let mut forged = frame.clone();
            let end = (at + 4).min(forged.len());
            forged[at..end].copy_from_slice(&bytes[..end - at]);
            arrival.check(&forged);
        });
    }
}

/// Reads the inputs of the fuzz target, and copies with one changed byte each.
fn read_corpus() -> Vec<Vec<u8>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/wire_frames");
    let mut inputs = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let frame = std::fs::read(entry.unwrap().path()).unwrap();
        let changed = (0..frame.len()).map(|at| {
            let mut changed = frame.clone();
            changed[at] ^= 1 << (at % 8);
            changed
        });
        inputs.extend(changed.collect::<Vec<_>>());
        inputs.push(frame);
    }
    inputs
}

#[test]
fn the_corpus_of_the_fuzzer_is_judged_as_by_the_reference() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let inputs = read_corpus();
    assert!(inputs.len() > 1000);
    for tunnel in tunnels() {
        let ttl = plane.add_part_ttl().unwrap();
        let arrival = Arrival::new(&plane, &header(tunnel), &ttl);
        for frame in inputs.iter().filter(|frame| can_run(Hook::Tcx, frame)) {
            arrival.check(frame);
        }
    }
}

/// The exit of a part at an interface with an MTU of 1500.
fn exit(plane: &Plane, tunnel: Option<Tunnel>, ttl: Option<&Arc<PartTtl>>) -> WireExit {
    let config = WireExitConfig {
        far: ("lo", LOOPBACK),
        interface: (LOOPBACK, 1500),
        tunnel,
        ttl,
    };
    plane.add_wire_exit(&config).unwrap()
}

#[test]
fn packets_leave_with_the_headers_that_the_next_node_expects() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    for tunnel in tunnels() {
        let (header, exit) = (header(tunnel), exit(&plane, tunnel, None));
        let run =
            |frame: &[u8]| test_run::run(exit.program(), Hook::Xdp, &TestRun::new(frame)).unwrap();
        let inner = fixtures::named("udp-v4").frame;
        assert_eq!(run(&inner).verdict, Hook::Xdp.drop());
        assert_eq!(exit.counters().unresolved.packets, 1);
        exit.set_header(Some(&header)).unwrap();
        let mut sent = 0;
        for fixture in fixtures::all() {
            let (inner, len) = (&fixture.frame, header_len(tunnel.as_ref()));
            // Only such packets are in a chain.
            if parse(inner).is_err() || inner.len() > 1514 - len {
                continue;
            }
            let outcome = run(inner);
            sent += 1;
            assert_eq!(outcome.verdict, Hook::Xdp.pass(), "{}", fixture.name);
            let mut frame = outcome.frame;
            let received = receive(&frame).unwrap();
            assert_eq!((received.path, received.index), (PATH, INDEX));
            assert_eq!(u32::from(received.ttl), FIRST_TTL - 1);
            assert_eq!(received.inner, inner, "{}", fixture.name);
            if tunnel.is_some() {
                let port = len - 38 - 16;
                let source = u16::from_be_bytes([frame[port], frame[port + 1]]);
                assert!(source >= 0xc000, "{source}");
                frame[port..port + 2].fill(0);
            }
            assert_eq!(frame, complete(&header, inner), "{}", fixture.name);
            assert_eq!(exit.counters().sent.packets, sent);
        }
        assert!(sent > 15, "{sent}");
        // Behind routers, packets to one station get the destination of the last link.
        let to_host = WireHeader {
            destination: Some(MacAddr([2, 0, 0, 0, 0, 8])),
            ..header
        };
        exit.set_header(Some(&to_host)).unwrap();
        let mut to_group = inner.clone();
        to_group[0] |= 1;
        for inner in [&inner, &to_group] {
            let frame = run(inner).frame;
            let start = header_len(tunnel.as_ref());
            assert_eq!(frame[start..], complete(&to_host, inner)[start..]);
        }
        let longest = vec![0; 1514 - header_len(tunnel.as_ref())];
        assert_eq!(run(&longest).verdict, Hook::Xdp.pass());
        assert_eq!(
            run(&[&longest[..], &[0]].concat()).verdict,
            Hook::Xdp.drop()
        );
        assert_eq!(exit.counters().too_long.packets, 1);
    }
}

/// Returns the stamp that the context of a frame without a tunnel carries, and its kernel.
fn stamp_of(frame: &[u8]) -> (u64, u32) {
    let stamp = u64::from_be_bytes(frame[22..30].try_into().unwrap());
    (stamp, u32::from_be_bytes(frame[34..38].try_into().unwrap()))
}

#[test]
fn the_stamp_crosses_the_exit_link_and_the_wire() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let (header, exit) = (header(None), exit(&plane, None, None));
    exit.set_header(Some(&header)).unwrap();
    let send = |frame: &[u8]| {
        let outcome = test_run::run(exit.program(), Hook::Xdp, &TestRun::new(frame)).unwrap();
        assert_eq!(outcome.verdict, Hook::Xdp.pass());
        outcome.frame
    };
    let inner = fixtures::named("udp-v4").frame;
    assert_eq!(stamp_of(&send(&inner)), (0, 0), "no stamp");
    let stamp_ns = clock_ns() - 5_000_000;
    // As a worker or an XDP program, and as a tc program.
    let meta = myelin_packet::Meta {
        stamp_ns,
        ..Default::default()
    };
    let by_nsh = [
        &myelin_packet::nsh::encapsulate(&meta, &inner).unwrap()[..],
        &inner,
    ]
    .concat();
    let tag = |value: u64| [[0x88, 0xa8], (value as u16).to_be_bytes()].concat();
    let tags = [tag(stamp_ns >> 16), tag(stamp_ns), tag(0)].concat();
    let by_tags = [&inner[..12], &tags, &inner[12..]].concat();
    for frame in [by_nsh, by_tags] {
        let sent = send(&frame);
        let (stamp, kernel) = stamp_of(&sent);
        assert_eq!(stamp, stamp_ns);
        assert_ne!(kernel, 0);
        assert_eq!(receive(&sent).unwrap().inner, inner);
        let config = PortConfig {
            behind_link: BehindLink::Wire,
            ..test_run::port()
        };
        let port = plane.add_port(config).unwrap();
        let chain = plane
            .load_chain(&kernel_chain(Hook::Xdp, 1, &forwards(1)))
            .unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        let program = port.program(Hook::Xdp).unwrap();
        let outcome = test_run::run(program.as_fd(), Hook::Xdp, &TestRun::new(&sent)).unwrap();
        assert_eq!(outcome.meta.unwrap().stamp_ns, stamp_ns);
    }
    // Two tags are a packet's own.
    let tags = [tag(1), tag(2)].concat();
    let tagged = [&inner[..12], &tags, &inner[12..]].concat();
    let sent = send(&tagged);
    assert_eq!(stamp_of(&sent), (0, 0));
    assert_eq!(receive(&sent).unwrap().inner, tagged);
    // The kernel keeps at least an Ethernet header, so the stamp cannot leave this frame.
    let before = exit.counters();
    let short = [
        &myelin_packet::nsh::encapsulate(&meta, &inner).unwrap()[..],
        &inner[..13],
    ]
    .concat();
    let outcome = test_run::run(exit.program(), Hook::Xdp, &TestRun::new(&short)).unwrap();
    assert_eq!(outcome.verdict, Hook::Xdp.drop());
    let after = exit.counters();
    assert_eq!(after.sent, before.sent);
    assert_eq!(after.too_long.packets, before.too_long.packets + 1);
}

#[test]
fn each_flow_and_its_replies_have_the_target_of_the_reference() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let names = ["n2", "n3"];
    let table = MaglevTable::of_names(&names);
    // The program drops packets to a target without a link.
    let targets = [(names[0], LOOPBACK), (names[1], 0)];
    let split = plane.add_wire_split(("lo", LOOPBACK), &targets).unwrap();
    let check = |frame: &[u8], inner: &[u8]| {
        let outcome = test_run::run(split.program(), Hook::Xdp, &TestRun::new(frame)).unwrap();
        let headers = parse(inner).ok();
        let flow = headers.and_then(|headers| FlowKey::of(&headers, inner));
        let target = table.look_up_either_way(&flow.unwrap_or_default());
        let expected = [Hook::Xdp.redirect(), Hook::Xdp.drop()][usize::from(target.unwrap())];
        assert_eq!(outcome.verdict, expected, "{inner:02x?}");
        (outcome, target)
    };
    let fixtures: Vec<_> = fixtures::all().into_iter().map(|one| one.frame).collect();
    for frame in fixtures.iter().filter(|frame| can_run(Hook::Xdp, frame)) {
        check(frame, frame);
    }
    let mut of_targets = [0; 2];
    for seed in 0..200_u8 {
        for name in ["udp-v4", "udp-v6", "tcp-v4"] {
            let mut frame = fixtures::named(name).frame;
            // The byte of the source address that decides the order of the endpoints.
            let (source, ports) = (29, if name == "udp-v6" { 54 } else { 34 });
            frame[source] = seed;
            frame[ports + 1] ^= seed;
            let (outcome, target) = check(&frame, &frame);
            assert_eq!(outcome.frame, frame);
            of_targets[usize::from(target.unwrap())] += 1;
        }
    }
    assert!(
        of_targets.iter().all(|flows| *flows > 200),
        "{of_targets:?}"
    );
    // The stamp crosses the program, as NSH.
    let inner = fixtures::named("udp-v4").frame;
    let meta = myelin_packet::Meta {
        stamp_ns: 0x0102_0304_0506,
        ..Default::default()
    };
    let nsh = myelin_packet::nsh::encapsulate(&meta, &inner).unwrap();
    let tag = |value: u64| [[0x88, 0xa8], (value as u16).to_be_bytes()].concat();
    let tags = [tag(meta.stamp_ns >> 16), tag(meta.stamp_ns), tag(0)].concat();
    for frame in [
        [&nsh[..], &inner].concat(),
        [&inner[..12], &tags, &inner[12..]].concat(),
    ] {
        let (outcome, _) = check(&frame, &inner);
        if outcome.verdict == Hook::Xdp.redirect() {
            assert_eq!(outcome.frame[12..14], [0x89, 0x4f]);
            assert_eq!(
                stamp_of(&outcome.frame).0 & 0xffff_ffff,
                meta.stamp_ns & 0xffff_ffff
            );
            assert_eq!(outcome.frame[38..], inner);
        }
    }
}

#[test]
fn kernel_functions_put_the_stamp_in_front_for_the_exit_link() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let plane = create_plane();
        let port = plane.add_port(test_run::port()).unwrap();
        let mut config = kernel_chain(hook, 1, &forwards(2));
        config.segments[0].exit = Exit::Wire { ifindex: LOOPBACK };
        let chain = plane.load_chain(&config).unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        let program = port.program(hook).unwrap();
        let inner = fixtures::named("udp-v4").frame;
        let before_ns = clock_ns();
        let outcome = test_run::run(program.as_fd(), hook, &TestRun::new(&inner)).unwrap();
        assert_eq!(outcome.verdict, hook.redirect());
        let stamps = before_ns..=clock_ns();
        if hook == Hook::Xdp {
            assert!(stamps.contains(&stamp_of(&outcome.frame).0));
            assert_eq!(outcome.frame[38..], inner);
        } else {
            // The last pushed tag is beside the frame until the link inserts it.
            let (addresses, rest) = inner.split_at(12);
            assert_eq!(outcome.frame[..12], *addresses);
            assert_eq!(outcome.frame[12..14], [0x88, 0xa8]);
            assert_eq!(outcome.frame[16..20], [0x88, 0xa8, 0, 0]);
            assert_eq!(outcome.frame[20..], *rest);
        }
        assert_eq!(plane.counters().read(chain.egress_slot()).packets, 1);
    }
}

#[test]
fn the_time_to_live_counts_down_from_node_to_node() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let header = header(None);
    let ttl = plane.add_part_ttl().unwrap();
    let arrival = Arrival::new(&plane, &header, &ttl);
    let exit = exit(&plane, None, Some(&ttl));
    exit.set_header(Some(&header)).unwrap();
    let inner = fixtures::named("udp-v4").frame;
    let mut frame = complete(&header, &inner);
    for expected in (1..=62).rev() {
        assert_eq!(arrival.run(&frame).verdict, Hook::Tcx.redirect());
        let outcome = test_run::run(exit.program(), Hook::Xdp, &TestRun::new(&inner)).unwrap();
        frame = outcome.frame;
        let base = u32::from_be_bytes(frame[14..18].try_into().unwrap());
        assert_eq!(base >> 22 & 63, expected);
    }
    assert_eq!(arrival.run(&frame).verdict, Hook::Tcx.drop());
    assert_eq!(arrival.door.drops().expired.packets, 1);
}

#[test]
fn the_door_behind_the_wire_restores_frames_and_hands_them_to_either_hook() {
    if !is_root() {
        return;
    }
    for (hook, tunnel) in Hook::ALL
        .into_iter()
        .flat_map(|hook| tunnels().map(|t| (hook, t)))
    {
        let plane = create_plane();
        let config = PortConfig {
            behind_link: BehindLink::Wire,
            ..test_run::port()
        };
        let port = plane.add_port(config).unwrap();
        let chain = plane
            .load_chain(&kernel_chain(hook, 1, &forwards(1)))
            .unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        let program = port.program(Hook::Xdp).unwrap();
        let run =
            |frame: &[u8]| test_run::run(program.as_fd(), Hook::Xdp, &TestRun::new(frame)).unwrap();
        for fixture in fixtures::all() {
            if fixture.frame.len() < 14 || fixture.frame.len() > 3000 {
                continue;
            }
            let before_ns = clock_ns();
            let outcome = run(&complete(&header(tunnel), &fixture.frame));
            if hook == Hook::Xdp && parse(&fixture.frame).is_ok() {
                assert_eq!(outcome.verdict, Hook::Xdp.redirect(), "{}", fixture.name);
                assert_eq!(outcome.frame, fixture.frame, "{}", fixture.name);
                let stamp_ns = outcome.meta.unwrap().stamp_ns;
                assert!((before_ns..=clock_ns()).contains(&stamp_ns), "of arrival");
            } else {
                // The tags carry the stamp to the tc door.
                assert_eq!(outcome.verdict, Hook::Xdp.pass(), "{}", fixture.name);
                let (addresses, rest) = fixture.frame.split_at(12);
                assert_eq!(outcome.frame[..12], *addresses, "{}", fixture.name);
                assert_eq!(outcome.frame[20..], *rest, "{}", fixture.name);
            }
        }
    }
}
