//! Compares the front door's parser with `myelin_packet::parse`.

use std::os::fd::AsFd;

use myelin_kernel::test_run::{Outcome, TestRun};
use myelin_kernel::{Hook, Plane, Port};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Headers, Match, Meta, Unparsed, parse};
use myelin_spec::FunctionConfig;
use proptest::prelude::*;

use crate::common::{can_run, create_plane, for_all, is_root, kernel_chain};
use crate::door_bench::{DoorBench, add_port, run_once};

/// Runs the door on a frame. Returns the metadata, or the reason whose counter the door
/// incremented.
fn kernel_parse(bench: &DoorBench, frame: &[u8]) -> Result<Meta, Unparsed> {
    let before = bench.port.counters();
    let Outcome {
        verdict,
        meta,
        frame: left,
        ..
    } = bench.run(frame);
    assert_eq!(left, frame, "the door must not change the frame");
    if verdict == bench.hook.redirect() {
        return Ok(meta.expect("a packet of a chain must have metadata"));
    }
    assert_eq!(verdict, bench.hook.pass());
    let after = bench.port.counters();
    let counted: Vec<Unparsed> = Unparsed::ALL
        .into_iter()
        .filter(|&reason| after.unparsed(reason).packets > before.unparsed(reason).packets)
        .collect();
    match (bench.hook, counted.as_slice()) {
        (Hook::Tcx, [reason]) => Err(*reason),
        // The XDP door leaves the counts to the tc door.
        (Hook::Xdp, []) => Err(parse(frame).expect_err("the XDP door passed a frame that parses")),
        (hook, counted) => panic!("{hook}: counted under {counted:?}"),
    }
}

/// Returns the header offsets that both hooks carry.
fn offsets(headers: &Headers) -> (u16, u16, u16, u16, u8) {
    (
        headers.l3,
        headers.l4,
        headers.payload,
        headers.end,
        headers.flags.bits(),
    )
}

fn assert_agrees(
    bench: &DoorBench,
    frame: &[u8],
    expected: &Result<Headers, Unparsed>,
    name: &str,
) {
    let hook = bench.hook;
    let found = kernel_parse(bench, frame);
    let found_offsets = found.map(|meta| (meta.l3, meta.l4, meta.payload, meta.end, meta.flags));
    assert_eq!(
        found_offsets,
        expected.as_ref().map(offsets).map_err(|reason| *reason),
        "{hook}: {name}"
    );
    if let (Hook::Xdp, Ok(meta)) = (hook, found) {
        assert_eq!(
            (meta.spi, meta.generation, meta.position),
            (0x00ab_cdef, 7, 0),
            "{name}"
        );
        assert!(meta.stamp_ns > 0);
    }
}

#[test]
fn every_fixture_parses_as_in_user_space() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let bench = DoorBench::new(hook, &[FunctionConfig::Forward]);
        let fixtures: Vec<_> = fixtures::all()
            .into_iter()
            .filter(|fixture| can_run(hook, &fixture.frame))
            .collect();
        assert!(
            fixtures.len() > 80,
            "only {} fixtures can be run",
            fixtures.len()
        );
        for fixture in fixtures {
            assert_agrees(&bench, &fixture.frame, &fixture.expected, fixture.name);
        }
    }
}

#[test]
fn unmatched_and_unparsed_frames_are_counted_once_and_pass_unchanged() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let port = add_port(&plane);
    let frame = fixtures::named("udp-v4").frame;
    let arp = build::ethernet(0x0806);
    let run_both_frames = || {
        for hook in Hook::ALL {
            for frame in [&frame, &arp] {
                let outcome = run_once(port.program(hook).unwrap().as_fd(), hook, frame);
                assert_eq!(
                    (outcome.verdict, &outcome.frame, outcome.meta),
                    (hook.pass(), frame, None),
                    "{hook}"
                );
            }
        }
        let counters = port.counters();
        let not_ip = counters.unparsed(Unparsed::NotIp).packets;
        (counters.unmatched.packets, counters.unmatched.bytes, not_ip)
    };
    // A port without chains parses no frames.
    let (udp_len, arp_len) = (frame.len() as u64, arp.len() as u64);
    assert_eq!(run_both_frames(), (2, udp_len + arp_len, 0));
    let chain = plane
        .load_chain(&kernel_chain(Hook::Tcx, 1, &[FunctionConfig::Forward]))
        .unwrap();
    let rule = Match {
        destination_port: Some(1),
        ..Match::default()
    };
    port.insert(&rule, &chain).unwrap();
    assert_eq!(run_both_frames(), (3, 2 * udp_len + arp_len, 1));
    assert!(port.remove(&rule).unwrap());
    assert_eq!(run_both_frames(), (5, 3 * udp_len + 2 * arp_len, 1));
}

