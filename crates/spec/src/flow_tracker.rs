//! The configuration of a `flow-tracker`.

use myelin_packet::FlowState;
use serde::{Deserialize, Serialize};

use crate::words::word_enum;

word_enum! {
    /// What happens to a TCP segment that belongs to no known connection and opens none.
    #[derive(Default)]
    pub enum InvalidPolicy {
        /// It goes on.
        #[default]
        Pass = "pass",
        /// It is dropped.
        Drop = "drop",
    }
}

/// How long a TCP connection that is opened or closed waits for its next segment at most, ns: four minutes (RFC 5382, REQ-5).
const TRANSITORY_NS: u64 = 240_000_000_000;
/// How long late segments of a closed connection belong to it at most, ns.
const CLOSED_NS: u64 = 10_000_000_000;

/// Configuration of a `flow-tracker` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTrackerConfig {
    /// Flows it keeps at most.
    pub flows: u32,
    /// What happens to TCP segments of no known connection.
    pub invalid: InvalidPolicy,
    /// How long a flow lives after its last packet, ns.
    pub timeout_ns: u64,
    /// The same for an established TCP connection.
    pub tcp_timeout_ns: u64,
}

impl Default for FlowTrackerConfig {
    fn default() -> Self {
        Self {
            flows: 4096,
            invalid: InvalidPolicy::default(),
            // RFC 4787, REQ-5: not below two minutes.
            timeout_ns: 120_000_000_000,
            // RFC 5382, REQ-5: not below two hours and four minutes.
            tcp_timeout_ns: 7_440_000_000_000,
        }
    }
}

impl FlowTrackerConfig {
    /// How long a flow in that state lives after its last packet, ns.
    pub fn lifetime_ns(&self, is_tcp: bool, state: FlowState) -> u64 {
        match state {
            _ if !is_tcp => self.timeout_ns,
            FlowState::Established => self.tcp_timeout_ns,
            FlowState::New | FlowState::Closing => self.tcp_timeout_ns.min(TRANSITORY_NS),
            FlowState::Closed => self.tcp_timeout_ns.min(CLOSED_NS),
        }
    }

    /// The part that the table depends on: a change of what it leaves out needs no new one.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            flows: self.flows,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_state_outlives_the_established_one() {
        let config = FlowTrackerConfig {
            timeout_ns: 7,
            tcp_timeout_ns: 5,
            ..FlowTrackerConfig::default()
        };
        for state in [
            FlowState::New,
            FlowState::Established,
            FlowState::Closing,
            FlowState::Closed,
        ] {
            assert_eq!(config.lifetime_ns(true, state), 5);
            assert_eq!(config.lifetime_ns(false, state), 7);
        }
        let default = FlowTrackerConfig::default();
        let lifetimes = [FlowState::Closed, FlowState::New, FlowState::Established]
            .map(|state| default.lifetime_ns(true, state) / 1_000_000_000);
        assert_eq!(lifetimes, [10, 240, 7440]);
    }
}
