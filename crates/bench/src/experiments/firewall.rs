//! Part of `classifier`: the kernel firewall with 10 to 1000 rules.

use std::net::Ipv4Addr;

use myelin_kernel::{Hook, LoadedChain, test_run};
use myelin_packet::Prefix;
use myelin_packet::five_tuple::UDP;
use myelin_packet::rules::{Action, Rule};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig};

use super::lookup::{TestPackets, small_plane};
use crate::frames::{self, SplitMix};
use crate::{Error, Findings, Row, Session, ebpf};

const COUNTS: [usize; 3] = [10, 100, 1000];
/// Largest cost of the most rules over that of the fewest.
const BOUND: f64 = 1.5;
/// Number of packets, each for a random rule.
const FRAMES: usize = 256;

pub(super) fn run(hook: Hook, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let plane = small_plane()?;
    let load = |spi, function| plane.load_chain(&test_run::chain(hook, spi, &[function]));
    let mut subjects: Vec<(LoadedChain, TestPackets)> = Vec::new();
    for (index, count) in COUNTS.into_iter().enumerate() {
        session.progress("loading rules", index, COUNTS.len())?;
        subjects.push((load(index as u32 + 1, firewall(count))?, packets(count)));
    }
    // The baseline: a function that does nothing, and the egress.
    subjects.push((
        load(COUNTS.len() as u32 + 1, FunctionConfig::Forward)?,
        packets(COUNTS[0]),
    ));
    let baseline = COUNTS.len();
    let programs: Vec<_> = subjects
        .iter()
        .filter_map(|(chain, _)| chain.program(0))
        .collect();
    let _entries = ebpf::DispatcherEntries::add(hook, &programs)?;
    let stage = format!("rules at {hook}");
    let mut rounds = session.measure(&stage, subjects.len(), (40, 200), |subject| {
        let (chain, packets) = &subjects[subject];
        let function = chain.program(0).ok_or(Error::Cancelled)?;
        packets.mean_ns_behind_door(function, hook)
    })?;
    let own: Vec<usize> = (0..baseline)
        .map(|rules| rounds.derive(rules, baseline, |with, without| (with - without).max(1.0)))
        .collect();
    for (index, count) in COUNTS.into_iter().enumerate() {
        findings.add_row(
            Row::of("firewall rules")
                .with("hook", hook.to_string())
                .with("rules", count)
                .with_estimate("firewall", "_ns", rounds.median(own[index]))
                .with("times_10_rules", rounds.ratio_value(own[index], own[0])?)
                .with("with_egress_ns", rounds.median(index).map(|e| e.value)),
        );
    }
    let ratio = rounds.ratio(own[baseline - 1], own[0])?;
    findings.claim_at_most(format!("firewall, 1000 rules / 10, {hook}"), ratio, BOUND);
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
