//! The order of service of each server, and the service that remains for waiting packets.

use std::collections::{BTreeMap, BTreeSet};

use super::batches::BatchServer;
use super::evaluate::{Evaluator, GroupView, Unbounded};
use super::path::Resource;
use super::turns::WorkerTurn;
use crate::calculus::{ArrivalCurve, LeakyBucket, RateLatency, SECOND, fair_share, mul_div_up};

/// The order of service.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// First come, first served.
    Fcfs(RateLatency),
    /// Unknown: a worker with several ports, with returning packets, or with functions that hold
    /// packets back.
    Any(RateLatency),
    /// Unknown, and the core runs several processes, none of which polls.
    Shared(RateLatency),
    /// In a pipeline's first process, then for whole rounds in the turns of its core.
    InRounds {
        /// The service of the first process for arrivals.
        service: RateLatency,
        /// Whether the first process is first come, first served.
        is_fcfs: bool,
        /// Longest time behind the first turn, fs.
        rounds_fs: u128,
    },
    /// By deadline, in turns with other workers of the core.
    Deadline {
        /// What departures of shapers leave of the core.
        service: RateLatency,
        /// Longest stay of a packet, fs.
        stay_fs: u128,
        /// Longest time in which the core always has work, fs.
        busy_fs: u128,
    },
}

impl Order {
    /// Returns the service for waiting packets.
    pub(super) fn service(&self) -> RateLatency {
        match self {
            Self::Fcfs(service)
            | Self::Any(service)
            | Self::Shared(service)
            | Self::InRounds { service, .. }
            | Self::Deadline { service, .. } => *service,
        }
    }

    /// Returns the longest time behind the first turn, fs.
    pub(super) fn rounds_fs(&self) -> u128 {
        match self {
            Self::InRounds { rounds_fs, .. } => *rounds_fs,
            _ => 0,
        }
    }
}

