//! Layout of keys and masks in the maps: `parse.h` and `classify.h`.

use bytemuck::{Pod, Zeroable};
use myelin_packet::classifier::{MAX_MASKS, Mask, MatchKey};
use myelin_packet::{Family, Match};

/// `NO_PORTS`: bit of the mask field in the key of a packet without ports. A mask that names a port
/// keeps this bit, so such a packet matches no key under the mask.
const NO_PORTS: u8 = 0x80;
/// Bit in the numbers of masks without ports (`fragment_masks`). It makes a key of IPv6 differ from
/// a key of IPv4, whose last words are 0.
pub(super) const FRAGMENT_MASK: u8 = 0x40;
/// 64-bit words of the longest key.
const KEY_WORDS: usize = 5;

/// `struct fields`: the part that the keys of both families share. Ports are in network order.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Fields {
    source_port: [u8; 2],
    destination_port: [u8; 2],
    protocol: u8,
    mask: u8,
    port: u16,
}

/// `struct key4`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Key4 {
    source: [u8; 4],
    destination: [u8; 4],
    fields: Fields,
}

/// `struct key6`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Key6 {
    source: [u8; 16],
    destination: [u8; 16],
    fields: Fields,
}

/// The words of a `struct key4` or `struct key6`; unused words are zero.
pub(crate) type Words = [u64; KEY_WORDS];

/// `struct mask`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct MaskEntry {
    /// The bits of a packet's key that the mask keeps.
    keep: Words,
    /// The mask's number, at its place in the last word of a key.
    tag: u64,
}

impl MaskEntry {
    /// `number` is below [`MAX_MASKS`]. Keys contain this number, so equal bits under different
    /// masks are different keys.
    pub(super) fn new(mask: Mask, number: u8) -> Self {
        let port_bits = |is_used: bool| if is_used { [0xff; 2] } else { [0; 2] };
        let used = mask.fields;
        let keep = Fields {
            source_port: port_bits(used.source_port),
            destination_port: port_bits(used.destination_port),
            protocol: if used.protocol { 0xff } else { 0 },
            mask: if used.source_port || used.destination_port {
                NO_PORTS
            } else {
                0
            },
            port: u16::MAX,
        };
        let tag = Fields {
            mask: number,
            ..Fields::default()
        };
        let (source, destination) = (
            prefix_bytes(used.source_len),
            prefix_bytes(used.destination_len),
        );
        Self {
            keep: pack_key(mask.family, &source, &destination, keep),
            tag: bytemuck::cast(tag),
        }
    }
}

fn prefix_bytes(len: u8) -> [u8; 16] {
    u128::MAX
        .checked_shl(128 - u32::from(len))
        .unwrap_or(0)
        .to_be_bytes()
}

/// Returns the mask and the masked key of `rule`, to test a packet without a table. Returns `None`
/// if no packet of the family matches.
pub(crate) fn make_comparison(rule: &Match, family: Family) -> Option<(Words, Words)> {
    let mask = Mask::of(rule, family)?;
    let expected = key_words(family, &MatchKey::of(rule), 0, 0);
    Some((MaskEntry::new(mask, 0).keep, expected))
}

/// `struct masks`, in words: two counts of 32 bits, then the masks of both families.
pub(super) const BANK_WORDS: usize = 1 + 2 * MAX_MASKS * MASK_WORDS;
pub(super) const MASK_WORDS: usize = size_of::<MaskEntry>() / 8;
/// `struct mask_banks`, in words: the active bank's number, then the banks.
pub(super) const BANKS_WORDS: usize = 1 + 2 * BANK_WORDS;

/// Returns the length of a key of `family`, bytes.
pub(super) fn key_len(family: Family) -> usize {
    match family {
        Family::V4 => size_of::<Key4>(),
        Family::V6 => size_of::<Key6>(),
    }
}

