//! From an address to its class.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::vectors::{self, ClassVector};
pub use crate::dir16::BLOCK;
use crate::dir16::Dir16;
use crate::prefix::{Family, Prefix};

/// Intervals of an [`Ipv6Table`] at most; a search takes 12 steps. 1024 prefixes make no more than
/// 2049.
pub const MAX_INTERVALS: usize = 4096;

/// A direct table and blocks: at most three reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv4Table {
    /// From an address to its class.
    pub classes: Dir16,
    /// By class.
    pub vectors: Vec<ClassVector>,
}

impl Ipv4Table {
    /// The table of one address field, given as the prefix of each rule.
    pub(super) fn build(prefixes: &[Option<Prefix>]) -> Self {
        let (pieces, vectors) = classes(prefixes, Family::V4, u32::MAX.into());
        Self {
            classes: Dir16::new(&pieces),
            vectors,
        }
    }

    /// The rules that `address` satisfies.
    #[inline]
    pub(super) fn vector(&self, address: Ipv4Addr) -> &ClassVector {
        &self.vectors[self.classes.look_up(address) as usize]
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
        let (pieces, vectors) = classes(prefixes, Family::V6, u128::MAX);
        let (starts, classes) = pieces
            .into_iter()
            .map(|(start, class)| (halves(start), class))
            .unzip();
        Self {
            starts,
            classes,
            vectors,
        }
    }

    /// The rules that `address` satisfies.
    #[inline]
    pub(super) fn vector(&self, address: Ipv6Addr) -> &ClassVector {
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
        &self.vectors[self.classes[at] as usize]
    }
}

fn halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// The classes of the addresses of `family`, which end at `last`; a prefix of the other names none
/// of them.
fn classes(
    prefixes: &[Option<Prefix>],
    family: Family,
    last: u128,
) -> (Vec<(u128, u32)>, Vec<ClassVector>) {
    let range = |prefix: Prefix| (prefix.family() == family).then(|| prefix.range());
    vectors::classes(prefixes.iter().copied(), range, last)
}
