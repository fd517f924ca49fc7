//! The answers of `ps` and `flows`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use myelin_packet::{FlowState, HopCounters};
use myelin_planner::Plan;
use myelin_spec::Isolation;
use serde::{Deserialize, Serialize};

use super::{HostInfo, PacketAccount, SlaStatus};

/// State of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChainState {
    /// The chain processes packets.
    Active,
    /// A worker or a black box ended too often; the chain's `onFailure` rule applies.
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
    /// Its packet counters.
    #[serde(flatten)]
    pub counted: HopCounters,
    /// Mean processing time of the sampled packets, ns; absent until one packet was sampled.
    pub cost_ns: Option<f64>,
    /// Its container and limits, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxStatus>,
    /// Its own counters by name, as the kind's documentation lists them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The program of a black box (`kind: external`). Its `drops` are packets that entered and have
    /// not left, so they include packets in transit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub black_box: Option<BlackBoxStatus>,
}

/// A black box: a program that Myelin does not know.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlackBoxStatus {
    /// Its process number; absent while it does not run.
    pub pid: Option<u32>,
    /// Restarts.
    pub restarts: u64,
    /// How its last process ended, with the end of its output; absent if none has ended.
    pub last_end: Option<String>,
    /// File with its standard output and error.
    pub log: String,
    /// Resident memory of its process, KiB.
    pub resident_kib: u64,
    /// CPU time of all its processes and their children, ended ones included, s.
    pub cpu_s: f64,
    /// Packets that it forwarded.
    pub packets_out: u64,
    /// Packets that it sent back to the senders.
    pub packets_back: u64,
}

/// A function's container, limits and resource use since it came up, restarts included.
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
    /// Memory in use, bytes; includes memory shared with the agent that the function touched first.
    pub memory_bytes: u64,
    /// Periods (mostly of 10 ms) in which it used up its processor time.
    pub throttled_periods: u64,
    /// Time without the processor because of the limit, s.
    pub throttled_s: f64,
    /// Processes killed at the memory limit.
    pub oom_kills: u64,
    /// The container's name in `runc --root RUN_DIR/runc list`.
    pub container: Option<String>,
}

/// In-band sojourn (front door to egress) of all packets of a chain.
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

/// The shaper of a chain: its profile, and its counters over all generations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShaperStatus {
    /// The shaper: `worker`, or the egress interface's queueing discipline, `fq` or `htb`.
    pub by: String,
    /// Rate, packets a second.
    pub rate_pps: Option<u64>,
    /// Burst, packets.
    pub burst_packets: Option<u64>,
    /// Rate, bits a second.
    pub rate_bps: Option<u64>,
    /// Burst, bits.
    pub burst_bits: Option<u64>,
    /// Longest queue, packets.
    pub queue: u32,
    /// Longest time that a packet may wait, us.
    pub delay_us: f64,
    /// Packets that waited; `htb` does not count them.
    pub delayed: Option<u64>,
    /// Mean wait of those packets, us.
    pub mean_wait_us: Option<f64>,
    /// Packets dropped because the queue was full.
    pub drops_full: u64,
    /// Packets dropped because they would have waited longer than `delay_us`.
    pub drops_late: u64,
    /// Packets dropped because they are larger than the burst.
    pub drops_too_big: u64,
    /// Packets lost with a worker that ended.
    pub lost: u64,
    /// Packets in the queue now.
    pub waiting: u64,
    /// Longest queue so far, packets.
    pub most_waiting: Option<u64>,
    /// Whether the time in the queue is part of the sojourn.
    pub in_sojourn: bool,
}

