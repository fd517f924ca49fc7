//! How a group competes for its cores: its weight in the fair class (controller `cpu`), and the
//! freezer.

use std::fs;
use std::path::{Path, PathBuf};

use super::hierarchy::Hierarchies;
use super::{Cgroup, add_remedy, make_directory};
use crate::error::{Error, ErrorKind, Result};

/// The weight of a new group.
pub const DEFAULT_WEIGHT: u32 = 100;
/// The largest weight that the kernel accepts.
pub const MAX_WEIGHT: u32 = 10_000;

impl Cgroup {
    /// Sets the weight of the group in the fair class, 1 to [`MAX_WEIGHT`]. A group with twice the
    /// weight gets twice the CPU time of another busy group of the same run.
    pub fn set_weight(&self, weight: u32) -> Result<()> {
        let action = format!("give the control group {} the weight {weight}", self.path);
        let Some(cpu) = &self.cpu else {
            let cause = "the group has no controller `cpu`";
            return Err(Error::new(action, ErrorKind::Unsupported, cause));
        };
        if cpu.unified {
            write(&cpu.path.join("cpu.weight"), &weight.to_string(), &action)
        } else {
            // v1 counts in shares, of which a new group has 1024.
            let shares = u64::from(weight) * 1024 / u64::from(DEFAULT_WEIGHT);
            write(&cpu.path.join("cpu.shares"), &shares.to_string(), &action)
        }
    }

    /// Stops all processes of the group, or lets them run again. Call this once with `false` before
    /// a process joins the group, because v1 has a hierarchy of its own for the freezer.
    pub fn set_frozen(&mut self, is_frozen: bool) -> Result<()> {
        let action = format!(
            "{} the control group {}",
            if is_frozen { "freeze" } else { "thaw" },
            self.path
        );
        let hierarchies = Hierarchies::detect()?;
        if let Some(hierarchy) = hierarchies.find("freezer") {
            let directory = hierarchy.mount.join(&self.path);
            make_directory(&directory).map_err(|error| add_remedy(&action, error))?;
            if !self.directories.contains(&directory) {
                self.directories.push(directory.clone());
            }
            let state = if is_frozen { "FROZEN" } else { "THAWED" };
            return write(&directory.join("freezer.state"), state, &action);
        }
        let has_freezer = |directory: &&Path| directory.join("cgroup.freeze").exists();
        let mut directories = self.directories.iter().map(PathBuf::as_path);
        let Some(directory) = directories.find(has_freezer) else {
            let cause = "this machine has no freezer of control groups";
            return Err(Error::new(action, ErrorKind::Unsupported, cause).remedy(
                "mount it (v1: `mount -t cgroup -o freezer none /sys/fs/cgroup/freezer`)",
            ));
        };
        let state = if is_frozen { "1" } else { "0" };
        write(&directory.join("cgroup.freeze"), state, &action)
    }
}

fn write(path: &Path, value: &str, action: &str) -> Result<()> {
    fs::write(path, value).map_err(|error| {
        let place = path.display();
        Error::os(format!("{action}: write `{value}` to {place}"), error)
    })
}
