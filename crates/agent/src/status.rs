//! Builds the status of a chain for `ps`, from the counters of the kernel and of the chain's
//! workers. The reader takes no lock that a request holds.

pub(crate) mod cores;
pub(crate) mod flows;
mod named;
mod shaper;

use std::collections::BTreeMap;
use std::sync::Mutex;

use myelin_dataplane::spsc::SharedObserver;
use myelin_dataplane::{NamedCount, PipelineReader, RingEnds, WorkerFacts};
use myelin_kernel::{PartArrival, Plane, WireDrops};
use myelin_linux::procfs;
use myelin_planner::{Hop, Plan};
use myelin_policy::sla::SlaMonitor;

use crate::api::{
    ChainState, ChainStatus, HopStatus, PacketAccount, PartStatus, RingStatus, SojournStatus,
    WorkerStatus,
};
use crate::node::chains::{ChainCounts, Generation, RunningChain};
use crate::node::entrance::Entrance;
use crate::pool::lock;

/// The worst-case delay of an admitted chain.
fn bound_ns(plan: &Plan) -> Option<u64> {
    let bound = plan.bound.as_ref().filter(|_| plan.admitted);
    bound.map(|bound| bound.bound_ns)
}

/// Reads the status of a chain.
pub(crate) fn read(running: &RunningChain, plane: &Plane) -> ChainStatus {
    chain_status(running, &running.read(plane), plane)
}

/// Reads the status of a chain, with the contract and the packet account.
pub(crate) fn read_one(
    running: &RunningChain,
    plane: &Plane,
    monitor: &Mutex<SlaMonitor>,
) -> ChainStatus {
    let counts = running.read(plane);
    let mut status = chain_status(running, &counts, plane);
    let monitor = lock(monitor);
    status.account = monitor.account(&status.chain, status.spi, &counts.counts());
    status.packets_out = status.account.packets_out;
    let sla_status = monitor.status(&status.chain, status.spi);
    let has_lost_core = sla_status
        .as_ref()
        .is_some_and(|sla_status| !sla_status.lost_cores.is_empty());
    status.best_effort |= has_lost_core;
    status.sla = sla_status.map(Box::new);
    status
}

/// Builds the status of a chain from `counts`, without the contract and the packet account.
fn chain_status(running: &RunningChain, counts: &ChainCounts, plane: &Plane) -> ChainStatus {
    let generation = &counts.generation;
    let mut workers: Vec<_> = generation
        .layout
        .workers()
        .into_iter()
        .map(|lease| worker_status(&lease.facts))
        .collect();
    let pipeline = generation.layout.pipeline();
    if let Some(pipeline) = pipeline {
        let stages = pipeline.stages();
        workers.extend(stages.map(|(_, facts)| worker_status(facts)));
    }
    let mut workers = workers.into_iter();
    let door = counts.figures.door;
    let totals = counts.counts();
    let now_ns = myelin_measure::clock::now_ns();
    let links = lock(&running.links).clone();
    let ports = [&generation.ports.ingress, &generation.ports.egress];
    let [ingress, egress] = [0, 1].map(|at| links.names.get(at).unwrap_or(ports[at]).clone());
    let sections = counts.sections();
    let (sojourn, sojourn_sections) = match &sections[..] {
        [whole] => (Some(SojournStatus::from(whole)), Vec::new()),
        [] => (Some(SojournStatus::default()), Vec::new()),
        sections => (None, sections.iter().map(SojournStatus::from).collect()),
    };
    ChainStatus {
        chain: running.name.clone(),
        owner: generation.chain.owner().to_owned(),
        spi: running.spi,
        generation: generation.number,
        state: if generation.layout.has_failed() {
            ChainState::Failed
        } else if links.is_waiting {
            ChainState::Waiting
        } else {
            ChainState::Active
        },
        best_effort: generation.plan.best_effort,
        bound_ns: bound_ns(&generation.plan),
        plan: Box::new(generation.plan.clone()),
        mapping: generation.plan.mapping.to_string(),
        hook: hook_name(generation),
        ingress,
        egress,
        port_faults: links.faults,
        packets_in: totals.packets_in,
        bytes_in: totals.bytes_in,
        policed: totals.policed,
        policed_bytes: totals.policed_bytes,
        dropped_fragments: {
            let entrance = generation.entrance.as_ref();
            let in_kernel = entrance.map_or(0, Entrance::dropped_fragments);
            in_kernel + generation.layout.dropped_fragments()
        },
        missed: generation.layout.missed(),
        part: part_status(generation),
        packets_out: totals.packets_out,
        drops: counts.drops(),
        last_packet_ms_ago: (door.last_ns > 0)
            .then(|| now_ns.saturating_sub(door.last_ns) as f64 / 1e6),
        account: PacketAccount::default(),
        hops: hop_statuses(running, counts, plane),
        shaper: generation
            .plan
            .shaper
            .map(|plan| shaper::status(plan, generation.layout.shaped_by(), &counts.shaper())),
        sojourn,
        sojourn_sections,
        worker: workers.next(),
        more_workers: workers.collect(),
        rings: pipeline.map_or_else(Vec::new, |pipeline| ring_statuses(pipeline)),
        hosts: generation.ports.hosts.clone(),
        sla: None,
        up_s: running.started.elapsed().as_secs_f64(),
    }
}

