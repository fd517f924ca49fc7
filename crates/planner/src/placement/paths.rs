//! Shortest paths through the links, by worst-case delay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::network::{LinkRoom, Network};
use crate::calculus::{ArrivalCurve, RateLatency, delay};

/// The links with room for the chain, by the vertex where they begin.
pub(super) struct Graph {
    /// First edge of each vertex, and the end of the last.
    first: Vec<usize>,
    edges: Vec<Edge>,
}

/// One direction of a link.
#[derive(Debug, Clone, Copy)]
struct Edge {
    to: usize,
    hop: Hop,
    delay_fs: u128,
}

/// One direction of a link: the link's number, and the number of the end where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Hop {
    pub(super) link: usize,
    pub(super) from: usize,
}

/// Shortest paths from one vertex.
pub(super) struct Tree {
    from: usize,
    /// For each vertex: its distance, and how the path arrives; `None` without a path.
    reached: Vec<Option<Reached>>,
}

/// The end of a shortest path.
#[derive(Debug, Clone, Copy)]
struct Reached {
    distance_fs: u128,
    /// The last hop, and the vertex where it begins; `None` at the first vertex.
    last: Option<(Hop, usize)>,
}

impl LinkRoom {
    /// Returns the longest delay of packets in one direction, fs, with further traffic; `None` if
    /// the rate does not suffice.
    pub(super) fn delay_with(&self, from: usize, more: &ArrivalCurve) -> Option<u128> {
        let Some(rate) = self.rate_bps else {
            return Some(self.delay_fs);
        };
        let all = self.load[from].plus(more)?;
        delay(&all, &RateLatency::new(u128::from(rate), self.delay_fs))
    }
}

impl Graph {
    /// Creates the graph for a chain with this traffic.
    pub(super) fn new(network: &Network, traffic: &ArrivalCurve) -> Self {
        let mut of_vertices = vec![Vec::new(); network.vertices()];
        for (number, link) in network.links.iter().enumerate() {
            for from in [0, 1] {
                if let Some(delay_fs) = link.delay_with(from, traffic) {
                    of_vertices[link.ends[from]].push(Edge {
                        to: link.ends[1 - from],
                        hop: Hop { link: number, from },
                        delay_fs,
                    });
                }
            }
        }
        let mut graph = Self {
            first: vec![0],
            edges: Vec::with_capacity(2 * network.links.len()),
        };
        for edges in of_vertices {
            graph.edges.extend(edges);
            graph.first.push(graph.edges.len());
        }
        graph
    }

    /// Returns the shortest paths from a vertex to all others (Dijkstra 1959).
    pub(super) fn shortest_paths(&self, from: usize) -> Tree {
        let mut reached: Vec<Option<Reached>> = vec![None; self.first.len() - 1];
        let mut is_final = vec![false; reached.len()];
        let mut open = BinaryHeap::from([Reverse((0_u128, from))]);
        reached[from] = Some(Reached {
            distance_fs: 0,
            last: None,
        });
        while let Some(Reverse((distance_fs, vertex))) = open.pop() {
            if std::mem::replace(&mut is_final[vertex], true) {
                continue;
            }
            for edge in &self.edges[self.first[vertex]..self.first[vertex + 1]] {
                let through_fs = distance_fs.saturating_add(edge.delay_fs);
                let known = &mut reached[edge.to];
                if known.is_none_or(|known| through_fs < known.distance_fs) {
                    *known = Some(Reached {
                        distance_fs: through_fs,
                        last: Some((edge.hop, vertex)),
                    });
                    open.push(Reverse((through_fs, edge.to)));
                }
            }
        }
        Tree { from, reached }
    }
}

impl Tree {
    /// Returns the distance to a vertex, fs; `None` without a path.
    pub(super) fn distance_fs(&self, to: usize) -> Option<u128> {
        self.reached[to].map(|reached| reached.distance_fs)
    }

    /// Returns the hops to a vertex, the last first; `None` without a path.
    pub(super) fn hops_to(&self, to: usize) -> Option<Vec<Hop>> {
        let (mut hops, mut vertex) = (Vec::new(), to);
        while vertex != self.from {
            let (hop, before) = self.reached[vertex]?.last?;
            hops.push(hop);
            vertex = before;
        }
        Some(hops)
    }
}
