//! A service function chain, with the values of its chain file.

use myelin_packet::Match;
use myelin_packet::five_tuple::TCP;
use myelin_packet::traffic::{Bucket, Profile};
use serde::{Deserialize, Serialize};

use crate::error::FileLocation;
use crate::function::{FunctionInstance, FunctionSpec, Side, StateKey};
use crate::keys::name::is_label;
use crate::keys::words::word_enum;
use crate::keys::{BOOLEAN, DURATION, config, integer};

/// The most functions of a chain. The kernel allows 33 tail calls, which leave room for 32
/// functions.
pub const MAX_FUNCTIONS: usize = 32;

pub use crate::keys::name::MAX_NAME;

/// The owner of a chain without `metadata.namespace`.
pub const DEFAULT_NAMESPACE: &str = "default";

word_enum! {
    /// The layout of a chain's functions on processes.
    #[derive(Default)]
    pub enum Mapping {
        /// The planner chooses by cost.
        #[default]
        Auto = "auto",
        /// Run to completion: tail calls in the kernel, one worker loop in user space.
        Compact = "compact",
        /// One process per user function, rings between them.
        Pipeline = "pipeline",
        /// One sandbox per function.
        Distributed = "distributed",
    }
}

word_enum! {
    /// The planner's rule for the space of a function.
    #[derive(Default)]
    pub enum Classify {
        /// By the class of its kind: elementary and basic in the kernel, advanced in user space
        /// (CALVIN, section III-B).
        Calvin = "calvin",
        /// The spaces with the least cost of functions and space changes.
        #[default]
        Cost = "cost",
    }
}

word_enum! {
    /// The hook where the front door takes the chain's packets.
    #[derive(Default)]
    pub enum Hook {
        /// The cheapest hook of the port.
        #[default]
        Auto = "auto",
        /// In the driver, before the kernel makes an skb.
        Xdp = "xdp",
        /// At traffic control, on the skb.
        Tcx = "tcx",
    }
}

word_enum! {
    /// The action on a chain's packets while its functions cannot process them.
    pub enum OnFailure {
        /// Forward them past the functions.
        Pass = "pass",
        /// Drop them.
        Drop = "drop",
    }
}

word_enum! {
    /// The mechanism that enforces a chain's profile.
    #[derive(Default)]
    pub enum Enforce {
        /// The policer, and the shaper if user-space functions may cluster packets. A compact chain
        /// in the kernel alone clusters none.
        #[default]
        Auto = "auto",
        /// The policer at the front door and the shaper at the egress.
        Both = "both",
        /// The policer alone.
        Policer = "policer",
        /// The shaper alone.
        Shaper = "shaper",
        /// None. Myelin only counts traffic above the profile.
        None = "none",
    }
}

word_enum! {
    /// The action of a worker without packets.
    #[derive(Default)]
    pub enum Idle {
        /// Polls: least latency, a whole core.
        Spin = "spin",
        /// Sleeps until a packet wakes it.
        Sleep = "sleep",
        /// Polls for [`WorkerSpec::spin_ns`], then sleeps.
        #[default]
        Adaptive = "adaptive",
    }
}

/// A service function chain: its traffic, its functions in order, and its contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceChain {
    /// A DNS label of at most [`MAX_NAME`] characters, unique on the node.
    pub name: String,
    /// The chain's owner (`metadata.namespace`), a DNS label.
    pub namespace: String,
    /// The traffic that the chain takes (`spec.match`).
    pub matches: Match,
    /// The functions in order; 1 to [`MAX_FUNCTIONS`].
    pub functions: Vec<FunctionSpec>,
    /// The contract.
    pub sla: Sla,
    /// The layout of the functions on processes.
    pub mapping: Mapping,
    /// The planner's rule for the spaces of the functions.
    pub classify: Classify,
    /// The hook of the front door.
    pub hook: Hook,
    /// The interfaces that the chain connects; with `None`, the agent makes end hosts.
    pub ports: Option<Ports>,
    /// The name of the chain of the other direction. The parser sets this field in both chains of
    /// a pair, even if the file has `reverse` in one chain only.
    pub reverse: Option<String>,
    /// `onFailure` of the file; [`Self::effective_on_failure`] adds the default.
    pub on_failure: Option<OnFailure>,
    /// The settings of the chain's worker.
    pub worker: WorkerSpec,
    /// The longest wake-up time of this machine's cores while the chain is up, ns. With `None`, the
    /// kernel decides.
    pub cpu_latency_ns: Option<u64>,
    /// The locations of the chain's parts in the file, for errors of later steps.
    pub places: ChainLocations,
}

