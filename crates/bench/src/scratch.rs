//! A directory in memory for the files and sockets of daemons that an experiment starts.
//!
//! Its file system is not mounted at a path. The kernel removes it with the last descriptor, even
//! if the process is killed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use crate::Error;

/// A directory that only root can reach.
#[derive(Debug)]
pub(crate) struct ScratchDirectory {
    mount: OwnedFd,
}

impl ScratchDirectory {
    pub(crate) fn new() -> Result<Self, Error> {
        let make = || {
            let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_set_string(&tmpfs, "mode", "0700")?;
            fsconfig_create(&tmpfs)?;
            let harmless = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, harmless)
        };
        let mount = make().map_err(|errno: rustix::io::Errno| {
            Error::system("make a directory in memory", errno.into())
        })?;
        Ok(Self { mount })
    }

    /// Its path, for this process and its children, while this value exists.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.mount.as_raw_fd()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn files_and_sockets_exist_until_the_drop() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: a file system needs root");
            return;
        }
        let scratch = ScratchDirectory::new().unwrap();
        let path = scratch.path();
        std::fs::write(path.join("file"), "text").unwrap();
        let _listener = UnixListener::bind(path.join("socket")).unwrap();
        UnixStream::connect(path.join("socket")).unwrap();
        let listed = std::process::Command::new("ls")
            .arg(format!("{}/", path.display()))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), "file\nsocket\n");
        drop(scratch);
        assert!(!path.join("file").exists());
    }
}
