//! How long frames are, without frame check sequence.

/// The shortest frame, bytes.
pub(crate) const SHORTEST: u64 = 60;
/// The longest frame where nobody says how long one is: on a link with an MTU of 1500 B, with a VLAN tag, bytes.
pub(crate) const LONGEST: u64 = longest(1500);
/// What a frame has beside an IP packet, bytes: an Ethernet header and a VLAN tag.
const AROUND: u64 = 18;

/// The longest frame of a link of that MTU, bytes.
pub(crate) const fn longest(mtu: u64) -> u64 {
    mtu + AROUND
}
