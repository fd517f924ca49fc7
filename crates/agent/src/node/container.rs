//! Runs a program as an OCI container (Open Container Initiative, runtime specification 1.0) with
//! runc.
//!
//! The root file system is an empty directory. Inside the container, programs and libraries of the
//! host, or of a directory that the user names, are mounted read-only. Nothing is mounted on the
//! host or written into the user's directory. A container leaves only a control group and two
//! directories, so its removal does not need runc.

mod program;
mod runc;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering;

use myelin_linux::cgroup::Cgroup;
use myelin_linux::journal::Resource;
use myelin_linux::netns::Netns;
use myelin_linux::process::PidFd;
use serde_json::{Value, json};

use crate::api::{ApiError, RunDir};
use crate::node::confinement::{ConfinementSpec, PATH, Program};

use runc::{RUNC_TIMEOUT, last_logged_error, runc_command, runc_error, wait_or_kill};

pub(crate) use program::ContainerProgram;
pub use runc::version;

/// The host's directories that a container sees: programs, libraries, and the library search path.
const HOST_DIRECTORIES: [&str; 8] = [
    "usr",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "etc/ld.so.cache",
    "etc/alternatives",
];
/// Directories that each container has of its own.
const OWN_DIRECTORIES: [&str; 5] = ["proc", "sys", "dev", "tmp", "run"];

/// The files and settings of one function's containers.
#[derive(Debug)]
pub(crate) struct Container {
    id: String,
    /// The OCI bundle: `config.json` and the root file system's mount points.
    bundle: PathBuf,
    /// runc's state directory for all containers of the run.
    state: PathBuf,
    /// The directory whose parts are mounted in the container.
    source: PathBuf,
    /// Paths of the mounted parts, relative to `source`.
    parts: Vec<PathBuf>,
    /// Path of the confinement's control group.
    group: String,
    /// Numbers of the user and group that root is outside of a user namespace.
    user: Option<(u32, u32)>,
}

impl Container {
    /// Checks the root file system. Makes nothing.
    pub(crate) fn plan(
        demand: &ConfinementSpec<'_>,
        run_dir: &RunDir,
        group: &str,
    ) -> Result<Self, ApiError> {
        let (source, parts) = match &demand.rootfs {
            Some(directory) => (directory.clone(), list_rootfs_parts(directory)?),
            None => (
                PathBuf::from("/"),
                HOST_DIRECTORIES.map(PathBuf::from).to_vec(),
            ),
        };
        let id = format!("myelin-{}-{}", run_dir.id(), demand.name);
        Ok(Self {
            bundle: run_dir.containers().join(&id),
            state: run_dir.runc(),
            id,
            source,
            parts,
            group: group.to_owned(),
            user: demand.user.map(|user| (user.uid, user.gid)),
        })
    }

    /// The container's name in `runc list`.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The directories that the container makes.
    pub(crate) fn directories(&self) -> [Resource; 2] {
        [
            Resource::Directory {
                path: self.bundle.clone(),
            },
            Resource::Directory {
                path: self.state.join(&self.id),
            },
        ]
    }

    /// runc processes that may still run after the agent has died.
    pub(crate) fn runc_processes(&self) -> Resource {
        Resource::Processes {
            argument: self.id.clone(),
        }
    }

