//! The delay line of a topology: the worker that delays and loses the packets of impaired links,
//! its internal link, and the programs at the links.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use myelin_dataplane::{
    Deaths, DelayLine, DelayLineStats, DelayTable, DirectionStats, Idle, Role, Umem, WorkerConfig,
    WorkerFacts, Xsk, XskConfig,
};
use myelin_emulator::DelayPoint;
use myelin_kernel::{DelayDirection, DelayLink, Delivery, TrafficDirection};
use myelin_linux::ethtool;
use myelin_linux::journal::{Resource, ResourceGuard};
use myelin_linux::link::{self, Link, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::priorities;
use myelin_linux::sched::Policy;
use myelin_packet::link_model::LinkProfile;
use myelin_spec::Impairments;

use crate::api::{ApiError, short_hash};
use crate::control::actuator;
use crate::node::Parts;
use crate::node::workers::socket_redirect;
use crate::pool::lock;

mod profile;
mod slot;

pub(crate) use profile::packets_of;
use profile::{profile_of, too_large};
pub(crate) use slot::LineSlot;

/// MTU of the links of a topology.
const LINK_MTU: u32 = 1500;
/// Room for the tag of the direction and for a tag of the user, bytes.
const TAGS: u32 = 8;
/// Entries of each ring: a burst of 90 super-packets.
const RING: u32 = 2048;
/// Frames for the rings: to receive into, arrived, to transmit from.
const RING_FRAMES: u32 = 3 * RING + 64;
/// Packets that may wait in the line at least.
const LEAST_WAITING: u32 = 16_384;
/// Most packets that may wait in the line: 512 MiB of frames.
const MOST_WAITING: u32 = 262_144;
/// The worker polls so long after its last packet.
const SPIN: Duration = Duration::from_micros(50);

/// The delay line of a topology. Dropping the value lets packets pass without delay.
pub(crate) struct TopologyLine {
    state: Mutex<LineState>,
    table: Arc<DelayTable>,
    facts: Arc<WorkerFacts>,
    programs: Arc<DelayLink>,
    topology: String,
    /// Packets that may wait.
    room: u32,
    failed: AtomicBool,
    _recorded: [ResourceGuard; 2],
}

struct LineState {
    /// `None` only while the line is dropped.
    worker: Option<DelayLine>,
    deaths: Deaths,
    /// By their number in the network.
    links: BTreeMap<usize, ImpairedLink>,
    /// The number of the next direction that no link has had.
    next: u16,
    /// Numbers of removed directions.
    unused: Vec<u16>,
}

/// A link whose packets pass the line.
struct ImpairedLink {
    /// From the first end to the second, and back.
    impairments: [Impairments; 2],
    directions: [Direction; 2],
}

struct Direction {
    program: DelayDirection,
    /// Counters of an earlier direction of the same number.
    before: DirectionStats,
}

/// The state of a delay line.
pub(crate) struct LineReading {
    pub(crate) pid: u32,
    pub(crate) restarts: u64,
    pub(crate) has_failed: bool,
    pub(crate) stats: DelayLineStats,
    /// Packets that the socket dropped because its ring was full.
    pub(crate) overflowed: u64,
}

/// The outcome of a check for the death of the worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineCheck {
    Alive,
    Restarted,
    /// The worker ended too often and is no longer restarted.
    Failed,
}

