//! The clock of all time stamps: CLOCK_MONOTONIC, as `bpf_ktime_get_ns`.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    // The call fails only for unknown clocks.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}

/// A duration in nanoseconds, at most 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of the calling thread, ns.
pub fn thread_ns() -> u64 {
    // The call fails only for unknown clocks.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances_in_nanoseconds() {
        let before = now_ns();
        assert!(
            before > 1_000_000_000,
            "no machine runs tests within a second of its boot"
        );
        std::thread::sleep(Duration::from_millis(5));
        let passed = now_ns() - before;
        assert!((5_000_000..5_000_000_000).contains(&passed), "{passed}");
        assert_eq!(nanos(Duration::from_micros(3)), 3000);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }
}
