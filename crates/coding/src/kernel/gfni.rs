//! GFNI on vectors of 32 bytes, for processors without AVX-512: multiplication by a coefficient is linear over the bits of
//! the factor, so it is one product with a bit matrix. (`gf2p8mulb` would multiply modulo 0x11b, which is another field.)

use std::arch::x86_64::{
    __m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256,
};

use super::{Operations, Term, piece};
use crate::field::MATRICES;

/// Bytes of a vector.
const VECTOR: usize = 32;
/// Bytes of the result that are held in registers.
const BLOCK: usize = 4 * VECTOR;

/// The kernel, where the processor can run it.
pub(super) fn detect() -> Option<Operations> {
    (std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("gfni"))
        .then_some(Operations {
            // SAFETY: the processor has what `combine` is compiled for, as was just found.
            combine: |result, terms, keep| unsafe { combine(result, terms, keep) },
            // SAFETY: the same holds for `spread`.
            spread: |sums, stride, coefficients, source, keep| unsafe {
                spread(sums, stride, coefficients, source, keep);
            },
        })
}

#[target_feature(enable = "avx2,gfni")]
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
#[target_feature(enable = "avx2,gfni")]
#[inline]
fn sum<const N: usize>(result: &mut [[u8; VECTOR]], at: usize, terms: &[Term<'_>], keep: bool) {
    let mut sums = [_mm256_setzero_si256(); N];
    if keep {
        for (sum, bytes) in sums.iter_mut().zip(&*result) {
            *sum = load(bytes);
        }
    }
    for &(coefficient, symbol) in terms {
        let matrix = _mm256_set1_epi64x(MATRICES[usize::from(coefficient)].cast_signed());
        for (i, sum) in sums.iter_mut().enumerate() {
            let mut padded = [0; VECTOR];
            let Some(bytes) = piece(symbol, at + i * VECTOR, &mut padded) else {
                break;
            };
            let products = _mm256_gf2p8affine_epi64_epi8::<0>(load(bytes), matrix);
            *sum = _mm256_xor_si256(*sum, products);
        }
    }
    for (sum, bytes) in sums.iter().zip(result) {
        // SAFETY: the array has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), *sum) };
    }
}

#[target_feature(enable = "avx2,gfni")]
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
#[target_feature(enable = "avx2,gfni")]
#[inline]
fn add_products<const N: usize>(
    sum: &mut [[u8; VECTOR]],
    coefficient: u8,
    source: &[[u8; VECTOR]],
    keep: bool,
) {
    let matrix = _mm256_set1_epi64x(MATRICES[usize::from(coefficient)].cast_signed());
    for (sum, bytes) in sum.iter_mut().zip(source).take(N) {
        let own = if keep {
            load(sum)
        } else {
            _mm256_setzero_si256()
        };
        let products = _mm256_gf2p8affine_epi64_epi8::<0>(load(bytes), matrix);
        let vector = _mm256_xor_si256(own, products);
        // SAFETY: the array has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(sum.as_mut_ptr().cast(), vector) };
    }
}

#[target_feature(enable = "avx2,gfni")]
#[inline]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
