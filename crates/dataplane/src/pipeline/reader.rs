//! Reads a pipeline's state while another thread uses its processes.

use std::sync::Arc;

use crate::facts::WorkerFacts;
use crate::ring_link::RingLink;
use crate::spsc::SharedObserver;
use crate::stats::{ChainStats, Stats};

/// Positions of the functions whose processes send and receive; `None` for the first process.
pub type RingEnds = (Option<u8>, Option<u8>);

/// The statistics and rings of a pipeline.
#[derive(Debug)]
pub struct PipelineReader {
    pub(super) chain: (u32, u16),
    pub(super) head: Arc<Stats>,
    pub(super) stages: Vec<(u8, Arc<WorkerFacts>, Arc<Stats>)>,
    pub(super) rings: Vec<(RingEnds, Arc<RingLink>)>,
}

impl PipelineReader {
    /// Returns the position and the state of each stage.
    pub fn stages(&self) -> impl Iterator<Item = (u8, &Arc<WorkerFacts>)> {
        let stages = self.stages.iter();
        stages.map(|(position, facts, _)| (*position, facts))
    }

    /// Returns observers of the rings. An observer works even if the processes at both ends are
    /// dead.
    pub fn rings(&self) -> impl Iterator<Item = (RingEnds, SharedObserver)> {
        let rings = self.rings.iter();
        rings.filter_map(|(ends, link)| Some((*ends, link.ring.observer().ok()?)))
    }

    /// Returns the statistics of the chain, summed over the processes of the pipeline.
    pub fn stats(&self) -> Option<ChainStats> {
        let (spi, generation) = self.chain;
        let mut sum = self.head.chain(spi, generation)?;
        // Packets leave the chain through the first process, so only that process counts departures
        // and sojourn times.
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
