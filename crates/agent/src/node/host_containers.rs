//! Containers in the hosts of topologies. A container lies in its host's network namespace and
//! below its host's control group, and ends with the topology.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_image::ImageConfig;
use myelin_linux::netns::Netns;
use myelin_linux::session::User;
use myelin_spec::{Isolation, Limits, units};

use crate::api::{ApiError, ContainerImage, ContainerLimits, ContainerRequest, ContainerStatus};
use crate::node::Parts;
use crate::node::confinement::{
    ConfinedProcess, Confinement, ConfinementSpec, GroupTurns, Program, ProgramExit,
};
use crate::node::hosts::FoundHost;
use crate::node::images;
use crate::node::log::Log;
use crate::pool::{lock, wait_until_unique};

/// Longest time between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_millis(300);
/// Time between two checks while containers end.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Longest name of a container. Its file names have the names of topology and host too.
const MAX_NAME: usize = 40;
/// Capabilities of a container: those of other engines, and all over the host's interfaces.
const CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Host and name of a container.
type Key = (String, String);

/// The containers in the hosts of one topology. Dropping the value ends them.
#[derive(Default)]
pub(crate) struct HostContainers(Mutex<BTreeMap<Key, Slot>>);

enum Slot {
    /// A request starts or ends the container.
    Changing,
    Running(Arc<HostContainer>),
}

/// A container.
struct HostContainer {
    // Fields drop in this order.
    process: Mutex<ConfinedProcess>,
    confinement: Confinement,
    log: Log,
    /// The status at the start.
    described: ContainerStatus,
    started: Instant,
    /// The end of the program; `None`: it runs.
    end: Mutex<Option<ProgramExit>>,
}

impl HostContainers {
    /// Starts a container. A failure leaves nothing behind.
    ///
    /// # Errors
    /// A bad name, image or limit; a container of that name exists; or a system error.
    pub(crate) fn add(
        &self,
        parts: &Parts,
        host: &FoundHost,
        request: &ContainerRequest,
        user: Option<&User>,
    ) -> Result<ContainerStatus, ApiError> {
        let title = format!("host `{}`, container `{}`", host.path(), request.name);
        check(&title, host, request)?;
        let key = (host.name.clone(), request.name.clone());
        {
            let mut slots = lock(&self.0);
            if slots.contains_key(&key) {
                return Err(ApiError::failed(format!(
                    "{title}: a container of that name exists: choose another name, or run `myelin container rm {} {}`",
                    host.path(),
                    request.name
                )));
            }
            slots.insert(key.clone(), Slot::Changing);
        }
        match HostContainer::start(parts, host, request, user) {
            Ok(container) => {
                let status = container.status();
                lock(&self.0).insert(key, Slot::Running(Arc::new(container)));
                Ok(status)
            }
            Err(error) => {
                lock(&self.0).remove(&key);
                Err(ApiError {
                    message: format!("{title}: {error}"),
                    ..error
                })
            }
        }
    }

    /// Returns the status of all containers, by host and name.
    pub(crate) fn list(&self) -> Vec<ContainerStatus> {
        self.running().iter().map(|found| found.status()).collect()
    }

    /// Changes limits of a container.
    ///
    /// # Errors
    /// No such container, a bad limit, or a system error.
    pub(crate) fn limit(
        &self,
        host: &FoundHost,
        name: &str,
        limits: ContainerLimits,
    ) -> Result<ContainerStatus, ApiError> {
        let title = format!("host `{}`, container `{name}`", host.path());
        let container = self.expect(host, name)?;
        check_limits(&title, host, &limits)?;
        container.confinement.limit(to_spec(limits))?;
        Ok(container.status())
    }

    /// Returns the end of a container's output.
    ///
    /// # Errors
    /// No such container.
    pub(crate) fn log(&self, host: &FoundHost, name: &str) -> Result<String, ApiError> {
        let container = self.expect(host, name)?;
        Ok(container.log.text())
    }

    /// Ends a container and removes it.
    ///
    /// # Errors
    /// No such container.
    pub(crate) fn remove(&self, host: &FoundHost, name: &str) -> Result<(), ApiError> {
        let key = (host.name.clone(), name.to_owned());
        let removed = {
            let mut slots = lock(&self.0);
            match slots.get(&key) {
                Some(Slot::Running(_)) => slots.insert(key.clone(), Slot::Changing),
                _ => None,
            }
        };
        let Some(Slot::Running(container)) = removed else {
            return Err(missing(host, name));
        };
        // Readers hold a container briefly.
        let container = wait_until_unique(container);
        end_all(&[&container]);
        drop(container);
        lock(&self.0).remove(&key);
        Ok(())
    }

