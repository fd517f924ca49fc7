//! Where further packets go.

use myelin_packet::Meta;

/// Takes packets that a function makes, besides the one it handles.
pub trait Emitter {
    /// Sends `frame`, which starts with its Ethernet header; it is copied. It continues behind the
    /// emitting function, after the packets of the batch, as if it had come in with the packet
    /// whose metadata is `origin`: with its stamp, chain and generation. Of `origin` the
    /// offsets are not used, the frame is parsed. A frame that does not parse or finds no free
    /// buffer is dropped and counted.
    fn emit(&mut self, origin: &Meta, frame: &[u8]);

    /// Sends `frame`, which starts with its Ethernet header, back towards the sender of the packet
    /// whose metadata is `origin`: out at the port where the chain took that packet in, past all
    /// functions. It is copied; one that finds no free buffer or no room in the port is dropped and
    /// counted.
    fn reply(&mut self, origin: &Meta, frame: &[u8]);
}

/// Drops what it is given: for functions that emit nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl Emitter for Discard {
    fn emit(&mut self, _origin: &Meta, _frame: &[u8]) {}

    fn reply(&mut self, _origin: &Meta, _frame: &[u8]) {}
}

/// Keeps what it is given: for tests.
impl Emitter for Vec<(Meta, Vec<u8>)> {
    fn emit(&mut self, origin: &Meta, frame: &[u8]) {
        self.push((*origin, frame.to_vec()));
    }

    fn reply(&mut self, origin: &Meta, frame: &[u8]) {
        self.push((*origin, frame.to_vec()));
    }
}
