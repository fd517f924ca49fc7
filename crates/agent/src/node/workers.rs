//! The worker processes of this node, their UMEMs, sockets, internal links and devices.
//!
//! One worker serves one owner on one circuit, on all named interfaces together, or on one pair of
//! DPDK devices. The worker's ports share one UMEM, and an interface queue can be bound to only one
//! UMEM.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use myelin_dataplane::{
    BusyPoll, Deaths, DevicePair, Idle, Role, SocketId, SocketRedirect, Stats, WorkerConfig,
    WorkerFacts, WorkerHandle, Xsk, XskConfig,
};
use myelin_kernel::{Plane, Reentry, Sockets};
use myelin_linux::journal::{Journal, Resource, ResourceGuard};
use myelin_linux::link::LinkId;
use myelin_linux::netns::Netns;
use myelin_planner::WorkerPlan;
use myelin_spec::{SandboxSpec, WorkerSpec};

use crate::api::ApiError;
use crate::node::confinement::Confinement;
use crate::node::cores::Cores;
use crate::node::devices::Claim;
use crate::node::internal_link::InternalLink;
use crate::node::ports::{PortLease, QueueClaim};
use crate::node::stages::Stages;
use crate::pool::{Lease, Pool, lock};

mod change;
mod packet_sockets;
mod start;
mod turns;

pub(crate) use change::{WorkerChange, can_change};
pub(crate) use start::WorkerStart;
use start::{SMALL_FRAME_MTU, create_confinement};

/// The interval for counting deaths of a DPDK worker. It is long, because the worker starts slowly.
const DEVICES_WINDOW: Duration = Duration::from_secs(30);

/// Full rings for which a UMEM has frames, at least.
const RINGS_OF_UMEM: u32 = 4;

/// Size of a frame for longer packets, bytes.
const LARGE_FRAME: u32 = 4096;

/// Identifies the worker that serves a chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The owner: `metadata.namespace` of the chain file.
    pub(crate) owner: String,
    /// What the worker serves ([`WorkerPlan::circuit`]).
    pub(crate) circuit: String,
}

impl Key {
    /// Returns the key of a planned worker.
    pub(crate) fn of(worker: &WorkerPlan) -> Self {
        Self {
            owner: worker.owner.clone(),
            circuit: worker.circuit.clone(),
        }
    }

    /// Returns the key of a function's own worker, in mapping `distributed`.
    pub(crate) fn of_function(worker: &WorkerPlan, function: &str) -> Self {
        Self {
            owner: worker.owner.clone(),
            circuit: format!("{}{function}", worker.circuit),
        }
    }
}

/// All workers.
pub(crate) type Workers = Pool<Key, Worker>;
/// A chain's lease on a worker.
pub(crate) type WorkerLease = Lease<Key, Worker>;

/// A worker and its resources. Dropping the value ends the process after its last batch.
pub(crate) struct Worker {
    // Fields drop in this order, after the process has ended.
    state: Mutex<WorkerState>,
    pub(crate) key: Key,
    /// The settings, readable without the lock of the state.
    settings: Arc<Mutex<WorkerSpec>>,
    sandbox: SandboxSpec,
    /// Size of a frame in the UMEM, bytes.
    frame_size: u32,
    /// The worker's counters, readable without the lock.
    pub(crate) stats: Arc<Stats>,
    /// The worker's process, core and sockets, readable without the lock.
    pub(crate) facts: Arc<WorkerFacts>,
    failed: AtomicBool,
    /// The cores of the node, to stop turns before the worker ends.
    pub(crate) cores: Arc<Cores>,
    /// Whether a thread of the supervisor restarts the process or its stages.
    pub(crate) is_restarting: AtomicBool,
    /// The pair of DPDK devices that the worker drives.
    pub(crate) devices: Option<Claim>,
    /// The worker's control group and container, if it has limits or isolation.
    pub(crate) confinement: Option<Arc<Confinement>>,
    _recorded: Vec<ResourceGuard>,
}

/// The mutable state of a worker, under its lock. A request to the process may hold the lock while
/// the process makes a function.
pub(crate) struct WorkerState {
    /// `None` only while the worker is dropped.
    handle: Option<WorkerHandle>,
    key: Key,
    settings: Arc<Mutex<WorkerSpec>>,
    /// Sockets of ports, by interface and queue.
    sockets: BTreeMap<(u32, u32), SocketId>,
    /// For each interface: the number of generations that use its sockets, and the claim on its
    /// queues.
    users: BTreeMap<u32, (u32, Option<QueueClaim>)>,
    internal: Option<InternalLink>,
    /// The stages of chains in mapping `pipeline`.
    pub(crate) pipelines: Vec<Stages>,
    /// The agreed delay of each generation that has one, ns, by SPI and number.
    pub(crate) budgets_ns: BTreeMap<(u32, u16), u64>,
    pub(crate) deaths: Deaths,
    confinement: Option<Arc<Confinement>>,
    pub(crate) journal: Journal,
}

