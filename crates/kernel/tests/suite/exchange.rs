//! Tests the replacement of one generation of a chain by another.

use std::os::fd::AsFd;

use myelin_kernel::{Hook, LoadedChain, Plane, Port};
use myelin_packet::Match;

use crate::chain::frame;
use crate::common::{is_root, kernel_chain, plane};
use crate::door_bench::{forwards, port, run_once};

/// A plane with a port. The match of the port has the old generation as target, at one hook. The
/// new generation is loaded at another hook.
struct Exchange {
    plane: Plane,
    port: Port,
    old: LoadedChain,
    new: LoadedChain,
}

impl Exchange {
    fn new(old: Hook, new: Hook) -> Self {
        let plane = plane();
        let port = port(&plane);
        let load = |hook, generation| {
            let mut config = kernel_chain(hook, 1, &forwards(2));
            config.generation = generation;
            plane.load_chain(&config).unwrap()
        };
        let (old, new) = (load(old, 0), load(new, 1));
        port.insert(&Match::default(), &old).unwrap();
        Self {
            plane,
            port,
            old,
            new,
        }
    }

    fn redirect_to_new(&self) {
        self.plane.keep_old_entry(&self.new, &self.old).unwrap();
        self.port.insert(&Match::default(), &self.new).unwrap();
    }

    /// The verdict of the door at a hook.
    fn verdict(&self, hook: Hook) -> u32 {
        let door = self.port.program(hook).unwrap();
        run_once(door.as_fd(), hook, &frame()).verdict
    }

    /// Packets that left the old and the new generation.
    fn left(&self) -> [u64; 2] {
        [&self.old, &self.new].map(|chain| {
            let counters = self.plane.counters();
            let [entered, left] =
                [chain.door_slot(), chain.egress_slot()].map(|slot| counters.read(slot).packets);
            assert_eq!(entered, left);
            left
        })
    }
}

#[test]
fn when_a_chain_moves_to_xdp_the_old_generation_takes_packets_between_the_hooks() {
    if !is_root() {
        return;
    }
    let exchange = Exchange::new(Hook::Tcx, Hook::Xdp);
    assert_eq!(exchange.verdict(Hook::Xdp), Hook::Xdp.pass());
    exchange.redirect_to_new();
    assert_eq!(exchange.verdict(Hook::Tcx), Hook::Tcx.redirect());
    assert_eq!(exchange.left(), [1, 0]);
    assert_eq!(exchange.verdict(Hook::Xdp), Hook::Xdp.redirect());
    assert_eq!(exchange.left(), [1, 1]);
    // The old generation is removed: no match has it as target.
    exchange.plane.drop_old_entry(&exchange.new).unwrap();
    assert_eq!(exchange.verdict(Hook::Tcx), Hook::Tcx.drop());
}

#[test]
fn when_a_chain_moves_to_tcx_the_new_generation_takes_packets_between_the_hooks() {
    if !is_root() {
        return;
    }
    let exchange = Exchange::new(Hook::Xdp, Hook::Tcx);
    assert_eq!(exchange.verdict(Hook::Xdp), Hook::Xdp.redirect());
    exchange.redirect_to_new();
    assert_eq!(exchange.verdict(Hook::Xdp), Hook::Xdp.pass());
    assert_eq!(exchange.verdict(Hook::Tcx), Hook::Tcx.redirect());
    assert_eq!(exchange.left(), [1, 1]);
}

#[test]
fn the_old_generation_keeps_its_slots_while_packets_reach_it() {
    if !is_root() {
        return;
    }
    let Exchange {
        plane,
        port,
        old,
        new,
    } = Exchange::new(Hook::Tcx, Hook::Xdp);
    plane.keep_old_entry(&new, &old).unwrap();
    port.insert(&Match::default(), &new).unwrap();
    // The old generation is removed too early: `onFailure` drops its packets, and they enter no
    // other chain.
    drop(old);
    let other_chains: Vec<_> = (2..20)
        .map(|spi| {
            plane
                .load_chain(&kernel_chain(Hook::Tcx, spi, &forwards(2)))
                .unwrap()
        })
        .collect();
    let door = port.program(Hook::Tcx).unwrap();
    let outcome = run_once(door.as_fd(), Hook::Tcx, &frame());
    assert_eq!(outcome.verdict, Hook::Tcx.drop());
    let read = |chain: &LoadedChain| plane.counters().read(chain.door_slot()).packets;
    assert!(other_chains.iter().all(|chain| read(chain) == 0));
}

#[test]
fn wait_for_packets_returns() {
    if is_root() {
        plane().wait_for_packets().unwrap();
    }
}
