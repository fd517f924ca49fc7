//! The SLA monitor's results: contracts, measured figures, verdicts and violations.

use std::collections::BTreeMap;

use myelin_spec::Sla;
use serde::{Deserialize, Serialize};

/// A chain's contract: profile and bounds. An absent field is not part of the contract.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaContract {
    /// Rate of the profile, packets a second.
    pub rate_pps: Option<u64>,
    /// Burst of the profile, packets.
    pub burst_packets: Option<u64>,
    /// Rate of the profile, bits a second.
    pub rate_bps: Option<u64>,
    /// Burst of the profile, bits.
    pub burst_bits: Option<u64>,
    /// Bound of the sojourn at `percentile`, us.
    pub latency_us: Option<f64>,
    /// The percentile of the sojourn that is compared with `latency_us`.
    pub percentile: f64,
    /// Share of conforming packets that may be lost, percent.
    pub loss_percent: Option<f64>,
}

impl From<&Sla> for SlaContract {
    fn from(sla: &Sla) -> Self {
        let profile = sla.profile();
        Self {
            rate_pps: profile.packets.map(myelin_packet::traffic::Bucket::rate),
            burst_packets: profile.packets.map(myelin_packet::traffic::Bucket::burst),
            rate_bps: profile.bits.map(myelin_packet::traffic::Bucket::rate),
            burst_bits: profile.bits.map(myelin_packet::traffic::Bucket::burst),
            latency_us: sla.latency_ns.map(|ns| ns as f64 / 1e3),
            percentile: sla.percentile,
            loss_percent: sla.loss_percent,
        }
    }
}

/// Packets lost behind the policer, by place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Losses {
    /// Packets lost at the front door, because no program and no worker could take them.
    pub door: u64,
    /// Packets lost in rings of a worker's sockets, and in rings between the processes of a
    /// pipeline.
    pub ring: u64,
    /// Packets lost in functions: drops less created packets.
    pub function: u64,
    /// Packets that the shaper dropped.
    pub shaper: u64,
    /// Packets that interfaces did not send.
    pub link: u64,
    /// Packets missing for a second, which no counter shows.
    pub unseen: u64,
}

impl Losses {
    /// The sum over all places.
    pub fn total(&self) -> u64 {
        self.by_place().iter().map(|(_, packets)| packets).sum()
    }

    /// Returns the difference to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            door: self.door.saturating_sub(earlier.door),
            ring: self.ring.saturating_sub(earlier.ring),
            function: self.function.saturating_sub(earlier.function),
            shaper: self.shaper.saturating_sub(earlier.shaper),
            link: self.link.saturating_sub(earlier.link),
            unseen: self.unseen.saturating_sub(earlier.unseen),
        }
    }

    /// Adds the losses of another interval.
    pub fn add(&mut self, other: &Self) {
        self.door += other.door;
        self.ring += other.ring;
        self.function += other.function;
        self.shaper += other.shaper;
        self.link += other.link;
        self.unseen += other.unseen;
    }

    /// Returns each place and the packets lost there.
    pub fn by_place(&self) -> [(&'static str, u64); 6] {
        [
            ("door", self.door),
            ("ring", self.ring),
            ("function", self.function),
            ("shaper", self.shaper),
            ("link", self.link),
            ("unseen", self.unseen),
        ]
    }
}

/// Counts each packet of a chain once:
/// `packets_in + made = packets_out + policed + dropped + lost + under_way`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PacketAccount {
    /// Packets classified to the chain at the front door.
    pub packets_in: u64,
    /// Packets that functions made, for example repair packets of a code.
    pub made: u64,
    /// Packets that left, except the packets that the egress interface lost.
    pub packets_out: u64,
    /// Packets that the policer dropped, above the profile.
    pub policed: u64,
    /// Packets that functions and shaper dropped, by the function's name or `shaper`.
    pub dropped: BTreeMap<String, u64>,
    /// Packets lost elsewhere, by place: `door`, `ring`, `link`, `unseen` (as in [`Losses`]).
    pub lost: BTreeMap<String, u64>,
    /// Packets in transit, or lost in the last second without a counter.
    pub under_way: u64,
}

/// Sojourn (front door to egress) of the packets that left in an interval. The figures come from a
/// histogram with 32 buckets an octave, so their error is at most 1.6 %.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaSojourn {
    /// Number of measured packets: all packets that left.
    pub packets: u64,
    /// Median sojourn, us.
    pub p50_us: f64,
    /// 99th percentile of the sojourn, us.
    pub p99_us: f64,
    /// Sojourn at the contract's percentile, us.
    pub agreed_us: f64,
    /// Longest sojourn, us.
    pub max_us: f64,
}

