//! `firewall`.

use myelin_packet::rules::{Action, MAX_RULES, Rule};

use super::prelude::*;
use crate::keys::list_file::Listed;
use crate::keys::matching;

word_enum! {
    /// What a firewall does with fragments when one of its rules names a port, which a fragment does not show.
    #[derive(Default)]
    pub enum FragmentPolicy {
        /// Drop them: a port rule cannot be evaded by fragmenting.
        #[default]
        Drop = "drop",
        /// Match them without ports: a rule that names a port does not fit them.
        Match = "match",
    }
}

const ACTION: ConfigKey = ConfigKey::new(ValueType::Choice(&["allow", "deny"]));
const RULES: Listed = Listed {
    keys: ["rules", "rulesFile"],
    expected: "a list of rules such as { action: deny, source: 192.0.2.0/24 }",
    file: "rules.yaml",
    most: MAX_RULES,
    of: "firewall",
    too_many: "merge neighbouring prefixes or port ranges, or split the rules over two firewalls",
};
const RULES_FILE: ConfigKey = FILE.named(
    "rulesFile",
    "a YAML file with a list of further rules, which come after those of `rules`",
);

config! {
    /// Configuration of a `firewall` function.
    pub struct FirewallConfig {
        /// rules, first match wins: { action: allow|deny, source: PREFIX, destination: PREFIX, protocol:
        /// udp|tcp|icmp|icmpv6|NUMBER, sourcePort: PORT|"FROM-TO", destinationPort: PORT|"FROM-TO" }; a field left out
        /// fits every packet; at most 1024 with those of rulesFile
        "rules" rules: Vec<Rule> = ConfigKey::new(ValueType::Rules(RULE_KEYS)).or("[]"), from rules, with RULES_FILE;
        /// what happens to a packet that no rule matches
        "default" default: Action = ACTION.or("allow");
        /// fragments show no ports: when a rule names one, drop them, or match them as packets without ports
        "fragments" fragments: FragmentPolicy = FragmentPolicy::KEY.or("drop");
    }
}

keys! {
    /// Keys of a firewall rule.
    RULE_KEYS {
        /// what happens to a packet that fits
        "action" = ACTION.required();
        /// source address or prefix
        "source" = TEXT;
        /// destination address or prefix
        "destination" = TEXT;
        /// udp, tcp, icmp, icmpv6, or the number of a protocol
        "protocol" = TEXT;
        /// source port, or a range of them: "FROM-TO"
        "sourcePort" = ConfigKey::new(ValueType::Ports);
        /// destination port, or a range of them
        "destinationPort" = ConfigKey::new(ValueType::Ports);
    }
}

impl FirewallConfig {
    /// Whether fragments are dropped unseen: the policy says so and some rule needs a port.
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
    touches: Touches::Header,
    guards: true,
    config: FirewallConfig::KEYS,
    description: "Lets packets pass or drops them by prefix, protocol and port; the cost hardly depends on the number of rules.",
    example: "{ name: edge-filter, kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] } }",
    read: |fields| FunctionConfig::Firewall(FirewallConfig::of(fields)),
    ..Kind::BASE
};

impl Readable for Action {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        field.word(&[("allow", Self::Allow), ("deny", Self::Deny)])
    }
}

fn rules(fields: &Fields<'_>) -> Vec<Rule> {
    RULES.read(fields, rule)
}

fn rule(field: &Field<'_>) -> Option<Rule> {
    let fields = field.map(RULE_KEYS)?;
    let action = fields
        .required("action", "allow or deny", "deny")
        .and_then(|field| Action::read(&field, &ACTION));
    let packets = matching::packets(&fields, |key| matching::ports(&fields, key));
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
    fn fragments_matter_only_where_a_rule_names_a_port() {
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
