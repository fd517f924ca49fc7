//! `flow-tracker`: follows flows from their first packet to their last.

use myelin_packet::five_tuple::TCP;
use myelin_packet::flow_marks::tcp;
use myelin_packet::{FlowKey, FlowMarks, FlowState, FlowTotals, TrackedFlow};
use myelin_spec::{FlowTrackerConfig, InvalidPolicy};

use crate::flow_table::FlowTable;
use crate::{Emitter, FlowPage, Packet, Stateful, Verdict};

/// Tracks the state of each flow from the packets of both sides: new, established, closing, closed.
///
/// A flow includes both directions. The function sees both directions if the reverse chain has a
/// `flow-tracker` with `reverseOf`. Packets that are not TCP always open a flow, and the first
/// packet in the other direction establishes the flow. A SYN alone opens a TCP connection, and an
/// acknowledgement establishes the connection. After a FIN of one side the connection is closing;
/// the FINs of both sides or a reset close it. A SYN may reopen a closed connection. The side that
/// sent its FIN may also reopen a closing connection. Flows also end by timeout. The function
/// counts TCP segments that belong to no flow and open no flow, and drops them if the configuration
/// says so. It forwards all other packets.
#[derive(Debug)]
pub struct FlowTracker(FlowTrackerConfig);

/// The flows of a `flow-tracker`.
#[derive(Debug)]
pub struct FlowTrackerState {
    flows: FlowTable<FlowKey, TrackedFlow>,
    begun: u64,
    outside: u64,
}

/// Returns a flow after its first packet.
#[inline]
fn new_flow(now_ns: u64, is_from_second_endpoint: bool, packet: &Packet<'_>) -> TrackedFlow {
    let mut flow = TrackedFlow {
        first_ns: now_ns,
        last_ns: now_ns,
        marks: FlowMarks::of_first_packet(is_from_second_endpoint),
        ..TrackedFlow::default()
    };
    count_packet(&mut flow, is_from_second_endpoint, packet);
    flow
}

#[inline]
fn count_packet(flow: &mut TrackedFlow, is_from_second_endpoint: bool, packet: &Packet<'_>) {
    flow.packets[usize::from(is_from_second_endpoint)] += packet.segments();
    flow.bytes[usize::from(is_from_second_endpoint)] += packet.len() as u64;
}

impl FlowTrackerState {
    /// Makes a table without flows.
    pub fn new(config: FlowTrackerConfig) -> Self {
        Self {
            flows: FlowTable::new(config.flows as usize),
            begun: 0,
            outside: 0,
        }
    }

    #[inline]
    fn track(&mut self, config: &FlowTrackerConfig, packet: &Packet<'_>) -> Verdict {
        let headers = packet.headers();
        let Some(key) = FlowKey::of(headers, packet.bytes()) else {
            return self.count_invalid(config, packet);
        };
        let flags = if headers.protocol == TCP && headers.flags.has_ports() {
            let at = usize::from(headers.l4) + tcp::OFFSET;
            packet.bytes().get(at).copied()
        } else {
            None
        };
        let is_tcp = flags.is_some();
        let opens = flags.is_none_or(tcp::opens);
        let now_ns = packet.meta().stamp_ns;
        let (key, is_from_second_endpoint) = key.canonical();
        if let Some(flow) = self.flows.use_flow(&key) {
            let state = flow.marks.state(is_tcp);
            let lifetime_ns = config.lifetime_ns(is_tcp, state);
            let is_alive = now_ns.saturating_sub(flow.last_ns) <= lifetime_ns;
            let is_over = state == FlowState::Closed
                || flow.marks.contains(done_mark(is_from_second_endpoint));
            if is_alive && !(opens && is_over) {
                flow.marks = flow
                    .marks
                    .with(flow.marks.of_packet(is_from_second_endpoint, flags));
                count_packet(flow, is_from_second_endpoint, packet);
                // Late segments do not extend the life of a closed connection.
                if state != FlowState::Closed {
                    flow.last_ns = flow.last_ns.max(now_ns);
                }
                return Verdict::Forward;
            }
            if opens {
                *flow = new_flow(now_ns, is_from_second_endpoint, packet);
                self.begun += 1;
                return Verdict::Forward;
            }
        } else if opens {
            let flow = new_flow(now_ns, is_from_second_endpoint, packet);
            self.flows.insert(key, flow);
            self.begun += 1;
            return Verdict::Forward;
        }
        self.count_invalid(config, packet)
    }

    fn count_invalid(&mut self, config: &FlowTrackerConfig, packet: &Packet<'_>) -> Verdict {
        self.outside += packet.segments();
        apply_policy(config.invalid)
    }
}

fn apply_policy(policy: InvalidPolicy) -> Verdict {
    match policy {
        InvalidPolicy::Pass => Verdict::Forward,
        InvalidPolicy::Drop => Verdict::Drop,
    }
}

/// Returns the mark for a FIN of the packet's sender.
fn done_mark(is_from_second_endpoint: bool) -> FlowMarks {
    if is_from_second_endpoint {
        FlowMarks::SECOND_DONE
    } else {
        FlowMarks::FIRST_DONE
    }
}

impl FlowTracker {
    /// Makes the function with this configuration.
    pub fn new(config: FlowTrackerConfig) -> Self {
        Self(config)
    }
}

impl Stateful for FlowTracker {
    type State = FlowTrackerState;

    #[inline]
    fn process(
        &mut self,
        state: &mut FlowTrackerState,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        state.track(&self.0, packet)
    }

    fn verdict_without_state(&self) -> Verdict {
        apply_policy(self.0.invalid)
    }

    fn read_flows(&self, state: &FlowTrackerState, page: &mut FlowPage) {
        let totals = FlowTotals {
            begun: state.begun,
            evicted: state.flows.evictions(),
            outside: state.outside,
        };
        page.read_page(&state.flows, totals, |key, flow| flow.record(*key));
    }
}