/// Figures of all traffic of a chain in an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaWindow {
    /// Length of the interval, s.
    pub seconds: f64,
    /// Packets classified to the chain at the front door.
    pub packets_in: u64,
    /// Bytes classified to the chain at the front door.
    pub bytes_in: u64,
    /// Packets above the profile, which the policer dropped. Policed packets do not count as lost.
    pub policed: u64,
    /// Packets that left.
    pub packets_out: u64,
    /// Bytes that left; absent if a worker transmits at the egress, because a worker does not count
    /// bytes.
    pub bytes_out: Option<u64>,
    /// Conforming packets that were lost, by place.
    pub lost: Losses,
    /// Packets lost in functions, by function name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost_in: BTreeMap<String, u64>,
    /// Lost packets as a share of conforming packets, percent; absent if no conforming packet
    /// arrived.
    pub loss_percent: Option<f64>,
    /// Sojourn; absent if no packet left, or if black boxes divide the chain into sections.
    pub sojourn: Option<SlaSojourn>,
    /// Cores that the chain's workers used, for all chains of the workers. Absent without a worker,
    /// and for intervals longer than a second.
    pub worker_cores: Option<f64>,
    /// Mean rate in, packets a second.
    pub in_pps: f64,
    /// Mean rate in, bits a second.
    pub in_bps: f64,
    /// Mean rate out, packets a second.
    pub out_pps: f64,
    /// Mean rate out, bits a second; absent if the egress counts no bytes.
    pub out_bps: Option<f64>,
}

/// One second of a chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaSecond {
    /// End of the second, RFC 3339.
    pub end: String,
    /// Figures of the second.
    #[serde(flatten)]
    pub window: SlaWindow,
}

/// The verdict on a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SlaState {
    /// Neither latency nor loss was agreed.
    NoContract,
    /// No second violated the contract.
    Kept,
    /// At least one second violated the contract.
    Violated,
}

/// The verdict on one chain in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlaVerdict {
    /// The chain's name.
    pub chain: String,
    /// Its service path identifier.
    pub spi: u32,
    /// The terms that the last second violated, the worst first; empty if it kept all.
    pub terms: Vec<SlaTerm>,
    /// The serial of the violation in progress. It goes on for a few kept seconds, and has all
    /// figures in [`SlaMonitor::events`](super::SlaMonitor::events).
    pub event: Option<u64>,
}

/// A chain's contract, verdict and figures since it came up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaStatus {
    /// The chain's name.
    pub chain: String,
    /// The contract.
    pub contract: SlaContract,
    /// The verdict.
    pub state: SlaState,
    /// Seconds that violated the contract.
    pub violated_s: u64,
    /// Seconds with traffic to judge.
    pub judged_s: u64,
    /// Whether the last second violated the contract.
    pub violated_now: bool,
    /// Cores that the chain's workers have lost. While the list is not empty, the chain is best
    /// effort.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_cores: Vec<u32>,
    /// Figures of the last second.
    pub second: SlaWindow,
    /// Figures of the last minute, or since the chain came up.
    pub minute: SlaWindow,
    /// Figures since the chain came up.
    pub life: SlaWindow,
    /// Packets that came in, and have neither left nor been counted as lost.
    pub under_way: u64,
    /// The last violation.
    pub last_event: Option<SlaEvent>,
}

/// A term of the contract that was violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SlaTerm {
    /// The worker lost its core, so the latency is not guaranteed.
    Core,
    /// The percentile of the sojourn.
    Latency,
    /// The share of lost packets.
    Loss,
}

impl SlaTerm {
    /// The term's name in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Latency => "latency",
            Self::Loss => "loss",
        }
    }
}

/// The cause of a violation, from the measurements of that second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SlaCause {
    /// The chain's own load: the worker or core had no time left.
    Overload,
    /// The hypervisor took the core for other work.
    Steal,
    /// Another process on the worker's core, or another chain in the same worker.
    Neighbour,
    /// Other workers had the turns on the worker's core.
    Sharing,
    /// A function dropped packets.
    Function,
    /// An interface refused packets, or the links between two nodes lost them.
    Link,
    /// A worker or a black box ended, or was not running.
    Failure,
    /// The chain's worker lost its core.
    Core,
    /// No measurement explains the violation.
    Unknown,
}

impl SlaCause {
    /// The cause's name in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overload => "overload",
            Self::Steal => "steal",
            Self::Neighbour => "neighbour",
            Self::Sharing => "sharing",
            Self::Function => "function",
            Self::Link => "link",
            Self::Failure => "failure",
            Self::Core => "core",
            Self::Unknown => "unknown",
        }
    }
}

/// A violation of one or more seconds. Cause, hop and evidence are those of the worst second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaEvent {
    /// Serial number over all chains of an agent.
    pub serial: u64,
    /// The chain's name.
    pub chain: String,
    /// Start of the first violated second, RFC 3339.
    pub start: String,
    /// End of the last violated second, RFC 3339; absent until three seconds in a row keep the
    /// contract.
    pub end: Option<String>,
    /// Seconds that violated the contract.
    pub seconds: u64,
    /// The violated terms.
    pub terms: Vec<SlaTerm>,
    /// The function where the contract was violated, or `egress`; of a chain over nodes the node,
    /// or the links between two; `-` if unknown.
    pub hop: String,
    /// The cause.
    pub cause: SlaCause,
    /// The figures that support the cause.
    pub evidence: Vec<String>,
    /// Packets lost in the violated seconds.
    pub lost: u64,
    /// The worst second's sojourn at the agreed percentile, us.
    pub worst_latency_us: Option<f64>,
    /// The worst second's loss, percent.
    pub worst_loss_percent: Option<f64>,
}
