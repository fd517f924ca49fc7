//! AVX2: 32 products at a time. Each is the sum of two look-ups in tables of 16 entries
//! (`vpshufb`).

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::blocks::kernel_of_blocks;
use super::{Operations, Term, pad_with_zeros};
use crate::field::NIBBLES;

kernel_of_blocks!(32 of __m256i, "avx2", "avx2");

/// Returns the products of the low and of the high nibbles. Both halves of a vector contain them,
/// because `vpshufb` processes each half separately.
#[target_feature(enable = "avx2")]
#[inline]
fn prepare_coefficient(coefficient: u8) -> [__m256i; 2] {
    let (halves, _) = NIBBLES[usize::from(coefficient)].as_chunks::<16>();
    [0, 1].map(|half| {
        // SAFETY: each half has the 16 bytes that are read.
        let table = unsafe { _mm_loadu_si128(halves[half].as_ptr().cast()) };
        _mm256_broadcastsi128_si256(table)
    })
}

#[target_feature(enable = "avx2")]
#[inline]
fn multiply(bytes: __m256i, [low_products, high_products]: [__m256i; 2]) -> __m256i {
    let low = _mm256_set1_epi8(0x0f);
    let low_nibbles = _mm256_and_si256(bytes, low);
    let high_nibbles = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), low);
    xor(
        _mm256_shuffle_epi8(low_products, low_nibbles),
        _mm256_shuffle_epi8(high_products, high_nibbles),
    )
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn zero() -> __m256i {
    _mm256_setzero_si256()
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn xor(one: __m256i, other: __m256i) -> __m256i {
    _mm256_xor_si256(one, other)
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store(bytes: &mut [u8; VECTOR], vector: __m256i) {
    // SAFETY: the array has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) };
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load_part(bytes: &[u8]) -> __m256i {
    match bytes.first_chunk() {
        Some(whole) => load(whole),
        None => load(&pad_with_zeros(bytes)),
    }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_part(bytes: &mut [u8], vector: __m256i) {
    let mut whole = [0; VECTOR];
    store(&mut whole, vector);
    bytes.copy_from_slice(&whole[..bytes.len()]);
}
