//! The worker processes of this node, and what they need to run: packet memory, sockets, internal links.
//!
//! One worker serves one owner on one circuit (on all named interfaces together): its sockets share one packet
//! memory, and a queue of an interface can be bound to one packet memory only.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use myelin_dataplane::{
    BusyPoll, Deaths, Idle, Lead, Role, SocketId, WORKER_NAME, WorkerConfig, WorkerHandle, Xsk,
    XskConfig,
};
use myelin_kernel::{Plane, Reentry, Sockets, XdpMode};
use myelin_linux::journal::{Journal, Resource};
use myelin_linux::link::{self, Link, LinkId, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_packet::nsh::ENCAPSULATION_LEN;
use myelin_planner::admission::{RING, SMALL_RING};
use myelin_spec::{SandboxSpec, ServiceChain, WorkerSpec};

use crate::api::ApiError;
use crate::api::{RunDir, short_hash};
use crate::circuit::MTU;
use crate::confinement::{Confinement, Demand};
use crate::deploy::Place;
use crate::engine::default_core;
use crate::pipeline::Stages;
use crate::ports::Ports;
use crate::roster::{Roster, Watched};

/// Which worker serves a chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// `metadata.namespace`.
    pub(crate) owner: String,
    /// The chain that made the circuit; empty for all named interfaces together.
    pub(crate) circuit: String,
}

impl Key {
    /// That of a chain in this place.
    pub(crate) fn of(chain: &ServiceChain, place: &Place) -> Self {
        Self {
            owner: chain.owner().to_owned(),
            circuit: if chain.ports.is_some() {
                String::new()
            } else {
                place.circuit.clone()
            },
        }
    }
}

/// The link over which packets go from a worker back into the kernel.
pub(crate) struct Internal {
    pub(crate) door: Reentry,
    transmit: SocketId,
    /// Where packets come from kernel functions, and on which interface.
    receive: (SocketId, u32),
    resource: Resource,
}

/// A worker and what it was given.
pub(crate) struct Entry {
    pub(crate) handle: WorkerHandle,
    /// By interface and queue.
    sockets: BTreeMap<(u32, u32), SocketId>,
    /// Generations of chains that use the sockets of an interface.
    users: BTreeMap<u32, u32>,
    pub(crate) internal: Option<Internal>,
    /// Further processes of chains in mapping `pipeline`.
    pub(crate) pipelines: Vec<Stages>,
    chains: u32,
    deaths: Deaths,
    /// It kept dying and is not started again.
    pub(crate) failed: bool,
    process: Resource,
    pub(crate) spec: WorkerSpec,
    sandbox: SandboxSpec,
    /// Its control group and container, where it is to have one.
    pub(crate) confinement: Option<Arc<Confinement>>,
}

/// What a worker is started as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) spec: &'a WorkerSpec,
    pub(crate) sandbox: &'a SandboxSpec,
    /// The program that also is the worker.
    pub(crate) program: &'a Path,
    pub(crate) run_dir: &'a RunDir,
}

/// All workers.
#[derive(Default)]
pub(crate) struct Workers {
    entries: Roster<Key, Entry>,
    next: u32,
}

/// What the end of a process means for its chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Death {
    /// A new one runs.
    Restarted,
    /// A worker is given up, and with it all chains that it serves.
    GivenUp,
    /// A process behind a worker is given up, and with it the one chain that it serves.
    StageGivenUp { spi: u32, generation: u16 },
}

impl Workers {
    /// The worker of that key, started when there is none; one more chain uses it.
    ///
    /// # Errors
    /// It keeps dying and was given up, it has other settings, or it cannot be started.
    pub(crate) fn acquire(
        &mut self,
        key: &Key,
        start: &Start<'_>,
        journal: &mut Journal,
    ) -> Result<(), ApiError> {
        if let Some(mut entry) = self.entries.get(key) {
            if entry.failed {
                return Err(ApiError::failed(format!(
                    "the worker of owner {} that would serve this chain kept dying and was given up: first `myelin down` \
                     the chains that `myelin ps` shows as failed",
                    key.owner
                )));
            }
            if entry.spec != *start.spec {
                return Err(ApiError::failed(format!(
                    "spec.worker differs from that of the chain that shares this worker (owner {}): make them \
                     equal, or give the chains different namespaces",
                    key.owner
                )));
            }
            if !is_same_sandbox(&entry.sandbox, start.sandbox) {
                return Err(ApiError::failed(format!(
                    "isolation and limits of {} cannot be changed while its worker runs: `myelin down` the chain first, or \
                     give the function another name",
                    key.circuit
                )));
            }
            entry.chains += 1;
            return Ok(());
        }
        let entry = self.start(key, start, journal)?;
        self.entries.insert(key.clone(), entry);
        Ok(())
    }

