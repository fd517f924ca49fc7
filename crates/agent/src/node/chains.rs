//! The running and the waiting chains of this node, and the reserved names of chains that requests
//! change.
//!
//! A request reserves a chain's name before it changes the chain, and releases the name after the
//! work. The list is locked only for lookups, so readers never wait for the work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use myelin_dataplane::ShaperStats;
use myelin_kernel::{Hook, Plane, Policer};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Plan;
use myelin_policy::sla::{Counts, HopCounts};
use myelin_spec::{Hook as HookSpec, OnFailure, ServiceChain};

use crate::api::{ApiError, ChainSource, HostInfo};
use crate::node::circuit::CircuitLease;
use crate::node::entrance::Entrance;
use crate::node::layout::{FrontDoor, GenerationCounts, Layout};
use crate::node::port_state::ChainLinks;
use crate::node::ports::{PortLease, XdpAttachment};
use crate::node::reserved::ReservedNames;
use crate::node::router_messages::RouterMessages;
use crate::node::waiting::WaitingChain;
use crate::pool::{lock, wait_until_unique};

/// The ports of a chain, and the end hosts behind the ports.
#[derive(Clone)]
pub(crate) struct ChainPorts {
    /// The two ports; `None` between DPDK devices, which the kernel does not see.
    pub(crate) circuit: Option<CircuitLease>,
    /// Whether the chain enters at the circuit's egress.
    pub(crate) is_reversed: bool,
    /// The key of the circuit: the chain that made it, which is this chain or its reverse; of a
    /// part also the path.
    pub(crate) made_by: String,
    /// The interface or device where packets enter.
    pub(crate) ingress: String,
    /// The interface or device where packets leave.
    pub(crate) egress: String,
    /// The end hosts, if Myelin made them.
    pub(crate) hosts: Vec<HostInfo>,
}

impl ChainPorts {
    /// Returns the circuit, the ingress port and the egress port.
    ///
    /// # Errors
    /// The chain lies between DPDK devices.
    pub(crate) fn kernel_ports(&self) -> Result<(&CircuitLease, &PortLease, &PortLease), ApiError> {
        let circuit = self.circuit.as_ref();
        let circuit = circuit.ok_or_else(no_kernel_ports)?;
        Ok(if self.is_reversed {
            (circuit, &circuit.egress, &circuit.ingress)
        } else {
            (circuit, &circuit.ingress, &circuit.egress)
        })
    }
}

fn no_kernel_ports() -> ApiError {
    ApiError::failed(
        "a chain between ports of its worker (DPDK devices, memory) has no kernel ports",
    )
}

/// A deployed generation of a chain.
pub(crate) struct Generation {
    pub(crate) chain: ServiceChain,
    /// The chain file.
    pub(crate) source: Arc<ChainSource>,
    pub(crate) plan: Plan,
    pub(crate) number: u16,
    /// The policer at the kernel's front door.
    pub(crate) policer: Option<Arc<Policer>>,
    /// The functions behind the front door.
    pub(crate) layout: Box<dyn Layout>,
    /// The way to the front door; `None` between DPDK devices.
    pub(crate) entrance: Option<Entrance>,
    /// The senders of the ICMP messages of routers in the kernel.
    pub(crate) _router_messages: Vec<RouterMessages>,
    /// The ports. They drop after everything behind them.
    pub(crate) ports: ChainPorts,
}

impl Generation {
    /// The entrance.
    ///
    /// # Errors
    /// The chain lies between DPDK devices.
    pub(crate) fn entrance(&self) -> Result<&Entrance, ApiError> {
        let entrance = self.entrance.as_ref();
        entrance.ok_or_else(no_kernel_ports)
    }

    /// Reads the counts of this generation.
    pub(crate) fn read(&self, plane: &Plane) -> GenerationCounts {
        let mut counts = self.layout.read(plane);
        let arrived = self.entrance.as_ref().and_then(Entrance::arrived);
        let door = arrived.unwrap_or(counts.door);
        (counts.entered, counts.bytes_entered) = (door.packets, door.bytes);
        counts.door.drops += arrived.map_or(0, |arrived| arrived.drops);
        counts
    }

