//! `rlnc-encode`, `rlnc-recode`, `rlnc-decode`: random linear network coding of UDP packets.
//!
//! The code covers the whole IP packet (its *unit*). So a function has one code for the packets of
//! all flows, and a recovered packet has its own headers. Source packets keep their headers and get
//! a trailer after the payload. A coded packet copies addresses and ports of the packet before it,
//! so the network routes and classifies the two packets alike.
//! `docs/functions/network-coding.md` describes the formats, `myelin_coding` the code.
//!
//! The code of a function is the function's [`mod@state`](crate::state), so the code continues in
//! the next generation of the chain.

pub mod decode;
pub mod encode;
mod header_template;
pub mod recode;
mod unit;

use std::num::NonZeroU32;

use myelin_coding::Redundancy;
use myelin_packet::checksum;
use myelin_spec::rlnc::{MAX_MTU, MILLIONTHS};

use crate::Packet;
use crate::datagram::Datagram;

/// Longest unit, bytes.
const MAX_UNIT: usize = MAX_MTU as usize;

/// Bytes of the buffer for a new frame: the longest IP packet, an Ethernet header with two VLAN
/// tags, and a reserve. A function builds a coded packet before it checks the length.
const FRAME_BUFFER_LEN: usize = 2048;

fn redundancy(parts: u32) -> Redundancy {
    const PARTS: NonZeroU32 = NonZeroU32::new(MILLIONTHS).unwrap();
    Redundancy::new(parts, PARTS)
}

/// Returns the datagram in `packet` if the code supports it. Removes Ethernet padding.
fn find_datagram(packet: &mut Packet<'_>) -> Option<Datagram> {
    // The sum covers only a trailer, which is too short to profit from wider registers.
    let datagram = Datagram::of(packet, checksum::sum).ok()?;
    datagram.remove_padding(packet)?;
    Some(datagram)
}

fn new_frame_buffer() -> Box<[u8]> {
    vec![0; FRAME_BUFFER_LEN].into()
}
