//! A block of a match: a port drops and counts the packets of a chain that is not deployed.

use std::sync::Arc;

use crate::chain::ChainEntry;
use crate::classifier::{BLOCK_SPI, ChainTarget};
use crate::counters::CounterLine;
use crate::map::put;
use crate::numbers::NumberRange;
use crate::resources::PlaneResources;
use crate::{Error, Hook};

/// Drops the packets of a match, so that they reach neither the host's stack nor the opposite port.
/// Remove the block from its port before you drop it.
#[derive(Debug)]
pub struct Block {
    target: Arc<ChainTarget>,
    line: Arc<NumberRange>,
    shared: Arc<PlaneResources>,
}

impl Block {
    pub(crate) fn new(shared: &Arc<PlaneResources>) -> Result<Self, Error> {
        let line = Arc::new(shared.counters.allocate(1)?);
        let number = NumberRange::allocate(&shared.chain_numbers, 1)?;
        let entry = ChainEntry::block(line.start());
        // The XDP door passes the packets of an entry at tcx.
        for hook in Hook::ALL {
            let key = number.start().to_ne_bytes();
            let chains = ("chains", "add a block to");
            put(
                shared.chains(hook),
                chains,
                &key,
                bytemuck::bytes_of(&entry),
            )?;
        }
        Ok(Self {
            target: Arc::new(ChainTarget::new(BLOCK_SPI, number, vec![Arc::clone(&line)])),
            line,
            shared: Arc::clone(shared),
        })
    }

    /// Returns the counters of the dropped packets.
    pub fn counters(&self) -> CounterLine {
        self.shared.counters.read(self.line.start())
    }

    pub(crate) fn target(&self) -> &Arc<ChainTarget> {
        &self.target
    }
}
