//! Flow records that functions with a flow table report.

use std::net::{IpAddr, SocketAddr};

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::prefix::{address_bytes, address_of};
use crate::{FiveTuple, FlowKey, FlowMarks};

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

/// A flow that the worker reports to the agent, as plain bytes. Times are nanoseconds of
/// CLOCK_MONOTONIC. Sizes include the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FlowRecord {
    /// The flow, in the direction of its first packet.
    pub key: FlowKey,
    /// Packets in the direction of the first packet.
    pub packets: u64,
    /// Bytes in the direction of the first packet.
    pub bytes: u64,
    /// Packets in the other direction, if the function sees both.
    pub reply_packets: u64,
    /// Bytes in the other direction, if the function sees both.
    pub reply_bytes: u64,
    /// Time of the first packet at the front door.
    pub first_ns: u64,
    /// Time of the last packet at the front door.
    pub last_ns: u64,
    /// Time at which the flow expires; 0 if the flow table does not store this time.
    pub expires_ns: u64,
    /// Address that the function writes into the packets, in the layout of [`FlowKey`].
    new_address: [u8; 16],
    new_port: u16,
    state: u8,
    /// [`TRANSLATED`], [`BALANCED`] or 0: which end of the packets gets the new address.
    rewrite: u8,
    spare: u32,
}

/// The packets get a new source address and port.
const TRANSLATED: u8 = 1;
/// The packets get a new destination address.
const BALANCED: u8 = 2;

impl FlowRecord {
    /// Returns a record without any counts.
    pub fn new(key: FlowKey) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// Returns the record of a `nat` mapping, without counts. The record has no destination,
    /// because the mapping applies to all destinations.
    pub fn mapping(protocol: u8, inside: SocketAddr, outside: SocketAddr, expires_ns: u64) -> Self {
        let unspecified: SocketAddr = match inside {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let key = FlowKey::new(&FiveTuple {
            source: inside.ip(),
            destination: unspecified.ip(),
            protocol,
            source_port: Some(inside.port()),
            destination_port: Some(unspecified.port()),
        });
        Self {
            expires_ns,
            new_address: address_bytes(outside.ip()),
            new_port: outside.port(),
            rewrite: TRANSLATED,
            ..Self::new(key)
        }
    }

    /// Returns the record with the backend that a `load-balancer` selected: an address of the
    /// flow's family, in the layout of [`FlowKey`].
    #[must_use]
    pub fn with_backend(self, address: [u8; 16]) -> Self {
        Self {
            new_address: address,
            rewrite: BALANCED,
            ..self
        }
    }

    /// Returns the source that a `nat` writes into the packets.
    pub fn translated(&self) -> Option<SocketAddr> {
        (self.rewrite == TRANSLATED).then(|| (self.new_address(), self.new_port).into())
    }

    /// Returns the backend to which a `load-balancer` sends the packets.
    pub fn backend(&self) -> Option<IpAddr> {
        (self.rewrite == BALANCED).then(|| self.new_address())
    }

    fn new_address(&self) -> IpAddr {
        address_of(self.new_address, self.key.five_tuple().source.is_ipv6())
    }

    /// Returns the state of the flow. `None` if the function does not track states.
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
    /// Packets in this direction.
    pub packets: u64,
    /// Bytes in this direction.
    pub bytes: u64,
    /// Time of the first packet at the front door.
    pub first_ns: u64,
    /// Time of the last packet at the front door.
    pub last_ns: u64,
}

impl FlowCounts {
    /// Returns the record of the flow.
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
    /// Bytes that each endpoint sent.
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
    /// Returns the record of the flow.
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
    /// Packets without a flow: the table was full, or the packet cannot open a flow.
    pub outside: u64,
}

/// The flows of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// The flows in the function's table, in no order.
    pub records: Vec<FlowRecord>,
    /// The totals of the table.
    pub totals: FlowTotals,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_round_trips() {
        for (inside, outside) in [
            ("10.0.0.1:5000", "198.51.100.7:6000"),
            ("[fd00::1]:5000", "[2001:db8::7]:6000"),
        ] {
            let (inside, outside) = (inside.parse().unwrap(), outside.parse().unwrap());
            let mapping = FlowRecord::mapping(17, inside, outside, 9);
            let tuple = mapping.key.five_tuple();
            assert_eq!(tuple.source, inside.ip());
            assert_eq!(tuple.source_port, Some(inside.port()));
            assert!(tuple.destination.is_unspecified());
            assert_eq!(
                (mapping.translated(), mapping.backend()),
                (Some(outside), None)
            );
            let balanced = FlowRecord::new(mapping.key).with_backend(address_bytes(outside.ip()));
            assert_eq!(
                (balanced.translated(), balanced.backend()),
                (None, Some(outside.ip()))
            );
        }
        let plain = FlowRecord::default();
        assert_eq!((plain.translated(), plain.backend()), (None, None));
    }

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
