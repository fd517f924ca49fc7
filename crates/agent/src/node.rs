//! The agent's state on this node: kernel objects, ports, circuits, workers, black boxes, and their
//! journal.
//!
//! Each part has its own locks, held for single lookups. Slow work, such as the start of a process,
//! holds only the lock of the object that it changes. Start reading at [`chains`] (running chains),
//! then [`layout`] (the trait of the mappings).

pub(crate) mod black_box;
pub(crate) mod chains;
pub(crate) mod circuit;
pub(crate) mod confinement;
pub(crate) mod container;
pub(crate) mod cores;
pub(crate) mod cpu_latency;
pub(crate) mod delay_line;
pub(crate) mod devices;
pub(crate) mod discipline;
pub(crate) mod entrance;
mod entry_link;
pub(crate) mod host_containers;
pub(crate) mod hosts;
pub(crate) mod images;
pub(crate) mod ingress_block;
mod internal_link;
pub(crate) mod layout;
pub(crate) mod ledger;
mod log;
pub(crate) mod mtu;
pub(crate) mod netem;
pub(crate) mod node_agents;
pub(crate) mod node_events;
pub(crate) mod openflow;
pub(crate) mod peers;
pub(crate) mod port_faults;
pub(crate) mod port_state;
pub(crate) mod ports;
pub(crate) mod preemptor;
pub(crate) mod quiesce;
pub(crate) mod reserved;
pub(crate) mod router_messages;
pub(crate) mod sandbox;
pub(crate) mod spans;
pub(crate) mod stages;
pub(crate) mod topologies;
pub(crate) mod waiting;
pub(crate) mod wire;
mod wire_size;
pub(crate) mod workers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use myelin_kernel::{Capacity, Plane};
use myelin_linux::journal::{Journal, Resource};
use myelin_linux::netns::Netns;
use myelin_linux::{bpffs, netns, process};
use myelin_spec::part::FIRST_PATH;

use myelin_planner::CoreShare;

use crate::api::{ApiError, RunDir};
use crate::pool::{Pool, lock};
use black_box::BlackBoxes;
use chains::Chains;
use circuit::Circuit;
use cores::Cores;
use cpu_latency::CpuLatencies;
use devices::Devices;
use discipline::Disciplines;
use ledger::NodeLedger;
use node_events::NodeEvents;
use peers::Peers;
use ports::Ports;
use preemptor::Preemptors;
use reserved::ReservedNames;
use spans::Spans;
use topologies::Topologies;
use wire::WiredInterfaces;
use workers::Workers;

/// What the machine, or the topology of a node, gives to an agent.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// The control group under which all groups of the agent lie: `myelin-RUN/NAME`. By default a
    /// group of the agent's own.
    pub cgroup: Option<String>,
    /// The name of the agent's clock; `None`: that of the kernel. Stamps of clocks with different
    /// names are not compared.
    pub clock: Option<String>,
}

/// All state of an agent.
pub(crate) struct Node {
    pub(crate) chains: Chains,
    /// The running topologies. Requests reserve their names among those of the chains.
    pub(crate) topologies: Topologies,
    /// The running chains over nodes of topologies. Their names are reserved in the same way.
    pub(crate) spans: Spans,
    /// The bookings of admitted chains.
    pub(crate) ledger: NodeLedger,
    /// Interfaces that requests reserve while they plan, because planning decides which worker gets
    /// an interface's queues.
    pub(crate) interfaces: ReservedNames,
    /// Idle-state limits that running chains request.
    pub(crate) latencies: CpuLatencies,
    /// Number of calls of [`Node::cancel_changes`].
    cancellations: AtomicU64,
    pub(crate) parts: Parts,
    pin_dir: PathBuf,
    /// Resources of a killed agent, from the journal at start.
    orphans: Mutex<Vec<Resource>>,
}

/// The parts that chains are built from.
pub(crate) struct Parts {
    pub(crate) plane: Arc<Plane>,
    pub(crate) ports: Ports,
    pub(crate) circuits: Pool<String, Circuit>,
    /// Interfaces at which frames of other nodes may arrive, by index.
    pub(crate) wired: WiredInterfaces,
    pub(crate) workers: Workers,
    /// Cores whose workers hand them over to each other.
    pub(crate) cores: Arc<Cores>,
    /// The DPDK devices of each worker.
    pub(crate) devices: Devices,
    /// The programs of `kind: external`.
    pub(crate) black_boxes: BlackBoxes,
    /// Shapers of egress interfaces.
    pub(crate) disciplines: Disciplines,
    /// The events of the nodes of topologies.
    pub(crate) node_events: NodeEvents,
    pub(crate) journal: Journal,
    /// The executable of the workers.
    pub(crate) program: PathBuf,
    pub(crate) run_dir: RunDir,
    /// Identity of the run directory.
    pub(crate) run_id: String,
    /// The control group under which all groups of this agent lie.
    pub(crate) cgroup: String,
    /// The share of each core that the group has; `None`: all of it.
    pub(crate) share: Option<CoreShare>,
    /// Begins the names of end hosts and sandboxes: not empty for the agent of a topology's node,
    /// because the names of network namespaces are unique on the machine.
    pub(crate) host_prefix: String,
    next_spi: AtomicU32,
    next_worker: AtomicU32,
    /// Whether the interfaces of chain files deliver packets of wire size with whole checksums to
    /// far ends with NAPI.
    pub(crate) whole_links: AtomicBool,
}

