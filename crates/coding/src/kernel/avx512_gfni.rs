//! AVX-512 with GFNI: 64 products an instruction. See [`super::gfni`] for why a matrix; the ends of symbols are masked
//! instead of padded.

use std::arch::x86_64::{
    __m512i, __mmask64, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_xor_si512,
};

use super::{Operations, Term};
use crate::field::MATRICES;

/// Bytes of a vector.
const VECTOR: usize = 64;
/// Bytes of the result that are held in registers.
const BLOCK: usize = 4 * VECTOR;

/// The kernel, where the processor can run it.
pub(super) fn detect() -> Option<Operations> {
    let runs = std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("gfni");
    runs.then_some(Operations {
        // SAFETY: the processor has what `combine` is compiled for, as was just found.
        combine: |result, terms, keep| unsafe { combine(result, terms, keep) },
        // SAFETY: the same holds for `spread`.
        spread: |sums, stride, coefficients, source, keep| unsafe {
            spread(sums, stride, coefficients, source, keep);
        },
    })
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn combine(result: &mut [u8], terms: &[Term<'_>], keep: bool) {
    let (blocks, rest) = result.as_chunks_mut::<BLOCK>();
    let rest_at = blocks.len() * BLOCK;
    for (i, block) in blocks.iter_mut().enumerate() {
        sum_block(block, i * BLOCK, terms, keep);
    }
    for (i, part) in rest.chunks_mut(VECTOR).enumerate() {
        sum_part(part, rest_at + i * VECTOR, terms, keep);
    }
}

/// The four vectors of the result that begin at byte `at` of it.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
#[inline]
fn sum_block(result: &mut [u8; BLOCK], at: usize, terms: &[Term<'_>], keep: bool) {
    let mut sums = [_mm512_setzero_si512(); BLOCK / VECTOR];
    if keep {
        sums = load_block(result);
    }
    for &(coefficient, symbol) in terms {
        let matrix = _mm512_set1_epi64(MATRICES[usize::from(coefficient)].cast_signed());
        let rest = symbol.get(at..).unwrap_or_default();
        let vectors = match rest.first_chunk() {
            Some(whole) => load_block(whole),
            None => [0, 1, 2, 3].map(|i| load_part(rest.get(i * VECTOR..).unwrap_or_default())),
        };
        for (sum, vector) in sums.iter_mut().zip(vectors) {
            let products = _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix);
            *sum = _mm512_xor_si512(*sum, products);
        }
    }
    for (sum, bytes) in sums.iter().zip(result.as_chunks_mut::<VECTOR>().0) {
        // SAFETY: the array has the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), *sum) };
    }
}

/// The vector, or part of one, of the result that begins at byte `at` of it.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
#[inline]
fn sum_part(result: &mut [u8], at: usize, terms: &[Term<'_>], keep: bool) {
    let mut sum = _mm512_setzero_si512();
    if keep {
        sum = load_part(result);
    }
    for &(coefficient, symbol) in terms {
        let matrix = _mm512_set1_epi64(MATRICES[usize::from(coefficient)].cast_signed());
        let vector = load_part(symbol.get(at..).unwrap_or_default());
        let products = _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix);
        sum = _mm512_xor_si512(sum, products);
    }
    // SAFETY: the mask lets no more bytes be written than the slice has.
    unsafe { _mm512_mask_storeu_epi8(result.as_mut_ptr().cast(), mask(result.len()), sum) };
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn spread(sums: &mut [u8], stride: usize, coefficients: &[u8], source: &[u8], keep: bool) {
    let (blocks, rest) = source.as_chunks::<BLOCK>();
    let rest_at = blocks.len() * BLOCK;
    for (i, block) in blocks.iter().enumerate() {
        let vectors = load_block(block);
        for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
            let matrix = _mm512_set1_epi64(MATRICES[usize::from(coefficient)].cast_signed());
            let Some(sum) = sum.get_mut(i * BLOCK..).and_then(<[u8]>::first_chunk_mut) else {
                break;
            };
            let mut own = [_mm512_setzero_si512(); BLOCK / VECTOR];
            if keep {
                own = load_block(sum);
            }
            for ((own, vector), bytes) in
                own.iter().zip(vectors).zip(sum.as_chunks_mut::<VECTOR>().0)
            {
                let products = _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix);
                let vector = _mm512_xor_si512(*own, products);
                // SAFETY: the array has the 64 bytes that are written.
                unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) };
            }
        }
    }
    for (i, part) in rest.chunks(VECTOR).enumerate() {
        let at = rest_at + i * VECTOR;
        let vector = load_part(part);
        for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
            let matrix = _mm512_set1_epi64(MATRICES[usize::from(coefficient)].cast_signed());
            let Some(sum) = sum.get_mut(at..at + part.len()) else {
                break;
            };
            let products = _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix);
            let mut own = _mm512_setzero_si512();
            if keep {
                own = load_part(sum);
            }
            let vector = _mm512_xor_si512(own, products);
            // SAFETY: the mask lets no more bytes be written than the slice has.
            unsafe { _mm512_mask_storeu_epi8(sum.as_mut_ptr().cast(), mask(sum.len()), vector) };
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_block(bytes: &[u8; BLOCK]) -> [__m512i; BLOCK / VECTOR] {
    let (vectors, _) = bytes.as_chunks::<VECTOR>();
    [0, 1, 2, 3].map(|i| {
        // SAFETY: each array has the 64 bytes that are read.
        unsafe { _mm512_loadu_si512(vectors[i].as_ptr().cast()) }
    })
}

/// The first 64 bytes, or as many as there are and zeros.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load_part(bytes: &[u8]) -> __m512i {
    // SAFETY: the mask lets no more bytes be read than the slice has; what is masked out is not accessed.
    unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
}

/// Lets the first `len` bytes of a vector through.
#[inline]
fn mask(len: usize) -> __mmask64 {
    if len < VECTOR { (1 << len) - 1 } else { !0 }
}
