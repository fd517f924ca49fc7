//! `flow-tracker`.

use super::prelude::*;
use myelin_packet::FlowState;

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

config! {
    /// Configuration of a `flow-tracker` function. The default lifetimes are the least that RFC 4787 (REQ-5) and RFC 5382 (REQ-5) allow.
    #[derive(Copy)]
    pub struct FlowTrackerConfig {
        /// flows it keeps at most; when one more comes the one that was used longest ago goes (in the kernel, one that was not used
        /// of late), and this is counted
        "flows" flows: u32 = FLOWS;
        /// what happens to a TCP segment that belongs to no known connection and opens none; it is counted in any case
        "invalid" invalid: InvalidPolicy = InvalidPolicy::KEY.or("pass");
        /// how long a flow lives after its last packet
        "timeout" timeout_ns: u64 = DURATION.or("120s");
        /// the same for an established TCP connection; at most 240s while it is opened or closed, and 10s once it is closed
        "tcpTimeout" tcp_timeout_ns: u64 = DURATION.or("7440s").like("120s"), with REVERSE_OF;
    }
}

/// How long a TCP connection that is opened or closed waits for its next segment at most, ns: four minutes (RFC 5382, REQ-5).
const TRANSITORY_NS: u64 = 240_000_000_000;
/// How long late segments of a closed connection belong to it at most, ns.
const CLOSED_NS: u64 = 10_000_000_000;

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

/// `flow-tracker`.
pub static FLOW_TRACKER: Kind = Kind {
    name: "flow-tracker",
    class: Class::Basic,
    kernel: Some(Cost::new(42.0, 0.0)),
    user: Some(Cost::new(25.0, 0.0)),
    touches: Touches::Header,
    state: State::PerFlow,
    guards: true,
    config: FlowTrackerConfig::KEYS,
    description: "Follows each flow through new, established, closing and closed, and counts what both sides send; `myelin ps \
                  --flows` shows them. Sees one direction, unless a `flow-tracker` with `reverseOf` stands in the reverse chain.",
    example: "{ name: connections, kind: flow-tracker, config: { invalid: drop } }",
    read: |fields| FunctionConfig::FlowTracker(FlowTrackerConfig::of(fields)),
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