    /// Kills the processes in `group`, then starts the program as the container's first process.
    /// Returns the process number and a handle. The handle is `None` if the program has already
    /// ended.
    pub(crate) fn run(
        &self,
        program: Program,
        group: &Cgroup,
        netns: Option<&Netns>,
    ) -> Result<(u32, Option<PidFd>), ApiError> {
        group.remove_members().map_err(ApiError::failed)?;
        self.write_bundle(&program, netns)
            .map_err(|error| self.start_error(&error))?;
        let (log, pid_file) = (self.bundle.join("log"), self.bundle.join("pid"));
        let mut command = runc_command();
        command
            .arg("--root")
            .arg(&self.state)
            .arg("--log")
            .arg(&log)
            .args(["--log-format", "json", "run", "--detach", "--pid-file"])
            .arg(&pid_file)
            .arg("--bundle")
            .arg(&self.bundle)
            .arg(&self.id)
            .current_dir("/")
            .stdin(program.stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(program.stdout.map_or_else(Stdio::null, Stdio::from))
            .stderr(program.stderr.map_or_else(Stdio::null, Stdio::from));
        let mut child = command.spawn().map_err(|error| runc_error(&error))?;
        // A program that ends at once is gone when runc ends. Its handle, opened while runc
        // prepares the container, still has its exit status.
        let mut handles: Vec<PidFd> = Vec::new();
        let is_ending = program.is_ending;
        let watch = || {
            for pid in group.processes() {
                if handles.iter().all(|handle| handle.pid() != pid) {
                    handles.extend(PidFd::open(pid));
                }
            }
            if is_ending.load(Ordering::Relaxed) {
                return Err(io::Error::other("it is being removed"));
            }
            Ok(())
        };
        let status = wait_or_kill(&mut child, RUNC_TIMEOUT, watch).map_err(|error| {
            // Report the first error.
            let _ = group.remove_members();
            self.start_error(&error)
        })?;
        if !status.success() {
            let why = last_logged_error(&fs::read_to_string(&log).unwrap_or_default())
                .unwrap_or_else(|| format!("runc: {status}"));
            return Err(self.start_error(&why));
        }
        let pid = fs::read_to_string(&pid_file).map_err(|error| self.start_error(&error))?;
        let pid = pid
            .trim()
            .parse()
            .map_err(|error| self.start_error(&error))?;
        if let Some(known) = handles.into_iter().find(|handle| handle.pid() == pid) {
            return Ok((pid, Some(known)));
        }
        match PidFd::open(pid) {
            Ok(handle) => Ok((pid, Some(handle))),
            Err(error) if error.is_not_found() => Ok((pid, None)),
            Err(error) => Err(self.start_error(&error)),
        }
    }

    fn start_error(&self, cause: &dyn std::fmt::Display) -> ApiError {
        ApiError::failed(format!("cannot start the container {}: {cause}", self.id))
    }

    /// Writes a new bundle.
    fn write_bundle(&self, program: &Program, netns: Option<&Netns>) -> io::Result<()> {
        for directory in [self.state.join(&self.id), self.bundle.clone()] {
            match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // The configuration contains the program's environment: only root may read it.
        let mut private = DirBuilder::new();
        if let Some(containers) = self.bundle.parent() {
            private.recursive(true).mode(0o700).create(containers)?;
            if self.user.is_some() {
                // Other users can pass to their own bundle, and cannot list.
                fs::set_permissions(containers, fs::Permissions::from_mode(0o711))?;
            }
        }
        // runc reads the configuration with all rights, so the bundle belongs to root.
        private.mode(if self.user.is_some() { 0o711 } else { 0o700 });
        private.create(&self.bundle)?;
        // This directory is `/` in the container, for any user.
        let rootfs = self.bundle.join("rootfs");
        DirBuilder::new().mode(0o755).create(&rootfs)?;
        if let Some((uid, gid)) = self.user {
            // The container's root makes the mount points.
            std::os::unix::fs::chown(&rootfs, Some(uid), Some(gid))?;
        }
        let mut mounts = self.make_mounts(&rootfs)?;
        let mut program_path = program.path.clone();
        if program.mount_executable {
            let name = program.name.as_deref().unwrap_or("program");
            mounts.push(bind_mount(
                &fs::canonicalize(&program.path)?,
                &Path::new("/").join(name),
            ));
            program_path = PathBuf::from(name);
        }
        let mut config = oci_config(program, &program_path, &mounts, netns, &self.group);
        if let Some(user) = self.user {
            enter_user_namespace(&mut config, user);
        }
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.bundle.join("config.json"))?
            .write_all(&serde_json::to_vec(&config)?)
    }

    /// Lists the mounts of the root file system's parts. Copies symbolic links of the top directory
    /// into `rootfs`.
    fn make_mounts(&self, rootfs: &Path) -> io::Result<Vec<Value>> {
        let mut mounts = Vec::new();
        for part in &self.parts {
            let source = self.source.join(part);
            let Ok(metadata) = fs::symlink_metadata(&source) else {
                continue;
            };
            if metadata.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(&source)?, rootfs.join(part))?;
            } else {
                mounts.push(bind_mount(&source, &Path::new("/").join(part)));
            }
        }
        Ok(mounts)
    }
}

