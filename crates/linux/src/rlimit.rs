//! Resource limits of this process (setrlimit(2)).

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use crate::error::{Error, Result};

/// Raises the limit on locked memory as far as this process may (without limit only with CAP_SYS_RESOURCE), and says
/// where it is then, in bytes; `None`: no limit.
///
/// AF_XDP frames count against it in a process without CAP_IPC_LOCK, and so did eBPF maps before Linux 5.11.
pub fn raise_locked_memory() -> Result<Option<u64>> {
    let action = "raise the limit on locked memory";
    if setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        let (_, hard) =
            getrlimit(Resource::RLIMIT_MEMLOCK).map_err(|errno| Error::os(action, errno))?;
        setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard)
            .map_err(|errno| Error::os(action, errno))?;
    }
    locked_memory()
}

/// The limit on locked memory, bytes; `None`: no limit.
pub fn locked_memory() -> Result<Option<u64>> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK)
        .map_err(|errno| Error::os("read the limit on locked memory", errno))?;
    Ok((soft != RLIM_INFINITY).then_some(soft))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_goes_as_high_as_it_may() {
        let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
        setrlimit(Resource::RLIMIT_MEMLOCK, 1 << 16, hard).unwrap();
        assert_eq!(locked_memory().unwrap(), Some(1 << 16));
        let reached = raise_locked_memory().unwrap();
        assert_eq!(reached, locked_memory().unwrap());
        assert!(
            reached.is_none_or(|bytes| bytes >= hard),
            "{reached:?} of {hard}"
        );
    }
}