impl ServiceChain {
    /// Returns the owner: `metadata.namespace`.
    pub fn owner(&self) -> &str {
        &self.namespace
    }

    /// Whether the chain's ports are DPDK devices.
    pub fn is_over_dpdk(&self) -> bool {
        self.ports
            .as_ref()
            .is_some_and(|ports| ports.driver == PortDriver::Dpdk)
    }

    /// Returns the functions at `positions` for deployment, each with the key of its state.
    pub fn instances(&self, positions: std::ops::Range<usize>) -> Vec<FunctionInstance> {
        self.functions[positions]
            .iter()
            .map(|function| self.instance(function))
            .collect()
    }

    fn instance(&self, function: &FunctionSpec) -> FunctionInstance {
        let (chain, name, side) = match (&self.reverse, &function.reverse_of) {
            (Some(reverse), Some(undone)) => (reverse, undone, Side::Reply),
            _ => (&self.name, &function.name, Side::Forward),
        };
        FunctionInstance {
            config: function.config.clone(),
            state: Some(StateKey {
                chain: chain.clone(),
                function: name.clone(),
            }),
            side,
        }
    }

    /// Returns the action on packets that the chain's functions cannot process: `onFailure` of the
    /// file, else `drop` if a function guards the chain (a firewall), else `pass`.
    pub fn effective_on_failure(&self) -> OnFailure {
        let guarded = self
            .functions
            .iter()
            .any(|function| function.kind().fails_closed);
        self.on_failure.unwrap_or(if guarded {
            OnFailure::Drop
        } else {
            OnFailure::Pass
        })
    }
}

/// Locations of a chain's keys in the chain file. For an absent key, the location of the mapping
/// that would hold the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainLocations {
    /// The whole object.
    pub chain: FileLocation,
    /// `metadata.name`.
    pub name: FileLocation,
    /// `spec.match`.
    pub matches: FileLocation,
    /// `spec.mapping`.
    pub mapping: FileLocation,
    /// `spec.hook`.
    pub hook: FileLocation,
    /// `spec.ports`.
    pub ports: FileLocation,
    /// `spec.reverse`.
    pub reverse: FileLocation,
    /// `spec.sla`.
    pub sla: FileLocation,
    /// `spec.worker`.
    pub worker: FileLocation,
}

/// The driver of a chain's ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PortDriver {
    /// The kernel: the ports are interfaces.
    #[default]
    Kernel,
    /// DPDK, in the chain's worker: each port is a [`DpdkDevice`](crate::DpdkDevice).
    Dpdk,
}

/// The two different interfaces or devices that a chain connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ports {
    /// The port where packets arrive.
    pub ingress: String,
    /// The port where packets leave.
    pub egress: String,
    /// The driver of both ports.
    pub driver: PortDriver,
}

impl Ports {
    /// Returns the topology and the host of a port `TOPOLOGY/HOST`; `None` for another port. (The
    /// name of an interface contains no slash.)
    pub fn topology_host(port: &str) -> Option<(&str, &str)> {
        let (topology, host) = port.split_once('/')?;
        let are_names = is_label(topology) && is_label(host);
        are_names.then_some((topology, host))
    }

    /// Returns the ports of the other direction.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            ingress: self.egress.clone(),
            egress: self.ingress.clone(),
            driver: self.driver,
        }
    }
}

/// The service level agreement of a chain. `None` means that the contract does not state the value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sla {
    /// Rate r of the traffic profile, packets a second.
    pub rate_pps: Option<u64>,
    /// Rate r of the traffic profile, bits a second.
    pub rate_bps: Option<u64>,
    /// Burst b of the traffic profile, packets.
    pub burst_packets: Option<u64>,
    /// Burst b of the traffic profile, bits.
    pub burst_bits: Option<u64>,
    /// Burst that the policer admits, if it is larger than the profile's, packets.
    #[serde(default)]
    pub policing_burst_packets: Option<u64>,
    /// Burst that the policer admits, if it is larger than the profile's, bits.
    #[serde(default)]
    pub policing_burst_bits: Option<u64>,
    /// The mechanism that enforces the profile.
    #[serde(default)]
    pub enforce: Enforce,
    /// The longest queue of the shaper, packets; [`Sla::shaper_queue`] adds the default.
    #[serde(default)]
    pub shaper_queue: Option<u32>,
    /// The longest wait in the shaper, ns; [`Sla::shaper_delay_ns`] adds the default.
    #[serde(default)]
    pub shaper_delay_ns: Option<u64>,
    /// The largest lateness of a departure that later departures compensate, ns.
    #[serde(default)]
    pub shaper_tolerance_ns: u64,
    /// One-way delay from the ingress port to the departure from the egress port, ns.
    pub latency_ns: Option<u64>,
    /// The percentile of the measured sojourn that `latency_ns` applies to; above 0, at most 100.
    pub percentile: f64,
    /// The largest share of lost packets, percent.
    pub loss_percent: Option<f64>,
    /// Round-trip time that an end host sees, ns.
    pub round_trip_ns: Option<u64>,
    /// Whether the default burst suits TCP: the match takes TCP, and the contract has neither
    /// `latency` nor a burst.
    #[serde(default)]
    pub has_tcp_burst: bool,
}

