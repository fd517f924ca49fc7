//! IPv4: a direct table and blocks.

use std::net::Ipv4Addr;

use crate::dir16;

/// DIR-16-8-8: at most three reads.
///
/// An entry with the top bit clear is a value; otherwise its other bits are the number of the block
/// that decides by the next 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv4Lpm {
    /// By the first 16 bits of the address: 65 536 entries.
    pub direct: Vec<u32>,
    /// Blocks of [`BLOCK`](super::BLOCK) entries, end to end.
    pub blocks: Vec<u32>,
}

impl Ipv4Lpm {
    pub(super) fn build(row: &[(u128, u32)]) -> Self {
        let (direct, mut blocks) = dir16::fill(row);
        blocks.shrink_to_fit();
        Self { direct, blocks }
    }

    /// The value of `address`.
    #[inline]
    pub fn look_up(&self, address: Ipv4Addr) -> u32 {
        dir16::look_up(&self.direct, &self.blocks, address)
    }

    pub(super) fn memory(&self) -> usize {
        (self.direct.len() + self.blocks.len()) * size_of::<u32>()
    }
}
