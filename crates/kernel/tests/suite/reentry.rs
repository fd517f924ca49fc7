//! Tests the re-entry door with the headers that `myelin_packet::nsh` writes.

use myelin_kernel::test_run::Outcome;
use myelin_kernel::{
    ChainConfig, EntrySpace, Exit, Hook, KernelSegment, LoadedChain, Plane, Reentry,
};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Meta, nsh, parse};
use myelin_spec::{FunctionConfig, OnFailure, XorConfig};
use proptest::prelude::*;

use crate::common::{LOOPBACK, create_plane, for_all, is_root, kernel_chain};
use crate::door_bench::{UserFunctions, forwards, run_once};

const SPI: u32 = 0x00ab_cdef;
const GENERATION: u16 = 0x1234;
const XOR: FunctionConfig = FunctionConfig::Xor(XorConfig { key: 0x5a });

struct ReentryBench {
    plane: Plane,
    reentry: Reentry,
    chain: LoadedChain,
}

impl ReentryBench {
    /// Loads a chain that begins in user space and ends with a kernel function at position 1.
    fn new() -> Self {
        let plane = create_plane();
        let reentry = plane.add_reentry(LOOPBACK).unwrap();
        let chain = plane.load_chain(&config(SPI)).unwrap();
        reentry.insert(1, &chain).unwrap();
        Self {
            plane,
            reentry,
            chain,
        }
    }

    fn run(&self, frame: &[u8]) -> Outcome {
        run_once(self.reentry.program(), Hook::Xdp, frame)
    }
}

fn config(spi: u32) -> ChainConfig {
    ChainConfig {
        generation: GENERATION,
        positions: 2,
        entry: EntrySpace::User,
        segments: vec![KernelSegment {
            first_position: 1,
            functions: vec![XOR.into()],
            exit: Exit::Egress {
                ifindex: LOOPBACK,
                peer: false,
                by_stack: false,
            },
        }],
        ..kernel_chain(Hook::Xdp, spi, &forwards(0))
    }
}

fn encapsulate(frame: &[u8], stamp_ns: u64, position: u8) -> Vec<u8> {
    let meta = Meta {
        stamp_ns,
        spi: SPI,
        generation: GENERATION,
        position,
        ..Meta::default()
    };
    [&nsh::encapsulate(&meta, frame).unwrap(), frame].concat()
}

#[test]
fn every_fixture_regains_its_metadata() {
    if !is_root() {
        return;
    }
    let bench = ReentryBench::new();
    let mut user_functions = UserFunctions::new(&[XOR]);
    let mut expected_sojourns = 0;
    for fixture in fixtures::all() {
        if fixture.frame.len() < 14 || fixture.frame.len() > 3000 {
            continue;
        }
        let frame = encapsulate(&fixture.frame, 1000, 1);
        let outcome = bench.run(&frame);
        let name = fixture.name;
        let Ok(headers) = parse(&fixture.frame) else {
            assert_eq!(outcome.verdict, Hook::Xdp.drop(), "{name}");
            continue;
        };
        match user_functions.process(&fixture.frame, &headers) {
            Some(transformed) => {
                assert_eq!(
                    (outcome.verdict, outcome.frame),
                    (Hook::Xdp.redirect(), transformed),
                    "{name}"
                );
                let meta = outcome
                    .meta
                    .unwrap_or_else(|| panic!("{name}: no metadata"));
                assert_eq!(
                    meta,
                    Meta::new(1000, SPI, GENERATION, 1, &headers),
                    "{name}"
                );
                expected_sojourns += 1;
            }
            None => assert_eq!(outcome.verdict, Hook::Xdp.drop(), "{name}"),
        }
    }
    assert!(expected_sojourns > 20);
    assert_eq!(bench.chain.sojourn().count(), expected_sojourns);
    assert!(bench.reentry.counters().unparsed.packets > 20);
    assert_eq!(
        bench.plane.counters().read(bench.chain.door_slot()).packets,
        0,
        "the front door must not count the packet a second time"
    );
}

