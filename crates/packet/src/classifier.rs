//! Selects the chain of a packet: the most specific match wins.
//!
//! [`TupleSpace`] is tuple space search (Srinivasan, Suri, Varghese: Packet Classification using
//! Tuple Space Search, SIGCOMM 1999). Matches with the same [`Mask`] share a hash table, so a
//! look-up costs one probe for each mask in use, for any number of chains. The front door does the
//! same with eBPF maps.

use std::collections::HashMap;

use crate::five_tuple::FiveTuple;
use crate::match_rule::{Match, Specificity};
use crate::prefix::{Family, Prefix, address_bytes, mask};

/// Most masks of one family.
pub const MAX_MASKS: usize = 64;

/// The bits of the fields that a match compares. No two masks of a family are equally specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mask {
    /// Family of the packets.
    pub family: Family,
    /// The compared fields, and the number of compared address bits.
    pub fields: Specificity,
}

impl Mask {
    /// Returns the mask of `rule` for packets of `family`. `None` if `rule` matches
    /// no such packet.
    pub fn of(rule: &Match, family: Family) -> Option<Self> {
        rule.families().any(|f| f == family).then_some(Self {
            family,
            fields: rule.specificity(),
        })
    }

    /// Returns the mask without its ports.
    #[must_use]
    pub fn without_ports(self) -> Self {
        let fields = Specificity {
            source_port: false,
            destination_port: false,
            ..self.fields
        };
        Self { fields, ..self }
    }

    /// Returns the packet's fields under the mask. `None` if the packet is of the other family or
    /// lacks a compared port.
    pub fn apply(&self, tuple: &FiveTuple) -> Option<MatchKey> {
        let port = |is_compared: bool, port: Option<u16>| if is_compared { port } else { Some(0) };
        if Family::of(tuple.source) != self.family || Family::of(tuple.destination) != self.family {
            return None;
        }
        let fields = self.fields;
        Some(MatchKey {
            source: address_bytes(mask(tuple.source, fields.source_len)),
            destination: address_bytes(mask(tuple.destination, fields.destination_len)),
            protocol: if fields.protocol { tuple.protocol } else { 0 },
            source_port: port(fields.source_port, tuple.source_port)?,
            destination_port: port(fields.destination_port, tuple.destination_port)?,
        })
    }
}

/// The fields of a packet or match under a [`Mask`]. Other fields are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MatchKey {
    /// Source address in network order; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Destination address in the same layout.
    pub destination: [u8; 16],
    /// IP protocol number.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl MatchKey {
    /// Returns the key of `rule`, for both families.
    pub fn of(rule: &Match) -> Self {
        let bytes =
            |prefix: Option<Prefix>| prefix.map_or([0; 16], |prefix| address_bytes(prefix.addr()));
        Self {
            source: bytes(rule.source),
            destination: bytes(rule.destination),
            protocol: rule.protocol.unwrap_or(0),
            source_port: rule.source_port.unwrap_or(0),
            destination_port: rule.destination_port.unwrap_or(0),
        }
    }
}

/// Why a match was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassifierError {
    /// Source and destination are of different families.
    #[error("the match takes no packet: its source and its destination are of different families")]
    MixedFamilies,
    /// Another match is equally specific and matches the same packets.
    #[error(
        "another match is equally specific and takes the same packets: make one of the two more specific"
    )]
    Tie,
    /// The family already has [`MAX_MASKS`] masks.
    #[error(
        "{family}: more than {MAX_MASKS} different combinations of prefix lengths and fields: use fewer prefix lengths"
    )]
    TooManyMasks {
        /// The full family.
        family: Family,
    },
}

/// Matches in hash tables, one table for each mask.
#[derive(Clone, Debug)]
pub struct TupleSpace<T> {
    /// By family, most specific mask first.
    tables: [Vec<(Mask, HashMap<MatchKey, T>)>; 2],
}

impl<T> Default for TupleSpace<T> {
    fn default() -> Self {
        Self {
            tables: [Vec::new(), Vec::new()],
        }
    }
}

impl<T: Clone> TupleSpace<T> {
    /// Makes an empty classifier.
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts `rule`. An error changes nothing.
    pub fn insert(&mut self, rule: &Match, value: T) -> Result<(), ClassifierError> {
        let key = MatchKey::of(rule);
        let masks: Vec<Mask> = rule
            .families()
            .filter_map(|family| Mask::of(rule, family))
            .collect();
        if masks.is_empty() {
            return Err(ClassifierError::MixedFamilies);
        }
        for mask in &masks {
            let tables = &self.tables[mask.family as usize];
            match tables.iter().find(|(m, _)| m == mask) {
                Some((_, table)) if table.contains_key(&key) => return Err(ClassifierError::Tie),
                None if tables.len() == MAX_MASKS => {
                    return Err(ClassifierError::TooManyMasks {
                        family: mask.family,
                    });
                }
                _ => {}
            }
        }
        for mask in masks {
            let tables = &mut self.tables[mask.family as usize];
            let found = tables.binary_search_by(|(m, _)| mask.fields.cmp(&m.fields));
            let at = found.unwrap_or_else(|at| {
                tables.insert(at, (mask, HashMap::new()));
                at
            });
            tables[at].1.insert(key, value.clone());
        }
        Ok(())
    }