/// A worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerStatus {
    /// Its process number.
    pub pid: u32,
    /// Restarts.
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
    /// Its generation. Counters of functions cover this generation, counters of the chain all of
    /// them.
    pub generation: u16,
    /// Its state.
    pub state: ChainState,
    /// Whether it has no guarantee: deployed with `--force` against admission, or a core of its
    /// workers is lost (`lost_cores` of `sla`).
    #[serde(default)]
    pub best_effort: bool,
    /// The worst-case delay at admission, ns; absent for a chain without a bound.
    #[serde(default)]
    pub bound_ns: Option<u64>,
    /// The deployed plan.
    pub plan: Box<Plan>,
    /// Its mapping: how functions are placed in processes.
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
    /// Packets above the profile, which the policer dropped.
    #[serde(default)]
    pub policed: u64,
    /// Bytes of those, as the policer counts them.
    #[serde(default)]
    pub policed_bytes: u64,
    /// Packets that left at its egress.
    pub packets_out: u64,
    /// Packets that its functions and its shaper dropped.
    pub drops: u64,
    /// The account of its packets.
    #[serde(default)]
    pub account: PacketAccount,
    /// Time since its last packet came in, ms; absent if none came.
    pub last_packet_ms_ago: Option<f64>,
    /// Its functions.
    pub hops: Vec<HopStatus>,
    /// Its shaper at the egress; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<ShaperStatus>,
    /// Its in-band sojourn; absent where black boxes divide it into sections, since the time inside
    /// them is not measured.
    pub sojourn: Option<SojournStatus>,
    /// The sojourn of each section of a chain with black boxes: from the front door to the first,
    /// from one to the next, from the last to the egress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_sections: Vec<SojournStatus>,
    /// Its worker, if it has user functions; the first if each function has its own worker.
    pub worker: Option<WorkerStatus>,
    /// The workers of its other user functions, if each has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_workers: Vec<WorkerStatus>,
    /// The rings between its processes, in mapping `pipeline`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingStatus>,
    /// Its end hosts, where Myelin made them.
    pub hosts: Vec<HostInfo>,
    /// Its contract and the measured figures; absent in its first second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla: Option<Box<SlaStatus>>,
    /// Seconds since it came up.
    pub up_s: f64,
}

/// The flows of a function that keeps a table of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionFlows {
    /// The chain's name.
    pub chain: String,
    /// The function's name in it.
    pub function: String,
    /// Its kind.
    pub kind: String,
    /// `kernel` or `user`.
    pub space: String,
    /// Flows that began; null for `nat`, which counts none.
    pub begun: Option<u64>,
    /// Flows that the full table evicted for new ones; null for `nat`.
    pub evicted: Option<u64>,
    /// Packets that belong to no flow; null for `nat`.
    pub outside: Option<u64>,
    /// The flows in the table, the one with the most bytes first; for `nat` its mappings.
    pub flows: Vec<FlowStatus>,
}

/// One flow, or one mapping of a `nat`. Fields that the function does not keep are null. Bytes are
/// those of whole frames, with the Ethernet header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowStatus {
    /// The flow as text, in the direction of its first packet: `udp 10.0.0.1:5000 >
    /// 10.0.0.2:9000`. For a mapping the protocol and the inside endpoint: `udp 10.0.0.1:5000`.
    pub flow: String,
    /// IP protocol number.
    pub protocol: u8,
    /// Source of its first packet; for a mapping the inside address.
    pub source: IpAddr,
    /// Its port; null for fragments and other protocols than UDP and TCP. For a mapping of an ICMP
    /// echo the identifier.
    pub source_port: Option<u16>,
    /// Destination of its first packet; null for a mapping, which applies to all destinations.
    pub destination: Option<IpAddr>,
    /// Its port.
    pub destination_port: Option<u16>,
    /// The source that `nat` gives the packets.
    pub translated: Option<Endpoint>,
    /// The backend to which `load-balancer` sends the packets.
    pub backend: Option<IpAddr>,
    /// State of the flow, from `flow-tracker`.
    pub state: Option<FlowState>,
    /// Packets in the direction of the first one.
    pub packets: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
    /// Packets in the other direction, from `flow-tracker`.
    pub reply_packets: Option<u64>,
    /// Their bytes.
    pub reply_bytes: Option<u64>,
    /// Time since its first packet, ms.
    pub age_ms: Option<f64>,
    /// Time since its last packet, ms.
    pub last_packet_ms_ago: Option<f64>,
    /// Time until it expires unless a packet renews it, ms.
    pub expires_in_ms: Option<f64>,
}

/// An address with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The port, or the identifier of an ICMP echo.
    pub port: u16,
}
