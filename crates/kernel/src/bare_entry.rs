//! An entry of the map of chains without programs: what a port does with the packets of a match by
//! itself. A [`Block`](crate::Block) and a [`Relay`](crate::Relay) have one each.

use std::sync::Arc;

use crate::chain::ChainEntry;
use crate::classifier::ChainTarget;
use crate::counters::CounterLine;
use crate::map::put;
use crate::numbers::NumberRange;
use crate::resources::PlaneResources;
use crate::{Error, Hook};

/// An entry with its number and its counter line. Remove its matches before you drop it.
#[derive(Debug)]
pub(crate) struct BareEntry {
    target: Arc<ChainTarget>,
    line: Arc<NumberRange>,
    shared: Arc<PlaneResources>,
}

impl BareEntry {
    /// Adds the entry that `make` returns for a counter line. `action` names the addition in an
    /// error.
    pub(crate) fn add(
        shared: &Arc<PlaneResources>,
        spi: u32,
        action: &'static str,
        make: impl FnOnce(u32) -> ChainEntry,
    ) -> Result<Self, Error> {
        let line = Arc::new(shared.counters.allocate(1)?);
        let number = NumberRange::allocate(&shared.chain_numbers, 1)?;
        let entry = make(line.start());
        let (key, entry) = (number.start().to_ne_bytes(), bytemuck::bytes_of(&entry));
        // The XDP door passes the packets of an entry at tcx.
        for hook in Hook::ALL {
            put(shared.chains(hook), ("chains", action), &key, entry)?;
        }
        Ok(Self {
            target: Arc::new(ChainTarget::new(spi, number, vec![Arc::clone(&line)])),
            line,
            shared: Arc::clone(shared),
        })
    }

    pub(crate) fn counters(&self) -> CounterLine {
        self.shared.counters.read(self.line.start())
    }

    pub(crate) fn target(&self) -> &Arc<ChainTarget> {
        &self.target
    }
}
