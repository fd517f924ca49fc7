//! Tests the forwarder between functions in separate namespaces. A forwarder accepts only packets
//! of its chain and position.

use std::os::fd::BorrowedFd;

use myelin_kernel::test_run::{Outcome, TestRun, run};
use myelin_kernel::{
    CounterLine, DistributedConfig, DistributedFunction, FunctionLink, FunctionRuntime, Hook,
    LoadedChain, Plane,
};
use myelin_packet::fixtures;
use myelin_packet::{Meta, nsh, parse};
use myelin_spec::{FunctionConfig, OnFailure, XorConfig};
use proptest::prelude::*;

use crate::common::{LOOPBACK, create_plane, for_all, is_root};
use crate::door_bench::{UserFunctions, add_port, run_once};

const SPI: u32 = 0x00ab_cdef;
const GENERATION: u16 = 0x1234;
const XOR: FunctionConfig = FunctionConfig::Xor(XorConfig { key: 0x5a });

/// A chain of a kernel function and a function in user space. Links and egress are the loopback
/// interface.
struct Chain {
    plane: Plane,
    chain: LoadedChain,
    links: Vec<FunctionLink>,
}

impl Chain {
    fn new() -> Self {
        let plane = create_plane();
        let (chain, links) = plane
            .load_distributed(&config(&[Some(XOR), None], OnFailure::Drop))
            .unwrap();
        Self {
            plane,
            chain,
            links,
        }
    }

    fn counters(&self, position: u8) -> CounterLine {
        let slot = self.chain.counter_slot(position).unwrap();
        self.plane.counters().read(slot)
    }
}

fn config(functions: &[Option<FunctionConfig>], on_failure: OnFailure) -> DistributedConfig {
    DistributedConfig {
        hook: Hook::Xdp,
        spi: SPI,
        generation: GENERATION,
        on_failure,
        policer: None,
        functions: functions
            .iter()
            .map(|kernel| DistributedFunction {
                near: LOOPBACK,
                inner: LOOPBACK,
                runtime: match kernel {
                    Some(kernel) => FunctionRuntime::Kernel(kernel.clone().into()),
                    None => FunctionRuntime::Worker,
                },
            })
            .collect(),
        ingress: LOOPBACK,
        egress: LOOPBACK,
        peer: false,
        by_stack: false,
    }
}

fn run_with_meta(program: BorrowedFd<'_>, frame: &[u8], meta: Meta) -> Outcome {
    let test = TestRun {
        meta: Some(meta),
        ..TestRun::new(frame)
    };
    run(program, Hook::Xdp, &test).unwrap()
}

fn meta_of(frame: &[u8]) -> Meta {
    Meta::new(1000, SPI, GENERATION, 0, &parse(frame).unwrap())
}

fn encapsulate(frame: &[u8], position: u8) -> Vec<u8> {
    let meta = Meta {
        stamp_ns: 77,
        spi: SPI,
        generation: GENERATION,
        position,
        ..Meta::default()
    };
    [&nsh::encapsulate(&meta, frame).unwrap(), frame].concat()
}

#[test]
fn a_kernel_function_forwards_each_fixture_like_user_space() {
    if !is_root() {
        return;
    }
    let chain = Chain::new();
    let mut user_functions = UserFunctions::new(&[XOR]);
    let mut passed = 0;
    for fixture in fixtures::all() {
        let Ok(headers) = parse(&fixture.frame) else {
            continue;
        };
        if fixture.frame.len() > 3000 {
            continue;
        }
        let meta = meta_of(&fixture.frame);
        let program = chain.links[0].inner_program();
        let outcome = run_with_meta(program, &fixture.frame, meta);
        match user_functions.process(&fixture.frame, &headers) {
            Some(frame) => {
                let expected = (Hook::Xdp.redirect(), &frame, Some(meta));
                let got = (outcome.verdict, &outcome.frame, outcome.meta);
                assert_eq!(got, expected, "{}", fixture.name);
                passed += 1;
            }
            None => assert_eq!(outcome.verdict, Hook::Xdp.drop(), "{}", fixture.name),
        }
    }
    assert!(passed > 20);
    assert!(chain.counters(0).packets > passed);
}

