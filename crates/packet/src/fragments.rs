//! The front door's rules for IP fragments.
//!
//! A later fragment has no ports. The door remembers the ports of the first fragment
//! ([`FragmentTable`](crate::fragment_table::FragmentTable)) and classifies the later fragments
//! with them. [`FragmentRules`] decides on a fragment whose ports are unknown.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::classifier::{Mask, MatchKey};
use crate::five_tuple::{FiveTuple, TCP, UDP};
use crate::match_rule::Match;
use crate::parse::{Flags, Headers, TCP_MIN_LEN, UDP_LEN, is_extension};
use crate::prefix::Family;

/// What the front door does with the fragments of a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FragmentHandling {
    /// Later fragments follow the first fragment into its chain. If the match names ports, the door
    /// drops a fragment whose first fragment it has not seen.
    #[default]
    Follow,
    /// The door drops all fragments that the match could take.
    Drop,
    /// Fragments match by addresses and protocol. A match with ports takes no fragment.
    Pass,
}

impl FragmentHandling {
    /// Returns whether this is the default.
    pub fn is_follow(&self) -> bool {
        *self == Self::Follow
    }
}

/// The datagram that a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramId {
    /// Source address in network order; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Destination address in the same layout.
    pub destination: [u8; 16],
    /// The identification; IPv4 has 16 bits.
    pub identification: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// Whether the addresses are IPv6.
    pub is_ipv6: bool,
}

/// The part of a datagram that a fragment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentPart {
    /// The start, with these ports: source and destination.
    First([u16; 2]),
    /// The start, too short for the UDP or TCP header.
    FirstWithoutPorts,
    /// Any other part.
    Later,
    /// A protocol without ports.
    NoPorts,
    /// IPv6 only: another extension header follows the fragment header, which hides the protocol.
    Hidden,
}

/// A fragment, as far as the front door reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The fragment's datagram.
    pub datagram: DatagramId,
    /// The fragment's place in the datagram.
    pub part: FragmentPart,
    /// Whether the fragment is the first one.
    pub is_first: bool,
}

impl Fragment {
    /// Reads a fragment. `None` if `headers` are not of a fragment, or not of this frame.
    pub fn read(frame: &[u8], headers: &Headers) -> Option<Self> {
        if !headers.flags.is_fragment() {
            return None;
        }
        let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
        let is_ipv6 = headers.flags.is_ipv6();
        let (mut source, mut destination) = ([0; 16], [0; 16]);
        let (identification, offset) = if is_ipv6 {
            source.copy_from_slice(frame.get(l3 + 8..l3 + 24)?);
            destination.copy_from_slice(frame.get(l3 + 24..l3 + 40)?);
            // The parser stops behind the fragment header.
            let header = frame.get(l4.checked_sub(8)?..l4)?;
            let identification = u32::from_be_bytes(header[4..8].try_into().ok()?);
            (
                identification,
                u16::from_be_bytes([header[2], header[3]]) & 0xfff8,
            )
        } else {
            source[..4].copy_from_slice(frame.get(l3 + 12..l3 + 16)?);
            destination[..4].copy_from_slice(frame.get(l3 + 16..l3 + 20)?);
            let header = frame.get(l3 + 4..l3 + 8)?;
            let identification = u16::from_be_bytes([header[0], header[1]]).into();
            (
                identification,
                u16::from_be_bytes([header[2], header[3]]) & 0x1fff,
            )
        };
        let part = if headers.protocol != UDP && headers.protocol != TCP {
            if is_ipv6 && is_extension(headers.protocol) {
                FragmentPart::Hidden
            } else {
                FragmentPart::NoPorts
            }
        } else if offset != 0 {
            FragmentPart::Later
        } else {
            first_part(frame, headers)
        };
        Some(Self {
            datagram: DatagramId {
                source,
                destination,
                identification,
                protocol: headers.protocol,
                is_ipv6,
            },
            part,
            is_first: offset == 0,
        })
    }

    /// Returns the headers of a first fragment as those of a whole packet, for UDP and TCP with
    /// ports. `None` for a later fragment, and for one too short for the UDP header or TCP's fixed
    /// part.
    pub fn headers_of_first(&self, headers: &Headers) -> Option<Headers> {
        let flags = headers.flags.without(Flags::FRAGMENT);
        let flags = match self.part {
            FragmentPart::First(_) => flags.with(Flags::PORTS),
            FragmentPart::NoPorts if self.is_first => flags,
            _ => return None,
        };
        Some(Headers { flags, ..*headers })
    }
}