    fn start(
        &mut self,
        key: &Key,
        start: &Start<'_>,
        journal: &mut Journal,
    ) -> Result<Entry, ApiError> {
        let Start { spec, program, .. } = *start;
        // The process number tells this agent's workers from those of a killed one.
        let number = format!("{}-{}", std::process::id(), self.next);
        let id = format!("{}-{number}", start.run_dir.id());
        self.next += 1;
        let mut config = WorkerConfig::new(program, &id);
        config.args = vec!["worker".into()];
        config.batch = spec.batch;
        config.core = Some(spec.core.unwrap_or_else(default_core));
        config.idle = Idle::from(spec);
        let process = Resource::Processes {
            argument: format!("{WORKER_NAME}@{id}"),
        };
        journal.intend(&process).map_err(ApiError::failed)?;
        let name = format!("{}-{number}", key.circuit);
        let confinement = confine(&name, start, journal)?;
        if let Some(confinement) = &confinement {
            config.launcher = Some(Arc::clone(confinement) as Arc<_>);
        }
        let handle = WorkerHandle::spawn(config).map_err(|error| match &confinement {
            Some(confinement) => {
                let error = confinement.explain(error);
                confinement.destroy(journal);
                error
            }
            None => ApiError::failed(error),
        })?;
        Ok(Entry {
            handle,
            sockets: BTreeMap::new(),
            users: BTreeMap::new(),
            internal: None,
            pipelines: Vec::new(),
            chains: 1,
            deaths: Deaths::default(),
            failed: false,
            process,
            spec: spec.clone(),
            sandbox: start.sandbox.clone(),
            confinement,
        })
    }

    /// One chain less; with the last one the worker, its sockets and its internal link go.
    pub(crate) fn release(&mut self, key: &Key, journal: &mut Journal) {
        let Some(mut entry) = self.entries.get(key) else {
            return;
        };
        entry.chains -= 1;
        let is_last = entry.chains == 0;
        drop(entry);
        let Some(entry) = is_last.then(|| self.entries.remove(key)).flatten() else {
            return;
        };
        // A worker that is gone already cannot be told to stop.
        let _ = entry.handle.shutdown();
        let _ = journal.removed(&entry.process);
        if let Some(confinement) = &entry.confinement {
            confinement.destroy(journal);
        }
        if let Some(internal) = entry.internal {
            if let Err(error) = internal.door.detach() {
                tracing::warn!(%error, "a re-entry door stays");
            }
            if let Err(error) = myelin_linux::journal::remove(&internal.resource)
                .and_then(|()| journal.removed(&internal.resource))
            {
                tracing::warn!(%error, "an internal link stays");
            }
        }
    }

    /// The worker of that key; waits for whoever works with it.
    pub(crate) fn get(&self, key: &Key) -> Option<MutexGuard<'_, Entry>> {
        self.entries.get(key)
    }

    /// Whether nobody works with the worker of that key now.
    pub(crate) fn is_free(&self, key: &Key) -> bool {
        self.entries.is_free(key)
    }

    /// As [`get`](Self::get), where it must be there.
    pub(crate) fn reach(&self, key: &Key) -> Result<MutexGuard<'_, Entry>, ApiError> {
        self.entries
            .get(key)
            .ok_or_else(|| ApiError::failed(format!("owner {} has no worker here", key.owner)))
    }

    /// For who looks after them.
    pub(crate) fn watched(&self) -> Watched<Key, Entry> {
        self.entries.watched()
    }
}

/// Starts dead workers again, and dead processes behind them. Calls `report` for each that was dead.
pub(crate) fn supervise(workers: &Watched<Key, Entry>, mut report: impl FnMut(&Key, Death)) {
    workers.each_idle(|key, entry| {
        if entry.failed {
            return;
        }
        for death in entry.revive_stages() {
            report(key, death);
        }
        if entry.handle.is_alive() {
            return;
        }
        entry.tell_of_memory(key);
        if entry.deaths.died(Instant::now()) {
            entry.failed = true;
            report(key, Death::GivenUp);
        } else if let Err(error) = entry.handle.restart() {
            tracing::error!(owner = key.owner, %error, "a worker did not come up again");
            if entry.deaths.start_failed() {
                entry.failed = true;
                report(key, Death::GivenUp);
            }
        } else {
            entry.deaths.started();
            report(key, Death::Restarted);
        }
    });
}

