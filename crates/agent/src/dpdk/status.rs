//! What `up` and `ps` show of a chain between devices.

use std::time::Duration;

use myelin_dataplane::{ChainStats, DoorStats};
use myelin_linux::{procfs, schedstat};
use myelin_policy::sla::{Binding, Counts, HopCounts, Reading, WorkerTimes};
use myelin_spec::Idle;

use super::{Pair, Running};
use crate::api::{
    ChainState, ChainStatus, ChainUp, Change, HopStatus, SojournStatus, WorkerStatus,
};
use crate::exchange::Past;
use crate::layout::user_hop;
use crate::{named, shaper, status};

/// What stands for the functions of former generations, which a worker does not tell by name.
const FORMER: &str = "former generations";

impl Running {
    /// What the SLA monitor is to know.
    pub(super) fn reading(&self, pair: &Pair) -> Option<Reading> {
        let led = &self.form.led;
        let figures = pair.handle.stats().chain(led.spi, led.generation)?;
        let door = pair.handle.stats().door(led.spi).unwrap_or_default();
        let hops: Vec<HopCounts> = self
            .form
            .plan
            .hops
            .iter()
            .map(|hop| HopCounts {
                name: hop.name.clone(),
                kind: hop.kind.clone(),
                position: hop.position,
                is_black_box: false,
                counted: user_hop(Some(&figures), hop.position),
            })
            .collect();
        let mut counts = self.past.counts.clone();
        counts.add(&self::counts(&door, &figures));
        counts.add_hops(&hops);
        counts.shaper = self.past.shaper.drops() + figures.shaper.drops();
        let mut sojourn = figures.sojourn;
        self.past.add_to(std::slice::from_mut(&mut sojourn));
        let pid = pair.handle.pid();
        let scheduled = schedstat::of_process(pid).unwrap_or_default();
        Some(Reading {
            name: self.form.chain.name.clone(),
            spi: led.spi,
            generation: led.generation,
            sla: self.form.chain.sla.clone(),
            up_s: self.started.elapsed().as_secs_f64(),
            counts,
            tells_bytes_out: false,
            entered: door.packets.saturating_sub(door.policed),
            hops,
            waiting: figures.shaper.waiting,
            sojourn: Some(sojourn),
            crossings: Vec::new(),
            workers: vec![WorkerTimes {
                pid,
                core: pair.handle.config().core,
                polls: self.form.chain.worker.idle == Idle::Spin,
                restarts: pair.handle.restarts(),
                run_ns: scheduled.run.as_nanos() as u64,
                waited_ns: scheduled.waited.as_nanos() as u64,
                first: Some(0),
                binding: Binding::Kept,
            }],
            // A worker does not tell what functions made, so nothing tells what is missing.
            may_pass_by: true,
        })
    }

    fn ports(&self) -> (String, String) {
        let ports = self.form.chain.ports.as_ref();
        ports
            .map(|ports| (ports.ingress.clone(), ports.egress.clone()))
            .unwrap_or_default()
    }

    pub(super) fn up(
        &self,
        change: Change,
        rendering_ms: f64,
        exchange: Option<Duration>,
    ) -> ChainUp {
        let (ingress, egress) = self.ports();
        ChainUp {
            chain: self.form.chain.name.clone(),
            owner: self.form.chain.owner().to_owned(),
            change,
            spi: self.form.led.spi,
            generation: self.form.led.generation,
            plan: self.form.plan.clone(),
            ingress,
            egress,
            hosts: Vec::new(),
            rendering_ms,
            exchange_ms: exchange.map(|time| time.as_secs_f64() * 1e3),
        }
    }

