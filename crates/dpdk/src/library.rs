//! Finding DPDK: whether this program was built with it, and whether it can be loaded here.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::OnceLock;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::Error;
use crate::sys::Functions;

/// The shim, linked against the DPDK that was there when this was built.
#[cfg(has_dpdk)]
const SHIM: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/shim.so")));
#[cfg(not(has_dpdk))]
const SHIM: Option<&[u8]> = None;

/// Which DPDK a worker of this program would use.
///
/// # Errors
/// The program was built without it, or its libraries are not here: the message says which, and what to do.
pub fn version() -> Result<String, Error> {
    functions().map(Functions::version)
}

/// Loaded when it is first asked for.
pub(crate) fn functions() -> Result<&'static Functions, Error> {
    static LOADED: OnceLock<Result<&'static Functions, Error>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            let path = anonymous_copy(SHIM.ok_or_else(absent)?)?;
            Functions::load(&path).map_err(|cause| Error::Load { cause })
        })
        .clone()
}

/// Why there is no shim.
fn absent() -> Error {
    Error::Absent {
        reason: option_env!("MYELIN_NO_DPDK").unwrap_or("unknown"),
    }
}

/// The image as a file that the loader can open, in memory.
fn anonymous_copy(image: &[u8]) -> Result<CString, Error> {
    let failed = |cause: String| Error::Load { cause };
    let fd = memfd_create("myelin-dpdk", MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| failed(format!("memory for the shim: {errno}")))?;
    let mut file = File::from(fd);
    file.write_all(image)
        .map_err(|error| failed(format!("memory for the shim: {error}")))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Stays open, like the library.
    let _ = file.into_raw_fd();
    CString::new(path).map_err(|error| failed(error.to_string()))
}
