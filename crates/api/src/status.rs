//! The answers of `ps` and `flows`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use myelin_packet::sojourn::Histogram;
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
    /// An interface of the chain is gone or down. `port_faults` says which one.
    Waiting,
    /// A worker or a black box ended too often, so the chain's `onFailure` rule applies.
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
    /// The function's kind.
    pub kind: String,
    /// `kernel` or `user`.
    pub space: String,
    /// The function's packet counters.
    #[serde(flatten)]
    pub counted: HopCounters,
    /// Mean processing time of the sampled packets, ns; absent until the first sample.
    pub cost_ns: Option<f64>,
    /// The function's container and limits; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxStatus>,
    /// Counters that only this kind of function has, by name. The kind's reference page lists them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The program of a black box (`kind: external`). The `drops` of a black box are packets that
    /// entered and have not left, so they include packets in transit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub black_box: Option<BlackBoxStatus>,
}

/// The program of a black box.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlackBoxStatus {
    /// Process number; absent while the program does not run.
    pub pid: Option<u32>,
    /// Number of restarts.
    pub restarts: u64,
    /// Exit status of the last process, and the last lines of its output; absent if no process has
    /// ended.
    pub last_end: Option<String>,
    /// File with the program's standard output and error.
    pub log: String,
    /// Resident memory of the process, KiB.
    pub resident_kib: u64,
    /// CPU time of all processes of the black box and their children, including ended processes, s.
    pub cpu_s: f64,
    /// Packets that the program forwarded.
    pub packets_out: u64,
    /// Packets that the program sent back to the senders.
    pub packets_back: u64,
}

/// A function's container, limits and resource use since the chain came up, including restarts.
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
    /// Periods (mostly of 10 ms) in which the function used up its processor time.
    pub throttled_periods: u64,
    /// Time in which the limit kept the function from the processor, s.
    pub throttled_s: f64,
    /// Processes that the kernel killed at the memory limit.
    pub oom_kills: u64,
    /// The container's name in `runc --root RUN_DIR/runc list`.
    pub container: Option<String>,
}

/// In-band sojourn (front door to egress) of all packets of a chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SojournStatus {
    /// Number of measured packets.
    pub packets: u64,
    /// Mean sojourn, us.
    pub mean_us: f64,
    /// Median sojourn, us.
    pub p50_us: f64,
    /// 99th percentile of the sojourn, us.
    pub p99_us: f64,
    /// 99.9th percentile of the sojourn, us.
    pub p99_9_us: f64,
    /// Longest sojourn, us.
    pub max_us: f64,
}

impl From<&Histogram> for SojournStatus {
    /// Computes the statistics of a histogram.
    fn from(sojourn: &Histogram) -> Self {
        let us = |quantile: f64| sojourn.quantile(quantile).map_or(0.0, |ns| ns as f64 / 1e3);
        Self {
            packets: sojourn.count(),
            mean_us: sojourn.mean_ns().map_or(0.0, |ns| ns / 1e3),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p99_9_us: us(0.999),
            max_us: us(1.0),
        }
    }
}

/// The profile of a chain's shaper, and the counters over all generations.
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
    /// Capacity of the queue, packets.
    pub queue: u32,
    /// Longest time that a packet may wait, us.
    pub delay_us: f64,
    /// Packets that waited; absent for `htb`, which does not count them.
    pub delayed: Option<u64>,
    /// Mean wait of the packets that waited, us; only for `worker`.
    pub mean_wait_us: Option<f64>,
    /// Packets dropped because the queue was full.
    pub drops_full: u64,
    /// Packets dropped because they would have waited longer than `delay_us`.
    pub drops_late: u64,
    /// Packets dropped because they are larger than the burst.
    pub drops_too_big: u64,
    /// Packets that waited in a worker when it ended.
    pub lost: u64,
    /// Packets in the queue now.
    pub waiting: u64,
    /// Largest number of waiting packets so far; only for `worker`.
    pub most_waiting: Option<u64>,
    /// Whether the time in the queue is part of the sojourn.
    pub in_sojourn: bool,
}

