//! Adds to a running topology what its new description has more.

use std::sync::Arc;

use myelin_emulator::Growth;
use myelin_spec::Topology;

use crate::api::ApiError;
use crate::node::topologies::RunningTopology;
use crate::node::{Parts, netem};
use crate::pool::lock;

/// An addition to a running topology. Dropping the value removes it again, unless it is kept.
pub(crate) struct Growing {
    topology: Arc<RunningTopology>,
    declared_before: Topology,
    growth: Option<Growth>,
}

impl Growing {
    /// Adds what `wanted` has more; `None` if it has nothing more. The caller has reserved the
    /// name.
    ///
    /// # Errors
    /// `wanted` lacks or changes a part, or the addition cannot be made. Nothing is added.
    pub(crate) fn start(
        parts: &Parts,
        topology: &Arc<RunningTopology>,
        wanted: &Topology,
    ) -> Result<Option<Self>, ApiError> {
        let (name, place) = (&wanted.name, &wanted.place);
        let failed = |cause: String| {
            ApiError::failed(format!(
                "{place}: topology `{name}` runs with another description: {cause}, and `myelin down {name}` removes it"
            ))
        };
        let mut growing = {
            let mut network = lock(&topology.network);
            let declared = lock(&topology.declared).clone();
            let grown = network.topology().grown(&declared, wanted);
            let grown = grown.map_err(failed)?;
            if grown == *network.topology() {
                return Ok(None);
            }
            let growth = network.grow(&grown, &parts.journal);
            let growth = growth.map_err(|error| ApiError::failed(format!("{place}: {error}")))?;
            Self {
                topology: Arc::clone(topology),
                declared_before: declared,
                growth: Some(growth),
            }
        };
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

    /// Keeps the addition, because the request has succeeded.
    pub(crate) fn keep(mut self) {
        self.growth = None;
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let Some(growth) = self.growth.take() else {
            return;
        };
        let mut network = lock(&self.topology.network);
        let (first, links) = (growth.links_before(), network.topology().links.len());
        let released = self.topology.line.release_from(first, links);
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
