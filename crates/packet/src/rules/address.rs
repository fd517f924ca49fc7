//! From an address to its class.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::vectors::{ClassVector, Interner, pieces};
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
        let mut interner = Interner::default();
        let (always, ranges) = split(prefixes, Family::V4);
        let pieces = pieces(always, &ranges, u128::from(u32::MAX), &mut interner);
        Self {
            classes: Dir16::new(&pieces),
            vectors: interner.into_vectors(),
        }
    }

    /// The class of `address`.
    #[inline]
    pub fn class(&self, address: Ipv4Addr) -> u32 {
        self.classes.look_up(address)
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
