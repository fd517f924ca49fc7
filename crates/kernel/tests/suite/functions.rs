//! Kernel functions give the bytes that their twins in user space give.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use myelin_kernel::Hook;
use myelin_kernel::test_run::TestRun;
use myelin_packet::fixtures::{self, build};
use myelin_packet::rules::{Action, MAX_RULES, Rule};
use myelin_packet::{Prefix, checksum, parse};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig, XorConfig};
use proptest::prelude::*;

use crate::stand::{Stand, for_all, forwards, is_root, runs};

pub(crate) fn assert_same(stand: &Stand, frame: &[u8], name: &str) {
    let headers = parse(frame).unwrap();
    let expected = stand.twins.borrow_mut().process(frame, &headers);
    let outcome = stand.run(frame);
    let hook = stand.hook;
    match expected {
        Some(expected) => {
            assert_eq!(
                outcome.verdict,
                hook.redirect(),
                "{hook}: {name} was dropped"
            );
            assert_eq!(outcome.frame, expected, "{hook}: {name}");
        }
        None => {
            assert_eq!(
                outcome.verdict,
                hook.drop(),
                "{hook}: {name} was not dropped"
            );
        }
    }
}

/// On every fixture that parses.
pub(crate) fn assert_same_on_fixtures(functions: &[FunctionConfig]) {
    for hook in Hook::ALL {
        let stand = Stand::new(hook, functions);
        let mut count = 0;
        for fixture in fixtures::all() {
            if fixture.expected.is_ok() && runs(hook, &fixture.frame) {
                assert_same(&stand, &fixture.frame, fixture.name);
                count += 1;
            }
        }
        assert!(count > 40, "only {count} fixtures");
    }
}

fn xor(key: u8) -> FunctionConfig {
    FunctionConfig::Xor(XorConfig { key })
}

#[test]
fn forward_changes_nothing() {
    if is_root() {
        assert_same_on_fixtures(&forwards(3));
    }
}

#[test]
fn xor_gives_the_same_bytes_on_every_fixture() {
    if is_root() {
        for key in [0, 1, 0x5a, 0xff] {
            assert_same_on_fixtures(&[xor(key)]);
        }
        assert_same_on_fixtures(&[xor(0x5a), FunctionConfig::Forward, xor(0xa5)]);
    }
}

#[test]
fn xor_transforms_payloads_of_every_length() {
    if !is_root() {
        return;
    }
    let ends: [(SocketAddr, SocketAddr); 2] = [
        (build::client_v4(), build::server_v4()),
        (build::client_v6(), build::server_v6()),
    ];
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[xor(0xc3)]);
        for (client, server) in ends {
            for len in (0..200).chain(1400..=1472) {
                let payload = build::payload(len);
                for frame in [
                    build::udp(client, server, &payload),
                    build::tcp(client, server, &payload),
                ] {
                    let tagged = build::with_tags(frame.clone(), &[build::QINQ, build::VLAN]);
                    assert_same(&stand, &frame, "untagged");
                    assert_same(&stand, &tagged, "tagged");
                }
            }
        }
    }
}

#[test]
fn xor_keeps_the_checksum_right_whatever_the_bytes() {
    if !is_root() {
        return;
    }
    let stands: Vec<Stand> = Hook::ALL
        .into_iter()
        .flat_map(|hook| [0, 0x5a, 0xff].map(|key| Stand::new(hook, &[xor(key)])))
        .collect();
    // All ones and all zeros bring the sum to the edges of ones' complement.
    let byte = || prop_oneof![Just(0_u8), Just(0xff), any::<u8>()];
    let payload = prop::collection::vec(byte(), 0..300);
    let case = (
        any::<bool>(),
        any::<bool>(),
        payload,
        prop::option::of(prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()]),
    );
    for_all(1500, &case, |(is_tcp, is_v6, payload, held)| {
        let (client, server) = if is_v6 {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        let mut frame = if is_tcp {
            build::tcp(client, server, &payload)
        } else {
            build::udp(client, server, &payload)
        };
        let headers = parse(&frame).unwrap();
        if let Some(held) = held {
            let field = checksum::l4_offset(&headers).unwrap();
            frame[field..field + 2].copy_from_slice(&held.to_be_bytes());
        }
        let valid = checksum::l4_is_valid(&frame, &headers);
        for stand in &stands {
            assert_same(stand, &frame, "random payload");
            let out = stand.run(&frame).frame;
            assert_eq!(checksum::l4_is_valid(&out, &headers), valid);
        }
    });
}

