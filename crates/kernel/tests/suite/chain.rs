//! Tests chains of kernel functions: order, counters, sojourn, missing parts.

use std::os::fd::AsFd;

use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{
    Capacity, ChainConfig, EntrySpace, Exit, Hook, KernelSegment, MAX_FUNCTIONS, Plane,
};
use myelin_packet::fixtures::{self, build};
use myelin_packet::rules::{Action, Rule};
use myelin_packet::{Match, Meta, parse, sojourn};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig, OnFailure, XorConfig};

use crate::common::{LOOPBACK, create_plane, is_root, kernel_chain};
use crate::door_bench::{DoorBench, add_port, forwards, run_once};

pub(crate) fn frame() -> Vec<u8> {
    fixtures::named("udp-v4").frame
}

#[test]
fn the_longest_chain_runs_its_functions_in_order() {
    if !is_root() {
        return;
    }
    // The keys cancel out only if each function runs exactly once.
    let keys = (1..MAX_FUNCTIONS).chain([(1..MAX_FUNCTIONS).fold(0, |all, key| all ^ key)]);
    let functions: Vec<_> = keys
        .map(|key| FunctionConfig::Xor(XorConfig { key }))
        .collect();
    for hook in Hook::ALL {
        let bench = DoorBench::new(hook, &functions);
        let outcome = bench.run(&frame());
        assert_eq!((outcome.verdict, outcome.frame), (hook.redirect(), frame()));
        assert_eq!(bench.packets(), [1; MAX_FUNCTIONS as usize + 2]);
    }
}

#[test]
fn each_hop_counts_the_packets_that_reach_it() {
    if !is_root() {
        return;
    }
    let deny = FunctionConfig::Firewall(FirewallConfig {
        rules: vec![Rule {
            source: Some(build::client_v6().ip().into()),
            ..Rule::any(Action::Deny)
        }],
        default: Action::Allow,
        fragments: FragmentPolicy::Drop,
    });
    let denied = fixtures::named("vlan-tcp-v6").frame;
    for hook in Hook::ALL {
        let bench = DoorBench::new(
            hook,
            &[
                FunctionConfig::Forward,
                deny.clone(),
                FunctionConfig::Forward,
            ],
        );
        for frame in [&frame(), &frame(), &denied] {
            bench.run(frame);
        }
        assert_eq!(bench.packets(), [3, 3, 3, 2, 2]);
        let read = |slot| bench.plane.counters().read(slot);
        let firewall = read(bench.chain.counter_slot(1).unwrap());
        assert_eq!(
            (firewall.drops, firewall.bytes),
            (1, (2 * frame().len() + denied.len()) as u64)
        );
        let (door, egress) = (
            read(bench.chain.door_slot()),
            read(bench.chain.egress_slot()),
        );
        assert!(
            0 < door.last_ns && door.last_ns > egress.last_ns,
            "the dropped packet must change the time of the front door only"
        );
        assert_eq!(bench.chain.counter_slot(3), None);
    }
}

#[test]
fn the_sojourn_of_every_packet_is_recorded() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let bench = DoorBench::new(hook, &[FunctionConfig::Forward]);
        assert!(bench.chain.sojourn().is_empty());
        let repeat = 500;
        bench.run_with(&TestRun {
            repeat,
            ..TestRun::new(&frame())
        });
        let sojourn = bench.chain.sojourn();
        assert_eq!(sojourn.count(), u64::from(repeat));
        let (min, max) = (sojourn.min_ns().unwrap(), sojourn.max_ns().unwrap());
        assert!(
            0 < min && min <= max && max < 1_000_000_000,
            "sojourns of {min} to {max} ns"
        );
        let mean = sojourn.mean_ns().unwrap();
        assert!(min as f64 <= mean && mean <= max as f64, "mean {mean} ns");
    }
}

