//! The wire format of coded packets: RFC 8681 with one additional byte.
//!
//! A *source symbol* is 3 bytes of information (ADUI in RFC 8681), then an application data unit
//! (ADU). The information is a flow identifier and the unit's length. In the RFC, all symbols have
//! one size E. Here each symbol has the size of its unit. A shorter symbol counts as padded with
//! zeros, so a repair symbol has the size of the longest symbol of its window.
//!
//! RFC 8681 distinguishes source and repair packets by their flow. Here all packets share the flow
//! of the source packets, so that the network routes and classifies them alike. The last byte
//! is the type of the packet:
//!
//! * Source packet: the unit's payload, encoding symbol identifier (ESI, 4 bytes), `0xa1`.
//! * Repair packet: repair key (2 bytes), density threshold (4 bits), number of source symbols (12
//!   bits), first ESI (4 bytes), repair symbol, `0xa2`.
//! * Recoded packet: first ESI (4 bytes), number of source symbols (1 byte), one coefficient for
//!   each (1 byte), symbol, `0xa3`.
//!
//! All numbers are big-endian. Source and repair packets contain RFC 8681's Explicit Source FEC
//! Payload ID (after the unit) and Repair FEC Payload ID (before the symbol). The RFC has no
//! recoded packets. A combination of combinations has no key, so a recoded packet contains its
//! coefficients.

/// Maximum number of source symbols in a combination.
pub const MAX_WINDOW: usize = 64;
/// Bytes of the information in front of an ADU.
pub const ADUI_LEN: usize = 3;
/// Bytes after the payload of a source packet.
pub const SOURCE_TRAILER_LEN: usize = 5;
/// Bytes of a Repair FEC Payload ID.
pub const REPAIR_ID_LEN: usize = 8;
/// Bytes of a repair packet besides its symbol.
pub const REPAIR_OVERHEAD: usize = REPAIR_ID_LEN + 1;
/// Bytes of a recoded packet besides its symbol and its coefficients of one byte each.
pub const RECODED_OVERHEAD: usize = 4 + 1 + 1;

const SOURCE: u8 = 0xa1;
const REPAIR: u8 = 0xa2;
const RECODED: u8 = 0xa3;

/// RFC 8681's Repair FEC Payload ID: the source symbols of a repair symbol, and the seed of their
/// coefficients.
///
/// For a block code, `first` is the block's first symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairId {
    /// Seed of the coefficients.
    pub key: u16,
    /// Density threshold, 0 to 15.
    pub density: u8,
    /// Number of source symbols (NSS), 1 to [`MAX_WINDOW`].
    pub count: u16,
    /// ESI of the first source symbol (FSS_ESI).
    pub first: u32,
}

impl RepairId {
    /// Returns the identifier in wire format.
    pub fn to_bytes(self) -> [u8; REPAIR_ID_LEN] {
        let [k0, k1] = self.key.to_be_bytes();
        let [n0, n1] = (u16::from(self.density) << 12 | self.count & 0x0fff).to_be_bytes();
        let [e0, e1, e2, e3] = self.first.to_be_bytes();
        [k0, k1, n0, n1, e0, e1, e2, e3]
    }

    fn parse(bytes: [u8; REPAIR_ID_LEN]) -> Option<Self> {
        let [k0, k1, n0, n1, e0, e1, e2, e3] = bytes;
        let counted = u16::from_be_bytes([n0, n1]);
        let id = Self {
            key: u16::from_be_bytes([k0, k1]),
            density: (counted >> 12) as u8,
            count: counted & 0x0fff,
            first: u32::from_be_bytes([e0, e1, e2, e3]),
        };
        is_valid_count(id.count).then_some(id)
    }
}

/// A coded packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodedPayload<'a> {
    /// A source packet.
    Source {
        /// The packet's encoding symbol identifier.
        esi: u32,
        /// The payload without the trailer.
        payload: &'a [u8],
    },
    /// A repair packet.
    Repair {
        /// Identifies the source symbols and their coefficients.
        id: RepairId,
        /// The sum.
        symbol: &'a [u8],
    },
    /// A recoded packet.
    Recoded {
        /// ESI of the first source symbol.
        first: u32,
        /// The coefficients of the source symbols from `first` on, 1 to [`MAX_WINDOW`].
        coefficients: &'a [u8],
        /// The sum.
        symbol: &'a [u8],
    },
}

impl<'a> CodedPayload<'a> {
    /// Parses a payload. Returns `None` if it is not the payload of a coded packet.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (kind, rest) = payload.split_last()?;
        match *kind {
            SOURCE => {
                let (payload, esi) = rest.split_last_chunk()?;
                let esi = u32::from_be_bytes(*esi);
                Some(Self::Source { esi, payload })
            }
            REPAIR => {
                let (id, symbol) = rest.split_first_chunk()?;
                let id = RepairId::parse(*id)?;
                is_symbol(symbol).then_some(Self::Repair { id, symbol })
            }
            RECODED => {
                let (head, rest) = rest.split_first_chunk::<5>()?;
                let [e0, e1, e2, e3, count] = *head;
                let (coefficients, symbol) = rest.split_at_checked(count.into())?;
                let first = u32::from_be_bytes([e0, e1, e2, e3]);
                let is_valid = is_valid_count(count.into()) && is_symbol(symbol);
                is_valid.then_some(Self::Recoded {
                    first,
                    coefficients,
                    symbol,
                })
            }
            _ => None,
        }
    }
}

/// Returns whether a packet can combine `count` source symbols.
fn is_valid_count(count: u16) -> bool {
    (1..=MAX_WINDOW).contains(&count.into())
}