/// Bytes of a full Ethernet frame as a bucket counts it: 1500 B and the header.
pub const FULL_FRAME: u64 = 1514;

/// The smallest default burst: packets, or full frames.
const DEFAULT_BURST: u64 = 32;

/// The default burst for TCP, as a part of a second's traffic. A sender whose packets a policer
/// drops often waits for its retransmission timeout, 200 ms in Linux, and then sends a burst.
const TCP_BURST_PART: u64 = 4;
/// The largest default burst for TCP: packets, or full frames. It fits into every ring on the path.
const MAX_TCP_BURST: u64 = 256;

/// The longest wait in a shaper if the file states neither `shaper.delay` nor `latency`, ns.
const DEFAULT_SHAPER_DELAY_NS: u64 = 10_000_000;

/// The longest queue of a shaper, packets. Waiting packets occupy the worker's UMEM.
pub const MAX_SHAPER_QUEUE: u32 = 1024;

impl Sla {
    /// Returns the chain's traffic profile. The default burst is 32 packets or full frames, or the
    /// traffic of a millisecond if that is more; for TCP, 256 packets or full frames, or the
    /// traffic of 250 ms if that is less.
    pub fn profile(&self) -> Profile {
        profile(self, self.burst_packets, self.burst_bits)
    }

    /// Returns the profile that the policer enforces. If the file has `policingBurst`, that burst
    /// replaces the chain's.
    pub fn policing_profile(&self) -> Profile {
        profile(
            self,
            self.policing_burst_packets.or(self.burst_packets),
            self.policing_burst_bits.or(self.burst_bits),
        )
    }

    /// Adapts the default burst to a match with this protocol.
    pub(crate) fn for_protocol(self, protocol: Option<u8>) -> Self {
        let bursts = [
            self.burst_packets,
            self.burst_bits,
            self.policing_burst_packets,
            self.policing_burst_bits,
        ];
        let has_tcp_burst = protocol.is_none_or(|protocol| protocol == TCP)
            && (self.rate_pps.is_some() || self.rate_bps.is_some())
            && self.latency_ns.is_none()
            && bursts == [None; 4];
        Self {
            has_tcp_burst,
            ..self
        }
    }

    /// Whether the policer enforces the profile.
    pub fn is_policed(&self) -> bool {
        match self.enforce {
            Enforce::Auto | Enforce::Both | Enforce::Policer => !self.profile().is_unlimited(),
            Enforce::Shaper | Enforce::None => false,
        }
    }

    /// Returns the most packets in the shaper's queue. Default: twice the policer's burst, from 64
    /// to [`MAX_SHAPER_QUEUE`].
    pub fn shaper_queue(&self) -> u32 {
        self.shaper_queue.unwrap_or_else(|| {
            let profile = self.policing_profile();
            let packets = profile.packets.map(Bucket::burst);
            let frames = profile.bits.map(|bits| bits.burst() / 8 / FULL_FRAME);
            let queue = packets.or(frames).unwrap_or(0).saturating_mul(2);
            u32::try_from(queue)
                .unwrap_or(u32::MAX)
                .clamp(64, MAX_SHAPER_QUEUE)
        })
    }

    /// Returns the longest wait in the shaper, ns. Default: `latency`, else 10 ms.
    pub fn shaper_delay_ns(&self) -> u64 {
        self.shaper_delay_ns
            .or(self.latency_ns)
            .unwrap_or(DEFAULT_SHAPER_DELAY_NS)
    }

    /// Returns the mean frame size, bytes, if the file has the rate or the burst in both packets
    /// and bits.
    pub fn mean_frame_bytes(&self) -> Option<u64> {
        let mean = |bits: Option<u64>, packets: Option<u64>| Some(bits? / 8 / packets?.max(1));
        mean(self.rate_bps, self.rate_pps).or_else(|| mean(self.burst_bits, self.burst_packets))
    }
}

