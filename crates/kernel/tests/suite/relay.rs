//! Tests the way over an entry link: the port's door puts the stamp into two tags, the door behind
//! the link removes the tags. Real packets pass the links of `crates/cli/tests/own_links.rs`.

use std::os::fd::AsFd;

use myelin_kernel::test_run::{self, TestRun};
use myelin_kernel::{BehindLink, Hook, LoadedChain, Plane, Port, PortConfig, Relay};
use myelin_packet::fixtures;
use myelin_packet::{Match, parse};

use crate::chain::clock_ns;
use crate::common::{LOOPBACK, can_run, create_plane, is_root, kernel_chain};
use crate::door_bench::{add_port, forwards};

const SPI: u32 = 0x00ab_cdef;
const SERVICE_TAG: [u8; 2] = [0x88, 0xa8];

/// A port, and a port behind its entry link with a chain of one function.
struct RelayBench {
    plane: Plane,
    port: Port,
    behind: Port,
    relay: Relay,
    chain: LoadedChain,
}

impl RelayBench {
    fn new(hook: Hook) -> Self {
        let plane = create_plane();
        let port = add_port(&plane);
        let config = PortConfig {
            behind_link: BehindLink::Entry,
            ..test_run::port()
        };
        let behind = plane.add_port(config).unwrap();
        let chain = kernel_chain(hook, SPI, &forwards(1));
        let chain = plane.load_chain(&chain).unwrap();
        let relay = plane.add_relay(SPI, LOOPBACK).unwrap();
        behind.insert(&Match::default(), &chain).unwrap();
        port.redirect_to_relay(&Match::default(), &relay).unwrap();
        Self {
            plane,
            port,
            behind,
            relay,
            chain,
        }
    }

    fn packets(&self) -> u64 {
        self.plane.counters().read(self.chain.door_slot()).packets
    }
}

/// Returns the frame as it arrives at the far end of the link.
fn add_tags(frame: &[u8], stamp_ns: u64) -> Vec<u8> {
    let low = (stamp_ns as u32).to_be_bytes();
    let tag = |half: &[u8]| [&SERVICE_TAG, half].concat();
    let (addresses, rest) = frame.split_at(12);
    [addresses, &tag(&low[..2]), &tag(&low[2..]), rest].concat()
}

#[test]
fn the_xdp_door_behind_a_link_restores_frame_and_stamp() {
    if !is_root() {
        return;
    }
    let bench = RelayBench::new(Hook::Xdp);
    let program = bench.behind.program(Hook::Xdp).unwrap();
    let run =
        |frame: &[u8]| test_run::run(program.as_fd(), Hook::Xdp, &TestRun::new(frame)).unwrap();
    let mut entered = 0;
    for fixture in fixtures::all() {
        if fixture.frame.len() < 14 || fixture.frame.len() > 3000 {
            continue;
        }
        let stamp_ns = clock_ns() - 5_000_000;
        let tagged = add_tags(&fixture.frame, stamp_ns);
        let (outcome, name) = (run(&tagged), fixture.name);
        if parse(&fixture.frame).is_ok() {
            entered += 1;
            assert_eq!(outcome.verdict, Hook::Xdp.redirect(), "{name}");
            assert_eq!(outcome.frame, fixture.frame, "{name}");
            assert_eq!(outcome.meta.unwrap().stamp_ns, stamp_ns, "{name}");
        } else {
            // The tc door counts the frame.
            assert_eq!(outcome.verdict, Hook::Xdp.pass(), "{name}");
            assert_eq!(outcome.frame, tagged, "{name}");
        }
    }
    assert!(entered > 10);
    assert_eq!(bench.packets(), entered);
}

#[test]
fn frames_without_both_tags_enter_no_chain_behind_a_link() {
    if !is_root() {
        return;
    }
    let bench = RelayBench::new(Hook::Xdp);
    let program = bench.behind.program(Hook::Xdp).unwrap();
    let frame = &fixtures::all()[0].frame;
    let tagged = add_tags(frame, 1);
    // No tag, one tag, another type of tag, and a frame that ends within the tags.
    let one_tag = [&tagged[..16], &frame[12..]].concat();
    let mut other_type = tagged.clone();
    other_type[16..18].copy_from_slice(&[0x81, 0x00]);
    for foreign in [frame.as_slice(), &one_tag, &other_type, &tagged[..19]] {
        let outcome = test_run::run(program.as_fd(), Hook::Xdp, &TestRun::new(foreign)).unwrap();
        assert_eq!(outcome.verdict, Hook::Xdp.pass());
        assert_eq!(outcome.frame, foreign);
    }
    assert_eq!(bench.packets(), 0);
}

#[test]
fn the_xdp_door_behind_a_link_leaves_packets_of_tc_chains_alone() {
    if !is_root() {
        return;
    }
    let bench = RelayBench::new(Hook::Tcx);
    let program = bench.behind.program(Hook::Xdp).unwrap();
    let tagged = add_tags(&fixtures::all()[0].frame, 7);
    let outcome = test_run::run(program.as_fd(), Hook::Xdp, &TestRun::new(&tagged)).unwrap();
    assert_eq!(outcome.verdict, Hook::Xdp.pass());
    assert_eq!(outcome.frame, tagged);
}

#[test]
fn a_relay_counts_segments_and_puts_the_stamp_into_tags() {
    if !is_root() {
        return;
    }
    let bench = RelayBench::new(Hook::Xdp);
    let program = bench.port.program(Hook::Tcx).unwrap();
    let mut relayed = 0;
    for fixture in fixtures::all() {
        if !can_run(Hook::Tcx, &fixture.frame) || parse(&fixture.frame).is_err() {
            continue;
        }
        let test = TestRun {
            gso_segs: 3,
            gso_size: 1,
            ..TestRun::new(&fixture.frame)
        };
        let outcome = test_run::run(program.as_fd(), Hook::Tcx, &test).unwrap();
        relayed += 3;
        assert_eq!(outcome.verdict, Hook::Tcx.redirect(), "{}", fixture.name);
        let counters = bench.relay.counters();
        assert_eq!((counters.packets, counters.drops), (relayed, 0));
        // The second tag is beside the frame until the link inserts it.
        let low = (counters.last_ns as u16).to_be_bytes();
        let (addresses, rest) = fixture.frame.split_at(12);
        let expected = [addresses, &SERVICE_TAG, &low, rest].concat();
        assert_eq!(outcome.frame, expected, "{}", fixture.name);
    }
    assert!(relayed > 30);
    assert_eq!(bench.packets(), 0, "the door behind the link counts");
}
