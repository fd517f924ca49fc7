//! From an address to its class.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::vectors::{ClassVector, Interner, pieces};
use crate::prefix::{Family, Prefix};

/// Entries of a block of [`Ipv4Table::blocks`].
pub const BLOCK: usize = 256;
/// Intervals of an [`Ipv6Table`] at most; a search takes 12 steps. 1024 prefixes make no more than
/// 2049.
pub const MAX_INTERVALS: usize = 4096;

/// Set in an entry that is the number of a block and not a class.
const IS_BLOCK: u32 = 1 << 31;

/// DIR-16-8-8, after DIR-24-8 (Gupta, Lin, McKeown: Routing Lookups in Hardware at Memory Access
/// Speeds, INFOCOM 1998): at most three reads.
///
/// An entry with the top bit clear is a class; otherwise its other bits are the number of the block
/// that decides by the next 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv4Table {
    /// By the first 16 bits of the address: 65 536 entries.
    pub direct: Vec<u32>,
    /// Blocks of [`BLOCK`] entries, end to end.
    pub blocks: Vec<u32>,
    /// By class.
    pub vectors: Vec<ClassVector>,
}

impl Ipv4Table {
    /// The table of one address field, given as the prefix of each rule.
    pub(super) fn build(prefixes: &[Option<Prefix>]) -> Self {
        let mut interner = Interner::default();
        let (always, ranges) = split(prefixes, Family::V4);
        let pieces = pieces(always, &ranges, u128::from(u32::MAX), &mut interner);
        let mut cursor = Cursor {
            pieces: &pieces,
            at: 0,
        };
        let mut blocks = Vec::new();
        let mut direct = Vec::with_capacity(1 << 16);
        for high in 0..1_u64 << 16 {
            let entry = cursor.entry(high << 16, 16, &mut blocks);
            direct.push(entry);
        }
        Self {
            direct,
            blocks,
            vectors: interner.into_vectors(),
        }
    }

    /// The class of `address`.
    #[inline]
    pub fn class(&self, address: Ipv4Addr) -> u32 {
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
}

/// Goes through the pieces from low to high while the table is filled in the same order.
struct Cursor<'a> {
    pieces: &'a [(u128, u32)],
    at: usize,
}

impl Cursor<'_> {
    /// The entry for the 2^`bits` addresses from `from` on: a class if they share one, else a new
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

/// Sorted intervals of addresses, each with a class.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv6Table {
    /// First address of each interval, ascending, as two host-order numbers, the more significant
    /// first; the first is 0.
    pub starts: Vec<[u64; 2]>,
    /// Class of each interval.
    pub classes: Vec<u32>,
    /// By class.
    pub vectors: Vec<ClassVector>,
}

impl Ipv6Table {
    /// The table of one address field, given as the prefix of each rule.
    pub(super) fn build(prefixes: &[Option<Prefix>]) -> Self {
        let mut interner = Interner::default();
        let (always, ranges) = split(prefixes, Family::V6);
        let pieces = pieces(always, &ranges, u128::MAX, &mut interner);
        let (starts, classes) = pieces
            .into_iter()
            .map(|(start, class)| (halves(start), class))
            .unzip();
        Self {
            starts,
            classes,
            vectors: interner.into_vectors(),
        }
    }

    /// The class of `address`.
    #[inline]
    pub fn class(&self, address: Ipv6Addr) -> u32 {
        let address = halves(u128::from(address));
        let mut at = 0;
        let mut step = MAX_INTERVALS / 2;
        while step > 0 {
            if self
                .starts
                .get(at + step)
                .is_some_and(|start| *start <= address)
            {
                at += step;
            }
            step /= 2;
        }
        self.classes[at]
    }
}

fn halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// A range of values and the rule that names it.
type Range = (u128, u128, usize);

/// The rules that name no prefix, and the ranges of those that name one of `family`.
fn split(prefixes: &[Option<Prefix>], family: Family) -> (ClassVector, Vec<Range>) {
    let mut always = ClassVector::default();
    let mut ranges = Vec::new();
    for (rule, prefix) in prefixes.iter().enumerate() {
        match prefix {
            None => always.insert(rule),
            Some(prefix) if prefix.family() == family => {
                let (from, to) = prefix.range();
                ranges.push((from, to, rule));
            }
            Some(_) => {}
        }
    }
    (always, ranges)
}
