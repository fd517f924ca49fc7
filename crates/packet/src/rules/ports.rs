//! From a port or a protocol to its class.

use std::ops::RangeInclusive;

use super::vectors::{ClassVector, Interner, pieces};

/// The class of a packet without ports: it satisfies the rules that name none.
pub const NO_PORTS: u16 = 0;

/// Class by port number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortTable {
    /// 65 536 classes.
    pub classes: Vec<u16>,
    /// By class.
    pub vectors: Vec<ClassVector>,
}

impl PortTable {
    /// The table of one port field, given as the range of each rule.
    pub(super) fn build<'a>(fields: impl Iterator<Item = Option<&'a RangeInclusive<u16>>>) -> Self {
        let mut always = ClassVector::default();
        let mut ranges = Vec::new();
        for (rule, range) in fields.enumerate() {
            match range {
                None => always.insert(rule),
                Some(range) if range.is_empty() => {}
                Some(range) => {
                    ranges.push((u128::from(*range.start()), u128::from(*range.end()), rule));
                }
            }
        }
        let mut interner = Interner::default();
        // The first vector is class 0, NO_PORTS.
        interner.class(always);
        let pieces = pieces(always, &ranges, u128::from(u16::MAX), &mut interner);
        Self {
            classes: spread(&pieces, 1 << 16),
            vectors: interner.into_vectors(),
        }
    }

    /// The class of a port, or of a packet without one.
    #[inline]
    pub fn class(&self, port: Option<u16>) -> u16 {
        port.map_or(NO_PORTS, |port| self.classes[usize::from(port)])
    }
}

/// Class by protocol number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProtocolTable {
    /// 256 classes.
    pub classes: Vec<u16>,
    /// By class.
    pub vectors: Vec<ClassVector>,
}

impl ProtocolTable {
    /// The table, given the protocol of each rule.
    pub(super) fn build(fields: impl Iterator<Item = Option<u8>>) -> Self {
        let mut always = ClassVector::default();
        let mut ranges = Vec::new();
        for (rule, protocol) in fields.enumerate() {
            match protocol {
                None => always.insert(rule),
                Some(protocol) => ranges.push((u128::from(protocol), u128::from(protocol), rule)),
            }
        }
        let mut interner = Interner::default();
        let pieces = pieces(always, &ranges, u128::from(u8::MAX), &mut interner);
        Self {
            classes: spread(&pieces, 1 << 8),
            vectors: interner.into_vectors(),
        }
    }

    /// The class of a protocol.
    #[inline]
    pub fn class(&self, protocol: u8) -> u16 {
        self.classes[usize::from(protocol)]
    }
}

/// One entry a value; there are at most 2049 classes, so they fit.
fn spread(pieces: &[(u128, u32)], values: usize) -> Vec<u16> {
    let mut classes = Vec::with_capacity(values);
    for (i, &(_, class)) in pieces.iter().enumerate() {
        let end = pieces.get(i + 1).map_or(values, |next| next.0 as usize);
        classes.resize(end, class as u16);
    }
    classes
}
