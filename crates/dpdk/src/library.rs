//! Loads the shim, if this program was built with DPDK and its libraries are installed.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::OnceLock;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::Error;
use crate::sys::Shim;

/// The shim, linked against the DPDK of the build machine.
#[cfg(has_dpdk)]
const SHIM: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/shim.so")));
#[cfg(not(has_dpdk))]
const SHIM: Option<&[u8]> = None;

/// Returns the version of DPDK that a worker of this program uses.
///
/// # Errors
/// The program was built without DPDK, or DPDK's libraries are missing. The message names the cause
/// and the remedy.
pub fn version() -> Result<String, Error> {
    load_shim().map(Shim::version)
}

/// Loads the shim at the first call.
pub(crate) fn load_shim() -> Result<&'static Shim, Error> {
    static LOADED: OnceLock<Result<&'static Shim, Error>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            let path = anonymous_copy(SHIM.ok_or_else(absent)?)?;
            Shim::load(&path).map_err(|cause| Error::Load { cause })
        })
        .clone()
}

/// Returns why this program has no shim.
fn absent() -> Error {
    Error::Absent {
        reason: option_env!("MYELIN_NO_DPDK").unwrap_or("unknown"),
    }
}

/// Copies the shim into an anonymous file that the loader can open.
fn anonymous_copy(image: &[u8]) -> Result<CString, Error> {
    let failed = |cause: String| Error::Load { cause };
    let fd = memfd_create("myelin-dpdk", MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| failed(format!("create a memory file for the shim: {errno}")))?;
    let mut file = File::from(fd);
    file.write_all(image)
        .map_err(|error| failed(format!("write the shim into memory: {error}")))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // The file stays open, because the library stays loaded.
    let _ = file.into_raw_fd();
    CString::new(path).map_err(|error| failed(error.to_string()))
}