    /// The counts of this generation's functions, in the form that the SLA monitor reads.
    pub(crate) fn hops(&self, figures: &GenerationCounts) -> Vec<HopCounts> {
        let hops = self.plan.hops.iter().zip(&figures.hops);
        hops.map(|(hop, counted)| HopCounts {
            name: hop.name.clone(),
            kind: hop.kind.clone(),
            position: hop.position,
            is_black_box: hop.is_black_box(),
            counted: *counted,
        })
        .collect()
    }

    /// Whether the front door keeps the counts of the previous generation, instead of starting from
    /// zero.
    pub(crate) fn continues_door_counts(&self) -> bool {
        matches!(self.layout.front_door(), FrontDoor::Worker(..))
    }
}

/// A running chain.
pub(crate) struct RunningChain {
    pub(crate) name: String,
    pub(crate) spi: u32,
    pub(crate) started: Instant,
    /// The last judgement on the chain's interfaces.
    pub(crate) links: Mutex<ChainLinks>,
    generations: Mutex<Generations>,
}

/// The mutable state of a running chain. It has two writers: the request that reserved the chain's
/// name, and the supervisor when it fails the chain.
pub(crate) struct Generations {
    pub(crate) current: Arc<Generation>,
    /// The previous generation, while it drains.
    pub(crate) previous: Option<Arc<Generation>>,
    pub(crate) ended: EarlierCounts,
    /// Front doors at XDP that the chain attached.
    pub(crate) xdp: Vec<XdpAttachment>,
    /// Whether the classifier has the chain's match.
    pub(crate) is_classified: bool,
}

impl RunningChain {
    /// Creates a running chain. The front door already sends packets to `generation`.
    pub(crate) fn new(spi: u32, generation: Generation, xdp: Option<XdpAttachment>) -> Self {
        Self {
            name: generation.chain.name.clone(),
            spi,
            started: Instant::now(),
            links: Mutex::default(),
            generations: Mutex::new(Generations {
                current: Arc::new(generation),
                previous: None,
                ended: EarlierCounts::default(),
                xdp: xdp.into_iter().collect(),
                is_classified: true,
            }),
        }
    }

    /// The current generation.
    pub(crate) fn generation(&self) -> Arc<Generation> {
        Arc::clone(&lock(&self.generations).current)
    }

    /// Changes the generations under their lock.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Generations) -> T) -> T {
        change(&mut lock(&self.generations))
    }

    /// Reads all counts of the chain, at about the same time.
    pub(crate) fn read(&self, plane: &Plane) -> ChainCounts {
        let (generation, previous, mut past) = {
            let generations = lock(&self.generations);
            (
                Arc::clone(&generations.current),
                generations.previous.clone(),
                generations.ended.clone(),
            )
        };
        if let Some(previous) = previous {
            past.add(&previous, &previous.read(plane), &generation.plan);
        }
        let figures = generation.read(plane);
        ChainCounts {
            generation,
            figures,
            past,
        }
    }

    /// Waits until all readers are done, then frees everything that only this chain needed.
    pub(crate) fn tear_down(self: Arc<Self>) {
        let Self { generations, .. } = wait_until_unique(self);
        let generations = generations.into_inner();
        let generations = generations.unwrap_or_else(PoisonError::into_inner);
        drop(generations.xdp);
        drop(generations.previous.map(wait_until_unique));
        drop(wait_until_unique(generations.current));
    }

    /// Fails the chain after the end of a process that is no longer restarted. With `onFailure:
    /// pass`, removes the chain from the classifier. Otherwise the front door drops the chain's
    /// packets.
    pub(crate) fn fail(&self) {
        let mut generations = lock(&self.generations);
        let Generation { chain, plan, .. } = &*generations.current;
        if plan.on_failure != OnFailure::Pass || !generations.is_classified {
            return;
        }
        // A dead DPDK worker receives nothing, so its classifier needs no change.
        if matches!(
            generations.current.layout.front_door(),
            FrontDoor::Worker(..)
        ) {
            return;
        }
        let entrance = generations.current.entrance();
        let removed =
            entrance.and_then(|entrance| entrance.remove(&chain.matches).map_err(ApiError::failed));
        match removed {
            Ok(()) => generations.is_classified = false,
            Err(error) => {
                tracing::error!(chain = chain.name, %error, "cannot remove the failed chain from the classifier: the chain's packets are dropped");
            }
        }
    }
}

