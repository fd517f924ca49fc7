//! Builds the picture of a plan.

use myelin_api::{Mapping, Plan, PortDriver, ShaperPlace, Step};

use super::{Area, ChainGraph, Edge, Group, Node, NodeKind};
use crate::terminal::format_ns;

/// Most columns of a line in a port's node. Longer arguments of DPDK devices take several lines.
const PORT_COLUMNS: usize = 32;

/// The place where the functions of a group run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    Kernel,
    Process(u32),
    BlackBox,
}

/// A graph under construction.
struct Builder<'a> {
    plan: &'a Plan,
    graph: ChainGraph,
    runner: Runner,
}

/// Builds the picture of a plan.
pub(super) fn build_graph(plan: &Plan) -> ChainGraph {
    let is_driven = is_driven_by_worker(plan);
    let graph = ChainGraph {
        chain: plan.chain.clone(),
        heading: format!(
            "mapping {}, predicted {} a packet of {} bytes",
            plan.mapping,
            format_ns(plan.predicted_ns),
            plan.frame_bytes
        ),
        groups: Vec::new(),
        nodes: Vec::new(),
        edges: Vec::new(),
        elsewhere: Vec::new(),
    };
    let mut builder = Builder {
        plan,
        graph,
        runner: if is_driven {
            Runner::Process(0)
        } else {
            Runner::Kernel
        },
    };
    builder.add_port(Edge::default(), NodeKind::Ingress);
    builder.open_group(builder.runner);
    let door = vec![format!("predicted {}", format_ns(plan.door.cost_ns))];
    builder.add(Edge::default(), NodeKind::Door, "front door", door);
    builder.add_functions();
    let mut egress = builder.make_edge(&plan.egress);
    if plan
        .shaper
        .is_some_and(|shaper| shaper.place == ShaperPlace::Qdisc)
    {
        builder.add_ungrouped(egress, NodeKind::Shaper, "shaper", Vec::new());
        egress = Edge::default();
    }
    builder.add_port(egress, NodeKind::Egress);
    builder.graph
}

fn is_driven_by_worker(plan: &Plan) -> bool {
    let ports = plan.ports.as_ref();
    ports.is_some_and(|ports| ports.driver != PortDriver::Kernel)
}

