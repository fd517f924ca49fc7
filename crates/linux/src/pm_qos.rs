//! Idle states of the cores: the CPU latency limit of PM QoS
//! (Documentation/power/pm_qos_interface.rst).
//!
//! A core without work enters an idle state. The wake-up takes tens of microseconds on many
//! machines. In a virtual machine the core halts, and the hypervisor must schedule the core again.
//! The limit sets the longest wake-up time.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

const DEVICE: &str = "/dev/cpu_dma_latency";
const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";

/// A limit on the wake-up time of all cores. The drop of the value, or the end of the process,
/// removes the limit. The smallest of several limits applies.
#[derive(Debug)]
pub struct CpuLatency {
    _request: File,
}

impl CpuLatency {
    /// Requests a limit, us. With a limit of 0 and some drivers, idle cores poll. Such cores wake
    /// at once, but use the power of a busy core.
    pub fn request_limit(limit_us: u32) -> Result<Self> {
        let action = || format!("limit the wake-up time of cores to {limit_us} us ({DEVICE})");
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

/// Returns the driver of the cores' idle states, which applies the limit.
pub fn idle_driver() -> Result<String> {
    let text = fs::read_to_string(Path::new(CPUIDLE).join("current_driver"));
    let driver = text.as_deref().map_or("none", str::trim);
    if driver == "none" || driver.is_empty() {
        return Err(Error::new(
            "limit the wake-up time of cores",
            ErrorKind::Unsupported,
            "the kernel has no driver of idle states for this machine",
        ));
    }
    if !Path::new(DEVICE).exists() {
        return Err(Error::new(
            "limit the wake-up time of cores",
            ErrorKind::NotFound,
            format!("{DEVICE} does not exist"),
        )
        .remedy("in a container, add the device (`--device`)"));
    }
    Ok(driver.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Returns the current limit, us.
    fn read_limit() -> i32 {
        let mut value = [0; 4];
        File::open(DEVICE).unwrap().read_exact(&mut value).unwrap();
        i32::from_ne_bytes(value)
    }

    #[test]
    fn the_smallest_limit_applies_until_it_is_released() {
        if !crate::capability::is_root() {
            println!("skipped the_smallest_limit_applies_until_it_is_released: needs root");
            return;
        }
        if let Err(error) = idle_driver() {
            println!("skipped the_smallest_limit_applies_until_it_is_released: {error}");
            return;
        }
        // Other programs request smaller limits than the limits of this test.
        let before = read_limit();
        let wide = CpuLatency::request_limit(1_900_000).unwrap();
        let narrow = CpuLatency::request_limit(1_800_000).unwrap();
        assert_eq!(read_limit(), before.min(1_800_000));
        drop(narrow);
        assert!(read_limit() <= 1_900_000);
        drop(wide);
    }
}
