//! The settings of a new worker.

use std::sync::Arc;

use myelin_spec::{SandboxSpec, WorkerSpec};

use crate::api::ApiError;
use crate::node::Parts;
use crate::node::confinement::{Confinement, ConfinementSpec, GroupTurns};

/// Largest MTU for which frames of 2 KiB have room: headroom, headers and the bytes that functions
/// add.
pub(super) const SMALL_FRAME_MTU: u32 = 1600;

/// The settings of a new worker.
#[derive(Clone, Copy)]
pub(crate) struct WorkerStart<'a> {
    pub(crate) spec: &'a WorkerSpec,
    pub(crate) core: u32,
    pub(crate) sandbox: &'a SandboxSpec,
    /// Longest IP packet of the chain's ports, bytes.
    pub(crate) mtu: u32,
    pub(crate) parts: &'a Parts,
}

impl WorkerStart<'_> {
    /// Whether the UMEM needs frames of 4 KiB.
    pub(super) fn needs_large_frames(&self) -> bool {
        self.mtu > SMALL_FRAME_MTU && !self.spec.super_packets
    }
}

/// Makes the control group and the container of a worker with limits or isolation.
pub(super) fn create_confinement(
    name: &str,
    start: WorkerStart<'_>,
) -> Result<Option<Arc<Confinement>>, ApiError> {
    if start.sandbox.demand().is_none() {
        return Ok(None);
    }
    // The worker does not run in the function's namespace, because the worker outlives the
    // namespace's generation. The agent passes the sockets to the worker.
    let demand = ConfinementSpec {
        name,
        parent_group: &start.parts.cgroup,
        isolation: start.sandbox.isolation,
        limits: start.sandbox.limits,
        rootfs: None,
        netns: None,
        user: None,
        turns: GroupTurns::default(),
    };
    let confinement = Confinement::create(&demand, &start.parts.run_dir, &start.parts.journal)?;
    Ok(Some(Arc::new(confinement)))
}
