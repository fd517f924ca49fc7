//! What a worker that has a front door of its own is told: which packets are whose.
//!
//! Ports that the kernel does not see have no front door there, so the worker has its twin. To the agent both are alike: a generation is added, packets are led to
//! it, and the former one is removed when its packets are out; until then the way back is open.

use myelin_packet::Match;
use myelin_packet::traffic::Profile;
use serde::{Deserialize, Serialize};

/// Which way a chain goes between the two ports of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// From port 0 to port 1.
    Forward,
    /// From port 1 to port 0.
    Back,
}

impl Direction {
    /// Indices of the ports where packets enter and leave.
    pub fn ends(self) -> (u16, u16) {
        match self {
            Self::Forward => (0, 1),
            Self::Back => (1, 0),
        }
    }
}

/// The packets that a front door gives to a generation of a chain. They replace those that it gave to the chain before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadChain {
    /// Which packets.
    pub matches: Match,
    /// Where they come in.
    pub direction: Direction,
    /// What they are held to. The bucket goes on where this stays the same.
    pub policing: Profile,
    /// Service path identifier.
    pub spi: u32,
    /// Generation, which must have been added.
    pub generation: u16,
}
