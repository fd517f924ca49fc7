//! The wire format of coded packets: RFC 8681 with one additional byte.
//!
//! A *source symbol* is an application data unit (ADU) behind 3 bytes of information (ADUI in RFC
//! 8681): a flow identifier and the unit's length. Where the RFC has one encoding symbol size E,
//! symbols here have the sizes of their units: a shorter one counts as padded with zeros, so a
//! repair symbol has the size of the longest one of its window.
//!
//! RFC 8681 distinguishes source and repair packets by their flow. Here all share the flow of the
//! packets that they protect, so that the network routes and classifies them alike. The last byte
//! is the type of the packet:
//!
//! | packet | payload |
//! |---|---|
//! | source | the unit's own payload, encoding symbol identifier (ESI, 4), `0xa1` |
//! | repair | repair key (2), density threshold (4 bits), number of source symbols (12 bits), first ESI (4), repair symbol, `0xa2` |
//! | recoded | first ESI (4), number of source symbols (1), one coefficient (1) for each, symbol, `0xa3` |
//!
//! All numbers are big-endian. The first two are RFC 8681's Explicit Source FEC Payload ID (behind
//! the unit) and Repair FEC Payload ID (before the symbol). The third is what the RFC leaves out: a
//! combination of combinations has no key, so its coefficients travel with it.

/// Most source symbols of a combination.
pub const MAX_WINDOW: usize = 64;
/// Bytes of the information in front of an ADU.
pub const ADUI_LEN: usize = 3;
/// Bytes behind the payload of a source packet.
pub const SOURCE_TRAILER_LEN: usize = 5;
/// Bytes of a Repair FEC Payload ID.
pub const REPAIR_ID_LEN: usize = 8;
/// Bytes that a repair packet has beside its symbol.
pub const REPAIR_OVERHEAD: usize = REPAIR_ID_LEN + 1;
/// Bytes that a recoded packet has beside its symbol and one for each coefficient.
pub const RECODED_OVERHEAD: usize = 4 + 1 + 1;

const SOURCE: u8 = 0xa1;
const REPAIR: u8 = 0xa2;
const RECODED: u8 = 0xa3;

/// RFC 8681's Repair FEC Payload ID: of which source symbols a repair symbol is made, and how.
///
/// For a block code, which is a window that does not slide, `first` is the block's first symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairId {
    /// Seed of the coefficients.
    pub key: u16,
    /// Density threshold, 0 to 15.
    pub density: u8,
    /// Number of source symbols (NSS), 1 to [`MAX_WINDOW`].
    pub count: u16,
    /// ESI of the first one (FSS_ESI).
    pub first: u32,
}

impl RepairId {
    /// As it is on the wire.
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
        is_possible(id.count).then_some(id)
    }
}

/// A coded packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coded<'a> {
    /// A source packet.
    Source {
        /// Its number.
        esi: u32,
        /// The payload without the trailer.
        payload: &'a [u8],
    },
    /// A repair packet.
    Repair {
        /// What it is made of.
        id: RepairId,
        /// The sum.
        symbol: &'a [u8],
    },
    /// A recoded packet.
    Recoded {
        /// ESI of the first source symbol.
        first: u32,
        /// The coefficients of that one and those after it, 1 to [`MAX_WINDOW`].
        coefficients: &'a [u8],
        /// The sum.
        symbol: &'a [u8],
    },
}

impl<'a> Coded<'a> {
    /// What `payload`, of any bytes, is; `None` when it is that of no coded packet.
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
                let is_whole = is_possible(count.into()) && is_symbol(symbol);
                is_whole.then_some(Self::Recoded {
                    first,
                    coefficients,
                    symbol,
                })
            }
            _ => None,
        }
    }
}

/// Whether so many source symbols can be combined.
fn is_possible(count: u16) -> bool {
    (1..=MAX_WINDOW).contains(&count.into())
}

/// Even an empty unit has its information.
fn is_symbol(symbol: &[u8]) -> bool {
    symbol.len() >= ADUI_LEN
}

/// What follows the payload of source packet `esi`.
pub fn source_trailer(esi: u32) -> [u8; SOURCE_TRAILER_LEN] {
    let [e0, e1, e2, e3] = esi.to_be_bytes();
    [e0, e1, e2, e3, SOURCE]
}

/// Writes the payload of a repair packet whose symbol of `symbol_len` bytes `fill` makes. Returns
/// its length; `None` where `out` is too short.
pub(crate) fn write_repair(
    out: &mut [u8],
    id: RepairId,
    symbol_len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Option<usize> {
    let out = out.get_mut(..REPAIR_OVERHEAD + symbol_len)?;
    let (head, rest) = out.split_first_chunk_mut()?;
    *head = id.to_bytes();
    finish(rest, REPAIR, fill)?;
    Some(REPAIR_OVERHEAD + symbol_len)
}

/// As [`write_repair`] for a recoded packet.
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
    finish(rest, RECODED, fill)?;
    Some(len)
}

fn finish(out: &mut [u8], kind: u8, fill: impl FnOnce(&mut [u8])) -> Option<()> {
    let (last, symbol) = out.split_last_mut()?;
    *last = kind;
    fill(symbol);
    Some(())
}

/// The information in front of an ADU of `len` bytes: flow 0, length.
pub(crate) fn adu_information(len: u16) -> [u8; ADUI_LEN] {
    let [high, low] = len.to_be_bytes();
    [0, high, low]
}

/// The ADU in a source symbol; `None` when its length does not fit or what lies behind it is no
/// padding.
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
    fn a_repair_id_is_that_of_rfc_8681() {
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
    fn what_is_no_coded_packet_is_refused() {
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
            assert_eq!(Coded::parse(payload), None, "{payload:?}");
        }
    }

    #[test]
    fn a_unit_has_its_length_and_nothing_but_padding_behind_it() {
        assert_eq!(adu(&[0, 0, 2, 5, 6, 0, 0]), Some(&[5, 6][..]));
        assert_eq!(adu(&[0, 0, 0]), Some(&[][..]));
        for symbol in [&[0, 0][..], &[0, 0, 2, 5], &[0, 0, 1, 5, 6]] {
            assert_eq!(adu(symbol), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            mut payload in prop::collection::vec(any::<u8>(), 1..100),
            kind in prop::sample::select(vec![SOURCE, REPAIR, RECODED]),
        ) {
            let _ = Coded::parse(&payload);
            *payload.last_mut().unwrap() = kind;
            let mut again = vec![0; 200];
            let len = match Coded::parse(&payload) {
                Some(Coded::Source { esi, payload }) => {
                    again[..payload.len()].copy_from_slice(payload);
                    again[payload.len()..][..SOURCE_TRAILER_LEN].copy_from_slice(&source_trailer(esi));
                    payload.len() + SOURCE_TRAILER_LEN
                }
                Some(Coded::Repair { id, symbol }) => {
                    let fill = |out: &mut [u8]| out.copy_from_slice(symbol);
                    write_repair(&mut again, id, symbol.len(), fill).unwrap()
                }
                Some(Coded::Recoded { first, coefficients, symbol }) => {
                    let fill = |out: &mut [u8]| out.copy_from_slice(symbol);
                    write_recoded(&mut again, first, coefficients, symbol.len(), fill).unwrap()
                }
                None => return Ok(()),
            };
            prop_assert_eq!(&again[..len], &payload);
        }
    }
}
