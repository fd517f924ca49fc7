//! Frame lengths, without the frame check sequence.

/// The shortest frame, bytes.
pub(crate) const SHORTEST: u64 = 60;
/// The longest frame if the MTU is unknown: MTU 1500 B with a VLAN tag, bytes.
pub(crate) const LONGEST: u64 = longest(1500);
/// Ethernet header and VLAN tag, bytes.
const HEADER_BYTES: u64 = 18;

/// Returns the longest frame of a link with this MTU, bytes.
pub(crate) const fn longest(mtu: u64) -> u64 {
    mtu + HEADER_BYTES
}