/// The last function redirects to the egress, which counts the packet and records its sojourn.
#[test]
fn the_last_function_redirects_to_the_egress() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let (chain, links) = plane
        .load_distributed(&config(&[Some(XOR), Some(XOR)], OnFailure::Drop))
        .unwrap();
    let frame = fixtures::named("udp-v4").frame;
    for (position, left) in [(0, 0), (1, 1)] {
        let program = links[position].inner_program();
        let outcome = run_with_meta(program, &frame, meta_of(&frame));
        assert_eq!(outcome.verdict, Hook::Xdp.redirect());
        let egress = plane.counters().read(chain.egress_slot());
        let counts = (chain.sojourn().count(), egress.packets);
        assert_eq!(counts, (left, left), "function {position}");
    }
}

#[test]
fn the_forwarder_drops_packets_of_other_chains() {
    if !is_root() {
        return;
    }
    let chain = Chain::new();
    let frame = fixtures::named("udp-v4").frame;
    let meta = meta_of(&frame);
    let entry = chain.chain.program(0).unwrap();
    for (name, program, position) in [
        ("the entry", entry, 0),
        ("the near end", chain.links[0].near_program(), 0),
        ("the worker's inner end", chain.links[1].inner_program(), 1),
    ] {
        let before = chain.counters(position).drops;
        for foreign in [
            Meta {
                spi: SPI ^ 1,
                ..meta
            },
            Meta {
                generation: GENERATION + 1,
                ..meta
            },
        ] {
            let outcome = run_with_meta(program, &frame, foreign);
            assert_eq!(outcome.verdict, Hook::Xdp.drop(), "{name}");
        }
        // A packet that the namespace's own stack sends.
        let outcome = run_once(program, Hook::Xdp, &frame);
        assert_eq!(outcome.verdict, Hook::Xdp.drop(), "{name}");
        assert_eq!(chain.counters(position).drops, before + 3, "{name}");
    }
    for program in [entry, chain.links[0].near_program()] {
        let outcome = run_with_meta(program, &frame, meta);
        assert_eq!(outcome.verdict, Hook::Xdp.redirect());
        assert_eq!((outcome.frame, outcome.meta), (frame.clone(), Some(meta)));
    }
    assert_eq!(
        chain.chain.sojourn().count(),
        0,
        "a packet inside the chain must not count as departed"
    );
    // Without a socket the program drops the packet. The metadata holds the position for the
    // worker.
    let outcome = run_with_meta(chain.links[1].inner_program(), &frame, meta);
    assert_eq!(outcome.verdict, Hook::Xdp.drop());
    assert_eq!(outcome.meta.map(|meta| meta.position), Some(1));
}

#[test]
fn a_workers_packet_regains_its_metadata_and_leaves_the_chain() {
    if !is_root() {
        return;
    }
    let chain = Chain::new();
    let near = chain.links[1].near_program();
    let mut left = 0;
    for fixture in fixtures::all() {
        if fixture.frame.len() < 14 || fixture.frame.len() > 3000 {
            continue;
        }
        let outcome = run_once(near, Hook::Xdp, &encapsulate(&fixture.frame, 2));
        let Ok(headers) = parse(&fixture.frame) else {
            assert_eq!(outcome.verdict, Hook::Xdp.drop(), "{}", fixture.name);
            continue;
        };
        left += 1;
        assert_eq!(outcome.verdict, Hook::Xdp.redirect(), "{}", fixture.name);
        assert_eq!(outcome.frame, fixture.frame, "{}", fixture.name);
        let meta = Meta::new(77, SPI, GENERATION, 2, &headers);
        assert_eq!(outcome.meta, Some(meta), "{}", fixture.name);
    }
    assert!(left > 20);
    let frame = fixtures::named("udp-v4").frame;
    // A reply to the sender leaves at the ingress, and counts neither as a packet nor as a drop.
    let outcome = run_once(near, Hook::Xdp, &encapsulate(&frame, 0));
    assert_eq!(outcome.verdict, Hook::Xdp.redirect());
    assert_eq!(outcome.frame, frame);
    let refused = chain.counters(1).drops;
    for position in [1, 3] {
        // A packet of another position would skip functions.
        let outcome = run_once(near, Hook::Xdp, &encapsulate(&frame, position));
        assert_eq!(outcome.verdict, Hook::Xdp.drop(), "position {position}");
    }
    assert_eq!(chain.counters(1).drops, refused + 2);
    assert_eq!(chain.chain.sojourn().count(), left);
    let egress = chain.plane.counters().read(chain.chain.egress_slot());
    assert_eq!(egress.packets, left);
}

