//! Reads CLOCK_MONOTONIC, the clock of the stamps, like `bpf_ktime_get_ns`.

use nix::time::{ClockId, clock_gettime};

/// Returns CLOCK_MONOTONIC, ns. The vDSO answers without a system call.
#[inline]
pub fn monotonic_ns() -> u64 {
    // `clock_gettime` cannot fail for this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