impl TopologyLine {
    /// Starts a line without links. The packet memory is for directions with these impairments.
    ///
    /// # Errors
    /// The links need more packet memory than a line has, or a step fails. Nothing remains.
    pub(crate) fn start(
        parts: &Parts,
        topology: &str,
        directions: impl Iterator<Item = Impairments>,
    ) -> Result<Self, ApiError> {
        let needed = directions.map(|one| packets_of(&one));
        let needed = needed.fold(0, u64::saturating_add);
        if needed > u64::from(MOST_WAITING) {
            return Err(too_large(needed, MOST_WAITING));
        }
        let room = (needed as u32).max(LEAST_WAITING);
        let number = format!("{}-{}", std::process::id(), parts.take_worker_number());
        let id = format!("{}-{number}", parts.run_id);
        let mut config = WorkerConfig::new(&parts.program, &id);
        config.args = ["worker", "--delay-line"].map(Into::into).to_vec();
        config.idle = Idle::Adaptive { spin: SPIN };
        config.frames = room + RING_FRAMES;
        let base = format!("my{}", short_hash(id.as_bytes()));
        let names = [format!("{base}a"), format!("{base}b")];
        let guard = |resource| parts.journal.guard(resource).map_err(ApiError::failed);
        let recorded = [
            guard(Resource::Link {
                name: names[0].clone(),
            })?,
            guard(Resource::Processes {
                argument: config.process_name(),
            })?,
        ];
        let [near, far] = make_internal_link(&names).map_err(ApiError::failed)?;
        let ends = ((near.name.as_str(), near.index), (&*far.name, far.index));
        let programs = parts.plane.add_delay_link(ends.0, ends.1);
        let programs = programs.map_err(ApiError::failed)?;
        let open = |umem: &Umem| open_socket(umem, &far, &programs);
        let worker = DelayLine::spawn(config, open).map_err(ApiError::failed)?;
        make_exact(topology, worker.facts().pid());
        let line = Self {
            table: worker.table(),
            facts: worker.facts(),
            state: Mutex::new(LineState {
                worker: Some(worker),
                deaths: Deaths::default(),
                links: BTreeMap::new(),
                next: 1,
                unused: Vec::new(),
            }),
            programs,
            topology: topology.to_owned(),
            room,
            failed: AtomicBool::new(false),
            _recorded: recorded,
        };
        // After a failure the drop of the line detaches what is attached.
        line.programs.attach().map_err(ApiError::failed)?;
        Ok(line)
    }

    /// Leads the packets of a link through the line, or changes its impairments from the next
    /// packet on.
    ///
    /// # Errors
    /// The line lacks packet memory or numbers, or the kernel refuses a step. Nothing changes.
    pub(crate) fn impair(
        &self,
        link: usize,
        point: &DelayPoint,
        impairments: [Impairments; 2],
    ) -> Result<(), ApiError> {
        let mut state = self.lock_state();
        let others = state.links.iter().filter(|(other, _)| **other != link);
        let others = others.flat_map(|(_, other)| &other.impairments);
        let all = others.chain(&impairments).map(packets_of);
        let needed = all.fold(0, u64::saturating_add);
        if needed > u64::from(self.room) {
            return Err(too_large(needed, self.room));
        }
        let profiles = impairments.each_ref().map(profile_of);
        if let Some(known) = state.links.get_mut(&link) {
            for (direction, profile) in known.directions.iter().zip(&profiles) {
                self.set_profile(link, direction.program.number(), profile)?;
            }
            known.impairments = impairments;
            return Ok(());
        }
        let [there, back] = places(point);
        let there = self.add_direction(&mut state, link, there, &profiles[0])?;
        let back = match self.add_direction(&mut state, link, back, &profiles[1]) {
            Ok(back) => back,
            Err(error) => {
                // The caller gets the first error.
                let _ = self.remove_direction(&mut state, &there);
                return Err(error);
            }
        };
        let impaired = ImpairedLink {
            impairments,
            directions: [there, back],
        };
        state.links.insert(link, impaired);
        Ok(())
    }

    /// Lets the packets of a link pass without the line. Packets in the line are lost.
    ///
    /// # Errors
    /// The kernel refuses to detach a program.
    pub(crate) fn release(&self, link: usize) -> Result<(), ApiError> {
        let mut state = self.lock_state();
        let Some(impaired) = state.links.remove(&link) else {
            return Ok(());
        };
        let directions = impaired.directions.iter();
        let removed = directions.map(|direction| self.remove_direction(&mut state, direction));
        removed.collect::<Vec<_>>().into_iter().collect()
    }

