//! Compares the front door's classifier with a plain reference.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{ChainConfig, Error, Hook, LoadedChain, Plane, Port};
use myelin_packet::classifier::{ClassifierError, MAX_MASKS};
use myelin_packet::fixtures::build;
use myelin_packet::fixtures::reference::most_specific;
use myelin_packet::{FragmentHandling, Match, Prefix, parse};
use myelin_spec::FunctionConfig;
use proptest::prelude::*;

use crate::common::{create_plane, for_all, is_root, kernel_chain};
use crate::door_bench::{add_port, forwards, run_once};

/// A few chains. The path identifier in the XDP metadata identifies each chain.
struct Chains {
    plane: Plane,
    chains: Vec<LoadedChain>,
}

impl Chains {
    fn new(count: u32) -> Self {
        let plane = create_plane();
        let chains = (1..=count)
            .map(|spi| {
                plane
                    .load_chain(&kernel_chain(Hook::Xdp, spi, &[FunctionConfig::Forward]))
                    .unwrap()
            })
            .collect();
        Self { plane, chains }
    }
}

/// Returns the path identifier of the chain that takes the frame.
fn classify(port: &Port, frame: &[u8]) -> Option<u32> {
    let outcome = run_once(port.program(Hook::Xdp).unwrap().as_fd(), Hook::Xdp, frame);
    assert_eq!(
        outcome.verdict == Hook::Xdp.redirect(),
        outcome.meta.is_some()
    );
    outcome.meta.map(|meta| meta.spi)
}

/// Returns a match with fields of few values, so that many packets match.
fn rule() -> impl Strategy<Value = Match> {
    let v4 = |host: u8| {
        prop_oneof![
            Just(None),
            (0_u8..4, prop::sample::select(vec![0, 8, 24, 31, 32])).prop_map(move |(last, len)| {
                Some(Prefix::new(Ipv4Addr::new(10, host, 0, last).into(), len).unwrap())
            })
        ]
    };
    let v6 = |host: u16| {
        prop_oneof![
            Just(None),
            (0_u16..4, prop::sample::select(vec![0, 32, 64, 127, 128])).prop_map(
                move |(last, len)| {
                    Some(
                        Prefix::new(
                            Ipv6Addr::new(0x2001, 0xdb8, host, 0, 0, 0, 0, last).into(),
                            len,
                        )
                        .unwrap(),
                    )
                }
            )
        ]
    };
    let addresses = prop_oneof![(v4(1), v4(2)), (v6(1), v6(2))];
    let port = || prop::option::of(8_u16..11);
    (
        addresses,
        prop::option::of(prop::sample::select(vec![1_u8, 6, 17, 58])),
        port(),
        port(),
    )
        .prop_map(
            |((source, destination), protocol, source_port, destination_port)| Match {
                source,
                destination,
                protocol,
                source_port,
                destination_port,
                ..Match::default()
            },
        )
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ends = (0_u8..5, 0_u8..5, any::<bool>());
    (ends, 8_u16..11, 8_u16..11, 0..4).prop_map(
        |((from, to, is_v6), source_port, destination_port, kind)| {
            let (source, destination) = if is_v6 {
                let v6 = |host, last: u8| {
                    Ipv6Addr::new(0x2001, 0xdb8, host, 0, 0, 0, 0, last.into()).into()
                };
                (v6(1, from), v6(2, to))
            } else {
                (
                    Ipv4Addr::new(10, 1, 0, from).into(),
                    Ipv4Addr::new(10, 2, 0, to).into(),
                )
            };
            match kind {
                0 => build::echo_request(source, destination, &[1, 2, 3]),
                1 => build::tcp(
                    (source, source_port).into(),
                    (destination, destination_port).into(),
                    b"tcp",
                ),
                2 => build::ip(source, destination, 132, &[0; 12]),
                _ => build::udp(
                    (source, source_port).into(),
                    (destination, destination_port).into(),
                    b"udp",
                ),
            }
        },
    )
}

