//! Limits of the calling process (getrlimit(2)).

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::error::{Error, Result};

/// Raises the limit of open files to the most that the process may have. Shells start programs with
/// a low limit for the sake of `select(2)`. Returns the new limit.
pub fn raise_open_files() -> Result<u64> {
    let action = "raise the limit of open files";
    let failed = |errno| Error::os(action, errno);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).map_err(failed)?;
    Ok(most)
}

/// Makes a write above the limit of file sizes fail with `EFBIG`. By default the signal `SIGXFSZ`
/// ends the process.
pub fn ignore_file_size_signal() -> Result<()> {
    // SAFETY: to ignore a signal runs no handler.
    let before = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    before.map_err(|errno| Error::os("ignore the signal SIGXFSZ", errno))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_becomes_the_hard_limit() {
        let most = raise_open_files().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE), Ok((most, most)));
    }
}