    /// Returns the counters of a link, from the first end to the second, and back; `None` if its
    /// packets do not pass the line.
    pub(crate) fn counters(&self, link: usize) -> Option<[DirectionStats; 2]> {
        let state = self.lock_state();
        let directions = &state.links.get(&link)?.directions;
        Some(directions.each_ref().map(|direction| {
            let now = self.table.direction(direction.program.number());
            since(now.unwrap_or_default(), &direction.before)
        }))
    }

    /// Reads the state of the worker.
    pub(crate) fn read(&self) -> LineReading {
        let state = self.lock_state();
        let overflowed = state.worker.as_ref().map_or(0, DelayLine::overflowed);
        LineReading {
            pid: self.facts.pid(),
            restarts: self.facts.restarts(),
            has_failed: self.failed.load(Ordering::Relaxed),
            stats: self.table.line(),
            overflowed,
        }
    }

    /// Restarts the worker if it has died. Until then the links drop packets.
    pub(crate) fn restart_if_dead(&self) -> LineCheck {
        let mut state = self.lock_state();
        let state = &mut *state;
        let Some(worker) = &mut state.worker else {
            return LineCheck::Alive;
        };
        if worker.is_alive() || self.failed.load(Ordering::Relaxed) {
            return LineCheck::Alive;
        }
        let mut gives_up = state.deaths.record_death(Instant::now());
        if !gives_up {
            if let Err(error) = worker.restart() {
                tracing::error!(topology = self.topology, %error, "cannot restart a delay line");
                gives_up = state.deaths.record_failed_start();
                if !gives_up {
                    return LineCheck::Alive;
                }
            } else {
                make_exact(&self.topology, self.facts.pid());
            }
        }
        if gives_up {
            self.failed.store(true, Ordering::Relaxed);
            return LineCheck::Failed;
        }
        state.deaths.record_start();
        LineCheck::Restarted
    }

    fn lock_state(&self) -> MutexGuard<'_, LineState> {
        lock(&self.state)
    }

    fn add_direction(
        &self,
        state: &mut LineState,
        link: usize,
        (interface, side, delivery): ((&str, u32), TrafficDirection, Delivery),
        profile: &LinkProfile,
    ) -> Result<Direction, ApiError> {
        let number = self.take_number(state);
        let add = || {
            let program = self.programs.load_direction(number);
            let program = program.map_err(ApiError::failed)?;
            let before = self.table.direction(number).unwrap_or_default();
            self.set_profile(link, number, profile)?;
            let attached = program.attach(interface, side, delivery);
            attached.map_err(ApiError::failed)?;
            Ok(Direction { program, before })
        };
        add().inspect_err(|_| {
            // The caller gets the first error. A profile without packets does nothing.
            let _ = self.table.remove(number);
            state.unused.push(number);
        })
    }

    fn remove_direction(
        &self,
        state: &mut LineState,
        direction: &Direction,
    ) -> Result<(), ApiError> {
        let number = direction.program.number();
        let detached = direction.program.detach();
        state.unused.push(number);
        let removed = self.table.remove(number);
        detached.map_err(ApiError::failed)?;
        removed.map_err(ApiError::failed)
    }

    /// Takes the number of a direction, which no waiting packet has.
    fn take_number(&self, state: &mut LineState) -> u16 {
        let is_free = |number: &u16| {
            let stats = self.table.direction(*number);
            stats.is_some_and(|stats| stats.waiting == 0)
        };
        if let Some(position) = state.unused.iter().position(is_free) {
            return state.unused.remove(position);
        }
        let number = state.next;
        // The program refuses numbers above the largest one.
        state.next = number.saturating_add(1);
        number
    }

    /// Sets a profile. The random numbers depend on the topology, the link and the direction.
    fn set_profile(&self, link: usize, number: u16, profile: &LinkProfile) -> Result<(), ApiError> {
        let identity = format!("{} {link} {number}", self.topology);
        let hash = short_hash(identity.as_bytes());
        let seed = hash.bytes().fold(0, |seed: u64, byte| {
            seed.wrapping_mul(257).wrapping_add(byte.into())
        });
        let set = self.table.set_profile(number, profile, seed);
        set.map_err(ApiError::failed)
    }
}

