//! AVX-512 with GFNI: 64 products with one instruction. [`super::gfni`] explains the matrix. Masks
//! replace the padding at the ends of symbols.

use std::arch::x86_64::{
    __m512i, __mmask64, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_xor_si512,
};

use super::blocks::kernel_of_blocks;
use super::{Operations, Term};
use crate::field::MATRICES;

kernel_of_blocks!(64 of __m512i, "avx512f,avx512bw,gfni", "avx512f" && "avx512bw" && "gfni");

/// Returns eight copies of the matrix of a coefficient.
#[target_feature(enable = "avx512f")]
#[inline]
fn prepare_coefficient(coefficient: u8) -> __m512i {
    _mm512_set1_epi64(MATRICES[usize::from(coefficient)].cast_signed())
}

#[target_feature(enable = "avx512f,gfni")]
#[inline]
fn multiply(bytes: __m512i, matrix: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn zero() -> __m512i {
    _mm512_setzero_si512()
}

#[target_feature(enable = "avx512f")]
#[inline]
fn xor(one: __m512i, other: __m512i) -> __m512i {
    _mm512_xor_si512(one, other)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(bytes: &mut [u8; VECTOR], vector: __m512i) {
    // SAFETY: the array has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) };
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load_part(bytes: &[u8]) -> __m512i {
    // A masked read of zero bytes at an unmapped address takes about 100 ns.
    if bytes.is_empty() {
        return zero();
    }
    // SAFETY: the mask selects at most the bytes of the slice. The processor does not access other
    // bytes.
    unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn store_part(bytes: &mut [u8], vector: __m512i) {
    // SAFETY: the mask selects at most the bytes of the slice.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask(bytes.len()), vector) };
}

/// Returns the mask of the first `len` bytes of a vector.
#[inline]
fn mask(len: usize) -> __mmask64 {
    if len < VECTOR { (1 << len) - 1 } else { !0 }
}