/// A worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerStatus {
    /// Process number.
    pub pid: u32,
    /// Number of restarts.
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
    /// Capacity of the ring, descriptors.
    pub capacity: u32,
    /// Descriptors in the ring now.
    pub occupancy: u32,
    /// Descriptors put into the ring since its creation.
    pub enqueued: u64,
    /// Descriptors taken from the ring since its creation.
    pub dequeued: u64,
}

/// The wires of a part to the nodes of the previous and the next part. Counts since the part came
/// up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartStatus {
    /// Packets that arrived from the previous node; absent in the first part.
    pub received: Option<u64>,
    /// Of the received packets: those with a stamp of this machine's clock. Their sojourn begins
    /// where they entered the whole chain, that of all others where they entered this part.
    pub stamped: u64,
    /// Packets that left to the next node; absent in the last part.
    pub sent: Option<u64>,
    /// Packets that are, with the headers between nodes, too long for the interface to the next
    /// node. The account counts them as lost at the egress, like the next ones.
    pub too_long: u64,
    /// Packets for a node whose Ethernet address is unknown.
    pub unresolved: u64,
    /// Frames with NSH whose headers no node writes so. These and the next counts are of the part's
    /// interfaces, for all parts there. The frames are not in `packets_in`.
    pub malformed: u64,
    /// Frames with NSH of a path, or with an index, that no part here has.
    pub unknown: u64,
    /// Frames with NSH that do not come from the part's neighbour.
    pub foreign: u64,
    /// Frames with NSH at the end of their time to live.
    pub expired: u64,
}

/// A running chain, as `ps` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChainStatus {
    /// The chain's name.
    pub chain: String,
    /// The chain's owner.
    pub owner: String,
    /// The chain's service path identifier.
    pub spi: u32,
    /// The current generation. Counters of functions cover this generation, counters of the chain
    /// cover all generations.
    pub generation: u16,
    /// Whether the chain processes packets.
    pub state: ChainState,
    /// Whether the chain has no guarantee, because `--force` deployed it against admission, or
    /// because its workers have lost a core (`lost_cores` of `sla`).
    #[serde(default)]
    pub best_effort: bool,
    /// The worst-case delay at admission, ns; absent for a chain without a bound.
    #[serde(default)]
    pub bound_ns: Option<u64>,
    /// The deployed plan.
    pub plan: Box<Plan>,
    /// The chain's mapping of functions to processes.
    pub mapping: String,
    /// The hook at the ingress: `xdp`, `tcx`, `dpdk` or `memory`.
    pub hook: String,
    /// Ingress interface, by its present name.
    pub ingress: String,
    /// Egress interface, by its present name.
    pub egress: String,
    /// Changes of the chain's interfaces since its deployment that affect the chain, each with its
    /// remedy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_faults: Vec<String>,
    /// Packets classified to the chain at the front door.
    pub packets_in: u64,
    /// Bytes classified to the chain at the front door.
    pub bytes_in: u64,
    /// Packets above the profile, which the policer dropped.
    #[serde(default)]
    pub policed: u64,
    /// Bytes of the policed packets, as the policer counts bytes.
    #[serde(default)]
    pub policed_bytes: u64,
    /// Fragments that the front door of the ingress port dropped, for all chains of the port: their
    /// chain is unknown, or their match drops fragments. They are not in `packets_in`.
    #[serde(default)]
    pub dropped_fragments: u64,
    /// Packets of a replay that came faster than the front door takes them. The port dropped them
    /// as a device drops packets whose queue is full. They are not in `packets_in`.
    #[serde(default)]
    pub missed: u64,
    /// The wires of a part of a chain; absent for a whole chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartStatus>,
    /// Packets that left, except packets that the egress interface lost.
    pub packets_out: u64,
    /// Packets that functions and shaper dropped.
    pub drops: u64,
    /// Counts each packet of the chain once, by the place where it is or was lost.
    #[serde(default)]
    pub account: PacketAccount,
    /// Time since the last packet came in, ms; absent before the first packet.
    pub last_packet_ms_ago: Option<f64>,
    /// The functions, in chain order.
    pub hops: Vec<HopStatus>,
    /// The shaper at the egress; absent without a shaper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<ShaperStatus>,
    /// The in-band sojourn. Absent if black boxes divide the chain into sections, because the time
    /// inside black boxes is not measured.
    pub sojourn: Option<SojournStatus>,
    /// The sojourn of each section of a chain with black boxes: from the front door to the first
    /// black box, from each black box to the next, from the last to the egress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_sections: Vec<SojournStatus>,
    /// The worker of the user functions; the first worker if each function has its own.
    pub worker: Option<WorkerStatus>,
    /// The workers of the other user functions, if each has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_workers: Vec<WorkerStatus>,
    /// In mapping `pipeline`: the rings between the chain's processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingStatus>,
    /// The end hosts, if Myelin made them.
    pub hosts: Vec<HostInfo>,
    /// The contract and the measured figures; absent in the chain's first second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla: Option<Box<SlaStatus>>,
    /// Time since the chain came up, s.
    pub up_s: f64,
}