/// The place of a worker that asks for one.
fn confine(
    name: &str,
    start: &Start<'_>,
    journal: &mut Journal,
) -> Result<Option<Arc<Confinement>>, ApiError> {
    if start.sandbox.demand().is_none() {
        return Ok(None);
    }
    // Not in the function's namespace: that belongs to one generation, and the worker with its state outlives it. The sockets that
    // reach there are handed over.
    let demand = Demand {
        name,
        isolation: start.sandbox.isolation,
        limits: start.sandbox.limits,
        rootfs: None,
        netns: None,
    };
    let confinement = Confinement::create(&demand, start.run_dir, journal)?;
    Ok(Some(Arc::new(confinement)))
}

/// Whether both ask for the same, wherever that stands.
fn is_same_sandbox(one: &SandboxSpec, other: &SandboxSpec) -> bool {
    (one.isolation, one.limits) == (other.isolation, other.limits)
}

impl Entry {
    /// Says so when the worker died at its memory limit.
    fn tell_of_memory(&self, key: &Key) {
        let confinement = self.confinement.as_ref();
        if let Some(limit) = confinement.and_then(|confinement| confinement.killed_at()) {
            let (owner, function) = (&key.owner, &key.circuit);
            tracing::error!(
                owner,
                function,
                "a worker used more than its memory limit of {limit} and was killed"
            );
        }
    }

    /// Packets that its sockets on that interface could not take: their rings were full, or the worker had no frame left for them.
    pub(crate) fn overflowed(&self, interface: u32) -> u64 {
        let ports = self.sockets.iter();
        let ports = ports.filter(|((port, _), _)| *port == interface);
        let internal = self.internal.iter().map(|internal| internal.receive);
        let internal = internal.filter(|(_, far)| *far == interface);
        let sockets = ports.map(|(_, id)| *id).chain(internal.map(|(id, _)| id));
        let sockets = sockets.filter_map(|id| self.handle.socket(id));
        sockets.map(overflowed).sum()
    }

    /// The interface on which packets come from kernel functions behind user functions.
    pub(crate) fn internal_interface(&self) -> Option<u32> {
        self.internal.as_ref().map(|internal| internal.receive.1)
    }

    /// What went wrong with its worker.
    pub(crate) fn explain(&self, error: impl std::fmt::Display) -> ApiError {
        match &self.confinement {
            Some(confinement) => confinement.explain(error),
            None => ApiError::failed(error),
        }
    }

    /// Sockets on every queue of a port, for receiving and transmitting; made once and shared by all chains of
    /// the worker, until each has closed the port again. Returns the one to transmit on.
    pub(crate) fn open_port(
        &mut self,
        key: &Key,
        ports: &mut Ports,
        ifindex: u32,
    ) -> Result<SocketId, ApiError> {
        *self.users.entry(ifindex).or_default() += 1;
        let opened = self.open_queues(key, ports, ifindex);
        if opened.is_err() {
            self.close_port(key, ports, ifindex);
        }
        opened
    }

    fn open_queues(
        &mut self,
        key: &Key,
        ports: &mut Ports,
        ifindex: u32,
    ) -> Result<SocketId, ApiError> {
        let busy_poll = self.busy_poll();
        let port = ports.bind(ifindex, key)?;
        for queue in 0..port.queues {
            if self.sockets.contains_key(&(ifindex, queue)) {
                continue;
            }
            let mut config = XskConfig::new(&port.name, ifindex, queue, Role::Ingress);
            config.ring_size = if port.queues > 1 { SMALL_RING } else { RING };
            config.busy_poll = busy_poll;
            let xsk = self.bind(&config)?;
            let xsk = xsk.led_by(lead(port.door.sockets(), queue));
            let id = self.handle.add_socket(xsk).map_err(ApiError::failed)?;
            self.sockets.insert((ifindex, queue), id);
        }
        self.sockets
            .get(&(ifindex, 0))
            .copied()
            .ok_or_else(|| ApiError::failed(format!("interface {} has no queue", port.name)))
    }

    /// A chain needs the sockets of that port no longer; with the last one they go, and another owner may have the port.
    pub(crate) fn close_port(&mut self, key: &Key, ports: &mut Ports, ifindex: u32) {
        let users = self.users.get_mut(&ifindex);
        if let Some(users) = users.filter(|users| **users > 1) {
            *users -= 1;
            return;
        }
        self.users.remove(&ifindex);
        let queues = self.sockets.keys().filter(|(port, _)| *port == ifindex);
        for queue in queues.copied().collect::<Vec<_>>() {
            let closed = self
                .sockets
                .remove(&queue)
                .map_or(Ok(()), |id| self.handle.remove_socket(id));
            // One that is dead has none left.
            if let (Err(error), false) = (closed, self.failed) {
                tracing::warn!(owner = key.owner, %error, "closing a socket failed");
            }
        }
        ports.unbind(ifindex, key);
    }

