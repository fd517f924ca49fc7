//! Compares the front door's decisions on fragments with the plain reference.

use std::os::fd::AsFd;

use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{Hook, LoadedChain, Plane, Port};
use myelin_packet::fixtures::build;
use myelin_packet::fixtures::fragments::{CHAINS, Expected, fragment, scenario};
use myelin_packet::{FragmentHandling, Match};
use myelin_spec::FunctionConfig;

use crate::common::{create_plane, is_root, kernel_chain};
use crate::door_bench::{add_port, run_once};

/// A few chains of one hook.
struct Bench {
    hook: Hook,
    plane: Plane,
    chains: Vec<LoadedChain>,
}

impl Bench {
    fn new(hook: Hook) -> Self {
        let plane = create_plane();
        let load = |spi| {
            let chain = kernel_chain(hook, spi, &[FunctionConfig::Forward]);
            plane.load_chain(&chain).unwrap()
        };
        let chains = (1..=CHAINS).map(load).collect();
        Self {
            hook,
            plane,
            chains,
        }
    }

    fn door_packets(&self) -> Vec<u64> {
        let read = |chain: &LoadedChain| self.plane.counters().read(chain.door_slot()).packets;
        self.chains.iter().map(read).collect()
    }

    /// Runs the door on a frame. Returns its decision.
    fn decide(&self, port: &Port, frame: &[u8]) -> Expected {
        let (before, dropped) = (self.door_packets(), port.counters().fragments);
        let program = port.program(self.hook).unwrap();
        let outcome = run_once(program.as_fd(), self.hook, frame);
        let after = self.door_packets();
        let taken = (0..after.len()).find(|&i| after[i] > before[i]);
        let counted = port.counters().fragments;
        if let Some(taken) = taken {
            assert_eq!(outcome.verdict, self.hook.redirect());
            assert_eq!(counted, dropped);
            Expected::Taken(self.chains[taken].spi())
        } else if outcome.verdict == self.hook.drop() {
            assert_eq!(counted.packets, dropped.packets + 1);
            assert_eq!(counted.bytes, dropped.bytes + frame.len() as u64);
            Expected::Dropped
        } else {
            assert_eq!(outcome.verdict, self.hook.pass());
            assert_eq!(counted, dropped);
            Expected::Unmatched
        }
    }
}

#[test]
fn fragments_go_where_the_reference_says() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let bench = Bench::new(hook);
        let mut seen = [0; 3];
        for seed in 0..200 {
            let port = add_port(&bench.plane);
            let scenario = scenario(seed);
            for (rule, spi) in &scenario.rules {
                let chain = &bench.chains[*spi as usize - 1];
                port.insert(rule, chain).unwrap();
            }
            for (i, (frame, expected)) in scenario.frames.iter().enumerate() {
                let found = bench.decide(&port, frame);
                assert_eq!(
                    found, *expected,
                    "{hook}, seed {seed}, frame {i}: {frame:x?} {:?}",
                    scenario.rules
                );
                seen[match found {
                    Expected::Taken(_) => 0,
                    Expected::Dropped => 1,
                    Expected::Unmatched => 2,
                }] += 1;
            }
            // Without rules all fragments pass.
            for (rule, _) in &scenario.rules {
                assert!(port.remove(rule).unwrap());
            }
            for (frame, _) in &scenario.frames {
                assert_eq!(bench.decide(&port, frame), Expected::Unmatched);
            }
        }
        assert!(seen.iter().all(|&count| count > 200), "{seen:?}");
    }
}

#[test]
fn a_new_policy_replaces_the_old_one() {
    if !is_root() {
        return;
    }
    let bench = Bench::new(Hook::Xdp);
    let port = add_port(&bench.plane);
    let ends = (build::client_v4().ip(), build::server_v4().ip());
    let later = fragment(ends, 17, 7, (5, false), &[1; 24], false);
    let of = |fragments| Match {
        protocol: Some(17),
        destination_port: Some(9000),
        fragments,
        ..Match::default()
    };
    for (policy, expected) in [
        (FragmentHandling::Follow, Expected::Dropped),
        (FragmentHandling::Pass, Expected::Unmatched),
        (FragmentHandling::Drop, Expected::Dropped),
        (FragmentHandling::Follow, Expected::Dropped),
    ] {
        port.insert(&of(policy), &bench.chains[0]).unwrap();
        assert_eq!(bench.decide(&port, &later), expected, "{policy:?}");
    }
    assert!(!port.remove(&of(FragmentHandling::Drop)).unwrap());
    assert!(port.remove(&of(FragmentHandling::Follow)).unwrap());
    assert_eq!(bench.decide(&port, &later), Expected::Unmatched);
}

#[test]
fn endless_first_fragments_replace_old_ones() {
    if !is_root() {
        return;
    }
    let bench = Bench::new(Hook::Xdp);
    let port = add_port(&bench.plane);
    let rule = Match {
        destination_port: Some(9000),
        ..Match::default()
    };
    port.insert(&rule, &bench.chains[0]).unwrap();
    let whole = build::udp(build::client_v4(), build::server_v4(), &[7; 64]);
    let from = |i: u32| {
        let source = (i | 0x0b00_0000).to_be_bytes();
        (source.into(), build::server_v4().ip())
    };
    let sources = 40_000;
    for i in 0..sources {
        let first = fragment(from(i), 17, 1, (0, true), &whole[34..50], false);
        let program = port.program(Hook::Xdp).unwrap();
        let outcome = run_once(program.as_fd(), Hook::Xdp, &first);
        assert_ne!(outcome.verdict, Hook::Xdp.drop());
    }
    let later = |i| fragment(from(i), 17, 1, (2, false), &[7; 24], false);
    assert_eq!(bench.decide(&port, &later(0)), Expected::Dropped);
    let last = bench.decide(&port, &later(sources - 1));
    assert_ne!(last, Expected::Dropped);
}

/// Run it with `--ignored --nocapture` on a quiet machine.
#[test]
#[ignore = "a measurement"]
fn cost_of_fragments() {
    for hook in Hook::ALL {
        let bench = Bench::new(hook);
        let port = add_port(&bench.plane);
        let rule = Match {
            protocol: Some(17),
            destination_port: Some(build::server_v4().port()),
            ..Match::default()
        };
        port.insert(&rule, &bench.chains[0]).unwrap();
        let whole = build::udp(build::client_v4(), build::server_v4(), &[7; 64]);
        let ends = (build::client_v4().ip(), build::server_v4().ip());
        let first = fragment(ends, 17, 1, (0, true), &whole[34..], false);
        let later = fragment(ends, 17, 1, (9, false), &[7; 72], false);
        let program = port.program(hook).unwrap();
        for (name, frame) in [("whole", &whole), ("first", &first), ("later", &later)] {
            let test = TestRun {
                repeat: 1_000_000,
                ..TestRun::new(frame)
            };
            let best = (0..5)
                .map(|_| run(program.as_fd(), hook, &test).unwrap().mean_ns)
                .min();
            println!("{hook} {name}: {best:?} ns");
        }
    }
}
