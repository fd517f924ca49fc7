//! Named network namespaces, compatible with `ip netns`.
//!
//! A name is a bind mount of the namespace's `nsfs` file under `/run/netns`, as in iproute2. So
//! `ip netns list`, `ip netns exec` and `ip -n` work with namespaces of this module. This module
//! also works with namespaces of `ip netns`.
//!
//! A namespace can have an *owner*, a word that this module records before the name appears. The
//! owner is the content of the name's file, and the alias of the loopback link (`ip -n NAME link
//! show lo`). So a clean-up after a crash at any time never removes another program's namespace
//! with the same name.

mod many;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::linkat;

use crate::error::{Error, ErrorKind, Result};
use crate::link;
use crate::netlink::Netlink;

pub use many::create_many;

/// Directory of the names of network namespaces (iproute2's `NETNS_RUN_DIR`).
pub const DIRECTORY: &str = "/run/netns";

/// `NSFS_MAGIC` of linux/magic.h: the file system of namespace files.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);
/// The network namespace of the calling thread. (`/proc/self` shows the main thread's namespace.)
const THREAD_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// An open network namespace. A namespace exists as long as one of these exists: a handle, a
/// process in the namespace, or the namespace's name.
#[derive(Debug)]
pub struct Netns {
    name: Option<String>,
    fd: OwnedFd,
}

impl Netns {
    /// Creates the namespace `name`. Its loopback link is down.
    pub fn create(name: &str) -> Result<Self> {
        Self::create_for(name, None)
    }

    /// Creates the namespace `name` for `owner` (see [`owner`]).
    pub fn create_owned(name: &str, owner: &str) -> Result<Self> {
        Self::create_for(name, Some(owner))
    }

    fn create_for(name: &str, owner: Option<&str>) -> Result<Self> {
        let action = || format!("create network namespace `{name}`");
        let path = path_of(name)?;
        prepare_directory()?;
        let created = run_on_new_thread(&action(), || {
            reserve(name, &path, owner.unwrap_or_default())?;
            fill_name(name, &path, owner)
        });
        created.map(|fd| Self {
            name: Some(name.to_owned()),
            fd,
        })
    }

    /// Opens the namespace `name` of any owner.
    pub fn open(name: &str) -> Result<Self> {
        let action = || format!("open network namespace `{name}`");
        let file = File::open(path_of(name)?).map_err(|error| {
            let missing = error.kind() == io::ErrorKind::NotFound;
            let error = Error::os(action(), error);
            if missing {
                error.remedy("`ip netns list` lists all namespaces")
            } else {
                error
            }
        })?;
        if !is_namespace(&file) {
            return Err(Error::new(
                action(),
                ErrorKind::Invalid,
                "the file of this name is not a namespace, because the creation was interrupted",
            )
            .remedy(format!("remove the name with `ip netns delete {name}`")));
        }
        Ok(Self {
            name: Some(name.to_owned()),
            fd: file.into(),
        })
    }

    /// Opens the namespace of the calling thread.
    pub fn current() -> Result<Self> {
        let file = File::open(THREAD_NAMESPACE)
            .map_err(|error| Error::os("open this thread's network namespace", error))?;
        Ok(Self {
            name: None,
            fd: file.into(),
        })
    }

    /// Creates a namespace without a name. The namespace ends with its last handle, even after
    /// `kill -9`.
    pub fn anonymous() -> Result<Self> {
        let action = "create an unnamed network namespace";
        let fd = run_on_new_thread(action, || unshare_namespace(action))?;
        Ok(Self { name: None, fd })
    }