/// Runs a function without the front door, so the test can choose the stamp and thus the bucket.
#[test]
fn sojourn_buckets_match_the_buckets_in_user_space() {
    if !is_root() {
        return;
    }
    for hook in Hook::ALL {
        let bench = DoorBench::new(hook, &[FunctionConfig::Forward]);
        let mut before = bench.chain.sojourn();
        let headers = parse(&frame()).unwrap();
        for shift in 8..40 {
            let duration = 3_u64 << shift;
            let previous = bench
                .plane
                .counters()
                .read(bench.chain.egress_slot())
                .last_ns;
            let stamp_ns = clock_ns().wrapping_sub(duration);
            let meta = Some(Meta::new(stamp_ns, 1, 0, 0, &headers));
            run(
                bench.chain.program(0).unwrap(),
                hook,
                &TestRun {
                    meta,
                    ..TestRun::new(&frame())
                },
            )
            .unwrap();
            let left = bench
                .plane
                .counters()
                .read(bench.chain.egress_slot())
                .last_ns;
            assert!(left > previous);
            let after = bench.chain.sojourn();
            let exact = left.wrapping_sub(stamp_ns);
            let grown: Vec<usize> = (0..sojourn::BUCKETS)
                .filter(|&i| after.counts()[i] > before.counts()[i])
                .collect();
            assert_eq!(grown, [sojourn::index(exact)], "{hook}: {exact} ns");
            assert_eq!(after.sum_ns() - before.sum_ns(), exact);
            assert_eq!(after.max_ns(), before.max_ns().max(Some(exact)));
            before = after;
        }
    }
}

