//! The agent's side of turns: describes the tasks and rings of a core to its workers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use myelin_policy::sharing::{Lane, Parameters, SharedCore};
use myelin_spec::SharingSpec;

use super::{CoreStats, RingKind, Table, TableFile, TaskStats, TurnSetup};
use crate::chain::SocketId;
use crate::error::Error;
use crate::ring_link::RingLink;
use crate::sys::MAX_FDS;

/// A worker or pipeline stage that takes turns: the rings that it reads, and where it writes.
#[derive(Debug, Default)]
pub struct Member {
    pub(crate) lanes: Vec<MemberLane>,
}

impl Member {
    /// Whether the member reads no ring, so that it needs no turn.
    pub fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The rings that the member reads, each with its capacity in packets and a descriptor for
    /// [`RingObserver::open`](super::RingObserver::open). Leaves out rings that are closed, and
    /// replay ports.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn rings(&self) -> io::Result<Vec<(RingKind, u32, OwnedFd)>> {
        let rings = self.lanes.iter().map(|lane| &lane.ingress);
        let open = rings.filter_map(|ring| {
            let fd = match ring {
                MemberRing::Socket { fd, .. } => fd.upgrade()?.try_clone(),
                MemberRing::Pipeline(link) => link.ring.fd().try_clone_to_owned(),
                MemberRing::Replay(_) => return None,
            };
            Some(fd.map(|fd| (ring.kind(), ring.capacity(), fd)))
        });
        open.collect()
    }
}

/// A ring that a member reads, and the ring that it then writes, if that is one.
#[derive(Debug)]
pub(crate) struct MemberLane {
    /// The member's port for the ring.
    pub(crate) port: SocketId,
    pub(crate) ingress: MemberRing,
    pub(crate) egress: Option<Arc<RingLink>>,
}

/// A ring that a member reads.
#[derive(Debug, Clone)]
pub(crate) enum MemberRing {
    /// A socket, as a weak reference, so that the table never keeps a socket open.
    Socket {
        fd: Weak<OwnedFd>,
        entries: u32,
    },
    Pipeline(Arc<RingLink>),
    /// A replay port with this number of frames.
    Replay(u32),
}

impl MemberRing {
    fn kind(&self) -> RingKind {
        match self {
            Self::Socket { entries, .. } => RingKind::Socket { entries: *entries },
            Self::Pipeline(_) => RingKind::Pipeline,
            Self::Replay(packets) => RingKind::Replay { packets: *packets },
        }
    }

    fn capacity(&self) -> u32 {
        match self {
            Self::Socket { entries, .. } => *entries,
            Self::Pipeline(link) => link.entries(),
            Self::Replay(packets) => *packets,
        }
    }
}

/// The shared table of one core, and the description of its tasks.
///
/// Each worker that gets the table keeps the sockets of all tasks open. So take the table from all
/// workers ([`WorkerHandle::share`](crate::WorkerHandle::share)) before one of them closes a
/// socket.
#[derive(Debug)]
pub struct CoreTable {
    file: TableFile,
    table: Table,
    core: SharedCore,
    policy: Parameters,
    rings: Vec<MemberRing>,
    budgets_ns: Vec<u64>,
    /// For each task: its ports, each with its lane.
    ports: Vec<Vec<(SocketId, usize)>>,
}