#[test]
fn the_most_specific_match_takes_the_packet() {
    if !is_root() {
        return;
    }
    let chains = Chains::new(8);
    let rules = prop::collection::vec((rule(), 0_usize..8), 0..24);
    for_all(
        200,
        &(rules, prop::collection::vec(frame(), 16)),
        |(rules, frames)| {
            let port = add_port(&chains.plane);
            let mut reference: Vec<(Match, u32)> = Vec::new();
            for (rule, chain) in rules {
                let chain = &chains.chains[chain];
                let inserted = (rule, chain.spi());
                let ties = reference
                    .iter()
                    .any(|known| known.0.ties_with(&rule) && *known != inserted);
                match port.insert(&rule, chain) {
                    Ok(()) => {
                        assert!(!ties, "{rule:?} ties");
                        if !reference.contains(&inserted) {
                            reference.push(inserted);
                        }
                    }
                    Err(Error::Classifier {
                        cause: ClassifierError::Tie,
                        ..
                    }) => {
                        assert!(ties, "{rule:?} ties with no match");
                    }
                    Err(error) => panic!("{rule:?}: {error}"),
                }
            }
            for frame in frames {
                let tuple = parse(&frame).unwrap().five_tuple(&frame);
                assert_eq!(
                    classify(&port, &frame),
                    most_specific(&reference, &tuple).copied(),
                    "{tuple}"
                );
            }
            // After removals in another order, the remaining matches decide.
            while let Some((rule, _)) =
                (!reference.is_empty()).then(|| reference.swap_remove(reference.len() / 2))
            {
                assert!(port.remove(&rule).unwrap());
                let frame = build::udp(
                    "10.1.0.1:9".parse().unwrap(),
                    "10.2.0.1:9".parse().unwrap(),
                    b"",
                );
                let tuple = parse(&frame).unwrap().five_tuple(&frame);
                assert_eq!(
                    classify(&port, &frame),
                    most_specific(&reference, &tuple).copied()
                );
            }
        },
    );
}

#[test]
fn fragments_that_pass_match_no_rule_with_a_port() {
    if !is_root() {
        return;
    }
    let chains = Chains::new(2);
    let port = add_port(&chains.plane);
    let udp = Match {
        protocol: Some(17),
        fragments: FragmentHandling::Pass,
        ..Match::default()
    };
    port.insert(
        &Match {
            destination_port: Some(9000),
            ..udp
        },
        &chains.chains[0],
    )
    .unwrap();
    port.insert(
        &Match {
            source_port: Some(0),
            ..udp
        },
        &chains.chains[0],
    )
    .unwrap();
    let segment = build::udp_segment(build::client_v4(), build::server_v4(), &[7; 64]);
    for (offset, more) in [(0, true), (3, true), (9, false)] {
        let fragment = build::ipv4_fragment(17, &segment[..48], offset, more);
        assert_eq!(classify(&port, &fragment), None);
        port.insert(&udp, &chains.chains[1]).unwrap();
        assert_eq!(classify(&port, &fragment), Some(2));
        port.remove(&udp).unwrap();
    }
}

#[test]
fn each_port_has_its_own_matches() {
    if !is_root() {
        return;
    }
    let chains = Chains::new(2);
    let ports = [add_port(&chains.plane), add_port(&chains.plane)];
    let frame = build::udp(build::client_v4(), build::server_v4(), b"");
    for (port, chain) in ports.iter().zip(&chains.chains) {
        assert_eq!(classify(port, &frame), None);
        port.insert(&Match::default(), chain).unwrap();
    }
    assert_eq!(
        ports.each_ref().map(|port| classify(port, &frame)),
        [Some(1), Some(2)]
    );
    drop(ports);
    let port = add_port(&chains.plane);
    assert_eq!(
        classify(&port, &frame),
        None,
        "a dropped port must remove its matches"
    );
}

#[test]
fn a_new_generation_takes_over_the_match_and_another_chain_is_refused() {
    if !is_root() {
        return;
    }
    let chains = Chains::new(2);
    let port = add_port(&chains.plane);
    let frame = build::udp(build::client_v4(), build::server_v4(), b"");
    let rule = Match {
        destination: Some(Prefix::new(build::server_v4().ip(), 24).unwrap()),
        ..Match::default()
    };
    port.insert(&rule, &chains.chains[0]).unwrap();
    let mut next = kernel_chain(Hook::Xdp, 1, &forwards(3));
    next.generation = 8;
    let next = chains.plane.load_chain(&next).unwrap();
    port.insert(&rule, &next).unwrap();
    let outcome = run_once(port.program(Hook::Xdp).unwrap().as_fd(), Hook::Xdp, &frame);
    assert_eq!(outcome.meta.map(|meta| meta.generation), Some(8));
    let error = port.insert(&rule, &chains.chains[1]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("interface lo: another match is equally specific"),
        "{error}"
    );
    assert_eq!(classify(&port, &frame), Some(1));
    assert!(port.remove(&rule).unwrap());
    assert!(!port.remove(&rule).unwrap());
    assert_eq!(classify(&port, &frame), None);
}