    /// Makes another handle for the same namespace.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self
            .fd
            .try_clone()
            .map_err(|error| Error::os(format!("copy the handle of {}", self.describe()), error))?;
        Ok(Self {
            name: self.name.clone(),
            fd,
        })
    }

    /// Returns the name under `/run/netns`; `None` for [`Netns::current`] and [`Netns::anonymous`].
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Runs `f` inside this namespace on a new thread. The calling thread stays in its namespace. A
    /// panic in `f` continues in the caller.
    pub fn enter<T, F>(&self, f: F) -> Result<T>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let action = format!("enter {}", self.describe());
        run_on_new_thread(&action, || {
            setns(&self.fd, CloneFlags::CLONE_NEWNET).map_err(|errno| Error::os(&action, errno))?;
            Ok(f())
        })
    }

    /// Returns the name for error texts and log lines.
    pub(crate) fn describe(&self) -> String {
        self.name.as_ref().map_or_else(
            || "a network namespace".to_owned(),
            |name| format!("network namespace `{name}`"),
        )
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Finds the namespace with this cookie ([`Netlink::namespace_cookie`]) among the named namespaces
/// and the namespace of process 1.
pub(crate) fn find_by_cookie(cookie: u64) -> Option<Netns> {
    let names = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let named = names.filter_map(|entry| Netns::open(&entry.file_name().to_string_lossy()).ok());
    let first = File::open("/proc/1/ns/net").map(|file| Netns {
        name: None,
        fd: file.into(),
    });
    let mut candidates = named.chain(first.ok());
    candidates.find(|candidate| {
        let found = Netlink::open_in(candidate).and_then(|netlink| netlink.namespace_cookie());
        found.is_ok_and(|found| found == cookie)
    })
}

/// Removes the name. The kernel removes the namespace and its links after the namespace's last
/// process and handle.
pub fn delete(name: &str) -> Result<()> {
    remove_name(&path_of(name)?)
        .map_err(|error| Error::os(format!("delete network namespace `{name}`"), error))
}

/// Returns the owner that [`Netns::create_owned`] recorded, even if that creation was interrupted.
/// Returns `None` for a namespace of another program.
pub fn owner(name: &str) -> Result<Option<String>> {
    let action = || format!("read the owner of network namespace `{name}`");
    let path = path_of(name)?;
    let file = File::open(&path).map_err(|error| Error::os(action(), error))?;
    if !is_namespace(&file) {
        let text = fs::read_to_string(&path).map_err(|error| Error::os(action(), error))?;
        return Ok(Some(text).filter(|text| !text.is_empty()));
    }
    let namespace = Netns {
        name: Some(name.to_owned()),
        fd: file.into(),
    };
    let loopback = Netlink::open_in(&namespace)?.link("lo")?;
    Ok(loopback.alias)
}

/// Removes the name if the namespace's owner is `expected`. Returns whether the name was removed. A
/// missing name is no error.
pub fn delete_owned(name: &str, expected: &str) -> Result<bool> {
    match owner(name) {
        Ok(Some(found)) if found == expected => delete(name).map(|()| true),
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn path_of(name: &str) -> Result<PathBuf> {
    let reason = if name.is_empty() {
        "the name is empty"
    } else if name == "." || name == ".." || name.contains(['/', '\0']) {
        "the name is not a valid file name"
    } else if name.len() > 255 {
        "the name is longer than 255 bytes"
    } else {
        return Ok(Path::new(DIRECTORY).join(name));
    };
    Err(Error::new(
        format!("use `{name}` as the name of a network namespace"),
        ErrorKind::Invalid,
        reason,
    ))
}

fn is_namespace(file: &File) -> bool {
    fstatfs(file).is_ok_and(|stat| stat.filesystem_type() == NSFS_MAGIC)
}

/// Runs `f` on a new thread. A namespace is a property of a thread, so a thread that enters a
/// namespace must do nothing else.
fn run_on_new_thread<T: Send>(action: &str, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .spawn_scoped(scope, f)
            .map_err(|error| {
                let has_no_room = error.kind() == io::ErrorKind::WouldBlock;
                let error = Error::os(action, error);
                if has_no_room {
                    error.remedy("a thread cannot start: raise the limit of processes (`ulimit -u`) or of memory (`ulimit -v`)")
                } else {
                    error
                }
            })?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn unshare_namespace(action: &str) -> Result<OwnedFd> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
        let error = Error::os(action, errno);
        if errno == Errno::ENOSPC {
            error.because("the limit user.max_net_namespaces is reached")
        } else {
            error
        }
    })?;
    File::open(THREAD_NAMESPACE)
        .map(OwnedFd::from)
        .map_err(|error| Error::os(action, error))
}

/// Reserves the name for `owner` at `path`.
fn reserve(name: &str, path: &Path, owner: &str) -> Result<()> {
    reserve_name(path, owner).map_err(|error| {
        let exists = error.kind() == io::ErrorKind::AlreadyExists;
        let error = Error::os(format!("create network namespace `{name}`"), error);
        if exists {
            error.remedy(format!(
                "if no program uses the namespace, remove the namespace with `ip netns delete {name}`"
            ))
        } else {
            error
        }
    })
}

/// Moves the calling thread into a new namespace, and mounts the namespace at the reserved name.
/// After a failure, removes the name.
fn fill_name(name: &str, path: &Path, owner: Option<&str>) -> Result<OwnedFd> {
    let action = || format!("create network namespace `{name}`");
    let fill = || {
        let fd = unshare_namespace(&action())?;
        owner.map_or(Ok(()), set_owner)?;
        let (source, none) = (Some(THREAD_NAMESPACE), None::<&str>);
        mount(source, path, none, MsFlags::MS_BIND, none)
            .map_err(|errno| Error::os(action(), errno))?;
        Ok(fd)
    };
    fill().inspect_err(|_| {
        // The first error is the cause.
        let _ = remove_name(path);
    })
}

fn set_owner(owner: &str) -> Result<()> {
    let mut netlink = Netlink::open()?;
    let loopback = netlink.link("lo")?;
    netlink.apply([link::set_alias(&loopback.id(), owner)])
}

/// Makes `/run/netns` a shared mount, as iproute2 does. So a name appears in the other mount
/// namespaces of the machine, and disappears there. Otherwise a network namespace would exist as
/// long as any mount namespace that contains the name.
fn prepare_directory() -> Result<()> {
    let failed = |error: io::Error| Error::os(format!("prepare {DIRECTORY}"), error);
    fs::create_dir_all(DIRECTORY).map_err(failed)?;
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(DIRECTORY)
        .map_err(failed)?;
    // Without the lock, two processes could mount the directory twice. The second mount would hide
    // the names in the first mount.
    let _lock = Flock::lock(directory, FlockArg::LockExclusive)
        .map_err(|(_, errno)| failed(errno.into()))?;
    let none = None::<&str>;
    let share = || {
        mount(
            none,
            DIRECTORY,
            none,
            MsFlags::MS_SHARED | MsFlags::MS_REC,
            none,
        )
    };
    match share() {
        // The directory is not yet a mount point. Only a mount point can be shared.
        Err(Errno::EINVAL) => mount(
            Some(DIRECTORY),
            DIRECTORY,
            none,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            none,
        )
        .and_then(|()| share())
        .map_err(|errno| failed(errno.into())),
        other => other.map_err(|errno| failed(errno.into())),
    }
}

/// Reserves the name. The file appears together with its content, so a crash leaves no name without
/// an owner.
fn reserve_name(path: &Path, content: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new(DIRECTORY));
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o444)
        .open(directory)?;
    file.write_all(content.as_bytes())?;
    let anonymous = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(
        AT_FDCWD,
        anonymous.as_str(),
        AT_FDCWD,
        path,
        AtFlags::AT_SYMLINK_FOLLOW,
    )?;
    Ok(())
}

