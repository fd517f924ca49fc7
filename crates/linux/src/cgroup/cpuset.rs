//! The cores of a group's processes (controller `cpuset`).

use std::fs;
use std::path::Path;

use super::hierarchy::Hierarchies;
use super::{Cgroup, add_remedy, delegate_controller, make_directory, parents, read};
use crate::error::{Error, Result};

impl Cgroup {
    /// Confines all processes of the group to these cores.
    pub fn set_cores(&mut self, cores: &[u32]) -> Result<()> {
        let action = format!("give the control group {} its cores", self.path);
        let hierarchies = Hierarchies::detect()?;
        let hierarchy = hierarchies.require("cpuset", &action)?;
        let directory = hierarchy.mount.join(&self.path);
        make_directory(&directory).map_err(|error| add_remedy(&action, error))?;
        if !self.directories.contains(&directory) {
            self.directories.push(directory.clone());
        }
        let write = |path: &Path, value: &str| {
            fs::write(path, value).map_err(|error| {
                Error::os(
                    format!("{action}: write `{value}` to {}", path.display()),
                    error,
                )
            })
        };
        if hierarchy.unified {
            delegate_controller(&hierarchy.mount, &self.path, "cpuset", &action)?;
        } else {
            // In v1, a group without cores and memory nodes accepts no process.
            let mut above = hierarchy.mount.clone();
            let parents = parents(&hierarchy.mount, &self.path);
            for group in parents.iter().chain([&directory]) {
                for file in ["cpuset.mems", "cpuset.cpus"] {
                    if read(&group.join(file)).trim().is_empty() {
                        write(&group.join(file), read(&above.join(file)).trim())?;
                    }
                }
                above.clone_from(group);
            }
        }
        let list: Vec<String> = cores.iter().map(u32::to_string).collect();
        write(&directory.join("cpuset.cpus"), &list.join(","))
    }
}
