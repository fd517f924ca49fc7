//! The clock of all time stamps: CLOCK_MONOTONIC, as `bpf_ktime_get_ns`.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Reads CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    // The call fails only for an unknown clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}

/// Converts a duration to nanoseconds. Limits the duration to 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads the CPU time of the calling thread, ns.
pub fn thread_ns() -> u64 {
    // The call fails only for an unknown clock.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances_in_nanoseconds() {
        let started = std::time::Instant::now();
        let before = now_ns();
        assert!(
            before > 1_000_000_000,
            "the clock counts nanoseconds since boot"
        );
        std::thread::sleep(Duration::from_millis(5));
        let passed = now_ns() - before;
        // `Instant` reads the same clock, before and after.
        let at_most = nanos(started.elapsed());
        assert!((5_000_000..=at_most).contains(&passed), "{passed}");
        assert_eq!(nanos(Duration::from_micros(3)), 3000);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }
}
