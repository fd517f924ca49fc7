//! Adds to a running topology what its new description has more, and removes what it lacks.

use std::collections::BTreeSet;
use std::sync::Arc;

use myelin_emulator::Growth;
use myelin_linux::netns::Netns;
use myelin_linux::process;
use myelin_spec::{Removal, Topology};

use super::topology::users_of;
use crate::api::ApiError;
use crate::node::topologies::RunningTopology;
use crate::node::{Node, Parts, netem};
use crate::pool::lock;

/// An addition to a running topology. Dropping the value removes it again, unless it is kept. What
/// the new description lacks goes after that.
pub(crate) struct Growing {
    topology: Arc<RunningTopology>,
    declared_before: Topology,
    growth: Option<Growth>,
    removal: Removal,
}

impl Growing {
    /// Adds what `wanted` has more; `None` if it has nothing more. The caller has reserved the
    /// name.
    ///
    /// # Errors
    /// `wanted` changes a part or lacks one that a chain uses, or the addition cannot be made.
    /// Nothing is added.
    pub(crate) fn start(
        node: &Node,
        topology: &Arc<RunningTopology>,
        wanted: &Topology,
    ) -> Result<Option<Self>, ApiError> {
        let (name, place) = (&wanted.name, &wanted.place);
        let failed = |cause: String| {
            ApiError::failed(format!(
                "{place}: topology `{name}` runs with another description: {cause}, and `myelin down {name}` removes it"
            ))
        };
        let parts = &node.parts;
        let change = {
            let network = lock(&topology.network);
            let declared = lock(&topology.declared).clone();
            let change = network.topology().change_to(&declared, wanted);
            change.map_err(failed)?
        };
        check_unused(node, topology, &change.removal)
            .map_err(|error| ApiError::failed(format!("{place}: {error}")))?;
        let mut growing = Self {
            topology: Arc::clone(topology),
            declared_before: lock(&topology.declared).clone(),
            growth: None,
            removal: change.removal,
        };
        let mut network = lock(&topology.network);
        if change.grown == *network.topology() {
            drop(network);
            return Ok((!growing.removal.is_empty()).then_some(growing));
        }
        let growth = network.grow(&change.grown, &parts.journal);
        drop(network);
        growing.growth =
            Some(growth.map_err(|error| ApiError::failed(format!("{place}: {error}")))?);
        growing
            .finish(parts)
            .map_err(|error| ApiError::failed(format!("{place}: topology `{name}`: {error}")))?;
        tracing::info!(topology = name, "has grown");
        Ok(Some(growing))
    }

    /// Impairs the new links, and records the description.
    fn finish(&mut self, parts: &Parts) -> Result<(), ApiError> {
        let network = lock(&self.topology.network);
        let first = self.growth.as_ref().map_or(0, Growth::links_before);
        self.topology.line.impair_from(first, parts, &network)?;
        netem::impair_from(first, &network).map_err(ApiError::failed)?;
        let grown = network.topology();
        let before = &self.declared_before;
        let mut declared = before.clone();
        declared
            .hosts
            .extend_from_slice(&grown.hosts[before.hosts.len()..]);
        declared
            .switches
            .extend_from_slice(&grown.switches[before.switches.len()..]);
        declared
            .links
            .extend_from_slice(&grown.links[before.links.len()..]);
        *lock(&self.topology.declared) = declared;
        Ok(())
    }

    /// Keeps the addition, because the request has succeeded, and removes what the new description
    /// lacks.
    ///
    /// # Errors
    /// A chain of the request uses a part to remove, or a system error. What could be removed is
    /// removed.
    pub(crate) fn keep(mut self, node: &Node) -> Result<(), ApiError> {
        self.growth = None;
        if self.removal.is_empty() {
            return Ok(());
        }
        check_unused(node, &self.topology, &self.removal)?;
        remove(&self.topology, &self.removal)
    }
}

/// Refuses the removal of parts that chains use.
fn check_unused(
    node: &Node,
    topology: &RunningTopology,
    removal: &Removal,
) -> Result<(), ApiError> {
    if removal.is_empty() {
        return Ok(());
    }
    let ports: BTreeSet<String> = {
        let network = lock(&topology.network);
        network.ports_of(removal).map(str::to_owned).collect()
    };
    let users = users_of(node, topology, &|_, port| ports.contains(port));
    if users.is_empty() {
        return Ok(());
    }
    let parts = removal.hosts.iter().chain(&removal.switches);
    let parts: Vec<&str> = parts.chain(&removal.links).map(String::as_str).collect();
    Err(ApiError::failed(format!(
        "topology `{}`: chains use what the new description lacks ({}): run `myelin down {}` first",
        topology.name,
        parts.join(", "),
        users.join(" ")
    )))
}

/// Removes parts of a topology that no chain uses, with the programs on the hosts.
fn remove(topology: &RunningTopology, removal: &Removal) -> Result<(), ApiError> {
    for host in &removal.hosts {
        topology.containers.remove_all(host);
    }
    // The programs end without the lock: who waits for their end may need the network.
    let hosts: Vec<_> = lock(&topology.network).hosts().collect();
    let hosts = hosts
        .iter()
        .filter(|host| removal.hosts.contains(&host.name));
    let hosts: Vec<_> = hosts
        .filter_map(|host| Netns::open(&host.netns).ok())
        .collect();
    if let Err(error) = process::kill_in_namespaces(&hosts) {
        tracing::warn!(%error, "programs of removed hosts go on");
    }
    drop(hosts);
    let mut network = lock(&topology.network);
    let links = network.topology().links.iter().enumerate();
    let links = links.filter(|(_, link)| removal.links.contains(&link.name));
    let released = topology
        .line
        .release(links.map(|(position, _)| position), &network);
    let mut declared = lock(&topology.declared);
    *declared = declared_without(&declared, network.topology(), removal);
    let removed = network.remove(removal).map_err(ApiError::failed);
    let name = &topology.name;
    tracing::info!(topology = name, ?removal, "has lost parts");
    released.and(removed)
}

/// Returns the declared topology without removed parts. Its links have the order of the running
/// ones, but perhaps other names.
fn declared_without(declared: &Topology, running: &Topology, removal: &Removal) -> Topology {
    let links = declared.links.iter().zip(&running.links);
    let links = links.filter(|(_, now)| !removal.links.contains(&now.name));
    let links = links.map(|(before, _)| before.clone()).collect();
    Topology {
        links,
        ..removal.apply(declared)
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let Some(growth) = self.growth.take() else {
            return;
        };
        let mut network = lock(&self.topology.network);
        let positions = growth.links_before()..network.topology().links.len();
        let released = self.topology.line.release(positions, &network);
        *lock(&self.topology.declared) = self.declared_before.clone();
        let undone = network.undo(&growth);
        let topology = &self.topology.name;
        if let Err(error) = released {
            tracing::error!(topology, %error, "cannot release links");
        }
        if let Err(error) = undone {
            tracing::error!(topology, %error, "cannot remove an addition");
        }
    }
}