#[test]
fn random_headers_of_a_worker_pass_only_with_its_chain_and_position() {
    if !is_root() {
        return;
    }
    let chain = Chain::new();
    let near = chain.links[1].near_program();
    let inner = fixtures::named("udp-v4").frame;
    let changes = prop::collection::vec((12_usize..38, any::<u8>(), 0_u8..8), 0..3);
    for_all(2000, &changes, |changes| {
        let mut frame = encapsulate(&inner, 2);
        for (at, byte, bit) in changes {
            // Changes a whole byte, or one bit.
            frame[at] = if byte < 128 {
                byte
            } else {
                frame[at] ^ 1 << bit
            };
        }
        let drops = chain.counters(1).drops;
        let outcome = run_once(near, Hook::Xdp, &frame);
        let stamp = match fixtures::nsh::decapsulate(&frame) {
            Ok((context, _))
                if (context.spi, context.generation, context.position) == (SPI, GENERATION, 2) =>
            {
                Some(context.stamp_ns)
            }
            Ok((context, _))
                if (context.spi, context.generation, context.position) == (SPI, GENERATION, 0) =>
            {
                // A reply to the sender.
                None
            }
            _ => {
                assert_eq!(outcome.verdict, Hook::Xdp.drop());
                assert_eq!(chain.counters(1).drops, drops + 1);
                return;
            }
        };
        assert_eq!(outcome.verdict, Hook::Xdp.redirect());
        if stamp.is_some() {
            assert_eq!(outcome.meta.map(|meta| meta.stamp_ns), stamp);
        }
    });
}

#[test]
fn the_front_door_redirects_to_the_first_link_until_the_chain_is_removed() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let port = add_port(&plane);
    let (chain, links) = plane
        .load_distributed(&config(&[Some(XOR)], OnFailure::Pass))
        .unwrap();
    port.insert(&myelin_packet::Match::default(), &chain)
        .unwrap();
    let door = port.program(Hook::Xdp).unwrap();
    let frame = fixtures::named("udp-v4").frame;
    let run = || run_once(std::os::fd::AsFd::as_fd(&*door), Hook::Xdp, &frame);
    let outcome = run();
    assert_eq!(outcome.verdict, Hook::Xdp.redirect());
    assert_eq!(
        outcome.frame, frame,
        "the front door must not change the frame"
    );
    assert_eq!(outcome.meta.map(|meta| meta.spi), Some(SPI));
    drop((chain, links));
    assert_eq!(run().verdict, Hook::Xdp.pass());
}

/// Loads two functions at tcx.
fn load_at_tcx() -> (Plane, LoadedChain, Vec<FunctionLink>) {
    let plane = create_plane();
    let config = DistributedConfig {
        hook: Hook::Tcx,
        ..config(&[Some(XOR), Some(XOR)], OnFailure::Drop)
    };
    let (chain, links) = plane.load_distributed(&config).unwrap();
    (plane, chain, links)
}

fn run_at_tc(program: BorrowedFd<'_>, frame: &[u8], priority: u32) -> Outcome {
    let test = TestRun {
        meta: Some(meta_of(frame)),
        priority,
        ..TestRun::new(frame)
    };
    run(program, Hook::Tcx, &test).unwrap()
}

#[test]
fn at_tcx_a_tag_marks_packets_between_links_and_the_last_link_clears_the_tag() {
    if !is_root() {
        return;
    }
    let (plane, chain, links) = load_at_tcx();
    let frame = fixtures::named("udp-v4").frame;
    let entered = run_at_tc(chain.program(0).unwrap(), &frame, 0);
    assert_eq!(entered.verdict, Hook::Tcx.redirect());
    assert_eq!(
        entered.meta,
        run_at_tc(chain.program(0).unwrap(), &frame, 0).meta
    );
    let tag = entered.priority;
    assert_ne!(tag, 0, "a veth clears the priority to 0");
    let counted = |position| {
        let slot = chain.counter_slot(position).unwrap();
        plane.counters().read(slot)
    };
    for (position, link) in (0..).zip(&links) {
        let ends = [link.near_program(), link.inner_program()];
        for foreign in [0, tag ^ 1, tag ^ 1 << 24] {
            for end in ends {
                let before = counted(position).drops;
                let outcome = run_at_tc(end, &frame, foreign);
                assert_eq!(outcome.verdict, Hook::Tcx.drop(), "{foreign:#x}");
                assert_eq!(counted(position).drops, before + 1);
            }
        }
        assert_eq!(
            counted(position).packets,
            0,
            "no packet of another chain may reach the function"
        );
        // The function and its redirect back over the link.
        let outcome = run_at_tc(link.inner_program(), &frame, tag);
        assert_eq!(outcome.verdict, Hook::Tcx.redirect());
        assert_eq!(counted(position).packets, 1);
        assert_eq!(outcome.priority, tag);
        assert_ne!(
            outcome.frame[..frame.len()],
            frame,
            "the function must change the payload"
        );
        assert_eq!(chain.sojourn().count(), 0);
    }
    for (link, (priority, left)) in links.iter().zip([(tag, 0), (0, 1)]) {
        let outcome = run_at_tc(link.near_program(), &frame, tag);
        assert_eq!(outcome.verdict, Hook::Tcx.redirect());
        assert_eq!(outcome.priority, priority);
        let egress = plane.counters().read(chain.egress_slot());
        assert_eq!((chain.sojourn().count(), egress.packets), (left, left));
    }
}