    /// Ends all containers of a host and removes them.
    pub(crate) fn remove_all(&self, host: &str) {
        let own: Vec<_> = {
            let mut slots = lock(&self.0);
            let (own, others) = std::mem::take(&mut *slots)
                .into_iter()
                .partition(|(key, slot)| key.0 == host && matches!(slot, Slot::Running(_)));
            *slots = others;
            BTreeMap::into_values(own).collect()
        };
        for slot in own {
            if let Slot::Running(container) = slot {
                // Readers hold a container briefly.
                end_all(&[&wait_until_unique(container)]);
            }
        }
    }

    /// Shortens the outputs that have become too long.
    pub(crate) fn truncate_logs(&self) {
        for container in self.running() {
            container.log.truncate();
        }
    }

    fn running(&self) -> Vec<Arc<HostContainer>> {
        let slots = lock(&self.0);
        let running = slots.values().filter_map(|slot| match slot {
            Slot::Running(container) => Some(Arc::clone(container)),
            Slot::Changing => None,
        });
        running.collect()
    }

    fn expect(&self, host: &FoundHost, name: &str) -> Result<Arc<HostContainer>, ApiError> {
        match lock(&self.0).get(&(host.name.clone(), name.to_owned())) {
            Some(Slot::Running(container)) => Ok(Arc::clone(container)),
            _ => Err(missing(host, name)),
        }
    }
}

fn missing(host: &FoundHost, name: &str) -> ApiError {
    ApiError::failed(format!(
        "host `{}` has no container `{name}`: `myelin container ps` lists the containers",
        host.path()
    ))
}

impl Drop for HostContainers {
    fn drop(&mut self) {
        let running = self.running();
        let all: Vec<&HostContainer> = running.iter().map(|container| &**container).collect();
        end_all(&all);
    }
}

/// Asks all programs to end, and kills those that do not. The groups' removal kills the rest.
fn end_all(containers: &[&HostContainer]) {
    for container in containers {
        lock(&container.process).terminate();
    }
    let deadline = Instant::now() + TERM_TIMEOUT;
    for container in containers {
        while container.has_ended().is_none() && Instant::now() < deadline {
            std::thread::sleep(CHECK_INTERVAL);
        }
        lock(&container.process).kill();
    }
}

impl HostContainer {
    fn start(
        parts: &Parts,
        host: &FoundHost,
        request: &ContainerRequest,
        user: Option<&User>,
    ) -> Result<Self, ApiError> {
        let started = Instant::now();
        // The groups of programs and containers lie side by side. As long as this group exists, the
        // removal of a container's group does not remove the host's.
        host.make_programs_group()?;
        let (rootfs, config) = match &request.image {
            ContainerImage::Machine => (PathBuf::from("/"), ImageConfig::default()),
            ContainerImage::Directory(path) => (PathBuf::from(path), ImageConfig::default()),
            ContainerImage::Stored(name) => {
                let image = images::find(name)?;
                (image.files, image.config)
            }
        };
        let program = describe_program(request, config)?;
        let command: Vec<String> = [program.path.as_os_str()]
            .into_iter()
            .chain(program.args.iter().map(OsString::as_os_str))
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let name = format!("{}.{}.{}", host.object, host.name, request.name);
        let netns = Netns::open(&host.netns).map_err(ApiError::failed)?;
        let demand = ConfinementSpec {
            name: &name,
            parent_group: host.group.as_deref().unwrap_or(&parts.cgroup),
            isolation: Isolation::Container,
            limits: to_spec(request.limits),
            rootfs: Some(rootfs),
            netns: Some(&netns),
            user,
            turns: GroupTurns::default(),
        };
        let log = Log::create(&parts.run_dir, &name, &parts.journal)?;
        let confinement = Confinement::create(&demand, &parts.run_dir, &parts.journal)?;
        let program = Program {
            stdout: Some(log.handle()?),
            stderr: Some(log.handle()?),
            ..program
        };
        let process = confinement.spawn(program)?;
        let described = ContainerStatus {
            topology: host.object.clone(),
            host: host.name.clone(),
            name: request.name.clone(),
            id: confinement.status().container.unwrap_or_default(),
            image: request.image.clone(),
            command,
            pid: Some(process.pid()),
            end: None,
            exit_code: None,
            user: user.map(|user| user.uid),
            limits: request.limits,
            cpu_s: 0.0,
            memory_bytes: 0,
            throttled_periods: 0,
            throttled_s: 0.0,
            oom_kills: 0,
            start_ms: started.elapsed().as_secs_f64() * 1e3,
            up_s: 0.0,
        };
        Ok(Self {
            process: Mutex::new(process),
            confinement,
            log,
            described,
            started,
            end: Mutex::default(),
        })
    }

    /// Returns the end of the program; `None`: it runs.
    fn has_ended(&self) -> Option<ProgramExit> {
        let mut end = lock(&self.end);
        if end.is_none() {
            *end = lock(&self.process).try_wait();
        }
        *end
    }

    fn limits(&self) -> ContainerLimits {
        let limits = self.confinement.limits();
        ContainerLimits {
            cpu_millicores: limits.cpu_millicores,
            memory_bytes: limits.memory_bytes,
        }
    }

