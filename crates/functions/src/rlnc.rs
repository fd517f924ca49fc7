//! `rlnc-encode`, `rlnc-recode`, `rlnc-decode`: random linear network coding of UDP packets.
//!
//! What is coded is the whole IP packet (its *unit*), so a function has one code over all its packets, of whatever flow,
//! and a packet that is worked out has its own headers. Source packets keep their headers and get a trailer behind their
//! payload; coded packets have the addresses and ports of the packet that they were made behind, so they are routed and
//! classified as that one. `docs/functions/network-coding.md` has the formats, `myelin_coding` the code.
//!
//! A function's code is its [`mod@state`](crate::state): it goes on in the next generation of its chain.

mod carrier;
pub mod decode;
pub mod encode;
pub mod recode;
mod unit;

use std::num::NonZeroU32;

use myelin_coding::Redundancy;
use myelin_packet::checksum;
use myelin_spec::rlnc::{MAX_MTU, REDUNDANCY_PARTS};

use crate::Packet;
use crate::datagram::Datagram;

/// Longest unit, bytes.
const MAX_UNIT: usize = MAX_MTU as usize;

/// Memory for a frame that is made: the longest with its Ethernet header and two VLAN tags, and then some, since a coded
/// packet that is too long is found to be so when it is made.
const FRAME: usize = 2048;

fn redundancy(parts: u32) -> Redundancy {
    const PARTS: NonZeroU32 = NonZeroU32::new(REDUNDANCY_PARTS).unwrap();
    Redundancy::new(parts, PARTS)
}

/// The datagram in `packet`, if that is one to be coded. Ethernet padding is cut off the packet.
fn datagram(packet: &mut Packet<'_>) -> Option<Datagram> {
    // What is summed is a trailer, too short for wider registers.
    let datagram = Datagram::of(packet, checksum::sum).ok()?;
    datagram.cut_padding(packet)?;
    Some(datagram)
}

fn frame_memory() -> Box<[u8]> {
    vec![0; FRAME].into()
}
