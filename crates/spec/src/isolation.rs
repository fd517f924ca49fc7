//! How a function is kept apart from the rest of the machine: in what, and with how much of it.

use serde::{Deserialize, Serialize};

use crate::error::Place;
use crate::words::word_enum;

/// Smallest CPU limit, thousandths of a core: the kernel takes quotas from 1 ms on, and with less the pauses in between
/// would pass 100 ms.
pub const MIN_CPU_MILLICORES: u32 = 10;

/// Smallest memory limit, bytes: a worker's packet memory takes 8 MiB, a container's start some more.
pub const MIN_MEMORY_BYTES: u64 = 16 << 20;

word_enum! {
    /// What a function's process stands in, in mapping `distributed`.
    #[derive(Default)]
    pub enum Isolation {
        /// A process of the host.
        #[default]
        Process = "process",
        /// An OCI container: namespaces, a read-only file system and few privileges of its own.
        Container = "container",
    }
}

/// What a function may use at most. What is `None` is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processor time, thousandths of a core.
    pub cpu_millicores: Option<u32>,
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
}

impl Limits {
    /// Whether anything is limited.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// A function's sandbox as the chain file asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// `isolation`: the function's own, else the chain's.
    pub isolation: Isolation,
    /// `limits`.
    pub limits: Limits,
    /// `rootfs`: directory that the container's files come from; absolute.
    pub rootfs: Option<String>,
    /// Where the function itself asks for a container or for limits. That takes a process, so it stands in user space.
    pub asked_at: Option<Place>,
}

impl SandboxSpec {
    /// What the function asks for, as an error or a plan names it; `None` for a plain process without limits.
    pub fn demand(&self) -> Option<&'static str> {
        match self.isolation {
            Isolation::Container => Some("isolation: container"),
            Isolation::Process => self.limits.any().then_some("limits"),
        }
    }
}
