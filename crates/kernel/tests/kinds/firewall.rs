//! Compares `firewall` with a linear search of its rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use myelin_functions::{Error, instantiate};
use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::fixtures::{self, build};
use myelin_packet::rules::{Action, MAX_RULES, Rule, RulesError, first_match};
use myelin_packet::{IcmpQuote, Prefix, parse};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig};
use proptest::prelude::*;

use crate::space::{Chains, Spaces, for_all, on_fixtures};

fn firewall(rules: &[Rule], default: Action, fragments: FragmentPolicy) -> FirewallConfig {
    FirewallConfig {
        rules: rules.to_vec(),
        default,
        fragments,
    }
}

fn load(spaces: &Spaces, config: &FirewallConfig) -> Chains {
    spaces.load(&[FunctionConfig::Firewall(config.clone())])
}

/// Returns whether the reference passes the frame.
fn reference(config: &FirewallConfig, frame: &[u8]) -> bool {
    let headers = parse(frame).unwrap();
    let names_ports = config.rules.iter().any(Rule::names_ports);
    let tuple = headers.try_five_tuple(frame).unwrap();
    // A rule may allow the flow of the packet that an ICMP error quotes.
    let quoted = || IcmpQuote::find(frame, &headers)?.five_tuple(frame);
    let allows_quoted = || {
        let rule = first_match(&config.rules, &quoted()?.reversed())?;
        Some(config.rules[rule].action)
    };
    let action = match first_match(&config.rules, &tuple) {
        _ if headers.flags.is_fragment()
            && names_ports
            && config.fragments == FragmentPolicy::Drop =>
        {
            Action::Deny
        }
        Some(index) => config.rules[index].action,
        None if config.default == Action::Deny => allows_quoted().unwrap_or(Action::Deny),
        None => Action::Allow,
    };
    action == Action::Allow
}

#[track_caller]
fn assert_verdict(chains: &Chains, config: &FirewallConfig, frame: &[u8], case: &str) {
    let expected = reference(config, frame).then_some(frame);
    chains.expect(frame, expected, case);
}

fn rule(action: Action, edit: impl FnOnce(&mut Rule)) -> Rule {
    let mut rule = Rule::any(action);
    edit(&mut rule);
    rule
}

/// Returns rules that separate the fixtures by each field.
fn rule_lists() -> Vec<Vec<Rule>> {
    use Action::{Allow, Deny};
    let prefix = |text: &str| Some(text.parse().unwrap());
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
        vec![rule(Deny, |r| r.source = prefix("192.0.2.0/24"))],
        vec![
            rule(Allow, |r| r.destination = prefix("2001:db8:ffff::2")),
            Rule::any(Deny),
        ],
        vec![
            rule(Allow, |r| {
                r.destination = prefix("198.51.100.0/25");
                r.protocol = Some(UDP);
                r.destination_ports = Some(8_000..=9_999);
            }),
            rule(Deny, |r| r.destination = prefix("198.51.100.0/24")),
        ],
        vec![
            rule(Deny, |r| r.protocol = Some(ICMP)),
            rule(Allow, |r| r.destination_ports = Some(8_999..=9_001)),
            rule(Allow, |r| r.source = Some(build::client_v6().ip().into())),
        ],
    ]
}

#[test]
fn every_fixture_gets_the_verdict_of_the_linear_search() {
    on_fixtures(|spaces, fixtures| {
        let [allow, deny] = [Action::Allow, Action::Deny];
        let [drops, matches] = [FragmentPolicy::Drop, FragmentPolicy::Match];
        let all = [
            (allow, drops),
            (deny, matches),
            (allow, matches),
            (deny, drops),
        ];
        // Loading so many firewalls takes the kernel a long time.
        let count = if spaces.are_user_only() { 4 } else { 2 };
        for rules in rule_lists() {
            for &(default, fragments) in &all[..count] {
                let config = firewall(&rules, default, fragments);
                let chains = load(spaces, &config);
                for fixture in fixtures {
                    let case = format!("{}: {config:?}", fixture.name);
                    assert_verdict(&chains, &config, &fixture.frame, &case);
                }
            }
        }
    });
}

#[test]
fn fragments_evade_a_port_rule_only_with_fragments_match() {
    let rules = [rule(Action::Deny, |r| {
        r.destination_ports = Some(9_000..=9_000);
    })];
    let [drops, matches] = [FragmentPolicy::Drop, FragmentPolicy::Match]
        .map(|policy| load(&Spaces::all(), &firewall(&rules, Action::Allow, policy)));
    for name in [
        "ipv4-fragment-first",
        "ipv4-fragment-last",
        "ipv6-fragment-first",
        "ipv6-fragment-middle",
    ] {
        let frame = fixtures::named(name).frame;
        drops.expect(&frame, None, name);
        matches.expect(&frame, Some(&frame), name);
    }
}

