//! What may be read of a worker while somebody else works with its handle.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::net::sockopt::xdp_statistics;

use crate::chain::SocketId;
use crate::idle::Idle;

/// A worker's process, setting and sockets as of now. Reading takes microseconds and waits for no request.
#[derive(Debug)]
pub struct WorkerFacts {
    core: Option<u32>,
    pid: AtomicU32,
    restarts: AtomicU64,
    idle: Mutex<Idle>,
    /// The handle closes a socket only after it was taken out here, so that nobody keeps it open who reads.
    sockets: Mutex<BTreeMap<SocketId, Weak<OwnedFd>>>,
}

impl WorkerFacts {
    pub(crate) fn new(core: Option<u32>, idle: Idle) -> Arc<Self> {
        Arc::new(Self {
            core,
            pid: AtomicU32::new(0),
            restarts: AtomicU64::new(0),
            idle: Mutex::new(idle),
            sockets: Mutex::default(),
        })
    }

    /// The number of its process; 0 when there is none because a restart failed.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// How often it was started anew.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// The core that it is bound to.
    pub fn core(&self) -> Option<u32> {
        self.core
    }

    /// What it does while no packet is there.
    pub fn idle(&self) -> Idle {
        *lock(&self.idle)
    }

    /// Packets that a socket could not take: its ring was full, or the worker had no frame left for them. Nothing when there is
    /// no such socket.
    pub fn overflowed(&self, id: SocketId) -> Option<u64> {
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

    pub(crate) fn forget_socket(&self, id: SocketId) {
        lock(&self.sockets).remove(&id);
    }
}

/// One assignment leaves nothing half done for whoever comes after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