#[test]
fn packets_without_a_path_are_dropped_and_counted() {
    if !is_root() {
        return;
    }
    let bench = ReentryBench::new();
    let frame = fixtures::named("udp-v4").frame;
    let count_drops = |frame: &[u8]| {
        let before = bench.reentry.counters();
        assert_eq!(bench.run(frame).verdict, Hook::Xdp.drop());
        let after = bench.reentry.counters();
        [
            after.foreign.packets - before.foreign.packets,
            after.unparsed.packets - before.unparsed.packets,
            after.unknown.packets - before.unknown.packets,
        ]
    };
    assert_eq!(
        count_drops(&frame),
        [1, 0, 0],
        "a frame without encapsulation is foreign"
    );
    assert_eq!(
        count_drops(&encapsulate(&build::ethernet(0x0806), 1, 1)),
        [0, 1, 0],
        "ARP as the inner frame"
    );
    assert_eq!(
        count_drops(&encapsulate(&frame, 1, 0)),
        [0, 0, 1],
        "another position"
    );
    let mut old = encapsulate(&frame, 1, 1);
    // The six bits of the time to live are in two bytes.
    old[14] &= 0xf0;
    old[15] &= 0x3f;
    assert_eq!(count_drops(&old), [1, 0, 0], "the time to live is 0");
    assert!(bench.reentry.remove(1, &bench.chain).unwrap());
    assert!(!bench.reentry.remove(1, &bench.chain).unwrap());
    assert_eq!(
        count_drops(&encapsulate(&frame, 1, 1)),
        [0, 0, 1],
        "the path is removed"
    );
    let error = bench.reentry.insert(0, &bench.chain).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no kernel segment starts at position 0"),
        "{error}"
    );
    bench.reentry.insert(1, &bench.chain).unwrap();
    drop(bench.chain);
    assert_eq!(
        run_once(
            bench.reentry.program(),
            Hook::Xdp,
            &encapsulate(&frame, 1, 1)
        )
        .verdict,
        Hook::Xdp.drop()
    );
}

#[test]
fn packets_at_the_reentry_door_never_reach_the_stack() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let reentry = plane.add_reentry(LOOPBACK).unwrap();
    let mut config = config(SPI);
    config.on_failure = OnFailure::Pass;
    config.positions = 4;
    let last = KernelSegment {
        first_position: 3,
        ..config.segments[0].clone()
    };
    config.segments[0].exit = Exit::User {
        sockets: reentry.sockets(),
    };
    config.segments.push(last);
    let chain = plane.load_chain(&config).unwrap();
    reentry.insert(1, &chain).unwrap();
    let outcome = run_once(
        reentry.program(),
        Hook::Xdp,
        &encapsulate(&fixtures::named("udp-v4").frame, 1, 1),
    );
    assert_eq!(outcome.verdict, Hook::Xdp.drop());
    assert_eq!(outcome.meta.map(|meta| meta.position), Some(2));
    assert_eq!(
        plane.counters().read(chain.counter_slot(1).unwrap()).drops,
        1
    );
}

#[test]
fn two_generations_run_at_the_same_time() {
    if !is_root() {
        return;
    }
    let bench = ReentryBench::new();
    let mut next = config(SPI);
    next.generation += 1;
    next.segments[0].functions = vec![FunctionConfig::Forward.into()];
    let next = bench.plane.load_chain(&next).unwrap();
    bench.reentry.insert(1, &next).unwrap();
    let frame = fixtures::named("udp-v4").frame;
    assert_ne!(bench.run(&encapsulate(&frame, 1, 1)).frame, frame);
    let meta = Meta {
        stamp_ns: 1,
        spi: SPI,
        generation: GENERATION + 1,
        position: 1,
        ..Meta::default()
    };
    let newer = [&nsh::encapsulate(&meta, &frame).unwrap(), frame.as_slice()].concat();
    assert_eq!(bench.run(&newer).frame, frame);
}

#[test]
fn random_headers_are_accepted_exactly_if_user_space_accepts_them() {
    if !is_root() {
        return;
    }
    let bench = ReentryBench::new();
    let inner = fixtures::named("udp-v4").frame;
    let changes = prop::collection::vec((12_usize..38, any::<u8>(), 0_u8..8), 0..4);
    for_all(2000, &changes, |changes| {
        let mut frame = encapsulate(&inner, 77, 1);
        for (at, byte, bit) in changes {
            // Changes a whole byte, or one bit.
            frame[at] = if byte < 128 {
                byte
            } else {
                frame[at] ^ 1 << bit
            };
        }
        let before = bench.reentry.counters();
        let outcome = bench.run(&frame);
        let after = bench.reentry.counters();
        match fixtures::nsh::decapsulate(&frame) {
            Err(_) => assert_eq!(after.foreign.packets, before.foreign.packets + 1),
            Ok((context, _))
                if (context.spi, context.generation, context.position) == (SPI, GENERATION, 1) =>
            {
                assert_eq!(outcome.verdict, Hook::Xdp.redirect());
                assert_eq!(
                    outcome.meta.map(|meta| meta.stamp_ns),
                    Some(context.stamp_ns)
                );
            }
            Ok(_) => assert_eq!(after.unknown.packets, before.unknown.packets + 1),
        }
    });
}

#[test]
fn a_removed_internal_link_is_an_error() {
    if !is_root() {
        return;
    }
    let error = create_plane().add_reentry(0x7fff_fff0).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot attach to interface 2147483632 at XDP"),
        "{error}"
    );
}