impl Worker {
    /// Starts a worker; `devices` makes it a DPDK worker.
    ///
    /// # Errors
    /// The process cannot be started, or refuses its set-up.
    pub(crate) fn start(
        key: &Key,
        start: WorkerStart<'_>,
        devices: Option<Claim>,
    ) -> Result<Self, ApiError> {
        let WorkerStart { spec, parts, .. } = start;
        let journal = &parts.journal;
        // The process number distinguishes this agent's workers from workers of a killed agent.
        let number = format!("{}-{}", std::process::id(), parts.take_worker_number());
        let id = format!("{}-{number}", parts.run_id);
        let mut config = WorkerConfig::new(&parts.program, &id);
        config.args = vec!["worker".into()];
        config.batch = spec.batch;
        if start.needs_large_frames() {
            config.frame_size = LARGE_FRAME;
        }
        let frame_size = config.frame_size;
        config.core = Some(start.core);
        config.ring = spec.ring;
        // As many rings have room as with the default.
        config.frames = config.frames.max(RINGS_OF_UMEM * spec.ring);
        config.idle = Idle::from(spec);
        if spec.super_packets {
            config.args.push("--packet-sockets".into());
            config.packet_sockets = true;
        }
        let mut resources = Vec::new();
        if let Some(claim) = &devices {
            let prefix = format!("myelin-{id}");
            resources.push(Resource::Directory {
                path: myelin_dpdk::runtime_directory(&prefix),
            });
            if spec.hugepages {
                let prefix = prefix.clone();
                resources.push(Resource::HugePages { prefix });
            }
            config.args.push("--dpdk".into());
            config.devices = Some(DevicePair {
                devices: claim.devices().clone(),
                prefix,
                hugepages: spec.hugepages,
            });
        }
        resources.push(Resource::Processes {
            argument: config.process_name(),
        });
        let recorded = resources.into_iter().map(|it| journal.guard(it));
        let recorded = recorded.collect::<Result<Vec<_>, _>>();
        let recorded = recorded.map_err(ApiError::failed)?;
        let confinement = create_confinement(&format!("{}-{number}", key.circuit), start)?;
        if let Some(confinement) = &confinement {
            config.launcher = Some(Arc::clone(confinement) as Arc<_>);
        }
        let handle =
            WorkerHandle::spawn(config).map_err(|error| explain(confinement.as_ref(), error))?;
        let settings = Arc::new(Mutex::new(spec.clone()));
        Ok(Self {
            stats: handle.stats(),
            facts: handle.facts(),
            state: Mutex::new(WorkerState {
                handle: Some(handle),
                key: key.clone(),
                settings: Arc::clone(&settings),
                sockets: BTreeMap::new(),
                users: BTreeMap::new(),
                internal: None,
                pipelines: Vec::new(),
                budgets_ns: BTreeMap::new(),
                deaths: if devices.is_some() {
                    Deaths::within(DEVICES_WINDOW)
                } else {
                    Deaths::default()
                },
                confinement: confinement.clone(),
                journal: journal.clone(),
            }),
            key: key.clone(),
            settings,
            sandbox: start.sandbox.clone(),
            frame_size,
            failed: AtomicBool::new(false),
            cores: Arc::clone(&parts.cores),
            is_restarting: AtomicBool::new(false),
            devices,
            confinement,
            _recorded: recorded,
        })
    }

