//! `monitor`: counts packets and bytes by flow.

use myelin_packet::{FlowCounts, FlowKey, FlowTotals};
use myelin_spec::MonitorConfig;

use crate::flow_table::FlowTable;
use crate::{Emitter, FlowPage, Packet, Stateful, Verdict};

/// Counts every packet under its five-tuple and forwards the packet unchanged. Counts a packet
/// without ports (a fragment, a protocol other than UDP and TCP) under its addresses and protocol.
#[derive(Clone, Copy, Debug)]
pub struct Monitor;

/// The flows of a `monitor`.
#[derive(Debug)]
pub struct MonitorState {
    flows: FlowTable<FlowKey, FlowCounts>,
    begun: u64,
    outside: u64,
}

impl MonitorState {
    /// Makes a table without flows.
    pub fn new(config: MonitorConfig) -> Self {
        Self {
            flows: FlowTable::new(config.flows as usize),
            begun: 0,
            outside: 0,
        }
    }

    #[inline]
    fn count(&mut self, packet: &Packet<'_>) {
        let Some(key) = FlowKey::of(packet.headers(), packet.bytes()) else {
            self.outside += packet.segments();
            return;
        };
        let now_ns = packet.meta().stamp_ns;
        let (counts, is_new) = self.flows.use_or_insert(key, || FlowCounts {
            first_ns: now_ns,
            ..FlowCounts::default()
        });
        counts.packets += packet.segments();
        counts.bytes += packet.len() as u64;
        counts.last_ns = now_ns;
        self.begun += u64::from(is_new);
    }
}

impl Stateful for Monitor {
    type State = MonitorState;

    #[inline]
    fn process(
        &mut self,
        state: &mut MonitorState,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        state.count(packet);
        Verdict::Forward
    }

    fn verdict_without_state(&self) -> Verdict {
        Verdict::Forward
    }

    fn read_flows(&self, state: &MonitorState, page: &mut FlowPage) {
        let totals = FlowTotals {
            begun: state.begun,
            evicted: state.flows.evictions(),
            outside: state.outside,
        };
        page.read_page(&state.flows, totals, |key, counts| counts.record(*key));
    }
}
