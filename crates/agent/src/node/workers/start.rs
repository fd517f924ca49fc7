//! The settings of a new worker.

use myelin_spec::{SandboxSpec, WorkerSpec};

use crate::node::Parts;

/// Largest MTU for which frames of 2 KiB have room: headroom, headers and the bytes that functions
/// add.
pub(super) const SMALL_FRAME_MTU: u32 = 1600;
/// The settings of a new worker.
#[derive(Clone, Copy)]
pub(crate) struct WorkerStart<'a> {
    pub(crate) spec: &'a WorkerSpec,
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
