//! Tests a door that is compiled for one chain: it serves every chain, and is recompiled when that
//! chain is removed.

use std::os::fd::AsFd;

use myelin_kernel::{Hook, LoadedChain, Plane};
use myelin_packet::Match;
use myelin_packet::fixtures;
use myelin_spec::FunctionConfig;

use crate::common::{is_root, kernel_chain, plane};
use crate::door_bench::{port, run_once};

fn chain(plane: &Plane, hook: Hook, spi: u32) -> LoadedChain {
    plane
        .load_chain(&kernel_chain(hook, spi, &[FunctionConfig::Forward]))
        .unwrap()
}

#[test]
fn a_door_compiled_for_one_chain_serves_all() {
    if !is_root() {
        return;
    }
    let frame = fixtures::named("udp-v4").frame;
    for hook in Hook::ALL {
        let plane = plane();
        let port = port(&plane);
        // Loaded before the first chain, like an attached door.
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
        // The match gets another chain as target atomically, and the door is recompiled for it.
        let next = chain(&plane, hook, 1);
        port.insert(&wide, &next).unwrap();
        drop(one);
        assert!(!std::sync::Arc::ptr_eq(
            &made_for_one,
            &port.program(hook).unwrap()
        ));
        assert_eq!((taken(&next), taken(&other)), (1, 0));
        // A chain that reuses the slots of the first.
        let third = chain(&plane, hook, 3);
        port.insert(&narrow, &third).unwrap();
        assert_eq!((taken(&third), taken(&next)), (1, 0));
    }
}
