//! Passes descriptors to a program that this process starts.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::close;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::error::{Error, Result};

/// Passes `fds` to the program. They have the same numbers there, which the caller tells the
/// program; [`take`] makes a descriptor of such a number.
pub fn pass(command: &mut Command, fds: Vec<OwnedFd>) {
    let keep = move || -> io::Result<()> {
        for fd in &fds {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: the closure only changes flags of its own descriptors. It neither allocates nor takes
    // a lock, so it may run between fork and exec of a process with several threads.
    unsafe { command.pre_exec(keep) };
}

/// Takes the descriptor with this number, which the parent passed.
///
/// # Errors
/// No descriptor has this number.
pub fn take(number: RawFd) -> Result<OwnedFd> {
    let failed = |errno: rustix::io::Errno| {
        Error::os(format!("take the inherited descriptor {number}"), errno)
    };
    // A copy of the descriptor has an owner, which a bare number has not.
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed)?;
    let taken = pidfd_getfd(own, number, PidfdGetfdFlags::empty()).map_err(failed)?;
    // A child of this process must not inherit the original.
    let _ = close(number);
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_program_gets_the_descriptor_under_its_number() {
        let mut file = tempfile::tempfile().unwrap();
        let copy = OwnedFd::from(file.try_clone().unwrap());
        let number = copy.as_raw_fd();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo written >&{number}")]);
        pass(&mut command, vec![copy]);
        assert!(command.status().unwrap().success());
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "written\n");
    }

    #[test]
    fn take_owns_a_copy_and_closes_the_number() {
        let file = tempfile::tempfile().unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(file);
        let taken = take(number).unwrap();
        assert_ne!(taken.as_raw_fd(), number);
        File::from(taken).write_all(b"x").unwrap();
        let error = take(1 << 20).unwrap_err().to_string();
        assert!(error.contains("descriptor 1048576"), "{error}");
    }
}
