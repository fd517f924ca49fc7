//! The picture of a chain: ports, functions by space and process, crossings, costs, losses.
//!
//! [`ChainGraph`] has the content: the path of a packet as nodes and edges. `layout` places it on a
//! grid of characters. [`ChainGraph::text`] and [`ChainGraph::svg`] draw that grid. The picture has
//! planned and measured figures only.

mod from_plan;
mod layout;
mod svg;
mod text;

use std::collections::BTreeMap;

use myelin_api::{ChainState, ChainStatus, PacketAccount, Plan};

use crate::terminal::format_ns;

/// A chain as nodes, in the order in which its packets pass them.
#[derive(Debug, Clone)]
pub struct ChainGraph {
    chain: String,
    /// Mapping, cost, state.
    heading: String,
    groups: Vec<Group>,
    nodes: Vec<Node>,
    /// Edge `i` leads from node `i` to node `i + 1`.
    edges: Vec<Edge>,
    /// Packets that were lost at no node, and those in flight.
    elsewhere: Vec<String>,
}

/// Neighbouring nodes of one space, and there of one process.
#[derive(Debug, Clone)]
struct Group {
    title: String,
    area: Area,
    losses: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    Kernel,
    User,
    BlackBox,
}

#[derive(Debug, Clone)]
struct Node {
    kind: NodeKind,
    /// Index of its group; ports have none.
    group: Option<usize>,
    name: String,
    /// Kind, costs, counts.
    lines: Vec<String>,
    losses: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeKind {
    Ingress,
    Door,
    Function,
    Shaper,
    Egress,
}

/// What a packet passes between two nodes, one a line; the predicted cost last.
#[derive(Debug, Clone, Default)]
struct Edge {
    lines: Vec<String>,
}

impl ChainGraph {
    /// The picture of a plan, with predicted costs.
    pub fn planned(plan: &Plan) -> Self {
        from_plan::graph(plan)
    }

    /// The picture of a running chain: the plan's, with measured costs and lost packets.
    pub fn running(status: &ChainStatus) -> Self {
        let mut graph = from_plan::graph(&status.plan);
        if status.state == ChainState::Failed {
            graph.heading.push_str(", failed");
        }
        graph.name_hosts(status);
        let mut hops = status.hops.iter();
        for node in &mut graph.nodes {
            if node.kind != NodeKind::Function {
                continue;
            }
            if let Some(ns) = hops.next().and_then(|hop| hop.cost_ns) {
                node.lines.push(format!("measured {}", format_ns(ns)));
            }
        }
        graph.add_account(&status.account);
        graph
    }

    /// The chain's name.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// Writes interfaces, and end hosts with their addresses, at both ports.
    fn name_hosts(&mut self, status: &ChainStatus) {
        if status.plan.ports.is_some() {
            return;
        }
        for node in &mut self.nodes {
            let link = match node.kind {
                NodeKind::Ingress => &status.ingress,
                NodeKind::Egress => &status.egress,
                _ => continue,
            };
            if let Some(host) = status.hosts.iter().find(|host| host.link == *link) {
                node.name.clone_from(&host.role);
                node.lines = vec![host.address.clone()];
            }
        }
    }

    fn node(&mut self, kind: NodeKind) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.kind == kind)
    }

    /// Writes all packets of the account at the places where they are.
    fn add_account(&mut self, account: &PacketAccount) {
        let counts = [
            (NodeKind::Door, account.packets_in, "in"),
            (NodeKind::Egress, account.packets_out, "out"),
        ];
        for (kind, packets, word) in counts {
            if let Some(node) = self.node(kind) {
                node.lines.push(format!("{packets} {word}"));
            }
        }
        let mut lost = account.lost.clone();
        if let Some(door) = self.node(NodeKind::Door) {
            let at_door = [
                (account.policed, "policed"),
                (lost.remove("door").unwrap_or_default(), "lost"),
            ];
            let at_door = at_door.iter().filter(|(packets, _)| *packets > 0);
            door.losses = at_door.map(|(n, word)| format!("{n} {word}")).collect();
        }
        self.add_drops(account.dropped.clone());
        let mut with_rings = self
            .groups
            .iter_mut()
            .filter(|group| group.area == Area::User);
        // Rings belong to a worker. The account tells of several workers together.
        if let (Some(group), None) = (with_rings.next(), with_rings.next()) {
            group.losses = lost.remove("ring").map(|n| format!("{n} lost in rings"));
        }
        for (place, packets) in lost {
            let place = match place.as_str() {
                "ring" => "in rings",
                "link" => "on links",
                "unseen" => "at an unknown place",
                other => other,
            };
            self.elsewhere.push(format!("{packets} lost {place}"));
        }
        if account.under_way > 0 {
            self.elsewhere
                .push(format!("{} in flight", account.under_way));
        }
    }

    /// Writes drops at functions and at the shaper. A function of an earlier generation may have no
    /// node.
    fn add_drops(&mut self, mut dropped: BTreeMap<String, u64>) {
        for node in &mut self.nodes {
            if !matches!(node.kind, NodeKind::Function | NodeKind::Shaper) {
                continue;
            }
            if let Some(packets @ 1..) = dropped.remove(&node.name) {
                node.losses.push(format!("{packets} dropped"));
            }
        }
        let gone = dropped.into_iter();
        self.elsewhere
            .extend(gone.map(|(name, packets)| format!("{packets} dropped by {name}")));
    }

    /// The path in words, for screen readers.
    fn description(&self) -> String {
        let mut words = Vec::new();
        let mut group = None;
        for (i, node) in self.nodes.iter().enumerate() {
            let edge = i.checked_sub(1).and_then(|i| self.edges.get(i));
            words.extend(edge.map(|edge| match &edge.lines[..] {
                [] => "to".to_owned(),
                lines => format!("to ({})", lines.join(", ")),
            }));
            if node.group != group
                && let Some(Group { title, losses, .. }) = node.group.map(|i| &self.groups[i])
            {
                let title = [title].into_iter().chain(losses);
                words.push(format!(
                    "[{}]",
                    title.cloned().collect::<Vec<_>>().join(", ")
                ));
            }
            group = node.group;
            let lines = node.lines.iter().chain(&node.losses);
            let lines: Vec<_> = [&node.name].into_iter().chain(lines).cloned().collect();
            words.push(lines.join(", "));
        }
        let path = words.join(" ");
        let sentences = [&self.heading, &path].into_iter().chain(&self.elsewhere);
        sentences.cloned().collect::<Vec<_>>().join(". ") + "."
    }
}
