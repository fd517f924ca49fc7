//! `flow-tracker`.

use super::prelude::*;
use myelin_packet::FlowState;

word_enum! {
    /// The action on a TCP segment that belongs to no known connection and opens none.
    #[derive(Default)]
    pub enum InvalidPolicy {
        /// Forward it.
        #[default]
        Pass = "pass",
        /// Drop it.
        Drop = "drop",
    }
}

config! {
    /// Configuration of a `flow-tracker` function. The default lifetimes are the minimum of RFC
    /// 4787 (REQ-5) and RFC 5382 (REQ-5).
    #[derive(Copy)]
    pub struct FlowTrackerConfig {
        /// The most flows in the table. A new flow replaces the flow that was idle longest (in the
        /// kernel, one of the idle flows). A counter records replacements.
        "flows" flows: u32 = FLOWS;
        /// The action on a TCP segment that belongs to no known connection and opens none. A
        /// counter records such segments in any case.
        "invalid" invalid: InvalidPolicy = InvalidPolicy::KEY.with_default("pass");
        /// The lifetime of a flow after its last packet.
        "timeout" timeout_ns: u64 = DURATION.with_default("120s");
        /// The lifetime of an established TCP connection. It is at most 240s while the connection
        /// opens or closes, and 10s after it closed.
        "tcpTimeout" tcp_timeout_ns: u64 = DURATION.with_default("7440s").with_hint("120s"), with REVERSE_OF;
    }
}

/// The longest lifetime of a TCP connection that opens or closes, ns: four minutes (RFC 5382,
/// REQ-5).
const TRANSITORY_NS: u64 = 240_000_000_000;
/// The longest lifetime of a closed TCP connection, ns. Late segments still belong to the
/// connection.
const CLOSED_NS: u64 = 10_000_000_000;

impl FlowTrackerConfig {
    /// Returns the lifetime of a flow in `state` after the flow's last packet, ns.
    pub fn lifetime_ns(&self, is_tcp: bool, state: FlowState) -> u64 {
        match state {
            _ if !is_tcp => self.timeout_ns,
            FlowState::Established => self.tcp_timeout_ns,
            FlowState::New | FlowState::Closing => self.tcp_timeout_ns.min(TRANSITORY_NS),
            FlowState::Closed => self.tcp_timeout_ns.min(CLOSED_NS),
        }
    }

    /// Returns the part of the configuration that the table depends on. Other changes keep the
    /// table.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            flows: self.flows,
            ..Self::default()
        }
    }
}

/// `flow-tracker`.
pub static FLOW_TRACKER: Kind = Kind {
    name: "flow-tracker",
    class: Class::Basic,
    kernel: Some(Cost::new(42.0, 0.0)),
    user: Some(Cost::new(25.0, 0.0)),
    works_on: PacketParts::Header,
    takes_super_packets: true,
    user_takes_super_packets: true,
    state: State::PerFlow,
    fails_closed: true,
    config: FlowTrackerConfig::KEYS,
    description: "Tracks the state of each flow: new, established, closing, closed. Counts its packets and \
                  bytes; `myelin ps --flows` shows them. Sees one direction only, unless the reverse chain \
                  has a `flow-tracker` with `reverseOf`.",
    example: "{ name: connections, kind: flow-tracker, config: { invalid: drop } }",
    read: |fields| FunctionConfig::FlowTracker(FlowTrackerConfig::from_fields(fields)),
    flow_lifetime_ns: |config, is_tcp, state| match config {
        FunctionConfig::FlowTracker(config) => Some(config.lifetime_ns(is_tcp, state?)),
        _ => None,
    },
    ..Kind::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn established_connection_has_the_longest_lifetime() {
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