impl Builder<'_> {
    fn add_functions(&mut self) {
        let shaped_behind = self.plan.shaper.and_then(|shaper| match shaper.place {
            ShaperPlace::Worker => self.plan.hops.iter().rposition(|hop| hop.process.is_some()),
            ShaperPlace::Qdisc => None,
        });
        let is_distributed = self.plan.mapping == Mapping::Distributed;
        for (i, hop) in self.plan.hops.iter().enumerate() {
            let runner = match hop.process {
                Some(process) => Runner::Process(process),
                None if hop.is_black_box() => Runner::BlackBox,
                None => Runner::Kernel,
            };
            if runner != self.runner || is_distributed {
                self.open_group(runner);
            }
            let predicted = hop.cost_ns.map(|ns| format!("predicted {}", format_ns(ns)));
            let lines = [hop.kind.clone()].into_iter().chain(predicted).collect();
            let edge = self.make_edge(&hop.reach);
            self.add(edge, NodeKind::Function, &hop.name, lines);
            if shaped_behind == Some(i) {
                self.add_worker_shaper();
            }
        }
    }

    /// Adds the shaper of the worker that has the sockets. In a pipeline this worker is the first
    /// process, and a ring returns the packets to it.
    fn add_worker_shaper(&mut self) {
        let mut edge = Edge::default();
        let is_pipeline = self.plan.mapping == Mapping::Pipeline;
        if is_pipeline && self.runner != Runner::Process(0) {
            self.open_group(Runner::Process(0));
            edge.lines.push("ring".to_owned());
        }
        self.add(edge, NodeKind::Shaper, "shaper", Vec::new());
    }

    fn open_group(&mut self, runner: Runner) {
        self.runner = runner;
        let is_first = self.graph.groups.is_empty();
        let is_distributed = self.plan.mapping == Mapping::Distributed;
        let processes = self.plan.hops.iter().filter_map(|hop| hop.process);
        let driver = self.plan.ports.as_ref().map(|ports| ports.driver);
        let (title, area) = match runner {
            Runner::Kernel if is_first => {
                (format!("kernel, hook {}", self.plan.hook), Area::Kernel)
            }
            Runner::Kernel if is_distributed => ("kernel, own namespace".to_owned(), Area::Kernel),
            Runner::Kernel => ("kernel".to_owned(), Area::Kernel),
            Runner::Process(_) if driver == Some(PortDriver::Dpdk) => {
                ("user space, DPDK worker".to_owned(), Area::User)
            }
            Runner::Process(process) if processes.max() > Some(0) => {
                (format!("user space, worker {}", process + 1), Area::User)
            }
            Runner::Process(_) => ("user space, worker".to_owned(), Area::User),
            Runner::BlackBox => ("black box".to_owned(), Area::BlackBox),
        };
        self.graph.groups.push(Group {
            title,
            area,
            losses: None,
        });
    }

    /// Adds a node to the group that was opened last.
    fn add(&mut self, edge: Edge, kind: NodeKind, name: &str, lines: Vec<String>) {
        self.add_ungrouped(edge, kind, name, lines);
        let group = self.graph.groups.len().checked_sub(1);
        if let Some(node) = self.graph.nodes.last_mut() {
            node.group = group;
        }
    }

    /// Makes the edge of a step: the links, rings and redirects, then the cost.
    fn make_edge(&self, step: &Step) -> Edge {
        let is_behind_shaper =
            self.graph.nodes.last().map(|node| node.kind) == Some(NodeKind::Shaper);
        let is_distributed = self.plan.mapping == Mapping::Distributed;
        let crossing = |part: &str| match part {
            "enter_user" | "user_egress" if is_driven_by_worker(self.plan) => None,
            "enter_user" => Some("AF_XDP socket"),
            "user_egress" => Some("AF_XDP transmit"),
            // Each function of mapping `distributed` has a forwarder in the place of the door.
            "user_to_kernel" => (!is_distributed).then_some("re-entry door"),
            // The edge into the shaper shows the ring.
            "ring" => (!is_behind_shaper).then_some("ring"),
            "link" | "link_tcx" => Some("link"),
            "egress_xdp" | "egress_redirect" | "egress_tcx_peer" => Some("redirect"),
            _ => None,
        };
        let crossings = step.part_names().filter_map(crossing).map(str::to_owned);
        Edge {
            lines: crossings.chain([format_ns(step.cost_ns)]).collect(),
        }
    }

    /// Adds a port, or an end host if the plan names no ports.
    fn add_port(&mut self, edge: Edge, kind: NodeKind) {
        let Some(ports) = &self.plan.ports else {
            return self.add_ungrouped(edge, kind, "end host", Vec::new());
        };
        let name = match ports.driver {
            PortDriver::Kernel => "port",
            PortDriver::Dpdk => "device",
            PortDriver::Memory => "memory",
        };
        let port = match kind {
            NodeKind::Ingress => &ports.ingress,
            _ => &ports.egress,
        };
        let letters: Vec<char> = port.chars().collect();
        let lines = letters
            .chunks(PORT_COLUMNS)
            .map(String::from_iter)
            .collect();
        self.add_ungrouped(edge, kind, name, lines);
    }

    fn add_ungrouped(&mut self, edge: Edge, kind: NodeKind, name: &str, lines: Vec<String>) {
        if !self.graph.nodes.is_empty() {
            self.graph.edges.push(edge);
        }
        self.graph.nodes.push(Node {
            kind,
            group: None,
            name: name.to_owned(),
            lines,
            losses: Vec::new(),
        });
    }
}
