//! Networks and chains that tests draw, and a check of placements on them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use myelin_packet::traffic::{Bucket, Profile};
use myelin_planner::admission::Work;
use myelin_planner::calculus::{ArrivalCurve, LeakyBucket, RateLatency, SECOND};
use myelin_planner::placement::{
    CoreRoom, Demand, LinkRoom, Network, NodeRoom, Placement, Request,
};
use myelin_spec::{Effect, Space};
use proptest::prelude::*;

pub(crate) const US: u128 = SECOND / 1_000_000;
pub(crate) const MIB: u64 = 1 << 20;
/// The longest frame, bytes.
pub(crate) const LONGEST: u128 = 1518;

pub(crate) fn core(load_percent: u128) -> CoreRoom {
    CoreRoom {
        number: 0,
        service: RateLatency::core(20 * US),
        load: ArrivalCurve::of(LeakyBucket::new(
            load_percent * US / 10,
            SECOND / 100 * load_percent,
        )),
        longest_fs: None,
    }
}

pub(crate) fn demand(name: &str, packet_ns: u128) -> Demand {
    Demand {
        name: name.to_owned(),
        work: Work {
            packet_fs: packet_ns * US / 1000,
            byte_fs: 0,
        },
        space: Space::Kernel,
        effect: Effect::default(),
        memory_bytes: 0,
        node: None,
        anti_affinity: None,
    }
}

/// A chain with 20 kpps between the two hosts of a star with this number of nodes.
pub(crate) fn request(functions: Vec<Demand>, nodes: usize) -> Request {
    Request {
        functions,
        profile: Profile {
            packets: Some(Bucket::new(20_000, 24).unwrap()),
            bits: None,
        },
        latency_ns: None,
        part: Work {
            packet_fs: US / 2,
            byte_fs: 0,
        },
        crossing: Work::default(),
        ingress: nodes,
        egress: nodes + 1,
        end_nodes: [None, None],
    }
}

pub(crate) fn nodes_of(placement: &Placement) -> Vec<&str> {
    let functions = placement.functions.iter();
    functions.map(|function| function.node.as_str()).collect()
}

/// A network and a chain that a test draws.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    pub(crate) network: Network,
    pub(crate) request: Request,
}

/// Nodes in a tree with switches at random places; some share cores.
pub(crate) fn drawn() -> impl Strategy<Value = Drawn> {
    drawn_with(1..=5, 1..=5)
}

pub(crate) fn drawn_with(
    nodes: RangeInclusive<usize>,
    functions: RangeInclusive<usize>,
) -> impl Strategy<Value = Drawn> {
    let most = *nodes.end() + 4;
    let node = (1_usize..3, 1_u64..6, 0_usize..9);
    let of_core = (0_u128..90, prop::option::of(40_u128..400));
    let function = (
        100_u128..15_000,
        0_u64..3,
        prop::option::of(0_usize..9),
        prop::option::of(0_u8..2),
    );
    let link = (0..most, 1_u128..200, prop::option::of(300_u64..1000));
    (
        prop::collection::vec(node, nodes.clone()),
        prop::collection::vec(of_core, nodes),
        prop::collection::vec(function, functions),
        prop::collection::vec(link, most),
        0..most,
        0..most,
    )
        .prop_map(|(nodes, cores, functions, links, ingress, egress)| {
            let count = nodes.len();
            let vertices = count + 3;
            let cores: Vec<_> = (0..)
                .zip(&cores)
                .map(|(number, (load, longest_us))| CoreRoom {
                    number,
                    longest_fs: longest_us.map(|us| us * US),
                    ..core(*load)
                })
                .collect();
            let nodes = nodes
                .iter()
                .enumerate()
                .map(|(number, (width, memory, first))| NodeRoom {
                    name: format!("n{number}"),
                    cores: (0..(*width).min(cores.len()))
                        .map(|more| (first + more) % cores.len())
                        .collect(),
                    memory_bytes: memory * MIB,
                });
            let link = |(vertex, (to, us, rate)): (usize, &(usize, u128, Option<u64>))| LinkRoom {
                name: format!("l{vertex}"),
                ends: [vertex, to % vertex],
                delay_fs: us * US,
                rate_bps: rate.map(|mbps| mbps * 1_000_000),
                load: Default::default(),
            };
            let functions =
                functions
                    .iter()
                    .enumerate()
                    .map(|(number, (ns, memory, node, key))| Demand {
                        memory_bytes: memory * MIB,
                        // Few functions are fixed.
                        node: node
                            .filter(|node| *node < count && number == 1)
                            .map(|node| format!("n{node}")),
                        anti_affinity: key.filter(|key| *key == 0).map(|_| "x".to_owned()),
                        ..demand(&format!("f{number}"), *ns)
                    });
            Drawn {
                request: Request {
                    ingress: ingress % vertices,
                    egress: egress % vertices,
                    ..request(functions.collect(), count)
                },
                network: Network {
                    nodes: nodes.collect(),
                    others: 3,
                    links: (1..vertices).zip(&links).map(link).collect(),
                    cores,
                    ..Network::default()
                },
            }
        })
}

/// Checks all constraints with plain sums.
pub(crate) fn check(drawn: &Drawn, placement: &Placement) {
    let Drawn { network, request } = drawn;
    let nodes = nodes_of(placement);
    let (mut memory, mut rates) = (BTreeMap::new(), BTreeMap::new());
    for (position, function) in request.functions.iter().enumerate() {
        let node = nodes[position];
        if let Some(fixed) = &function.node {
            assert_eq!(node, fixed);
        }
        let key = &function.anti_affinity;
        let same = (0..position).filter(|other| request.functions[*other].anti_affinity == *key);
        assert!(key.is_none() || same.into_iter().all(|other| nodes[other] != node));
        *memory.entry(node).or_insert(0) += function.memory_bytes;
    }
    for (node, bytes) in memory {
        let room = network.nodes.iter().find(|room| room.name == node).unwrap();
        assert!(bytes <= room.memory_bytes, "{node}: {bytes}");
    }
    let mut next = 0;
    for part in &placement.parts {
        assert_eq!(part.functions.start, next);
        next = part.functions.end;
        assert!(
            nodes[part.functions.clone()]
                .iter()
                .all(|node| *node == part.node)
        );
        let work = request.functions[part.functions.clone()].iter();
        let packet_fs = work.fold(request.part.packet_fs, |sum, one| {
            sum + one.work.frame_fs(LONGEST)
        });
        let room = network
            .nodes
            .iter()
            .find(|room| room.name == part.node)
            .unwrap();
        assert!(
            room.cores
                .iter()
                .any(|core| network.cores[*core].number == part.core)
        );
        *rates.entry(part.core).or_insert(0) += 20_000 * packet_fs;
        // A burst takes at least the time of its own work.
        assert!(u128::from(part.delay_ns) * US / 1000 >= 24 * packet_fs);
        let core = &network.cores[part.core as usize];
        let longest_fs = core.longest_fs.unwrap_or(u128::MAX);
        assert!(u128::from(part.delay_ns - 1) * US / 1000 <= longest_fs);
    }
    assert_eq!(next, request.functions.len());
    for (core, rate) in rates {
        let load = network.cores[core as usize].load.long().rate;
        assert!(load + rate <= SECOND, "core {core}");
    }
    let parts: u64 = placement.parts.iter().map(|part| part.delay_ns).sum();
    let sum = parts + placement.links_ns;
    assert!(placement.delay_ns.abs_diff(sum) <= placement.parts.len() as u64 + 1);
}