/// Returns whether `symbol` has at least the length of an empty unit's symbol.
fn is_symbol(symbol: &[u8]) -> bool {
    symbol.len() >= ADUI_LEN
}

/// Returns the trailer after the payload of source packet `esi`.
pub fn source_trailer(esi: u32) -> [u8; SOURCE_TRAILER_LEN] {
    let [e0, e1, e2, e3] = esi.to_be_bytes();
    [e0, e1, e2, e3, SOURCE]
}

/// Writes the payload of a repair packet. `fill` writes the symbol of `symbol_len` bytes. Returns
/// the length of the payload. Returns `None` if `out` is too short.
pub(crate) fn write_repair(
    out: &mut [u8],
    id: RepairId,
    symbol_len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Option<usize> {
    let out = out.get_mut(..REPAIR_OVERHEAD + symbol_len)?;
    let (head, rest) = out.split_first_chunk_mut()?;
    *head = id.to_bytes();
    write_symbol_and_type(rest, REPAIR, fill)?;
    Some(REPAIR_OVERHEAD + symbol_len)
}

/// Like [`write_repair`], for a recoded packet.
pub(crate) fn write_recoded(
    out: &mut [u8],
    first: u32,
    coefficients: &[u8],
    symbol_len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Option<usize> {
    let len = RECODED_OVERHEAD + coefficients.len() + symbol_len;
    let out = out.get_mut(..len)?;
    let (esi, rest) = out.split_first_chunk_mut()?;
    *esi = first.to_be_bytes();
    let (count, rest) = rest.split_first_mut()?;
    *count = u8::try_from(coefficients.len()).ok()?;
    let (vector, rest) = rest.split_at_mut_checked(coefficients.len())?;
    vector.copy_from_slice(coefficients);
    write_symbol_and_type(rest, RECODED, fill)?;
    Some(len)
}

fn write_symbol_and_type(out: &mut [u8], kind: u8, fill: impl FnOnce(&mut [u8])) -> Option<()> {
    let (last, symbol) = out.split_last_mut()?;
    *last = kind;
    fill(symbol);
    Some(())
}

/// Returns the information in front of an ADU of `len` bytes: flow 0 and the length.
pub(crate) fn adu_information(len: u16) -> [u8; ADUI_LEN] {
    let [high, low] = len.to_be_bytes();
    [0, high, low]
}

/// Returns the ADU in a source symbol. Returns `None` if the ADU's length does not fit, or if bytes
/// after the ADU are not zero.
pub(crate) fn adu(symbol: &[u8]) -> Option<&[u8]> {
    let ([_flow, high, low], rest) = symbol.split_first_chunk()?;
    let (adu, padding) = rest.split_at_checked(u16::from_be_bytes([*high, *low]).into())?;
    padding.iter().all(|&byte| byte == 0).then_some(adu)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_repair_id_has_the_layout_of_rfc_8681() {
        let id = RepairId {
            key: 0x1234,
            density: 0xf,
            count: 8,
            first: 0xdead_beef,
        };
        let bytes = [0x12, 0x34, 0xf0, 0x08, 0xde, 0xad, 0xbe, 0xef];
        assert_eq!(id.to_bytes(), bytes);
        assert_eq!(RepairId::parse(bytes), Some(id));
    }

    #[test]
    fn invalid_payloads_are_refused() {
        for payload in [
            &[][..],
            &[0],
            &[0, 0, 0, SOURCE],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, REPAIR],
            &[0, 0, 0, 65, 0, 0, 0, 0, 0, 0, 0, REPAIR],
            &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, REPAIR],
            &[0, 0, 0, 0, 0, 7, 7, 7, RECODED],
            &[0, 0, 0, 0, 1, 7, 7, 7, RECODED],
        ] {
            assert_eq!(CodedPayload::parse(payload), None, "{payload:?}");
        }
    }

    #[test]
    fn a_unit_with_a_wrong_length_or_padding_is_refused() {
        assert_eq!(adu(&[0, 0, 2, 5, 6, 0, 0]), Some(&[5, 6][..]));
        assert_eq!(adu(&[0, 0, 0]), Some(&[][..]));
        for symbol in [&[0, 0][..], &[0, 0, 2, 5], &[0, 0, 1, 5, 6]] {
            assert_eq!(adu(symbol), None);
        }
    }

    proptest! {
        #[test]
        fn parsed_payloads_are_written_identically(
            mut payload in prop::collection::vec(any::<u8>(), 1..100),
            kind in prop::sample::select(vec![SOURCE, REPAIR, RECODED]),
        ) {
            let _ = CodedPayload::parse(&payload);
            *payload.last_mut().unwrap() = kind;
            let mut rewritten = vec![0; 200];
            let len = match CodedPayload::parse(&payload) {
                Some(CodedPayload::Source { esi, payload }) => {
                    rewritten[..payload.len()].copy_from_slice(payload);
                    rewritten[payload.len()..][..SOURCE_TRAILER_LEN].copy_from_slice(&source_trailer(esi));
                    payload.len() + SOURCE_TRAILER_LEN
                }
                Some(CodedPayload::Repair { id, symbol }) => {
                    let fill = |out: &mut [u8]| out.copy_from_slice(symbol);
                    write_repair(&mut rewritten, id, symbol.len(), fill).unwrap()
                }
                Some(CodedPayload::Recoded { first, coefficients, symbol }) => {
                    let fill = |out: &mut [u8]| out.copy_from_slice(symbol);
                    write_recoded(&mut rewritten, first, coefficients, symbol.len(), fill).unwrap()
                }
                None => return Ok(()),
            };
            prop_assert_eq!(&rewritten[..len], &payload);
        }
    }
}
