//! First-match rule lists of a firewall.
//!
//! [`first_match`] is the plain reference. [`RuleTables`] gives the same result in a time that
//! hardly depends on the number of rules.

mod address;
mod numbers;
mod tables;
mod vectors;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

pub use address::{BLOCK, Ipv4Table, Ipv6Table, MAX_INTERVALS};
pub use numbers::{NO_NUMBER, NumberTable};
pub use tables::RuleTables;
pub use vectors::{ClassVector, WORDS};

use crate::five_tuple::FiveTuple;
use crate::prefix::Prefix;

/// Most rules of one list.
pub const MAX_RULES: usize = 1024;

/// The action of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Forwards the packet.
    #[default]
    Allow,
    /// Drops the packet.
    Deny,
}

/// One rule. Every given field must match; `None` matches any packet.
///
/// A packet without ports (a fragment, or neither UDP nor TCP) does not match a rule with ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Action on a matching packet.
    pub action: Action,
    /// Source address.
    pub source: Option<Prefix>,
    /// Destination address.
    pub destination: Option<Prefix>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source ports. An empty range matches nothing.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Rule {
    /// Returns a rule that matches every packet.
    pub fn any(action: Action) -> Self {
        Self {
            action,
            source: None,
            destination: None,
            protocol: None,
            source_ports: None,
            destination_ports: None,
        }
    }

    /// Returns whether the rule matches a packet.
    pub fn matches(&self, tuple: &FiveTuple) -> bool {
        let port_fits = |range: &Option<RangeInclusive<u16>>, port: Option<u16>| {
            range
                .as_ref()
                .is_none_or(|range| port.is_some_and(|port| range.contains(&port)))
        };
        self.source
            .is_none_or(|prefix| prefix.contains(tuple.source))
            && self
                .destination
                .is_none_or(|prefix| prefix.contains(tuple.destination))
            && self
                .protocol
                .is_none_or(|protocol| protocol == tuple.protocol)
            && port_fits(&self.source_ports, tuple.source_port)
            && port_fits(&self.destination_ports, tuple.destination_port)
    }

    /// Returns whether the rule names source or destination ports.
    pub fn names_ports(&self) -> bool {
        self.source_ports.is_some() || self.destination_ports.is_some()
    }
}

/// Returns the index of the first rule that matches the packet.
pub fn first_match(rules: &[Rule], tuple: &FiveTuple) -> Option<usize> {
    rules.iter().position(|rule| rule.matches(tuple))
}

/// Why [`RuleTables::new`] refused a rule list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// More than [`MAX_RULES`] rules.
    #[error(
        "{count} rules are too many: at most {MAX_RULES}; merge neighbouring prefixes or port ranges, or split the list over two functions"
    )]
    TooMany {
        /// Number of rules.
        count: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(ports: Option<(u16, u16)>) -> FiveTuple {
        FiveTuple {
            source: [192, 0, 2, 1].into(),
            destination: [198, 51, 100, 2].into(),
            protocol: 17,
            source_port: ports.map(|p| p.0),
            destination_port: ports.map(|p| p.1),
        }
    }

    fn check_first_match(rules: &[Rule], tuple: &FiveTuple) -> Option<usize> {
        let index = first_match(rules, tuple);
        assert_eq!(RuleTables::new(rules).unwrap().first_match(tuple), index);
        index
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let any = Rule::any(Action::Allow);
        let rules = [
            Rule {
                source: Some("10.0.0.0/8".parse().unwrap()),
                ..any.clone()
            },
            Rule {
                destination_ports: Some(8000..=9000),
                ..any.clone()
            },
            any,
        ];
        assert_eq!(check_first_match(&rules, &tuple(Some((1, 9000)))), Some(1));
        assert_eq!(check_first_match(&rules, &tuple(Some((1, 9001)))), Some(2));
        assert_eq!(check_first_match(&rules, &tuple(None)), Some(2));
        assert_eq!(check_first_match(&rules[..2], &tuple(None)), None);
    }

    /// For each field, some rule of the first word matches, but no rule matches all fields.
    #[test]
    fn the_search_continues_after_a_false_positive_of_the_summary() {
        let ends = |source: &str, destination: &str| Rule {
            source: Some(source.parse().unwrap()),
            destination: Some(destination.parse().unwrap()),
            ..Rule::any(Action::Deny)
        };
        let mut rules = vec![ends("192.0.2.0/24", "203.0.113.0/24"); 32];
        rules.extend(vec![ends("203.0.113.0/24", "198.51.100.0/24"); 32]);
        assert_eq!(check_first_match(&rules, &tuple(None)), None);
        rules.push(Rule::any(Action::Allow));
        assert_eq!(check_first_match(&rules, &tuple(None)), Some(64));
    }

    #[test]
    fn an_empty_list_matches_nothing() {
        assert_eq!(check_first_match(&[], &tuple(Some((1, 2)))), None);
    }

    #[test]
    fn the_full_port_range_still_needs_a_port() {
        let rules = [Rule {
            source_ports: Some(0..=u16::MAX),
            ..Rule::any(Action::Deny)
        }];
        assert_eq!(check_first_match(&rules, &tuple(Some((0, 0)))), Some(0));
        assert_eq!(check_first_match(&rules, &tuple(None)), None);
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)] // the subject of the test
    fn an_empty_range_matches_nothing() {
        let rules = [Rule {
            source_ports: Some(9..=8),
            ..Rule::any(Action::Deny)
        }];
        assert_eq!(check_first_match(&rules, &tuple(Some((8, 8)))), None);
    }

    #[test]
    fn the_last_of_max_rules_is_found() {
        let mut rules: Vec<Rule> = (1..MAX_RULES as u32)
            .map(|i| Rule {
                source: Some(Prefix::host((i << 8).to_be_bytes().into())),
                ..Rule::any(Action::Deny)
            })
            .collect();
        rules.push(Rule::any(Action::Allow));
        assert_eq!(
            check_first_match(&rules, &tuple(Some((1, 2)))),
            Some(MAX_RULES - 1)
        );
        rules.push(Rule::any(Action::Allow));
        assert_eq!(
            RuleTables::new(&rules),
            Err(RulesError::TooMany { count: 1025 })
        );
    }

    #[test]
    fn json_round_trips() {
        let rule = Rule {
            destination_ports: Some(53..=53),
            protocol: Some(17),
            ..Rule::any(Action::Deny)
        };
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
    }
}