/// The counts of a chain over all generations.
pub(crate) struct ChainCounts {
    pub(crate) generation: Arc<Generation>,
    /// Counts of the current generation.
    pub(crate) figures: GenerationCounts,
    /// Counts of earlier generations.
    past: EarlierCounts,
}

impl ChainCounts {
    /// Returns the packet counts of the chain. Packets inside black boxes do not count as drops,
    /// because they may still come out.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.past.counts.clone();
        counts.add(&door_and_egress_counts(&self.figures));
        let mut hops = self.generation.hops(&self.figures);
        for hop in &mut hops {
            hop.counted = hop.counted.with_held_forwarded();
        }
        counts.add_hops(&hops);
        counts.shaper = self.shaper().drops();
        counts.packets_out = self.packets_out();
        counts
    }

    /// Counts the packets that functions and shaper dropped, and the packets inside black boxes.
    pub(crate) fn drops(&self) -> u64 {
        let past: u64 = self.past.counts.drops.values().sum();
        let now = self.figures.hops.iter().map(|hop| hop.drops);
        past + now.sum::<u64>() + self.shaper().drops()
    }

    /// Packets that left at the egress.
    pub(crate) fn packets_out(&self) -> u64 {
        let counted = self.past.counts.packets_out + self.figures.packets_out;
        if self.generation.plan.qdisc_shaping().is_some() {
            return departed_packets(counted, &self.figures.shaper);
        }
        counted
    }

    /// The shaper's counts.
    pub(crate) fn shaper(&self) -> ShaperStats {
        let mut stats = self.past.shaper;
        stats.add(&self.figures.shaper);
        stats
    }

    /// The sojourns of the packets that left, by section.
    pub(crate) fn sections(&self) -> Vec<Histogram> {
        let mut sections = self.figures.sections.clone();
        self.past.add_to(&mut sections);
        sections
    }
}

/// Counts of the generations before the current one.
#[derive(Debug, Clone, Default)]
pub(crate) struct EarlierCounts {
    counts: Counts,
    shaper: ShaperStats,
    /// Sojourns by section. Includes the newest earlier generation, and all earlier generations
    /// with as many sections.
    sections: Vec<Histogram>,
}

impl EarlierCounts {
    /// Adds the counts of a generation, whose successor has the plan `next`. Packets still inside
    /// count as lost.
    pub(crate) fn add(&mut self, generation: &Generation, figures: &GenerationCounts, next: &Plan) {
        let mut counts = door_and_egress_counts(figures);
        if generation.continues_door_counts() {
            counts = Counts {
                packets_out: counts.packets_out,
                bytes_out: counts.bytes_out,
                ..Counts::default()
            };
        }
        counts.add_hops(&generation.hops(figures));
        self.counts.add(&counts);
        // A class that the next generation keeps still has these counts.
        let class = generation.plan.qdisc_shaping();
        if class.is_none() {
            self.add_shaper(&figures.shaper);
        } else if class != next.qdisc_shaping() {
            self.add_discipline(figures.shaper);
        }
        let mut sections = figures.sections.clone();
        self.add_to(&mut sections);
        self.sections = sections;
    }

    /// Adds the earlier sojourns to `sections`, if the number of sections is the same.
    fn add_to(&self, sections: &mut [Histogram]) {
        if sections.len() == self.sections.len() {
            for (section, past) in sections.iter_mut().zip(&self.sections) {
                section.merge(past);
            }
        }
    }

    /// Corrects the counts of a queueing discipline. The program before the discipline has counted
    /// dropped packets as sent; waiting packets still leave.
    fn add_discipline(&mut self, mut shaper: ShaperStats) {
        shaper.waiting = 0;
        self.counts.packets_out = departed_packets(self.counts.packets_out, &shaper);
        self.add_shaper(&shaper);
    }

    /// Adds the counts of a user-space shaper. Its queue ends with the generation, so waiting
    /// packets count as lost.
    fn add_shaper(&mut self, shaper: &ShaperStats) {
        self.shaper.add(&ShaperStats {
            lost: shaper.lost + shaper.waiting,
            waiting: 0,
            ..*shaper
        });
    }
}

