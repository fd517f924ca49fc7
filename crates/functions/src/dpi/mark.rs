//! The DSCP of a packet (RFC 2474).

use myelin_packet::checksum;

use crate::Packet;
use crate::word::{read_word, write_word};

/// Sets the DSCP and corrects the checksum of the IPv4 header. The two ECN bits (RFC 3168) stay.
/// Returns `None` if the packet has no IP header, which never happens.
pub(super) fn set_dscp(packet: &mut Packet<'_>, dscp: u8) -> Option<()> {
    let l3 = usize::from(packet.headers().l3);
    let is_v6 = packet.headers().flags.is_ipv6();
    let header = packet.bytes_mut().get_mut(l3..)?;
    let old = read_word(header, 0)?;
    // IPv6 has four bits of version in front, IPv4 a whole byte.
    let shift = if is_v6 { 6 } else { 2 };
    let new = old & !(0x3f << shift) | u16::from(dscp) << shift;
    write_word(header, 0, new)?;
    if !is_v6 {
        let old_checksum = read_word(header, 10)?;
        write_word(header, 10, checksum::update(old_checksum, old, new))?;
    }
    Some(())
}
