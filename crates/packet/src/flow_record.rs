//! Flow records that functions with a flow table report.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::{FlowKey, FlowMarks};

/// State of a flow, in functions that track it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FlowState {
    /// Opened by one side; the other has not answered.
    New,
    /// Both sides have sent packets.
    Established,
    /// TCP: one side has sent a FIN.
    Closing,
    /// TCP: both sides have sent a FIN, or one has reset the connection.
    Closed,
}

/// One flow, as the worker reports it to the agent: plain bytes, times of CLOCK_MONOTONIC in
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
    /// Packets in the other direction, if the function sees both.
    pub reply_packets: u64,
    /// Their bytes.
    pub reply_bytes: u64,
    /// Time of the first packet at the front door.
    pub first_ns: u64,
    /// Time of the last packet at the front door.
    pub last_ns: u64,
    state: u64,
}

impl FlowRecord {
    /// A record without any counts.
    pub fn new(key: FlowKey) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// State of the flow. `None` if the function does not track it.
    pub fn state(&self) -> Option<FlowState> {
        match self.state {
            1 => Some(FlowState::New),
            2 => Some(FlowState::Established),
            3 => Some(FlowState::Closing),
            4 => Some(FlowState::Closed),
            _ => None,
        }
    }

    /// Sets the state of the flow.
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

/// Counts of a flow in one direction. Same layout as `struct flow_counts` of the eBPF programs.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct FlowCounts {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of the first packet at the front door.
    pub first_ns: u64,
    /// Time of the last packet at the front door.
    pub last_ns: u64,
}

impl FlowCounts {
    /// The record of the flow.
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

/// A tracked flow, with counts by endpoint in the order of [`FlowKey::canonical`]. Same layout as
/// `struct tracked` of the eBPF programs.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct TrackedFlow {
    /// Packets that each endpoint sent.
    pub packets: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// Time of the first packet at the front door.
    pub first_ns: u64,
    /// Time of the last packet at the front door.
    pub last_ns: u64,
    /// Marks of the flow.
    pub marks: FlowMarks,
    /// Padding.
    pub spare: u32,
}

impl TrackedFlow {
    /// The record of the flow.
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

/// Totals of a flow table, in addition to its flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FlowTotals {
    /// Flows that started.
    pub begun: u64,
    /// Flows that new flows evicted from the full table.
    pub evicted: u64,
    /// Packets of no flow: the table had no room, or such a packet opens no flow.
    pub outside: u64,
}

/// The flows of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// The flows in its table, in no order.
    pub records: Vec<FlowRecord>,
    /// The totals of the table.
    pub totals: FlowTotals,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_round_trips() {
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
