//! Idle states of the cores: the CPU latency limit of PM QoS
//! (Documentation/power/pm_qos_interface.rst).
//!
//! A core without work enters an idle state, and its wake-up takes time. That is tens of
//! microseconds on many machines. It is also so on virtual machines, where the core halts and the
//! hypervisor must schedule it again. The limit sets the longest wake-up time.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

const DEVICE: &str = "/dev/cpu_dma_latency";
const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";

/// A limit on the wake-up time of all cores. It holds while this value lives, at most as long as
/// the process. The smallest of several limits applies.
#[derive(Debug)]
pub struct CpuLatency {
    _request: File,
}

impl CpuLatency {
    /// Requests a limit, us. With 0, idle cores poll under some drivers: they wake at once, and use
    /// the power of a busy core.
    pub fn limit(limit_us: u32) -> Result<Self> {
        let action = || format!("limit the time a core takes to wake to {limit_us} us ({DEVICE})");
        let mut request = OpenOptions::new()
            .write(true)
            .open(DEVICE)
            .map_err(|error| Error::os(action(), error))?;
        let value = i32::try_from(limit_us).unwrap_or(i32::MAX);
        request
            .write_all(&value.to_ne_bytes())
            .map_err(|error| Error::os(action(), error))?;
        Ok(Self { _request: request })
    }
}

/// The driver of the cores' idle states, which applies the limit.
pub fn idle_driver() -> Result<String> {
    let text = fs::read_to_string(Path::new(CPUIDLE).join("current_driver"));
    let driver = text.as_deref().map_or("none", str::trim);
    if driver == "none" || driver.is_empty() {
        return Err(Error::new(
            "limit the time a core takes to wake",
            ErrorKind::Unsupported,
            "the kernel has no driver of idle states for this machine",
        ));
    }
    if !Path::new(DEVICE).exists() {
        return Err(Error::new(
            "limit the time a core takes to wake",
            ErrorKind::NotFound,
            format!("there is no {DEVICE}"),
        )
        .remedy("in a container, pass the device in"));
    }
    Ok(driver.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The current limit, us.
    fn current() -> i32 {
        let mut value = [0; 4];
        File::open(DEVICE).unwrap().read_exact(&mut value).unwrap();
        i32::from_ne_bytes(value)
    }

    #[test]
    fn the_smallest_limit_applies_until_it_is_released() {
        if !crate::capability::is_root() || idle_driver().is_err() {
            println!(
                "skipped the_smallest_limit_applies_until_it_is_released: needs root, idle states and {DEVICE}"
            );
            return;
        }
        // Limits above any that other programs request, so that only smaller ones of others matter.
        let before = current();
        let wide = CpuLatency::limit(1_900_000).unwrap();
        let narrow = CpuLatency::limit(1_800_000).unwrap();
        assert_eq!(current(), before.min(1_800_000));
        drop(narrow);
        assert!(current() <= 1_900_000);
        drop(wide);
    }
}