#[test]
fn at_tcx_a_kernel_function_forwards_each_fixture_like_user_space() {
    if !is_root() {
        return;
    }
    let (_plane, _chain, links) = load_at_tcx();
    let called = links[0].called_program().unwrap();
    let mut user_functions = UserFunctions::new(&[XOR]);
    let mut passed = 0;
    for fixture in fixtures::all() {
        let Ok(headers) = parse(&fixture.frame) else {
            continue;
        };
        if fixture.frame.len() > 3000 {
            continue;
        }
        let outcome = run_at_tc(called, &fixture.frame, 0);
        match user_functions.process(&fixture.frame, &headers) {
            Some(frame) => {
                assert_eq!(outcome.verdict, Hook::Tcx.redirect(), "{}", fixture.name);
                assert_eq!(outcome.frame[..frame.len()], frame, "{}", fixture.name);
                passed += 1;
            }
            None => assert_eq!(outcome.verdict, Hook::Tcx.drop(), "{}", fixture.name),
        }
    }
    assert!(passed > 20);
}

#[test]
fn at_tcx_user_functions_are_refused() {
    if !is_root() {
        return;
    }
    let config = DistributedConfig {
        hook: Hook::Tcx,
        ..config(&[Some(XOR), None], OnFailure::Drop)
    };
    let error = create_plane().load_distributed(&config).unwrap_err();
    assert!(error.to_string().starts_with("function at position 1: "));
}

#[test]
fn a_chain_with_no_function_or_too_many_is_refused() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    for count in [0, 33] {
        let config = config(&vec![None; count], OnFailure::Drop);
        let error = plane.load_distributed(&config).unwrap_err();
        let expected = format!("{count} functions: a chain has 1 to 32 functions");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    let config = DistributedConfig {
        spi: 0,
        ..config(&[None], OnFailure::Drop)
    };
    assert!(plane.load_distributed(&config).is_err());
}

/// Loads a chain with a black box between two kernel functions.
fn load_black_box_chain() -> (Plane, LoadedChain, Vec<FunctionLink>) {
    let plane = create_plane();
    let function = |runtime| DistributedFunction {
        near: LOOPBACK,
        inner: LOOPBACK,
        runtime,
    };
    let config = DistributedConfig {
        functions: vec![
            function(FunctionRuntime::Kernel(XOR.into())),
            function(FunctionRuntime::BlackBox),
            function(FunctionRuntime::Kernel(XOR.into())),
        ],
        ..config(&[], OnFailure::Drop)
    };
    let (chain, links) = plane.load_distributed(&config).unwrap();
    (plane, chain, links)
}

