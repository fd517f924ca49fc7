//! One table look-up a byte.

use super::Term;
use crate::field::PRODUCTS;

/// Bytes of the result that are made at a time, so that they stay in the first cache level.
const BLOCK: usize = 1024;

pub(super) fn combine(result: &mut [u8], terms: &[Term<'_>], keep: bool) {
    for (i, block) in result.chunks_mut(BLOCK).enumerate() {
        if !keep {
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
