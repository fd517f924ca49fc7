//! GFNI on vectors of 32 bytes, for processors without AVX-512. Multiplication by a coefficient is
//! linear over the bits of the factor, so it is one product with a bit matrix. (`gf2p8mulb`
//! multiplies modulo 0x11b, which is another field.)

use std::arch::x86_64::{__m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_set1_epi64x};

use super::avx2::{load, load_part, store, store_part, xor, zero};
use super::blocks::kernel_of_blocks;
use super::{Operations, Term};
use crate::field::MATRICES;

kernel_of_blocks!(32 of __m256i, "avx2,gfni", "avx2" && "gfni");

/// Returns four copies of the matrix of a coefficient.
#[target_feature(enable = "avx2,gfni")]
#[inline]
fn prepare_coefficient(coefficient: u8) -> __m256i {
    _mm256_set1_epi64x(MATRICES[usize::from(coefficient)].cast_signed())
}

#[target_feature(enable = "avx2,gfni")]
#[inline]
fn multiply(bytes: __m256i, matrix: __m256i) -> __m256i {
    _mm256_gf2p8affine_epi64_epi8::<0>(bytes, matrix)
}
