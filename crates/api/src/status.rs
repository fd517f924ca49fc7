//! What `ps` and `flows` show.

use std::collections::BTreeMap;
use std::net::IpAddr;

use myelin_packet::{FlowState, HopCounters};
use myelin_spec::Isolation;
use serde::{Deserialize, Serialize};

use super::{HostInfo, PacketAccount, SlaStatus};

/// State of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChainState {
    /// Packets are processed.
    Active,
    /// Its worker, or the program of a black box, kept dying; the chain's `onFailure` rule applies.
    Failed,
}

/// One hop of a running chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HopStatus {
    /// Position in the chain.
    pub position: u8,
    /// The function's name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// `kernel` or `user`.
    pub space: String,
    /// What it counted.
    #[serde(flatten)]
    pub counted: HopCounters,
    /// Mean processing time of the sampled packets, ns; absent until one was sampled.
    pub cost_ns: Option<f64>,
    /// What it stands in, where that is a container or has limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxStatus>,
    /// What it counts besides, by its own names; kinds that do list them in their documentation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The program, of a black box (`kind: external`). Its `drops` are what went in and has not come out, so packets under way
    /// are among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub black_box: Option<BlackBoxStatus>,
}

/// A black box: a program that nothing is known of.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlackBoxStatus {
    /// Its process; absent while none runs.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// How the last one ended, with the end of what it wrote; absent when none has.
    pub last_end: Option<String>,
    /// File with what it writes to its standard output and error.
    pub log: String,
    /// Resident memory of its process, KiB.
    pub resident_kib: u64,
    /// CPU time that it and its children used, ended ones included, s.
    pub cpu_s: f64,
    /// Packets that it let through.
    pub packets_out: u64,
    /// Packets that it sent back to the senders.
    pub packets_back: u64,
}

/// A container, a function's limits, and what the function has used since it came up, restarts included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxStatus {
    /// `process` or `container`.
    pub isolation: Isolation,
    /// Limit of processor time, cores.
    pub cpu_limit_cores: Option<f64>,
    /// Limit of memory, bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Processor time used, s.
    pub cpu_s: f64,
    /// Memory in use, bytes, with what it shares with the agent and has touched first.
    pub memory_bytes: u64,
    /// Periods (mostly of 10 ms) in which it had used its processor time up.
    pub throttled_periods: u64,
    /// How long it stood still for that, s.
    pub throttled_s: f64,
    /// How often one of its processes was killed at the memory limit.
    pub oom_kills: u64,
    /// The container's name, as `runc --root RUN_DIR/runc list` has it.
    pub container: Option<String>,
}

/// In-band sojourn (front door to egress) of all of a chain's traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SojournStatus {
    /// Packets measured.
    pub packets: u64,
    /// Mean, us.
    pub mean_us: f64,
    /// Median, us.
    pub p50_us: f64,
    /// 99th percentile, us.
    pub p99_us: f64,
    /// 99.9th percentile, us.
    pub p99_9_us: f64,
    /// Largest, us.
    pub max_us: f64,
}

/// The shaper of a chain: what it holds departing packets to, and what it did over all generations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShaperStatus {
    /// Who shapes: `worker`, or the egress interface's queueing discipline, `fq` or `htb`.
    pub by: String,
    /// Rate, packets a second.
    pub rate_pps: Option<u64>,
    /// Burst, packets.
    pub burst_packets: Option<u64>,
    /// Rate, bits a second.
    pub rate_bps: Option<u64>,
    /// Burst, bits.
    pub burst_bits: Option<u64>,
    /// Packets that may wait.
    pub queue: u32,
    /// How long a packet may wait, us.
    pub delay_us: f64,
    /// Packets that had to wait; `htb` does not count them.
    pub delayed: Option<u64>,
    /// How long they waited in the mean, us.
    pub mean_wait_us: Option<f64>,
    /// Packets dropped because the queue was full.
    pub drops_full: u64,
    /// Packets dropped because they would have waited too long.
    pub drops_late: u64,
    /// Packets dropped because they are larger than the burst.
    pub drops_too_big: u64,
    /// Packets that waited in a worker that died.
    pub lost: u64,
    /// Packets that wait now.
    pub waiting: u64,
    /// The most that ever waited.
    pub most_waiting: Option<u64>,
    /// Whether the time in the queue is part of the sojourn.
    pub in_sojourn: bool,
}

/// A worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerStatus {
    /// Its process.
    pub pid: u32,
    /// How often it was started again.
    pub restarts: u64,
    /// Resident memory, KiB.
    pub resident_kib: u64,
    /// CPU time used, s.
    pub cpu_s: f64,
}

