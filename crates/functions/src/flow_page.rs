//! Reads the flows of a function in pages, so that its packets do not wait.

use std::hash::Hash;

use myelin_packet::{FlowRecord, FlowTotals};

use crate::flow_table::FlowTable;

/// A page of a function's flows. The reader passes the page to the function between two batches,
/// empties the page, and passes it again until [`is_last`](Self::is_last).
#[derive(Debug)]
pub struct FlowPage {
    /// Flows of this page.
    pub records: Vec<FlowRecord>,
    /// Counts of the whole table. `None` if the function keeps no flows.
    pub totals: Option<FlowTotals>,
    /// Slots of the table to read for one page.
    slots_per_page: usize,
    /// First slot of the next page. `None` at the end of the table.
    next: Option<usize>,
}

impl FlowPage {
    /// Makes a page for `slots` slots of the table.
    pub fn new(slots: usize) -> Self {
        Self {
            records: Vec::with_capacity(slots),
            totals: None,
            slots_per_page: slots.max(1),
            next: Some(0),
        }
    }

    /// Returns whether the whole table was read.
    pub fn is_last(&self) -> bool {
        self.next.is_none()
    }

    /// Reads the next page of a table. A flow keeps its slot, so the pages contain each flow that
    /// stays in the table exactly once.
    pub fn read_page<K, V>(
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
        let to = from
            .saturating_add(self.slots_per_page)
            .min(table.capacity());
        let flows = (from..to).filter_map(|slot| table.flow_in_slot(slot));
        self.records
            .extend(flows.map(|(key, value)| record(key, value)));
        self.next = (to < table.capacity()).then_some(to);
    }
}
