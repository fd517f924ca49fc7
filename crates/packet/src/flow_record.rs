//! What a function that keeps a table of flows tells of them.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::{FlowKey, FlowMarks};

/// How far a flow has come, for functions that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FlowState {
    /// Opened by one side; the other has not answered.
    New,
    /// Both sides take part.
    Established,
    /// TCP: one side has said that it is done.
    Closing,
    /// TCP: both have, or one has reset it.
    Closed,
}

/// One flow, as it is handed from the worker to the agent: plain bytes, times of CLOCK_MONOTONIC in
/// nanoseconds, sizes with the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FlowRecord {
    /// The flow, in the direction of its first packet.
    pub key: FlowKey,
    /// Packets in that direction.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets the other way, where the function sees both.
    pub reply_packets: u64,
    /// Their bytes.
    pub reply_bytes: u64,
    /// When the first packet passed the front door.
    pub first_ns: u64,
    /// When the last one did.
    pub last_ns: u64,
    state: u64,
}

impl FlowRecord {
    /// A flow of which nothing was counted yet.
    pub fn new(key: FlowKey) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// How far it has come; `None` where the function does not follow it.
    pub fn state(&self) -> Option<FlowState> {
        match self.state {
            1 => Some(FlowState::New),
            2 => Some(FlowState::Established),
            3 => Some(FlowState::Closing),
            4 => Some(FlowState::Closed),
            _ => None,
        }
    }

    /// Sets how far it has come.
    #[must_use]
    pub fn with_state(self, state: FlowState) -> Self {
        let state = match state {
            FlowState::New => 1,
            FlowState::Established => 2,
            FlowState::Closing => 3,
            FlowState::Closed => 4,
        };
        Self { state, ..self }
    }
}

/// What was counted of a flow in one direction. Twin of the eBPF side's `struct flow_counts`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct FlowCounts {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the first one passed the front door.
    pub first_ns: u64,
    /// When the last one did.
    pub last_ns: u64,
}

impl FlowCounts {
    /// What is told of the flow.
    pub fn record(&self, key: FlowKey) -> FlowRecord {
        FlowRecord {
            key,
            packets: self.packets,
            bytes: self.bytes,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            ..FlowRecord::default()
        }
    }
}

/// A flow that is followed; by end, the first one as [`FlowKey::canonical`] has it. Twin of the eBPF
/// side's `struct tracked`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct TrackedFlow {
    /// Packets that each end sent.
    pub packets: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// When the first one passed the front door.
    pub first_ns: u64,
    /// When the last one did.
    pub last_ns: u64,
    /// What was seen of it.
    pub marks: FlowMarks,
    /// Nothing.
    pub spare: u32,
}

impl TrackedFlow {
    /// What is told of the flow.
    pub fn record(&self, key: FlowKey) -> FlowRecord {
        let by_second = self.marks.contains(FlowMarks::OPENED_BY_SECOND);
        let (opener, other) = (usize::from(by_second), usize::from(!by_second));
        let record = FlowRecord {
            key: if by_second { key.reversed() } else { key },
            packets: self.packets[opener],
            bytes: self.bytes[opener],
            reply_packets: self.packets[other],
            reply_bytes: self.bytes[other],
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            ..FlowRecord::default()
        };
        record.with_state(self.marks.state(key.is_tcp()))
    }
}

/// What a function counts of its table besides the flows in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FlowTotals {
    /// Flows that began.
    pub begun: u64,
    /// Flows that were put out of the full table because others came.
    pub evicted: u64,
    /// Packets that belong to no flow: no room could be made, or none is to be opened by such a
    /// packet.
    pub outside: u64,
}

/// What a function knows of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// The flows in its table, in no order.
    pub records: Vec<FlowRecord>,
    /// What it counts besides.
    pub totals: FlowTotals,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back() {
        assert_eq!(FlowRecord::default().state(), None);
        for state in [
            FlowState::New,
            FlowState::Established,
            FlowState::Closing,
            FlowState::Closed,
        ] {
            let record = FlowRecord::default().with_state(state);
            assert_eq!(record.state(), Some(state));
        }
    }
}
