//! DIR-16-8-8: a table from IPv4 addresses to values, after DIR-24-8 (Gupta, Lin, McKeown: Routing
//! Lookups in Hardware at Memory Access Speeds, INFOCOM 1998). A look-up takes at most three reads.
//! Memory is only used for listed prefixes.
//!
//! An entry with a clear top bit is a value. Otherwise the lower 31 bits are the number of a block,
//! and the next 8 bits of the address select an entry of the block.

use std::net::Ipv4Addr;

/// Entries of a block.
pub const BLOCK: usize = 256;

/// Marks an entry that is a block number, not a value.
const IS_BLOCK: u32 = 1 << 31;

/// A DIR-16-8-8 table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dir16 {
    /// Indexed by the first 16 bits of the address: 65 536 entries.
    pub direct: Vec<u32>,
    /// Blocks of [`BLOCK`] entries each.
    pub blocks: Vec<u32>,
}

impl Dir16 {
    /// Builds the table from `pieces`: first addresses and values (below 2^31), ascending from
    /// address 0.
    pub(crate) fn new(pieces: &[(u128, u32)]) -> Self {
        let mut cursor = Cursor { pieces, at: 0 };
        let mut blocks = Vec::new();
        let direct = (0..1_u64 << 16)
            .map(|high| cursor.build_entry(high << 16, 16, &mut blocks))
            .collect();
        blocks.shrink_to_fit();
        Self { direct, blocks }
    }

    /// Returns the value of `address`.
    #[inline]
    pub fn look_up(&self, address: Ipv4Addr) -> u32 {
        let address = u32::from(address);
        let mut entry = self.direct[(address >> 16) as usize];
        for byte in [(address >> 8) as u8, address as u8] {
            if entry & IS_BLOCK == 0 {
                return entry;
            }
            entry = self.blocks[(entry & !IS_BLOCK) as usize * BLOCK + usize::from(byte)];
        }
        entry
    }

    pub(crate) fn memory(&self) -> usize {
        (self.direct.len() + self.blocks.len()) * size_of::<u32>()
    }
}

/// Position in the pieces, which `build_entry` reads in ascending order.
struct Cursor<'a> {
    pieces: &'a [(u128, u32)],
    at: usize,
}

impl Cursor<'_> {
    /// Returns the entry for the 2^`bits` addresses from `from`: the value that all addresses
    /// share, otherwise a new block.
    fn build_entry(&mut self, from: u64, bits: u32, blocks: &mut Vec<u32>) -> u32 {
        let starts_by = |piece: &(u128, u32), address: u64| piece.0 <= u128::from(address);
        while self
            .pieces
            .get(self.at + 1)
            .is_some_and(|piece| starts_by(piece, from))
        {
            self.at += 1;
        }
        let last = from + (1 << bits) - 1;
        if !self
            .pieces
            .get(self.at + 1)
            .is_some_and(|piece| starts_by(piece, last))
        {
            return self.pieces[self.at].1;
        }
        let block = blocks.len() / BLOCK;
        blocks.resize(blocks.len() + BLOCK, 0);
        for i in 0..BLOCK {
            let entry = self.build_entry(from + ((i as u64) << (bits - 8)), bits - 8, blocks);
            blocks[block * BLOCK + i] = entry;
        }
        block as u32 | IS_BLOCK
    }
}
