//! Reading a function's flows without holding its packets up.

use std::hash::Hash;

use myelin_packet::{FlowRecord, FlowTotals};

use crate::flow_table::FlowTable;

/// A part of what a function knows of flows. Who reads hands it to the function between two
/// batches, empties it, and hands it over again until nothing is left.
#[derive(Debug)]
pub struct FlowPage {
    /// Flows of this part.
    pub records: Vec<FlowRecord>,
    /// Counts of the whole table; `None` from a function that keeps no flows.
    pub totals: Option<FlowTotals>,
    /// Places looked at in one go.
    places: usize,
    /// Where the next part starts; `None` when all was read.
    next: Option<usize>,
}

impl FlowPage {
    /// The first part, of at most that many flows.
    pub fn new(places: usize) -> Self {
        Self {
            records: Vec::with_capacity(places),
            totals: None,
            places: places.max(1),
            next: Some(0),
        }
    }

    /// Whether there is nothing more to be read.
    pub fn is_last(&self) -> bool {
        self.next.is_none()
    }

    /// Takes the next part of a table. A flow that is there all the time is read exactly once,
    /// since it keeps its place.
    pub fn take<K, V>(
        &mut self,
        table: &FlowTable<K, V>,
        totals: FlowTotals,
        record: impl Fn(&K, &V) -> FlowRecord,
    ) where
        K: Copy + Default + Eq + Hash,
        V: Copy + Default,
    {
        self.totals = Some(totals);
        let Some(from) = self.next else {
            return;
        };
        let to = from.saturating_add(self.places).min(table.capacity());
        let flows = (from..to).filter_map(|place| table.at(place));
        self.records
            .extend(flows.map(|(key, value)| record(key, value)));
        self.next = (to < table.capacity()).then_some(to);
    }
}
