//! The order in which a server works, and how much of it is left to waiting packets.

use std::collections::BTreeMap;

use super::evaluate::{Evaluator, Unbounded, View};
use super::pause::Batches;
use super::way::Resource;
use crate::calculus::{ArrivalCurve, LeakyBucket, RateLatency, SECOND, fair_share, mul_div_up};

/// In which order a server works.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// First come, first served.
    Fcfs(RateLatency),
    /// Nobody knows: a worker that takes a batch from each of its ports in turn, to which packets come back, or whose functions hold some back.
    Any(RateLatency),
    /// Nobody knows, and the core works for several processes, none of which polls.
    Shared(RateLatency),
}

impl Evaluator<'_> {
    /// How a port takes its packets, or a worker that alone has its core and is first come, first served.
    pub(super) fn batches(&self, server: usize) -> Result<Option<Batches>, Unbounded> {
        let (core, wake_up_fs, batch, batch_fs) = match self.resource(server)? {
            Resource::Worker {
                core,
                wake_up_fs,
                batch,
                batch_fs,
                ..
            } => (core, wake_up_fs, batch, batch_fs),
            Resource::Port { .. } => {
                // A turn takes no time besides its packets, so their number does not matter.
                return Ok(Some(Batches {
                    core: RateLatency::core(self.platform.worst_stall_fs()),
                    packets: 1,
                    each_fs: 0,
                    dearest_fs: 0,
                    departures: LeakyBucket::new(0, 0),
                }));
            }
            Resource::Link(_) => return Ok(None),
        };
        let (order, _) = self.order(server)?;
        if !matches!(order, Order::Fcfs(_)) || self.workers_on(*core).len() > 1 {
            return Ok(None);
        }
        let stall_fs = self.platform.stall_fs(*core);
        let visitors = self.visitors(server)?;
        Ok(Some(Batches {
            core: RateLatency::core(stall_fs.saturating_add(*wake_up_fs)),
            packets: *batch,
            each_fs: *batch_fs,
            dearest_fs: visitors.dearest_fs,
            departures: visitors.departures(),
        }))
    }

    pub(super) fn find_order(&self, server: usize) -> Result<(Order, RateLatency), Unbounded> {
        let resource = self.resource(server)?;
        let beyond = || Unbounded::Beyond(resource.clone());
        let Resource::Worker {
            core,
            wake_up_fs,
            batch,
            batch_fs,
            devices,
            ..
        } = resource
        else {
            if matches!(resource, Resource::Link(_)) {
                let service = RateLatency::core(0);
                return Ok((Order::Fcfs(service), service));
            }
            let service = RateLatency::core(self.platform.worst_stall_fs());
            let later_fs = self.later_at(server)?.ok_or_else(beyond)?;
            let latency_fs = service.latency_fs.checked_add(later_fs);
            let in_turns = RateLatency::new(service.rate, latency_fs.ok_or_else(beyond)?);
            return Ok((Order::Fcfs(in_turns), service));
        };
        let stall_fs = self.platform.stall_fs(*core);
        let workers = self.workers_on(*core);
        let visitors = self.visitors(server)?;
        let in_turn = *devices || visitors.ports > 1 || visitors.hold;
        let in_order = |service: RateLatency| visitors.in_order(*batch, *batch_fs, service);
        let whole = RateLatency::core(stall_fs.saturating_add(*wake_up_fs));
        let others = workers.iter().filter(|one| **one != server);
        if workers.len() <= 1 {
            let order = if visitors.return_here || in_turn {
                Order::Any(whole)
            } else {
                in_order(whole).ok_or_else(beyond)?
            };
            return Ok((order, whole));
        }
        let mut wake_ups_fs = *wake_up_fs;
        let mut others_poll = false;
        for other in others {
            if let Resource::Worker {
                wake_up_fs, polls, ..
            } = self.resource(*other)?
            {
                wake_ups_fs = wake_ups_fs.saturating_add(*wake_up_fs);
                others_poll |= polls;
            }
        }
        if !others_poll {
            let service = RateLatency::core(stall_fs.saturating_add(wake_ups_fs));
            return Ok((Order::Shared(service), service));
        }
        // One that polls takes its share whether it has work or not.
        if visitors.return_here {
            return Err(beyond());
        }
        let others_weight = (workers.len() - 1) as u64;
        let share = fair_share(&whole, 1, others_weight, self.platform.slice_fs);
        let share = share.ok_or_else(beyond)?;
        let order = if in_turn {
            Order::Any(share)
        } else {
            in_order(share).ok_or_else(beyond)?
        };
        Ok((order, share))
    }

    /// What packets of a port may take that came later and leave in the same turn, fs. `None`: more than can be counted.
    fn later_at(&self, port: usize) -> Result<Option<u128>, Unbounded> {
        let (mut turn, mut dearest_fs) = (1, 0);
        for group in self.groups_at(port) {
            // A port is the first server of a way.
            let packet_fs = self.group(group)?.sums.packets_fs.first().copied();
            turn = turn.max(self.group(group)?.route.port_turn);
            dearest_fs = dearest_fs.max(packet_fs.unwrap_or(0));
        }
        Ok(dearest_fs.checked_mul(u128::from(turn - 1)))
    }

    /// Who comes to a worker.
    pub(super) fn visitors(&self, worker: usize) -> Result<Visitors, Unbounded> {
        let mut all = Visitors::default();
        let mut ports = BTreeMap::new();
        for group in self.groups_at(worker) {
            let View {
                route,
                servers: way,
                sums,
            } = self.group(group)?;
            let beyond = || self.at(worker, Unbounded::Beyond);
            let index = way.iter().position(|one| *one == worker);
            let index = index.ok_or_else(beyond)?;
            all.return_here |= sums.returns[index];
            all.hold |= route.hold.times > 0;
            all.dearest_fs = all.dearest_fs.max(sums.packets_fs[index]);
            let at_departure = all.at_departure.plus(&sums.at_departure);
            all.at_departure = at_departure.ok_or_else(beyond)?;
            all.departure_fs = all.departure_fs.saturating_add(sums.departure_fs);
            let queues = match &route.resources[0] {
                Resource::Port { queues, .. } => *queues,
                _ => 1,
            };
            ports.insert(way[0], queues);
        }
        all.ports = ports.values().sum();
        Ok(all)
    }
}

