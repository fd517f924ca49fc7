//! Containers in the hosts of topologies. A container lies in its host's network namespace and
//! below its host's control group, and ends with the topology.

mod check;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_image::ImageConfig;
use myelin_linux::netns::Netns;
use myelin_linux::session::User;
use myelin_spec::{Isolation, Limits};

use crate::api::{
    ApiError, ContainerImage, ContainerLimits, ContainerRequest, ContainerStatus, ExecRequest,
};
use crate::node::Parts;
use crate::node::confinement::{
    ConfinedProcess, Confinement, ConfinementSpec, GroupTurns, Program, ProgramExit,
};
use crate::node::container::ContainerProgram;
use crate::node::hosts::FoundHost;
use crate::node::images;
use crate::node::log::Log;
use crate::pool::{lock, wait_until_unique};

/// Longest time between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_millis(300);
/// Longest time that a request watches its new container.
const LONGEST_WATCH: Duration = Duration::from_secs(60);
/// Time between two checks while containers end.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
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
pub(crate) struct HostContainers {
    slots: Mutex<BTreeMap<Key, Slot>>,
    /// Whether the topology goes: containers that start are interrupted.
    is_ending: Arc<AtomicBool>,
}

enum Slot {
    /// A request starts or ends the container.
    Changing,
    /// The program runs, or has ended by itself.
    Running(Arc<HostContainer>),
}

impl Slot {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Running(container) if container.has_ended().is_some())
    }
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
    /// Whether a request ends the container: a further program that starts is interrupted.
    is_ending: AtomicBool,
}

impl HostContainers {
    /// Starts a container, in the place of one of that name that has ended. A failure leaves
    /// nothing behind.
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
        check::check(&title, host, request)?;
        let key = (host.name.clone(), request.name.clone());
        let ended = {
            let mut slots = lock(&self.slots);
            let is_free = slots.get(&key).is_none_or(Slot::has_ended);
            check::check_count(&title, slots.len())?;
            if !is_free {
                return Err(ApiError::failed(format!(
                    "{title}: a container of that name exists: choose another name, or run `myelin container rm {} {}`",
                    host.path(),
                    request.name
                )));
            }
            slots.insert(key.clone(), Slot::Changing)
        };
        if let Some(Slot::Running(ended)) = ended {
            end(ended);
        }
        match HostContainer::start(parts, host, request, (user, &self.is_ending)) {
            Ok(container) => {
                let status = container.status();
                lock(&self.slots).insert(key, Slot::Running(Arc::new(container)));
                Ok(status)
            }
            Err(error) => {
                lock(&self.slots).remove(&key);
                Err(ApiError {
                    message: format!("{title}: {error}"),
                    ..error
                })
            }
        }
    }

    /// Waits at most this time for the end of a container's program, and returns the status.
    ///
    /// # Errors
    /// Another request has removed the container.
    pub(crate) fn watch(
        &self,
        host: &FoundHost,
        name: &str,
        longest: Duration,
    ) -> Result<ContainerStatus, ApiError> {
        let deadline = Instant::now() + longest.min(LONGEST_WATCH);
        loop {
            // Without a reference between two checks, another request can remove the container.
            let container = self.expect(host, name)?;
            let is_over = Instant::now() >= deadline || self.is_ending.load(Ordering::Relaxed);
            if container.has_ended().is_some() || is_over {
                return Ok(container.status());
            }
            drop(container);
            std::thread::sleep(CHECK_INTERVAL);
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
        check::check_limits(&title, host, &limits)?;
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

    /// Starts a further program in a container. A user without all rights has only own containers.
    ///
    /// # Errors
    /// No such container of this user, it lies in a user namespace or has ended, or the program
    /// does not start.
    pub(crate) fn start_program(
        &self,
        host: &FoundHost,
        (name, user): (&str, Option<u32>),
        request: &ExecRequest,
        descriptors: [OwnedFd; 3],
    ) -> Result<ContainerProgram, ApiError> {
        let title = format!("host `{}`, container `{name}`", host.path());
        let container = self.expect(host, name)?;
        if user.is_some() && container.described.user != user {
            return Err(ApiError::failed(format!(
                "{title}: it belongs to another user"
            )));
        }
        if container.described.user.is_some() {
            // runc enters the user namespace first, and then may not enter the host's network.
            return Err(ApiError::failed(format!(
                "{title}: it lies in a user namespace, where runc starts no further program: start a second container, or \
                 run the program on the host with `myelin exec`"
            )));
        }
        check::check_program(&title, request)?;
        if let Some(end) = container.has_ended() {
            let output = container.log.describe_end();
            return Err(ApiError::failed(format!(
                "{title}: its program has ended, it {end}; {output}"
            )));
        }
        let confinement = &container.confinement;
        let started = confinement.start_program(request, descriptors, &container.is_ending);
        started.map_err(|error| ApiError {
            message: format!("{title}: {error}"),
            ..error
        })
    }

    /// Ends a container and removes it.
    ///
    /// # Errors
    /// No such container.
    pub(crate) fn remove(&self, host: &FoundHost, name: &str) -> Result<(), ApiError> {
        let key = (host.name.clone(), name.to_owned());
        let removed = {
            let mut slots = lock(&self.slots);
            match slots.get(&key) {
                Some(Slot::Running(_)) => slots.insert(key.clone(), Slot::Changing),
                _ => None,
            }
        };
        let Some(Slot::Running(container)) = removed else {
            return Err(missing(host, name));
        };
        end(container);
        lock(&self.slots).remove(&key);
        Ok(())
    }

    /// Interrupts starts of containers and of further programs in them: the topology goes.
    pub(crate) fn interrupt_starts(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        for container in self.running() {
            container.is_ending.store(true, Ordering::Relaxed);
        }
    }

    /// Ends all containers of a host and removes them.
    pub(crate) fn remove_all(&self, host: &str) {
        let own: Vec<_> = {
            let mut slots = lock(&self.slots);
            let (own, others) = std::mem::take(&mut *slots)
                .into_iter()
                .partition(|(key, slot)| key.0 == host && matches!(slot, Slot::Running(_)));
            *slots = others;
            BTreeMap::into_values(own).collect()
        };
        for slot in own {
            if let Slot::Running(container) = slot {
                end(container);
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
        let slots = lock(&self.slots);
        let running = slots.values().filter_map(|slot| match slot {
            Slot::Running(container) => Some(Arc::clone(container)),
            Slot::Changing => None,
        });
        running.collect()
    }

    fn expect(&self, host: &FoundHost, name: &str) -> Result<Arc<HostContainer>, ApiError> {
        match lock(&self.slots).get(&(host.name.clone(), name.to_owned())) {
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

/// Ends a container that no request finds any more.
fn end(container: Arc<HostContainer>) {
    container.is_ending.store(true, Ordering::Relaxed);
    // Readers hold a container briefly, and a start of a further program until it is interrupted.
    end_all(&[&wait_until_unique(container)]);
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
        (user, is_ending): (Option<&User>, &Arc<AtomicBool>),
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
            is_ending: Arc::clone(is_ending),
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
            has_failed: false,
            last_lines: Vec::new(),
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
            is_ending: AtomicBool::new(false),
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
            has_failed: end.is_some_and(ProgramExit::has_failed),
            last_lines: end.map_or_else(Vec::new, |_| self.log.last_lines()),
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
