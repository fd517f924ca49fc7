//! Measures the admission of one more chain to a node with ten thousand chains.
//!
//! There are four nodes. On the first, all chains share one path through the kernel, because no
//! worker's ring holds ten thousand bursts of one port. Two have a hundred and a thousand pairs of
//! interfaces, with a worker on each of eight cores. The last has a thousand pairs with one worker.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use myelin_planner::admission::{Booking, Ledger, Platform, Site, admit, book};
use myelin_planner::{Costs, Machine, plan};
use myelin_spec::{NoFiles, ServiceChain, Source, parse};

const ADMITTED: usize = 10_000;

fn chain(space: &str) -> ServiceChain {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: c }}\nspec:\n  match: {{}}\n  \
         functions: [ {{ name: f, kind: firewall, config: {{ rules: [] }} }}, {{ name: g, kind: forward, space: {space} }} ]\n  \
         ports: {{ ingress: eth1, egress: eth2 }}\n  sla: {{ rate: 5pps, burst: 1, latency: 100s }}\n"
    );
    let chains = parse(&text, &Source::new("bench.yaml"), &NoFiles);
    chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

/// Makes the bookings of one chain at many sites.
struct Node {
    chain: ServiceChain,
    costs: Costs,
    machine: Machine,
}

impl Node {
    fn booking(&self, index: usize, ports: usize, cores: usize) -> Booking {
        let mut chain = self.chain.clone();
        chain.name = format!("c{index}");
        let (port, core) = (index % ports, index % cores);
        let site = Site {
            queues: 1,
            ingress: format!("in{port}"),
            egress: format!("out{port}"),
            egress_bps: None,
            ingress_mtu: None,
        };
        let mut plan =
            plan(&chain, &self.costs, &self.machine).unwrap_or_else(|error| panic!("{error}"));
        if let Some(worker) = &mut plan.worker {
            (worker.circuit, worker.core) = (format!("w{core}"), core as u32);
        }
        book(&chain, &plan, &self.costs, &site)
    }
}

fn admission(criterion: &mut Criterion) {
    for (name, space, ports, cores) in [
        ("one path", "kernel", 1, 1),
        ("100 paths, 8 cores", "user", 100, 8),
        ("1000 paths, 8 cores", "user", 1000, 8),
        ("1000 paths, 1 core", "user", 1000, 1),
    ] {
        let node = Node {
            chain: chain(space),
            costs: Costs::default(),
            machine: Machine::with_end_hosts(8),
        };
        let platform = Platform::new(&node.costs);
        let mut ledger = Ledger::default();
        for index in 0..ADMITTED {
            ledger.insert(node.booking(index, ports, cores));
        }
        let next = node.booking(ADMITTED, ports, cores);
        let decision = admit(&ledger, &next, &platform);
        assert!(decision.refusal.is_none(), "{name}: {:?}", decision.refusal);
        criterion.bench_function(&format!("admit/{name}"), |bencher| {
            bencher.iter(|| admit(black_box(&ledger), black_box(&next), &platform));
        });
        criterion.bench_function(&format!("insert and remove/{name}"), |bencher| {
            bencher.iter(|| {
                ledger.insert(black_box(next.clone()));
                ledger.remove(&next.chain)
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = admission
}
criterion_main!(benches);
