//! State of a worker that other threads read while one thread uses its handle.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::net::sockopt::xdp_statistics;

use crate::chain::SocketId;
use crate::idle::Idle;
use crate::sys;
use crate::turns::TaskObserver;

/// The process, settings and sockets of a worker. To read them takes microseconds, also while a
/// request runs.
#[derive(Debug)]
pub struct WorkerFacts {
    core: Mutex<Option<u32>>,
    /// The worker's task on a shared core.
    task: Mutex<Option<TaskObserver>>,
    pid: AtomicU32,
    restarts: AtomicU64,
    idle: Mutex<Idle>,
    /// The sockets, as weak references, so that a reader never keeps a socket open. The handle
    /// removes a reference before it closes the socket.
    sockets: Mutex<BTreeMap<SocketId, Weak<OwnedFd>>>,
    /// The packet sockets, each with the number of packets that it dropped so far. The kernel
    /// forgets the number when it is read.
    packet_sockets: Mutex<BTreeMap<SocketId, (Weak<OwnedFd>, u64)>>,
}

impl WorkerFacts {
    pub(crate) fn new(core: Option<u32>, idle: Idle) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(core),
            task: Mutex::default(),
            pid: AtomicU32::new(0),
            restarts: AtomicU64::new(0),
            idle: Mutex::new(idle),
            sockets: Mutex::default(),
            packet_sockets: Mutex::default(),
        })
    }

    /// Returns the process number; 0 after a failed restart.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Returns the number of restarts.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Returns the core that the worker is pinned to.
    pub fn core(&self) -> Option<u32> {
        *lock(&self.core)
    }

    /// Returns the worker's task on a core that it shares by turns.
    pub fn task(&self) -> Option<TaskObserver> {
        lock(&self.task).clone()
    }

    pub(crate) fn set_task(&self, task: Option<TaskObserver>) {
        *lock(&self.task) = task;
    }

    pub(crate) fn set_core(&self, core: u32) {
        *lock(&self.core) = Some(core);
    }

    /// Returns the behaviour of the worker without packets.
    pub fn idle(&self) -> Idle {
        *lock(&self.idle)
    }

    /// Returns the number of packets that a socket dropped because its ring or buffer was full or
    /// the worker had no free frame; `None` if the socket does not exist. A super-packet counts
    /// once.
    pub fn overflowed(&self, id: SocketId) -> Option<u64> {
        if let Some((socket, dropped)) = lock(&self.packet_sockets).get_mut(&id) {
            let fresh = sys::take_packet_drops(socket.upgrade()?.as_fd()).ok()?;
            *dropped += u64::from(fresh);
            return Some(*dropped);
        }
        let sockets = lock(&self.sockets);
        let counted = xdp_statistics(sockets.get(&id)?.upgrade()?).ok()?;
        Some(counted.rx_dropped + counted.rx_ring_full.unwrap_or_default())
    }

    pub(crate) fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    pub(crate) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_idle(&self, idle: Idle) {
        *lock(&self.idle) = idle;
    }

    pub(crate) fn add_socket(&self, id: SocketId, socket: &Arc<OwnedFd>) {
        lock(&self.sockets).insert(id, Arc::downgrade(socket));
    }

    pub(crate) fn add_packet_socket(&self, id: SocketId, socket: &Arc<OwnedFd>) {
        lock(&self.packet_sockets).insert(id, (Arc::downgrade(socket), 0));
    }

    pub(crate) fn forget_socket(&self, id: SocketId) {
        lock(&self.sockets).remove(&id);
        lock(&self.packet_sockets).remove(&id);
    }
}

/// Locks `mutex`. No update here can panic halfway, so a poisoned lock is safe to use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
