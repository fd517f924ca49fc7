//! The worst case of each way, of what the ledger holds and one chain more.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::booking::Booking;
use super::ledger::{Ledger, Route, Sums};
use super::pause::Batches;
use super::site::Platform;
use super::way::Resource;
use crate::calculus::{
    ArrivalCurve, Passage, RateLatency, SECOND, after_delay, busy_period, delay, fair_share,
    mul_div_up, paper_sum, tandem,
};

/// Packets that the receiving ring of a worker's socket holds.
const RING: u128 = 1024;
/// The same where the interface has several receive queues, each of which has a socket.
const SMALL_RING: u128 = 256;

/// Why there is no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unbounded {
    /// More is promised than the server can do.
    Full(Resource),
    /// Nothing bounds what this chain sends.
    Unpoliced { chain: String, at: Resource },
    /// A packet comes back to a core whose other processes poll, or the figures are beyond all measure.
    Beyond(Resource),
    /// More packets may wait in a ring than it holds.
    Overflow {
        at: Resource,
        port: Box<Resource>,
        packets: u128,
        ring: u128,
    },
}

/// In which order a server works.
#[derive(Debug, Clone)]
enum Order {
    /// First come, first served.
    Fcfs(RateLatency),
    /// Nobody knows: a worker that takes a batch from each of its ports in turn, or to which packets come back.
    Any(RateLatency),
    /// Nobody knows, and the core works for several processes, none of which polls.
    Shared(RateLatency),
}

/// The bound of the chains of one way.
pub(super) struct Worst {
    pub(super) bound_fs: u128,
    pub(super) sum_fs: Option<u128>,
    pub(super) servers: Vec<Served>,
}

/// The same at one server.
pub(super) struct Served {
    pub(super) latency_fs: u128,
    pub(super) rate: u128,
    /// All that is promised there.
    pub(super) total: ArrivalCurve,
    pub(super) delay_fs: u128,
}

type Delays = BTreeMap<Resource, Result<u128, Unbounded>>;