impl Evaluator<'_> {
    /// Returns the batch server of a port, or of a first-come, first-served worker that is alone on
    /// its core; else `None`.
    pub(super) fn batch_server(&self, server: usize) -> Result<Option<BatchServer>, Unbounded> {
        let (core, wake_up_fs, batch, batch_fs, pause_fs) = match self.resource(server)? {
            Resource::Worker {
                core,
                wake_up_fs,
                batch,
                batch_fs,
                pause_fs,
                ..
            } => (core, wake_up_fs, batch, batch_fs, pause_fs),
            Resource::Port { pause_fs, .. } => {
                let stall_fs = self.platform.worst_stall_fs().saturating_add(*pause_fs);
                // A turn has no cost besides its packets, so the batch size does not matter.
                return Ok(Some(BatchServer {
                    core: RateLatency::core(stall_fs),
                    packets: 1,
                    batch_fs: 0,
                    max_packet_fs: 0,
                    departures: LeakyBucket::new(0, 0),
                }));
            }
            Resource::Link(_) => return Ok(None),
        };
        let (order, _) = self.order(server)?;
        if !matches!(order, Order::Fcfs(_)) || self.workers_on(*core).len() > 1 {
            return Ok(None);
        }
        let stall_fs = self.platform.stall_fs(*core).saturating_add(*pause_fs);
        let worker_chains = self.worker_chains(server)?;
        Ok(Some(BatchServer {
            core: RateLatency::core(stall_fs.saturating_add(*wake_up_fs)),
            packets: *batch,
            batch_fs: *batch_fs,
            max_packet_fs: worker_chains.max_packet_fs,
            departures: worker_chains.departures(),
        }))
    }

    /// Refuses a worker beside a black box, and one that shares its turns with another server of
    /// the same process.
    fn refuse_unknown_turns(
        &self,
        server: usize,
        workers: &BTreeSet<usize>,
        (name, has_turns): (&str, bool),
    ) -> Result<(), Unbounded> {
        for other in workers.iter().filter(|worker| **worker != server) {
            match self.resource(*other)? {
                Resource::Worker { batch: 0, .. } => {
                    return Err(self.error_at(server, Unbounded::BlackBox));
                }
                Resource::Worker { name: other, .. } if has_turns && other == name => {
                    return Err(self.error_at(server, Unbounded::MixedTurns));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn compute_order(&self, server: usize) -> Result<(Order, RateLatency), Unbounded> {
        let resource = self.resource(server)?;
        let not_computable = || Unbounded::NotComputable(resource.clone());
        let Resource::Worker {
            core,
            name,
            wake_up_fs,
            batch,
            batch_fs,
            devices,
            turn,
            pause_fs,
            ..
        } = resource
        else {
            let Resource::Port { pause_fs, .. } = resource else {
                let service = RateLatency::core(0);
                return Ok((Order::Fcfs(service), service));
            };
            return self.order_of_port(server, *pause_fs);
        };
        let stall_fs = self.platform.stall_fs(*core).saturating_add(*pause_fs);
        let workers = self.workers_on(*core);
        self.refuse_unknown_turns(server, &workers, (name, turn.is_some()))?;
        let worker_chains = self.worker_chains(server)?;
        let in_any_order = worker_chains.has_returns
            || *devices
            || worker_chains.ports > 1
            || worker_chains.holds_packets;
        let order_of = |service: RateLatency| {
            if in_any_order {
                return Ok(Order::Any(service));
            }
            let in_order = worker_chains.fcfs_in_batches(*batch, *batch_fs, service);
            in_order.ok_or_else(not_computable)
        };
        let whole_core = RateLatency::core(stall_fs.saturating_add(*wake_up_fs));
        let others = workers.iter().filter(|worker| **worker != server);
        if workers.len() <= 1 && !self.has_stages(&workers)? {
            return Ok((order_of(whole_core)?, whole_core));
        }
        if let Some(WorkerTurn::Deadline { .. }) = turn.as_deref() {
            let order = self.turns_by_deadline(server, &workers)?;
            return Ok((order, order.service()));
        }
        if turn.is_some() {
            let service = self.leftover_of_turns(server, &workers, stall_fs)?;
            let latency_fs = service.latency_fs.saturating_add(*wake_up_fs);
            let service = RateLatency::new(service.rate, latency_fs);
            let first = order_of(service)?;
            return Ok((self.order_in_rounds(server, &workers, first)?, service));
        }
        let mut wake_ups_fs = *wake_up_fs;
        let mut others_poll = false;
        for other in others {
            if let Resource::Worker {
                wake_up_fs,
                polls,
                pause_fs,
                ..
            } = self.resource(*other)?
            {
                // The work of a group that pauses waits, and comes later at once.
                wake_ups_fs = wake_ups_fs.saturating_add(*wake_up_fs);
                wake_ups_fs = wake_ups_fs.saturating_add(*pause_fs);
                others_poll |= polls;
            }
        }
        if !others_poll {
            let service = RateLatency::core(stall_fs.saturating_add(wake_ups_fs));
            return Ok((Order::Shared(service), service));
        }
        // A polling process uses its share even without work.
        if worker_chains.has_returns {
            return Err(not_computable());
        }
        let others_weight = (workers.len() - 1) as u64;
        let slice_fs = self.platform.slice_fs.saturating_add(*pause_fs);
        let share = fair_share(&whole_core, 1, others_weight, slice_fs);
        let share = share.ok_or_else(not_computable)?;
        Ok((order_of(share)?, share))
    }

    /// Returns the order and service of the kernel part of a port.
    fn order_of_port(
        &self,
        port: usize,
        pause_fs: u128,
    ) -> Result<(Order, RateLatency), Unbounded> {
        let not_computable = || self.error_at(port, Unbounded::NotComputable);
        let stall_fs = self.platform.worst_stall_fs();
        let service = RateLatency::core(stall_fs.saturating_add(pause_fs));
        let later_fs = self.later_in_turn_fs(port)?.ok_or_else(not_computable)?;
        let latency_fs = service.latency_fs.checked_add(later_fs);
        let in_turns = RateLatency::new(service.rate, latency_fs.ok_or_else(not_computable)?);
        Ok((Order::Fcfs(in_turns), service))
    }

    /// Returns the work of packets that arrive later at a port and leave in the same turn, fs;
    /// `None` beyond 128 bits.
    fn later_in_turn_fs(&self, port: usize) -> Result<Option<u128>, Unbounded> {
        let (mut turn, mut max_packet_fs) = (1, 0);
        for group in self.groups_at(port) {
            // A port is the first server of a path.
            let packet_fs = self.group(group)?.sums.packets_fs.first().copied();
            turn = turn.max(self.group(group)?.route.port_turn);
            max_packet_fs = max_packet_fs.max(packet_fs.unwrap_or(0));
        }
        Ok(max_packet_fs.checked_mul(u128::from(turn - 1)))
    }

    /// Sums up the properties of a worker's chains.
    pub(super) fn worker_chains(&self, worker: usize) -> Result<WorkerChains, Unbounded> {
        let mut all = WorkerChains::default();
        let mut ports = BTreeMap::new();
        for group in self.groups_at(worker) {
            let GroupView {
                route,
                servers: path,
                sums,
            } = self.group(group)?;
            let not_computable = || self.error_at(worker, Unbounded::NotComputable);
            let index = path.iter().position(|server| *server == worker);
            let index = index.ok_or_else(not_computable)?;
            all.has_returns |= sums.returns[index];
            all.holds_packets |= route.hold.times > 0;
            all.max_packet_fs = all.max_packet_fs.max(sums.packets_fs[index]);
            let at_departure = all.at_departure.plus(&sums.at_departure);
            all.at_departure = at_departure.ok_or_else(not_computable)?;
            all.departure_fs = all.departure_fs.saturating_add(sums.departure_fs);
            let queues = match &route.resources[0] {
                Resource::Port { queues, .. } => *queues,
                _ => 1,
            };
            ports.insert(path[0], queues);
        }
        all.ports = ports.values().sum();
        Ok(all)
    }
}

/// The summed properties of a worker's chains.
#[derive(Debug, Default)]
pub(super) struct WorkerChains {
    /// Whether packets return to the worker.
    pub(super) has_returns: bool,
    /// Whether functions hold packets back.
    pub(super) holds_packets: bool,
    /// Ports that the worker serves in turn; each receive queue of an interface counts as a port.
    pub(super) ports: u32,
    /// Cost of the most expensive packet, fs.
    pub(super) max_packet_fs: u128,
    /// Work at departures from the worker's shapers.
    pub(super) at_departure: ArrivalCurve,
    /// Work at the departure of one packet of each chain, fs.
    pub(super) departure_fs: u128,
}

impl WorkerChains {
    /// Returns the work of departures that waited in a shaper. Packets of a chain depart at the
    /// chain's rate. Departures that became due while the worker did not run leave in one turn. In
    /// any interval these are at most two packets of each chain: one that was due before the
    /// interval, and one that becomes due in it.
    pub(super) fn departures(&self) -> LeakyBucket {
        let rates = [
            self.at_departure.short().rate,
            self.at_departure.long().rate,
        ];
        LeakyBucket::new(
            self.departure_fs.saturating_mul(2),
            rates.into_iter().fold(0, u128::max),
        )
    }

    /// Returns the service under first come, first served in batches. A packet leaves with its
    /// batch, so the worker may process later packets of the batch first, and departures of
    /// shapers. If departures need more than half of the core, the order is unknown.
    ///
    /// If `batch_fs` is not 0, the packet's batch and the previous batch may be small, and each
    /// departure is a small batch. Theorem 6 of `docs/guarantees/proofs.md`.
    fn fcfs_in_batches(&self, batch: u16, batch_fs: u128, service: RateLatency) -> Option<Order> {
        let departures = self.departures();
        let Some(rate) = service
            .rate
            .checked_sub(departures.rate)
            .filter(|rate| *rate >= service.rate / 2)
        else {
            return Some(Order::Any(service));
        };
        let later = u128::from(batch.max(1) - 1);
        let mut later_fs = self.max_packet_fs.checked_mul(later)?;
        if batch_fs > 0 {
            later_fs = later_fs.checked_add(batch_fs)?.checked_mul(2)?;
            later_fs = later_fs.checked_add(departures.burst)?;
        }
        let later_fs = mul_div_up(later_fs, SECOND, rate)?;
        let latency_fs = mul_div_up(service.latency_fs, service.rate, rate)?;
        Some(Order::Fcfs(RateLatency::new(
            rate,
            latency_fs.checked_add(later_fs)?,
        )))
    }
}
