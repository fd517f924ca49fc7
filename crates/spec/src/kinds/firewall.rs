//! `firewall`.

use myelin_packet::FiveTuple;
use myelin_packet::five_tuple::{ICMPV6, UDP};
use myelin_packet::rules::{Action, MAX_RULES, Rule, first_match};

use super::prelude::*;
use crate::keys::list_file::ListOrFile;
use crate::keys::matching;

word_enum! {
    /// The action on fragments if a rule names a port: a fragment shows no ports.
    #[derive(Default)]
    pub enum FragmentPolicy {
        /// Drop them, so that fragmentation evades no rule.
        #[default]
        Drop = "drop",
        /// Match them without ports: rules with a port do not match them.
        Match = "match",
    }
}

const ACTION: ConfigKey = ConfigKey::new(ValueType::Choice(&["allow", "deny"]));
const RULES: ListOrFile = ListOrFile {
    keys: ["rules", "rulesFile"],
    expected: "a list of rules such as { action: deny, source: 192.0.2.0/24 }",
    file: "rules.yaml",
    max_elements: MAX_RULES,
    kind: "firewall",
    too_many_help: "merge adjacent prefixes or port ranges, or split the rules over two firewalls",
};
const RULES_FILE: ConfigKey = FILE.named(
    "rulesFile",
    "A YAML file with a list of further rules. They follow those of `rules`.",
);

config! {
    /// Configuration of a `firewall` function.
    pub struct FirewallConfig {
        /// The rules; the first match wins. An absent field matches every packet. At most 1024
        /// rules, with those of `rulesFile`.
        "rules" rules: Vec<Rule> = ConfigKey::new(ValueType::Rules(RULE_KEYS)).with_default("[]"), from read_rules, with RULES_FILE;
        /// The action on a packet that no rule matches.
        "default" default: Action = ACTION.with_default("allow");
        /// The action on fragments if a rule names a port: drop them, or match them without ports.
        "fragments" fragments: FragmentPolicy = FragmentPolicy::KEY.with_default("drop");
    }
}

keys! {
    /// Keys of a firewall rule.
    RULE_KEYS {
        /// The action on a packet that matches.
        "action" = ACTION.required();
        /// The source: an address or a prefix.
        "source" = TEXT;
        /// The destination: an address or a prefix.
        "destination" = TEXT;
        /// The protocol: udp, tcp, icmp, icmpv6, or an IP protocol number.
        "protocol" = TEXT;
        /// The source port, or a range of ports.
        "sourcePort" = ConfigKey::new(ValueType::Ports);
        /// The destination port, or a range of ports.
        "destinationPort" = ConfigKey::new(ValueType::Ports);
    }
}

/// Packets that hosts need to reach each other at all.
struct Needed {
    /// What the packets are for.
    purpose: &'static str,
    source: &'static str,
    destination: &'static str,
    protocol: u8,
    /// Source and destination port.
    ports: Option<(u16, u16)>,
    /// The rule that lets the packets pass.
    rule: &'static str,
}

const NEEDED: [Needed; 2] = [
    Needed {
        purpose: "neighbour discovery of IPv6",
        source: "fe80::1",
        destination: "ff02::1:ff00:2",
        protocol: ICMPV6,
        ports: None,
        rule: "{ action: allow, protocol: icmpv6 }",
    },
    Needed {
        purpose: "DHCP",
        source: "0.0.0.0",
        destination: "255.255.255.255",
        protocol: UDP,
        ports: Some((68, 67)),
        rule: "{ action: allow, protocol: udp, destinationPort: 67-68 }",
    },
];

impl FirewallConfig {
    /// The packets that hosts need and that `default: deny` drops, each with a warning.
    fn needed_drops(&self) -> Vec<(FiveTuple, String)> {
        if self.default == Action::Allow {
            return Vec::new();
        }
        let needed = NEEDED.iter().filter_map(|needed| {
            let packet = FiveTuple {
                source: needed.source.parse().ok()?,
                destination: needed.destination.parse().ok()?,
                protocol: needed.protocol,
                source_port: needed.ports.map(|(source, _)| source),
                destination_port: needed.ports.map(|(_, destination)| destination),
            };
            let Needed { purpose, rule, .. } = needed;
            let warning =
                format!("drops {purpose} by `default: deny`; this rule lets it pass: {rule}");
            let is_dropped = first_match(&self.rules, &packet).is_none();
            is_dropped.then_some((packet, warning))
        });
        needed.collect()
    }

    /// Whether the function drops all fragments: its policy says so, and a rule names a port.
    pub fn drops_fragments(&self) -> bool {
        self.fragments == FragmentPolicy::Drop && self.rules.iter().any(Rule::names_ports)
    }
}

/// `firewall`.
pub static FIREWALL: Kind = Kind {
    name: "firewall",
    class: Class::Basic,
    kernel: Some(Cost::new(15.0, 0.0)),
    user: Some(Cost::new(17.0, 0.0)),
    works_on: PacketParts::Header,
    takes_super_packets: true,
    user_takes_super_packets: true,
    fails_closed: true,
    config: FirewallConfig::KEYS,
    description: "Allows or denies packets by prefix, protocol and port. Its cost hardly depends on the \
                  number of rules. With `default: deny`, an ICMP error that no rule matches passes if a rule \
                  allows the flow of the packet that the error quotes.",
    example: "{ name: edge-filter, kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] } }",
    effect: |config| match config {
        FunctionConfig::Firewall(config) => Effect {
            needed_drops: config.needed_drops(),
            ..Effect::default()
        },
        _ => Effect::default(),
    },
    read: |fields| FunctionConfig::Firewall(FirewallConfig::from_fields(fields)),
    ..Kind::BASE
};

impl Readable for Action {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        field.read_word(&[("allow", Self::Allow), ("deny", Self::Deny)])
    }
}

fn read_rules(fields: &Fields<'_>) -> Vec<Rule> {
    RULES.read(fields, read_rule)
}

fn read_rule(field: &Field<'_>) -> Option<Rule> {
    let fields = field.mapping(RULE_KEYS)?;
    let action = fields
        .required("action", "allow or deny", "deny")
        .and_then(|field| Action::read(&field, &ACTION));
    let packets = matching::read_packets(&fields, |key| matching::read_ports(&fields, key));
    let [source_ports, destination_ports] = packets.ports;
    Some(Rule {
        action: action?,
        source: packets.source,
        destination: packets.destination,
        protocol: packets.protocol,
        source_ports,
        destination_ports,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_deny_names_the_needed_packets_that_no_rule_lets_pass() {
        let mut config = FirewallConfig {
            rules: vec![Rule {
                protocol: Some(ICMPV6),
                destination: Some("fd00::/64".parse().unwrap()),
                ..Rule::any(Action::Allow)
            }],
            default: Action::Deny,
            fragments: FragmentPolicy::Drop,
        };
        let purposes = |config: &FirewallConfig| config.needed_drops().len();
        assert_eq!(purposes(&config), 2);
        config.rules[0].destination = None;
        assert_eq!(purposes(&config), 1);
        config.default = Action::Allow;
        assert_eq!(purposes(&config), 0);
    }

    #[test]
    fn fragments_are_dropped_only_if_a_rule_names_a_port() {
        let mut config = FirewallConfig {
            rules: vec![Rule::any(Action::Deny)],
            default: Action::Allow,
            fragments: FragmentPolicy::Drop,
        };
        assert!(!config.drops_fragments());
        config.rules[0].source_ports = Some(1..=9);
        assert!(config.drops_fragments());
        config.fragments = FragmentPolicy::Match;
        assert!(!config.drops_fragments());
    }
}
