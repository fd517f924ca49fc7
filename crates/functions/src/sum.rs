//! The Internet checksum's sum over a payload, several words at a time.

use myelin_packet::checksum;

/// Ones' complement sum of `bytes`, at most 64 KiB, as big-endian 16-bit words; an odd last byte counts as if a zero
/// followed. The same number as [`checksum::sum`] folded.
///
/// The words are added in the machine's byte order and the sum is turned, which comes to the same (RFC 1071, section 2B).
#[inline] // into each of the forms of `wide`, with their instructions
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let halves = |word: [u8; 4]| {
        let word = u32::from_ne_bytes(word);
        (word & 0xffff) + (word >> 16)
    };
    let (words, rest) = bytes.as_chunks::<4>();
    let last = match *rest {
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        _ => [0; 4],
    };
    let sum = words.iter().map(|&word| halves(word)).sum::<u32>() + halves(last);
    u16::from_be(checksum::fold(sum.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_plain_sum(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(sum(&bytes), checksum::fold(checksum::sum(&bytes)));
        }
    }

    #[test]
    fn the_greatest_sum_does_not_overflow() {
        let bytes = vec![0xff; 1 << 16];
        assert_eq!(sum(&bytes), checksum::fold(checksum::sum(&bytes)));
    }
}
