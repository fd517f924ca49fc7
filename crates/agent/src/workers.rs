//! The worker processes of this node, and what they need to run: packet memory, sockets, internal links.
//!
//! One worker serves one owner on one circuit (on all named interfaces together): its sockets share one packet
//! memory, and a queue of an interface can be bound to one packet memory only.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use myelin_dataplane::{
    BusyPoll, Idle, Role, SocketId, WORKER_NAME, WorkerConfig, WorkerHandle, Xsk, XskConfig,
};
use myelin_kernel::{Plane, Reentry, XdpMode};
use myelin_linux::journal::{Journal, Resource};
use myelin_linux::link::{self, Link, LinkId, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_packet::nsh::ENCAPSULATION_LEN;
use myelin_spec::{Idle as IdleSpec, ServiceChain, WorkerSpec};

use crate::api::ApiError;
use crate::circuit::MTU;
use crate::deploy::Place;
use crate::paths::short_hash;
use crate::pipeline::Stages;
use crate::ports::Ports;

/// A worker that dies more often than this within [`DEATH_WINDOW`] is not started again.
const MAX_DEATHS: usize = 3;
const DEATH_WINDOW: Duration = Duration::from_secs(10);
/// Entries of each ring of a socket: what a burst at full rate fills in about a millisecond.
const RING_SIZE: u32 = 1024;
/// With several queues every socket gets less, so that the packet memory suffices for all.
const SMALL_RING_SIZE: u32 = 256;

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
    resource: Resource,
}

/// A worker and what it was given.
pub(crate) struct Entry {
    pub(crate) handle: WorkerHandle,
    sockets: BTreeMap<(u32, u32), SocketId>,
    pub(crate) internal: Option<Internal>,
    /// Further processes of chains in mapping `pipeline`.
    pub(crate) pipelines: Vec<Stages>,
    chains: u32,
    deaths: VecDeque<Instant>,
    /// It kept dying and is not started again.
    pub(crate) failed: bool,
    process: Resource,
    pub(crate) spec: WorkerSpec,
}

/// All workers.
#[derive(Default)]
pub(crate) struct Workers {
    entries: BTreeMap<Key, Entry>,
    next: u32,
}

/// What a worker's end means for its chains.
pub(crate) enum Death {
    /// A new one runs.
    Restarted,
    /// It is given up.
    GivenUp,
}

impl Workers {
    /// The worker of that key, started when there is none; one more chain uses it.
    pub(crate) fn acquire(
        &mut self,
        key: &Key,
        spec: &WorkerSpec,
        program: &Path,
        run_id: &str,
        journal: &mut Journal,
    ) -> Result<&mut Entry, ApiError> {
        if let Some(entry) = self.entries.get_mut(key) {
            if entry.spec != *spec {
                return Err(ApiError::failed(format!(
                    "spec.worker differs from that of the chain that shares this worker (owner {}): make them \
                     equal, or give the chains different namespaces",
                    key.owner
                )));
            }
            entry.chains += 1;
        } else {
            let entry = self.start(spec, program, run_id, journal)?;
            self.entries.insert(key.clone(), entry);
        }
        self.get_mut(key)
    }

    fn start(
        &mut self,
        spec: &WorkerSpec,
        program: &Path,
        run_id: &str,
        journal: &mut Journal,
    ) -> Result<Entry, ApiError> {
        // The process number tells this agent's workers from those of a killed one.
        let id = format!("{run_id}-{}-{}", std::process::id(), self.next);
        self.next += 1;
        let mut config = WorkerConfig::new(program, &id);
        config.args = vec!["worker".into()];
        config.batch = spec.batch;
        config.core = Some(spec.core.unwrap_or_else(default_core));
        config.idle = match spec.idle {
            IdleSpec::Spin => Idle::Spin,
            IdleSpec::Sleep => Idle::Sleep,
            IdleSpec::Adaptive => Idle::Adaptive {
                spin: Duration::from_nanos(spec.spin_ns),
            },
        };
        let process = Resource::Processes {
            argument: format!("{WORKER_NAME}@{id}"),
        };
        journal.intend(&process).map_err(ApiError::failed)?;
        let handle = WorkerHandle::spawn(config).map_err(ApiError::failed)?;
        Ok(Entry {
            handle,
            sockets: BTreeMap::new(),
            internal: None,
            pipelines: Vec::new(),
            chains: 1,
            deaths: VecDeque::new(),
            failed: false,
            process,
            spec: spec.clone(),
        })
    }