#[test]
fn xor_drops_and_counts_what_it_cannot_transform() {
    if !is_root() {
        return;
    }
    let segment = build::udp_segment(build::client_v4(), build::server_v4(), &[7; 64]);
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[xor(1)]);
        let too_long = build::udp(build::client_v4(), build::server_v4(), &[1; 1501]);
        let frames = [
            build::ipv4_fragment(17, &segment[..48], 0, true),
            build::echo_request(build::client_v4().ip(), build::server_v4().ip(), b"ping"),
            too_long,
        ];
        for frame in &frames {
            let outcome = stand.run(frame);
            assert_eq!((outcome.verdict, &outcome.frame), (hook.drop(), frame));
        }
        let slot = stand.chain.counter_slot(0).unwrap();
        assert_eq!(stand.plane.counters().read(slot).drops, frames.len() as u64);
        assert_eq!(stand.packets(), [3, 3, 0]);
    }
}

#[test]
fn xor_refuses_segmented_packets_and_counts_their_segments() {
    if !is_root() {
        return;
    }
    let stand = Stand::new(Hook::Tcx, &[xor(1)]);
    let frame = build::tcp(build::client_v4(), build::server_v4(), &[7; 1000]);
    let outcome = stand.run_with(&TestRun {
        gso_segs: 4,
        gso_size: 250,
        ..TestRun::new(&frame)
    });
    assert_eq!(
        (outcome.verdict, outcome.frame),
        (Hook::Tcx.drop(), frame.clone())
    );
    let slot = stand.chain.counter_slot(0).unwrap();
    let counters = stand.plane.counters().read(slot);
    assert_eq!(
        (counters.packets, counters.bytes, counters.drops),
        (4, frame.len() as u64, 4)
    );
    // `forward` has no business with the payload.
    let stand = Stand::new(Hook::Tcx, &[FunctionConfig::Forward]);
    let outcome = stand.run_with(&TestRun {
        gso_segs: 4,
        gso_size: 250,
        ..TestRun::new(&frame)
    });
    assert_eq!(outcome.verdict, Hook::Tcx.redirect());
    assert_eq!(stand.packets(), [4, 4, 4]);
}