#[test]
fn a_black_box_ends_one_section_and_begins_the_next() {
    if !is_root() {
        return;
    }
    let (plane, chain, links) = load_black_box_chain();
    let count = |slot| plane.counters().read(slot);
    let slots = links[1].black_box().unwrap();
    assert_eq!(links[0].black_box(), None);
    let frame = fixtures::named("udp-v4").frame;
    let meta = meta_of(&frame);
    let packets = || {
        let sections = chain.sections();
        sections
            .iter()
            .map(myelin_packet::sojourn::Histogram::count)
            .collect::<Vec<_>>()
    };
    assert_eq!(packets(), [0, 0]);
    let outcome = run_with_meta(links[0].near_program(), &frame, meta);
    assert_eq!(outcome.verdict, Hook::Xdp.redirect());
    assert_eq!(
        packets(),
        [1, 0],
        "the entry of the black box must end the first section"
    );
    assert_eq!(count(chain.counter_slot(1).unwrap()).packets, 1);
    assert_eq!(count(chain.egress_slot()).packets, 0);

    // Packets from the box have no metadata, or the metadata of an older generation, which the
    // program ignores.
    let stale = Meta {
        spi: 3,
        generation: 9,
        ..meta
    };
    for (number, meta) in [(1, None), (2, Some(stale))] {
        let test = TestRun {
            meta,
            ..TestRun::new(&frame)
        };
        let outcome = run(links[1].near_program(), Hook::Xdp, &test).unwrap();
        assert_eq!(outcome.verdict, Hook::Xdp.redirect());
        assert_eq!(outcome.frame, frame);
        let stamped = outcome.meta.unwrap();
        assert!(
            stamped.stamp_ns > 1000,
            "the program must replace the old stamp"
        );
        let expected = Meta {
            stamp_ns: stamped.stamp_ns,
            position: 2,
            ..meta_of(&frame)
        };
        assert_eq!(stamped, expected);
        assert_eq!(count(slots.out).packets, number);
        assert_eq!(
            packets(),
            [1, number - 1],
            "the way to the next function must not end the second section"
        );
        let outcome = run_with_meta(links[2].near_program(), &frame, stamped);
        assert_eq!(outcome.verdict, Hook::Xdp.redirect());
        assert_eq!(
            packets(),
            [1, number],
            "the egress must end the second section"
        );
    }
    assert_eq!(count(slots.back).packets, 0);
    assert_eq!(count(chain.counter_slot(1).unwrap()).drops, 0);
}

#[test]
fn frames_of_a_black_box_without_ip_are_dropped() {
    if !is_root() {
        return;
    }
    let (plane, chain, links) = load_black_box_chain();
    let slots = links[1].black_box().unwrap();
    let ends = [
        (links[1].near_program(), slots.out),
        (links[1].inner_program(), slots.back),
    ];
    for (program, slot) in ends {
        let (mut passed, mut refused) = (0, 0);
        for fixture in fixtures::all() {
            if fixture.frame.len() < 14 || fixture.frame.len() > 3000 {
                continue;
            }
            let drops = plane.counters().read(chain.counter_slot(1).unwrap()).drops;
            let outcome = run_once(program, Hook::Xdp, &fixture.frame);
            if parse(&fixture.frame).is_ok() {
                passed += 1;
                assert_eq!(outcome.verdict, Hook::Xdp.redirect(), "{}", fixture.name);
                assert_eq!(outcome.frame, fixture.frame, "{}", fixture.name);
            } else {
                // For example ARP of the namespace, or a frame that later functions cannot parse.
                refused += 1;
                assert_eq!(outcome.verdict, Hook::Xdp.drop(), "{}", fixture.name);
                let now = plane.counters().read(chain.counter_slot(1).unwrap()).drops;
                assert_eq!(now, drops + 1, "{}", fixture.name);
            }
        }
        assert!(
            passed > 20 && refused > 5,
            "{passed} passed, {refused} refused"
        );
        assert_eq!(plane.counters().read(slot).packets, passed);
    }
    assert_eq!(
        chain.sojourn().count(),
        0,
        "a packet before the last function must not count as departed"
    );
}

#[test]
fn each_black_box_has_its_own_counters_and_section() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let boxes = |count| DistributedConfig {
        functions: vec![
            DistributedFunction {
                near: LOOPBACK,
                inner: LOOPBACK,
                runtime: FunctionRuntime::BlackBox,
            };
            count
        ],
        ..config(&[], OnFailure::Drop)
    };
    let (chain, links) = plane.load_distributed(&boxes(3)).unwrap();
    let frame = fixtures::named("udp-v4").frame;
    let entry = chain.program(0).unwrap();
    assert_eq!(
        run_with_meta(entry, &frame, meta_of(&frame)).verdict,
        Hook::Xdp.redirect()
    );
    for (at, link) in links.iter().enumerate() {
        for _ in 0..=at {
            let outcome = run_once(link.near_program(), Hook::Xdp, &frame);
            assert_eq!(outcome.verdict, Hook::Xdp.redirect());
        }
    }
    let counted = |slot| plane.counters().read(slot).packets;
    let sections: Vec<u64> = chain
        .sections()
        .iter()
        .map(myelin_packet::sojourn::Histogram::count)
        .collect();
    assert_eq!(sections, [1, 1, 2, 3]);
    let out: Vec<u64> = links
        .iter()
        .map(|link| counted(link.black_box().unwrap().out))
        .collect();
    assert_eq!(out, [1, 2, 3]);
    let into: Vec<u64> = (0..3)
        .map(|at| counted(chain.counter_slot(at).unwrap()))
        .collect();
    assert_eq!(into, [1, 1, 2]);
    assert_eq!(counted(chain.egress_slot()), 3);
}
