//! Reads the configuration of a `firewall`.

use myelin_packet::rules::{Action, MAX_RULES, Rule};

use super::field::{Field, Fields};
use super::list_file::{self, Described};
use super::matching;
use crate::catalogue::RULE_KEYS;
use crate::error::{Fault, Report};
use crate::files::FileResolver;
use crate::function::{FirewallConfig, FragmentPolicy};

const ACTIONS: &[(&str, Action)] = &[("allow", Action::Allow), ("deny", Action::Deny)];
const RULES: &str = "a list of rules such as { action: deny, source: 192.0.2.0/24 }";
const RULES_FILE: Described = Described {
    list: RULES,
    file: "rules.yaml",
    one_list: "put all rules into one list",
};

pub(super) fn read(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> FirewallConfig {
    let listed = fields.get("rules");
    let filed = fields.get("rulesFile");
    let mut rules = listed
        .as_ref()
        .map_or_else(Vec::new, |field| rule_list(field, report));
    if let Some(field) = &filed {
        rules.extend(list_file::read(
            field,
            files,
            report,
            &RULES_FILE,
            rule_list,
        ));
    }
    if let Some(field) = filed.or(listed).filter(|_| rules.len() > MAX_RULES) {
        let fault = Fault::new(
            format!("{} rules", rules.len()),
            format!("at most {MAX_RULES} rules in one firewall"),
            "merge neighbouring prefixes or port ranges, or split the rules over two firewalls",
        );
        field.fault(report, fault);
    }
    FirewallConfig {
        rules,
        default: fields
            .get("default")
            .and_then(|field| field.word(report, ACTIONS))
            .unwrap_or(Action::Allow),
        fragments: fields
            .get("fragments")
            .and_then(|field| field.word(report, FragmentPolicy::WORDS))
            .unwrap_or_default(),
    }
}

fn rule_list(field: &Field<'_>, report: &mut Report<'_>) -> Vec<Rule> {
    let items = field.list(report, RULES).unwrap_or_default();
    items.iter().filter_map(|item| rule(item, report)).collect()
}

fn rule(field: &Field<'_>, report: &mut Report<'_>) -> Option<Rule> {
    let fields = field.map(report, RULE_KEYS)?;
    let action = fields
        .required(report, "action", "allow or deny", "deny")
        .and_then(|field| field.word(report, ACTIONS));
    let source = matching::prefix(&fields, "source", report);
    let destination = matching::prefix(&fields, "destination", report);
    let protocol = matching::protocol(&fields, report);
    let source_ports = matching::ports(&fields, "sourcePort", report);
    let destination_ports = matching::ports(&fields, "destinationPort", report);
    let names_ports = source_ports.is_some() || destination_ports.is_some();
    matching::check(&fields, source, destination, protocol, names_ports, report);
    Some(Rule {
        action: action?,
        source,
        destination,
        protocol,
        source_ports,
        destination_ports,
    })
}