impl Parts {
    /// Whether the interfaces of chain files need neither an entry link nor the stack's transmit
    /// path.
    pub(crate) fn links_are_whole(&self) -> bool {
        self.whole_links.load(Ordering::Relaxed)
    }

    /// Returns an unused service path identifier (SPI). The SPI of a removed chain is not reused,
    /// so a late packet cannot enter another chain. Chains over several nodes have the identifiers
    /// from [`FIRST_PATH`] on.
    pub(crate) fn take_spi(&self) -> u32 {
        let number = self.next_spi.fetch_add(1, Ordering::Relaxed);
        number % (FIRST_PATH - 1) + 1
    }

    /// Returns an unused worker number.
    pub(crate) fn take_worker_number(&self) -> u32 {
        self.next_worker.fetch_add(1, Ordering::Relaxed)
    }
}

impl Node {
    /// Mounts the bpffs, makes the shared maps and opens the journal.
    pub(crate) fn open(
        run_dir: &RunDir,
        program: PathBuf,
        options: NodeOptions,
    ) -> Result<Self, ApiError> {
        let NodeOptions { cgroup, clock } = options;
        let run_id = run_dir.id();
        let host_prefix = cgroup.as_ref().map(|_| format!("{run_id}-"));
        let share = cgroup.as_deref().map(share_of).transpose()?.flatten();
        let journal = Journal::open(&run_dir.journal()).map_err(ApiError::failed)?;
        let orphans = journal.replay();
        let ledger = NodeLedger::with_peers(Peers::new(run_dir, &journal))?;
        let (plane, pin_dir) = open_plane(run_dir, &journal, clock.as_deref())?;
        let plane = Arc::new(plane);
        let cores = Arc::new(Cores::new(Preemptors {
            program: program.clone(),
            run_id: run_dir.id(),
            journal: journal.clone(),
            plane: Arc::clone(&plane),
            next: AtomicU32::new(0),
        }));
        Ok(Self {
            chains: Chains::default(),
            topologies: Topologies::default(),
            spans: Spans::default(),
            ledger,
            interfaces: ReservedNames::default(),
            latencies: CpuLatencies::default(),
            cancellations: AtomicU64::new(0),
            parts: Parts {
                plane,
                ports: Ports::default(),
                circuits: Pool::default(),
                wired: Pool::default(),
                workers: Pool::default(),
                cores,
                devices: Devices::default(),
                black_boxes: Pool::default(),
                disciplines: Pool::default(),
                node_events: NodeEvents::default(),
                journal,
                program,
                share,
                cgroup: cgroup.unwrap_or_else(|| format!("myelin-{run_id}")),
                host_prefix: host_prefix.unwrap_or_default(),
                run_id,
                run_dir: run_dir.clone(),
                next_spi: AtomicU32::new(0),
                next_worker: AtomicU32::new(0),
                whole_links: AtomicBool::new(false),
            },
            pin_dir,
            orphans: Mutex::new(orphans),
        })
    }

