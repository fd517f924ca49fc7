//! Draws networks and chains.

use fastrand::Rng;
use myelin_packet::traffic::{Bucket, Profile};
use myelin_planner::admission::Work;
use myelin_planner::calculus::{ArrivalCurve, LeakyBucket, RateLatency, SECOND};
use myelin_planner::placement::{CoreRoom, Demand, LinkRoom, Network, NodeRoom, Request};
use myelin_spec::{Effect, Space};

use crate::Findings;

const US: u128 = SECOND / 1_000_000;
const MIB: u64 = 1 << 20;

/// Nodes at a switch, on average.
const NODES_AT_SWITCH: usize = 4;
/// Rate and burst of the chains.
const RATE_PPS: u64 = 20_000;
const BURST: u64 = 24;

/// Number of nodes of a network and functions of a chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) nodes: usize,
    pub(super) functions: usize,
}

/// A network and a chain between two hosts.
pub(super) struct Drawn {
    pub(super) network: Network,
    pub(super) request: Request,
}

/// Adds the settings on which the figures depend.
pub(super) fn describe(findings: &mut Findings) {
    findings.set("clock", "simulated: networks and chains of a model");
    findings.set("rate_kpps", RATE_PPS / 1000);
    findings.set("burst_packets", BURST);
}

impl Drawn {
    pub(super) fn new(size: Size, random: &mut Rng) -> Self {
        let switches = size.nodes.div_ceil(NODES_AT_SWITCH);
        let (first_switch, vertices) = (size.nodes + 2, size.nodes + 2 + switches);
        let mut cores = Vec::new();
        let nodes = (0..size.nodes).map(|number| {
            let own: Vec<usize> = (0..random.usize(1..=2))
                .map(|more| cores.len() + more)
                .collect();
            cores.extend(own.iter().map(|core| draw_core(*core, random)));
            NodeRoom {
                name: format!("n{number}"),
                cores: own,
                memory_bytes: random.u64(1..=8) * MIB,
            }
        });
        let nodes: Vec<_> = nodes.collect();
        // Each node and host is at a switch, and each switch but the first at an earlier one.
        let links = (0..vertices).filter(|vertex| *vertex != first_switch);
        let links = links.map(|vertex| {
            let is_trunk = vertex > first_switch;
            let to = if is_trunk { vertex } else { vertices };
            LinkRoom {
                name: format!("l{vertex}"),
                ends: [vertex, random.usize(first_switch..to)],
                delay_fs: random.u128(10..=200) * US,
                rate_bps: Some(if is_trunk {
                    10_000_000_000
                } else {
                    1_000_000_000
                }),
                load: Default::default(),
            }
        });
        let links = links.collect();
        Self {
            request: draw_request(size, draw_functions(size, random)),
            network: Network {
                links,
                others: 2 + switches,
                nodes,
                cores,
                ..Network::default()
            },
        }
    }
}

/// A core with a load of up to 70 %, and with a promise in one of two cases.
fn draw_core(number: usize, random: &mut Rng) -> CoreRoom {
    let percent = random.u128(0..=70);
    CoreRoom {
        number: number as u32,
        service: RateLatency::core(20 * US),
        load: ArrivalCurve::of(LeakyBucket::new(percent * US, SECOND / 100 * percent)),
        longest_fs: random.bool().then(|| random.u128(200..=1000) * US),
    }
}

fn draw_functions(size: Size, random: &mut Rng) -> Vec<Demand> {
    let function = |number| Demand {
        name: format!("f{number}"),
        work: Work {
            packet_fs: random.u128(500..=15_000) * US / 1000,
            byte_fs: 0,
        },
        space: Space::Kernel,
        effect: Effect::default(),
        memory_bytes: random.u64(0..=3) * MIB,
        node: None,
        // One function of four is of a group.
        anti_affinity: (random.u32(..4) == 0).then(|| "copies".to_owned()),
    };
    (0..size.functions).map(function).collect()
}

fn draw_request(size: Size, functions: Vec<Demand>) -> Request {
    Request {
        functions,
        profile: Profile {
            packets: Bucket::new(RATE_PPS, BURST).ok(),
            bits: None,
        },
        latency_ns: None,
        part: Work {
            packet_fs: US,
            byte_fs: 0,
        },
        crossing: Work::default(),
        ingress: size.nodes,
        egress: size.nodes + 1,
        end_nodes: [None, None],
    }
}
