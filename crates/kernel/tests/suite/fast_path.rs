//! Tests a door with a direct jump to one chain. The door must forward packets of every chain. A
//! new generation of the chain reloads the door.

use std::os::fd::AsFd;

use myelin_kernel::{Hook, LoadedChain, Plane};
use myelin_packet::Match;
use myelin_packet::fixtures;
use myelin_spec::FunctionConfig;

use crate::common::{create_plane, is_root, kernel_chain};
use crate::door_bench::{add_port, run_once};

fn load_chain(plane: &Plane, hook: Hook, spi: u32) -> LoadedChain {
    plane
        .load_chain(&kernel_chain(hook, spi, &[FunctionConfig::Forward]))
        .unwrap()
}

#[test]
fn a_door_with_a_fast_path_forwards_packets_of_all_chains() {
    if !is_root() {
        return;
    }
    let frame = fixtures::named("udp-v4").frame;
    for hook in Hook::ALL {
        let plane = create_plane();
        let port = add_port(&plane);
        // Load the door before the first chain, because a port attaches its door first.
        let first = port.program(hook).unwrap();
        let count_forwarded = |chain: &LoadedChain| {
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
        let (first_chain, second_chain) =
            (load_chain(&plane, hook, 1), load_chain(&plane, hook, 2));
        port.insert(&wide, &first_chain).unwrap();
        let with_fast_path = port.program(hook).unwrap();
        assert!(!std::sync::Arc::ptr_eq(&first, &with_fast_path));
        assert_eq!(count_forwarded(&first_chain), 1);
        port.insert(&narrow, &second_chain).unwrap();
        assert!(
            std::sync::Arc::ptr_eq(&with_fast_path, &port.program(hook).unwrap()),
            "the port must not reload the door for the second chain"
        );
        assert_eq!(
            (
                count_forwarded(&second_chain),
                count_forwarded(&first_chain)
            ),
            (1, 0)
        );
        assert!(port.remove(&narrow).unwrap());
        // The match gets another chain as target atomically, and the port reloads the door for that
        // chain.
        let next = load_chain(&plane, hook, 1);
        port.insert(&wide, &next).unwrap();
        drop(first_chain);
        assert!(!std::sync::Arc::ptr_eq(
            &with_fast_path,
            &port.program(hook).unwrap()
        ));
        assert_eq!(
            (count_forwarded(&next), count_forwarded(&second_chain)),
            (1, 0)
        );
        // The third chain reuses the slots of the first chain.
        let third = load_chain(&plane, hook, 3);
        port.insert(&narrow, &third).unwrap();
        assert_eq!((count_forwarded(&third), count_forwarded(&next)), (1, 0));
    }
}
