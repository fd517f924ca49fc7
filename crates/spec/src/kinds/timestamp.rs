//! `timestamp`.

use super::DEFAULT_MTU;
use super::prelude::*;

/// What it appends, bytes: two stamps.
const STAMPS: u64 = 16;

/// `timestamp`. Basic, as `xor` is.
pub static TIMESTAMP: Kind = Kind {
    name: "timestamp",
    class: Class::Basic,
    kernel: Some(Cost::new(90.0, 0.0)),
    user: Some(Cost::new(60.0, 0.0)),
    touches: Touches::Payload,
    description: "Appends 16 bytes to the UDP payload: when the packet passed the front door and when this function handled it, \
                  each as big-endian nanoseconds of CLOCK_MONOTONIC. Corrects lengths and checksums. Drops packets that \
                  are not UDP, fragments, and packets that would become longer than 1500 bytes.",
    example: "{ name: clock, kind: timestamp }",
    kernel_constants: Some(|_| Vec::new()),
    read: |_| FunctionConfig::Timestamp,
    effect: |_| Effect {
        longer: Longer::by(STAMPS, DEFAULT_MTU),
        ..Effect::default()
    },
    ..Kind::BASE
};
