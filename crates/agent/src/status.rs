//! What `ps` shows of a chain, from the counters of the kernel and of its worker.

use std::collections::BTreeMap;

use myelin_dataplane::{NamedCount, Pipeline, WorkerHandle};
use myelin_linux::procfs;
use myelin_packet::sojourn::Histogram;
use myelin_planner::Plan;

use crate::api::{ChainState, ChainStatus, HopStatus, RingStatus, SojournStatus, WorkerStatus};
use crate::deploy::Deployed;
use crate::named;
use crate::node::Node;
use crate::shaper;

/// The worst-case delay that a chain was admitted with.
pub(crate) fn promised_ns(plan: &Plan) -> Option<u64> {
    let bound = plan.bound.as_ref().filter(|_| plan.admitted);
    bound.map(|bound| bound.bound_ns)
}

/// The state of a chain now.
pub(crate) fn of(deployed: &Deployed, node: &Node) -> ChainStatus {
    let form = &deployed.form;
    let past = &deployed.past;
    let door = node.plane.counters().read(form.layout.entry().door_slot());
    // One after the other: a worker is held while it is read.
    let mut workers = form
        .layout
        .workers()
        .into_iter()
        .filter_map(|key| Some(worker(&node.workers.get(key)?.handle)))
        .collect::<Vec<_>>()
        .into_iter();
    let counts = named::of(deployed, node);
    let hops: Vec<HopStatus> = form
        .plan
        .hops
        .iter()
        .map(|hop| {
            let counted = form.layout.hop(node, hop);
            HopStatus {
                position: hop.position,
                name: hop.name.clone(),
                kind: hop.kind.clone(),
                space: hop.space.to_string(),
                counted,
                cost_ns: counted.cost_ns(),
                black_box: form.layout.black_box(node, hop.position),
                sandbox: form.layout.sandbox(node, hop),
                counters: at_position(&counts, hop.position),
            }
        })
        .collect();
    let first_worker = workers.next();
    let mut more_workers: Vec<_> = workers.collect();
    let mut all_rings = Vec::new();
    form.layout.read_pipeline(node, &mut |pipeline| {
        let stages = pipeline.stages().iter();
        more_workers.extend(stages.map(|stage| worker(&stage.handle)));
        all_rings = rings(pipeline);
    });
    let (out, sections) = deployed.departures(node);
    let (sojourn, sojourn_sections) = match &sections[..] {
        [whole] => (Some(summary(whole)), Vec::new()),
        sections => (None, sections.iter().map(summary).collect()),
    };
    let shaped = form.layout.shaper(node);
    let now_ns = myelin_measure::clock::now_ns();
    let name = |ifindex| {
        node.ports
            .get(ifindex)
            .map(|port| port.name.clone())
            .unwrap_or_default()
    };
    ChainStatus {
        chain: form.chain.name.clone(),
        owner: form.chain.owner().to_owned(),
        spi: deployed.spi,
        generation: form.generation,
        state: if deployed.is_failed(node) {
            ChainState::Failed
        } else {
            ChainState::Active
        },
        best_effort: form.plan.best_effort,
        bound_ns: promised_ns(&form.plan),
        mapping: form.plan.mapping.to_string(),
        hook: form.plan.hook.to_string(),
        ingress: name(deployed.place.ingress),
        egress: name(deployed.place.egress),
        packets_in: past.packets_in + door.packets,
        bytes_in: past.bytes_in + door.bytes,
        policed: past.policed + door.policed,
        policed_bytes: past.policed_bytes + door.policed_bytes,
        packets_out: if form.plan.qdisc_shaping().is_some() {
            shaper::out(out, &shaped)
        } else {
            out
        },
        drops: past.drops + shaped.drops() + hops.iter().map(|hop| hop.counted.drops).sum::<u64>(),
        last_packet_ms_ago: (door.last_ns > 0)
            .then(|| now_ns.saturating_sub(door.last_ns) as f64 / 1e6),
        hops,
        shaper: form.plan.shaper.map(|plan| {
            let mut all = past.shaper;
            all.add(&shaped);
            shaper::status(plan, form.layout.shaped_by(node), &all)
        }),
        sojourn,
        sojourn_sections,
        worker: first_worker,
        more_workers,
        rings: all_rings,
        hosts: node
            .circuit(&deployed.place.circuit)
            .map(crate::circuit::Circuit::host_infos)
            .unwrap_or_default(),
        sla: None,
        up_s: deployed.started.elapsed().as_secs_f64(),
    }
}

fn rings(pipeline: &Pipeline) -> Vec<RingStatus> {
    let rings = pipeline.rings().into_iter();
    rings
        .map(|ring| RingStatus {
            from: ring.from,
            to: ring.to,
            capacity: ring.capacity,
            occupancy: ring.occupancy,
            enqueued: ring.enqueued,
            dequeued: ring.dequeued,
        })
        .collect()
}

fn worker(handle: &WorkerHandle) -> WorkerStatus {
    let pid = handle.pid();
    WorkerStatus {
        pid,
        restarts: handle.restarts(),
        resident_kib: procfs::memory(pid).map_or(0, |memory| memory.resident_bytes / 1024),
        cpu_s: procfs::run_time(pid).map_or(0.0, |time| time.as_secs_f64()),
    }
}

/// The counts of the function at a position, by name.
pub(crate) fn at_position(counts: &[NamedCount], position: u8) -> BTreeMap<String, u64> {
    let of_function = counts.iter().filter(|count| count.position == position);
    of_function
        .map(|count| (count.name.clone(), count.count))
        .collect()
}

/// Figures of a sojourn histogram.
pub(crate) fn summary(sojourn: &Histogram) -> SojournStatus {
    let us = |quantile: f64| sojourn.quantile(quantile).map_or(0.0, |ns| ns as f64 / 1e3);
    SojournStatus {
        packets: sojourn.count(),
        mean_us: sojourn.mean_ns().map_or(0.0, |ns| ns / 1e3),
        p50_us: us(0.5),
        p99_us: us(0.99),
        p99_9_us: us(0.999),
        max_us: us(1.0),
    }
}
