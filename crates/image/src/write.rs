//! Writes entries below the root directory. The kernel resolves each path in the root
//! (`RESOLVE_IN_ROOT`), so a symbolic link of a lower layer cannot lead out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod,
    fchown, futimens, linkat, mkdirat, openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::entry::{Components, Kind};
use crate::{Error, Result, refused};

/// Rights that remain: no change of the user, no locking.
const RIGHTS: u32 = 0o1777;
/// Rights of a directory that no entry describes.
const DIRECTORY: Mode = Mode::from_raw_mode(0o755);

pub(crate) struct Writer<'a> {
    root: &'a File,
    /// Whether this process may give files to other users.
    gives_files: bool,
}

/// Names the entry in errors.
fn describe(path: &Components) -> String {
    path.iter().collect::<PathBuf>().display().to_string()
}

fn failed(path: &Components) -> impl Fn(Errno) -> Error + '_ {
    move |errno| Error::System {
        action: format!("write {}", describe(path)),
        source: errno.into(),
    }
}

impl<'a> Writer<'a> {
    pub(crate) fn new(root: &'a File) -> Self {
        Self {
            root,
            gives_files: rustix::process::geteuid().is_root(),
        }
    }

    /// Makes what an entry describes.
    pub(crate) fn write<R: Read>(
        &self,
        path: &Components,
        kind: Kind,
        entry: &mut tar::Entry<'_, R>,
    ) -> Result<()> {
        let in_directory = kind.hides();
        let (parents, name) = match path.split_last() {
            Some((name, parents)) if !in_directory => (parents, name.as_os_str()),
            _ => (&path[..], OsStr::new("")),
        };
        if kind == Kind::Nothing {
            return Ok(());
        }
        let failed = failed(path);
        let parent = self.directory(parents, path)?;
        match kind {
            Kind::Nothing => {}
            Kind::Whiteout(removed) => remove(&parent, &removed).map_err(failed)?,
            Kind::Opaque => empty(&parent).map_err(failed)?,
            Kind::Directory => {
                if !is_directory(&parent, name) {
                    remove(&parent, name).map_err(&failed)?;
                    mkdirat(&parent, name, DIRECTORY).map_err(&failed)?;
                }
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = openat(&parent, name, flags, Mode::empty()).map_err(&failed)?;
                self.describe_file(&made, entry).map_err(failed)?;
            }
            Kind::Symlink(target) => {
                remove(&parent, name).map_err(&failed)?;
                symlinkat(&target, &parent, name).map_err(&failed)?;
                let (uid, gid) = owner_of(entry);
                if self.gives_files {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    chownat(&parent, name, Some(uid), Some(gid), flags).map_err(failed)?;
                }
            }
            Kind::Link(target) => self.link(&target, (&parent, name), path)?,
            Kind::File => {
                remove(&parent, name).map_err(&failed)?;
                let flags = OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::WRONLY
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let made = openat(&parent, name, flags, Mode::from_raw_mode(0o600));
                let mut file = File::from(made.map_err(&failed)?);
                let size = entry.size();
                let copied = io::copy(entry, &mut file);
                let copied = copied.map_err(crate::system(format!("write {}", describe(path))))?;
                if copied != size {
                    return Err(refused(
                        describe(path),
                        "the layer ends in the middle of the file",
                    ));
                }
                self.describe_file(&file.into(), entry).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Opens the directory of an entry, and makes those that are missing.
    fn directory(&self, parents: &[std::ffi::OsString], path: &Components) -> Result<OwnedFd> {
        let failed = failed(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = |path: &Path| {
            let path = if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            };
            openat2(self.root, path, flags, Mode::empty(), resolve)
        };
        let whole: PathBuf = parents.iter().collect();
        match open(&whole) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(failed),
        }
        let mut open_path = PathBuf::new();
        let mut directory = open(&open_path).map_err(&failed)?;
        for name in parents {
            open_path.push(name);
            directory = match open(&open_path) {
                Err(Errno::NOENT) => {
                    match mkdirat(&directory, name.as_os_str(), DIRECTORY) {
                        Err(Errno::EXIST) => {
                            return Err(refused(
                                describe(path),
                                "a link in its path leads nowhere",
                            ));
                        }
                        made => made.map_err(&failed)?,
                    }
                    open(&open_path).map_err(&failed)?
                }
                other => other.map_err(&failed)?,
            };
        }
        Ok(directory)
    }

    /// Gives a file another name.
    fn link(
        &self,
        target: &Components,
        (parent, name): (&OwnedFd, &OsStr),
        path: &Components,
    ) -> Result<()> {
        let Some((old_name, old_parents)) = target.split_last() else {
            return Err(refused(describe(path), "the link leads to the root itself"));
        };
        let missing = || {
            refused(
                describe(path),
                format!(
                    "the link leads to {}, which does not exist before it",
                    describe(target)
                ),
            )
        };
        let old_parent = self.directory(old_parents, path)?;
        let found = statat(&old_parent, old_name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
        let found = found.map_err(|_| missing())?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(refused(describe(path), "the link leads to a directory"));
        }
        // A link to itself would remove the file.
        let existing = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        if existing.is_ok_and(|file| (file.st_dev, file.st_ino) == (found.st_dev, found.st_ino)) {
            return Ok(());
        }
        remove(parent, name).map_err(failed(path))?;
        let linked = linkat(
            &old_parent,
            old_name.as_os_str(),
            parent,
            name,
            AtFlags::empty(),
        );
        // The removal above may have removed the target.
        linked.map_err(|errno| {
            if errno == Errno::NOENT {
                missing()
            } else {
                failed(path)(errno)
            }
        })
    }

    /// Sets owner, rights and time of a file or directory.
    fn describe_file<R: Read>(
        &self,
        file: &OwnedFd,
        entry: &tar::Entry<'_, R>,
    ) -> rustix::io::Result<()> {
        let header = entry.header();
        if self.gives_files {
            let (uid, gid) = owner_of(entry);
            fchown(file, Some(uid), Some(gid))?;
        }
        let mode = header.mode().unwrap_or(0o755) & RIGHTS;
        fchmod(file, Mode::from_raw_mode(mode))?;
        let time = Timespec {
            tv_sec: i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0),
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        // The time is only a help for caches of programs.
        let _ = futimens(file, &times);
        Ok(())
    }
}

/// The owner that an entry names. Numbers that Linux does not have become root's.
fn owner_of<R: Read>(entry: &tar::Entry<'_, R>) -> (Uid, Gid) {
    let number = |found: io::Result<u64>| {
        let number = found.ok().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| *number != u32::MAX).unwrap_or(0)
    };
    let header = entry.header();
    (
        Uid::from_raw(number(header.uid())),
        Gid::from_raw(number(header.gid())),
    )
}

fn is_directory(parent: &OwnedFd, name: &OsStr) -> bool {
    let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Removes a name of an earlier entry, with its contents. A missing name is no error.
fn remove(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    if is_directory(parent, name) {
        let path = Path::new("/proc/self/fd")
            .join(parent.as_raw_fd().to_string())
            .join(name);
        let removed = std::fs::remove_dir_all(path);
        return removed.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    match unlinkat(parent.as_fd(), name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes all names of a directory.
fn empty(directory: &OwnedFd) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = openat(directory, ".", flags, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(&readable)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() != b"." && name.to_bytes() != b".." {
            use std::os::unix::ffi::OsStrExt;
            remove(directory, OsStr::from_bytes(name.to_bytes()))?;
        }
    }
    Ok(())
}
