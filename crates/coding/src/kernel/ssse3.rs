//! SSSE3: 16 products at a time. Each is the sum of two look-ups in tables of 16 entries
//! (`pshufb`).

use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_setzero_si128, _mm_shuffle_epi8,
    _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128,
};

use super::blocks::kernel_of_blocks;
use super::{Operations, Term, pad_with_zeros};
use crate::field::NIBBLES;

kernel_of_blocks!(16 of __m128i, "ssse3", "ssse3");

/// Returns the products of the low and of the high nibbles.
#[inline]
fn prepare_coefficient(coefficient: u8) -> [__m128i; 2] {
    let (halves, _) = NIBBLES[usize::from(coefficient)].as_chunks();
    [load(&halves[0]), load(&halves[1])]
}

#[target_feature(enable = "ssse3")]
#[inline]
fn multiply(bytes: __m128i, [low_products, high_products]: [__m128i; 2]) -> __m128i {
    let low = _mm_set1_epi8(0x0f);
    let low_nibbles = _mm_and_si128(bytes, low);
    let high_nibbles = _mm_and_si128(_mm_srli_epi64::<4>(bytes), low);
    xor(
        _mm_shuffle_epi8(low_products, low_nibbles),
        _mm_shuffle_epi8(high_products, high_nibbles),
    )
}

#[target_feature(enable = "ssse3")]
#[inline]
fn zero() -> __m128i {
    _mm_setzero_si128()
}

#[target_feature(enable = "ssse3")]
#[inline]
fn xor(one: __m128i, other: __m128i) -> __m128i {
    _mm_xor_si128(one, other)
}

#[inline]
fn load(bytes: &[u8; VECTOR]) -> __m128i {
    // SAFETY: the array has the 16 bytes that are read; SSE2 is part of x86-64.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "ssse3")]
#[inline]
fn store(bytes: &mut [u8; VECTOR], vector: __m128i) {
    // SAFETY: the array has the 16 bytes that are written.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), vector) };
}

#[target_feature(enable = "ssse3")]
#[inline]
fn load_part(bytes: &[u8]) -> __m128i {
    match bytes.first_chunk() {
        Some(whole) => load(whole),
        None => load(&pad_with_zeros(bytes)),
    }
}

#[target_feature(enable = "ssse3")]
#[inline]
fn store_part(bytes: &mut [u8], vector: __m128i) {
    let mut whole = [0; VECTOR];
    store(&mut whole, vector);
    bytes.copy_from_slice(&whole[..bytes.len()]);
}
