//! What `ps` shows of a chain, from the counters of the kernel and of its worker.

use myelin_linux::procfs;
use myelin_packet::sojourn::Histogram;
use myelin_spec::Space;

use crate::api::{ChainState, ChainStatus, HopStatus, SojournStatus, WorkerStatus};
use crate::deploy::Deployed;
use crate::node::Node;

/// The state of a chain now.
pub(crate) fn of(deployed: &Deployed, node: &Node) -> ChainStatus {
    let counters = node.plane.counters();
    let door = counters.read(deployed.loaded.door_slot());
    let worker = deployed
        .worker
        .as_ref()
        .and_then(|key| node.workers.get(key));
    let user = worker.and_then(|entry| {
        entry
            .handle
            .stats()
            .chain(deployed.spi, deployed.generation)
    });
    let hops: Vec<HopStatus> = deployed
        .plan
        .hops
        .iter()
        .map(|hop| {
            let position = usize::from(hop.position);
            let mut status = HopStatus {
                position: hop.position,
                name: hop.name.clone(),
                kind: hop.kind.clone(),
                space: hop.space.to_string(),
                packets_in: 0,
                bytes_in: None,
                drops: 0,
                cost_ns: None,
            };
            if hop.space == Space::Kernel {
                let slot = deployed.loaded.counter_slot(hop.position);
                let line = slot.map(|slot| counters.read(slot)).unwrap_or_default();
                status.packets_in = line.packets;
                status.bytes_in = Some(line.bytes);
                status.drops = line.drops;
                status.cost_ns = mean(line.sampled_ns, line.samples);
            } else if let Some(at) = user.as_ref().and_then(|user| user.positions.get(position)) {
                status.packets_in = at.packets_in;
                status.drops = at.drops;
                status.cost_ns = mean(at.sampled_ns, at.samples);
            }
            status
        })
        .collect();
    let (out, sojourn) = departures(deployed, node);
    let now_ns = myelin_probe::clock::now_ns();
    let name = |ifindex| {
        node.ports
            .get(ifindex)
            .map(|port| port.name.clone())
            .unwrap_or_default()
    };
    ChainStatus {
        chain: deployed.chain.name.clone(),
        owner: deployed.chain.owner().to_owned(),
        spi: deployed.spi,
        generation: deployed.generation,
        state: match worker {
            Some(entry) if entry.failed => ChainState::Failed,
            _ => ChainState::Active,
        },
        mapping: deployed.plan.mapping.to_string(),
        hook: deployed.plan.hook.to_string(),
        ingress: name(deployed.ingress),
        egress: name(deployed.egress),
        packets_in: door.packets,
        bytes_in: door.bytes,
        packets_out: out,
        drops: hops.iter().map(|hop| hop.drops).sum(),
        last_packet_ms_ago: (door.last_ns > 0)
            .then(|| now_ns.saturating_sub(door.last_ns) as f64 / 1e6),
        hops,
        sojourn: summary(&sojourn),
        worker: worker.map(|entry| {
            let pid = entry.handle.pid();
            WorkerStatus {
                pid,
                restarts: entry.handle.restarts(),
                resident_kib: procfs::memory(pid).map_or(0, |memory| memory.resident_bytes / 1024),
                cpu_s: procfs::run_time(pid).map_or(0.0, |time| time.as_secs_f64()),
            }
        }),
        hosts: node
            .circuit(&deployed.circuit)
            .map(crate::circuit::Circuit::host_infos)
            .unwrap_or_default(),
        up_s: deployed.started.elapsed().as_secs_f64(),
    }
}

/// Packets that left at the egress, and the sojourn of each of them.
pub(crate) fn departures(deployed: &Deployed, node: &Node) -> (u64, Histogram) {
    let ends_in_user = deployed
        .plan
        .segments
        .last()
        .is_some_and(|last| last.space == Space::User);
    if ends_in_user {
        let sojourn = deployed
            .worker
            .as_ref()
            .and_then(|key| node.workers.get(key))
            .and_then(|entry| {
                entry
                    .handle
                    .stats()
                    .chain(deployed.spi, deployed.generation)
            })
            .map_or_else(Histogram::new, |chain| chain.sojourn);
        (sojourn.count(), sojourn)
    } else {
        let out = node
            .plane
            .counters()
            .read(deployed.loaded.egress_slot())
            .packets;
        (out, deployed.loaded.sojourn())
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

fn mean(sum_ns: u64, samples: u64) -> Option<f64> {
    (samples > 0).then(|| sum_ns as f64 / samples as f64)
}
