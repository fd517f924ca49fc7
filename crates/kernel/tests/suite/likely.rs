//! A door that was made for one chain serves every other one too, and is made anew when that chain is gone.

use std::os::fd::AsFd;

use myelin_kernel::{Hook, LoadedChain, Plane};
use myelin_packet::Match;
use myelin_packet::fixtures;
use myelin_spec::FunctionConfig;

use crate::common::{is_root, kernel_chain, plane};
use crate::stand::{port, run_once};

fn chain(plane: &Plane, hook: Hook, spi: u32) -> LoadedChain {
    plane
        .load_chain(&kernel_chain(hook, spi, &[FunctionConfig::Forward]))
        .unwrap()
}

#[test]
fn packets_find_their_chain_whichever_the_door_was_made_for() {
    if !is_root() {
        return;
    }
    let frame = fixtures::named("udp-v4").frame;
    for hook in Hook::ALL {
        let plane = plane();
        let port = port(&plane);
        // Loaded before any chain is there, as an attached door is.
        let first = port.program(hook).unwrap();
        let taken = |chain: &LoadedChain| {
            let program = port.program(hook).unwrap();
            let before = plane.counters().read(chain.egress_slot()).packets;
            let verdict = run_once(program.as_fd(), hook, &frame).verdict;
            assert_eq!(verdict, hook.redirect());
            plane.counters().read(chain.egress_slot()).packets - before
        };
        let (wide, narrow) = (
            Match::default(),
            Match {
                protocol: Some(17),
                ..Match::default()
            },
        );
        let (one, other) = (chain(&plane, hook, 1), chain(&plane, hook, 2));
        port.insert(&wide, &one).unwrap();
        let made_for_one = port.program(hook).unwrap();
        assert!(!std::sync::Arc::ptr_eq(&first, &made_for_one));
        assert_eq!(taken(&one), 1);
        port.insert(&narrow, &other).unwrap();
        assert!(
            std::sync::Arc::ptr_eq(&made_for_one, &port.program(hook).unwrap()),
            "it still serves the chain it was made for"
        );
        assert_eq!((taken(&other), taken(&one)), (1, 0));
        assert!(port.remove(&narrow).unwrap());
        // The match goes on to another chain in one step, and the door with it.
        let next = chain(&plane, hook, 1);
        port.insert(&wide, &next).unwrap();
        drop(one);
        assert!(!std::sync::Arc::ptr_eq(
            &made_for_one,
            &port.program(hook).unwrap()
        ));
        assert_eq!((taken(&next), taken(&other)), (1, 0));
        // A chain in the slots that the first one had.
        let third = chain(&plane, hook, 3);
        port.insert(&narrow, &third).unwrap();
        assert_eq!((taken(&third), taken(&next)), (1, 0));
    }
}
