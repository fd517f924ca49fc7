//! The offset between the clocks of this process and the clocks of the kernel (time_namespaces(7)).
//!
//! A time namespace shifts `CLOCK_MONOTONIC` for the processes in it. eBPF programs and kernel
//! timers use the unshifted clock.

use std::fs;

use crate::error::{Error, ErrorKind, Result};

const OFFSETS: &str = "/proc/self/timens_offsets";

/// Returns the offset of `CLOCK_MONOTONIC` for children of this process from the kernel's clock,
/// ns. The offset is positive if the process's clock is ahead, and 0 if the kernel has no time
/// namespaces.
pub fn monotonic_offset_ns() -> Result<i128> {
    match fs::read_to_string(OFFSETS) {
        Ok(text) => parse_offset(&text).ok_or_else(|| {
            Error::new(
                format!("read {OFFSETS}"),
                ErrorKind::Other,
                format!("the content `{}` is malformed", text.trim()),
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::os(format!("read {OFFSETS}"), error)),
    }
}

/// Parses the line of the monotonic clock: name (before Linux 5.7: number), seconds, nanoseconds.
fn parse_offset(text: &str) -> Option<i128> {
    let mut lines = text.lines().map(str::split_whitespace);
    let mut words = lines.find_map(|mut words| {
        let is_monotonic = matches!(words.next(), Some("monotonic" | "1"));
        is_monotonic.then_some(words)
    })?;
    let seconds: i128 = words.next()?.parse().ok()?;
    let nanoseconds: i128 = words.next()?.parse().ok()?;
    Some(seconds * 1_000_000_000 + nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_monotonic_clock_is_read() {
        let text = "monotonic           5         7\nboottime         -9         0\n";
        assert_eq!(parse_offset(text), Some(5_000_000_007));
        assert_eq!(
            parse_offset("monotonic -1000 0\nboottime 0 0\n"),
            Some(-1_000_000_000_000)
        );
        assert_eq!(parse_offset("boottime 0 0\n"), None);
        assert_eq!(parse_offset("monotonic 1\n"), None);
    }
}