    /// Checks that this worker can serve a chain with these settings.
    ///
    /// # Errors
    /// The worker is no longer restarted, has other settings, or frames too small for the chain's
    /// packets.
    pub(crate) fn check(&self, start: WorkerStart<'_>) -> Result<(), ApiError> {
        let WorkerStart {
            spec, sandbox, mtu, ..
        } = start;
        let owner = &self.key.owner;
        let is_other = *lock(&self.settings) != *spec;
        let problem = if self.has_failed() {
            format!(
                "the chain's worker (owner {owner}) ended too often and is no longer restarted: first remove the \
                chains that `myelin ps` shows as failed, with `myelin down`"
            )
        } else if is_other && self.devices.is_some() {
            "spec.worker differs from spec.worker of the chain that shares these devices: make both equal"
                .to_owned()
        } else if is_other {
            format!(
                "spec.worker differs from spec.worker of the chain that shares this worker (owner {owner}): make both \
                equal, or give the chains different namespaces"
            )
        } else if (self.sandbox.isolation, self.sandbox.limits)
            != (sandbox.isolation, sandbox.limits)
        {
            format!(
                "isolation and limits of {} cannot be changed while its worker runs: first remove the chain with `myelin down`, \
                or give the function another name",
                self.key.circuit
            )
        } else if start.needs_large_frames() && self.frame_size < LARGE_FRAME {
            format!(
                "a port has an MTU of {mtu}, and the frames of the running worker (owner {owner}) hold IP packets of at most \
                {SMALL_FRAME_MTU} bytes: first remove the worker's chains with `myelin down`, or give the chain another namespace"
            )
        } else {
            return Ok(());
        };
        Err(ApiError::failed(problem))
    }

    /// Returns the present settings.
    pub(crate) fn settings(&self) -> WorkerSpec {
        lock(&self.settings).clone()
    }

    /// Locks the state. Waits while a request holds it.
    pub(crate) fn state(&self) -> MutexGuard<'_, WorkerState> {
        lock(&self.state)
    }

    /// Locks the state, unless a request holds it.
    pub(crate) fn try_lock_state(&self) -> Option<MutexGuard<'_, WorkerState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(std::sync::TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Whether the worker ended too often and is no longer restarted.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Marks a worker that ended too often. The supervisor no longer restarts it.
    pub(crate) fn mark_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Counts the packets that these sockets dropped, because a ring was full or the worker had no
    /// free frame.
    pub(crate) fn count_overflows(&self, sockets: &[SocketId]) -> u64 {
        let counted = sockets.iter().map(|id| self.facts.overflowed(*id));
        counted.flatten().sum()
    }

    /// Logs a kill of the worker at its memory limit, if the kernel killed the worker since the
    /// last call.
    pub(crate) fn log_oom_kill(&self) {
        let confinement = self.confinement.as_ref();
        if let Some(limit) = confinement.and_then(|confinement| confinement.take_oom_limit()) {
            let Key { owner, circuit } = &self.key;
            tracing::error!(
                owner,
                function = circuit,
                "the kernel killed a worker that exceeded its memory limit of {limit}; raise `limits.memory`"
            );
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(handle) = state.handle.take() else {
            return;
        };
        let cores = Arc::clone(&self.cores);
        // The process may be dead already.
        let _ = cores.without_turns(self, || handle.shutdown());
    }
}

impl WorkerState {
    /// Returns the present settings.
    pub(crate) fn settings(&self) -> WorkerSpec {
        lock(&self.settings).clone()
    }

    /// The handle of the process.
    pub(crate) fn handle(&mut self) -> &mut WorkerHandle {
        match &mut self.handle {
            Some(handle) => handle,
            None => unreachable!("a worker has its process until it is dropped"),
        }
    }

    /// Adds the memory limit to an error of the process, if the limit caused the error.
    pub(crate) fn explain(&self, error: impl std::fmt::Display) -> ApiError {
        explain(self.confinement.as_ref(), error)
    }

    /// Opens sockets on every queue of a port. All chains of the worker share the sockets until the
    /// last chain closes the port. Returns the socket to transmit on.
    fn open_port(&mut self, port: &PortLease) -> Result<SocketId, ApiError> {
        let claim = QueueClaim::claim(port.clone(), &self.key)?;
        let users = self.users.entry(port.ifindex).or_insert((0, Some(claim)));
        users.0 += 1;
        let opened = self.open_queues(port);
        if opened.is_err() {
            self.close_port(port.ifindex);
        }
        opened
    }

    fn open_queues(&mut self, port: &PortLease) -> Result<SocketId, ApiError> {
        for queue in 0..port.queues {
            if self.sockets.contains_key(&(port.ifindex, queue)) {
                continue;
            }
            let mut config = XskConfig::new(&port.name, port.ifindex, queue, Role::Ingress);
            config.ring_size = self.settings().receive_ring(port.queues);
            let xsk = self.bind(config)?;
            let xsk = xsk.with_redirect(socket_redirect(port.door().sockets(), queue));
            let id = self.handle().add_socket(xsk).map_err(ApiError::failed)?;
            self.sockets.insert((port.ifindex, queue), id);
        }
        let first = self.sockets.get(&(port.ifindex, 0)).copied();
        first.ok_or_else(|| ApiError::failed(format!("interface {} has no queue", port.name)))
    }

