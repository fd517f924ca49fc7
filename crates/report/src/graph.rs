//! The picture of a chain: ports, functions by space and process, crossings, costs, losses.
//!
//! [`ChainGraph`] has the content: the path of a packet as nodes and edges. `layout` places the
//! path on a grid of characters. [`ChainGraph::text`] and [`ChainGraph::svg`] draw that grid. The
//! picture has planned and measured figures only.

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
    /// Packets that were lost at no node, and packets in flight.
    elsewhere: Vec<String>,
}

/// Adjacent nodes that share a space and, in user space, a process.
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
    /// Index of the node's group; ports have no group.
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

/// The links, rings and redirects between two nodes, one a line; the predicted cost last.
#[derive(Debug, Clone, Default)]
struct Edge {
    lines: Vec<String>,
}

impl ChainGraph {
    /// Makes the picture of a plan, with predicted costs.
    pub fn planned(plan: &Plan) -> Self {
        from_plan::build_graph(plan)
    }

    /// Makes the picture of a running chain: the plan's picture with measured costs and lost
    /// packets.
    pub fn running(status: &ChainStatus) -> Self {
        let mut graph = from_plan::build_graph(&status.plan);
        match status.state {
            ChainState::Active => {}
            ChainState::Waiting => graph.heading.push_str(", waiting"),
            ChainState::Failed => graph.heading.push_str(", failed"),
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

    /// Returns the chain's name.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// Writes the end hosts and their addresses at the two ports.
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

    fn find_node(&mut self, kind: NodeKind) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.kind == kind)
    }

    /// Writes the packets of the account at the nodes that passed, dropped or lost them.
    fn add_account(&mut self, account: &PacketAccount) {
        let counts = [
            (NodeKind::Door, account.packets_in, "in"),
            (NodeKind::Egress, account.packets_out, "out"),
        ];
        for (kind, packets, word) in counts {
            if let Some(node) = self.find_node(kind) {
                node.lines.push(format!("{packets} {word}"));
            }
        }
        let mut lost = account.lost.clone();
        if let Some(door) = self.find_node(NodeKind::Door) {
            let at_door = [
                (account.policed, "policed"),
                (lost.remove("door").unwrap_or_default(), "lost"),
            ];
            let at_door = at_door.iter().filter(|(packets, _)| *packets > 0);
            door.losses = at_door.map(|(n, word)| format!("{n} {word}")).collect();
        }
        self.add_drops(account.dropped.clone());
        let mut user_groups = self
            .groups
            .iter_mut()
            .filter(|group| group.area == Area::User);
        // Rings belong to a worker, but the account has one sum for all workers.
        if let (Some(group), None) = (user_groups.next(), user_groups.next()) {
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
        let unplaced = dropped.into_iter();
        self.elsewhere
            .extend(unplaced.map(|(name, packets)| format!("{packets} dropped by {name}")));
    }

    /// Describes the path in words, for screen readers.
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
