//! AVX2: 32 products at a time, each the sum of two look-ups in a table of 16 entries (`vpshufb`).

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::{Operations, Term, piece};
use crate::field::NIBBLES;

/// Bytes of a vector.
const VECTOR: usize = 32;
/// Bytes of the result that are held in registers.
const BLOCK: usize = 4 * VECTOR;

/// The kernel, where the processor can run it.
pub(super) fn detect() -> Option<Operations> {
    std::arch::is_x86_feature_detected!("avx2").then_some(Operations {
        // SAFETY: the processor has what `combine` is compiled for, as was just found.
        combine: |result, terms, keep| unsafe { combine(result, terms, keep) },
        // SAFETY: the same holds for `spread`.
        spread: |sums, stride, coefficients, source, keep| unsafe {
            spread(sums, stride, coefficients, source, keep);
        },
    })
}

#[target_feature(enable = "avx2")]
fn combine(result: &mut [u8], terms: &[Term<'_>], keep: bool) {
    let (blocks, rest) = result.as_chunks_mut::<BLOCK>();
    let rest_at = blocks.len() * BLOCK;
    for (i, block) in blocks.iter_mut().enumerate() {
        sum::<4>(block.as_chunks_mut().0, i * BLOCK, terms, keep);
    }
    for (i, part) in rest.chunks_mut(VECTOR).enumerate() {
        let mut whole = [0; VECTOR];
        whole[..part.len()].copy_from_slice(part);
        let mut vector = [whole];
        sum::<1>(&mut vector, rest_at + i * VECTOR, terms, keep);
        part.copy_from_slice(&vector[0][..part.len()]);
    }
}

/// The `N` vectors of the result that begin at byte `at` of it.
#[target_feature(enable = "avx2")]
#[inline]
fn sum<const N: usize>(result: &mut [[u8; VECTOR]], at: usize, terms: &[Term<'_>], keep: bool) {
    let mut sums = [_mm256_setzero_si256(); N];
    if keep {
        for (sum, bytes) in sums.iter_mut().zip(&*result) {
            *sum = load(bytes);
        }
    }
    let low = _mm256_set1_epi8(0x0f);
    for &(coefficient, symbol) in terms {
        let [low_products, high_products] = tables(coefficient);
        for (i, sum) in sums.iter_mut().enumerate() {
            let mut padded = [0; VECTOR];
            let Some(bytes) = piece(symbol, at + i * VECTOR, &mut padded) else {
                break;
            };
            let bytes = load(bytes);
            let low_nibbles = _mm256_and_si256(bytes, low);
            let high_nibbles = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), low);
            *sum = _mm256_xor_si256(*sum, _mm256_shuffle_epi8(low_products, low_nibbles));
            *sum = _mm256_xor_si256(*sum, _mm256_shuffle_epi8(high_products, high_nibbles));
        }
    }
    for (sum, bytes) in sums.iter().zip(result) {
        // SAFETY: the array has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), *sum) };
    }
}

#[target_feature(enable = "avx2")]
fn spread(sums: &mut [u8], stride: usize, coefficients: &[u8], source: &[u8], keep: bool) {
    let (blocks, rest) = source.as_chunks::<BLOCK>();
    let rest_at = blocks.len() * BLOCK;
    for (i, block) in blocks.iter().enumerate() {
        let at = i * BLOCK;
        for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
            if let Some(sum) = sum.get_mut(at..at + BLOCK) {
                add_products::<4>(
                    sum.as_chunks_mut().0,
                    coefficient,
                    block.as_chunks().0,
                    keep,
                );
            }
        }
    }
    for (i, part) in rest.chunks(VECTOR).enumerate() {
        let at = rest_at + i * VECTOR;
        let mut padded = [0; VECTOR];
        padded[..part.len()].copy_from_slice(part);
        for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
            if let Some(sum) = sum.get_mut(at..at + part.len()) {
                let mut whole = [0; VECTOR];
                whole[..part.len()].copy_from_slice(sum);
                let mut vector = [whole];
                add_products::<1>(&mut vector, coefficient, &[padded], keep);
                sum.copy_from_slice(&vector[0][..part.len()]);
            }
        }
    }
}

/// Adds the products of `N` vectors of a source to those of a sum, or puts them there.
#[target_feature(enable = "avx2")]
#[inline]
fn add_products<const N: usize>(
    sum: &mut [[u8; VECTOR]],
    coefficient: u8,
    source: &[[u8; VECTOR]],
    keep: bool,
) {
    let low = _mm256_set1_epi8(0x0f);
    let [low_products, high_products] = tables(coefficient);
    for (sum, bytes) in sum.iter_mut().zip(source).take(N) {
        let own = if keep {
            load(sum)
        } else {
            _mm256_setzero_si256()
        };
        let bytes = load(bytes);
        let low_nibbles = _mm256_and_si256(bytes, low);
        let high_nibbles = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), low);
        let vector = _mm256_xor_si256(own, _mm256_shuffle_epi8(low_products, low_nibbles));
        let vector = _mm256_xor_si256(vector, _mm256_shuffle_epi8(high_products, high_nibbles));
        // SAFETY: the array has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(sum.as_mut_ptr().cast(), vector) };
    }
}

/// The products of the low and of the high nibbles, in both halves of a vector: `vpshufb` works in each half.
#[target_feature(enable = "avx2")]
#[inline]
fn tables(coefficient: u8) -> [__m256i; 2] {
    let (halves, _) = NIBBLES[usize::from(coefficient)].as_chunks::<16>();
    [0, 1].map(|half| {
        // SAFETY: each half has the 16 bytes that are read.
        let table = unsafe { _mm_loadu_si128(halves[half].as_ptr().cast()) };
        _mm256_broadcastsi128_si256(table)
    })
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
