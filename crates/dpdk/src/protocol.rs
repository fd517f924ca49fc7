//! What the agent and a worker say to each other: one JSON value a line, each request with one reply.

use std::time::Duration;

use myelin_dataplane::stats::PositionStats;
use myelin_dataplane::{NamedCount, ShaperStats, UserChain};
use myelin_packet::Match;
use myelin_packet::sojourn::Histogram;
use myelin_packet::traffic::Profile;
use myelin_spec::DpdkDevice;
use serde::{Deserialize, Serialize};

use crate::door::ChainDoorCounters;
use crate::environment::EnvironmentConfig;

/// What does not change in a worker's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Its environment.
    pub environment: EnvironmentConfig,
    /// Its two devices. What no chain takes passes from each to the other.
    pub devices: [DpdkDevice; 2],
    /// Packets taken at once, 1 to 256.
    pub batch: u16,
    /// What it does while no packet is there.
    pub waiting: Waiting,
    /// Whether it follows one that had its core: then it goes without, if that is gone.
    pub restarted: bool,
}

/// What a worker does while no packet is there: a device of DPDK wakes nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// It polls.
    Poll,
    /// It polls for so long, then it looks every 20 us.
    NapAfter(Duration),
}

/// Which way a chain goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// From the first device to the second.
    Forward,
    /// From the second to the first.
    Back,
}

impl Direction {
    /// Indices of the ports where it enters and leaves.
    pub fn ends(self) -> (u16, u16) {
        match self {
            Self::Forward => (0, 1),
            Self::Back => (1, 0),
        }
    }
}

/// A generation of a chain, and where its packets come in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedChain {
    /// Which packets.
    pub matches: Match,
    /// Which way.
    pub direction: Direction,
    /// What the front door holds them to.
    pub policing: Profile,
    /// Its functions: one segment, which leads out of the port where `direction` ends.
    pub chain: UserChain,
}

/// What a generation of a chain did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// At the front door; these go on over generations.
    pub door: ChainDoorCounters,
    /// Packets that left.
    pub transmitted: u64,
    /// By position.
    pub positions: Vec<Position>,
    /// Front door to egress port.
    pub sojourn: Histogram,
    /// What functions count by names of their own.
    pub counters: Vec<NamedCount>,
    /// What the shaper did.
    pub shaper: ShaperStats,
}

impl Figures {
    /// What the functions and the shaper dropped.
    pub fn drops(&self) -> u64 {
        let functions = self.positions.iter().map(|position| position.drops);
        functions.sum::<u64>() + self.shaper.drops()
    }
}

/// What one function did, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Packets handed to it.
    pub packets_in: u64,
    /// Packets it dropped.
    pub drops: u64,
    /// Time spent for the packets of `samples`, ns.
    pub sampled_ns: u64,
    /// Packets whose processing was timed.
    pub samples: u64,
}

impl From<PositionStats> for Position {
    fn from(stats: PositionStats) -> Self {
        Self {
            packets_in: stats.packets_in,
            drops: stats.drops,
            sampled_ns: stats.sampled_ns,
            samples: stats.samples,
        }
    }
}

/// What the agent asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first request.
    Setup(Setup),
    /// Lead the packets of a chain to this generation, between two batches. A former one stays until `Settle`, so that there is a way
    /// back to it, with its state. The answer has what the door counted for a former match that goes.
    Run(Box<PlacedChain>),
    /// Free all other generations of the chain. The answer has what they did behind the door.
    Settle(Box<PlacedChain>),
    /// Stop running it.
    Remove(Box<PlacedChain>),
    /// Tell what it did.
    Read(Box<PlacedChain>),
    /// Close the devices and exit.
    Stop,
}

/// What the worker answers; figures to `Run`, `Settle` and `Read`.
pub(crate) type Reply = Result<Option<Figures>, String>;
