//! `lossy-link`.

use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};
use crate::lossy_link::MAX_BURST;

/// `lossy-link`.
pub static LOSSY_LINK: Kind = Kind {
    name: "lossy-link",
    class: Class::Elementary,
    kernel: None,
    user: Some(DefaultCost {
        per_packet_ns: 3.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Nothing,
    state: State::PerInstance,
    guards: false,
    config: &[
        ConfigKey {
            key: "loss",
            value: ValueType::Percent,
            required: true,
            default: None,
            doc: "share of packets that are lost, 0% to 100%",
        },
        ConfigKey {
            key: "burst",
            value: ValueType::Integer {
                min: 1,
                max: MAX_BURST as u64,
            },
            required: false,
            default: None,
            doc: "packets in a row that are lost, in the mean; left out, each packet is lost or not whatever became of the others",
        },
        ConfigKey {
            key: "seed",
            value: ValueType::Integer {
                min: 0,
                max: u64::MAX,
            },
            required: false,
            default: None,
            doc: "what the random numbers start from, so that the same packets are lost each time; left out, others are",
        },
    ],
    description: "A link that loses packets, to try a chain against: each by itself, or in bursts (Gilbert's model). What is lost \
                  counts as dropped by it.",
    example: "{ name: radio, kind: lossy-link, config: { loss: 5%, burst: 3 } }",
};
