//! The repair symbols of a block, computed while its source packets arrive, so that nothing is left
//! to compute at its end.
//!
//! The keys of a block's repair packets are known when it begins, and so are their coefficients.
//! Whether the block becomes complete, and how many repair packets are requested, is not known. So
//! this module only offers sums ([`Sums::get`]); a caller that needs another one computes it from
//! the source symbols.

use crate::coefficients::{BATCH, Draw};
use crate::kernel::Kernel;
use crate::symbol::Lines;
use crate::wire::RepairId;

/// Most sums.
pub(crate) const MAX_SUMS: usize = 64;

/// Running sums of one block, of keys in a row.
#[derive(Debug)]
pub(crate) struct Sums {
    /// `MAX_SUMS` sums of `stride` bytes; those in use are valid up to `len`.
    memory: Lines,
    stride: usize,
    /// Those of the first eight sums, of the next eight, and so on.
    draws: Vec<Draw>,
    /// Sums in use.
    count: usize,
    /// Which of them have a source symbol with a coefficient that is not zero, by bits.
    not_empty: u64,
    /// What they are: `key` is the first one's, `count` the source symbols so far.
    id: RepairId,
    /// Of the longest source symbol so far.
    len: usize,
}

impl Sums {
    /// Room for [`MAX_SUMS`] sums of symbols of up to `room` bytes.
    pub(crate) fn new(room: usize) -> Self {
        let (memory, stride) = Lines::new(MAX_SUMS, room);
        Self {
            memory,
            stride,
            draws: Vec::with_capacity(MAX_SUMS / BATCH),
            count: 0,
            not_empty: 0,
            id: RepairId::default(),
            len: 0,
        }
    }

    /// A block begins with source symbol `first`, whose repair packets will have `count` keys from
    /// `key` on; of more than [`MAX_SUMS`] the first are summed up.
    pub(crate) fn begin(&mut self, key: u16, density: u8, first: u32, count: usize) {
        self.count = count.min(MAX_SUMS);
        self.not_empty = 0;
        self.len = 0;
        self.id = RepairId {
            key,
            density,
            count: 0,
            first,
        };
        self.draws.clear();
        for batch in 0..self.count.div_ceil(BATCH) {
            let key = key.wrapping_add((batch * BATCH) as u16);
            self.draws.push(Draw::new(key, density));
        }
    }

    /// Adds the next source symbol of the block to all sums.
    pub(crate) fn add(&mut self, kernel: Kernel, source: &[u8]) {
        let mut all = [0; MAX_SUMS];
        for (coefficients, draw) in all.as_chunks_mut().0.iter_mut().zip(&mut self.draws) {
            *coefficients = draw.next();
        }
        let coefficients = &all[..self.count];
        for (i, &coefficient) in coefficients.iter().enumerate() {
            self.not_empty |= u64::from(coefficient != 0) << i;
        }
        let sums = self.memory.get_mut(0..self.count * self.stride);
        let sums = sums.unwrap_or_default();
        if self.id.count == 0 {
            kernel.spread(sums, self.stride, coefficients, source);
        } else {
            for sum in sums.chunks_exact_mut(self.stride) {
                if let Some(padding) = sum.get_mut(self.len..source.len()) {
                    padding.fill(0);
                }
            }
            kernel.add_spread(sums, self.stride, coefficients, source);
        }
        self.len = self.len.max(source.len());
        self.id.count += 1;
    }

    /// The repair symbol `id`, where it is one of these sums and not one of nothing.
    pub(crate) fn get(&self, id: RepairId) -> Option<&[u8]> {
        let i = usize::from(id.key.wrapping_sub(self.id.key));
        let same = RepairId {
            key: id.key,
            ..self.id
        };
        let offered = i < self.count && id == same && self.not_empty >> i & 1 == 1;
        if !offered {
            return None;
        }
        let at = i * self.stride;
        self.memory.get(at..at + self.len)
    }

    /// Sums in use that are not of nothing.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.not_empty.count_ones() as usize
    }
}
