//! The sojourn histogram of a chain, which the program at the egress fills. `sojourn.h` defines the
//! same layout.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use myelin_packet::sojourn::{BUCKETS, Histogram};

use crate::Error;
use crate::counters::cpu_parts;
use crate::map::create_mapped;
use crate::mapped_array::MappedArray;

/// The map's name in the programs.
pub(crate) const SOJOURN: &str = ".data.sojourn";
/// 64-bit words of one CPU's part: sum, minimum, maximum, five unused words, the buckets.
const WORDS: usize = HEADER_WORDS + BUCKETS;
const HEADER_WORDS: usize = 8;
const MINIMUM: usize = 1;

/// The histogram of one section: one part for each CPU, mapped into memory.
#[derive(Debug)]
pub(crate) struct Sojourn {
    map: MapHandle,
    mapping: MappedArray,
}

impl Sojourn {
    pub(crate) fn new(cpus: usize) -> Result<Self, Error> {
        let (map, mapping) = create_mapped("sojourn", cpu_parts(cpus) * WORDS * 8, 1)?;
        for part in mapping.words().chunks_exact(WORDS) {
            part[MINIMUM].store(u64::MAX, Ordering::Relaxed);
        }
        Ok(Self { map, mapping })
    }

    /// Returns the histogram of the packets of all CPUs.
    pub(crate) fn read(&self) -> Histogram {
        let mut all = Histogram::new();
        for part in self.mapping.words().chunks_exact(WORDS) {
            let words: Vec<u64> = part
                .iter()
                .map(|word| word.load(Ordering::Relaxed))
                .collect();
            let (header, counts) = words.split_at(HEADER_WORDS);
            if let [sum, minimum, maximum, ..] = *header {
                all.merge(&Histogram::from_parts(counts, sum, minimum, maximum));
            }
        }
        all
    }
}

impl AsFd for Sojourn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::FORWARD;
    use crate::tests::layout;

    #[test]
    fn histograms_match_their_c_layout() {
        let (size, members) = layout(&FORWARD, "myelin_sojourn");
        assert_eq!(
            ["sum_ns", "min_ns", "max_ns"].map(|name| members[name]),
            [0, 8 * MINIMUM, 16]
        );
        assert_eq!((members["buckets"], size), (HEADER_WORDS * 8, WORDS * 8));
    }
}
