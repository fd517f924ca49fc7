//! Shortest paths through the links, by worst-case delay.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::network::{Hop, LinkRoom, Network};
use crate::calculus::{ArrivalCurve, RateLatency, delay};

/// The links with room for the chain, by the vertex where they begin.
pub(super) struct Graph {
    /// First edge of each vertex, and the end of the last.
    first: Vec<usize>,
    edges: Vec<Edge>,
    /// The vertices that no path passes.
    ends: BTreeSet<usize>,
    /// The paths over routers with room for the chain, by the numbers of both nodes.
    routed: BTreeMap<(usize, usize), Routed>,
}

/// A path over routers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Routed {
    hops: Vec<Hop>,
    delay_fs: u128,
}

/// One direction of a link.
#[derive(Debug, Clone, Copy)]
struct Edge {
    to: usize,
    hop: Hop,
    delay_fs: u128,
}

/// Shortest paths from one vertex.
pub(super) struct Tree {
    from: usize,
    /// For each vertex: its distance, and how the path arrives; `None` without a path.
    reached: Vec<Option<Reached>>,
    /// The paths that continue over routers, by the last vertex: the node where the routers begin,
    /// and the hops from there. The delay is that of the whole path.
    routed: BTreeMap<usize, (usize, Routed)>,
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
        let routed = network.routed.iter().filter_map(|(nodes, hops)| {
            let delays = hops.iter().map(|hop| {
                let link = network.links.get(hop.link)?;
                link.delay_with(hop.from, traffic)
            });
            let delay_fs = delays.sum::<Option<u128>>()?;
            let hops = hops.clone();
            Some((*nodes, Routed { hops, delay_fs }))
        });
        let mut graph = Self {
            first: vec![0],
            edges: Vec::with_capacity(2 * network.links.len()),
            ends: network.ends.clone(),
            routed: routed.collect(),
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
            let is_known = std::mem::replace(&mut is_final[vertex], true);
            if is_known || (vertex != from && self.ends.contains(&vertex)) {
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
        let routed = self.continue_over_routers(from, &reached);
        Tree {
            from,
            reached,
            routed,
        }
    }

    /// Returns the paths over routers: from a node its own, from a host those of the nodes that it
    /// reaches.
    fn continue_over_routers(
        &self,
        from: usize,
        reached: &[Option<Reached>],
    ) -> BTreeMap<usize, (usize, Routed)> {
        let mut routed: BTreeMap<usize, (u128, usize, &Routed)> = BTreeMap::new();
        for ((via, to), path) in &self.routed {
            let is_begin = *via == from || self.ends.contains(&from);
            let Some(begin) = reached[*via].filter(|_| is_begin) else {
                continue;
            };
            let through_fs = begin.distance_fs.saturating_add(path.delay_fs);
            let known = routed.get(to);
            if reached[*to].is_none() && known.is_none_or(|(known_fs, ..)| through_fs < *known_fs) {
                routed.insert(*to, (through_fs, *via, path));
            }
        }
        let continued = routed.into_iter().map(|(to, (delay_fs, via, path))| {
            let hops = path.hops.clone();
            (to, (via, Routed { hops, delay_fs }))
        });
        continued.collect()
    }
}

impl Tree {
    /// Returns the distance to a vertex, fs; `None` without a path.
    pub(super) fn distance_fs(&self, to: usize) -> Option<u128> {
        let reached = self.reached[to].map(|reached| reached.distance_fs);
        reached.or_else(|| self.routed.get(&to).map(|(_, path)| path.delay_fs))
    }

    /// Returns the hops to a vertex, the last first; `None` without a path.
    pub(super) fn hops_to(&self, to: usize) -> Option<Vec<Hop>> {
        let (mut hops, mut vertex) = (Vec::new(), to);
        if self.reached[to].is_none() {
            let (via, path) = self.routed.get(&to)?;
            hops.extend(path.hops.iter().rev());
            vertex = *via;
        }
        while vertex != self.from {
            let (hop, before) = self.reached[vertex]?.last?;
            hops.push(hop);
            vertex = before;
        }
        Some(hops)
    }
}
