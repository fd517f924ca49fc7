//! What the SLA monitor tells: a chain's contract against what was measured of all its traffic, and its violations.

use std::collections::BTreeMap;

use myelin_spec::Sla;
use serde::{Deserialize, Serialize};

/// What a chain is owed and may send. What is absent was not agreed.
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
    /// The percentile that `latency_us` applies to.
    pub percentile: f64,
    /// Share of what keeps to the profile that may be lost, percent.
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

/// Packets that were lost behind the policer, by place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Losses {
    /// At the front door, which found no program or no worker to hand them to.
    pub door: u64,
    /// In rings: of a worker's socket, between the processes of a pipeline, of a transmitting socket.
    pub ring: u64,
    /// By functions, less what these made in their place.
    pub function: u64,
    /// By the shaper.
    pub shaper: u64,
    /// By interfaces that were to send them.
    pub link: u64,
    /// Where nobody counts: they have been missing for a second.
    pub unseen: u64,
}

impl Losses {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_place().iter().map(|(_, packets)| packets).sum()
    }

    /// What was lost since an earlier reading.
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

    /// Adds those of another time.
    pub fn add(&mut self, other: &Self) {
        self.door += other.door;
        self.ring += other.ring;
        self.function += other.function;
        self.shaper += other.shaper;
        self.link += other.link;
        self.unseen += other.unseen;
    }

    /// Each place with its packets.
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

/// Where each packet of a chain is:
/// `packets_in + made = packets_out + policed + dropped + lost + under_way`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PacketAccount {
    /// Packets classified to the chain at the front door.
    pub packets_in: u64,
    /// Packets that functions made, for example repair packets of a code.
    pub made: u64,
    /// Packets that left, without those that the egress interface lost.
    pub packets_out: u64,
    /// Packets that the policer dropped, above the profile.
    pub policed: u64,
    /// Packets that functions dropped, by function, and the shaper, as `shaper`.
    pub dropped: BTreeMap<String, u64>,
    /// Packets lost elsewhere, by place: `door`, `ring`, `link`, `unseen` (as in [`Losses`]).
    pub lost: BTreeMap<String, u64>,
    /// Packets in none of these places: in rings, in functions, or lost since the last second.
    pub under_way: u64,
}

/// The sojourn (front door to egress) of the packets that left in some time. Read from a histogram with 32 buckets an octave, so
/// each figure is within 1.6 %.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaSojourn {
    /// Packets measured: all.
    pub packets: u64,
    /// Median, us.
    pub p50_us: f64,
    /// 99th percentile, us.
    pub p99_us: f64,
    /// The contract's percentile, us.
    pub agreed_us: f64,
    /// Longest, us.
    pub max_us: f64,
}

/// What was measured of all traffic of a chain in some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaWindow {
    /// How long, s.
    pub seconds: f64,
    /// Packets classified to the chain at the front door.
    pub packets_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Those of them that the policer dropped, above the profile. They are not among the lost ones.
    pub policed: u64,
    /// Packets that left.
    pub packets_out: u64,
    /// Their bytes; absent where they leave from a worker, which counts none.
    pub bytes_out: Option<u64>,
    /// Packets that kept to the profile and were lost.
    pub lost: Losses,
    /// Those of them that functions lost, by the function's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost_in: BTreeMap<String, u64>,
    /// Packets lost of those that kept to the profile, percent; absent when none came.
    pub loss_percent: Option<f64>,
    /// Absent when none left, or where black boxes cut the way into sections.
    pub sojourn: Option<SlaSojourn>,
    /// Cores that the chain's workers used, with all that they serve; absent without one, and over longer times.
    pub worker_cores: Option<f64>,
    /// Mean rate in, packets a second.
    pub in_pps: f64,
    /// Mean rate in, bits a second.
    pub in_bps: f64,
    /// Mean rate out, packets a second.
    pub out_pps: f64,
    /// Mean rate out, bits a second, where bytes are counted.
    pub out_bps: Option<f64>,
}

/// One of the seconds that the agent keeps of a chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaSecond {
    /// Its end, RFC 3339.
    pub end: String,
    /// What was measured in it.
    #[serde(flatten)]
    pub window: SlaWindow,
}

/// Whether a contract is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SlaState {
    /// Neither latency nor loss was agreed.
    NoContract,
    /// No second violated it.
    Kept,
    /// Some seconds did.
    Violated,
}

/// A chain's contract against what was measured since it came up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaStatus {
    /// The chain's name.
    pub chain: String,
    /// The contract.
    pub contract: SlaContract,
    /// Whether it is kept.
    pub state: SlaState,
    /// Seconds that violated it.
    pub violated_s: u64,
    /// Seconds in which there was traffic to judge.
    pub judged_s: u64,
    /// Whether the last second violated it.
    pub violated_now: bool,
    /// Cores that were taken from its workers and have not come back: until then it is best effort.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_cores: Vec<u32>,
    /// The last second.
    pub second: SlaWindow,
    /// The last minute, or what there is of it.
    pub minute: SlaWindow,
    /// Since the chain came up.
    pub life: SlaWindow,
    /// Packets that have come in and have neither left nor been counted as lost.
    pub under_way: u64,
    /// The last violation.
    pub last_event: Option<SlaEvent>,
}

/// What was agreed and not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SlaTerm {
    /// A core of its own, which no latency can be promised without.
    Core,
    /// The percentile of the sojourn.
    Latency,
    /// The share of packets lost.
    Loss,
}

impl SlaTerm {
    /// Its key in a chain file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Latency => "latency",
            Self::Loss => "loss",
        }
    }
}

/// Why a contract was violated, as far as what was measured in the same second tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SlaCause {
    /// The chain's own load: its worker or its core had no time left.
    Overload,
    /// The hypervisor ran something else on the core.
    Steal,
    /// Something else on this machine: another process on the worker's core, or another chain in the same worker.
    Neighbour,
    /// A function dropped packets.
    Function,
    /// An interface refused packets.
    Link,
    /// A worker or a black box ended, or was not there.
    Failure,
    /// A core was taken from the chain's worker.
    Core,
    /// Nothing stands out.
    Unknown,
}

impl SlaCause {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overload => "overload",
            Self::Steal => "steal",
            Self::Neighbour => "neighbour",
            Self::Function => "function",
            Self::Link => "link",
            Self::Failure => "failure",
            Self::Core => "core",
            Self::Unknown => "unknown",
        }
    }
}

/// A violation, however many seconds it lasts. Cause, hop and evidence are those of its worst second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlaEvent {
    /// Its number: those of an agent count up, over all chains.
    pub serial: u64,
    /// The chain.
    pub chain: String,
    /// Begin of its first second, RFC 3339.
    pub start: String,
    /// End of its last second, RFC 3339; absent while it lasts: until three seconds in a row were kept.
    pub end: Option<String>,
    /// Seconds that violated the contract.
    pub seconds: u64,
    /// What was not kept.
    pub terms: Vec<SlaTerm>,
    /// Where: the function's name, `egress`; `-` where nothing tells.
    pub hop: String,
    /// Why.
    pub cause: SlaCause,
    /// The figures that speak for it.
    pub evidence: Vec<String>,
    /// Packets lost in these seconds.
    pub lost: u64,
    /// The worst second's sojourn at the agreed percentile, us.
    pub worst_latency_us: Option<f64>,
    /// The worst second's loss, percent.
    pub worst_loss_percent: Option<f64>,
}