    pub(super) fn status(&self, pair: &mut Pair) -> ChainStatus {
        let (spi, generation) = (self.form.led.spi, self.form.led.generation);
        let figures = pair.handle.stats().chain(spi, generation);
        let figures = figures.unwrap_or_default();
        let door = pair.handle.stats().door(spi).unwrap_or_default();
        // A worker that is being started again has counted nothing by name yet.
        let named = if named::are_kept(&self.form.chain) && !pair.failed {
            pair.handle.counters(spi, generation).unwrap_or_default()
        } else {
            Vec::new()
        };
        let (ingress, egress) = self.ports();
        let pid = pair.handle.pid();
        let hops: Vec<HopStatus> = self
            .form
            .plan
            .hops
            .iter()
            .map(|hop| {
                let counted = user_hop(Some(&figures), hop.position);
                HopStatus {
                    position: hop.position,
                    name: hop.name.clone(),
                    kind: hop.kind.clone(),
                    space: hop.space.to_string(),
                    counted,
                    black_box: None,
                    sandbox: None,
                    counters: status::at_position(&named, hop.position),
                    cost_ns: counted.cost_ns(),
                }
            })
            .collect();
        let past = &self.past;
        let mut sojourn = figures.sojourn;
        past.add_to(std::slice::from_mut(&mut sojourn));
        let sojourn: SojournStatus = status::summary(&sojourn);
        ChainStatus {
            chain: self.form.chain.name.clone(),
            owner: self.form.chain.owner().to_owned(),
            spi: self.form.led.spi,
            generation: self.form.led.generation,
            state: if pair.failed {
                ChainState::Failed
            } else {
                ChainState::Active
            },
            best_effort: self.form.plan.best_effort,
            bound_ns: crate::status::promised_ns(&self.form.plan),
            mapping: self.form.plan.mapping.to_string(),
            hook: "dpdk".to_owned(),
            ingress,
            egress,
            packets_in: door.packets,
            bytes_in: door.bytes,
            policed: door.policed,
            policed_bytes: door.policed_bytes,
            packets_out: past.packets_out + figures.transmitted,
            drops: past.drops
                + figures.shaper.drops()
                + hops.iter().map(|hop| hop.counted.drops).sum::<u64>(),
            last_packet_ms_ago: (door.last_ns > 0)
                .then(|| myelin_measure::clock::now_ns().saturating_sub(door.last_ns) as f64 / 1e6),
            hops,
            shaper: self.form.plan.shaper.map(|plan| {
                let mut all = past.shaper;
                all.add(&figures.shaper);
                shaper::status(plan, "worker", &all)
            }),
            sojourn: Some(sojourn),
            sojourn_sections: Vec::new(),
            worker: Some(WorkerStatus {
                pid,
                restarts: pair.handle.restarts(),
                resident_kib: procfs::memory(pid).map_or(0, |memory| memory.resident_bytes / 1024),
                cpu_s: procfs::run_time(pid).map_or(0.0, |time| time.as_secs_f64()),
            }),
            more_workers: Vec::new(),
            rings: Vec::new(),
            hosts: Vec::new(),
            sla: None,
            up_s: self.started.elapsed().as_secs_f64(),
        }
    }
}

/// At the front door, which counts on over all forms, and at the way out.
fn counts(door: &DoorStats, figures: &ChainStats) -> Counts {
    Counts {
        packets_in: door.packets,
        bytes_in: door.bytes,
        policed: door.policed,
        policed_bytes: door.policed_bytes,
        packets_out: figures.transmitted,
        ..Counts::default()
    }
}

impl Past {
    /// What a form did that is no more.
    pub(super) fn add_stats(&mut self, figures: &ChainStats) {
        self.packets_out += figures.transmitted;
        let drops: u64 = figures
            .positions
            .iter()
            .map(|position| position.drops)
            .sum();
        self.drops += drops;
        self.counts.add(&counts(&DoorStats::default(), figures));
        if drops > 0 {
            for by_name in [&mut self.counts.drops, &mut self.counts.lost] {
                *by_name.entry(FORMER.to_owned()).or_default() += drops;
            }
        }
        self.add_shaper(&figures.shaper);
        self.keep(vec![figures.sojourn.clone()]);
    }
}