fn hook_name(generation: &Generation) -> String {
    if generation.chain.is_over_dpdk() {
        "dpdk".to_owned()
    } else if generation.chain.is_driven_by_worker() {
        "memory".to_owned()
    } else {
        generation.plan.hook.to_string()
    }
}

fn hop_statuses(running: &RunningChain, counts: &ChainCounts, plane: &Plane) -> Vec<HopStatus> {
    let generation = &counts.generation;
    let named = named::read(running.spi, generation, plane);
    let hops = generation.plan.hops.iter().zip(&counts.figures.hops);
    hops.map(|(hop, counted): (&Hop, _)| HopStatus {
        position: hop.position,
        name: hop.name.clone(),
        kind: hop.kind.clone(),
        space: hop.space.to_string(),
        counted: *counted,
        cost_ns: counted.cost_ns(),
        black_box: generation.layout.black_box(plane, hop.position),
        sandbox: generation.layout.sandbox(hop.position),
        counters: counters_at(&named, hop.position),
    })
    .collect()
}

fn ring_statuses(pipeline: &PipelineReader) -> Vec<RingStatus> {
    let status = |((from, to), ring): (RingEnds, SharedObserver)| RingStatus {
        from,
        to,
        capacity: ring.capacity(),
        occupancy: ring.occupancy(),
        enqueued: ring.enqueued(),
        dequeued: ring.dequeued(),
    };
    pipeline.rings().map(status).collect()
}

fn worker_status(facts: &WorkerFacts) -> WorkerStatus {
    let pid = facts.pid();
    WorkerStatus {
        pid,
        restarts: facts.restarts(),
        resident_kib: procfs::resident_bytes(pid).map_or(0, |bytes| bytes / 1024),
        cpu_s: procfs::run_time(pid).map_or(0.0, |time| time.as_secs_f64()),
    }
}

/// The wires of a part.
fn part_status(generation: &Generation) -> Option<PartStatus> {
    let wires = generation.ports.circuit.as_ref()?.wires.as_ref()?;
    let exit = wires.exit();
    let lost = exit.unwrap_or_default();
    let drops = wires.drops();
    let sum = |read: fn(&WireDrops) -> u64| drops.iter().map(read).sum();
    let arrival = wires.arrival();
    Some(PartStatus {
        received: arrival.map(|arrival| arrival.frames().packets),
        stamped: arrival.map_or(0, PartArrival::stamped),
        sent: exit.map(|exit| exit.sent.packets),
        too_long: lost.too_long.packets,
        unresolved: lost.unresolved.packets,
        malformed: sum(|drops| drops.malformed.packets),
        unknown: sum(|drops| drops.unknown.packets),
        foreign: sum(|drops| drops.foreign.packets),
        expired: sum(|drops| drops.expired.packets),
    })
}

/// The named counters of the function at a position.
fn counters_at(counts: &[NamedCount], position: u8) -> BTreeMap<String, u64> {
    let counters = counts.iter().filter(|count| count.position == position);
    counters
        .map(|count| (count.name.clone(), count.count))
        .collect()
}
