//! Containers in hosts of topologies, and their images.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Request to start a container in a host. It lies in the host's network namespace and below the
/// host's control group, so all containers of a host share its limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerRequest {
    /// The host, or `TOPOLOGY/HOST`.
    pub host: String,
    /// The container's name, unique in the host.
    pub name: String,
    /// The files of the container.
    #[serde(default)]
    pub image: ContainerImage,
    /// The program and its arguments. Empty: those of the image.
    #[serde(default)]
    pub command: Vec<String>,
    /// Environment variables besides those of the image.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Limits of the container's own.
    #[serde(default)]
    pub limits: ContainerLimits,
    /// How long the agent watches the program after its start, ms; at most a minute. The answer
    /// comes with the end of the program, or after this time.
    #[serde(default)]
    pub watch_ms: u64,
}

/// The files of a container. The container cannot write them; `/tmp` and `/run` are its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContainerImage {
    /// The machine's files.
    #[default]
    Machine,
    /// The files of a directory, by its absolute path.
    Directory(String),
    /// An image that `myelin image import` stored.
    Stored(String),
}

/// Limits of a container. `None`: only the limits of the host hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerLimits {
    /// Processor time, thousandths of a core.
    #[serde(default)]
    pub cpu_millicores: Option<u32>,
    /// Memory, bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// The name of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerName {
    /// The host, or `TOPOLOGY/HOST`.
    pub host: String,
    /// The container's name in the host.
    pub name: String,
}

/// Request to change limits of a running container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerLimitsRequest {
    /// The container.
    #[serde(flatten)]
    pub container: ContainerName,
    /// The new limits. `None`: the limit stays.
    pub limits: ContainerLimits,
}

/// A container, and the resources that it has used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerStatus {
    /// The topology.
    pub topology: String,
    /// The host.
    pub host: String,
    /// The container's name in the host.
    pub name: String,
    /// The container's name in `runc list`.
    pub id: String,
    /// The files.
    pub image: ContainerImage,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The process number of the program on the machine; `None`: it has ended.
    pub pid: Option<u32>,
    /// The end of the program in words; `None`: it runs.
    pub end: Option<String>,
    /// The exit status of the program, if it has ended by itself and the kernel tells the status
    /// (Linux 6.15 or newer).
    pub exit_code: Option<i32>,
    /// Whether a signal ended the program, or its exit status is not 0.
    #[serde(default)]
    pub has_failed: bool,
    /// The last lines of the output, if the program has ended.
    #[serde(default)]
    pub last_lines: Vec<String>,
    /// The user whom the container's root is outside of it; `None`: root.
    pub user: Option<u32>,
    /// The limits of the container's own.
    pub limits: ContainerLimits,
    /// Processor time, s.
    pub cpu_s: f64,
    /// Memory in use, bytes.
    pub memory_bytes: u64,
    /// Periods in which the container used up its processor time.
    pub throttled_periods: u64,
    /// Time during which the container waited for processor time, s.
    pub throttled_s: f64,
    /// Processes that the kernel killed at the memory limit.
    pub oom_kills: u64,
    /// Time that the start took, ms.
    pub start_ms: f64,
    /// Time since the start, s.
    pub up_s: f64,
}

/// The output of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerLog {
    /// The end of output and errors, at most 1 MiB. Bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// Request to store the image of an OCI archive. Only users with all rights may send it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImageRequest {
    /// The new name.
    pub name: String,
    /// The absolute path of the archive.
    pub archive: String,
}

/// A stored image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImageStatus {
    /// The image's name.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables, `NAME=VALUE`.
    pub env: Vec<String>,
    /// Number of layers in the archive.
    pub layers: u64,
    /// Number of files, directories and links of all layers.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
}
