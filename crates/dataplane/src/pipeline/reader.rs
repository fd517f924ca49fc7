//! What may be read of a pipeline while somebody else works with its processes.

use std::sync::Arc;

use crate::facts::WorkerFacts;
use crate::ring_link::RingLink;
use crate::spsc::SharedObserver;
use crate::stats::{ChainStats, Stats};

/// Positions of the functions whose processes send and receive; `None` for the first process.
pub type RingEnds = (Option<u8>, Option<u8>);

/// The counters of a pipeline's processes, and its rings.
#[derive(Debug)]
pub struct PipelineReader {
    pub(super) chain: (u32, u16),
    pub(super) head: Arc<Stats>,
    pub(super) stages: Vec<(u8, Arc<WorkerFacts>, Arc<Stats>)>,
    pub(super) rings: Vec<(RingEnds, Arc<RingLink>)>,
}

impl PipelineReader {
    /// The further processes: position of the function that each runs, and what it is now.
    pub fn stages(&self) -> impl Iterator<Item = (u8, &Arc<WorkerFacts>)> {
        let stages = self.stages.iter();
        stages.map(|(position, facts, _)| (*position, facts))
    }

    /// The rings, to be looked at without the processes at their ends.
    pub fn rings(&self) -> impl Iterator<Item = (RingEnds, SharedObserver)> {
        let rings = self.rings.iter();
        rings.filter_map(|(ends, link)| Some((*ends, link.ring.observer().ok()?)))
    }

    /// What the chain did in all its processes together.
    pub fn stats(&self) -> Option<ChainStats> {
        let (spi, generation) = self.chain;
        let mut sum = self.head.chain(spi, generation)?;
        // Packets handed on to a stage have not left, so the first process' own count of departures is that of its sojourn times.
        for (_, _, stats) in &self.stages {
            let stats = stats.chain(spi, generation)?;
            for (sum, part) in sum.positions.iter_mut().zip(&stats.positions) {
                if part.packets_in > 0 || part.emitted > 0 {
                    *sum = *part;
                }
            }
            sum.transmit_drops += stats.transmit_drops;
        }
        Some(sum)
    }
}