fn remove_name(path: &Path) -> io::Result<()> {
    // EINVAL: the path is no longer a mount point.
    loop {
        match umount2(path, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            Err(Errno::EINVAL) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use crate::tests::{Child, NameGuard, Namespace, namespace_name, root_or_skip, stdout_of};

    /// Returns whether the name of a namespace or of an interrupted creation exists.
    fn exists(name: &str) -> bool {
        path_of(name).is_ok_and(|path| path.exists())
    }

    #[test]
    fn ip_netns_and_this_module_see_each_others_namespaces() {
        if !root_or_skip("ip_netns_and_this_module_see_each_others_namespaces") {
            return;
        }
        let ours = Namespace::new("ours");
        let name = ours.name().unwrap();
        assert!(
            stdout_of("ip", &["netns", "list"])
                .lines()
                .any(|line| line.split_whitespace().next() == Some(name))
        );
        assert!(
            stdout_of("ip", &["netns", "exec", name, "ip", "-o", "link"]).starts_with("1: lo:")
        );
        assert!(exists(name));
        let child = Child::spawn(process::command_in(&ours, "sleep").unwrap().arg("4714"));
        let killed = process::kill_in_namespaces(std::slice::from_ref(&ours)).unwrap();
        assert_eq!(killed, [child.id()]);

        let theirs = namespace_name("theirs");
        let _guard = NameGuard(theirs.clone());
        stdout_of("ip", &["netns", "add", &theirs]);
        assert_eq!(Netns::open(&theirs).unwrap().name(), Some(theirs.as_str()));
        assert_eq!(owner(&theirs).unwrap(), None);
        let error = Netns::create(&theirs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(
            error
                .to_string()
                .contains(&format!("`ip netns delete {theirs}`")),
            "{error}"
        );
        delete(&theirs).unwrap();
        assert!(!exists(&theirs) && !stdout_of("ip", &["netns", "list"]).contains(&theirs));
    }

    #[test]
    fn enter_does_not_change_the_callers_namespace() {
        if !root_or_skip("enter_does_not_change_the_callers_namespace") {
            return;
        }
        let namespace = |path: &str| fs::read_link(path).unwrap();
        let before = namespace(THREAD_NAMESPACE);
        let other = Netns::anonymous().unwrap();
        let inside = other.enter(|| namespace(THREAD_NAMESPACE)).unwrap();
        assert_ne!(inside, before);
        assert_eq!(namespace(THREAD_NAMESPACE), before);
        let back = Netns::current()
            .unwrap()
            .enter(|| namespace(THREAD_NAMESPACE))
            .unwrap();
        assert_eq!(back, before);
        let panicked = std::panic::catch_unwind(|| other.enter(|| panic!("inside")));
        assert!(panicked.is_err());
    }

    #[test]
    fn the_owner_is_known_after_an_interrupted_creation() {
        if !root_or_skip("the_owner_is_known_after_an_interrupted_creation") {
            return;
        }
        let name = namespace_name("owned");
        let _guard = NameGuard(name.clone());
        assert_eq!(
            Netns::create_owned(&name, "run 1").unwrap().name(),
            Some(name.as_str())
        );
        let shown = stdout_of("ip", &["-n", &name, "link", "show", "lo"]);
        assert!(shown.contains("alias run 1"), "{shown}");
        assert_eq!(owner(&name).unwrap().as_deref(), Some("run 1"));
        assert!(!delete_owned(&name, "run 2").unwrap() && exists(&name));
        assert!(delete_owned(&name, "run 1").unwrap() && !exists(&name));
        assert!(!delete_owned(&name, "run 1").unwrap());

        // The state after `kill -9` between the reservation and the mount.
        reserve_name(&path_of(&name).unwrap(), "run 1").unwrap();
        let opened = Netns::open(&name).unwrap_err();
        assert!(
            exists(&name) && opened.to_string().contains("ip netns delete"),
            "{opened}"
        );
        assert_eq!(owner(&name).unwrap().as_deref(), Some("run 1"));
        assert!(!delete_owned(&name, "run 2").unwrap() && exists(&name));
        assert!(delete_owned(&name, "run 1").unwrap() && !exists(&name));
    }

    #[test]
    fn errors_name_invalid_and_missing_namespaces() {
        for bad in ["", ".", "..", "a/b", "nul\0byte", &"x".repeat(256)] {
            assert_eq!(
                Netns::create(bad).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{bad:?}"
            );
            assert!(!exists(bad));
        }
        let missing = Netns::open("myelin-t-missing").unwrap_err();
        assert!(
            missing.is_not_found() && missing.to_string().contains("`myelin-t-missing`"),
            "{missing}"
        );
        assert!(delete("myelin-t-missing").unwrap_err().is_not_found());
    }
}