/// Reads the ports of a first fragment, if it holds the whole UDP header or TCP's fixed part.
fn first_part(frame: &[u8], headers: &Headers) -> FragmentPart {
    let (l4, end) = (usize::from(headers.l4), usize::from(headers.end));
    let needed = if headers.protocol == TCP {
        TCP_MIN_LEN
    } else {
        UDP_LEN
    };
    match frame.get(l4..l4 + 4) {
        Some(&[a, b, c, d]) if l4 + needed <= end => {
            FragmentPart::First([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
        }
        _ => FragmentPart::FirstWithoutPorts,
    }
}

/// The matches with equal addresses and protocol.
#[derive(Clone, Copy, Debug, Default)]
struct MatchesByPorts {
    /// Matches that name a port and do not pass fragments.
    guarded: u32,
    /// Matches without ports.
    without_ports: u32,
}

/// A change of [`FragmentRules`] under one mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRule {
    /// A mask without ports.
    pub mask: Mask,
    /// A key under the mask.
    pub key: MatchKey,
    /// Whether fragments with unknown ports are dropped; `None` if no match has the key any more.
    pub guarded: Option<bool>,
}

/// The keys under one mask.
type KeyedMatches = HashMap<MatchKey, MatchesByPorts>;

/// The matches of a port by addresses and protocol, for fragments whose ports are unknown.
#[derive(Clone, Debug, Default)]
pub struct FragmentRules {
    /// By family, most specific mask first.
    tables: [Vec<(Mask, KeyedMatches)>; 2],
    /// Number of guarded matches, by family.
    guarded: [u32; 2],
}

impl FragmentRules {
    /// Adds a match. Returns the changed keys.
    pub fn insert(&mut self, rule: &Match) -> Vec<ChangedRule> {
        masks_without_ports(rule)
            .map(|mask| self.insert_under_mask(rule, mask))
            .collect()
    }

    /// Adds a match for one family.
    pub fn insert_under_mask(&mut self, rule: &Match, mask: Mask) -> ChangedRule {
        let (mask, key) = (mask.without_ports(), key_without_ports(rule));
        if rule.names_ports() && !is_guarded(rule) {
            return self.change(mask, key);
        }
        let tables = &mut self.tables[mask.family as usize];
        let found = tables.binary_search_by(|(held, _)| mask.fields.cmp(&held.fields));
        let at = found.unwrap_or_else(|at| {
            tables.insert(at, (mask, HashMap::new()));
            at
        });
        let matches = tables[at].1.entry(key).or_default();
        if is_guarded(rule) {
            matches.guarded += 1;
            self.guarded[mask.family as usize] += 1;
        } else {
            matches.without_ports += 1;
        }
        self.change(mask, key)
    }

    /// Removes a match that was added. Returns the changed keys.
    pub fn remove(&mut self, rule: &Match) -> Vec<ChangedRule> {
        masks_without_ports(rule)
            .map(|mask| self.remove_under_mask(rule, mask))
            .collect()
    }

    /// Removes a match for one family.
    pub fn remove_under_mask(&mut self, rule: &Match, mask: Mask) -> ChangedRule {
        let (mask, key) = (mask.without_ports(), key_without_ports(rule));
        let family = mask.family as usize;
        let tables = &mut self.tables[family];
        if let Some(at) = tables.iter().position(|(held, _)| *held == mask)
            && let Some(matches) = tables[at].1.get_mut(&key)
        {
            if is_guarded(rule) {
                matches.guarded = matches.guarded.saturating_sub(1);
                self.guarded[family] = self.guarded[family].saturating_sub(1);
            } else if !rule.names_ports() {
                matches.without_ports = matches.without_ports.saturating_sub(1);
            }
            if matches.guarded == 0 && matches.without_ports == 0 {
                tables[at].1.remove(&key);
            }
            if tables[at].1.is_empty() {
                tables.remove(at);
            }
        }
        self.change(mask, key)
    }

    fn change(&self, mask: Mask, key: MatchKey) -> ChangedRule {
        let table = self.tables[mask.family as usize]
            .iter()
            .find(|(held, _)| *held == mask);
        let matches = table.and_then(|(_, keys)| keys.get(&key));
        let guarded = matches.map(|matches| matches.guarded > 0);
        ChangedRule { mask, key, guarded }
    }

    /// Returns whether a match of the family drops fragments with unknown ports.
    pub fn is_guarded(&self, family: Family) -> bool {
        self.guarded[family as usize] > 0
    }

    /// Returns whether a fragment with unknown ports is dropped: whether a match that names ports
    /// is the most specific one that could take it.
    pub fn drops(&self, tuple: &FiveTuple) -> bool {
        let tables = &self.tables[Family::of(tuple.source) as usize];
        tables
            .iter()
            .find_map(|(mask, keys)| keys.get(&mask.apply(tuple)?))
            .is_some_and(|matches| matches.guarded > 0)
    }

    /// Returns the masks of a family, most specific first.
    pub fn masks(&self, family: Family) -> impl Iterator<Item = &Mask> {
        self.tables[family as usize].iter().map(|(mask, _)| mask)
    }
}

/// Whether fragments that the match could take need their ports.
fn is_guarded(rule: &Match) -> bool {
    rule.names_ports() && rule.fragments != FragmentHandling::Pass
}

fn key_without_ports(rule: &Match) -> MatchKey {
    MatchKey {
        source_port: 0,
        destination_port: 0,
        ..MatchKey::of(rule)
    }
}

fn masks_without_ports(rule: &Match) -> impl Iterator<Item = Mask> + use<> {
    let rule = Match {
        source_port: None,
        destination_port: None,
        ..*rule
    };
    rule.families()
        .filter_map(move |family| Mask::of(&rule, family))
}
