//! How deeply the cores may sleep: the CPU latency limit of PM QoS (Documentation/power/pm_qos_interface.rst).
//!
//! A core that has nothing to do enters an idle state, and waking from it takes time: tens of microseconds on many machines, and on virtual ones,
//! where it halts and the hypervisor has to run it again. The limit says how long that may take at most.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

const DEVICE: &str = "/dev/cpu_dma_latency";
const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";

/// A limit on the time that any core takes to wake. It holds as long as this lives, and no longer than the process; of several limits the
/// smallest holds.
#[derive(Debug)]
pub struct CpuLatency {
    _request: File,
}

impl CpuLatency {
    /// Asks for a limit, us. At 0 a core without work polls for some: it wakes at once, and takes the power of a busy one.
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

/// The driver of the cores' idle states, which is who heeds the limit.
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
        .remedy("in a container, hand the device in"));
    }
    Ok(driver.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The limit that holds, us.
    fn current() -> i32 {
        let mut value = [0; 4];
        File::open(DEVICE).unwrap().read_exact(&mut value).unwrap();
        i32::from_ne_bytes(value)
    }

    #[test]
    fn the_smallest_limit_holds_until_it_is_given_back() {
        if !crate::capability::is_root() || idle_driver().is_err() {
            println!(
                "skipped the_smallest_limit_holds_until_it_is_given_back: needs root, idle states and {DEVICE}"
            );
            return;
        }
        // Limits of this test alone: above what anybody would ask for, so that others' do not matter unless they hold.
        let before = current();
        let wide = CpuLatency::limit(1_900_000).unwrap();
        let narrow = CpuLatency::limit(1_800_000).unwrap();
        assert_eq!(current(), before.min(1_800_000));
        drop(narrow);
        assert!(current() <= 1_900_000);
        drop(wide);
    }
}
