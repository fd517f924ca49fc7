//! What the test programs share: a small plane, chains of kernel functions, and random cases.

#![allow(dead_code, reason = "each test program uses its part")]

use myelin_kernel::{Capacity, ChainConfig, EntrySpace, Exit, Hook, KernelSegment, Plane};
use myelin_spec::{FunctionInstance, OnFailure};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// The loopback interface: what a test run takes for the ingress, and an egress that nothing reaches.
pub(crate) const LOOPBACK: u32 = 1;

/// Whether the test may load programs; says why not.
pub(crate) fn is_root() -> bool {
    // The bpf() of someone without the right fails; asking for the user alone would miss containers.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0);
    // CAP_NET_ADMIN is 12, CAP_SYS_ADMIN 21, CAP_BPF 39.
    let can = bits >> 12 & 1 == 1 && (bits >> 21 & 1 == 1 || bits >> 39 & 1 == 1);
    if !can {
        println!("SKIP: needs root to load eBPF programs");
    }
    can
}

/// A small plane.
pub(crate) fn plane() -> Plane {
    let capacity = Capacity {
        lines: 512,
        programs: 128,
        chains: 64,
        matches: 4096,
        ports: 16,
        queues: 4,
    };
    Plane::create(None, capacity).unwrap()
}

/// A chain of kernel functions only, out at the loopback interface.
pub(crate) fn kernel_chain<T>(hook: Hook, spi: u32, functions: &[T]) -> ChainConfig
where
    T: Clone + Into<FunctionInstance>,
{
    ChainConfig {
        spi,
        generation: 7,
        hook,
        on_failure: OnFailure::Drop,
        policer: None,
        positions: functions.len() as u8,
        entry: EntrySpace::Kernel,
        segments: vec![KernelSegment {
            first_position: 0,
            functions: functions.iter().cloned().map(Into::into).collect(),
            exit: Exit::Egress {
                ifindex: LOOPBACK,
                peer: false,
            },
        }],
    }
}

/// Checks that many random cases; on a failure the shortest that still fails.
pub(crate) fn for_all<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value)) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(strategy, |value| {
        check(value);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Whether the kernel runs programs of that hook on a frame at all: it must have an Ethernet header and fit in a page,
/// and for the tc hook there must be a whole IP header behind it (shorter ones go over real links, in `live.rs`).
pub(crate) fn runs(hook: Hook, frame: &[u8]) -> bool {
    let shortest = match (hook, frame.get(12..14)) {
        (Hook::Xdp, _) => 14,
        (Hook::Tcx, Some([0x08, 0x00])) => 34,
        (Hook::Tcx, Some([0x86, 0xdd])) => 54,
        (Hook::Tcx, _) => 15,
    };
    (shortest..=3500).contains(&frame.len())
}
