//! Places chains on the nodes of a cluster as if each node were a machine with a core of its own.
//!
//! The nodes of an emulated cluster share the machine's cores, so `placement` in a chain's file
//! would see equal loads.

use myelin_packet::traffic::{Bucket, Profile};
use myelin_planner::admission::Work;
use myelin_planner::calculus::{ArrivalCurve, RateLatency, SECOND};
use myelin_planner::placement::{CoreRoom, Demand, LinkRoom, Network, NodeRoom, Request, place};
use myelin_spec::{Effect, PlacementAlgorithm, Space};

use super::DELAY_NS;
use crate::Error;

/// The published algorithms.
pub(crate) const ALGORITHMS: [PlacementAlgorithm; 3] = [
    PlacementAlgorithm::LoadBalancing,
    PlacementAlgorithm::LeastConnections,
    PlacementAlgorithm::LoadBalancingLeastConnections,
];
/// Functions that a node has room for.
pub(crate) const ROOM: u64 = 4;
/// Packets a second of the probe.
const RATE_PPS: u64 = 250;
const US: u128 = SECOND / 1_000_000;

/// The node of each of `length` functions, from 0.
pub(crate) fn places(
    algorithm: PlacementAlgorithm,
    nodes: usize,
    length: usize,
) -> Result<Vec<usize>, Error> {
    // Vertices: the nodes, the host of the service application at the first node, the switch.
    let (host, switch) = (nodes, nodes + 1);
    let link = |from: usize, to: usize, delay_fs: u128| LinkRoom {
        name: format!("l{from}"),
        ends: [from, to],
        delay_fs,
        rate_bps: Some(1_000_000_000),
        load: Default::default(),
    };
    let half_fs = u128::from(DELAY_NS) * (US / 1000) / 2;
    let mut links: Vec<_> = (0..nodes).map(|node| link(node, switch, half_fs)).collect();
    links.push(link(host, 0, 0));
    let network = Network {
        cores: (0..nodes).map(free_core).collect(),
        nodes: (0..nodes).map(node).collect(),
        others: 2,
        links,
        ..Network::default()
    };
    let request = Request {
        functions: (0..length).map(function).collect(),
        profile: Profile {
            packets: Bucket::new(RATE_PPS, 1).ok(),
            bits: None,
        },
        latency_ns: None,
        part: Work::default(),
        crossing: Work::default(),
        ingress: host,
        egress: host,
        end_nodes: [None, None],
    };
    let placed = place(&network, &request, algorithm, 0);
    let placed = placed.map_err(|refusal| Error::Internal(refusal.to_string()))?;
    let number = |name: &str| network.nodes.iter().position(|node| node.name == name);
    let numbers = placed
        .functions
        .iter()
        .map(|function| number(&function.node));
    let numbers: Option<Vec<usize>> = numbers.collect();
    numbers.ok_or_else(|| Error::Internal("a placement names an unknown node".to_owned()))
}

fn free_core(number: usize) -> CoreRoom {
    CoreRoom {
        number: number as u32,
        service: RateLatency::core(0),
        load: ArrivalCurve::default(),
        longest_fs: None,
    }
}

fn node(number: usize) -> NodeRoom {
    NodeRoom {
        name: format!("n{number}"),
        cores: vec![number],
        memory_bytes: ROOM,
    }
}

/// A function that takes a unit of a node's room.
fn function(number: usize) -> Demand {
    Demand {
        name: format!("f{number}"),
        work: Work {
            packet_fs: 10 * US,
            byte_fs: 0,
        },
        space: Space::Kernel,
        effect: Effect::default(),
        memory_bytes: 1,
        node: None,
        anti_affinity: None,
    }
}

/// The number of links between nodes that a chain passes.
pub(crate) fn crossings(places: &[usize]) -> usize {
    let pairs = places.windows(2);
    pairs.filter(|pair| pair[0] != pair[1]).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_the_published_ones() {
        let [lb, lc, lblc] = ALGORITHMS.map(|algorithm| places(algorithm, 4, 10).unwrap());
        assert_eq!(lb, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
        assert_eq!(crossings(&lc), 2);
        assert_eq!(crossings(&lblc), 3);
        let count = |places: &[usize], node| places.iter().filter(|at| **at == node).count();
        for node in 0..4 {
            assert_eq!(count(&lb, node), count(&lblc, node));
        }
        // Four functions on two equal nodes.
        let four = ALGORITHMS.map(|algorithm| places(algorithm, 2, 4).unwrap());
        assert_eq!(four.map(|places| crossings(&places)), [3, 0, 1]);
    }
}
