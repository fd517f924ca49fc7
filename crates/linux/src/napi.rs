//! Threaded NAPI: a link's receive work in kernel threads, which can be given cores, instead of in softirqs of whoever sends.

use std::fs;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::affinity;
use crate::error::{Error, ErrorKind, Result};
use crate::netns::Netns;
use crate::procfs;
use crate::sched::{self, Policy};

/// Gives the receive work of a link to kernel threads, and these to one core, with a real-time priority: no program of ordinary priority puts them off, as none
/// does softirqs. The link must have NAPI (on a veth: GRO, or an XDP program). `netns` is where the link is; `None`: the calling thread's namespace.
///
/// The threads' ids; they end with the link.
pub fn give_to_core(netns: Option<&Netns>, link: &str, core: usize) -> Result<Vec<u32>> {
    let before = threads(link)?;
    match netns {
        Some(netns) => netns.enter(|| in_sysfs_of_its_own(link))??,
        // Its sysfs is mounted already, and cannot be mounted there twice.
        None => write_threaded(link).map_err(|error| told(link, error))?,
    }
    let made: Vec<u32> = threads(link)?
        .into_iter()
        .filter(|thread| !before.contains(thread))
        .collect();
    if made.is_empty() {
        return Err(without_napi(format!(
            "give the receive work of `{link}` to threads"
        )));
    }
    for thread in &made {
        affinity::set(*thread, &[core])?;
        sched::set(*thread, Policy::Fifo(1))?;
    }
    Ok(made)
}

fn without_napi(action: String) -> Error {
    Error::new(action, ErrorKind::Invalid, "it has no NAPI")
        .remedy("turn its GRO on: `ethtool -K LINK gro on`")
}

fn told(link: &str, error: std::io::Error) -> Error {
    let action = format!("give the receive work of `{link}` to threads");
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => without_napi(action),
        _ => Error::os(action, error),
    }
}

fn write_threaded(link: &str) -> std::io::Result<()> {
    fs::write(format!("/sys/class/net/{link}/threaded"), "1")
}

/// Writes the link's attribute, in a sysfs of the calling thread's network namespace.
fn in_sysfs_of_its_own(link: &str) -> Result<()> {
    // A thread of its own, since a mount namespace cannot be left again; it inherits this one's network namespace.
    let write = || {
        unshare(CloneFlags::CLONE_NEWNS).map_err(std::io::Error::from)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
        write_threaded(link)
    };
    thread::scope(|scope| scope.spawn(write).join())
        .unwrap_or_else(|_| Err(std::io::Error::other("the thread ended early")))
        .map_err(|error| told(link, error))
}

/// Kernel threads of links of that name, in whatever namespace.
fn threads(link: &str) -> Result<Vec<u32>> {
    let prefix = format!("napi/{link}-");
    let mut found = procfs::processes()?;
    found.retain(|id| {
        // Fails for a process that has just ended.
        let comm = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        // Names of kernel threads are cut off by older kernels.
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
    fn receive_work_gets_a_core() {
        if !testing::root_or_skip("receive_work_gets_a_core") {
            return;
        }
        let netns = Netns::anonymous().unwrap();
        let name = "mythreaded";
        netns
            .enter(|| {
                let mut netlink = Netlink::open().unwrap();
                netlink
                    .apply([link::veth(&VethEnd::named(name), &VethEnd::named("far")).unwrap()])
                    .unwrap();
                let links = [name, "far"].map(|name| netlink.link(name).unwrap().id());
                netlink.apply(links.each_ref().map(link::up)).unwrap();
            })
            .unwrap();
        let error = give_to_core(Some(&netns), name, 0).unwrap_err();
        assert!(error.to_string().contains("gro on"), "{error}");
        netns
            .enter(|| {
                let offloads = [Offload::GenericReceive];
                Ethtool::open().unwrap().set(name, &offloads, true).unwrap();
            })
            .unwrap();
        let core = affinity::get(0).unwrap()[0];
        let Ok(threads) = give_to_core(Some(&netns), name, core) else {
            // Attributes set without NAPI make no threads later on older kernels.
            println!("SKIP: this kernel has no threaded NAPI for veth");
            return;
        };
        assert_eq!(affinity::get(threads[0]).unwrap(), [core]);
        assert_eq!(sched::get(threads[0]).unwrap(), Policy::Fifo(1));
        drop(netns);
    }
}
