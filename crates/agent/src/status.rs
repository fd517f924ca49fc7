//! What `ps` shows of a chain, from the counters of the kernel and of its worker.

use myelin_dataplane::{Pipeline, WorkerHandle};
use myelin_linux::procfs;
use myelin_packet::sojourn::Histogram;

use crate::api::{ChainState, ChainStatus, HopStatus, RingStatus, SojournStatus, WorkerStatus};
use crate::deploy::Deployed;
use crate::node::Node;

/// The state of a chain now.
pub(crate) fn of(deployed: &Deployed, node: &Node) -> ChainStatus {
    let form = &deployed.form;
    let past = &deployed.past;
    let door = node.plane.counters().read(form.layout.entry().door_slot());
    let workers: Vec<_> = form
        .layout
        .workers()
        .into_iter()
        .filter_map(|key| node.workers.get(key))
        .collect();
    let hops: Vec<HopStatus> = form
        .plan
        .hops
        .iter()
        .map(|hop| {
            let figures = form.layout.hop(node, hop);
            HopStatus {
                position: hop.position,
                name: hop.name.clone(),
                kind: hop.kind.clone(),
                space: hop.space.to_string(),
                packets_in: figures.packets_in,
                bytes_in: figures.bytes_in,
                drops: figures.drops,
                cost_ns: figures.cost_ns,
            }
        })
        .collect();
    let pipeline = form.layout.pipeline(node);
    let stages = pipeline.map_or(&[][..], Pipeline::stages);
    let (out, sojourn) = deployed.departures(node);
    let now_ns = myelin_probe::clock::now_ns();
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
        state: if workers.iter().any(|entry| entry.failed) {
            ChainState::Failed
        } else {
            ChainState::Active
        },
        mapping: form.plan.mapping.to_string(),
        hook: form.plan.hook.to_string(),
        ingress: name(deployed.place.ingress),
        egress: name(deployed.place.egress),
        packets_in: past.packets_in + door.packets,
        bytes_in: past.bytes_in + door.bytes,
        packets_out: out,
        drops: past.drops + hops.iter().map(|hop| hop.drops).sum::<u64>(),
        last_packet_ms_ago: (door.last_ns > 0)
            .then(|| now_ns.saturating_sub(door.last_ns) as f64 / 1e6),
        hops,
        sojourn: summary(&sojourn),
        worker: workers.first().map(|entry| worker(&entry.handle)),
        more_workers: workers
            .iter()
            .skip(1)
            .map(|entry| &entry.handle)
            .chain(stages.iter().map(|stage| &stage.handle))
            .map(worker)
            .collect(),
        rings: pipeline.map_or_else(Vec::new, rings),
        hosts: node
            .circuit(&deployed.place.circuit)
            .map(crate::circuit::Circuit::host_infos)
            .unwrap_or_default(),
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