    /// Cancels all changes that wait.
    pub(crate) fn cancel_changes(&self) {
        self.cancellations.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a function that says whether [`Node::cancel_changes`] was called since.
    pub(crate) fn watch_cancellation(&self) -> impl Fn() -> bool {
        let before = self.cancellations.load(Ordering::Relaxed);
        move || self.cancellations.load(Ordering::Relaxed) != before
    }

    /// Resources of a killed agent, each as kind and name.
    pub(crate) fn orphans(&self) -> Vec<String> {
        lock(&self.orphans).iter().map(describe).collect()
    }

    /// Removes the resources of a killed agent, and returns their list.
    ///
    /// # Errors
    /// The first resource that could not be removed; all others are removed.
    pub(crate) fn recover(&self) -> Result<Vec<String>, ApiError> {
        let orphans = std::mem::take(&mut *lock(&self.orphans));
        end_programs(&orphans);
        let mut first_error = None;
        let mut recovered = Vec::new();
        for resource in orphans {
            let removed = match &resource {
                // This agent's own pins are in the same file system, so remove only the pins of
                // other agents.
                Resource::Bpffs { path } => self.remove_foreign_pins(path),
                _ => myelin_linux::journal::remove(&resource)
                    .and_then(|()| self.parts.journal.record_removal(&resource))
                    .map_err(ApiError::failed),
            };
            match removed {
                Ok(()) => recovered.push(describe(&resource)),
                Err(error) => {
                    lock(&self.orphans).push(resource);
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(recovered), Err)
    }

    fn remove_foreign_pins(&self, bpffs: &std::path::Path) -> Result<(), ApiError> {
        for entry in std::fs::read_dir(bpffs).into_iter().flatten().flatten() {
            // Some kernels put files (progs.debug, maps.debug) into every bpffs.
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && entry.path() != self.pin_dir {
                Plane::remove_pins(&entry.path()).map_err(ApiError::failed)?;
            }
        }
        Ok(())
    }

    /// Removes all resources of an agent without chains, except the log in the run directory.
    pub(crate) fn close(&self) {
        // Unmounting the file system removes the pins too, so a failure here is only logged.
        let unpinned = Plane::remove_pins(&self.pin_dir).map_err(ApiError::failed);
        let removed = self.parts.journal.remove_all().map_err(ApiError::failed);
        if let Err(error) = removed {
            tracing::error!(%error, "cannot remove all resources; `myelin down --all` tries again");
            return;
        }
        if let Err(error) = unpinned {
            tracing::warn!(%error, "cannot remove the pins of the eBPF objects; the agent has unmounted their file system");
        }
        let run_dir = &self.parts.run_dir;
        for directory in [
            run_dir.bpf(),
            run_dir.containers(),
            run_dir.runc(),
            run_dir.nodes(),
        ] {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Ends the programs on the hosts of a killed agent, because its namespaces end with them.
fn end_programs(orphans: &[Resource]) {
    let hosts = orphans.iter().filter_map(|resource| match resource {
        Resource::Netns { name, owner } => {
            let is_own = matches!(netns::owner(name), Ok(Some(found)) if found == *owner);
            is_own.then(|| Netns::open(name).ok()).flatten()
        }
        _ => None,
    });
    let hosts: Vec<Netns> = hosts.collect();
    if let Err(error) = process::kill_in_namespaces(&hosts) {
        tracing::warn!(%error, "programs on the hosts of a killed agent go on");
    }
}

/// Returns the share of each core that a control group with a quota has.
fn share_of(cgroup: &str) -> Result<Option<CoreShare>, ApiError> {
    let quota = myelin_linux::cgroup::cpu_quota(cgroup).map_err(ApiError::failed)?;
    let cores = myelin_linux::affinity::count_cores() as u32;
    let ns = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Ok(quota.and_then(|quota| CoreShare::of_quota(ns(quota.quota), ns(quota.period), cores)))
}

/// Each process has its own pin directory, so pins of a killed agent do not collide.
fn open_plane(
    run_dir: &RunDir,
    journal: &Journal,
    clock: Option<&str>,
) -> Result<(Plane, PathBuf), ApiError> {
    let mount = run_dir.bpf();
    let resource = Resource::Bpffs {
        path: mount.clone(),
    };
    if !bpffs::is_bpffs(&mount) {
        journal.record_intent(&resource).map_err(ApiError::failed)?;
        std::fs::create_dir_all(&mount).map_err(|error| {
            ApiError::failed(format!("cannot make {}: {error}", mount.display()))
        })?;
        bpffs::mount(&mount).map_err(ApiError::failed)?;
    }
    let start = myelin_linux::procfs::start_time(std::process::id()).map_err(ApiError::failed)?;
    let pin_dir = mount.join(format!("{}-{start}", std::process::id()));
    let plane = Plane::create_with_clock(Some(&pin_dir), Capacity::default(), clock);
    Ok((plane.map_err(ApiError::failed)?, pin_dir))
}

/// Names a resource in messages.
fn describe(resource: &Resource) -> String {
    match resource {
        Resource::Netns { name, .. } => format!("network namespace {name}"),
        Resource::Link { name } => format!("link {name}"),
        Resource::Links(group) => format!("links {}...", group.prefix),
        Resource::Promiscuous(link) => format!("promiscuous mode of {}", link.name),
        Resource::Qdisc(link) => format!("queueing discipline of {}", link.name),
        Resource::Bpffs { path } => format!("eBPF objects in {}", path.display()),
        Resource::Processes { argument } => format!("process {argument}"),
        Resource::Cgroup { path } => format!("control group {path}"),
        Resource::HugePages { prefix } => format!("hugepages of {prefix}"),
        Resource::Agent { run_dir } => format!("agent of {}", run_dir.display()),
        Resource::File { path } => format!("file {}", path.display()),
        Resource::Directory { path } => format!("directory {}", path.display()),
    }
}
