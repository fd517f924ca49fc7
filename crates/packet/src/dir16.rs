//! DIR-16-8-8: the table from an IPv4 address to a value, after DIR-24-8 (Gupta, Lin, McKeown: Routing
//! Lookups in Hardware at Memory Access Speeds, INFOCOM 1998). At most three reads, and memory for
//! what is named only.
//!
//! An entry with the top bit clear is a value; otherwise its other bits are the number of the block
//! that decides by the next 8 bits.

use std::net::Ipv4Addr;

/// Entries of a block.
pub const BLOCK: usize = 256;

/// Set in an entry that is the number of a block and not a value.
const IS_BLOCK: u32 = 1 << 31;

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dir16 {
    /// By the first 16 bits of the address: 65 536 entries.
    pub direct: Vec<u32>,
    /// Blocks of [`BLOCK`] entries, end to end.
    pub blocks: Vec<u32>,
}

impl Dir16 {
    /// `pieces` are first addresses and values (below 2^31), ascending from address 0.
    pub(crate) fn new(pieces: &[(u128, u32)]) -> Self {
        let mut cursor = Cursor { pieces, at: 0 };
        let mut blocks = Vec::new();
        let direct = (0..1_u64 << 16)
            .map(|high| cursor.entry(high << 16, 16, &mut blocks))
            .collect();
        blocks.shrink_to_fit();
        Self { direct, blocks }
    }

    /// The value of `address`.
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

/// Goes through the pieces from low to high while the table is filled in the same order.
struct Cursor<'a> {
    pieces: &'a [(u128, u32)],
    at: usize,
}

impl Cursor<'_> {
    /// The entry for the 2^`bits` addresses from `from` on: a value if they share one, else a new
    /// block.
    fn entry(&mut self, from: u64, bits: u32, blocks: &mut Vec<u32>) -> u32 {
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
            let entry = self.entry(from + ((i as u64) << (bits - 8)), bits - 8, blocks);
            blocks[block * BLOCK + i] = entry;
        }
        block as u32 | IS_BLOCK
    }
}