    /// Closes a port for one generation. For the last generation, closes the sockets and frees the
    /// queues for other owners.
    fn close_port(&mut self, ifindex: u32) {
        if let Some((users, _)) = self.users.get_mut(&ifindex) {
            *users -= 1;
            if *users > 0 {
                return;
            }
        }
        let queues = self.sockets.keys().filter(|(port, _)| *port == ifindex);
        for queue in queues.copied().collect::<Vec<_>>() {
            if let Some(id) = self.sockets.remove(&queue) {
                self.close_socket(id);
            }
        }
        self.users.remove(&ifindex);
    }

    /// Closes a socket of the worker.
    pub(crate) fn close_socket(&mut self, id: SocketId) {
        // A dead process has no sockets.
        if let Err(error) = self.handle().remove_socket(id)
            && self.handle().is_alive()
        {
            tracing::warn!(owner = self.key.owner, %error, "cannot close a socket of a worker");
        }
    }

    /// Opens a socket on a link's end in another namespace, for receiving and transmitting.
    pub(crate) fn bind_in(&mut self, netns: &Netns, link: &LinkId) -> Result<Xsk, ApiError> {
        let mut config = XskConfig::new(&link.name, link.index, 0, Role::Ingress);
        config.ring_size = self.settings().receive_ring(1);
        netns
            .enter(|| self.bind(config))
            .map_err(ApiError::failed)?
    }

    /// Opens the internal link on first use. Returns the socket that transmits to the re-entry
    /// door, and the door.
    pub(crate) fn open_internal(
        &mut self,
        plane: &Plane,
    ) -> Result<(SocketId, Arc<Reentry>), ApiError> {
        if self.internal.is_none() {
            self.internal = Some(InternalLink::make(self, plane)?);
        }
        let internal = self.internal.as_ref();
        let internal = internal.map(|link| (link.transmit, link.door()));
        internal.ok_or_else(|| ApiError::failed("a worker has no internal link"))
    }

    /// Returns the sockets that receive on an interface of a port or of the internal link.
    pub(crate) fn receiving_sockets(&self, ifindex: u32) -> Vec<SocketId> {
        let ports = self.sockets.iter();
        let ports = ports.filter(|((port, _), _)| *port == ifindex);
        let internal = self.internal.iter().map(|internal| internal.receive);
        let internal = internal.filter(|(_, far)| *far == ifindex);
        let ports = ports.map(|(_, id)| *id);
        ports.chain(internal.map(|(id, _)| id)).collect()
    }

    /// The interface on which packets arrive from kernel functions behind user functions.
    pub(crate) fn internal_interface(&self) -> Option<u32> {
        self.internal.as_ref().map(|internal| internal.receive.1)
    }

    pub(crate) fn bind(&mut self, mut config: XskConfig) -> Result<Xsk, ApiError> {
        let settings = self.settings();
        config.busy_poll = settings.busy_poll_ns.map(|ns| BusyPoll {
            time: Duration::from_nanos(ns),
            budget: settings.batch.max(8),
        });
        let handle = self.handle();
        Xsk::bind(handle.umem(), &config, handle.first_socket()).map_err(ApiError::failed)
    }
}

/// A generation's use of its worker's sockets on a port.
pub(crate) struct OpenPort {
    worker: WorkerLease,
    pub(crate) ifindex: u32,
    /// The socket to transmit on.
    pub(crate) socket: SocketId,
}

impl OpenPort {
    /// Opens the port for one more generation of a chain.
    pub(crate) fn open(worker: &WorkerLease, port: &PortLease) -> Result<Self, ApiError> {
        let socket = worker.state().open_port(port)?;
        Ok(Self {
            worker: worker.clone(),
            ifindex: port.ifindex,
            socket,
        })
    }
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        let worker = &self.worker;
        let close = || worker.state().close_port(self.ifindex);
        worker.cores.without_turns(&**worker, close);
    }
}

/// Returns a function that puts a socket into the redirect map at `queue`.
pub(crate) fn socket_redirect(sockets: Sockets, queue: u32) -> SocketRedirect {
    Arc::new(move |socket| {
        sockets
            .set(queue, socket)
            .map_err(|error| error.to_string())
    })
}

fn explain(confinement: Option<&Arc<Confinement>>, error: impl std::fmt::Display) -> ApiError {
    match confinement {
        Some(confinement) => confinement.explain(error),
        None => ApiError::failed(error),
    }
}
