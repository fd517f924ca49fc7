//! `xor`: XORs the whole UDP or TCP payload with a one-byte key.

use myelin_packet::checksum;
use myelin_packet::five_tuple::UDP;
use myelin_spec::XorConfig;

use crate::wide::{self, XorInPlace};
use crate::word::{read_word, write_word};
use crate::{Emitter, Function, Packet, Verdict};

/// XORs every payload byte with a key. A second pass restores the packet.
///
/// Drops a packet without a parsed UDP or TCP header (a fragment, another protocol), because the
/// offset of its payload is unknown. A UDP checksum of zero means no checksum and stays zero.
#[derive(Clone, Copy, Debug)]
pub struct Xor {
    key: u8,
    xor_in_place: XorInPlace,
}

impl Xor {
    /// Makes the function with this configuration.
    pub fn new(config: XorConfig) -> Self {
        Self {
            key: config.key,
            xor_in_place: wide::fastest_xor(),
        }
    }
}

impl Function for Xor {
    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        let headers = *packet.headers();
        let Some(field) = checksum::l4_offset(&headers) else {
            return Verdict::Drop;
        };
        let growth = (self.xor_in_place)(packet.payload_mut(), self.key);
        let frame = packet.bytes_mut();
        let Some(old_checksum) = read_word(frame, field) else {
            return Verdict::Drop;
        };
        if old_checksum == 0 && headers.protocol == UDP {
            return Verdict::Forward;
        }
        let updated = checksum::l4_add(headers.protocol, old_checksum, growth);
        write_word(frame, field, updated).into()
    }
}

/// 64-bit words to sum before a 16-bit lane could overflow: 256 times 255 is below 2^16.
const WORDS_BEFORE_OVERFLOW: usize = 256;

/// XORs each byte with `key`. Returns the growth of the sum of big-endian 16-bit words, modulo
/// 65535 and not below zero.
///
/// Reads each byte once. For a 16-bit word, `new = old ^ k` is `old + k - 2 * (old & k)`. So the
/// loop sums only the bits of `old & k`, separately for bytes at even and at odd offsets.
#[inline(always)] // each variant in `wide` compiles it with its own instructions
pub(crate) fn xor_in_place(payload: &mut [u8], key: u8) -> u64 {
    const LOW: u64 = 0x00ff_00ff_00ff_00ff;
    let keys = u64::from_ne_bytes([key; 8]);
    let len = payload.len() as u64;
    let (mut even, mut odd) = (0, 0);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for block in words.chunks_mut(WORDS_BEFORE_OVERFLOW) {
        // In little endian, the byte at the even offset is the low one of each lane.
        let (mut even_lanes, mut odd_lanes) = (0_u64, 0_u64);
        for word in block {
            let old = u64::from_le_bytes(*word);
            let common = old & keys;
            *word = (old ^ keys).to_le_bytes();
            even_lanes += common & LOW;
            odd_lanes += common >> 8 & LOW;
        }
        even += sum_of_lanes(even_lanes);
        odd += sum_of_lanes(odd_lanes);
    }
    for (i, byte) in rest.iter_mut().enumerate() {
        let common = u64::from(*byte & key);
        *byte ^= key;
        if i % 2 == 0 {
            even += common;
        } else {
            odd += common;
        }
    }
    let key = u64::from(key);
    // A byte at an even offset is the upper half of its word, so it has 256 times the weight.
    let added = key * (len.div_ceil(2) * 256 + len / 2);
    let taken = 2 * (even * 256 + odd);
    // Any multiple of 65535 is zero; this one is at least as large as `taken`.
    added + (len.div_ceil(2) * 2 * 65_535 - taken)
}

fn sum_of_lanes(lanes: u64) -> u64 {
    (0..4).map(|lane| lanes >> (16 * lane) & 0xffff).sum()
}
