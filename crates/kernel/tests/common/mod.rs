//! Helpers that all test programs share: a small plane, chains of kernel functions, random cases.

#![allow(dead_code, reason = "each test program uses only some helpers")]

use myelin_kernel::{Capacity, ChainConfig, EntrySpace, Exit, Hook, KernelSegment, Plane};
use myelin_spec::{FunctionInstance, OnFailure};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// The loopback interface: the ingress of a test run, and an egress that no packet reaches.
pub(crate) const LOOPBACK: u32 = 1;

/// Returns whether the test may load programs. If not, prints the reason.
pub(crate) fn is_root() -> bool {
    // Checks the capabilities and not the user, because a container's root may lack capabilities.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0);
    // CAP_NET_ADMIN is 12, CAP_SYS_ADMIN 21, CAP_BPF 39.
    let allowed = bits >> 12 & 1 == 1 && (bits >> 21 & 1 == 1 || bits >> 39 & 1 == 1);
    if !allowed {
        println!("SKIP: needs root to load eBPF programs");
    }
    allowed
}

/// Creates a small plane.
pub(crate) fn create_plane() -> Plane {
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

/// Returns a chain of kernel functions with its egress at the loopback interface.
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
                by_stack: false,
            },
        }],
    }
}

/// Checks random cases. Reports the shortest failing case.
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

/// Returns whether the kernel accepts a frame for a test run of that hook. The frame has an
/// Ethernet header and fits into a page. The tc hook needs a whole IP header; `live.rs` tests
/// shorter frames over real links.
pub(crate) fn can_run(hook: Hook, frame: &[u8]) -> bool {
    let shortest = match (hook, frame.get(12..14)) {
        (Hook::Xdp, _) => 14,
        (Hook::Tcx, Some([0x08, 0x00])) => 34,
        (Hook::Tcx, Some([0x86, 0xdd])) => 54,
        (Hook::Tcx, _) => 15,
    };
    (shortest..=3500).contains(&frame.len())
}
