//! Rule lists compiled to flat tables.

use std::net::IpAddr;

use super::address::{Ipv4Table, Ipv6Table};
use super::numbers::NumberTable;
use super::vectors::ClassVector;
use super::{MAX_RULES, Rule, RulesError};
use crate::five_tuple::FiveTuple;
use crate::prefix::Prefix;

/// Aggregated bit vectors (Baboescu, Varghese: Scalable Packet Classification, SIGCOMM 2001).
///
/// Each field maps a packet's value to a class: a set of values that match the same rules. Each
/// class has a bit vector of these rules, with a summary of its nonzero words. A look-up intersects
/// the five summaries, then only the remaining words. The first bit set is the first matching rule.
/// The cost hardly depends on the number of rules.
///
/// All tables are plain arrays. The crate `kernel` copies them unchanged into array maps, so the
/// fields are public. Do not change the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleTables {
    /// Source address of IPv4 packets.
    pub source_v4: Ipv4Table,
    /// Destination address of IPv4 packets.
    pub destination_v4: Ipv4Table,
    /// Source address of IPv6 packets.
    pub source_v6: Ipv6Table,
    /// Destination address of IPv6 packets.
    pub destination_v6: Ipv6Table,
    /// IP protocol.
    pub protocol: NumberTable,
    /// Source port.
    pub source_port: NumberTable,
    /// Destination port.
    pub destination_port: NumberTable,
}

impl RuleTables {
    /// Compiles at most [`MAX_RULES`] rules.
    pub fn new(rules: &[Rule]) -> Result<Self, RulesError> {
        if rules.len() > MAX_RULES {
            return Err(RulesError::TooMany { count: rules.len() });
        }
        let sources: Vec<Option<Prefix>> = rules.iter().map(|rule| rule.source).collect();
        let destinations: Vec<Option<Prefix>> = rules.iter().map(|rule| rule.destination).collect();
        let protocols = rules.iter().map(|rule| {
            let protocol = rule.protocol.map(u16::from);
            protocol.map(|protocol| protocol..=protocol)
        });
        let source_ports = rules.iter().map(|rule| rule.source_ports.clone());
        let destination_ports = rules.iter().map(|rule| rule.destination_ports.clone());
        Ok(Self {
            source_v4: Ipv4Table::build(&sources),
            destination_v4: Ipv4Table::build(&destinations),
            source_v6: Ipv6Table::build(&sources),
            destination_v6: Ipv6Table::build(&destinations),
            protocol: NumberTable::build(u8::MAX.into(), protocols),
            source_port: NumberTable::build(u16::MAX, source_ports),
            destination_port: NumberTable::build(u16::MAX, destination_ports),
        })
    }

    /// Returns the index of the first rule that matches the packet, as in
    /// [`first_match`](super::first_match).
    #[inline]
    pub fn first_match(&self, tuple: &FiveTuple) -> Option<usize> {
        let (source, destination) = match (tuple.source, tuple.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (
                self.source_v4.find_vector(source),
                self.destination_v4.find_vector(destination),
            ),
            (IpAddr::V6(source), IpAddr::V6(destination)) => (
                self.source_v6.find_vector(source),
                self.destination_v6.find_vector(destination),
            ),
            // Both addresses of a packet are of one family.
            _ => return None,
        };
        find_first_common_bit([
            source,
            destination,
            self.protocol.find_vector(Some(tuple.protocol.into())),
            self.source_port.find_vector(tuple.source_port),
            self.destination_port.find_vector(tuple.destination_port),
        ])
    }
}

/// Returns the lowest bit set in all five vectors.
#[inline]
fn find_first_common_bit(vectors: [&ClassVector; 5]) -> Option<usize> {
    let mut candidates = vectors
        .iter()
        .fold(u64::MAX, |all, vector| all & vector.summary);
    while candidates != 0 {
        let word = candidates.trailing_zeros() as usize;
        let common = vectors
            .iter()
            .fold(u64::MAX, |all, vector| all & vector.words[word]);
        if common != 0 {
            return Some(word * 64 + common.trailing_zeros() as usize);
        }
        candidates &= candidates - 1;
    }
    None
}
