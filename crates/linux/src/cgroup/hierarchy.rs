//! The mounted cgroup hierarchies of this machine.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

/// The mounted versions of cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Only cgroup v2.
    #[serde(rename = "v2")]
    Unified,
    /// Cgroup v1 with the controllers, and a v2 hierarchy without controllers.
    Hybrid,
    /// Only cgroup v1.
    #[serde(rename = "v1")]
    Legacy,
    /// No hierarchy is mounted.
    #[serde(rename = "none")]
    Absent,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unified => "v2 (unified)",
            Self::Hybrid => "v1 and v2 (hybrid)",
            Self::Legacy => "v1",
            Self::Absent => "not mounted",
        })
    }
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    /// The controllers of the hierarchy; for v2, the controllers of the root group.
    pub(super) controllers: Vec<String>,
    /// Whether this is cgroup v2.
    pub(super) unified: bool,
}

/// All mounted hierarchies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchies(pub(super) Vec<Hierarchy>);

impl Hierarchies {
    /// Reads the hierarchies of the calling process's mount namespace.
    pub fn detect() -> Result<Self> {
        const FILE: &str = "/proc/self/mountinfo";
        let text =
            fs::read_to_string(FILE).map_err(|error| Error::os(format!("read {FILE}"), error))?;
        let mut found = parse(&text);
        for hierarchy in &mut found.0 {
            if hierarchy.unified {
                let file = hierarchy.mount.join("cgroup.controllers");
                let words = fs::read_to_string(file).unwrap_or_default();
                hierarchy.controllers = words.split_whitespace().map(str::to_owned).collect();
            }
        }
        Ok(found)
    }

    /// Returns the mounted versions of cgroup.
    pub fn mode(&self) -> Mode {
        let unified = self.0.iter().any(|hierarchy| hierarchy.unified);
        // A named hierarchy, such as systemd's, has no controller.
        let legacy = self.0.iter().any(|hierarchy| {
            !hierarchy.unified && hierarchy.controllers.iter().any(|name| !name.contains('='))
        });
        match (unified, legacy) {
            (true, false) => Mode::Unified,
            (true, true) => Mode::Hybrid,
            (false, true) => Mode::Legacy,
            (false, false) => Mode::Absent,
        }
    }

    /// Returns whether this machine has a controller (`cpu`, `memory`, ...).
    pub fn has_controller(&self, controller: &str) -> bool {
        self.find(controller).is_some()
    }

    /// Returns the hierarchy of a controller.
    pub(super) fn find(&self, controller: &str) -> Option<&Hierarchy> {
        let has = |hierarchy: &&Hierarchy| hierarchy.controllers.iter().any(|c| c == controller);
        self.0.iter().find(has)
    }

    /// Returns the hierarchy of a controller, or an error with a remedy.
    pub(super) fn require(&self, controller: &str, action: &str) -> Result<&Hierarchy> {
        self.find(controller).ok_or_else(|| {
            Error::new(
                action,
                ErrorKind::Unsupported,
                format!("this machine has no cgroup controller `{controller}`"),
            )
            .remedy(format!(
                "mount the controller (v1: `mount -t cgroup -o {controller} none /sys/fs/cgroup/{controller}`), boot \
                 without `cgroup_disable={controller}`, or delegate the controller to this container"
            ))
        })
    }

    /// Returns all hierarchies, each once.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Hierarchy> {
        self.0.iter()
    }
}

/// Parses lines of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
fn parse(text: &str) -> Hierarchies {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in text.lines() {
        let Some(hierarchy) = parse_line(line) else {
            continue;
        };
        // A hierarchy may be mounted twice. Use the first mount.
        let is_same = |other: &Hierarchy| {
            (other.unified, &other.controllers) == (hierarchy.unified, &hierarchy.controllers)
        };
        if !found.iter().any(is_same) {
            found.push(hierarchy);
        }
    }
    Hierarchies(found)
}

fn parse_line(line: &str) -> Option<Hierarchy> {
    const GENERAL: &[&str] = &["rw", "ro", "xattr", "noprefix", "clone_children"];
    let (front, back) = line.split_once(" - ")?;
    // Mount, parent, device, root within the file system, mount point.
    let mut front = front.split(' ').skip(3);
    let (root, mount) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let (kind, options) = (back.next()?, back.nth(1)?);
    // A mount with another root shows only a part of the hierarchy, for example in a container.
    if root != "/" || !matches!(kind, "cgroup" | "cgroup2") {
        return None;
    }
    let unified = kind == "cgroup2";
    let controllers = options
        .split(',')
        .filter(|word| !unified && !GENERAL.contains(word) && !word.starts_with("release_agent="));
    Some(Hierarchy {
        mount: Path::new(mount).to_path_buf(),
        controllers: controllers.map(str::to_owned).collect(),
        unified,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 20 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
32 31 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
33 31 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
34 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:30 /docker/7 /mnt rw - cgroup cgroup rw,memory
36 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
37 31 0:30 / /other rw - cgroup cgroup rw,memory
";

    #[test]
    fn hybrid_hierarchies_are_detected() {
        let found = parse(HYBRID);
        assert_eq!(found.mode(), Mode::Hybrid);
        let mount = |controller| found.find(controller).unwrap().mount.to_str().unwrap();
        assert_eq!(mount("cpu"), "/sys/fs/cgroup/cpu,cpuacct");
        assert_eq!(mount("cpuacct"), "/sys/fs/cgroup/cpu,cpuacct");
        assert_eq!(mount("memory"), "/sys/fs/cgroup/memory");
        assert!(!found.has_controller("pids"));
        let error = found
            .require("pids", "limit a group")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no cgroup controller `pids`; mount the controller"),
            "{error}"
        );
        assert_eq!(found.iter().count(), 4);
    }

    #[test]
    fn unified_legacy_and_absent_modes_are_detected() {
        let mode_of = |text: &str| parse(text).mode();
        let unified = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(mode_of(unified), Mode::Unified);
        let systemd = "30 20 0:26 / /x rw - cgroup cgroup rw,name=systemd\n";
        assert_eq!(mode_of(&format!("{unified}{systemd}")), Mode::Unified);
        assert_eq!(
            mode_of("30 20 0:26 / /x rw - cgroup cgroup rw,cpu\n"),
            Mode::Legacy
        );
        assert_eq!(
            mode_of("nonsense\n30 20 0:26 / /x rw - ext4 /dev/x rw\n"),
            Mode::Absent
        );
    }
}
