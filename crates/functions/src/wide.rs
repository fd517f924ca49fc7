//! Loops for wider vector registers than the oldest x86-64 has, chosen where the function is made.
//!
//! x86-64 as such has 16-byte registers, AVX2 has 32-byte ones, AVX-512 has 64-byte ones. What can be is the same loop, compiled
//! once more.

use myelin_packet::checksum;

use crate::xor::xor_in_place;

/// XORs each byte with a key and gives the growth of the checksum's sum: [`xor_in_place`].
pub(crate) type XorInPlace = fn(&mut [u8], u8) -> u64;

/// The fastest form this processor can run.
pub(crate) fn fastest() -> XorInPlace {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as just found, and that is all `avx2` needs.
        return |payload, key| unsafe { avx2(payload, key) };
    }
    xor_in_place
}

/// Sums bytes as the Internet checksum does: [`checksum::sum`].
pub(crate) type Sum = fn(&[u8]) -> u64;

/// The fastest form this processor can run.
pub(crate) fn fastest_sum() -> Sum {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512bw") {
            // SAFETY: the processor has AVX-512F and BW, as just found, and that is all `sum_avx512` needs.
            return |bytes| unsafe { sum_avx512(bytes) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as just found, and that is all `sum_avx2` needs.
            return |bytes| unsafe { sum_avx2(bytes) };
        }
    }
    checksum::sum
}

/// As [`checksum::sum`], with one loop and no other branch: payloads of lengths that nobody can predict cost a compiled loop two
/// or three mispredicted branches, more than the sum itself.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn sum_avx512(bytes: &[u8]) -> u64 {
    use std::arch::x86_64 as x86;
    // A 64-bit word is the sum of its halves modulo 65535. The upper ones are added by themselves; the lower ones are what those
    // leave of the whole words' sum, which may wrap around.
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
    // SAFETY: reads the bytes of `rest`, which are fewer than 64; the mask has no others.
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
fn avx2(payload: &mut [u8], key: u8) -> u64 {
    xor_in_place(payload, key)
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::build;

    use super::*;

    #[test]
    fn every_form_gives_the_same_sum() {
        for len in (0..300).chain([1399, 1400, 9000]) {
            let bytes = build::payload(len);
            assert_eq!(fastest_sum()(&bytes), checksum::sum(&bytes), "{len} bytes");
        }
    }

    #[test]
    fn every_form_gives_the_same() {
        for len in (0..300).chain([2047, 2048, 2049, 9000]) {
            for key in [0, 0x5a, 0xff] {
                let (mut plain, mut wide) = (build::payload(len), build::payload(len));
                let growth = xor_in_place(&mut plain, key);
                assert_eq!(fastest()(&mut wide, key), growth, "{len} bytes");
                assert_eq!(plain, wide, "{len} bytes");
            }
        }
    }
}