/// A descriptor ring between two processes of a chain in mapping `pipeline`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RingStatus {
    /// Position of the function whose process sends; absent for the first process.
    pub from: Option<u8>,
    /// Position of the function whose process receives; absent for the first process.
    pub to: Option<u8>,
    /// Descriptors it can hold.
    pub capacity: u32,
    /// Descriptors in it now.
    pub occupancy: u32,
    /// Descriptors put in since it was made.
    pub enqueued: u64,
    /// Descriptors taken out since it was made.
    pub dequeued: u64,
}

/// A running chain, as `ps` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChainStatus {
    /// The chain's name.
    pub chain: String,
    /// Its owner.
    pub owner: String,
    /// Its service path identifier.
    pub spi: u32,
    /// Its generation; the figures of its functions are of this one, those of the chain of all.
    pub generation: u16,
    /// Its state.
    pub state: ChainState,
    /// Whether nothing is promised: it was refused by admission and deployed all the same, or a core of its workers was taken away
    /// (`lost_cores` of `sla`).
    #[serde(default)]
    pub best_effort: bool,
    /// The worst-case delay that it was admitted with, ns; absent where it has none.
    #[serde(default)]
    pub bound_ns: Option<u64>,
    /// How its functions are laid out.
    pub mapping: String,
    /// `xdp` or `tcx`.
    pub hook: String,
    /// Ingress interface.
    pub ingress: String,
    /// Egress interface.
    pub egress: String,
    /// Packets classified to it at the front door.
    pub packets_in: u64,
    /// Bytes classified to it at the front door.
    pub bytes_in: u64,
    /// Those of them that the policer dropped, above the chain's profile.
    #[serde(default)]
    pub policed: u64,
    /// The bytes of these, as the policer counts them.
    #[serde(default)]
    pub policed_bytes: u64,
    /// Packets that left at its egress.
    pub packets_out: u64,
    /// Packets that its functions and its shaper dropped.
    pub drops: u64,
    /// Where its packets are.
    #[serde(default)]
    pub account: PacketAccount,
    /// When its last packet came in, ms ago; absent when none ever came.
    pub last_packet_ms_ago: Option<f64>,
    /// Its functions.
    pub hops: Vec<HopStatus>,
    /// What shapes its traffic where it leaves; absent where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<ShaperStatus>,
    /// Its in-band sojourn; absent where black boxes cut it into sections, for nothing tells how long a packet was in them.
    pub sojourn: Option<SojournStatus>,
    /// The sojourn of each section, where there are black boxes: from the front door to the first one, from one to the next,
    /// from the last one to the egress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_sections: Vec<SojournStatus>,
    /// Its worker, when it has user functions; the first one where each of them has its own.
    pub worker: Option<WorkerStatus>,
    /// The workers of its further user functions, where each has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_workers: Vec<WorkerStatus>,
    /// The rings between its processes, in mapping `pipeline`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingStatus>,
    /// Its end hosts, where Myelin made them.
    pub hosts: Vec<HostInfo>,
    /// Its contract against what was measured; absent in its first second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla: Option<Box<SlaStatus>>,
    /// Seconds since it came up.
    pub up_s: f64,
}

/// What a function that keeps a table of flows knows of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionFlows {
    /// The chain.
    pub chain: String,
    /// The function's name in it.
    pub function: String,
    /// Its kind.
    pub kind: String,
    /// `kernel` or `user`.
    pub space: String,
    /// Flows that began.
    pub begun: u64,
    /// Flows that had to make room for others in the full table.
    pub evicted: u64,
    /// Packets that belong to no flow.
    pub outside: u64,
    /// The flows in the table, that of the most bytes first.
    pub flows: Vec<FlowStatus>,
}

/// One flow. Bytes are those of whole frames, with the Ethernet header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowStatus {
    /// How it is written: `udp 10.0.0.1:5000 > 10.0.0.2:9000`, in the direction of its first packet.
    pub flow: String,
    /// IP protocol number.
    pub protocol: u8,
    /// Source of its first packet.
    pub source: IpAddr,
    /// Its port; absent for fragments and other protocols than UDP and TCP.
    pub source_port: Option<u16>,
    /// Destination of its first packet.
    pub destination: IpAddr,
    /// Its port.
    pub destination_port: Option<u16>,
    /// How far it has come, from functions that follow flows.
    pub state: Option<FlowState>,
    /// Packets in the direction of the first one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets the other way, from functions that see both.
    pub reply_packets: u64,
    /// Their bytes.
    pub reply_bytes: u64,
    /// When its first packet came, ms ago.
    pub age_ms: f64,
    /// When its last one came, ms ago.
    pub last_packet_ms_ago: f64,
}
