//! Bookings of other agents on the same machine, whose chains share cores with those of this agent.

use super::booking::Booking;
use super::flow::{Growth, Work};
use super::path::{Resource, Visit};
use super::turns::WorkerTurn;
use crate::calculus::SECOND;
use crate::frame;

/// Longest name in a booking, bytes: names of a chain file and of its owner, with a suffix.
const LONGEST_NAME: usize = 512;
/// Longest time in a booking, fs: several hours are longer than all times of a chain file.
const LONGEST_FS: u128 = 18_000 * SECOND;
/// Most packets, bytes or steps in a booking.
const MOST: u128 = 1 << 24;

/// Names the agent of a node of a topology.
pub fn peer_of_node(topology: &str, node: &str) -> String {
    format!("node {topology}/{node}")
}

/// Names an object of another agent.
pub fn name_at_peer(name: &str, peer: &str) -> String {
    format!("{name} on {peer}")
}

impl Booking {
    /// Returns the booking of another agent as it counts here. Its cores are the same; its ports,
    /// links and processes are others, although they may have the same names.
    #[must_use]
    pub fn of_peer(mut self, peer: &str) -> Self {
        let rename = |name: &mut String| *name = name_at_peer(name, peer);
        rename(&mut self.chain);
        for visit in &mut self.visits {
            match &mut visit.resource {
                Resource::Port { name, .. }
                | Resource::Worker { name, .. }
                | Resource::Link(name) => rename(name),
            }
        }
        for core_use in &mut self.core_uses {
            core_use.peer = Some(peer.to_owned());
        }
        self
    }

    /// Checks the values of another agent's booking, whose file may be of another version.
    /// `is_present` tells whether the machine has a core.
    ///
    /// # Errors
    /// A name, core, path or time that no agent books. Says which.
    pub fn check(&self, is_present: &dyn Fn(u32) -> bool) -> Result<(), String> {
        check_name(&self.chain)?;
        if let Some((whole, _)) = &self.part {
            check_name(whole)?;
        }
        for core_use in &self.core_uses {
            check_core(core_use.core, is_present)?;
        }
        let mut last = 0;
        for visit in &self.visits {
            let rank = match visit.resource {
                Resource::Port { .. } => 1,
                Resource::Worker { .. } => 2,
                Resource::Link(_) => 3,
            };
            // The delay at a server depends on the servers before it, so a path has no circle. Only
            // a chain without a bound has several processes.
            if rank < last || rank == last && self.unbounded.is_none() {
                return Err("its servers are not in the order of a path".to_owned());
            }
            last = rank;
            check_visit(visit, is_present)?;
        }
        if self.unbounded.is_none() && self.visits.is_empty() {
            return Err("it has a bound and no server".to_owned());
        }
        for hop in &self.hops {
            if hop.visit >= self.visits.len() {
                return Err(format!("its step at server {} has none", hop.visit));
            }
            check_work(hop.work)?;
        }
        check_work(self.at_departure.unwrap_or_default())?;
        let stages = &self.stages;
        let times = [self.hold.for_fs, stages.turns_fs, stages.returned_fs];
        times.into_iter().try_for_each(check_time)?;
        let counts = [self.hold.times, self.rounds, stages.processes];
        let steps = self.hops.len();
        let too_many = counts.into_iter().find(|count| *count as usize > steps);
        too_many.map_or(Ok(()), |count| {
            Err(format!(
                "{count} holds, rounds or processes are more than its {steps} steps"
            ))
        })
    }

    /// Returns the cores of the chain's processes.
    pub fn cores(&self) -> impl Iterator<Item = u32> + '_ {
        self.core_uses.iter().map(|core_use| core_use.core)
    }

    /// Whether the chain runs at this other agent, on a core.
    pub fn is_of_peer(&self, peer: &str) -> bool {
        let mut uses = self.core_uses.iter();
        uses.any(|core_use| core_use.peer.as_deref() == Some(peer))
    }

    /// Whether this is a part of the same chain over nodes on another path: one path has packets at
    /// a time.
    pub fn is_other_path_of(&self, whole: &str, path: u32) -> bool {
        let part = self.part.as_ref();
        part.is_some_and(|(own, own_path)| own == whole && *own_path != path)
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_valid = !name.is_empty() && name.len() <= LONGEST_NAME;
    if !is_valid || name.contains(|char: char| char.is_control()) {
        let start: String = name.chars().take(64).collect();
        return Err(format!("{start:?} is no name"));
    }
    Ok(())
}

fn check_core(core: u32, is_present: &dyn Fn(u32) -> bool) -> Result<(), String> {
    if !is_present(core) {
        return Err(format!("core {core} does not exist"));
    }
    Ok(())
}

fn check_time(fs: u128) -> Result<(), String> {
    if fs > LONGEST_FS {
        return Err(format!("a time of {fs} fs is longer than five hours"));
    }
    Ok(())
}

fn check_count(count: u128) -> Result<(), String> {
    if count > MOST {
        return Err(format!("{count} packets, bytes or steps are above {MOST}"));
    }
    Ok(())
}

fn check_work(work: Work) -> Result<(), String> {
    check_time(work.packet_fs)?;
    check_time(work.byte_fs)
}

fn check_visit(visit: &Visit, is_present: &dyn Fn(u32) -> bool) -> Result<(), String> {
    check_work(visit.work)?;
    let Growth {
        scale,
        extra,
        bytes,
        longest,
    } = visit.growth;
    // More than a million packets for each is no function of a chain file.
    if !(Growth::ONE..=Growth::ONE * Growth::ONE).contains(&scale) {
        return Err(format!("{scale} is no growth of traffic"));
    }
    let mut counts = [extra, bytes, longest].into_iter();
    counts.try_for_each(check_count)?;
    if longest < frame::SHORTEST.into() {
        return Err(format!("{longest} bytes are no longest frame"));
    }
    match &visit.resource {
        Resource::Link(name) => check_name(name),
        Resource::Port {
            name,
            queues,
            pause_fs,
        } => {
            check_name(name)?;
            check_count((*queues).into())?;
            check_time(*pause_fs)
        }
        Resource::Worker {
            core,
            name,
            wake_up_fs,
            batch_fs,
            rings,
            turn,
            pause_fs,
            ..
        } => {
            check_name(name)?;
            check_core(*core, is_present)?;
            let mut rings = rings.iter().copied().map(u128::from);
            rings.try_for_each(check_count)?;
            let mut times = [*wake_up_fs, *batch_fs, *pause_fs].into_iter();
            times.try_for_each(check_time)?;
            turn.as_deref().map_or(Ok(()), check_turn)
        }
    }
}

fn check_turn(turn: &WorkerTurn) -> Result<(), String> {
    let (turn_fs, switch_fs) = match turn {
        WorkerTurn::Reads {
            reads,
            least_packet_fs,
            switch_fs,
        } => {
            check_count((*reads).into())?;
            (least_packet_fs, switch_fs)
        }
        WorkerTurn::Slice {
            slice_fs,
            switch_fs,
        } => (slice_fs, switch_fs),
        WorkerTurn::Deadline {
            longest_fs,
            switch_fs,
        } => (longest_fs, switch_fs),
    };
    check_time(*turn_fs)?;
    check_time(*switch_fs)
}