/// Returns the words of a key. An IPv4 address uses its first four bytes.
fn pack_key(family: Family, source: &[u8; 16], destination: &[u8; 16], fields: Fields) -> Words {
    let mut words = [0; KEY_WORDS];
    let bytes = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
    let ipv4 = |address: &[u8; 16]| [address[0], address[1], address[2], address[3]];
    match family {
        Family::V4 => {
            let key = Key4 {
                source: ipv4(source),
                destination: ipv4(destination),
                fields,
            };
            bytes[..size_of::<Key4>()].copy_from_slice(bytemuck::bytes_of(&key));
        }
        Family::V6 => {
            let key = Key6 {
                source: *source,
                destination: *destination,
                fields,
            };
            bytes.copy_from_slice(bytemuck::bytes_of(&key));
        }
    }
    words
}

/// Returns the words of a masked key for a port.
pub(super) fn key_words(family: Family, key: &MatchKey, mask: u8, port: u16) -> Words {
    let fields = Fields {
        source_port: key.source_port.to_be_bytes(),
        destination_port: key.destination_port.to_be_bytes(),
        protocol: key.protocol,
        mask,
        port,
    };
    pack_key(family, &key.source, &key.destination, fields)
}

/// Returns the hash that selects a key's bucket: `mix` over the key's words.
pub(super) fn hash(family: Family, key: &Words) -> u64 {
    let words = key_len(family) / 8;
    key[..words].iter().fold(0_u64, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    })
}

#[cfg(test)]
mod tests {
    use myelin_packet::match_rule::Specificity;

    use super::super::buckets::Layout;
    use super::*;
    use crate::object::DOOR;
    use crate::tests::{assert_same_layout, layout};

    #[test]
    fn keys_and_masks_match_their_c_layout() {
        assert_same_layout!(
            DOOR,
            "fields",
            Fields {
                source_port,
                destination_port,
                protocol,
                mask,
                port
            }
        );
        assert_same_layout!(
            DOOR,
            "key4",
            Key4 {
                source,
                destination,
                fields
            }
        );
        assert_same_layout!(
            DOOR,
            "key6",
            Key6 {
                source,
                destination,
                fields
            }
        );
        assert_same_layout!(DOOR, "mask", MaskEntry { keep, tag });
    }

    #[test]
    fn banks_match_their_c_layout() {
        let (size, members) = layout(&DOOR, "masks");
        let v6 = 8 * (1 + MAX_MASKS * MASK_WORDS);
        assert_eq!(
            (size, members["count4"], members["count6"]),
            (BANK_WORDS * 8, 0, 4)
        );
        assert_eq!((members["v4"], members["v6"]), (8, v6));
        let (size, members) = layout(&DOOR, "mask_banks");
        assert_eq!(
            (size, members["active"], members["banks"]),
            (BANKS_WORDS * 8, 0, 8)
        );
    }

    #[test]
    fn buckets_match_their_c_layout() {
        for (family, name) in [(Family::V4, "bucket4"), (Family::V6, "bucket6")] {
            let (size, members) = layout(&DOOR, name);
            let ours = Layout::of(family);
            let numbers = ours.entries * ours.key * 8;
            assert_eq!((size, members["keys"]), (ours.words * 8, 0));
            assert_eq!(
                (members["numbers"], members["overflow"]),
                (numbers, numbers + ours.entries * 4)
            );
        }
    }

    #[test]
    fn tag_has_the_offset_of_the_mask_number_in_a_key() {
        let mask = Mask {
            family: Family::V6,
            fields: Specificity {
                source_len: 64,
                destination_len: 0,
                protocol: false,
                source_port: false,
                destination_port: true,
            },
        };
        let entry = MaskEntry::new(mask, 0x15);
        let bytes = bytemuck::bytes_of(&entry);
        assert_eq!(bytes[..8], [0xff; 8]);
        assert_eq!(bytes[8..32], [0; 24]);
        assert_eq!(bytes[32..40], [0, 0, 0xff, 0xff, 0, NO_PORTS, 0xff, 0xff]);
        assert_eq!(bytes[40..], [0, 0, 0, 0, 0, 0x15, 0, 0]);
    }
}
