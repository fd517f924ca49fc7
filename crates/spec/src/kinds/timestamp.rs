//! `timestamp`.

use super::DEFAULT_MTU;
use super::prelude::*;

/// The bytes that the function appends: two timestamps.
const STAMPS: u64 = 16;

/// `timestamp`. Basic, like `xor`.
pub static TIMESTAMP: Kind = Kind {
    name: "timestamp",
    class: Class::Basic,
    kernel: Some(Cost::new(90.0, 0.0)),
    user: Some(Cost::new(60.0, 0.0)),
    works_on: PacketParts::Payload,
    fragments: FragmentSupport::WholeDatagram,
    description: "Appends two timestamps to the UDP payload. The first 8 bytes hold the time at \
                  which this function received the packet (in user space: the packet's batch), the \
                  last 8 bytes the time at which it forwards the packet: big-endian nanoseconds of \
                  CLOCK_MONOTONIC. Corrects lengths and checksums. Drops fragments, packets of \
                  other protocols, and packets that would become longer than 1500 bytes.",
    example: "{ name: clock, kind: timestamp }",
    kernel_constants: Some(|_| Vec::new()),
    read: |_| FunctionConfig::Timestamp,
    effect: |_| Effect {
        added_bytes: AddedBytes::new(STAMPS, DEFAULT_MTU),
        ..Effect::default()
    },
    ..Kind::BASE
};
