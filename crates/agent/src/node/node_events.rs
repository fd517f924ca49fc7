//! Events of the nodes of topologies: silence, ends and returns of their agents, and chains that
//! were brought up again.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::SystemTime;

use myelin_policy::sla::format_date;

use crate::api::{NodeEvent, NodeEventKind};
use crate::pool::lock;

/// The most events that the agent keeps. A new event replaces the oldest one.
const MAX_EVENTS: usize = 1000;

/// The events of all nodes, the oldest first.
#[derive(Default)]
pub(crate) struct NodeEvents {
    list: Mutex<VecDeque<NodeEvent>>,
}

impl NodeEvents {
    /// Records an event of a node, with the chain that it is about. Skips an event that repeats the
    /// node's last one, such as a second failed start.
    pub(crate) fn record(
        &self,
        (topology, node): (&str, &str),
        chain: Option<&str>,
        kind: NodeEventKind,
        text: String,
    ) {
        let mut list = lock(&self.list);
        let mut events = list.iter().rev();
        let last = events.find(|event| event.topology == topology && event.node == node);
        let is_repeated = last.is_some_and(|last| {
            last.kind == kind && last.text == text && last.chain.as_deref() == chain
        });
        if is_repeated {
            return;
        }
        let event = NodeEvent {
            serial: list.back().map_or(0, |last| last.serial) + 1,
            time: format_date(SystemTime::now()),
            topology: topology.to_owned(),
            node: node.to_owned(),
            chain: chain.map(str::to_owned),
            kind,
            text,
        };
        if list.len() == MAX_EVENTS {
            list.pop_front();
        }
        list.push_back(event);
    }

    /// Returns the events with a serial above `serial`, the oldest first.
    pub(crate) fn after(&self, serial: u64) -> Vec<NodeEvent> {
        let list = lock(&self.list);
        let later = list.iter().filter(|event| event.serial > serial);
        later.cloned().collect()
    }
}
