//! Maps addresses to classes.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::vectors::{self, ClassVector};
pub use crate::dir16::BLOCK;
use crate::dir16::Dir16;
use crate::prefix::{Family, Prefix};

/// Most intervals of an [`Ipv6Table`]; a search takes 12 steps. 1024 prefixes make at most 2049.
pub const MAX_INTERVALS: usize = 4096;

/// Classes of IPv4 addresses. A look-up takes at most three reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv4Table {
    /// Maps an address to its class.
    pub classes: Dir16,
    /// The rules of each class, indexed by class.
    pub vectors: Vec<ClassVector>,
}

impl Ipv4Table {
    /// Builds the table of one address field from the prefix of each rule.
    pub(super) fn build(prefixes: &[Option<Prefix>]) -> Self {
        let (pieces, vectors) = build_classes(prefixes, Family::V4, u32::MAX.into());
        Self {
            classes: Dir16::new(&pieces),
            vectors,
        }
    }

    /// Returns the rules that `address` matches.
    #[inline]
    pub(super) fn find_vector(&self, address: Ipv4Addr) -> &ClassVector {
        &self.vectors[self.classes.look_up(address) as usize]
    }
}

/// Sorted intervals of addresses, each with a class.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv6Table {
    /// First address of each interval, ascending, as two host-order numbers: high half, low half.
    /// The first address is 0.
    pub starts: Vec<[u64; 2]>,
    /// Class of each interval.
    pub classes: Vec<u32>,
    /// The rules of each class, indexed by class.
    pub vectors: Vec<ClassVector>,
}

impl Ipv6Table {
    /// Builds the table of one address field from the prefix of each rule.
    pub(super) fn build(prefixes: &[Option<Prefix>]) -> Self {
        let (pieces, vectors) = build_classes(prefixes, Family::V6, u128::MAX);
        let (starts, classes) = pieces
            .into_iter()
            .map(|(start, class)| (split_halves(start), class))
            .unzip();
        Self {
            starts,
            classes,
            vectors,
        }
    }

    /// Returns the rules that `address` matches.
    #[inline]
    pub(super) fn find_vector(&self, address: Ipv6Addr) -> &ClassVector {
        let address = split_halves(u128::from(address));
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

fn split_halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// Returns the classes of the addresses of `family`, which end at `last`. Prefixes of the other
/// family match no address.
fn build_classes(
    prefixes: &[Option<Prefix>],
    family: Family,
    last: u128,
) -> (Vec<(u128, u32)>, Vec<ClassVector>) {
    let range = |prefix: Prefix| (prefix.family() == family).then(|| prefix.range());
    vectors::build_classes(prefixes.iter().copied(), range, last)
}
