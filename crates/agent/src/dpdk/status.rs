//! What `up` and `ps` show of a chain between devices.

use myelin_dpdk::Figures;
use myelin_linux::procfs;

use super::{Pair, Running};
use crate::api::{
    ChainState, ChainStatus, ChainUp, Change, HopStatus, SojournStatus, WorkerStatus,
};
use crate::status;

impl Running {
    fn ports(&self) -> (String, String) {
        let ports = self.chain.ports.as_ref();
        ports
            .map(|ports| (ports.ingress.clone(), ports.egress.clone()))
            .unwrap_or_default()
    }

    pub(super) fn up(&self, change: Change, rendering_ms: f64) -> ChainUp {
        let (ingress, egress) = self.ports();
        ChainUp {
            chain: self.chain.name.clone(),
            owner: self.chain.owner().to_owned(),
            change,
            spi: self.placed.chain.spi,
            generation: self.placed.chain.generation,
            plan: self.plan.clone(),
            ingress,
            egress,
            hosts: Vec::new(),
            rendering_ms,
            exchange_ms: None,
        }
    }

    pub(super) fn status(&self, pair: &mut Pair) -> ChainStatus {
        // A worker that is being started again has counted nothing yet.
        let figures: Figures = pair.handle.read(&self.placed).unwrap_or_default();
        let (ingress, egress) = self.ports();
        let pid = pair.handle.pid();
        let hops: Vec<HopStatus> = self
            .plan
            .hops
            .iter()
            .map(|hop| {
                let at = figures.positions.get(usize::from(hop.position)).copied();
                let at = at.unwrap_or_default();
                HopStatus {
                    position: hop.position,
                    name: hop.name.clone(),
                    kind: hop.kind.clone(),
                    space: hop.space.to_string(),
                    packets_in: at.packets_in,
                    bytes_in: None,
                    drops: at.drops,
                    cost_ns: (at.samples > 0).then(|| at.sampled_ns as f64 / at.samples as f64),
                }
            })
            .collect();
        let door = figures.door;
        let sojourn: SojournStatus = status::summary(&figures.sojourn);
        ChainStatus {
            chain: self.chain.name.clone(),
            owner: self.chain.owner().to_owned(),
            spi: self.placed.chain.spi,
            generation: self.placed.chain.generation,
            state: if pair.failed {
                ChainState::Failed
            } else {
                ChainState::Active
            },
            mapping: self.plan.mapping.to_string(),
            hook: "dpdk".to_owned(),
            ingress,
            egress,
            packets_in: door.packets,
            bytes_in: door.bytes,
            packets_out: figures.transmitted,
            drops: hops.iter().map(|hop| hop.drops).sum(),
            last_packet_ms_ago: (door.last_ns > 0)
                .then(|| myelin_probe::clock::now_ns().saturating_sub(door.last_ns) as f64 / 1e6),
            hops,
            sojourn,
            worker: Some(WorkerStatus {
                pid,
                restarts: pair.handle.restarts(),
                resident_kib: procfs::memory(pid).map_or(0, |memory| memory.resident_bytes / 1024),
                cpu_s: procfs::run_time(pid).map_or(0.0, |time| time.as_secs_f64()),
            }),
            more_workers: Vec::new(),
            rings: Vec::new(),
            hosts: Vec::new(),
            up_s: self.started.elapsed().as_secs_f64(),
        }
    }
}