/// Who comes to a worker, all together.
#[derive(Debug, Default)]
pub(super) struct Visitors {
    /// Packets of some come back to it.
    return_here: bool,
    /// Functions of some hold packets back.
    pub(super) hold: bool,
    /// How many ports it takes packets from in turn: each receive queue of each interface is one.
    pub(super) ports: u32,
    /// The dearest packet, fs.
    pub(super) dearest_fs: u128,
    /// What it does when packets leave its shapers.
    pub(super) at_departure: ArrivalCurve,
    /// That for one packet of each chain, fs.
    pub(super) departure_fs: u128,
}

impl Visitors {
    /// What departures that were waited for may take. Of each chain they come at its rate: what has come due while the worker was away leaves in one turn,
    /// of which at most one begins before and one in any time.
    fn departures(&self) -> LeakyBucket {
        let rates = [
            self.at_departure.short().rate,
            self.at_departure.long().rate,
        ];
        LeakyBucket::new(
            self.departure_fs.saturating_mul(2),
            rates.into_iter().fold(0, u128::max),
        )
    }

    /// First come, first served, where a packet leaves after the whole batch that it was taken with: those that came later may be before it. And what
    /// the shapers let go meanwhile is before it too, whenever it came; where that needs most of the core nothing is said of the order.
    ///
    /// Where a batch takes time of its own, that before may have been a small one, and so may this one; and departures are such batches.
    fn in_order(&self, batch: u16, batch_fs: u128, service: RateLatency) -> Option<Order> {
        let departures = self.departures();
        let Some(rate) = service
            .rate
            .checked_sub(departures.rate)
            .filter(|rate| *rate >= service.rate / 2)
        else {
            return Some(Order::Any(service));
        };
        let later = u128::from(batch.max(1) - 1);
        let mut later_fs = self.dearest_fs.checked_mul(later)?;
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