#[test]
fn the_xdp_door_passes_tc_chains_and_the_tc_door_drops_packets_of_xdp_chains() {
    if !is_root() {
        return;
    }
    let frame = fixtures::named("udp-v4").frame;
    let deploy = |hook| {
        let plane = create_plane();
        let port = add_port(&plane);
        let chain = plane
            .load_chain(&kernel_chain(hook, 1, &[FunctionConfig::Forward]))
            .unwrap();
        port.insert(&Match::default(), &chain).unwrap();
        (plane, port, chain)
    };
    let door = |port: &Port, hook: Hook| {
        run_once(port.program(hook).unwrap().as_fd(), hook, &frame).verdict
    };
    let count = |plane: &Plane, slot| plane.counters().read(slot);

    let (plane, port, chain) = deploy(Hook::Tcx);
    assert_eq!(door(&port, Hook::Xdp), Hook::Xdp.pass());
    assert_eq!(count(&plane, chain.door_slot()).packets, 0);
    assert_eq!(door(&port, Hook::Tcx), Hook::Tcx.redirect());
    assert_eq!(count(&plane, chain.door_slot()).packets, 1);

    // The XDP door has not redirected this packet, so `onFailure` applies: drop.
    let (plane, port, chain) = deploy(Hook::Xdp);
    assert_eq!(door(&port, Hook::Tcx), Hook::Tcx.drop());
    assert_eq!(count(&plane, chain.door_slot()).drops, 1);
}

/// A veth's frame keeps its metadata over a redirect, so a door may find the metadata of another
/// door.
#[test]
fn metadata_of_another_door_is_replaced() {
    if !is_root() {
        return;
    }
    let bench = DoorBench::new(Hook::Xdp, &[FunctionConfig::Forward]);
    let frame = fixtures::named("vlan-udp-v4").frame;
    let other_meta = Meta {
        stamp_ns: 1,
        spi: 77,
        l3: 999,
        ..Meta::default()
    };
    let outcome = bench.run_with(&TestRun {
        meta: Some(other_meta),
        ..TestRun::new(&frame)
    });
    assert_eq!(outcome.frame, frame);
    let meta = outcome.meta.unwrap();
    assert_eq!(
        meta,
        Meta::new(meta.stamp_ns, 0x00ab_cdef, 7, 0, &parse(&frame).unwrap())
    );
    assert!(meta.stamp_ns > 1);
}

/// Returns fixtures with a few changed bytes. Truncates or extends some fixtures.
fn mutated_fixtures(hook: Hook) -> impl Strategy<Value = Vec<u8>> {
    let fixtures: Vec<_> = fixtures::all()
        .into_iter()
        .map(|fixture| fixture.frame)
        .filter(|frame| can_run(hook, frame))
        .collect();
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (
        prop::sample::select(fixtures),
        changes,
        any::<prop::sample::Index>(),
        0_usize..4,
    )
        .prop_map(|(mut frame, changes, end, length_change)| {
            for (at, byte) in changes {
                // Change header bytes only, for most fixtures.
                let at = at.index(frame.len().min(96));
                frame[at] = byte;
            }
            match length_change {
                0 => frame.truncate(14 + end.index(frame.len() - 13)),
                1 => frame.resize(frame.len() + end.index(64), 0xee),
                _ => {}
            }
            frame
        })
        .prop_filter(
            "the kernel does not run programs on this frame",
            move |frame| can_run(hook, frame),
        )
}

#[test]
fn random_frames_parse_as_in_user_space() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let bench = DoorBench::new(hook, &[FunctionConfig::Forward]);
        for_all(3000, &mutated_fixtures(hook), |frame| {
            assert_agrees(&bench, &frame, &parse(&frame), "a changed fixture");
        });
    }
}
