//! The sandbox of a function, and its limits.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::FileLocation;
use crate::keys::field::Fields;
use crate::keys::words::word_enum;
use crate::keys::{ConfigKey, Readable, ValueType, config};
use crate::units::{self, format_memory_bytes};

/// Smallest CPU limit, thousandths of a core. The kernel accepts quotas of at least 1 ms; with a
/// smaller limit the pauses between two quotas would exceed 100 ms.
pub const MIN_CPU_MILLICORES: u32 = 10;

/// Smallest memory limit, bytes. A worker's UMEM needs 8 MiB, and the start of a container needs
/// more.
pub const MIN_MEMORY_BYTES: u64 = 16 << 20;

word_enum! {
    /// The sandbox of a function's process, with `mapping: distributed`.
    #[derive(Default)]
    pub enum Isolation {
        /// A process of the host.
        #[default]
        Process = "process",
        /// An OCI container: namespaces, a read-only file system and few privileges.
        Container = "container",
    }
}

config! {
    /// The limits of a function. `None` means no limit.
    #[derive(Copy)]
    pub struct Limits {
        /// The processor time: 10m to 4096cores.
        "cpu" cpu_millicores: Option<u32> = CPU, from cpu;
        /// The memory: at least 16MiB.
        "memory" memory_bytes: Option<u64> = MEMORY, from memory;
    }
}

const CPU: ConfigKey = ConfigKey::new(ValueType::Cpu).with_hint("0.5cores");
const MEMORY: ConfigKey = ConfigKey::new(ValueType::Memory).with_hint("256MiB");
/// A limit above the processor time of any machine.
const MAX_CPU_MILLICORES: u64 = 4_096_000;

fn cpu(fields: &Fields<'_>) -> Option<u32> {
    let range = MIN_CPU_MILLICORES.into()..=MAX_CPU_MILLICORES;
    let format = |value| units::CPU.format(value);
    let millicores = limit(fields, &CPU.named("cpu", ""), &range, format)?;
    millicores.try_into().ok()
}

fn memory(fields: &Fields<'_>) -> Option<u64> {
    let (key, range) = (MEMORY.named("memory", ""), MIN_MEMORY_BYTES..=1 << 50);
    limit(fields, &key, &range, format_memory_bytes)
}

fn limit(
    fields: &Fields<'_>,
    key: &ConfigKey,
    range: &RangeInclusive<u64>,
    format: fn(u64) -> String,
) -> Option<u64> {
    let field = fields.get(key.key)?;
    let value = u64::read(&field, key)?;
    if range.contains(&value) {
        return Some(value);
    }
    let (low, high) = (format(*range.start()), format(*range.end()));
    let nearest = if value < *range.start() { &low } else { &high };
    field.fault(
        format!("{} is out of range", format(value)),
        format!("{low} to {high}"),
        format!("write {nearest}, or remove the limit"),
    );
    None
}

impl Limits {
    /// Whether there is a limit.
    pub fn has_any(&self) -> bool {
        *self != Self::default()
    }
}

/// The sandbox of a function as the chain file requests it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// `isolation`: the function's own, else the chain's.
    pub isolation: Isolation,
    /// `limits`.
    pub limits: Limits,
    /// `rootfs`: the absolute path of the directory with the container's files.
    pub rootfs: Option<String>,
    /// The location of the function's own request for a container or limits. A container or a limit
    /// needs a process, so the function runs in user space.
    pub requested_at: Option<FileLocation>,
}

impl SandboxSpec {
    /// Returns the name of the requested sandbox or limits for errors and plans; `None` for a plain
    /// process without limits.
    pub fn demand(&self) -> Option<&'static str> {
        match self.isolation {
            Isolation::Container => Some("isolation: container"),
            Isolation::Process => self.limits.has_any().then_some("limits"),
        }
    }
}