/// With `default: deny`, an error passes if a rule allows its flow, and no rule matches the error
/// itself.
#[test]
fn errors_pass_with_the_flow_that_a_rule_allows() {
    use Action::{Allow, Deny};
    let spaces = Spaces::all();
    for (client, server, kinds) in [
        (build::client_v4(), build::server_v4(), [3, 4, 11, 12]),
        (build::client_v6(), build::server_v6(), [1, 2, 3, 4]),
    ] {
        let flow = rule(Allow, |r| {
            r.destination = Some(server.ip().into());
            r.protocol = Some(UDP);
            r.destination_ports = Some(9_000..=9_000);
        });
        let denies = rule(Deny, |r| {
            r.protocol = Some(if client.is_ipv4() { ICMP } else { ICMPV6 });
        });
        let allows = firewall(std::slice::from_ref(&flow), Deny, FragmentPolicy::Drop);
        let explicit = firewall(&[denies, flow], Deny, FragmentPolicy::Drop);
        let allowing = load(&spaces, &allows);
        let answer = build::udp(server, client, b"answer");
        for kind in kinds {
            let error = build::icmp_error(client.ip(), server.ip(), kind, (&answer, 1000));
            allowing.expect(&error, Some(&error), "an error about an answer of the flow");
        }
        let kind = kinds[1];
        let error = build::icmp_error(client.ip(), server.ip(), kind, (&answer, 1000));
        load(&spaces, &explicit).expect(&error, None, "a rule that denies the error itself");
        let request = build::udp(client, server, b"request");
        let back = build::icmp_error(server.ip(), client.ip(), kind, (&request, 1000));
        allowing.expect(&back, None, "an error in the direction that no rule allows");
        let other = build::udp(SocketAddr::new(server.ip(), 9_001), client, b"");
        let other = build::icmp_error(client.ip(), server.ip(), kind, (&other, 1000));
        allowing.expect(&other, None, "an error about another flow");
        let elsewhere = build::icmp_error(client.ip(), client.ip(), kind, (&answer, 1000));
        allowing.expect(&elsewhere, None, "an error that goes elsewhere");
        let redirect = if client.is_ipv4() { 5 } else { 137 };
        let redirect = build::icmp_error(client.ip(), server.ip(), redirect, (&answer, 1000));
        allowing.expect(&redirect, None, "a redirect is no error");
    }
}

#[test]
fn fragments_pass_if_no_rule_needs_a_port() {
    let rules = [rule(Action::Deny, |r| r.protocol = Some(TCP))];
    let frame = fixtures::named("ipv4-fragment-first").frame;
    let config = firewall(&rules, Action::Allow, FragmentPolicy::Drop);
    load(&Spaces::all(), &config).expect(&frame, Some(&frame), "a fragment of UDP");
}

#[test]
fn too_many_rules_are_an_error() {
    let rules = vec![Rule::any(Action::Deny); MAX_RULES + 1];
    let config = firewall(&rules, Action::Allow, FragmentPolicy::Drop);
    let error = instantiate(&FunctionConfig::Firewall(config)).err();
    let error = error.expect("the firewall must refuse too many rules");
    assert_eq!(error, Error::Firewall(RulesError::TooMany { count: 1025 }));
    let message = error.to_string();
    assert!(message.starts_with("firewall: 1025 rules are too many: at most 1024"));
}

/// Returns one of few addresses, so random packets match rules.
fn address(number: u8, v6: bool) -> IpAddr {
    let (net, host) = (number / 3, number % 3);
    if v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, net.into(), 0, 0, 0, host.into()).into()
    } else {
        Ipv4Addr::new(10, 0, net, host).into()
    }
}

fn random_rule() -> impl Strategy<Value = Rule> {
    let prefix = |v6, lens: &[u8]| {
        (0_u8..6, prop::sample::select(lens.to_vec()))
            .prop_map(move |(number, len)| Prefix::new(address(number, v6), len).unwrap())
    };
    let prefix = move || {
        let v4 = prefix(false, &[0, 8, 16, 17, 23, 24, 30, 32]);
        let v6 = prefix(true, &[0, 16, 32, 63, 64, 65, 127, 128]);
        prop::option::of(prop_oneof![2 => v4, 1 => v6])
    };
    let ports =
        || prop::option::of((0_u16..12, 0_u16..4).prop_map(|(from, more)| from..=from + more));
    let protocol = prop::option::of(prop::sample::select(vec![1_u8, 6, 17, 58, 132]));
    let action = prop::sample::select(vec![Action::Allow, Action::Deny]);
    (action, prefix(), prefix(), protocol, ports(), ports()).prop_map(
        |(action, source, destination, protocol, source_ports, destination_ports)| Rule {
            action,
            source,
            destination,
            protocol,
            source_ports,
            destination_ports,
        },
    )
}

