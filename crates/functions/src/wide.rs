//! The same loop compiled for wider vector registers than the oldest x86-64 has, chosen where the
//! function is made.
//!
//! x86-64 as such has 16-byte registers, AVX2 has 32-byte ones.

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
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F, as just found, and that is all `sum_avx512` needs.
            return |bytes| unsafe { sum_avx512(bytes) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as just found, and that is all `sum_avx2` needs.
            return |bytes| unsafe { sum_avx2(bytes) };
        }
    }
    checksum::sum
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(bytes: &[u8]) -> u64 {
    checksum::sum(bytes)
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
