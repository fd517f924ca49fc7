//! The agents of a topology's nodes, as the manager of chains over nodes knows them.

use std::sync::Arc;

use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_manager::PartTakers;
use myelin_packet::MacAddr;

use crate::api::{ApiError, ChainStatus, ChainUp, Client, UpRequest};
use crate::node::Node;
use crate::node::node_agents::NodeAgent;
use crate::node::topologies::RunningTopology;
use crate::pool::lock;

/// The nodes of a topology as takers of parts.
pub(super) struct Nodes<'a> {
    pub(super) node: &'a Node,
    pub(super) topology: Arc<RunningTopology>,
}

impl Nodes<'_> {
    pub(super) fn agent(&self, node: &str) -> Result<&NodeAgent, ApiError> {
        self.topology.node(node).ok_or_else(|| {
            let topology = &self.topology.name;
            ApiError::failed(format!("the topology `{topology}` has no node `{node}`"))
        })
    }

    /// Asks the agent of a node, and asks again if it did not answer, but runs: the watcher may
    /// have started a successor meanwhile, which refuses connections until it is ready.
    /// `after_end` has the result if the agent has ended.
    fn ask<T>(
        &self,
        node: &str,
        request: &dyn Fn(&Client) -> Result<T, ApiError>,
        after_end: &dyn Fn(&NodeAgent, ApiError) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let agent = self.agent(node)?;
        let starts = agent.starts();
        let (is_connected, answer) = match agent.connect() {
            Ok(client) => (true, request(&client)),
            Err(error) => (false, Err(error)),
        };
        let Err(error) = answer else { return answer };
        if agent.has_ended() {
            return after_end(agent, error);
        }
        // Else the agent has refused the request.
        let is_lost = !is_connected || agent.starts() != starts;
        if !is_lost || agent.is_silent() {
            return Err(error);
        }
        request(&agent.connect()?)
    }

    /// Whether two nodes have one clock.
    pub(super) fn have_one_clock(&self, one: &str, other: &str) -> bool {
        let network = lock(&self.topology.network);
        network.topology().have_one_clock(one, other)
    }

    /// Returns the Ethernet address of an interface of a node or host.
    pub(super) fn address(&self, node: &str, interface: &str) -> Result<MacAddr, String> {
        let netns = {
            let network = lock(&self.topology.network);
            let host = network.hosts().find(|host| host.name == node);
            host.map(|host| host.netns)
        };
        let found = netns.map(|netns| {
            let mut netlink = Netlink::open_in(&Netns::open(&netns)?)?;
            netlink.link(interface)
        });
        let mac = match found {
            Some(Ok(link)) => link.mac.and_then(|mac| mac.to_string().parse().ok()),
            Some(Err(error)) => return Err(format!("`{node}`: {error}")),
            None => None,
        };
        mac.ok_or_else(|| {
            format!("the interface `{interface}` of `{node}` has no Ethernet address")
        })
    }
}

impl PartTakers for Nodes<'_> {
    fn take(&self, node: &str, request: &UpRequest) -> Result<ChainUp, ApiError> {
        let take = |client: &Client| client.up(request);
        let up = self
            .ask(node, &take, &|_, error| Err(error))?
            .into_iter()
            .next();
        up.ok_or_else(|| ApiError::failed("the agent took no part"))
    }

    fn remove(&self, node: &str, part: &str) -> Result<(), ApiError> {
        let remove = |client: &Client| {
            if client.list()?.iter().any(|status| status.chain == part) {
                client.down(part)?;
            }
            Ok(())
        };
        // What an ended agent left is removed before its successor starts.
        self.ask(node, &remove, &|agent, _| agent.revive(&self.node.parts))
    }

    fn status(&self, node: &str, part: &str) -> Result<Option<ChainStatus>, ApiError> {
        let client = self.agent(node)?.connect()?;
        let list = client.list()?;
        Ok(list.into_iter().find(|status| status.chain == part))
    }
}
