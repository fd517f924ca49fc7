//! `firewall` against the plain list, on the shared list of frames.

mod common;

use myelin_functions::{Error, instantiate};
use myelin_packet::five_tuple::{TCP, UDP};
use myelin_packet::fixtures;
use myelin_packet::rules::{Action, MAX_RULES, Rule, RulesError, first_match};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig};

fn firewall(rules: &[Rule], default: Action, fragments: FragmentPolicy) -> FunctionConfig {
    FunctionConfig::Firewall(FirewallConfig {
        rules: rules.to_vec(),
        default,
        fragments,
    })
}

fn rule(action: Action, edit: impl FnOnce(&mut Rule)) -> Rule {
    let mut rule = Rule::any(action);
    edit(&mut rule);
    rule
}

/// Rules that tell the fixtures apart by each field.
fn rule_lists() -> Vec<Vec<Rule>> {
    use Action::{Allow, Deny};
    vec![
        vec![],
        vec![Rule::any(Deny)],
        vec![
            rule(Deny, |r| r.protocol = Some(UDP)),
            rule(Allow, |r| r.protocol = Some(TCP)),
            Rule::any(Deny),
        ],
        vec![rule(Deny, |r| r.destination_ports = Some(9_000..=9_000))],
        vec![
            rule(Allow, |r| r.source_ports = Some(1..=39_999)),
            rule(Deny, |r| r.source_ports = Some(30_000..=50_000)),
        ],
        vec![rule(Deny, |r| {
            r.source = Some("192.0.2.0/24".parse().unwrap());
        })],
        vec![
            rule(Allow, |r| {
                r.destination = Some("2001:db8:ffff::2".parse().unwrap());
            }),
            Rule::any(Deny),
        ],
        vec![
            rule(Allow, |r| {
                r.destination = Some("198.51.100.0/25".parse().unwrap());
                r.protocol = Some(UDP);
                r.destination_ports = Some(8_000..=9_999);
            }),
            rule(Deny, |r| {
                r.destination = Some("198.51.100.0/24".parse().unwrap());
            }),
        ],
    ]
}

#[test]
fn every_fixture_is_judged_as_the_plain_list_says() {
    for rules in rule_lists() {
        let names_ports = rules.iter().any(Rule::names_ports);
        for default in [Action::Allow, Action::Deny] {
            for fragments in [FragmentPolicy::Drop, FragmentPolicy::Match] {
                let mut function = common::function(&firewall(&rules, default, fragments));
                for fixture in fixtures::all() {
                    let Ok(headers) = fixture.expected else {
                        continue;
                    };
                    let unseen = headers.flags.is_fragment()
                        && names_ports
                        && fragments == FragmentPolicy::Drop;
                    let tuple = fixture.five_tuple().unwrap();
                    let action =
                        first_match(&rules, &tuple).map_or(default, |index| rules[index].action);
                    let expected =
                        (action == Action::Allow && !unseen).then(|| fixture.frame.clone());
                    let out = common::run(&mut *function, &fixture.frame);
                    assert_eq!(
                        out, expected,
                        "{}: {rules:?}, {default:?}, {fragments:?}",
                        fixture.name
                    );
                }
            }
        }
    }
}

#[test]
fn a_port_rule_cannot_be_evaded_by_fragmenting_unless_asked_for() {
    let rules = [rule(Action::Deny, |r| {
        r.destination_ports = Some(9_000..=9_000);
    })];
    for name in [
        "ipv4-fragment-first",
        "ipv4-fragment-last",
        "ipv6-fragment-first",
        "ipv6-fragment-middle",
    ] {
        let frame = fixtures::named(name).frame;
        let run = |policy| {
            common::run(
                &mut *common::function(&firewall(&rules, Action::Allow, policy)),
                &frame,
            )
        };
        assert_eq!(run(FragmentPolicy::Drop), None, "{name}");
        assert_eq!(run(FragmentPolicy::Match), Some(frame.clone()), "{name}");
    }
}

#[test]
fn fragments_pass_where_no_rule_needs_a_port() {
    let rules = [rule(Action::Deny, |r| r.protocol = Some(TCP))];
    let frame = fixtures::named("ipv4-fragment-first").frame;
    let config = firewall(&rules, Action::Allow, FragmentPolicy::Drop);
    assert_eq!(
        common::run(&mut *common::function(&config), &frame),
        Some(frame)
    );
}

#[test]
fn too_many_rules_are_an_error() {
    let rules = vec![Rule::any(Action::Deny); MAX_RULES + 1];
    let result = instantiate(&firewall(&rules, Action::Allow, FragmentPolicy::Drop));
    let error = result.err().expect("too many rules");
    assert_eq!(error, Error::Firewall(RulesError::TooMany { count: 1025 }));
    assert!(
        error
            .to_string()
            .starts_with("firewall: 1025 rules are too many: at most 1024")
    );
}
