//! Bookings of other agents on the same machine, whose chains share cores with those of this agent.

use super::booking::Booking;
use super::path::Resource;

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
