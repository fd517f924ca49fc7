//! A group that another process made: its threads.

use std::fs;
use std::io;
use std::path::Path;

use super::hierarchy::Hierarchies;
use super::{Cgroup, Directory, check_path, removal};
use crate::error::{Error, ErrorKind, Result};

impl Cgroup {
    /// Opens the group `path`, which another process made and removes.
    ///
    /// # Errors
    /// No hierarchy has the group.
    pub fn open(path: &str) -> Result<Self> {
        check_path(path)?;
        let hierarchies = Hierarchies::detect()?;
        let mut directories = Vec::new();
        let find = |controller: &str| {
            let hierarchy = hierarchies.find(controller)?;
            let directory = hierarchy.mount.join(path);
            // In v2, a group has the files of a controller only if the parent delegates it.
            let file = format!("{controller}.weight");
            let has_files = !hierarchy.unified || directory.join(file).exists();
            (has_files && directory.is_dir()).then_some(Directory {
                path: directory,
                unified: hierarchy.unified,
            })
        };
        let cpu = find("cpu");
        for hierarchy in hierarchies.iter() {
            let directory = hierarchy.mount.join(path);
            if directory.is_dir() {
                directories.push(directory);
            }
        }
        if directories.is_empty() {
            return Err(Error::new(
                format!("open the control group {path}"),
                ErrorKind::NotFound,
                "no hierarchy has this group",
            ));
        }
        Ok(Self {
            path: path.to_owned(),
            directories,
            cpu,
            cpuacct: None,
            memory: None,
            removed_oom_kills: 0.into(),
        })
    }

    /// Whether [`Self::set_weight`] has an effect.
    pub fn has_weight(&self) -> bool {
        self.cpu.is_some()
    }

    /// Returns the threads of the group and its subgroups; `None` if the group was removed.
    pub fn threads(&self) -> Option<Vec<u32>> {
        let root = &self.directories[0];
        let mut all = Vec::new();
        for directory in removal::list_groups(root) {
            match threads_in(&directory) {
                Ok(threads) => all.extend(threads),
                Err(_) if directory == *root => return None,
                // A subgroup was removed meanwhile.
                Err(_) => {}
            }
        }
        Some(all)
    }
}

/// Returns the threads of one directory, without those of subgroups.
pub(super) fn threads_in(directory: &Path) -> io::Result<Vec<u32>> {
    // v1 names the file `tasks`.
    let text = fs::read_to_string(directory.join("tasks"))
        .or_else(|_| fs::read_to_string(directory.join("cgroup.threads")))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}
