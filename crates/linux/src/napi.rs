//! Threaded NAPI: kernel threads on selected cores do the receive work of a link, instead of
//! softirqs on the sender's core.

use std::fs;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::affinity;
use crate::error::{Error, ErrorKind, Result};
use crate::netns::Netns;
use crate::priorities::RECEIVE_WORK;
use crate::procfs;
use crate::sched::{self, Policy};

/// Moves the receive work of a link to kernel threads, pinned to one core with real-time priority.
/// So no program of ordinary priority delays the receive work, as can happen with softirqs. The
/// link must have NAPI (on a veth: GRO, or an XDP program). `netns` is the link's namespace; `None`
/// selects the calling thread's namespace.
///
/// Returns the identifiers of the threads, which end with the link.
pub fn move_receive_work_to_core(
    netns: Option<&Netns>,
    link: &str,
    core: usize,
) -> Result<Vec<u32>> {
    let before = find_threads(link)?;
    match netns {
        Some(netns) => netns.enter(|| write_in_private_sysfs(link))??,
        // `/sys` may show another network namespace than the thread's.
        None => write_in_private_sysfs(link)?,
    }
    let made: Vec<u32> = find_threads(link)?
        .into_iter()
        .filter(|thread| !before.contains(thread))
        .collect();
    if made.is_empty() {
        return Err(missing_napi_error(format!(
            "move the receive work of link `{link}` to threads"
        )));
    }
    for thread in &made {
        affinity::set(*thread, &[core])?;
        sched::set(*thread, Policy::Fifo(RECEIVE_WORK))?;
    }
    Ok(made)
}

fn missing_napi_error(action: String) -> Error {
    Error::new(action, ErrorKind::Invalid, "the link has no NAPI")
        .remedy("turn on GRO: `ethtool -K LINK gro on`")
}

fn make_error(link: &str, error: std::io::Error) -> Error {
    let action = format!("move the receive work of link `{link}` to threads");
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => missing_napi_error(action),
        _ => Error::os(action, error),
    }
}

/// Writes the link's attribute through a private mount of sysfs, which shows the calling thread's
/// network namespace.
fn write_in_private_sysfs(link: &str) -> Result<()> {
    // Use a new thread, because a thread cannot leave a mount namespace. The new thread inherits
    // the network namespace.
    let write = || {
        unshare(CloneFlags::CLONE_NEWNS).map_err(std::io::Error::from)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
        fs::write(format!("/sys/class/net/{link}/threaded"), "1")
    };
    thread::scope(|scope| scope.spawn(write).join())
        .unwrap_or_else(|_| Err(std::io::Error::other("the thread panicked")))
        .map_err(|error| make_error(link, error))
}

/// Returns the kernel threads of links with that name, in all namespaces.
fn find_threads(link: &str) -> Result<Vec<u32>> {
    let prefix = format!("napi/{link}-");
    let mut found = procfs::processes()?;
    found.retain(|id| {
        // The file is missing if the process has just ended.
        let comm = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        // Older kernels truncate the names of kernel threads.
        let comm = comm.trim_end();
        comm.starts_with(&prefix) || (comm.len() == 15 && prefix.starts_with(comm))
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethtool::{Ethtool, Offload};
    use crate::link::{self, VethEnd};
    use crate::netlink::Netlink;
    use crate::tests as testing;

    #[test]
    fn receive_work_moves_to_a_core() {
        if !testing::root_or_skip("receive_work_moves_to_a_core") {
            return;
        }
        let netns = Netns::anonymous().unwrap();
        let name = "mythreaded";
        netns
            .enter(|| {
                let mut netlink = Netlink::open().unwrap();
                netlink
                    .apply([
                        link::create_veth(&VethEnd::named(name), &VethEnd::named("far")).unwrap(),
                    ])
                    .unwrap();
                let links = [name, "far"].map(|name| netlink.link(name).unwrap().id());
                netlink.apply(links.each_ref().map(link::set_up)).unwrap();
            })
            .unwrap();
        let error = move_receive_work_to_core(Some(&netns), name, 0).unwrap_err();
        assert!(error.to_string().contains("gro on"), "{error}");
        netns
            .enter(|| {
                let offloads = [Offload::GenericReceive];
                Ethtool::open().unwrap().set(name, &offloads, true).unwrap();
            })
            .unwrap();
        let core = affinity::get(0).unwrap()[0];
        let Ok(threads) = move_receive_work_to_core(Some(&netns), name, core) else {
            // On older kernels, the first attempt, without NAPI, prevents threads later.
            println!("SKIP: this kernel has no threaded NAPI for veth");
            return;
        };
        assert_eq!(affinity::get(threads[0]).unwrap(), [core]);
        assert_eq!(sched::get(threads[0]).unwrap(), Policy::Fifo(RECEIVE_WORK));
        drop(netns);
    }
}