    fn status(&self) -> ContainerStatus {
        let end = self.has_ended();
        let usage = self.confinement.usage();
        ContainerStatus {
            pid: self.described.pid.filter(|_| end.is_none()),
            end: end.map(|end| match usage.oom_kills {
                0 => end.to_string(),
                _ => format!("{end}; the kernel killed a process at the memory limit"),
            }),
            exit_code: end.and_then(|end| end.0).and_then(|status| status.code()),
            limits: self.limits(),
            cpu_s: usage.cpu_ns as f64 / 1e9,
            memory_bytes: usage.memory_bytes,
            throttled_periods: usage.throttled_periods,
            throttled_s: usage.throttled_ns as f64 / 1e9,
            oom_kills: usage.oom_kills,
            up_s: self.started.elapsed().as_secs_f64(),
            ..self.described.clone()
        }
    }
}

/// The program of a request: its own command, else that of the image, in the image's environment.
fn describe_program(request: &ContainerRequest, config: ImageConfig) -> Result<Program, ApiError> {
    let command = if request.command.is_empty() {
        config.command
    } else {
        request.command.clone()
    };
    let mut words = command.into_iter();
    let path = words.next().ok_or_else(|| {
        ApiError::usage("the image names no program: write the program and its arguments")
    })?;
    let of_image = config
        .env
        .iter()
        .filter_map(|variable| variable.split_once('='));
    let mut env: BTreeMap<&str, &str> = of_image.collect();
    let own = request.env.iter();
    env.extend(own.map(|(name, value)| (name.as_str(), value.as_str())));
    let pair = |(name, value): (&str, &str)| (OsString::from(name), OsString::from(value));
    Ok(Program {
        path: PathBuf::from(path),
        args: words.map(OsString::from).collect(),
        env: env.into_iter().map(pair).collect(),
        directory: Some(config.directory)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
        capabilities: CAPABILITIES,
        ..Program::default()
    })
}

fn to_spec(limits: ContainerLimits) -> Limits {
    Limits {
        cpu_millicores: limits.cpu_millicores,
        memory_bytes: limits.memory_bytes,
    }
}

/// Refuses a request that no host could grant.
fn check(title: &str, host: &FoundHost, request: &ContainerRequest) -> Result<(), ApiError> {
    let name = &request.name;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts_well || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        return Err(ApiError::usage(format!(
            "{title}: the name is not valid: write at most {MAX_NAME} letters, digits and `-`, the first a letter or a digit"
        )));
    }
    let is_stored = matches!(request.image, ContainerImage::Stored(_));
    let program = request.command.first();
    if program.is_none() && !is_stored || program.is_some_and(String::is_empty) {
        return Err(ApiError::usage(format!(
            "{title}: no program is given: write the program and its arguments"
        )));
    }
    if let ContainerImage::Directory(directory) = &request.image
        && !directory.starts_with('/')
    {
        return Err(ApiError::usage(format!(
            "{title}: the image {directory} is no absolute path: write the path from `/` on"
        )));
    }
    let mut texts = request.command.iter().chain(request.env.keys());
    if texts.any(|text| text.contains('\0')) || request.env.values().any(|text| text.contains('\0'))
    {
        return Err(ApiError::usage(format!(
            "{title}: an argument or a variable has a zero byte: remove it"
        )));
    }
    check_limits(title, host, &request.limits)
}

/// Refuses limits that the kernel, or the host's own limit, does not allow.
fn check_limits(title: &str, host: &FoundHost, limits: &ContainerLimits) -> Result<(), ApiError> {
    use myelin_spec::isolation::{MIN_CPU_MILLICORES, MIN_MEMORY_BYTES};
    let refuse = |asked: String, bound: String| {
        Err(ApiError::usage(format!(
            "{title}: a limit of {asked} is not possible: write {bound}, or give no limit"
        )))
    };
    let cpu = |millicores: u32| units::CPU.format(millicores.into());
    if let Some(asked) = limits.cpu_millicores {
        if asked < MIN_CPU_MILLICORES {
            return refuse(cpu(asked), format!("at least {}", cpu(MIN_CPU_MILLICORES)));
        }
        if let Some(most) = host.limits.cpu_millicores.filter(|most| asked > *most) {
            return refuse(
                cpu(asked),
                format!("at most {}, which the host has", cpu(most)),
            );
        }
    }
    let memory = units::format_memory_bytes;
    if let Some(asked) = limits.memory_bytes {
        if asked < MIN_MEMORY_BYTES {
            return refuse(
                memory(asked),
                format!("at least {}", memory(MIN_MEMORY_BYTES)),
            );
        }
        if let Some(most) = host.limits.memory_bytes.filter(|most| asked > *most) {
            return refuse(
                memory(asked),
                format!("at most {}, which the host has", memory(most)),
            );
        }
    }
    Ok(())
}
