//! The portable kernel: one table look-up for each byte.

use super::{Operations, Term};
use crate::field::PRODUCTS;

/// Bytes of the result to compute at a time. These bytes stay in the first-level cache.
const BLOCK: usize = 1024;

pub(super) const OPERATIONS: Operations = Operations { combine, spread };

fn combine(result: &mut [u8], terms: &[Term<'_>], accumulate: bool) {
    for (i, block) in result.chunks_mut(BLOCK).enumerate() {
        if !accumulate {
            block.fill(0);
        }
        for &(coefficient, symbol) in terms {
            let products = &PRODUCTS[usize::from(coefficient)];
            let symbol = symbol.get(i * BLOCK..).unwrap_or_default();
            for (sum, &byte) in block.iter_mut().zip(symbol) {
                *sum ^= products[usize::from(byte)];
            }
        }
    }
}

fn spread(sums: &mut [u8], stride: usize, coefficients: &[u8], source: &[u8], accumulate: bool) {
    for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
        let products = &PRODUCTS[usize::from(coefficient)];
        for (sum, &byte) in sum.iter_mut().zip(source) {
            let previous = if accumulate { *sum } else { 0 };
            *sum = previous ^ products[usize::from(byte)];
        }
    }
}
