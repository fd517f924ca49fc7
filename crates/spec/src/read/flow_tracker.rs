//! Reads the configuration of a `flow-tracker`.

use super::field::Fields;
use crate::error::Report;
use crate::flow_tracker::{FlowTrackerConfig, InvalidPolicy};
use crate::units::parse_duration_ns;

/// `flows` was read already.
pub(super) fn read(fields: &Fields<'_>, flows: u32, report: &mut Report<'_>) -> FlowTrackerConfig {
    let default = FlowTrackerConfig::default();
    let invalid = fields
        .get("invalid")
        .and_then(|field| field.word(report, InvalidPolicy::WORDS));
    let mut duration = |key: &str, default: u64| {
        fields
            .get(key)
            .and_then(|field| field.quantity(report, parse_duration_ns, "120s"))
            .unwrap_or(default)
    };
    FlowTrackerConfig {
        flows,
        invalid: invalid.unwrap_or_default(),
        timeout_ns: duration("timeout", default.timeout_ns),
        tcp_timeout_ns: duration("tcpTimeout", default.tcp_timeout_ns),
    }
}
