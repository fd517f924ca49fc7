//! The repair symbols of a block. They are computed while the source packets arrive, so that no
//! computation remains at the end of the block.
//!
//! At the start of a block, the keys and coefficients of its repair packets are known. The encoder
//! does not know whether the block becomes complete, or how many repair packets the caller will
//! request. So [`BlockSums::get`] returns a sum only if this module computed it. The encoder
//! computes other sums from the source symbols.

use crate::coefficients::{BATCH, ParallelCoefficients};
use crate::kernel::Kernel;
use crate::symbol::AlignedBytes;
use crate::wire::RepairId;

/// Maximum number of sums.
pub(crate) const MAX_SUMS: usize = 64;

/// Running sums of one block, one for each of several consecutive keys.
#[derive(Debug)]
pub(crate) struct BlockSums {
    /// `MAX_SUMS` sums of `stride` bytes. Sums in use are valid up to `len`.
    memory: AlignedBytes,
    stride: usize,
    /// One generator for every eight sums.
    generators: Vec<ParallelCoefficients>,
    /// Number of sums in use.
    count: usize,
    /// Bit `i` states whether sum `i` has a non-zero coefficient.
    nonempty_mask: u64,
    /// The identifier of the first sum. Its `count` is the number of source symbols so far.
    id: RepairId,
    /// Length of the longest source symbol so far, bytes.
    len: usize,
}

impl BlockSums {
    /// Allocates [`MAX_SUMS`] sums of symbols of up to `max_symbol_len` bytes.
    pub(crate) fn new(max_symbol_len: usize) -> Self {
        let (memory, stride) = AlignedBytes::new(MAX_SUMS, max_symbol_len);
        Self {
            memory,
            stride,
            generators: Vec::with_capacity(MAX_SUMS / BATCH),
            count: 0,
            nonempty_mask: 0,
            id: RepairId::default(),
            len: 0,
        }
    }

    /// Starts a block at source symbol `first`. The block will have `count` repair packets, with
    /// keys from `key` on. Only the first [`MAX_SUMS`] of them have a sum.
    pub(crate) fn start_block(&mut self, key: u16, density: u8, first: u32, count: usize) {
        self.count = count.min(MAX_SUMS);
        self.nonempty_mask = 0;
        self.len = 0;
        self.id = RepairId {
            key,
            density,
            count: 0,
            first,
        };
        self.generators.clear();
        for batch in 0..self.count.div_ceil(BATCH) {
            let key = key.wrapping_add((batch * BATCH) as u16);
            self.generators
                .push(ParallelCoefficients::new(key, density));
        }
    }

    /// Adds the next source symbol of the block to all sums.
    pub(crate) fn add_source(&mut self, kernel: Kernel, source: &[u8]) {
        let mut all = [0; MAX_SUMS];
        for (coefficients, generator) in all.as_chunks_mut().0.iter_mut().zip(&mut self.generators)
        {
            *coefficients = generator.next();
        }
        let coefficients = &all[..self.count];
        for (i, &coefficient) in coefficients.iter().enumerate() {
            self.nonempty_mask |= u64::from(coefficient != 0) << i;
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

    /// Returns the repair symbol `id` if it is one of these sums and has a non-zero coefficient.
    pub(crate) fn get(&self, id: RepairId) -> Option<&[u8]> {
        let i = usize::from(id.key.wrapping_sub(self.id.key));
        let expected = RepairId {
            key: id.key,
            ..self.id
        };
        let is_available = i < self.count && id == expected && self.nonempty_mask >> i & 1 == 1;
        if !is_available {
            return None;
        }
        let at = i * self.stride;
        self.memory.get(at..at + self.len)
    }

    /// Returns the number of sums with a non-zero coefficient.
    #[cfg(test)]
    pub(crate) fn count_nonempty(&self) -> usize {
        self.nonempty_mask.count_ones() as usize
    }
}
