//! A service function chain, with the values of its chain file.

use myelin_packet::Match;
use serde::{Deserialize, Serialize};

use crate::error::FileLocation;
use crate::function::{FunctionInstance, FunctionSpec, Side, StateKey};
use crate::keys::cores::{CORES, read_cores_of};
use crate::keys::field::Fields;
use crate::keys::name::is_label;
use crate::keys::words::word_enum;
use crate::keys::{BOOLEAN, DURATION, config, integer};
use crate::part::{PartSpec, PeerSpec};
use crate::placement::PlacementAlgorithm;
use crate::replay::ReplaySpec;
use crate::sharing::{SHARING, SharingSpec, read_sharing};
use crate::sla::Sla;

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
    /// The interfaces that the chain connects; with `None`, the agent makes end hosts. In a part,
    /// the interface to a neighbour takes the place of the port.
    pub ports: Option<Ports>,
    /// The algorithm that places functions without `node` on nodes; `None` without the key.
    #[serde(default)]
    pub placement: Option<PlacementAlgorithm>,
    /// The place in a chain over several nodes; `None` for a whole chain.
    pub part: Option<PartSpec>,
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

    /// Whether the functions run on nodes of a topology.
    pub fn is_over_nodes(&self) -> bool {
        let mut functions = self.functions.iter();
        let is_placed = |function: &FunctionSpec| {
            function.node.is_some()
                || function.anti_affinity.is_some()
                || function.replicas.is_some()
        };
        self.placement.is_some() || functions.any(is_placed)
    }

    /// Puts the functions that share their state with functions of the chain `placed`, and that
    /// name no node, on the nodes of those.
    pub fn follow(&mut self, placed: &Self) {
        if self.reverse.as_ref() != Some(&placed.name) {
            return;
        }
        for function in &mut self.functions {
            let undoes = |one: &FunctionSpec, other: &FunctionSpec| {
                one.reverse_of.as_ref() == Some(&other.name)
            };
            let own = &*function;
            let mut functions = placed.functions.iter();
            let pair = functions.find(|other| undoes(own, other) || undoes(other, own));
            if let (None, Some(pair)) = (&function.node, pair) {
                function.node.clone_from(&pair.node);
            }
        }
    }

    /// Whether functions without a node undo functions of the chain of the other direction, so that
    /// that chain is placed first.
    pub fn follows_reverse(&self) -> bool {
        let mut functions = self.functions.iter();
        functions.any(|function| function.node.is_none() && function.reverse_of.is_some())
    }

    /// Whether the chain's ports are DPDK devices.
    pub fn is_over_dpdk(&self) -> bool {
        self.ports
            .as_ref()
            .is_some_and(|ports| ports.driver == PortDriver::Dpdk)
    }

    /// Whether the chain's worker drives its ports, so that packets bypass the kernel: DPDK
    /// devices, or ports in memory.
    pub fn is_driven_by_worker(&self) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|ports| ports.driver != PortDriver::Kernel)
    }

    /// The frames that the chain's worker replays, instead of frames from a port.
    pub fn replay(&self) -> Option<&ReplaySpec> {
        self.ports.as_ref()?.replay.as_ref()
    }

    /// The node that sends the chain's packets; `None` if they arrive at a port.
    pub fn from(&self) -> Option<&PeerSpec> {
        self.part.as_ref()?.from.as_ref()
    }

    /// The node that takes the chain's packets; `None` if they depart at a port.
    pub fn to(&self) -> Option<&PeerSpec> {
        self.part.as_ref()?.to.as_ref()
    }

    /// The position and the number of instances of the function that has several; `None`: each
    /// function has one.
    pub fn replicated(&self) -> Option<(usize, usize)> {
        let mut functions = self.functions.iter().enumerate();
        functions.find_map(|(position, function)| {
            let replicas = function.replicas.filter(|replicas| *replicas > 1)?;
            Some((position, usize::from(replicas)))
        })
    }

    /// The name of the whole chain on this node: of a part the name that all parts have, else the
    /// chain's own.
    pub fn whole(&self) -> &str {
        let whole = self.part.as_ref().and_then(|part| part.whole.as_ref());
        whole.unwrap_or(&self.name)
    }

    /// Returns the functions at `positions` for deployment, each with the key of its state.
    pub fn instances(&self, positions: std::ops::Range<usize>) -> Vec<FunctionInstance> {
        self.functions[positions]
            .iter()
            .map(|function| self.instance(function))
            .collect()
    }

    fn instance(&self, function: &FunctionSpec) -> FunctionInstance {
        let part = self.part.as_ref().and_then(|part| part.reverse.as_ref());
        let reverse = part.or(self.reverse.as_ref());
        let (chain, name, side) = match (reverse, &function.reverse_of) {
            (Some(reverse), Some(undone)) => (reverse.as_str(), undone, Side::Reply),
            _ => (self.whole(), &function.name, Side::Forward),
        };
        FunctionInstance {
            config: function.config.clone(),
            state: Some(StateKey {
                chain: chain.to_owned(),
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
    /// `spec.part`.
    pub part: FileLocation,
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
    /// Memory of the chain's worker, which replays frames and discards those that leave.
    Memory,
}

/// The two different interfaces or devices that a chain connects. Of ports in memory, the names
/// describe them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ports {
    /// The port where packets arrive.
    pub ingress: String,
    /// The port where packets leave.
    pub egress: String,
    /// The driver of both ports.
    pub driver: PortDriver,
    /// The frames of ports in memory.
    #[serde(skip)]
    pub replay: Option<ReplaySpec>,
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
            replay: None,
        }
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
        /// The cores of the worker: a number, a range FROM-TO, or a list of both. The worker takes
        /// the first one. With `mapping: pipeline`, further processes take the other ones in turn;
        /// if there are none, they take the next allowed cores in turn.
        "cores" cores: Vec<u32> = CORES, from read_cores_of;
        /// The descriptors of each ring: those of the sockets, and those between the processes of a
        /// pipeline. A power of two. The ring of an interface with several receive queues has a
        /// quarter of that, at least 64.
        "ring" ring: u32 = integer(MIN_RING as u64, 16_384, "a power of two").with_default("1024"), from read_ring;
        /// The busy-poll time of the sockets (`SO_BUSY_POLL`).
        "busyPoll" busy_poll_ns: Option<u64> = DURATION.with_hint("20us");
        /// Whether the packet buffers are in hugepages. Only for DPDK ports.
        "hugepages" hugepages: bool = BOOLEAN.with_default("false");
        /// Whether TCP packets reach the functions as super-packets of up to 64 KiB, for
        /// throughput. Only for `spec.ports` with interfaces, without `sla.latency`.
        "superPackets" super_packets: bool = BOOLEAN.with_default("false");
        /// How the workers of one core share it: os (the operating system's scheduler), or the
        /// policy by which they hand it over: cooperative, round-robin, load-based, unis, deadline;
        /// auto is deadline where several processes share the core. All workers of a core need the
        /// same value.
        "sharing" sharing: SharingSpec = SHARING.with_default("os"), from read_sharing;
    }
}

/// The least descriptors of a ring: the packets that the kernel's receive work hands over at once.
const MIN_RING: u32 = 64;

impl WorkerSpec {
    /// Returns the core of the worker, if the file names one.
    pub fn core(&self) -> Option<u32> {
        self.cores.first().copied()
    }

    /// Returns the descriptors of a socket's receive ring on an interface with this number of
    /// queues. With several queues a ring is smaller, so that the UMEM suffices for all sockets.
    pub fn receive_ring(&self, queues: u32) -> u32 {
        if queues > 1 {
            (self.ring / 4).max(MIN_RING)
        } else {
            self.ring
        }
    }
}

fn read_ring(worker: &Fields<'_>) -> u32 {
    let ring: u32 = worker.read(WorkerSpec::KEYS, "ring");
    if let Some(field) = worker
        .get("ring")
        .filter(|_| !ring.is_power_of_two() && ring > 0)
    {
        let near = ring.next_power_of_two();
        field.fault(
            format!("{ring} is not a power of two"),
            "a power of two from 64 to 16384",
            format!("write for example {near}"),
        );
    }
    ring
}
