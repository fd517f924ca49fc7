//! Makes batches of packets for benchmarks.

use myelin_functions::{Batch, Packet};
use myelin_packet::{Meta, parse};

/// Returns a batch with one packet for each buffer.
pub(crate) fn make_batch(buffers: &mut [Vec<u8>]) -> Batch<'_> {
    let mut batch = Batch::with_capacity(buffers.len());
    for buffer in buffers {
        let meta = Meta::new(0, 1, 1, 0, &parse(buffer).expect("a frame that parses"));
        let len = buffer.len();
        batch.push(Packet::new(buffer, 0, len, meta, 0).expect("a packet"));
    }
    batch
}