impl Drop for TopologyLine {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(std::sync::PoisonError::into_inner);
        // A pinned program outlives a killed agent, so detach it explicitly.
        let links = state.links.values().flat_map(|link| &link.directions);
        let detached = links.map(|direction| direction.program.detach());
        for error in detached
            .chain([self.programs.detach()])
            .filter_map(Result::err)
        {
            let topology = &self.topology;
            tracing::warn!(topology, %error, "cannot detach a program of a delay line");
        }
        if let Some(worker) = state.worker.take() {
            // The process may be dead already.
            let _ = worker.shutdown();
        }
    }
}

/// Gives a worker the real-time priority of a delay line. Without permission, as in a group of
/// cgroup v1, packets leave later where other programs take all cores.
fn make_exact(topology: &str, pid: u32) {
    let policy = Policy::Fifo(priorities::DELAY_LINE);
    if let Err(error) = actuator::set_policy(pid, policy) {
        tracing::warn!(topology, %error, "a delay line has no real-time priority");
    }
}

/// Returns where the packets of both directions enter, and where they continue after the delay.
fn places(point: &DelayPoint) -> [((&str, u32), TrafficDirection, Delivery); 2] {
    match point {
        DelayPoint::Port { end, is_second } => {
            let interface = (end.name.as_str(), end.index);
            let arrives = (
                interface,
                TrafficDirection::In,
                Delivery::Receive(end.index),
            );
            let leaves = (
                interface,
                TrafficDirection::Out,
                Delivery::Transmit(end.index),
            );
            if *is_second {
                [arrives, leaves]
            } else {
                [leaves, arrives]
            }
        }
        DelayPoint::Wires([first, second]) => {
            [(first, second), (second, first)].map(|(from, to)| {
                let interface = (from.name.as_str(), from.index);
                let delivery = Delivery::Transmit(to.index);
                (interface, TrafficDirection::In, delivery)
            })
        }
    }
}

/// Returns the counters since an earlier reading. The number of waiting packets is that of now.
fn since(now: DirectionStats, before: &DirectionStats) -> DirectionStats {
    DirectionStats {
        arrived: now.arrived - before.arrived,
        arrived_bytes: now.arrived_bytes - before.arrived_bytes,
        left: now.left - before.left,
        left_bytes: now.left_bytes - before.left_bytes,
        queue_drops: now.queue_drops - before.queue_drops,
        lost: now.lost - before.lost,
        memory_drops: now.memory_drops - before.memory_drops,
        transmit_drops: now.transmit_drops - before.transmit_drops,
        died: now.died - before.died,
        waiting: now.waiting,
    }
}

fn open_socket(
    umem: &Umem,
    far: &Link,
    programs: &DelayLink,
) -> Result<Xsk, myelin_dataplane::Error> {
    let mut config = XskConfig::new(&far.name, far.index, 0, Role::Ingress);
    config.ring_size = RING;
    let socket = Xsk::bind(umem, &config, None)?;
    Ok(socket.with_redirect(socket_redirect(programs.sockets(), 0)))
}

/// Makes the internal link without offloads, on which the kernel segments super-packets, completes
/// checksums and inserts tags.
fn make_internal_link(names: &[String; 2]) -> myelin_linux::Result<[Link; 2]> {
    let mut netlink = Netlink::open()?;
    let [near, far] = names.each_ref().map(|name| VethEnd {
        mtu: Some(LINK_MTU + TAGS),
        ..VethEnd::named(name)
    });
    netlink.apply([link::create_veth(&near, &far)?])?;
    for name in names {
        let id = netlink.link(name)?.id();
        ethtool::set_up_without_offloads(&mut netlink, &id)?;
    }
    Ok([netlink.link(&names[0])?, netlink.link(&names[1])?])
}
