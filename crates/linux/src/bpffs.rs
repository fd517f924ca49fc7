//! The eBPF file system. Pinned programs, maps and links outlive the process that pinned them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount as mount_at, umount2};
use nix::sys::statfs::{FsType, statfs};

use crate::error::{Error, Result};

/// `BPF_FS_MAGIC` of linux/magic.h.
const MAGIC: FsType = FsType(0xcafe_4a11);

/// Mounts a new eBPF file system, which only root can read, at `directory`. Creates the directory
/// if it is missing. Does nothing if an eBPF file system is already mounted there.
pub fn mount(directory: &Path) -> Result<()> {
    let action = || format!("mount an eBPF file system at {}", directory.display());
    fs::create_dir_all(directory).map_err(|error| Error::os(action(), error))?;
    if is_bpffs(directory) && is_mount_point(directory) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_at(
        Some("bpf"),
        directory,
        Some("bpf"),
        flags,
        Some("mode=0700"),
    )
    .map_err(|errno| match errno {
        Errno::ENODEV => Error::os(action(), errno)
            .because("this kernel has no eBPF file system")
            .remedy("use a kernel with CONFIG_BPF_SYSCALL"),
        _ => Error::os(action(), errno),
    })
}

/// Returns whether `path` is on an eBPF file system.
pub fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == MAGIC)
}

/// Unmounts the eBPF file system at `directory`, which releases all pinned objects. Then removes
/// the empty directory. A missing mount or directory is no error.
pub fn unmount(directory: &Path) -> Result<()> {
    let action = || format!("unmount the eBPF file system at {}", directory.display());
    while is_bpffs(directory) && is_mount_point(directory) {
        umount2(directory, MntFlags::MNT_DETACH).map_err(|errno| Error::os(action(), errno))?;
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::os(action(), error)),
        _ => Ok(()),
    }
}

fn is_mount_point(directory: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    match (
        device(directory),
        directory.canonicalize().as_deref().map(Path::parent),
    ) {
        (Ok(own), Ok(Some(parent))) => device(parent).is_ok_and(|other| other != own),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::root_or_skip;

    struct Mounted<'a>(&'a Path);

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = unmount(self.0);
        }
    }

    #[test]
    fn bpffs_is_mounted_once_and_removed_with_its_content() {
        if !root_or_skip("bpffs_is_mounted_once_and_removed_with_its_content") {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("run/bpf");
        let _guard = Mounted(&directory);
        mount(&directory).unwrap();
        assert!(is_bpffs(&directory) && !is_bpffs(parent.path()));
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        fs::create_dir(directory.join("chain")).unwrap();
        mount(&directory).unwrap();
        assert!(
            directory.join("chain").exists(),
            "the second mount must not hide the first mount"
        );
        unmount(&directory).unwrap();
        assert!(!directory.exists());
        unmount(&directory).unwrap();
    }

    #[test]
    fn unmount_keeps_a_directory_without_a_bpffs() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "x").unwrap();
        let error = unmount(parent.path()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&parent.path().display().to_string()),
            "{error}"
        );
        assert!(parent.path().join("file").exists());
    }
}
