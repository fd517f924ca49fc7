//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

use crate::five_tuple::{TCP, UDP};
use crate::parse::Headers;

/// Returns the ones' complement sum of `bytes` as big-endian 16-bit words. An odd last byte counts
/// as if a zero followed.
///
/// Callers may add sums as plain numbers and fold the total at the end, because each sum is below
/// 2^16.
#[inline(always)] // callers with wider vectors compile the loop with these vectors
#[allow(clippy::inline_always)]
pub fn sum(bytes: &[u8]) -> u64 {
    // The sum has the byte order of its words (RFC 1071, section 2B), and a 32-bit word is the sum
    // of its halves modulo 65535. So the loop adds words in the processor's byte order, with
    // vectors.
    let (words, rest) = bytes.as_chunks::<4>();
    let words: u64 = words
        .iter()
        .map(|&word| u64::from(u32::from_ne_bytes(word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let sum = fold(words + u64::from(u32::from_ne_bytes(last)));
    u16::from_be_bytes(sum.to_ne_bytes()).into()
}

/// Folds a sum to 16 bits with end-around carry.
pub const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the checksum of `bytes`. The checksum field itself must be zero.
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// Returns the checksum after a change of the 16-bit word at an even offset from `old` to `new`:
/// RFC 1624, equation 3.
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    add(checksum, !old as u64 + new as u64)
}

/// Returns the checksum after the sum of its words grew by `delta`.
///
/// Ones' complement counts modulo 65535, so a decrease by `d` is a growth by any positive
/// `65535 * k - d`.
pub const fn add(checksum: u16, delta: u64) -> u16 {
    !fold(!checksum as u64 + delta)
}

/// Returns the UDP or TCP checksum after the sum of its words grew by `delta`, equal to a new
/// computation. Ones' complement has two zeros: UDP sends 0xffff, because 0 means none (RFC 768);
/// TCP sends 0.
///
/// Every update of a checksum ends with this function, so all functions write the same bytes.
pub const fn l4_add(protocol: u8, checksum: u16, delta: u64) -> u16 {
    match (protocol, add(checksum, delta)) {
        (UDP, 0) => 0xffff,
        (UDP, other) => other,
        (_, 0xffff) => 0,
        (_, other) => other,
    }
}

/// Returns the offset of the UDP or TCP checksum in the frame. `None` without such a header.
pub fn l4_offset(headers: &Headers) -> Option<usize> {
    if !headers.flags.has_ports() {
        return None;
    }
    match headers.protocol {
        UDP => Some(usize::from(headers.l4) + 6),
        TCP => Some(usize::from(headers.l4) + 16),
        _ => None,
    }
}

/// Computes the UDP or TCP checksum of `frame`, for any present value of the field. A UDP result of
/// zero becomes 0xffff (RFC 768). `None` without such a header, or if `headers` do not belong to
/// `frame`.
pub fn l4_checksum(frame: &[u8], headers: &Headers) -> Option<u16> {
    let field = l4_offset(headers)?;
    let (l3, l4, end) = (
        usize::from(headers.l3),
        usize::from(headers.l4),
        usize::from(headers.end),
    );
    let addresses = if headers.flags.is_ipv6() {
        l3 + 8..l3 + 40
    } else {
        l3 + 12..l3 + 20
    };
    let segment = frame.get(l4..end)?;
    let field_value = frame.get(field..field + 2)?;
    let pseudo_header =
        sum(frame.get(addresses)?) + u64::from(headers.protocol) + (end - l4) as u64;
    // Adding the field's complement subtracts the field.
    let without_field =
        sum(segment) + u64::from(!u16::from_be_bytes([field_value[0], field_value[1]]));
    let checksum = !fold(pseudo_header + without_field);
    Some(if headers.protocol == UDP && checksum == 0 {
        0xffff
    } else {
        checksum
    })
}

/// Returns whether the UDP or TCP checksum of `frame` is correct. A UDP checksum of zero means none
/// (RFC 768). `None` without such a header.
pub fn l4_is_valid(frame: &[u8], headers: &Headers) -> Option<bool> {
    let field = l4_offset(headers)?;
    let field_value = frame.get(field..field + 2)?;
    let field_value = u16::from_be_bytes([field_value[0], field_value[1]]);
    if headers.protocol == UDP && field_value == 0 {
        return Some(true);
    }
    // 0xffff and 0 are the same number in ones' complement, so a TCP sender may write either.
    let computed = l4_checksum(frame, headers)?;
    Some(field_value == computed || (field_value == 0xffff && computed == 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures;

    /// Computes the sum as RFC 1071, section 4.1, does: word by word, with an immediate carry.
    fn sum_word_by_word(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        sum as u16
    }

    #[test]
    fn sum_matches_the_example_of_rfc_1071() {
        assert_eq!(
            fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])),
            0xddf2
        );
    }

    #[test]
    fn update_matches_the_example_of_rfc_1624() {
        // Section 4: the case for which the older equation gives 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn zero_checksums_are_0xffff_for_udp_and_0_for_tcp() {
        // Adding the checksum to the sum of the other words makes the sum 0xffff.
        assert_eq!(l4_add(UDP, 0x1234, 0x1234), 0xffff);
        assert_eq!(l4_add(TCP, 0x1234, 0x1234), 0);
        assert_eq!(l4_add(UDP, 0xffff, 0), 0xffff);
        assert_eq!(l4_add(TCP, 0xffff, 0), 0);
        assert_eq!(l4_add(UDP, 0x1234, 0), 0x1234);
        assert_eq!(l4_add(TCP, 0x1234, 65_535), 0x1234);
    }

    #[test]
    fn a_zero_udp_checksum_is_written_as_0xffff() {
        let fixture = fixtures::named("udp-v4-checksum-ffff");
        let headers = fixture.expected.unwrap();
        assert_eq!(fixture.frame[40..42], [0xff, 0xff]);
        assert_eq!(l4_checksum(&fixture.frame, &headers), Some(0xffff));
        assert_eq!(l4_is_valid(&fixture.frame, &headers), Some(true));
    }

    #[test]
    fn both_forms_of_a_zero_tcp_checksum_are_valid() {
        let mut fixture = fixtures::named("tcp-v4-checksum-zero");
        let headers = fixture.expected.unwrap();
        assert_eq!(fixture.frame[50..52], [0, 0]);
        assert_eq!(l4_checksum(&fixture.frame, &headers), Some(0));
        assert_eq!(l4_is_valid(&fixture.frame, &headers), Some(true));
        fixture.frame[50..52].fill(0xff);
        assert_eq!(l4_checksum(&fixture.frame, &headers), Some(0));
        assert_eq!(l4_is_valid(&fixture.frame, &headers), Some(true));
    }

    #[test]
    fn a_missing_udp_checksum_is_valid_and_a_wrong_checksum_is_not() {
        for (name, valid) in [
            ("udp-v4", true),
            ("udp-v4-checksum-zero", true),
            ("udp-v4-checksum-wrong", false),
            ("udp-v4-surplus", true),
        ] {
            let fixture = fixtures::named(name);
            assert_eq!(
                l4_is_valid(&fixture.frame, &fixture.expected.unwrap()),
                Some(valid),
                "{name}"
            );
        }
    }

    #[test]
    fn other_protocols_and_shorter_frames_have_no_checksum() {
        let icmp = fixtures::named("icmp");
        assert_eq!(l4_checksum(&icmp.frame, &icmp.expected.unwrap()), None);
        let udp = fixtures::named("udp-v6").expected.unwrap();
        assert_eq!(l4_checksum(&[0; 60], &udp), None);
        assert_eq!(l4_is_valid(&[0; 60], &udp), None);
    }

    proptest! {
        #[test]
        fn sum_equals_the_rfc_reference(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // Modulo 65535: the reference may end at 0xffff, and the folded sum does too.
            prop_assert_eq!(fold(sum(&bytes)), sum_word_by_word(&bytes));
        }

        #[test]
        fn update_equals_a_new_computation(
            mut bytes in prop::collection::vec(any::<u8>(), 2..100),
            at in any::<prop::sample::Index>(),
            new: u16,
        ) {
            // The two zeros of ones' complement differ only for all-zero bytes, and no header is
            // all zero.
            bytes.push(0x45);
            let at = at.index(bytes.len() / 2) * 2;
            let before = checksum(&bytes);
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            bytes.push(0);
            prop_assume!(fold(sum(&bytes)) != 0);
            prop_assert_eq!(update(before, old, new), checksum(&bytes));
        }
    }
}