    /// One chain less; with the last one the worker, its sockets and its internal link go, and this is true.
    pub(crate) fn release(&mut self, key: &Key, journal: &mut Journal) -> bool {
        let Some(entry) = self.entries.get_mut(key) else {
            return false;
        };
        entry.chains -= 1;
        if entry.chains > 0 {
            return false;
        }
        let Some(entry) = self.entries.remove(key) else {
            return false;
        };
        // A worker that is gone already cannot be told to stop.
        let _ = entry.handle.shutdown();
        let _ = journal.removed(&entry.process);
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
        true
    }

    /// The worker of that key.
    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The worker of that key, to change it.
    pub(crate) fn get_mut(&mut self, key: &Key) -> Result<&mut Entry, ApiError> {
        self.entries
            .get_mut(key)
            .ok_or_else(|| ApiError::failed(format!("owner {} has no worker here", key.owner)))
    }

    /// Starts dead workers again. Calls `report` for each that was dead.
    pub(crate) fn supervise(&mut self, mut report: impl FnMut(&Key, &Death)) {
        for (key, entry) in &mut self.entries {
            if entry.failed {
                continue;
            }
            for death in entry.revive_stages() {
                report(key, &death);
            }
            if entry.failed || entry.handle.is_alive() {
                continue;
            }
            let death = if is_last_death(&mut entry.deaths) {
                entry.failed = true;
                Death::GivenUp
            } else if let Err(error) = entry.handle.restart() {
                tracing::error!(owner = key.owner, %error, "a worker did not come up again");
                continue;
            } else {
                Death::Restarted
            };
            report(key, &death);
        }
    }
}

/// Takes note that a process has died now; whether that was once too often.
pub(crate) fn is_last_death(deaths: &mut VecDeque<Instant>) -> bool {
    let now = Instant::now();
    deaths.retain(|death| now.duration_since(*death) < DEATH_WINDOW);
    deaths.push_back(now);
    deaths.len() > MAX_DEATHS
}

impl Entry {
    /// Sockets on every queue of a port, for receiving and transmitting; made once and shared by all chains of
    /// the worker. Returns the one to transmit on.
    pub(crate) fn open_port(
        &mut self,
        key: &Key,
        ports: &mut Ports,
        ifindex: u32,
    ) -> Result<SocketId, ApiError> {
        let busy_poll = self.busy_poll();
        let port = ports.bind(ifindex, key)?;
        for queue in 0..port.queues {
            if let Some(bound) = self.sockets.get(&(ifindex, queue)) {
                // The port may have been given up and made anew since the socket was bound.
                if let Some(xsk) = self.handle.socket(*bound) {
                    port.door
                        .set_socket(queue, xsk.fd())
                        .map_err(ApiError::failed)?;
                }
                continue;
            }
            let mut config = XskConfig::new(&port.name, ifindex, queue, Role::Ingress);
            config.ring_size = if port.queues > 1 {
                SMALL_RING_SIZE
            } else {
                RING_SIZE
            };
            config.busy_poll = busy_poll;
            let xsk = self.bind(&config)?;
            port.door
                .set_socket(queue, xsk.fd())
                .map_err(ApiError::failed)?;
            let id = self.handle.add_socket(xsk).map_err(ApiError::failed)?;
            self.sockets.insert((ifindex, queue), id);
        }
        self.sockets
            .get(&(ifindex, 0))
            .copied()
            .ok_or_else(|| ApiError::failed(format!("interface {} has no queue", port.name)))
    }

    /// A socket on a link's end in another namespace, for receiving and transmitting.
    pub(crate) fn bind_in(&self, netns: &Netns, link: &LinkId) -> Result<Xsk, ApiError> {
        let mut config = XskConfig::new(&link.name, link.index, 0, Role::Ingress);
        config.ring_size = RING_SIZE;
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
            Ok((door, transmit)) => {
                self.internal = Some(Internal {
                    door,
                    transmit,
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
    ) -> Result<(Reentry, SocketId), ApiError> {
        let (near, far) = make_internal_link(near, far)?;
        let door = plane.add_reentry(far.index).map_err(ApiError::failed)?;
        let mut receiving = None;
        let made = door
            .attach_xdp(XdpMode::Native)
            .map_err(ApiError::failed)
            .and_then(|()| {
                let receive = self.bind(&self.internal_socket(&far, Role::Ingress))?;
                door.set_socket(0, receive.fd()).map_err(ApiError::failed)?;
                receiving = Some(self.handle.add_socket(receive).map_err(ApiError::failed)?);
                let transmit = self.bind(&self.internal_socket(&near, Role::Egress))?;
                self.handle.add_socket(transmit).map_err(ApiError::failed)
            });
        match made {
            Ok(transmit) => Ok((door, transmit)),
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
        config.ring_size = RING_SIZE;
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

/// The last core: the first ones are where interrupts and other work usually are.
fn default_core() -> u32 {
    std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32 - 1)
}
