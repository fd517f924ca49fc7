//! Tests a block: a port drops the packets of a match until a chain has the match.

use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_kernel::test_run::{self, TestRun};
use myelin_packet::Match;
use myelin_packet::fixtures;

use crate::common::{create_plane, is_root, kernel_chain};
use crate::door_bench::{add_port, forwards};

#[test]
fn a_block_replaces_its_chain_and_a_chain_replaces_a_block() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let plane = create_plane();
        let port = add_port(&plane);
        let load = |spi| {
            let config = kernel_chain(hook, spi, &forwards(1));
            plane.load_chain(&config).unwrap()
        };
        let [first, second, third] = [7, 8, 9].map(load);
        let block = plane.add_block().unwrap();
        let rule = Match::default();
        let frame = &fixtures::all()[0].frame;
        let verdict = |hook: Hook| {
            let program = port.program(hook).unwrap();
            let run = test_run::run(program.as_fd(), hook, &TestRun::new(frame));
            run.unwrap().verdict
        };
        port.insert(&rule, &first).unwrap();
        assert_eq!(verdict(hook), hook.redirect());
        // Another chain's match stays.
        assert!(port.block(&rule, &block, 8).is_err());
        port.block(&rule, &block, 7).unwrap();
        assert_eq!(verdict(Hook::Xdp), Hook::Xdp.pass());
        assert_eq!(verdict(Hook::Tcx), Hook::Tcx.drop());
        assert_eq!(block.counters().drops, 1);
        // A second block of the same packets changes nothing.
        port.block(&rule, &block, 0).unwrap();
        assert_eq!(verdict(Hook::Tcx), Hook::Tcx.drop());
        port.insert(&rule, &second).unwrap();
        assert_eq!(verdict(hook), hook.redirect());
        port.unblock(&rule, &block).unwrap();
        assert_eq!(verdict(hook), hook.redirect());
        assert!(port.insert(&rule, &third).is_err());
        port.block(&rule, &block, 8).unwrap();
        port.unblock(&rule, &block).unwrap();
        assert_eq!(verdict(Hook::Tcx), Hook::Tcx.pass());
    }
}
