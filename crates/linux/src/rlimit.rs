//! Resource limits of this process (setrlimit(2)).

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::error::{Error, Result};

/// The limit on locked memory, bytes; `None`: no limit.
///
/// AF_XDP frames count against it in a process without CAP_IPC_LOCK, and so did eBPF maps before Linux 5.11.
pub fn locked_memory() -> Result<Option<u64>> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK)
        .map_err(|errno| Error::os("read the limit on locked memory", errno))?;
    Ok((soft != RLIM_INFINITY).then_some(soft))
}
