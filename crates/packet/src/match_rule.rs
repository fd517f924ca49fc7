//! The traffic that a chain matches.

use serde::{Deserialize, Serialize};

use crate::five_tuple::FiveTuple;
use crate::fragments::FragmentHandling;
use crate::prefix::{Family, Prefix};

/// The packets of a chain. Every given field must match; `None` matches any packet.
///
/// A packet without ports (a fragment, or neither UDP nor TCP) does not match a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Match {
    /// Source address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Prefix>,
    /// Destination address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<Prefix>,
    /// IP protocol number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// Source port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// Destination port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// What the front door does with fragments. It is no part of the packets that match.
    #[serde(skip_serializing_if = "FragmentHandling::is_follow")]
    pub fragments: FragmentHandling,
}

/// Specificity of a match; the greater wins. The order compares destination, source, protocol,
/// destination port, source port. A prefix of length 0 is as unspecific as no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Specificity {
    /// Length of the destination prefix, bits.
    pub destination_len: u8,
    /// Length of the source prefix, bits.
    pub source_len: u8,
    /// Whether the match has a protocol.
    pub protocol: bool,
    /// Whether the match has a destination port.
    pub destination_port: bool,
    /// Whether the match has a source port.
    pub source_port: bool,
}

impl Match {
    /// Returns whether the match contains a packet.
    pub fn matches(&self, tuple: &FiveTuple) -> bool {
        self.source
            .is_none_or(|prefix| prefix.contains(tuple.source))
            && self
                .destination
                .is_none_or(|prefix| prefix.contains(tuple.destination))
            && self
                .protocol
                .is_none_or(|protocol| protocol == tuple.protocol)
            && self
                .source_port
                .is_none_or(|port| Some(port) == tuple.source_port)
            && self
                .destination_port
                .is_none_or(|port| Some(port) == tuple.destination_port)
    }

    /// Returns whether the match names a port.
    pub fn names_ports(&self) -> bool {
        self.source_port.is_some() || self.destination_port.is_some()
    }

    /// Returns whether both rules match the same packets in the same words: whether they differ in
    /// `fragments` at most.
    pub fn has_same_fields(&self, other: &Self) -> bool {
        let fragments = self.fragments;
        *self
            == Self {
                fragments,
                ..*other
            }
    }

    /// Returns the specificity of the match.
    pub fn specificity(&self) -> Specificity {
        Specificity {
            destination_len: self.destination.map_or(0, |prefix| prefix.len()),
            source_len: self.source.map_or(0, |prefix| prefix.len()),
            protocol: self.protocol.is_some(),
            destination_port: self.destination_port.is_some(),
            source_port: self.source_port.is_some(),
        }
    }

    /// Returns the families of matching packets: both families without a prefix, no family if the
    /// prefixes are of different families.
    pub fn families(&self) -> impl Iterator<Item = Family> + use<> {
        let (source, destination) = (
            self.source.map(|p| p.family()),
            self.destination.map(|p| p.family()),
        );
        [Family::V4, Family::V6].into_iter().filter(move |&family| {
            source.is_none_or(|s| s == family) && destination.is_none_or(|d| d == family)
        })
    }

