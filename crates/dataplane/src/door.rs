//! The classifier rules of a front door that runs in the worker.
//!
//! The kernel sees no packet of a DPDK port, and a packet socket gets packets without metadata. So
//! the worker runs the front door. The agent uses this
//! front door like a front door in the kernel. It adds a generation, redirects packets to the new
//! generation, and removes the former generation after its packets have left. Until then the agent
//! can redirect packets back.

use myelin_packet::Match;
use myelin_packet::traffic::Profile;
use serde::{Deserialize, Serialize};

use crate::chain::SocketId;

/// The direction of a chain between the two ports of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// From port 0 to port 1.
    Forward,
    /// From port 1 to port 0.
    Back,
}

impl Direction {
    /// Returns the indices of the ingress and the egress port.
    pub fn ends(self) -> (u16, u16) {
        match self {
            Self::Forward => (0, 1),
            Self::Back => (1, 0),
        }
    }
}

/// A redirect of the matching packets to a generation of a chain. Replaces the chain's previous
/// redirect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainRedirect {
    /// The packets of the chain.
    pub matches: Match,
    /// The port where the packets arrive.
    pub ingress: SocketId,
    /// The profile of the policer. An unchanged profile keeps the bucket.
    pub policing: Profile,
    /// Service path identifier.
    pub spi: u32,
    /// The generation, which must exist.
    pub generation: u16,
}