/// Fields from few values, so that rules and packets meet.
fn rule() -> impl Strategy<Value = Rule> {
    let v4 = || {
        (
            0_u8..6,
            prop::sample::select(vec![0, 8, 16, 17, 23, 24, 30, 32]),
        )
            .prop_map(|(last, len)| {
                Prefix::new(Ipv4Addr::new(10, 0, last / 3, last % 3).into(), len).unwrap()
            })
    };
    let v6 = || {
        (
            0_u16..6,
            prop::sample::select(vec![0, 16, 32, 63, 64, 65, 127, 128]),
        )
            .prop_map(|(last, len)| {
                Prefix::new(
                    Ipv6Addr::new(0x2001, 0xdb8, 0, last / 3, 0, 0, 0, last % 3).into(),
                    len,
                )
                .unwrap()
            })
    };
    let prefix = move || prop::option::of(prop_oneof![2 => v4(), 1 => v6()]);
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

fn firewall() -> impl Strategy<Value = FirewallConfig> {
    let action = prop::sample::select(vec![Action::Allow, Action::Deny]);
    let fragments = prop::sample::select(vec![FragmentPolicy::Drop, FragmentPolicy::Match]);
    let rules = prop_oneof![
        prop::collection::vec(rule(), 0..8),
        prop::collection::vec(rule(), 100..300)
    ];
    (rules, action, fragments).prop_map(|(rules, default, fragments)| FirewallConfig {
        rules,
        default,
        fragments,
    })
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    (
        (0_u8..7, 0_u8..7, any::<bool>()),
        0_u16..14,
        0_u16..14,
        0..6,
    )
        .prop_map(|((from, to, is_v6), source_port, destination_port, kind)| {
            let address = |last: u8| -> IpAddr {
                if is_v6 {
                    Ipv6Addr::new(
                        0x2001,
                        0xdb8,
                        0,
                        u16::from(last / 3),
                        0,
                        0,
                        0,
                        u16::from(last % 3),
                    )
                    .into()
                } else {
                    Ipv4Addr::new(10, 0, last / 3, last % 3).into()
                }
            };
            let (source, destination) = (address(from), address(to));
            let udp = build::udp(
                (source, source_port).into(),
                (destination, destination_port).into(),
                b"udp",
            );
            match kind {
                0 => build::echo_request(source, destination, &[1, 2, 3]),
                1 => build::tcp(
                    (source, source_port).into(),
                    (destination, destination_port).into(),
                    b"tcp",
                ),
                2 => build::ip(source, destination, 132, &[0; 12]),
                3 if is_v6 => build::with_extensions(
                    udp,
                    &[build::options_header(60, 1), build::authentication_header()],
                ),
                4 if is_v6 => build::with_extensions(
                    udp,
                    &[build::options_header(0, 2), build::fragment_header(3, true)],
                ),
                _ => udp,
            }
        })
}

#[test]
fn firewall_decides_as_in_user_space() {
    if !is_root() {
        return;
    }
    for_all(
        60,
        &(firewall(), prop::collection::vec(frame(), 40)),
        |(config, frames)| {
            for hook in Hook::ALL {
                let stand = Stand::new(hook, &[FunctionConfig::Firewall(config.clone())]);
                for frame in &frames {
                    assert_same(&stand, frame, "random rules");
                }
            }
        },
    );
}

#[test]
fn firewall_decides_as_in_user_space_on_every_fixture() {
    if !is_root() {
        return;
    }
    let ports = Rule {
        destination_ports: Some(8999..=9001),
        ..Rule::any(Action::Allow)
    };
    let icmp = Rule {
        protocol: Some(1),
        ..Rule::any(Action::Deny)
    };
    let client = Rule {
        source: Some(Prefix::from(build::client_v6().ip())),
        ..Rule::any(Action::Allow)
    };
    for (default, fragments) in [
        (Action::Allow, FragmentPolicy::Drop),
        (Action::Deny, FragmentPolicy::Match),
    ] {
        let rules = vec![icmp.clone(), ports.clone(), client.clone()];
        assert_same_on_fixtures(&[FunctionConfig::Firewall(FirewallConfig {
            rules,
            default,
            fragments,
        })]);
    }
}

/// The largest tables there are: every rule another interval of both families, and every edge its own block.
#[test]
fn firewall_takes_as_many_rules_as_there_may_be() {
    if !is_root() {
        return;
    }
    let rules: Vec<Rule> = (0..MAX_RULES as u32)
        .map(|i| {
            let (v4, v6) = (
                0x0a00_0001 + (i << 16),
                u128::from(i) << 64 | 0x2001_0db8 << 96,
            );
            let prefix = |address: IpAddr, len| Some(Prefix::new(address, len).unwrap());
            let (source, destination) = if i % 2 == 0 {
                (
                    prefix(Ipv4Addr::from(v4).into(), 32),
                    prefix(Ipv4Addr::from(!v4).into(), 31),
                )
            } else {
                (
                    prefix(Ipv6Addr::from(v6).into(), 64),
                    prefix(Ipv6Addr::from(!v6).into(), 127),
                )
            };
            let action = if i % 3 == 0 {
                Action::Allow
            } else {
                Action::Deny
            };
            Rule {
                source,
                destination,
                source_ports: Some(i as u16 * 60..=i as u16 * 60 + 90),
                ..Rule::any(action)
            }
        })
        .collect();
    let config = FirewallConfig {
        rules: rules.clone(),
        default: Action::Deny,
        fragments: FragmentPolicy::Match,
    };
    for hook in Hook::ALL {
        let stand = Stand::new(hook, &[FunctionConfig::Firewall(config.clone())]);
        for rule in rules.iter().step_by(13) {
            let (source, destination) = (
                rule.source.unwrap().addr(),
                rule.destination.unwrap().addr(),
            );
            let first = *rule.source_ports.as_ref().unwrap().start();
            for port in [0, 90, 91, 30_000, 61_000].map(|offset| first.wrapping_add(offset)) {
                assert_same(
                    &stand,
                    &build::udp((source, port).into(), (destination, 1).into(), b""),
                    "many rules",
                );
            }
        }
    }
}
