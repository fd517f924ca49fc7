//! The clock of the stamps: CLOCK_MONOTONIC, which `bpf_ktime_get_ns` reads too.

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, ns; read through the vDSO, without a system call.
#[inline]
pub fn monotonic_ns() -> u64 {
    // It cannot fail for this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