/// The flow table of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionFlows {
    /// The chain's name.
    pub chain: String,
    /// The function's name in the chain.
    pub function: String,
    /// The function's kind.
    pub kind: String,
    /// `kernel` or `user`.
    pub space: String,
    /// Flows that began; null for `nat`, which does not count flows.
    pub begun: Option<u64>,
    /// Flows that the full table evicted for new flows; null for `nat`.
    pub evicted: Option<u64>,
    /// Packets that belong to no flow in the table; null for `nat`.
    pub outside: Option<u64>,
    /// The flows in the table, sorted by bytes, the largest first. For `nat`: the mappings.
    pub flows: Vec<FlowStatus>,
}

/// One flow, or one mapping of a `nat`. Fields that the function does not keep are null. Byte
/// counts include the Ethernet header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowStatus {
    /// The flow as text, in the direction of its first packet: `udp 10.0.0.1:5000 > 10.0.0.2:9000`.
    /// For a mapping, the protocol and the inside endpoint: `udp 10.0.0.1:5000`.
    pub flow: String,
    /// IP protocol number.
    pub protocol: u8,
    /// Source address of the first packet; for a mapping, the inside address.
    pub source: IpAddr,
    /// Source port; null for fragments and other protocols than UDP and TCP. For a mapping of an
    /// ICMP echo, the identifier.
    pub source_port: Option<u16>,
    /// Destination address of the first packet; null for a mapping, which applies to all
    /// destinations.
    pub destination: Option<IpAddr>,
    /// Destination port; null as `source_port`, and for a mapping.
    pub destination_port: Option<u16>,
    /// The source that `nat` gives the packets.
    pub translated: Option<Endpoint>,
    /// The backend to which `load-balancer` sends the packets.
    pub backend: Option<IpAddr>,
    /// State of the flow, from `flow-tracker`.
    pub state: Option<FlowState>,
    /// Packets in the direction of the first packet.
    pub packets: Option<u64>,
    /// Bytes in the direction of the first packet.
    pub bytes: Option<u64>,
    /// Packets in the other direction, from `flow-tracker`.
    pub reply_packets: Option<u64>,
    /// Bytes in the other direction, from `flow-tracker`.
    pub reply_bytes: Option<u64>,
    /// Time since the first packet, ms.
    pub age_ms: Option<f64>,
    /// Time since the last packet, ms.
    pub last_packet_ms_ago: Option<f64>,
    /// Time until the flow expires unless a packet renews it, ms.
    pub expires_in_ms: Option<f64>,
}

/// An address with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Endpoint {
    /// IP address.
    pub address: IpAddr,
    /// Port, or the identifier of an ICMP echo.
    pub port: u16,
}
