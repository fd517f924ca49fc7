//! A block of a match: a port drops and counts the packets of a chain that is not deployed.

use std::sync::Arc;

use crate::Error;
use crate::bare_entry::BareEntry;
use crate::chain::ChainEntry;
use crate::classifier::{BLOCK_SPI, ChainTarget};
use crate::counters::CounterLine;
use crate::resources::PlaneResources;

/// Drops the packets of a match, so that they reach neither the host's stack nor the opposite port.
/// Remove the block from its port before you drop it.
#[derive(Debug)]
pub struct Block(BareEntry);

impl Block {
    pub(crate) fn new(shared: &Arc<PlaneResources>) -> Result<Self, Error> {
        BareEntry::add(shared, BLOCK_SPI, "add a block to", ChainEntry::block).map(Self)
    }

    /// Returns the counters of the dropped packets.
    pub fn counters(&self) -> CounterLine {
        self.0.counters()
    }

    pub(crate) fn target(&self) -> &Arc<ChainTarget> {
        self.0.target()
    }
}