/// Creates the token buckets of the SLA's rates. The parser has checked the range of each value.
fn profile(sla: &Sla, burst_packets: Option<u64>, burst_bits: Option<u64>) -> Profile {
    let bucket = |rate: Option<u64>, burst: Option<u64>, unit: u64| {
        let rate = rate?;
        let burst = burst.unwrap_or_else(|| {
            let millisecond = (rate / 1000).min(Bucket::MAX_BURST);
            let for_tcp = (rate / TCP_BURST_PART).min(MAX_TCP_BURST * unit);
            let least = if sla.has_tcp_burst { for_tcp } else { 0 };
            millisecond.max(DEFAULT_BURST * unit).max(least)
        });
        Bucket::new(rate, burst).ok()
    };
    Profile {
        packets: bucket(sla.rate_pps, burst_packets, 1),
        bits: bucket(sla.rate_bps, burst_bits, FULL_FRAME * 8),
    }
}

config! {
    /// How the worker of a chain's user functions runs.
    pub struct WorkerSpec {
        /// The most packets per batch: 1 for low delay, more for throughput.
        "batch" batch: u16 = integer(1, 256, "a number of packets").with_default("1");
        /// The action without packets: spin polls and takes a whole core, sleep waits, adaptive
        /// polls for the time `spin`, then sleeps.
        "idle" idle: Idle = Idle::KEY.with_default("adaptive");
        /// The time that the worker polls before it sleeps, with `idle: adaptive`.
        "spin" spin_ns: u64 = DURATION.with_default("50us");
        /// The core of the worker. With `mapping: pipeline`, further processes take the next
        /// allowed cores in turn.
        "core" core: Option<u32> = integer(0, MAX_CORE, "the number of a core");
        /// The busy-poll time of the sockets (`SO_BUSY_POLL`).
        "busyPoll" busy_poll_ns: Option<u64> = DURATION.with_hint("20us");
        /// Whether the packet buffers are in hugepages. Only for DPDK ports.
        "hugepages" hugepages: bool = BOOLEAN.with_default("false");
        /// Whether TCP packets reach the functions as super-packets of up to 64 KiB, for
        /// throughput. Only for `spec.ports` with interfaces, without `sla.latency`.
        "superPackets" super_packets: bool = BOOLEAN.with_default("false");
    }
}

/// A limit above the number of cores of any machine. When the worker starts, it checks `core`.
const MAX_CORE: u64 = 4095;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_in_packets_and_bits_imply_the_mean_frame_size() {
        let mut sla = Sla::default();
        assert_eq!(sla.mean_frame_bytes(), None);
        sla.burst_packets = Some(10);
        sla.burst_bits = Some(10 * 64 * 8);
        assert_eq!(sla.mean_frame_bytes(), Some(64));
        sla.rate_pps = Some(1000);
        sla.rate_bps = Some(1000 * 1400 * 8);
        assert_eq!(sla.mean_frame_bytes(), Some(1400));
    }

    #[test]
    fn default_burst_is_32_packets_or_the_traffic_of_a_millisecond() {
        let burst = |sla: &Sla| sla.profile().packets.map(Bucket::burst);
        let mut sla = Sla::default();
        assert!(sla.profile().is_unlimited());
        sla.rate_pps = Some(20_000);
        assert_eq!(burst(&sla), Some(32));
        sla.rate_pps = Some(1_000_000);
        assert_eq!(burst(&sla), Some(1000));
        sla.burst_packets = Some(5);
        sla.rate_bps = Some(1_000_000);
        assert_eq!(burst(&sla), Some(5));
        let bits = sla.profile().bits.map(Bucket::burst);
        assert_eq!(bits, Some(32 * 1514 * 8));
    }

    #[test]
    fn default_burst_for_tcp_covers_a_retransmission_timeout() {
        let burst = |rate_bps: u64| {
            let sla = Sla {
                rate_bps: Some(rate_bps),
                has_tcp_burst: true,
                ..Sla::default()
            };
            sla.profile().bits.map(Bucket::burst)
        };
        assert_eq!(burst(10_000_000), Some(2_500_000));
        assert_eq!(burst(15_000_000), Some(256 * FULL_FRAME * 8));
        assert_eq!(burst(10_000_000_000), Some(10_000_000));
    }

    #[test]
    fn policing_burst_replaces_the_burst_in_the_policing_profile_only() {
        let sla = Sla {
            rate_pps: Some(900_000),
            burst_packets: Some(5),
            policing_burst_packets: Some(20),
            ..Sla::default()
        };
        assert_eq!(sla.profile().packets.map(Bucket::burst), Some(5));
        assert_eq!(sla.policing_profile().packets.map(Bucket::burst), Some(20));
        assert_eq!(sla.shaper_queue(), 64);
    }
}