    /// Returns whether some packet matches both rules and neither rule is more specific. The chain
    /// of such a packet is undefined.
    pub fn ties_with(&self, other: &Self) -> bool {
        let overlap = |a: Option<Prefix>, b: Option<Prefix>| match (a, b) {
            (Some(a), Some(b)) => a.covers(&b) || b.covers(&a),
            _ => true,
        };
        // With equal specificity, both rules have each of the other fields, or neither has it.
        self.specificity() == other.specificity()
            && self
                .families()
                .any(|family| other.families().any(|theirs| theirs == family))
            && overlap(self.source, other.source)
            && overlap(self.destination, other.destination)
            && self.protocol == other.protocol
            && self.source_port == other.source_port
            && self.destination_port == other.destination_port
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::five_tuple::{TCP, UDP};

    const ANY: Match = Match {
        source: None,
        destination: None,
        protocol: None,
        source_port: None,
        destination_port: None,
        fragments: FragmentHandling::Follow,
    };

    #[allow(clippy::unnecessary_wraps)] // the fields of a match are options
    fn prefix(text: &str) -> Option<Prefix> {
        Some(text.parse().unwrap())
    }

    fn tuple(protocol: u8, ports: Option<(u16, u16)>) -> FiveTuple {
        FiveTuple {
            source: [192, 0, 2, 1].into(),
            destination: [198, 51, 100, 2].into(),
            protocol,
            source_port: ports.map(|p| p.0),
            destination_port: ports.map(|p| p.1),
        }
    }

    #[test]
    fn each_field_must_match() {
        let udp = tuple(UDP, Some((40_000, 9_000)));
        assert!(ANY.matches(&udp));
        for (rule, fits) in [
            (
                Match {
                    source: prefix("192.0.2.0/24"),
                    ..ANY
                },
                true,
            ),
            (
                Match {
                    source: prefix("192.0.3.0/24"),
                    ..ANY
                },
                false,
            ),
            (
                Match {
                    destination: prefix("198.51.100.2"),
                    ..ANY
                },
                true,
            ),
            (
                Match {
                    destination: prefix("::/0"),
                    ..ANY
                },
                false,
            ),
            (
                Match {
                    protocol: Some(UDP),
                    ..ANY
                },
                true,
            ),
            (
                Match {
                    protocol: Some(TCP),
                    ..ANY
                },
                false,
            ),
            (
                Match {
                    source_port: Some(40_000),
                    ..ANY
                },
                true,
            ),
            (
                Match {
                    source_port: Some(9_000),
                    ..ANY
                },
                false,
            ),
            (
                Match {
                    destination_port: Some(9_000),
                    ..ANY
                },
                true,
            ),
            (
                Match {
                    destination_port: Some(40_000),
                    ..ANY
                },
                false,
            ),
        ] {
            assert_eq!(rule.matches(&udp), fits, "{rule:?}");
        }
    }

    #[test]
    fn a_packet_without_ports_matches_no_port() {
        let fragment = tuple(UDP, None);
        assert!(
            !Match {
                destination_port: Some(0),
                ..ANY
            }
            .matches(&fragment)
        );
        assert!(
            Match {
                protocol: Some(UDP),
                ..ANY
            }
            .matches(&fragment)
        );
    }

    #[test]
    fn specificity_compares_fields_in_order() {
        let ordered = [
            ANY,
            Match {
                source_port: Some(1),
                ..ANY
            },
            Match {
                destination_port: Some(1),
                ..ANY
            },
            Match {
                destination_port: Some(1),
                source_port: Some(1),
                ..ANY
            },
            Match {
                protocol: Some(UDP),
                ..ANY
            },
            Match {
                protocol: Some(UDP),
                source_port: Some(1),
                destination_port: Some(1),
                ..ANY
            },
            Match {
                source: prefix("10.0.0.0/8"),
                ..ANY
            },
            Match {
                source: prefix("10.0.0.0/9"),
                ..ANY
            },
            Match {
                destination: prefix("10.0.0.0/8"),
                ..ANY
            },
            Match {
                destination: prefix("10.0.0.0/8"),
                source: prefix("10.0.0.0/8"),
                ..ANY
            },
            Match {
                destination: prefix("10.0.0.0/9"),
                ..ANY
            },
        ];
        for pair in ordered.windows(2) {
            assert!(pair[0].specificity() < pair[1].specificity(), "{pair:?}");
        }
    }

    #[test]
    fn prefixes_determine_the_families() {
        let families = |rule: Match| rule.families().collect::<Vec<_>>();
        assert_eq!(families(ANY), [Family::V4, Family::V6]);
        assert_eq!(
            families(Match {
                source: prefix("::/0"),
                ..ANY
            }),
            [Family::V6]
        );
        assert_eq!(
            families(Match {
                destination: prefix("10.0.0.0/8"),
                ..ANY
            }),
            [Family::V4]
        );
        assert_eq!(
            families(Match {
                source: prefix("::/0"),
                destination: prefix("10.0.0.0/8"),
                ..ANY
            }),
            []
        );
    }

    #[test]
    fn ties_need_equal_specificity_and_a_common_packet() {
        let a = Match {
            destination: prefix("10.0.0.0/24"),
            ..ANY
        };
        assert!(a.ties_with(&a));
        assert!(!a.ties_with(&Match {
            destination: prefix("10.0.1.0/24"),
            ..ANY
        }));
        assert!(!a.ties_with(&Match {
            protocol: Some(UDP),
            ..a
        }));
        assert!(
            !Match {
                protocol: Some(TCP),
                ..a
            }
            .ties_with(&Match {
                protocol: Some(UDP),
                ..a
            })
        );
        // A prefix of length 0 is as unspecific as no prefix.
        assert!(ANY.ties_with(&Match {
            destination: prefix("0.0.0.0/0"),
            ..ANY
        }));
        assert!(
            !Match {
                source: prefix("::/0"),
                ..ANY
            }
            .ties_with(&Match {
                source: prefix("0.0.0.0/0"),
                ..ANY
            })
        );
    }

    #[test]
    fn json_omits_empty_fields() {
        let rule = Match {
            destination: prefix("10.0.0.0/24"),
            destination_port: Some(53),
            ..ANY
        };
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(
            json,
            r#"{"destination":"10.0.0.0/24","destinationPort":53}"#
        );
        assert_eq!(serde_json::from_str::<Match>(&json).unwrap(), rule);
        assert!(serde_json::from_str::<Match>(r#"{"destinationport":53}"#).is_err());
    }
}