    /// Removes `rule`. `None` if it is missing.
    pub fn remove(&mut self, rule: &Match) -> Option<T> {
        let key = MatchKey::of(rule);
        let mut removed = None;
        for mask in rule.families().filter_map(|family| Mask::of(rule, family)) {
            let tables = &mut self.tables[mask.family as usize];
            if let Some(at) = tables.iter().position(|(m, _)| *m == mask) {
                removed = tables[at].1.remove(&key).or(removed);
                if tables[at].1.is_empty() {
                    tables.remove(at);
                }
            }
        }
        removed
    }

    /// Returns the value of the most specific match for the packet.
    pub fn lookup(&self, tuple: &FiveTuple) -> Option<&T> {
        let tables = &self.tables[Family::of(tuple.source) as usize];
        tables
            .iter()
            .find_map(|(mask, table)| table.get(&mask.apply(tuple)?))
    }

    /// Returns the masks in use for `family`, most specific first.
    pub fn masks(&self, family: Family) -> impl Iterator<Item = &Mask> {
        self.tables[family as usize].iter().map(|(mask, _)| mask)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn match_to(destination: &str) -> Match {
        Match {
            destination: Some(destination.parse().unwrap()),
            ..Match::default()
        }
    }

    fn packet_to(destination: &str) -> FiveTuple {
        let destination: IpAddr = destination.parse().unwrap();
        let source = if destination.is_ipv4() {
            [0; 4].into()
        } else {
            [0; 16].into()
        };
        FiveTuple {
            source,
            destination,
            protocol: 17,
            source_port: Some(1),
            destination_port: Some(2),
        }
    }

    #[test]
    fn the_longer_destination_wins() {
        let mut space = TupleSpace::new();
        for (rule, value) in [
            (match_to("10.0.0.0/8"), 8),
            (match_to("10.1.0.0/16"), 16),
            (Match::default(), 0),
        ] {
            space.insert(&rule, value).unwrap();
        }
        assert_eq!(space.lookup(&packet_to("10.1.2.3")), Some(&16));
        assert_eq!(space.lookup(&packet_to("10.2.2.3")), Some(&8));
        assert_eq!(space.lookup(&packet_to("11.2.2.3")), Some(&0));
        assert_eq!(space.lookup(&packet_to("2001:db8::1")), Some(&0));
    }

    #[test]
    fn a_tie_is_refused_and_changes_nothing() {
        let mut space = TupleSpace::new();
        space.insert(&match_to("0.0.0.0/0"), 1).unwrap();
        // The new match would enter the IPv6 table before the tie in the IPv4 table is found.
        assert_eq!(
            space.insert(&Match::default(), 2),
            Err(ClassifierError::Tie)
        );
        assert_eq!(space.lookup(&packet_to("2001:db8::1")), None);
        assert_eq!(space.lookup(&packet_to("10.0.0.1")), Some(&1));
    }

    #[test]
    fn mixed_families_are_refused() {
        let rule = Match {
            source: Some("::/0".parse().unwrap()),
            ..match_to("10.0.0.0/8")
        };
        assert_eq!(
            TupleSpace::new().insert(&rule, ()),
            Err(ClassifierError::MixedFamilies)
        );
        assert_eq!(TupleSpace::<()>::new().remove(&rule), None);
    }

    #[test]
    fn removing_the_last_match_of_a_mask_frees_the_mask() {
        let mut space = TupleSpace::new();
        for len in 1..=MAX_MASKS as u8 {
            space.insert(&match_to(&format!("::/{len}")), len).unwrap();
        }
        assert_eq!(space.masks(Family::V6).count(), MAX_MASKS);
        let one_more = match_to("::/65");
        assert_eq!(
            space.insert(&one_more, 65),
            Err(ClassifierError::TooManyMasks { family: Family::V6 })
        );
        // A mask in use still has room.
        space.insert(&match_to("8000::/1"), 0).unwrap();
        assert_eq!(space.remove(&match_to("::/64")), Some(64));
        assert_eq!(space.remove(&match_to("::/64")), None);
        space.insert(&one_more, 65).unwrap();
        assert_eq!(
            space
                .masks(Family::V6)
                .next()
                .unwrap()
                .fields
                .destination_len,
            65
        );
        assert_eq!(space.masks(Family::V4).count(), 0);
    }
}
