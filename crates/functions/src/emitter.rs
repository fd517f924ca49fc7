//! Outputs for packets that a function makes.

use myelin_packet::Meta;

/// Takes packets that a function sends in addition to the processed packet.
pub trait Emitter {
    /// Sends a copy of `frame`, which starts with its Ethernet header, to the next function, after
    /// the packets of the batch. The frame inherits stamp, chain and generation from `origin`, the
    /// metadata of the packet that caused it. The emitter parses the frame again and ignores the
    /// offsets in `origin`. It drops and counts a frame that does not parse, or for which no buffer
    /// is free.
    fn emit(&mut self, origin: &Meta, frame: &[u8]);

    /// Sends a copy of `frame`, which starts with its Ethernet header, back towards the sender of
    /// the packet with the metadata `origin`. The frame leaves through the port where the chain
    /// received that packet, and passes no function. The emitter drops and counts a frame for which
    /// no buffer is free or the port has no room.
    fn reply(&mut self, origin: &Meta, frame: &[u8]);
}

/// Drops all packets; for functions that send no packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl Emitter for Discard {
    fn emit(&mut self, _origin: &Meta, _frame: &[u8]) {}

    fn reply(&mut self, _origin: &Meta, _frame: &[u8]) {}
}

/// Stores all packets; for tests.
impl Emitter for Vec<(Meta, Vec<u8>)> {
    fn emit(&mut self, origin: &Meta, frame: &[u8]) {
        self.push((*origin, frame.to_vec()));
    }

    fn reply(&mut self, origin: &Meta, frame: &[u8]) {
        self.push((*origin, frame.to_vec()));
    }
}
