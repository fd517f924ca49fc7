//! Tests the replacement of one generation of a chain by another.

use std::os::fd::AsFd;

use myelin_kernel::{Hook, LoadedChain, Plane, Port};
use myelin_packet::Match;

use crate::chain::frame;
use crate::common::{create_plane, is_root, kernel_chain};
use crate::door_bench::{add_port, forwards, run_once};

/// A plane with a port. The target of the port's match is the old generation, at one hook. The new
/// generation is loaded at another hook.
struct Exchange {
    plane: Plane,
    port: Port,
    old: LoadedChain,
    new: LoadedChain,
}

impl Exchange {
    fn new(old: Hook, new: Hook) -> Self {
        let plane = create_plane();
        let port = add_port(&plane);
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

    /// Runs the door of a hook on a frame. Returns the verdict.
    fn run_door(&self, hook: Hook) -> u32 {
        let door = self.port.program(hook).unwrap();
        run_once(door.as_fd(), hook, &frame()).verdict
    }

    /// Returns the number of packets that left the old and the new generation.
    fn count_left(&self) -> [u64; 2] {
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
    assert_eq!(exchange.run_door(Hook::Xdp), Hook::Xdp.pass());
    exchange.redirect_to_new();
    assert_eq!(exchange.run_door(Hook::Tcx), Hook::Tcx.redirect());
    assert_eq!(exchange.count_left(), [1, 0]);
    assert_eq!(exchange.run_door(Hook::Xdp), Hook::Xdp.redirect());
    assert_eq!(exchange.count_left(), [1, 1]);
    // The old generation is removed, and is no longer the target of a match.
    exchange.plane.drop_old_entry(&exchange.new).unwrap();
    assert_eq!(exchange.run_door(Hook::Tcx), Hook::Tcx.drop());
}

#[test]
fn when_a_chain_moves_to_tcx_the_new_generation_takes_packets_between_the_hooks() {
    if !is_root() {
        return;
    }
    let exchange = Exchange::new(Hook::Xdp, Hook::Tcx);
    assert_eq!(exchange.run_door(Hook::Xdp), Hook::Xdp.redirect());
    exchange.redirect_to_new();
    assert_eq!(exchange.run_door(Hook::Xdp), Hook::Xdp.pass());
    assert_eq!(exchange.run_door(Hook::Tcx), Hook::Tcx.redirect());
    assert_eq!(exchange.count_left(), [1, 1]);
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
    // The old generation is removed too early. `onFailure` drops packets for this generation, and
    // these packets enter no other chain.
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
fn waiting_for_packets_succeeds() {
    if is_root() {
        create_plane().wait_for_packets().unwrap();
    }
}
