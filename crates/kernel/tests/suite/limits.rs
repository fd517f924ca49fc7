//! Tests that a plane refuses too many objects, contradictory chains and removed chains.

use std::os::fd::AsFd;

use myelin_kernel::{Capacity, ChainConfig, EntrySpace, Error, Exit, Hook, Plane};
use myelin_packet::rules::{Action, MAX_RULES, Rule};
use myelin_packet::{Match, Unparsed};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig, OnFailure, XorConfig};

use crate::chain::{frame, kernel_user_kernel};
use crate::common::{LOOPBACK, create_plane, is_root, kernel_chain};
use crate::door_bench::{add_port, forwards, run_once};

/// A match or path that outlives its chain has no target, and never leads into the next chain.
#[test]
fn slots_of_a_stale_match_or_path_are_not_reused() {
    if !is_root() {
        return;
    }
    let capacity = Capacity {
        lines: 64,
        programs: 2,
        chains: 4,
        matches: 16,
        ports: 1,
        queues: 1,
    };
    let config = |spi| {
        kernel_chain(
            Hook::Xdp,
            spi,
            &[FunctionConfig::Xor(XorConfig { key: spi as u8 })],
        )
    };
    let plane = Plane::create(None, capacity).unwrap();
    let port = add_port(&plane);
    let door = port.program(Hook::Xdp).unwrap();
    let first = plane.load_chain(&config(1)).unwrap();
    port.insert(&Match::default(), &first).unwrap();
    drop(first);
    for _ in 0..3 {
        // Only one of the two slots is free, because the stale match keeps the other slot
        // allocated.
        let second = plane.load_chain(&config(2)).unwrap();
        assert!(matches!(
            plane.load_chain(&config(3)),
            Err(Error::Full {
                items: "kernel functions",
                ..
            })
        ));
        let outcome = run_once(door.as_fd(), Hook::Xdp, &frame());
        assert_eq!(
            (outcome.verdict, outcome.frame),
            (Hook::Xdp.drop(), frame())
        );
        assert_eq!(plane.counters().read(second.door_slot()).packets, 0);
    }
    port.remove(&Match::default()).unwrap();
    let both = [2, 3].map(|spi| plane.load_chain(&config(spi)).unwrap());

    drop(both);
    let reentry = plane.add_reentry(LOOPBACK).unwrap();
    let mut back = ChainConfig {
        positions: 2,
        entry: EntrySpace::User,
        ..config(4)
    };
    back.segments[0].first_position = 1;
    let back = plane.load_chain(&back).unwrap();
    reentry.insert(1, &back).unwrap();
    drop(back);
    let _second = plane.load_chain(&config(2)).unwrap();
    assert!(matches!(
        plane.load_chain(&config(3)),
        Err(Error::Full {
            items: "kernel functions",
            ..
        })
    ));
    drop(reentry);
    plane.load_chain(&config(3)).unwrap();
}

#[test]
fn a_full_table_returns_an_error_and_keeps_its_entries() {
    if !is_root() {
        return;
    }
    let capacity = Capacity {
        lines: 64,
        programs: 4,
        chains: 8,
        matches: 16,
        ports: 1,
        queues: 1,
    };
    let plane = Plane::create(None, capacity).unwrap();
    let port = add_port(&plane);
    let three = kernel_chain(Hook::Tcx, 1, &forwards(3));
    let chain = plane.load_chain(&three).unwrap();
    port.insert(&Match::default(), &chain).unwrap();
    let error = plane
        .load_chain(&ChainConfig {
            spi: 2,
            ..three.clone()
        })
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no room for 3 more kernel functions: the agent has a capacity of 4"),
        "{error}"
    );
    let error = plane.add_port(port.config().clone()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Full {
                items: "ports",
                wanted: 1,
                capacity: 1
            }
        ),
        "{error}"
    );
    let outcome = run_once(
        port.program(Hook::Tcx).unwrap().as_fd(),
        Hook::Tcx,
        &frame(),
    );
    assert_eq!(outcome.verdict, Hook::Tcx.redirect());
    port.remove(&Match::default()).unwrap();
    drop(chain);
    plane.load_chain(&ChainConfig { spi: 2, ..three }).unwrap();
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of chains")]
fn a_contradictory_chain_is_refused() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let sockets = add_port(&plane).sockets();
    let good = kernel_chain(Hook::Xdp, 1, &[FunctionConfig::Forward]);
    let too_many = FunctionConfig::Firewall(FirewallConfig {
        rules: vec![Rule::any(Action::Deny); MAX_RULES + 1],
        default: Action::Allow,
        fragments: FragmentPolicy::Drop,
    });
    let back = kernel_user_kernel(OnFailure::Drop, sockets.clone());
    let mut out_of_order = back.clone();
    out_of_order.segments[1].first_position = 1;
    let mut no_exit = good.clone();
    no_exit.segments[0].exit = Exit::User { sockets };
    let cases = [
        (
            ChainConfig {
                spi: 0,
                ..good.clone()
            },
            "the path identifier must be 1 to 16777215",
        ),
        (
            ChainConfig {
                spi: 1 << 24,
                ..good.clone()
            },
            "the path identifier must be 1 to",
        ),
        (
            ChainConfig {
                positions: 0,
                ..good.clone()
            },
            "0 functions: a chain has 1 to 32 functions",
        ),
        (kernel_chain(Hook::Tcx, 1, &forwards(33)), "33 functions"),
        (
            ChainConfig {
                positions: 2,
                ..good.clone()
            },
            "must exit at the egress if and only if it is the last segment",
        ),
        (
            ChainConfig {
                segments: vec![],
                ..good.clone()
            },
            "different spaces",
        ),
        (
            ChainConfig {
                entry: EntrySpace::User,
                ..good.clone()
            },
            "different spaces",
        ),
        (
            ChainConfig {
                hook: Hook::Tcx,
                ..back
            },
            "user space from the XDP hook only",
        ),
        (out_of_order, "no function in user space lies between"),
        (no_exit, "must exit at the egress"),
        (
            kernel_chain(Hook::Xdp, 1, &[too_many]),
            "firewall at position 0: 1025 rules are too many",
        ),
    ];
    for (config, expected) in cases {
        let error = plane.load_chain(&config).unwrap_err().to_string();
        assert!(
            error.contains(expected),
            "{error:?} instead of {expected:?}"
        );
    }
    // All slots are free, because each failed load freed its slots.
    let all = kernel_chain(Hook::Xdp, 1, &forwards(32));
    let chains: Vec<_> = (1..=3)
        .map(|spi| {
            plane
                .load_chain(&ChainConfig { spi, ..all.clone() })
                .unwrap()
        })
        .collect();
    assert_eq!(chains.len(), 3);
}

#[test]
fn counters_of_an_absent_slot_are_zero() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    for slot in [511, 512, 1023, u32::MAX] {
        assert_eq!(
            plane.counters().read(slot),
            myelin_kernel::CounterLine::default()
        );
    }
    assert_eq!(
        add_port(&plane)
            .counters()
            .unparsed(Unparsed::TooManyExtensions)
            .packets,
        0
    );
}