pub(super) struct Evaluator<'a> {
    ledger: &'a Ledger,
    platform: &'a Platform,
    added: Option<(Route, Sums)>,
    /// The delay at each server for whoever passes it.
    delays: RefCell<Delays>,
    /// All that comes to each server.
    totals: RefCell<BTreeMap<Resource, Result<ArrivalCurve, Unbounded>>>,
    orders: RefCell<BTreeMap<Resource, Result<Order, Unbounded>>>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(
        ledger: &'a Ledger,
        platform: &'a Platform,
        booking: Option<&Booking>,
    ) -> Self {
        let added = booking.map(|booking| {
            let route: Route = booking.route().into();
            let sums = match ledger.group(&route) {
                Some(group) => group.sums.with(booking),
                None => Sums::default().with(booking),
            };
            (route, sums)
        });
        Self {
            ledger,
            platform,
            added,
            delays: RefCell::default(),
            totals: RefCell::default(),
            orders: RefCell::default(),
        }
    }

    fn sums(&self, route: &Route) -> Option<&Sums> {
        match &self.added {
            Some((added, sums)) if added == route => Some(sums),
            _ => self.ledger.group(route).map(|group| &group.sums),
        }
    }

    fn routes_at(&self, resource: &Resource) -> impl Iterator<Item = &Route> {
        let added = self.added.iter().map(|(route, _)| route);
        let added =
            added.filter(|route| route.contains(resource) && self.ledger.group(route).is_none());
        self.ledger.routes_at(resource).chain(added)
    }

    /// The workers of a core, the added chain's included.
    fn workers_on(&self, core: u32) -> BTreeSet<&Resource> {
        let added = self.added.iter().flat_map(|(route, _)| route.iter());
        let added = added.filter(
            |resource| matches!(resource, Resource::Worker { core: on, .. } if *on == core),
        );
        self.ledger.workers_on(core).chain(added).collect()
    }

    /// The ways whose delay the added chain changes: those that meet it at a server or at a worker's core, and those that meet them further on,
    /// since they arrive there in other clusters.
    pub(super) fn affected(&self) -> BTreeSet<Route> {
        let mut routes = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut open: Vec<&Resource> = Vec::new();
        if let Some((route, _)) = &self.added {
            routes.insert(Arc::clone(route));
            open.extend(route.iter());
        }
        while let Some(resource) = open.pop() {
            if !seen.insert(resource) {
                continue;
            }
            if let Resource::Worker { core, .. } = resource {
                open.extend(self.workers_on(*core));
            }
            for route in self.routes_at(resource) {
                routes.insert(Arc::clone(route));
                open.extend(route.iter().skip_while(|one| *one != resource));
            }
        }
        routes
    }

    /// The worst case of one way.
    pub(super) fn worst(&self, route: &Route) -> Result<Worst, Unbounded> {
        let beyond = || Unbounded::Beyond(route[0].clone());
        let group = self.sums(route).ok_or_else(beyond)?;
        let mut servers = Vec::with_capacity(route.len());
        let mut passages = Vec::with_capacity(route.len());
        let mut sum_fs = Some(0_u128);
        let mut added_fs = 0_u128;
        let mut ordered = true;
        for (index, resource) in route.iter().enumerate() {
            let full = || Unbounded::Full(resource.clone());
            let order = self.order(resource)?;
            let (Order::Fcfs(service) | Order::Any(service) | Order::Shared(service)) = order;
            let arrived = self.arrived(route, index)?;
            let others = self.total(resource, &order)?;
            let others = others.minus(&arrived).ok_or_else(full)?;
            // Its own as it was sent: to move a flow's packets back in time until they keep to their profile again makes none of them
            // leave earlier. That needs first come, first served, here and before.
            ordered &= matches!(order, Order::Fcfs(_));
            let own = if ordered {
                group.curves[index]
            } else {
                arrived
            };
            // Whether the rings hold what waits.
            self.delay_at(resource)?;
            let total = own.plus(&others).ok_or_else(full)?;
            let in_order_fs = longest(&total, &order).ok_or_else(full)?;
            let (delay_fs, latency_fs) = match self.without_pause(resource, &order) {
                Some((pause_fs, latency_fs)) if pause_fs < in_order_fs => (pause_fs, latency_fs),
                _ => (in_order_fs, service.latency_fs),
            };
            added_fs = added_fs.checked_add(delay_fs).ok_or_else(beyond)?;
            if let Order::Fcfs(service) = order {
                passages.push(Passage {
                    service,
                    others,
                    packet: group.packets_fs[index],
                });
                let short = total.short().rate <= service.rate;
                let burst =
                    |curve: &ArrivalCurve| if short { curve.short() } else { curve.long() }.burst;
                let bursts = [burst(&own), burst(&others)];
                let here_fs = paper_sum(bursts, service.rate, service.latency_fs);
                sum_fs = sum_fs
                    .zip(here_fs)
                    .and_then(|(sum, here)| sum.checked_add(here));
            } else {
                sum_fs = None;
            }
            servers.push(Served {
                latency_fs,
                rate: service.rate,
                total,
                delay_fs,
            });
        }
        // Where a burst is paid for once the bound is below the sum, unless the others need nearly all of a server.
        let once_fs = (passages.len() == route.len())
            .then(|| tandem(&group.most, &passages))
            .flatten();
        Ok(Worst {
            bound_fs: once_fs.map_or(added_fs, |once| once.min(added_fs)),
            sum_fs,
            servers,
        })
    }

    /// The longest that anybody's packet stays at a server.
    fn delay_at(&self, resource: &Resource) -> Result<u128, Unbounded> {
        if let Some(known) = self.delays.borrow().get(resource) {
            return known.clone();
        }
        let delay = self.order(resource).and_then(|order| {
            let total = self.total(resource, &order)?;
            let in_order_fs =
                longest(&total, &order).ok_or_else(|| Unbounded::Full(resource.clone()))?;
            let pause = self.without_pause(resource, &order);
            let delay_fs = pause.map_or(in_order_fs, |(pause_fs, _)| in_order_fs.min(pause_fs));
            self.check_rings(resource, delay_fs)?;
            Ok(delay_fs)
        });
        self.delays
            .borrow_mut()
            .insert(resource.clone(), delay.clone());
        delay
    }

    /// A bound on the delay of a way that is quickly found, and not the best: of all servers, the longest that anybody stays.
    pub(super) fn rough_fs(&self, route: &Route) -> Result<u128, Unbounded> {
        let mut sum_fs = 0_u128;
        for resource in route.iter() {
            let beyond = || Unbounded::Beyond(resource.clone());
            sum_fs = sum_fs
                .checked_add(self.delay_at(resource)?)
                .ok_or_else(beyond)?;
        }
        Ok(sum_fs)
    }

    /// The longest that packets of a way were under way before they come to one of its servers, fs.
    fn before_fs(&self, route: &Route, index: usize) -> Result<u128, Unbounded> {
        let mut before_fs = 0_u128;
        for resource in &route[..index] {
            before_fs = before_fs
                .checked_add(self.delay_at(resource)?)
                .ok_or_else(|| Unbounded::Full(route[index].clone()))?;
        }
        Ok(before_fs)
    }

    /// Whether each ring of a worker holds what may wait in it, where nobody stays longer than `delay_fs`: what is there came to the
    /// port within the delays before and here. All may have come by one receive queue.
    fn check_rings(&self, worker: &Resource, delay_fs: u128) -> Result<(), Unbounded> {
        if !matches!(worker, Resource::Worker { devices: false, .. }) {
            return Ok(());
        }
        let mut waiting: BTreeMap<&Resource, u128> = BTreeMap::new();
        for route in self.routes_at(worker) {
            let beyond = || Unbounded::Beyond(worker.clone());
            let index = route.iter().position(|one| one == worker);
            let before_fs = self.before_fs(route, index.ok_or_else(beyond)?)?;
            let sums = self.sums(route).ok_or_else(beyond)?;
            let within_fs = before_fs.checked_add(delay_fs).ok_or_else(beyond)?;
            let packets = sums.count.at(within_fs).ok_or_else(beyond)?;
            let all = waiting.entry(&route[0]).or_default();
            *all = all.saturating_add(packets);
        }
        for (port, packets) in waiting {
            let ring = match port {
                Resource::Port { queues, .. } if *queues > 1 => SMALL_RING,
                _ => RING,
            };
            if packets > ring {
                return Err(Unbounded::Overflow {
                    at: worker.clone(),
                    port: Box::new(port.clone()),
                    packets,
                    ring,
                });
            }
        }
        Ok(())
    }

    /// What the chains of a way bring to one of its servers, as clustered as it is there.
    fn arrived(&self, route: &Route, index: usize) -> Result<ArrivalCurve, Unbounded> {
        let full = || Unbounded::Full(route[index].clone());
        let before_fs = self.before_fs(route, index)?;
        let sums = self.sums(route).ok_or_else(full)?;
        after_delay(&sums.curves[index], before_fs).ok_or_else(full)
    }

    /// The longest that a packet stays at a worker that is first come, first served by batches, however clustered its chain comes there, and what of it is no
    /// work; fs. `None` where that is not known.
    fn without_pause(&self, resource: &Resource, order: &Order) -> Option<(u128, u128)> {
        let Resource::Worker {
            core,
            wake_up_fs,
            batch,
            batch_fs,
            ..
        } = resource
        else {
            return None;
        };
        if !matches!(order, Order::Fcfs(_)) || self.workers_on(*core).len() > 1 {
            return None;
        }
        let stall_fs = self.platform.stall_fs(*core);
        let batches = Batches {
            core: RateLatency::core(stall_fs.saturating_add(*wake_up_fs)),
            packets: *batch,
            each_fs: *batch_fs,
            dearest_fs: self.dearest_fs(resource),
        };
        let all = self.total(resource, order).ok()?;
        Some((batches.longest(&all)?, batches.latency_fs()?))
    }

    /// All that comes to a server, as clustered as it is there. Where the order is not known all that its core has to do counts.
    fn total(&self, resource: &Resource, order: &Order) -> Result<ArrivalCurve, Unbounded> {
        if let Some(known) = self.totals.borrow().get(resource) {
            return known.clone();
        }
        let total = self.sum_up(resource, order);
        self.totals
            .borrow_mut()
            .insert(resource.clone(), total.clone());
        total
    }

    fn sum_up(&self, resource: &Resource, order: &Order) -> Result<ArrivalCurve, Unbounded> {
        let servers = match (resource, order) {
            (Resource::Worker { core, .. }, Order::Shared(_)) => self.workers_on(*core),
            _ => BTreeSet::from([resource]),
        };
        let mut sum = ArrivalCurve::default();
        for server in servers {
            for route in self.routes_at(server) {
                let full = || Unbounded::Full(resource.clone());
                let sums = self.sums(route).ok_or_else(full)?;
                if let Some(chain) = &sums.unpoliced {
                    return Err(Unbounded::Unpoliced {
                        chain: chain.clone(),
                        at: resource.clone(),
                    });
                }
                let index = route
                    .iter()
                    .position(|one| one == server)
                    .ok_or_else(full)?;
                let mut arrived = self.arrived(route, index)?;
                // Batches may be of one packet each.
                if let (Resource::Worker { batch_fs, .. }, Order::Any(_) | Order::Shared(_)) =
                    (server, order)
                {
                    let before_fs = self.before_fs(route, index)?;
                    let alone = after_delay(&sums.count, before_fs)
                        .and_then(|count| count.times(*batch_fs))
                        .ok_or_else(full)?;
                    arrived = arrived.plus(&alone).ok_or_else(full)?;
                }
                sum = sum.plus(&arrived).ok_or_else(full)?;
            }
        }
        Ok(sum)
    }

    /// What a server does, and in which order.
    fn order(&self, resource: &Resource) -> Result<Order, Unbounded> {
        if let Some(known) = self.orders.borrow().get(resource) {
            return known.clone();
        }
        let order = self.find_order(resource);
        self.orders
            .borrow_mut()
            .insert(resource.clone(), order.clone());
        order
    }

    fn find_order(&self, resource: &Resource) -> Result<Order, Unbounded> {
        let Resource::Worker {
            core,
            wake_up_fs,
            batch,
            batch_fs,
            devices,
            ..
        } = resource
        else {
            return Ok(Order::Fcfs(match resource {
                Resource::Port { .. } => RateLatency::core(self.platform.worst_stall_fs()),
                _ => RateLatency::core(0),
            }));
        };
        let beyond = || Unbounded::Beyond(resource.clone());
        let stall_fs = self.platform.stall_fs(*core);
        let workers = self.workers_on(*core);
        let returns = self.routes_at(resource).any(|route| {
            let server = route.iter().position(|one| one == resource);
            let group = self.sums(route);
            server
                .zip(group)
                .is_some_and(|(server, group)| group.returns[server])
        });
        let in_turn = *devices || self.ports_of(resource) > 1;
        let after_batch =
            |service: RateLatency| self.after_batch(resource, *batch, *batch_fs, service);
        let whole = RateLatency::core(stall_fs.saturating_add(*wake_up_fs));
        let others = workers.iter().filter(|one| **one != resource);
        if workers.len() <= 1 {
            return Ok(if returns || in_turn {
                Order::Any(whole)
            } else {
                Order::Fcfs(after_batch(whole).ok_or_else(beyond)?)
            });
        }
        let mut wake_ups_fs = *wake_up_fs;
        for other in others.clone() {
            if let Resource::Worker { wake_up_fs, .. } = other {
                wake_ups_fs = wake_ups_fs.saturating_add(*wake_up_fs);
            }
        }
        if !others
            .clone()
            .any(|other| matches!(other, Resource::Worker { polls: true, .. }))
        {
            return Ok(Order::Shared(RateLatency::core(
                stall_fs.saturating_add(wake_ups_fs),
            )));
        }
        // One that polls takes its share whether it has work or not.
        if returns {
            return Err(beyond());
        }
        let others_weight = (workers.len() - 1) as u64;
        let share = fair_share(&whole, 1, others_weight, self.platform.slice_fs);
        let share = share.ok_or_else(beyond)?;
        Ok(if in_turn {
            Order::Any(share)
        } else {
            Order::Fcfs(after_batch(share).ok_or_else(beyond)?)
        })
    }

    /// How many ports a worker takes packets from in turn: each receive queue of each interface is one.
    fn ports_of(&self, worker: &Resource) -> u32 {
        let ways = self.routes_at(worker).filter_map(|route| route.first());
        let ports: BTreeSet<_> = ways.collect();
        let queues = ports.iter().map(|port| match port {
            Resource::Port { queues, .. } => *queues,
            _ => 1,
        });
        queues.sum()
    }

    /// The dearest packet at a server, fs.
    fn dearest_fs(&self, server: &Resource) -> u128 {
        let costs = self.routes_at(server).filter_map(|route| {
            let index = route.iter().position(|one| one == server)?;
            self.sums(route)?.packets_fs.get(index).copied()
        });
        costs.max().unwrap_or(0)
    }

    /// What is left of first come, first served where a packet leaves after the whole batch that it was taken with: those that came
    /// later may be before it. Where a batch takes time of its own, that before may have been a small one, and so may this one.
    fn after_batch(
        &self,
        worker: &Resource,
        batch: u16,
        batch_fs: u128,
        service: RateLatency,
    ) -> Option<RateLatency> {
        let batches = if batch_fs > 0 { 2 } else { 1 };
        let later = u128::from(batch.max(1) - 1).checked_mul(batches)?;
        let later_fs = self.dearest_fs(worker).checked_mul(later)?;
        let later_fs = later_fs.checked_add(batch_fs.checked_mul(2)?)?;
        let later_fs = mul_div_up(later_fs, SECOND, service.rate)?;
        Some(RateLatency::new(
            service.rate,
            service.latency_fs.checked_add(later_fs)?,
        ))
    }
}

fn longest(total: &ArrivalCurve, order: &Order) -> Option<u128> {
    match order {
        Order::Fcfs(service) => delay(total, service),
        Order::Any(service) | Order::Shared(service) => busy_period(total, service),
    }
}