/// Lists the top-level entries of a user's root file system, without `OWN_DIRECTORIES`.
pub(crate) fn list_rootfs_parts(directory: &Path) -> Result<Vec<PathBuf>, ApiError> {
    let entries = fs::read_dir(directory).map_err(|error| {
        let cause = match error.kind() {
            io::ErrorKind::NotFound => "the directory does not exist".to_owned(),
            io::ErrorKind::NotADirectory => "the path is not a directory".to_owned(),
            _ => error.to_string(),
        };
        ApiError::failed(format!(
            "cannot use {} as the root file system of a container: {cause}. Unpack a root file system there (for example \
            `debootstrap --variant=minbase stable {0}`), or omit `rootfs` to use the host's programs",
            directory.display()
        ))
    })?;
    let names = entries
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()));
    let own = |name: &PathBuf| {
        OWN_DIRECTORIES
            .iter()
            .any(|part| OsStr::new(part) == name.as_os_str())
    };
    let mut parts: Vec<PathBuf> = names.filter(|name| !own(name)).collect();
    if parts.is_empty() {
        return Err(ApiError::failed(format!(
            "cannot use {} as the root file system of a container: the directory is empty. Unpack a root file system there, or omit `rootfs` to use \
             the host's programs",
            directory.display()
        )));
    }
    parts.sort();
    Ok(parts)
}

/// Options such as `ro` apply to the topmost mount. Options that begin with an additional `r`, such
/// as `rro`, also apply to the mounts below (runc 1.1, Linux 5.12).
fn bind_mount(source: &Path, destination: &Path) -> Value {
    json!({
        "destination": destination, "type": "none", "source": source,
        "options": ["rbind", "rprivate", "ro", "nosuid", "nodev", "rro", "rnosuid", "rnodev"],
    })
}

fn oci_config(
    program: &Program,
    path: &Path,
    mounts: &[Value],
    netns: Option<&Netns>,
    group: &str,
) -> Value {
    let text = |word: &OsStr| word.to_string_lossy().into_owned();
    let mut args = vec![text(path.as_os_str())];
    args.extend(program.args.iter().map(|arg| text(arg)));
    let defaults = [("PATH", format!("{PATH}:/")), ("HOME", "/".to_owned())];
    let mut env: Vec<String> = defaults
        .iter()
        .filter(|(name, _)| program.env.iter().all(|(other, _)| other != name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    env.extend(
        program
            .env
            .iter()
            .map(|(key, value)| format!("{}={}", text(key), text(value))),
    );
    let mut network = json!({ "type": "network" });
    if let Some(netns) = netns {
        // Name the namespace by file descriptor, because its name may be removed while the programs
        // run.
        let fd = netns.as_fd().as_raw_fd();
        network["path"] = json!(format!("/proc/{}/fd/{fd}", std::process::id()));
    }
    let fresh = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
    let mut all_mounts = vec![
        fresh("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        fresh(
            "/dev",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=64k"],
        ),
        fresh(
            "/dev/shm",
            "tmpfs",
            &["nosuid", "noexec", "nodev", "mode=1777"],
        ),
        fresh("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        fresh("/tmp", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
        fresh("/run", "tmpfs", &["nosuid", "nodev", "mode=755"]),
    ];
    all_mounts.extend_from_slice(mounts);
    let capabilities = program.capabilities;
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": args,
            "env": env,
            "cwd": program.directory.as_deref().unwrap_or(Path::new("/")),
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "myelin",
        "mounts": all_mounts,
        "linux": {
            "cgroupsPath": format!("/{group}/container"),
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "namespaces": [
                { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" }, network,
            ],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

/// Makes the container's root a user without rights on the machine. The kernel shows `/sys` only to
/// the owner of the network namespace, so the container has none.
fn enter_user_namespace(config: &mut Value, (uid, gid): (u32, u32)) {
    let map = |id: u32| json!([{ "containerID": 0, "hostID": id, "size": 1 }]);
    let linux = &mut config["linux"];
    linux["uidMappings"] = map(uid);
    linux["gidMappings"] = map(gid);
    if let Some(namespaces) = linux["namespaces"].as_array_mut() {
        namespaces.push(json!({ "type": "user" }));
    }
    if let Some(mounts) = config["mounts"].as_array_mut() {
        mounts.retain(|mount| mount["destination"] != "/sys");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_file_system_must_be_a_directory_with_files() {
        let error = |path: &Path| list_rootfs_parts(path).unwrap_err().to_string();
        let missing = error(Path::new("/nowhere/rootfs"));
        assert!(
            missing.contains("/nowhere/rootfs") && missing.contains("does not exist"),
            "{missing}"
        );
        let file = error(Path::new("/proc/version"));
        assert!(file.contains("not a directory"), "{file}");
    }
}
