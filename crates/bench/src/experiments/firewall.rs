//! Part of `classifier`: the kernel firewall with 10 to 1000 rules.

use std::net::Ipv4Addr;

use myelin_kernel::{Hook, LoadedChain, test_run};
use myelin_metrics::stats::Deployments;
use myelin_packet::Prefix;
use myelin_packet::five_tuple::UDP;
use myelin_packet::rules::{Action, Rule};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig};

use super::classifier::{TestPackets, small_plane};
use crate::frames::{self, SplitMix};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Findings, Row, Session, ebpf};

const COUNTS: [usize; 3] = [10, 100, 1000];
/// Largest cost of the most rules over that of the fewest.
const BOUND: f64 = 1.5;
/// Number of packets, each for a random rule.
const FRAMES: usize = 256;

pub(super) fn run(hook: Hook, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    // The last subject is `forward`, with the same egress as the firewalls.
    let nothing = COUNTS.len();
    let sampling = Sampling::of(format!("rules at {hook}"))
        .rounds(5)
        .share(0.15);
    let deploy = |turns: &mut Turns<'_>| {
        let plane = small_plane()?;
        let load = |spi, function| plane.load_chain(&test_run::chain(hook, spi, &[function]));
        let mut subjects: Vec<(LoadedChain, TestPackets)> = Vec::new();
        for (spi, count) in (1..).zip(COUNTS) {
            session.check()?;
            subjects.push((load(spi, firewall(count))?, packets(count)));
        }
        let forward = load(nothing as u32 + 1, FunctionConfig::Forward)?;
        subjects.push((forward, packets(COUNTS[0])));
        let programs: Vec<_> = subjects
            .iter()
            .filter_map(|(chain, _)| chain.program(0))
            .collect();
        let _entries = ebpf::DispatcherEntries::add(hook, &programs)?;
        turns.measure(subjects.len(), |subject| {
            let (chain, packets) = &subjects[subject];
            let function = chain.program(0).ok_or(Error::Cancelled)?;
            packets.mean_ns(function, hook, true)
        })
    };
    let own = |round: &dyn Fn(usize) -> f64, rules| (round(rules) - round(nothing)).max(1.0);
    let ratio =
        |samples: &Deployments, rules| samples.median_of(|round| own(round, rules) / own(round, 0));
    let claims = |samples: &Deployments, (): &()| {
        let id = format!("firewall, 1000 rules / 10, {hook}");
        vec![Claim::at_most(id, ratio(samples, nothing - 1), BOUND)]
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (index, count) in COUNTS.into_iter().enumerate() {
        findings.add_row(
            Row::of("firewall rules")
                .with("hook", hook.to_string())
                .with("rules", count)
                .with_estimate(
                    "firewall",
                    "_ns",
                    samples.median_of(|round| own(round, index)),
                )
                .with("times_10_rules", ratio(&samples, index).map(|e| e.value))
                .with("with_egress_ns", samples.median(index).map(|e| e.value)),
        );
    }
    Ok(())
}

fn firewall(count: usize) -> FunctionConfig {
    FunctionConfig::Firewall(FirewallConfig {
        rules: (0..count).map(rule).collect(),
        default: Action::Deny,
        fragments: FragmentPolicy::Drop,
    })
}

/// A typical rule: a subnet of clients and a range of ports, mostly UDP.
fn rule(number: usize) -> Rule {
    let first = port(number);
    Rule {
        source: Prefix::new(client(number).into(), if number % 4 == 3 { 20 } else { 24 }).ok(),
        destination_ports: Some(first..=first + 99),
        protocol: (!number.is_multiple_of(3)).then_some(UDP),
        ..Rule::any(Action::Allow)
    }
}

/// A client of a rule's subnet. The subnets do not overlap.
fn client(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0b00_0000 + ((number as u32) << 12) + 9)
}

fn port(number: usize) -> u16 {
    1024 + (number % 600) as u16 * 100
}

fn packets(count: usize) -> TestPackets {
    let mut random = SplitMix(count as u64);
    TestPackets::new((0..FRAMES).map(|_| {
        let number = random.draw_below(count as u64) as usize;
        frames::udp_frame(
            client(number).octets(),
            [10, 0, 0, 2],
            port(number) + 50,
            256,
        )
    }))
}

#[cfg(test)]
mod tests {
    use myelin_packet::rules::first_match;

    use super::*;

    #[test]
    fn each_packet_matches_its_rule() {
        let rules: Vec<Rule> = (0..1000).map(rule).collect();
        for number in [0, 3, 599, 600, 999] {
            let frame = frames::udp_frame(
                client(number).octets(),
                [10, 0, 0, 2],
                port(number) + 50,
                64,
            );
            let tuple = myelin_packet::parse(&frame).unwrap().five_tuple(&frame);
            assert_eq!(first_match(&rules, &tuple), Some(number));
        }
    }
}