impl CoreTable {
    /// Makes the table of a core with these tasks, in chain order, each with the longest time of
    /// its packets on the core, ns; [`SharingSpec::DEFAULT_BUDGET_NS`] without one.
    ///
    /// Every task counts as alive from now on, also before its process has the table. If the core
    /// went only to tasks that have answered, the first ones could keep a process that must answer
    /// from running.
    ///
    /// # Errors
    /// There is no memory, or the tasks read more than 252 rings.
    pub fn create(members: &[(Member, Option<u64>)], policy: Parameters) -> Result<Self, Error> {
        let mut rings: Vec<MemberRing> = Vec::new();
        let mut ring_of_link = BTreeMap::new();
        let mut budgets_ns = Vec::new();
        for (lane, budget_ns) in members
            .iter()
            .flat_map(|(member, budget_ns)| member.lanes.iter().map(move |lane| (lane, budget_ns)))
        {
            if let MemberRing::Pipeline(link) = &lane.ingress {
                ring_of_link.insert(Arc::as_ptr(link), rings.len());
            }
            rings.push(lane.ingress.clone());
            budgets_ns.push(budget_ns.unwrap_or(SharingSpec::DEFAULT_BUDGET_NS));
        }
        if rings.len() >= MAX_FDS {
            return Err(Error::Parameter {
                what: "number of rings that the workers of one core read",
                value: rings.len() as u64,
                expected: "at most 252",
            });
        }
        let mut lanes = Vec::new();
        let mut ports = Vec::new();
        for (task, (member, _)) in members.iter().enumerate() {
            let own = member.lanes.iter().map(|lane| {
                let index = lanes.len();
                let egress = lane.egress.as_ref().map(Arc::as_ptr);
                lanes.push(Lane {
                    task,
                    ingress: index,
                    // A ring that another core reads always has room, as far as this core knows.
                    egress: egress.and_then(|link| ring_of_link.get(&link).copied()),
                });
                (lane.port, index)
            });
            ports.push(own.collect());
        }
        let core = SharedCore {
            tasks: members.len(),
            lanes,
            capacities: rings.iter().map(MemberRing::capacity).collect(),
        };
        let file = TableFile::create(&core)?;
        let table = Table::map(file.fd(), &core)?;
        (0..core.tasks).for_each(|task| table.set_alive(task, true));
        Ok(Self {
            file,
            table,
            core,
            policy,
            rings,
            budgets_ns,
            ports,
        })
    }

    /// Returns the counters of the core.
    pub fn stats(&self) -> CoreStats {
        self.table.stats()
    }

    /// Reads a task and its rings, as they were at the last look of the task that has the core.
    fn level(&self, task: usize) -> TaskLevel {
        let mut level = TaskLevel {
            stats: self.table.task_stats(task),
            ..TaskLevel::default()
        };
        for lane in self.core.lanes.iter().filter(|lane| lane.task == task) {
            let (packets, since_ns) = self.table.ring(lane.ingress).level();
            level.packets = level.packets.saturating_add(packets);
            level.oldest_ns = match (level.oldest_ns, since_ns) {
                (Some(oldest_ns), Some(since_ns)) => Some(oldest_ns.min(since_ns)),
                (oldest_ns, since_ns) => oldest_ns.or(since_ns),
            };
        }
        level
    }

    /// The description for one task.
    pub(crate) fn setup(&self, task: usize) -> TurnSetup {
        TurnSetup {
            core: self.core.clone(),
            policy: self.policy,
            task,
            rings: self.rings.iter().map(MemberRing::kind).collect(),
            budgets_ns: self.budgets_ns.clone(),
            ports: self.ports.get(task).cloned().unwrap_or_default(),
        }
    }

    /// Calls `send` with the descriptors of the table and of all rings. Returns `None` if a socket
    /// is closed.
    pub(crate) fn with_fds<T>(&self, send: impl FnOnce(&[BorrowedFd<'_>]) -> T) -> Option<T> {
        let open = self.rings.iter().map(|ring| match ring {
            MemberRing::Socket { fd, .. } => fd.upgrade().map(Some),
            MemberRing::Pipeline(_) | MemberRing::Replay(_) => Some(None),
        });
        let open: Vec<Option<Arc<OwnedFd>>> = open.collect::<Option<_>>()?;
        let rings = self.rings.iter().zip(&open);
        let rings = rings.filter_map(|(ring, socket)| match (ring, socket) {
            (MemberRing::Pipeline(link), _) => Some(link.ring.fd()),
            // A ring without a descriptor has the table's.
            (MemberRing::Replay(_), _) => Some(self.file.fd()),
            (MemberRing::Socket { .. }, socket) => socket.as_ref().map(|fd| fd.as_fd()),
        });
        let fds: Vec<_> = std::iter::once(self.file.fd()).chain(rings).collect();
        Some(send(&fds))
    }
}

/// Reads one task of a shared core from mapped memory, without a lock, an allocation or a system
/// call.
#[derive(Debug, Clone)]
pub struct TaskObserver {
    table: Arc<CoreTable>,
    task: usize,
}

impl TaskObserver {
    pub(crate) fn new(table: Arc<CoreTable>, task: usize) -> Option<Self> {
        (task < table.core.tasks).then_some(Self { table, task })
    }

    /// Reads the task.
    pub fn read(&self) -> TaskLevel {
        self.table.level(self.task)
    }
}

/// A task of a shared core at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskLevel {
    /// The task's counters, since the tasks or rings of the core last changed.
    pub stats: TaskStats,
    /// Packets in the rings that the task reads.
    pub packets: u64,
    /// The time since which the oldest of them is there, ns of the monotonic clock.
    pub oldest_ns: Option<u64>,
}