pub(crate) fn clock_ns() -> u64 {
    // CLOCK_MONOTONIC is the clock of the stamp. /proc/uptime has only two decimals.
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[test]
fn a_function_times_a_sample_of_packets() {
    if !is_root() {
        return;
    }
    let bench = DoorBench::new(Hook::Xdp, &[FunctionConfig::Xor(XorConfig { key: 1 })]);
    let repeat = 5000;
    bench.run_with(&TestRun {
        repeat,
        ..TestRun::new(&frame())
    });
    let counters = bench
        .plane
        .counters()
        .read(bench.chain.counter_slot(0).unwrap());
    // The scheduler may move a run to another CPU, whose count starts at zero.
    assert!((1..=4).contains(&counters.samples), "{counters:?}");
    assert!(
        counters.sampled_ns > 0 && counters.sampled_ns < 1_000_000,
        "{counters:?}"
    );
}

#[test]
fn every_hop_counts_the_segments_of_a_gso_packet() {
    if !is_root() {
        return;
    }
    let frame = build::tcp_v4(1000);
    for (function, verdict, packets) in [
        (FunctionConfig::Forward, Hook::Tcx.redirect(), [4, 4, 4]),
        // `xor` needs the payload of each segment.
        (
            FunctionConfig::Xor(XorConfig { key: 1 }),
            Hook::Tcx.drop(),
            [4, 4, 0],
        ),
    ] {
        let bench = DoorBench::new(Hook::Tcx, &[function]);
        let outcome = bench.run_with(&TestRun {
            gso_segs: 4,
            gso_size: 250,
            ..TestRun::new(&frame)
        });
        assert_eq!((outcome.verdict, &outcome.frame), (verdict, &frame));
        assert_eq!(bench.packets(), packets);
        assert_eq!(bench.chain.sojourn().count(), packets[2]);
    }
}

/// Returns a chain of a kernel function, a user-space function and a kernel function.
pub(crate) fn kernel_user_kernel(
    on_failure: OnFailure,
    sockets: myelin_kernel::Sockets,
) -> ChainConfig {
    let segment = |first_position, exit| KernelSegment {
        first_position,
        functions: vec![FunctionConfig::Forward.into()],
        exit,
    };
    ChainConfig {
        on_failure,
        policer: None,
        positions: 3,
        segments: vec![
            segment(0, Exit::User { sockets }),
            segment(
                2,
                Exit::Egress {
                    ifindex: LOOPBACK,
                    peer: false,
                    by_stack: false,
                },
            ),
        ],
        ..kernel_chain(Hook::Xdp, 9, &forwards(0))
    }
}

#[test]
fn on_failure_applies_without_a_socket() {
    if !is_root() {
        return;
    }
    for (on_failure, verdict) in [
        (OnFailure::Drop, Hook::Xdp.drop()),
        (OnFailure::Pass, Hook::Xdp.pass()),
    ] {
        let plane = create_plane();
        let port = add_port(&plane);
        let program = port.program(Hook::Xdp).unwrap();
        let user = ChainConfig {
            on_failure,
            policer: None,
            entry: EntrySpace::User,
            segments: vec![],
            ..kernel_chain(Hook::Xdp, 9, &[FunctionConfig::Forward])
        };
        let back = kernel_user_kernel(on_failure, port.sockets());
        // The hop before user space counts the failed redirect. The metadata contains the position
        // of the next function.
        for (config, next) in [(back, 1), (user, 0)] {
            let chain = plane.load_chain(&config).unwrap();
            port.insert(&Match::default(), &chain).unwrap();
            let outcome = run_once(program.as_fd(), Hook::Xdp, &frame());
            assert_eq!((outcome.verdict, outcome.frame), (verdict, frame()));
            let meta = outcome
                .meta
                .expect("the packet must have metadata for the worker");
            assert_eq!((meta.spi, meta.generation, meta.position), (9, 7, next));
            assert!(chain.sojourn().is_empty());
            let last = if next == 0 {
                chain.door_slot()
            } else {
                chain.counter_slot(next - 1).unwrap()
            };
            let drops = u64::from(on_failure == OnFailure::Drop);
            assert_eq!(plane.counters().read(last).drops, drops);
        }
        // The XDP door passes the packet to the tc door, which applies `onFailure`.
        let tc = run_once(
            port.program(Hook::Tcx).unwrap().as_fd(),
            Hook::Tcx,
            &frame(),
        );
        let expected = if on_failure == OnFailure::Pass {
            Hook::Tcx.pass()
        } else {
            Hook::Tcx.drop()
        };
        assert_eq!(tc.verdict, expected);
    }
}

#[test]
fn a_removed_chain_applies_on_failure_and_frees_its_slots() {
    let capacity = Capacity {
        lines: 64,
        programs: 8,
        chains: 4,
        matches: 16,
        ports: 1,
        queues: 1,
    };
    reload_chains(|| Plane::create(None, capacity).unwrap(), 16);
}

#[test]
#[ignore = "thorough: loads 800 chains"]
fn a_removed_chain_of_a_large_plane_applies_on_failure_and_frees_its_slots() {
    reload_chains(create_plane, 200);
}

fn reload_chains(create_plane: impl Fn() -> Plane, generations: u16) {
    if !is_root() {
        return;
    }
    let functions = [
        FunctionConfig::Forward,
        FunctionConfig::Xor(XorConfig { key: 7 }),
    ];
    for hook in Hook::ALL {
        for (on_failure, verdict) in [
            (OnFailure::Drop, hook.drop()),
            (OnFailure::Pass, hook.pass()),
        ] {
            let plane = create_plane();
            let port = add_port(&plane);
            let door = port.program(hook).unwrap();
            let config = ChainConfig {
                on_failure,
                policer: None,
                ..kernel_chain(hook, 1, &functions)
            };
            let chain = plane.load_chain(&config).unwrap();
            port.insert(&Match::default(), &chain).unwrap();
            drop(chain);
            let outcome = run_once(door.as_fd(), hook, &frame());
            assert_eq!(
                (outcome.verdict, outcome.frame),
                (verdict, frame()),
                "{hook}: {on_failure}"
            );
            // Load many more chains in sequence than the plane can hold at the same time.
            for generation in 1..generations {
                let chain = plane
                    .load_chain(&ChainConfig {
                        generation,
                        ..config.clone()
                    })
                    .unwrap();
                port.insert(&Match::default(), &chain).unwrap();
                assert_eq!(
                    run_once(door.as_fd(), hook, &frame()).verdict,
                    hook.redirect()
                );
                assert_eq!(
                    plane.counters().read(chain.door_slot()).packets,
                    1,
                    "the counters must start at zero"
                );
            }
        }
    }
}
