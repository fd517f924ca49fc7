//! Pins in a bpffs: objects that outlive the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use libbpf_rs::{TC_INGRESS, TcHook};
use myelin_linux::bpffs::is_bpffs;

use crate::{Error, sys};

/// Prefixes of a plane's pins. This module removes no other file.
const PREFIXES: [&str; 4] = ["programs-", "counters", LINK, CLSACT];
/// Name of a pinned link: `link-xdp-7` on the interface with index 7.
pub(crate) const LINK: &str = "link-";
/// Name of the pin of a clsact filter's program: `clsact-7-1-49152`, interface index, handle,
/// priority.
pub(crate) const CLSACT: &str = "clsact-";

/// Creates the directory for the pins of a plane. Refuses a directory that already holds such pins.
pub(crate) fn prepare_dir(dir: &Path) -> Result<(), Error> {
    let fail = |action, remedy| {
        move |cause| Error::Pin {
            action,
            path: dir.to_path_buf(),
            cause,
            remedy,
        }
    };
    std::fs::create_dir_all(dir).map_err(fail("create", ""))?;
    if !is_bpffs(dir) {
        let cause = io::Error::other("the directory is not on a bpffs");
        return Err(fail(
            "pin in",
            ": mount a bpffs with `mount -t bpf bpf /sys/fs/bpf`",
        )(cause));
    }
    let names = list_pins(dir).map_err(fail("list", ""))?;
    if names.is_empty() {
        return Ok(());
    }
    let cause = io::Error::from_raw_os_error(libc::EEXIST);
    Err(fail(
        "pin in",
        ": an agent is running, or a killed agent left its chains: `myelin down --all` removes them",
    )(cause))
}

/// Pins an object.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
    let pinned = match sys::pin(object, path) {
        // The directory belongs to this process, so an earlier removal of this pin has failed.
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
            unpin(path)?;
            sys::pin(object, path)
        }
        pinned => pinned,
    };
    pinned.map_err(|cause| Error::Pin {
        action: "pin",
        path: path.to_path_buf(),
        cause,
        remedy: "",
    })
}

/// Removes a pin. A missing pin is no error.
pub(crate) fn unpin(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(Error::Pin {
            action: "unpin",
            path: path.to_path_buf(),
            cause,
            remedy: "",
        }),
        _ => Ok(()),
    }
}

/// Removes every pin and the directory.
pub(crate) fn remove_all(dir: &Path) -> Result<(), Error> {
    let fail = |action| {
        move |cause| Error::Pin {
            action,
            path: dir.to_path_buf(),
            cause,
            remedy: "",
        }
    };
    if !dir.exists() {
        return Ok(());
    }
    let mut names = list_pins(dir).map_err(fail("list"))?;
    // Detach the links before the programs are freed.
    names.sort_by_key(|name| !name.starts_with(LINK) && !name.starts_with(CLSACT));
    for name in names {
        let path = dir.join(&name);
        if let Some(filter) = name.strip_prefix(CLSACT) {
            detach_clsact(&path, filter);
        } else if name.starts_with(LINK)
            && let Ok(link) = sys::open_pinned(&path)
        {
            // The detach fails if the interface no longer exists.
            let _ = sys::link_detach(link.as_fd());
        }
        unpin(&path)?;
    }
    match std::fs::remove_dir(dir) {
        // The directory holds files of other programs.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        result => result.map_err(fail("remove")),
    }
}

/// Removes a clsact filter if it still runs the program pinned at `path`. `filter` is the pin's
/// name without [`CLSACT`]. Does nothing if the interface is gone or runs another filter.
fn detach_clsact(path: &Path, filter: &str) {
    let numbers: Vec<u32> = filter
        .split('-')
        .filter_map(|number| number.parse().ok())
        .collect();
    let ([ifindex, handle, priority], Ok(program)) = (numbers.as_slice(), sys::open_pinned(path))
    else {
        return;
    };
    let mut hook = TcHook::new(program.as_fd());
    hook.ifindex(ifindex.cast_signed())
        .attach_point(TC_INGRESS)
        .handle(*handle)
        .priority(*priority);
    let id = libbpf_rs::Program::id_from_fd(program.as_fd()).ok();
    if id.is_some() && hook.query().ok() == id {
        let _ = hook.detach();
    }
}

fn list_pins(dir: &Path) -> io::Result<Vec<String>> {
    let names =
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names
        .filter(|name| {
            name.as_ref().map_or(true, |name| {
                PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            })
        })
        .collect()
}