#[test]
fn a_change_of_generation_loses_no_packet() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let port = add_port(&plane);
    let rule = Match {
        protocol: Some(17),
        ..Match::default()
    };
    let generations = [0, 1].map(|generation| {
        let config = ChainConfig {
            generation,
            ..kernel_chain(Hook::Xdp, 1, &forwards(2))
        };
        plane.load_chain(&config).unwrap()
    });
    port.insert(&rule, &generations[0]).unwrap();
    let program = port.program(Hook::Xdp).unwrap();
    let frame = build::udp(build::client_v4(), build::server_v4(), b"");
    let done = AtomicBool::new(false);
    let (rounds, repeat) = (200, 1000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for chain in &generations {
                    port.insert(&rule, chain).unwrap();
                }
            }
        });
        for _ in 0..rounds {
            run(
                program.as_fd(),
                Hook::Xdp,
                &TestRun {
                    repeat,
                    ..TestRun::new(&frame)
                },
            )
            .unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let count = |slot: fn(&LoadedChain) -> u32| -> Vec<u64> {
        generations
            .iter()
            .map(|chain| plane.counters().read(slot(chain)).packets)
            .collect()
    };
    let (entered, left) = (
        count(LoadedChain::door_slot),
        count(LoadedChain::egress_slot),
    );
    assert_eq!(entered, left);
    assert_eq!(entered.iter().sum::<u64>(), rounds * u64::from(repeat));
    assert!(entered.iter().all(|&packets| packets > 0), "{entered:?}");
}

#[test]
fn one_mask_above_the_limit_is_refused() {
    if !is_root() {
        return;
    }
    let chains = Chains::new(1);
    let port = add_port(&chains.plane);
    // The least specific mask matches last, so the search visits all masks.
    let lens = (1..=32).rev().flat_map(|to| [1, 0].map(|from| (from, to)));
    let rules: Vec<Match> = lens
        .map(|(from, to)| {
            let destination = Prefix::new(Ipv4Addr::new(203, 0, 113, 255).into(), to).unwrap();
            let source =
                (from == 1).then(|| Prefix::new(Ipv4Addr::new(10, 0, 0, 1).into(), 32).unwrap());
            Match {
                source,
                destination: Some(destination),
                ..Match::default()
            }
        })
        .collect();
    assert_eq!(rules.len(), MAX_MASKS);
    for rule in &rules {
        port.insert(rule, &chains.chains[0]).unwrap();
    }
    let to = |address: [u8; 4]| build::udp(build::client_v4(), (address, 1).into(), b"");
    assert_eq!(
        classify(&port, &to([128, 0, 0, 1])),
        Some(1),
        "the search must visit the last mask"
    );
    assert_eq!(classify(&port, &to([10, 0, 0, 1])), None);
    let error = port
        .insert(
            &Match {
                protocol: Some(17),
                ..Match::default()
            },
            &chains.chains[0],
        )
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Classifier {
                cause: ClassifierError::TooManyMasks { .. },
                ..
            }
        ),
        "{error}"
    );
    // The other family has its own limit, and a removed mask frees its number.
    port.insert(
        &Match {
            source: "2001:db8::/32".parse().ok(),
            ..Match::default()
        },
        &chains.chains[0],
    )
    .unwrap();
    port.remove(&rules[9]).unwrap();
    port.insert(
        &Match {
            protocol: Some(17),
            destination: "0.0.0.0/0".parse().ok(),
            ..Match::default()
        },
        &chains.chains[0],
    )
    .unwrap();
    assert_eq!(classify(&port, &to([10, 0, 0, 1])), Some(1));
}

#[test]
fn a_failed_insertion_changes_nothing() {
    if !is_root() {
        return;
    }
    let capacity = myelin_kernel::Capacity {
        matches: 2,
        programs: 8,
        chains: 4,
        lines: 64,
        ports: 4,
        queues: 1,
    };
    let plane = Plane::create(None, capacity).unwrap();
    let chain = plane
        .load_chain(&kernel_chain(Hook::Xdp, 1, &[FunctionConfig::Forward]))
        .unwrap();
    let port = add_port(&plane);
    let to = |last| Match {
        destination: Some(Prefix::new(Ipv6Addr::from(last).into(), 128).unwrap()),
        ..Match::default()
    };
    port.insert(&to(1), &chain).unwrap();
    port.insert(&to(2), &chain).unwrap();
    // The IPv4 table has a free entry, the IPv6 table has none.
    let error = port.insert(&Match::default(), &chain).unwrap_err();
    assert!(error.to_string().contains("matches6"), "{error}");
    assert_eq!(
        classify(
            &port,
            &build::udp(build::client_v4(), build::server_v4(), b"")
        ),
        None
    );
}
