//! Loops for wider vector registers than those of the oldest x86-64. The constructor of a function
//! selects the loop.
//!
//! The x86-64 baseline has 16-byte registers, AVX2 32-byte and AVX-512 64-byte registers. Where
//! possible, the variant is the same loop, compiled again.

use myelin_packet::checksum;

use crate::xor::xor_in_place;

/// A variant of [`xor_in_place`].
pub(crate) type XorInPlace = fn(&mut [u8], u8) -> u64;

/// Selects the fastest variant of this processor.
pub(crate) fn fastest_xor() -> XorInPlace {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: `xor_avx2` needs AVX2. The condition above proves AVX2.
        return |payload, key| unsafe { xor_avx2(payload, key) };
    }
    xor_in_place
}

/// A variant of [`checksum::sum`].
pub(crate) type SumBytes = fn(&[u8]) -> u64;

/// Selects the fastest variant of this processor.
pub(crate) fn fastest_sum() -> SumBytes {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512bw") {
            // SAFETY: `sum_avx512` needs AVX-512F and BW. The condition above proves both.
            return |bytes| unsafe { sum_avx512(bytes) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: `sum_avx2` needs AVX2. The condition above proves AVX2.
            return |bytes| unsafe { sum_avx2(bytes) };
        }
    }
    checksum::sum
}

/// Computes [`checksum::sum`] with one loop and no other branch. With payloads of unpredictable
/// length, a compiled loop has two or three mispredicted branches, which cost more than the sum.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn sum_avx512(bytes: &[u8]) -> u64 {
    use std::arch::x86_64 as x86;
    // Modulo 65535, a 64-bit word equals the sum of its halves. Add the upper halves separately.
    // The lower halves are the sum of the whole words, which may wrap around, minus the upper
    // halves.
    let (mut whole, mut upper) = (x86::_mm512_setzero_si512(), x86::_mm512_setzero_si512());
    let mut add = |words| {
        whole = x86::_mm512_add_epi64(whole, words);
        upper = x86::_mm512_add_epi64(upper, x86::_mm512_srli_epi64::<32>(words));
    };
    let (vectors, rest) = bytes.as_chunks::<64>();
    for vector in vectors {
        // SAFETY: reads the 64 bytes of `vector`.
        add(unsafe { x86::_mm512_loadu_si512(vector.as_ptr().cast()) });
    }
    let mask = !(u64::MAX << rest.len());
    // SAFETY: reads the bytes of `rest`, fewer than 64; the mask selects no others.
    add(unsafe { x86::_mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast()) });
    let whole = x86::_mm512_reduce_add_epi64(whole).cast_unsigned();
    let upper = x86::_mm512_reduce_add_epi64(upper).cast_unsigned();
    let sum = checksum::fold(upper + whole.wrapping_sub(upper << 32));
    u16::from_be_bytes(sum.to_ne_bytes()).into()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> u64 {
    checksum::sum(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn xor_avx2(payload: &mut [u8], key: u8) -> u64 {
    xor_in_place(payload, key)
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::build;

    use super::*;

    #[test]
    fn every_variant_gives_the_same_sum() {
        for len in (0..300).chain([1399, 1400, 9000]) {
            let bytes = build::payload(len);
            assert_eq!(fastest_sum()(&bytes), checksum::sum(&bytes), "{len} bytes");
        }
    }

    #[test]
    fn every_variant_gives_the_same_xor() {
        for len in (0..300).chain([2047, 2048, 2049, 9000]) {
            for key in [0, 0x5a, 0xff] {
                let (mut plain, mut wide) = (build::payload(len), build::payload(len));
                let growth = xor_in_place(&mut plain, key);
                assert_eq!(fastest_xor()(&mut wide, key), growth, "{len} bytes");
                assert_eq!(plain, wide, "{len} bytes");
            }
        }
    }
}