fn random_config() -> impl Strategy<Value = FirewallConfig> {
    let action = prop::sample::select(vec![Action::Allow, Action::Deny]);
    let fragments = prop::sample::select(vec![FragmentPolicy::Drop, FragmentPolicy::Match]);
    let rules = prop_oneof![
        prop::collection::vec(random_rule(), 0..8),
        prop::collection::vec(random_rule(), 100..300)
    ];
    (rules, action, fragments)
        .prop_map(|(rules, default, fragments)| firewall(&rules, default, fragments))
}

fn random_frame() -> impl Strategy<Value = Vec<u8>> {
    let ends = (0_u8..7, 0_u8..7, 0_u16..14, 0_u16..14);
    (ends, any::<bool>(), 0..9).prop_map(|((from, to, from_port, to_port), v6, kind)| {
        let (from, to) = (address(from, v6), address(to, v6));
        let (source, destination) = ((from, from_port).into(), (to, to_port).into());
        let udp = build::udp(source, destination, b"udp");
        match kind {
            0 => build::echo_request(from, to, &[1, 2, 3]),
            1 => build::tcp(source, destination, b"tcp"),
            2 => build::ip(from, to, 132, &[0; 12]),
            3 if v6 => {
                let headers = [build::options_header(60, 1), build::authentication_header()];
                build::with_extensions(udp, &headers)
            }
            4 if v6 => {
                let headers = [build::options_header(0, 2), build::fragment_header(3, true)];
                build::with_extensions(udp, &headers)
            }
            5 => {
                let about = build::tcp(source, destination, b"tcp");
                build::icmp_error(to, from, 3, (&about, 1000))
            }
            6 => build::icmp_error(to, from, 4, (&udp, 48)),
            7 => build::icmp_error(address(5, v6), from, 3, (&udp, 1000)),
            _ => udp,
        }
    })
}

#[test]
fn random_packets_get_the_verdict_of_the_linear_search() {
    compare_with_the_linear_search(15);
}

#[test]
#[ignore = "thorough: checks 120 random cases"]
fn many_random_packets_get_the_verdict_of_the_linear_search() {
    compare_with_the_linear_search(60);
}

fn compare_with_the_linear_search(cases: u32) {
    let case = (random_config(), prop::collection::vec(random_frame(), 40));
    for_all(cases, cases, &case, |spaces, (config, frames)| {
        let chains = load(spaces, &config);
        for frame in &frames {
            assert_verdict(&chains, &config, frame, "random rules");
        }
    });
}

/// Tests the largest tables: each rule has its own interval in both families, and each end of an
/// interval its own block.
#[test]
fn the_largest_rule_list_matches_the_linear_search() {
    let prefix = |address: IpAddr, len| Some(Prefix::new(address, len).unwrap());
    let rule = |i: u32| {
        let v4 = 0x0a00_0001 + (i << 16);
        let v6 = u128::from(i) << 64 | 0x2001_0db8 << 96;
        let (source, destination) = if i.is_multiple_of(2) {
            let (low, high) = (Ipv4Addr::from(v4), Ipv4Addr::from(!v4));
            (prefix(low.into(), 32), prefix(high.into(), 31))
        } else {
            let (low, high) = (Ipv6Addr::from(v6), Ipv6Addr::from(!v6));
            (prefix(low.into(), 64), prefix(high.into(), 127))
        };
        let is_allowed = i.is_multiple_of(3);
        Rule {
            source,
            destination,
            source_ports: Some(i as u16 * 60..=i as u16 * 60 + 90),
            ..Rule::any(if is_allowed {
                Action::Allow
            } else {
                Action::Deny
            })
        }
    };
    let rules: Vec<Rule> = (0..MAX_RULES as u32).map(rule).collect();
    let config = firewall(&rules, Action::Deny, FragmentPolicy::Match);
    let chains = load(&Spaces::all(), &config);
    for rule in rules.iter().step_by(13) {
        let [source, destination] =
            [&rule.source, &rule.destination].map(|prefix| prefix.unwrap().addr());
        let first = *rule.source_ports.as_ref().unwrap().start();
        for port in [0, 90, 91, 30_000, 61_000].map(|offset| first.wrapping_add(offset)) {
            let frame = build::udp((source, port).into(), (destination, 1).into(), b"");
            assert_verdict(&chains, &config, &frame, "many rules");
        }
    }
}