/// The counts at the front door and at the egress.
fn door_and_egress_counts(figures: &GenerationCounts) -> Counts {
    let GenerationCounts { door, .. } = figures;
    Counts {
        packets_in: figures.entered,
        bytes_in: figures.bytes_entered,
        policed: door.policed,
        policed_bytes: door.policed_bytes,
        door: door.drops,
        packets_out: figures.packets_out,
        bytes_out: figures.bytes_out.unwrap_or_default(),
        ..Counts::default()
    }
}

/// Packets that have left the queueing discipline behind the last program. The program drops late
/// and too big packets before it counts.
fn departed_packets(counted: u64, discipline: &ShaperStats) -> u64 {
    counted.saturating_sub(discipline.full + discipline.waiting)
}

/// The hook of the kernel's front door for this plan.
pub(crate) fn kernel_hook(plan: &Plan) -> Hook {
    match plan.hook {
        HookSpec::Xdp => Hook::Xdp,
        HookSpec::Tcx | HookSpec::Auto => Hook::Tcx,
    }
}

/// All chains, by name.
#[derive(Default)]
pub(crate) struct Chains {
    running: Mutex<BTreeMap<String, Arc<RunningChain>>>,
    /// Chains that the agent took down until their interfaces are back.
    waiting: Mutex<BTreeMap<String, Arc<WaitingChain>>>,
    /// Names of chains that requests change.
    pub(crate) reserved: ReservedNames,
}

impl Chains {
    /// The running chain with that name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<RunningChain>> {
        lock(&self.running).get(name).cloned()
    }

    /// Returns the running chain, or an error that names the remedy.
    ///
    /// # Errors
    /// No running chain has that name.
    pub(crate) fn expect(&self, name: &str) -> Result<Arc<RunningChain>, ApiError> {
        self.get(name).ok_or_else(|| {
            ApiError::failed(match self.get_waiting(name) {
                Some(_) => format!(
                    "chain `{name}` waits for its interfaces; `myelin ps` names the interface and the remedy"
                ),
                None => format!("no chain `{name}` runs; `myelin ps` lists the running chains"),
            })
        })
    }

    /// Returns a chain that ran a moment ago. `worked_on` completes the error text, for example
    /// `measured`.
    ///
    /// # Errors
    /// The chain was removed.
    pub(crate) fn expect_during(
        &self,
        worked_on: &str,
        name: &str,
    ) -> Result<Arc<RunningChain>, ApiError> {
        self.get(name).ok_or_else(|| {
            let text = format!("chain `{name}` was removed while it was {worked_on}");
            ApiError::failed(text)
        })
    }

    /// All running chains, by name.
    pub(crate) fn all(&self) -> Vec<Arc<RunningChain>> {
        lock(&self.running).values().cloned().collect()
    }

    /// Names of running and waiting chains, and of chains that requests change.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let mut names = self.reserved.names();
        names.extend(lock(&self.running).keys().cloned());
        names.extend(lock(&self.waiting).keys().cloned());
        names
    }

    /// Adds a running chain. The caller has reserved its name.
    pub(crate) fn insert(&self, running: Arc<RunningChain>) {
        let name = running.name.clone();
        lock(&self.running).insert(name, running);
    }

    /// The waiting chain with that name.
    pub(crate) fn get_waiting(&self, name: &str) -> Option<Arc<WaitingChain>> {
        lock(&self.waiting).get(name).cloned()
    }

    /// All waiting chains, by name.
    pub(crate) fn all_waiting(&self) -> Vec<Arc<WaitingChain>> {
        lock(&self.waiting).values().cloned().collect()
    }

    /// Adds a waiting chain. The caller has reserved its name.
    pub(crate) fn insert_waiting(&self, waiting: WaitingChain) {
        let name = waiting.chain.name.clone();
        lock(&self.waiting).insert(name, Arc::new(waiting));
    }

    /// Removes a waiting chain. The caller has reserved its name.
    pub(crate) fn remove_waiting(&self, name: &str) -> Option<Arc<WaitingChain>> {
        lock(&self.waiting).remove(name)
    }

    /// Removes a chain. The caller has reserved its name.
    pub(crate) fn remove(&self, name: &str) -> Option<Arc<RunningChain>> {
        lock(&self.running).remove(name)
    }
}

#[cfg(test)]
mod tests;