    /// A socket on a link's end in another namespace, for receiving and transmitting.
    pub(crate) fn bind_in(&self, netns: &Netns, link: &LinkId) -> Result<Xsk, ApiError> {
        let mut config = XskConfig::new(&link.name, link.index, 0, Role::Ingress);
        config.ring_size = RING;
        config.busy_poll = self.busy_poll();
        netns
            .enter(|| self.bind(&config))
            .map_err(ApiError::failed)?
    }

    /// The internal link, made once; returns the socket that leads to its re-entry door.
    pub(crate) fn open_internal(
        &mut self,
        plane: &Plane,
        journal: &mut Journal,
    ) -> Result<SocketId, ApiError> {
        if let Some(internal) = &self.internal {
            return Ok(internal.transmit);
        }
        let base = format!("my{}", short_hash(self.handle.config().run_id.as_bytes()));
        let (near, far) = (format!("{base}a"), format!("{base}b"));
        let resource = Resource::Link { name: near.clone() };
        journal.intend(&resource).map_err(ApiError::failed)?;
        match self.make_internal(plane, &near, &far) {
            Ok((door, transmit, receive)) => {
                self.internal = Some(Internal {
                    door,
                    transmit,
                    receive,
                    resource,
                });
                Ok(transmit)
            }
            Err(error) => {
                // The error that made it necessary is the one to report; what stays is in the journal.
                let _ = myelin_linux::journal::remove(&resource)
                    .and_then(|()| journal.removed(&resource));
                Err(error)
            }
        }
    }

    fn make_internal(
        &mut self,
        plane: &Plane,
        near: &str,
        far: &str,
    ) -> Result<(Reentry, SocketId, (SocketId, u32)), ApiError> {
        let (near, far) = make_internal_link(near, far)?;
        let door = plane.add_reentry(far.index).map_err(ApiError::failed)?;
        let mut receiving = None;
        let made = door
            .attach_xdp(XdpMode::Native)
            .map_err(ApiError::failed)
            .and_then(|()| {
                let receive = self.bind(&self.internal_socket(&far, Role::Ingress))?;
                let receive = receive.led_by(lead(door.sockets(), 0));
                let receive = self.handle.add_socket(receive).map_err(ApiError::failed)?;
                receiving = Some(receive);
                let transmit = self.bind(&self.internal_socket(&near, Role::Egress))?;
                let transmit = self.handle.add_socket(transmit).map_err(ApiError::failed)?;
                Ok((transmit, receive))
            });
        match made {
            Ok((transmit, receive)) => Ok((door, transmit, (receive, far.index))),
            Err(error) => {
                if let Some(receiving) = receiving {
                    let _ = self.handle.remove_socket(receiving);
                }
                let _ = door.detach();
                Err(error)
            }
        }
    }

    fn internal_socket(&self, link: &Link, role: Role) -> XskConfig {
        let mut config = XskConfig::new(&link.name, link.index, 0, role);
        config.ring_size = RING;
        config.busy_poll = self.busy_poll();
        config
    }

    fn bind(&self, config: &XskConfig) -> Result<Xsk, ApiError> {
        Xsk::bind(self.handle.umem(), config, self.handle.first_socket()).map_err(ApiError::failed)
    }

    fn busy_poll(&self) -> Option<BusyPoll> {
        self.spec.busy_poll_ns.map(|ns| BusyPoll {
            time: Duration::from_nanos(ns),
            budget: self.spec.batch.max(8),
        })
    }
}

/// Packets that a socket could not take; what it does not tell is none.
pub(crate) fn overflowed(socket: &Xsk) -> u64 {
    let counted = socket.statistics().unwrap_or_default();
    counted.rx_dropped + counted.rx_ring_full
}

/// The way to a socket of a queue.
pub(crate) fn lead(sockets: Sockets, queue: u32) -> Lead {
    Arc::new(move |socket| {
        sockets
            .set(queue, socket)
            .map_err(|error| error.to_string())
    })
}

/// Both ends of an internal link, up, and wide enough for a full packet behind an NSH header.
fn make_internal_link(near: &str, far: &str) -> Result<(Link, Link), ApiError> {
    let mtu = Some(MTU + ENCAPSULATION_LEN as u32);
    let make = || -> myelin_linux::Result<(Link, Link)> {
        let mut netlink = Netlink::open()?;
        let end = |name| VethEnd {
            mtu,
            ..VethEnd::named(name)
        };
        netlink.apply([link::veth(&end(near), &end(far))?])?;
        let (near, far) = (netlink.link(near)?, netlink.link(far)?);
        netlink.apply([
            link::no_ipv6_autoconfiguration(&near.id()),
            link::no_ipv6_autoconfiguration(&far.id()),
            link::up(&near.id()),
            link::up(&far.id()),
        ])?;
        Ok((near, far))
    };
    make().map_err(ApiError::failed)
}
