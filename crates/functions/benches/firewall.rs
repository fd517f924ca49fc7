//! Compares the firewall's bit vectors with a linear search, by number of rules.
//!
//! Run `cargo bench -p myelin-functions --bench firewall`. Each iteration looks up the packets of
//! [`PACKETS`] flows. The throughput is per packet.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_packet::FiveTuple;
use myelin_packet::rules::{Action, Rule, RuleTables, first_match};

const PACKETS: u32 = 256;

/// Returns typical filter rules: hosts and networks, some with a protocol and a port. The last rule
/// matches every packet.
fn make_rules(count: u32) -> Vec<Rule> {
    let mut rules: Vec<Rule> = (1..count)
        .map(|i| {
            let address = (0x0a00_0000 + i * 0x0001_0307).to_be_bytes().into();
            let mut rule = Rule::any(Action::Deny);
            rule.source = Some(
                myelin_packet::Prefix::new(address, [32, 24, 28, 20][i as usize % 4])
                    .expect("a prefix"),
            );
            if i % 2 == 0 {
                rule.protocol = Some(17);
                let port = 1_000 + 7 * i as u16;
                rule.destination_ports = Some(port..=port + 3);
            }
            rule
        })
        .collect();
    rules.push(Rule::any(Action::Allow));
    rules
}

/// Returns five-tuples. Half of them are from the rules' networks.
fn make_tuples(count: u32) -> Vec<FiveTuple> {
    (0..PACKETS)
        .map(|i| {
            let base = if i % 2 == 0 {
                0x0a00_0000 + (1 + i * 31 % count) * 0x0001_0307
            } else {
                0xc633_6400 + i
            };
            FiveTuple {
                source: base.to_be_bytes().into(),
                destination: [198, 51, 100, 2].into(),
                protocol: 17,
                source_port: Some(40_000 + i as u16),
                destination_port: Some(9_000 + i as u16),
            }
        })
        .collect()
}

fn bench_firewall(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("firewall");
    group.throughput(Throughput::Elements(PACKETS.into()));
    for count in [10, 100, 1000] {
        let (rules, tuples) = (make_rules(count), make_tuples(count));
        let tables = RuleTables::new(&rules).expect("at most 1024 rules");
        group.bench_function(BenchmarkId::new("bit-vectors", count), |bencher| {
            bencher.iter(|| {
                tuples
                    .iter()
                    .filter_map(|tuple| tables.first_match(black_box(tuple)))
                    .sum::<usize>()
            });
        });
        group.bench_function(BenchmarkId::new("linear", count), |bencher| {
            bencher.iter(|| {
                tuples
                    .iter()
                    .filter_map(|tuple| first_match(&rules, black_box(tuple)))
                    .sum::<usize>()
            });
        });
        group.bench_function(BenchmarkId::new("compile", count), |bencher| {
            bencher.iter(|| RuleTables::new(black_box(&rules)));
        });
    }
    group.finish();
}

criterion_group!(benches, bench_firewall);
criterion_main!(benches);
