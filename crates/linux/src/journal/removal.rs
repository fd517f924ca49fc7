//! Removes recorded resources.

use std::path::Path;
use std::{fs, io};

use super::{Journal, Resource};
use crate::error::{Error, Result};
use crate::netlink::Netlink;
use crate::process::Process;
use crate::sched::{self, Policy};
use crate::{bpffs, cgroup, htb, link, netns, procfs};

/// Removes a resource. Succeeds if the resource does not exist or belongs to another program.
pub fn remove(resource: &Resource) -> Result<()> {
    match resource {
        Resource::Netns { name, owner } => netns::delete_owned(name, owner).map(drop),
        Resource::Link { name } => delete_link(name),
        Resource::Links(group) => group.remove(),
        Resource::Promiscuous(link) => {
            link.change(|_, link| Ok(Some(link::set_promiscuous(link, false))))
        }
        // `own_qdisc` ignores another program's qdisc.
        Resource::Qdisc(link) => link.change(|netlink, link| {
            Ok(htb::own_qdisc(netlink, link)?.map(|kind| htb::delete(link, &kind)))
        }),
        Resource::Bpffs { path } => bpffs::unmount(path),
        Resource::Processes { argument } => kill_processes(argument),
        Resource::Agent { run_dir } => remove_agent(run_dir),
        Resource::Cgroup { path } => cgroup::remove(path),
        Resource::HugePages { prefix } => remove_hugepages(prefix),
        Resource::File { path } => ignore_missing(fs::remove_file(path), "file", path),
        Resource::Directory { path } => ignore_missing(fs::remove_dir_all(path), "directory", path),
    }
}

/// Kills all processes with this argument, and their descendants.
fn kill_processes(argument: &str) -> Result<()> {
    for pid in procfs::find_processes(|arguments| arguments.iter().any(|word| word == argument))? {
        if pid != std::process::id()
            && let Ok(process) = Process::of(pid)
        {
            // A real-time thread that waits for others of its core could not end. The process may
            // have ended.
            let _ = sched::set(pid, Policy::Other);
            process.kill_tree()?;
        }
    }
    Ok(())
}

/// Kills an agent and removes everything that its journal lists.
fn remove_agent(run_dir: &Path) -> Result<()> {
    kill_processes(&run_dir.to_string_lossy())?;
    let journal = run_dir.join("journal");
    if journal.exists() {
        Journal::open(&journal)?.remove_all()?;
    }
    ignore_missing(fs::remove_dir_all(run_dir), "directory", run_dir)
}

/// Removes the hugepage files with this prefix. The kernel frees the memory of a file after the
/// last process that maps the file.
fn remove_hugepages(prefix: &str) -> Result<()> {
    let start = format!("{prefix}map_");
    for directory in procfs::find_mounts("hugetlbfs")? {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&start) {
                ignore_missing(fs::remove_file(entry.path()), "file", &entry.path())?;
            }
        }
    }
    Ok(())
}

/// Removes a link of this run, if the link still exists.
fn delete_link(name: &str) -> Result<()> {
    let mut netlink = Netlink::open()?;
    let found = netlink.link(name);
    ignore_missing_link(found.and_then(|found| netlink.apply([link::delete(&found.id())])))
}

pub(super) fn ignore_missing_link(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

fn ignore_missing(outcome: io::Result<()>, object: &str, path: &Path) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::os(
            format!("remove {object} {}", path.display()),
            error,
        )),
        _ => Ok(()),
    }
}
