//! Evaluates each server for the chains of the ledger and one new chain.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::booking::Booking;
use super::group::GroupSums;
use super::ledger::Ledger;
use super::order::Order;
use super::path::{Resource, Route};
use super::site::Platform;
use crate::calculus::{ArrivalCurve, RateLatency, after_delay, busy_period, delay};

/// The reason why a chain has no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unbounded {
    /// The agreed rates exceed the server's rate.
    Overload(Resource),
    /// Nothing limits the traffic of this chain.
    Unpoliced { chain: String, at: Box<Resource> },
    /// A packet returns to a core where another process polls, or a figure exceeds 128 bits.
    NotComputable(Resource),
    /// A black box runs on the core of this worker.
    BlackBox(Resource),
    /// The chains of this worker have different mappings, and share each of its turns.
    MixedTurns(Resource),
    /// The chain's shaper may hold packets for any time.
    ShaperWait,
    /// With turns by deadline, the packets of this core need more than its time.
    LateTurns { at: Resource, chains: Vec<String> },
    /// With turns by deadline, the order of a worker's packets within its turn is unknown.
    UnorderedTurn { at: Resource, chains: Vec<String> },
    /// The ledger does not have this path.
    UnknownPath,
    /// More packets may wait for a worker than the ring from a port holds.
    Overflow {
        at: Box<Resource>,
        port: Box<Resource>,
        packets: u128,
        ring: u128,
    },
}

/// All arrivals at a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Total {
    pub(super) curve: ArrivalCurve,
    /// The part of the arrivals that returns after functions held it back, counted for each return.
    pub(super) returning: ArrivalCurve,
}

/// Cached results of one server.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerCache {
    order: Option<Result<(Order, RateLatency), Unbounded>>,
    total: Option<Result<Total, Unbounded>>,
    /// Delay of a packet in one passage of the server.
    delay_fs: Option<Result<u128, Unbounded>>,
    pub(super) lateness_fs: Option<Result<u128, Unbounded>>,
    /// Longest stay by theorem 5, and its latency part, fs.
    batch_stay: Option<Result<Option<(u128, u128)>, Unbounded>>,
}

/// The new chain, which is not in the ledger.
struct AddedChain<'a> {
    /// Number of the chain's group: a group of the ledger, or a new group.
    group: usize,
    route: Route,
    servers: Vec<usize>,
    sums: GroupSums,
    /// Servers that are not in the ledger. Their numbers begin at [`Ledger::servers_end`].
    new: Vec<&'a Resource>,
}

/// A group of the ledger, or the new chain's group.
pub(super) struct GroupView<'a> {
    pub(super) route: &'a Route,
    /// The servers of the path, by number.
    pub(super) servers: &'a [usize],
    pub(super) sums: &'a GroupSums,
}

pub(super) struct Evaluator<'a> {
    ledger: &'a Ledger,
    pub(super) platform: &'a Platform,
    added: Option<AddedChain<'a>>,
    /// Index of each server in `caches`, plus 1; 0 if the server has no cache.
    cache_numbers: RefCell<Vec<u32>>,
    caches: RefCell<Vec<ServerCache>>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(
        ledger: &'a Ledger,
        platform: &'a Platform,
        booking: Option<&'a Booking>,
    ) -> Self {
        let added = booking.map(|booking| {
            let route = booking.route();
            let group = ledger.group_number(&route);
            let sums = match group.and_then(|group| ledger.group(group)) {
                Some(group) => group.sums.with(booking),
                None => GroupSums::default().with(booking),
            };
            let mut new = Vec::new();
            let servers = booking.visits.iter().map(|visit| {
                let known = ledger.server_number(&visit.resource);
                known.unwrap_or_else(|| {
                    new.push(&visit.resource);
                    ledger.servers_end() + new.len() - 1
                })
            });
            AddedChain {
                group: group.unwrap_or(ledger.groups_end()),
                servers: servers.collect(),
                route,
                sums,
                new,
            }
        });
        let servers = ledger.servers_end() + added.as_ref().map_or(0, |added| added.new.len());
        Self {
            ledger,
            platform,
            added,
            cache_numbers: RefCell::new(vec![0; servers]),
            caches: RefCell::default(),
        }
    }

    /// Returns the bookings of the ledger.
    pub(super) fn bookings(&self) -> impl Iterator<Item = &Booking> {
        self.ledger.bookings()
    }

    /// Returns the group of the new chain.
    pub(super) fn new_group(&self) -> Option<usize> {
        self.added.as_ref().map(|added| added.group)
    }

    fn added_in(&self, group: usize) -> Option<&AddedChain<'a>> {
        self.added.as_ref().filter(|added| added.group == group)
    }

    pub(super) fn group(&self, group: usize) -> Result<GroupView<'_>, Unbounded> {
        let (route, servers, sums) = if let Some(added) = self.added_in(group) {
            (&added.route, &added.servers, &added.sums)
        } else {
            let group = self.ledger.group(group).ok_or(Unbounded::UnknownPath)?;
            (&group.route, &group.servers, &group.sums)
        };
        Ok(GroupView {
            route,
            servers,
            sums,
        })
    }

    pub(super) fn resource(&self, server: usize) -> Result<&Resource, Unbounded> {
        let new = || {
            let index = server.checked_sub(self.ledger.servers_end())?;
            self.added.as_ref()?.new.get(index).copied()
        };
        let known = self.ledger.server(server);
        known
            .map(|server| &server.resource)
            .or_else(new)
            .ok_or(Unbounded::UnknownPath)
    }

    /// Returns the groups that pass a server. A new group of the new chain is the last.
    pub(super) fn groups_at(&self, server: usize) -> impl Iterator<Item = usize> + '_ {
        let known = self.ledger.server(server).into_iter();
        let new = self.added.iter().filter(move |added| {
            added.group == self.ledger.groups_end() && added.servers.contains(&server)
        });
        let groups = known.flat_map(|server| &server.groups).copied();
        groups.chain(new.map(|added| added.group))
    }

    /// Returns the workers of a core, including the new chain's worker.
    pub(super) fn workers_on(&self, core: u32) -> BTreeSet<usize> {
        let added = self.added.iter().flat_map(|added| {
            let servers = added.servers.iter().zip(&added.route.resources);
            servers.filter(
                |(_, resource)| matches!(resource, Resource::Worker { core: on, .. } if *on == core),
            )
        });
        let added = added.map(|(server, _)| *server);
        self.ledger.workers_on(core).chain(added).collect()
    }

    /// Returns a cached result of a server, or computes and caches it.
    pub(super) fn get_or_compute<T: Clone>(
        &self,
        server: usize,
        field: impl Fn(&mut ServerCache) -> &mut Option<T>,
        compute: impl FnOnce() -> T,
    ) -> T {
        let index = {
            let mut numbers = self.cache_numbers.borrow_mut();
            let mut caches = self.caches.borrow_mut();
            if numbers[server] == 0 {
                caches.push(ServerCache::default());
                numbers[server] = caches.len() as u32;
            }
            numbers[server] as usize - 1
        };
        if let Some(cached) = field(&mut self.caches.borrow_mut()[index]) {
            return cached.clone();
        }
        let result = compute();
        *field(&mut self.caches.borrow_mut()[index]) = Some(result.clone());
        result
    }

    /// Returns the groups whose delay the new chain changes, in no order. A group is affected if it
    /// shares a server or a worker's core with the new chain. A group is also affected if it shares
    /// a server with an affected group, whose packets arrive there in larger clusters.
    pub(super) fn affected_groups(&self) -> Result<Vec<usize>, Unbounded> {
        let Some(added) = &self.added else {
            return Ok(Vec::new());
        };
        let mut groups = vec![added.group];
        let mut is_found = vec![false; self.ledger.groups_end() + 1];
        is_found[added.group] = true;
        let mut is_seen = vec![false; self.cache_numbers.borrow().len()];
        let mut open = added.servers.clone();
        while let Some(server) = open.pop() {
            if std::mem::replace(&mut is_seen[server], true) {
                continue;
            }
            if let Resource::Worker { core, .. } = self.resource(server)? {
                open.extend(self.workers_on(*core));
            }
            for group in self.groups_at(server) {
                if !std::mem::replace(&mut is_found[group], true) {
                    groups.push(group);
                }
                let path = self.group(group)?.servers.iter();
                let further = path.skip_while(|visited| **visited != server).skip(1);
                open.extend(further.filter(|further| !is_seen[**further]));
            }
        }
        Ok(groups)
    }

    /// Returns the longest stay of any packet at a server, in each passage, fs.
    pub(super) fn delay_at(&self, server: usize) -> Result<u128, Unbounded> {
        let compute = || {
            let (order, _) = self.order(server)?;
            let total = self.total(server, order)?;
            let in_order_fs = longest_delay(&total, order);
            let in_order_fs =
                in_order_fs.ok_or_else(|| self.error_at(server, Unbounded::Overload))?;
            let batch_stay = self.batch_stay(server)?;
            let delay_fs = batch_stay.map_or(in_order_fs, |(stay_fs, _)| in_order_fs.min(stay_fs));
            self.check_rings(server, delay_fs - order.rounds_fs())?;
            Ok(delay_fs)
        };
        self.get_or_compute(server, |cache| &mut cache.delay_fs, compute)
    }

    /// Creates an error that names the server.
    pub(super) fn error_at(&self, server: usize, why: impl Fn(Resource) -> Unbounded) -> Unbounded {
        match self.resource(server) {
            Ok(resource) => why(resource.clone()),
            Err(unknown) => unknown,
        }
    }

    /// Returns the longest time of a group's packets before one of the group's servers, fs,
    /// including hold times of earlier functions.
    pub(super) fn delay_before_fs(&self, group: usize, index: usize) -> Result<u128, Unbounded> {
        let GroupView {
            route,
            servers: path,
            ..
        } = self.group(group)?;
        let mut before_fs = route.held_before(index);
        for (server, resource) in path[..index].iter().zip(&route.resources) {
            let stays_fs = self
                .delay_at(*server)?
                .checked_mul(route.passages(resource));
            before_fs = stays_fs
                .and_then(|stays_fs| before_fs.checked_add(stays_fs))
                .ok_or_else(|| Unbounded::Overload(resource.clone()))?;
        }
        Ok(before_fs)
    }

    /// Returns the aggregate arrival curve of a group at one of its servers. It includes upstream
    /// burstiness, and the hold times at the server because held packets return.
    pub(super) fn arrivals(&self, group: usize, index: usize) -> Result<ArrivalCurve, Unbounded> {
        let GroupView { route, sums, .. } = self.group(group)?;
        let overload = || Unbounded::Overload(route.resources[index].clone());
        after_delay(&sums.curves[index], self.delay_variation_fs(group, index)?)
            .ok_or_else(overload)
    }

    /// Like [`Self::arrivals`] at a worker, of the work in rounds behind the first turn, all of
    /// which counts as work of arriving packets.
    pub(super) fn arrivals_in_rounds(
        &self,
        group: usize,
        server: usize,
    ) -> Result<ArrivalCurve, Unbounded> {
        let GroupView {
            servers: path,
            sums,
            ..
        } = self.group(group)?;
        let overload = || self.error_at(server, Unbounded::Overload);
        let index = path.iter().position(|visited| *visited == server);
        let index = index.ok_or_else(overload)?;
        after_delay(&sums.in_rounds, self.delay_variation_fs(group, index)?).ok_or_else(overload)
    }

    /// Like [`Self::arrivals`], in packets.
    pub(super) fn packets(&self, group: usize, index: usize) -> Result<ArrivalCurve, Unbounded> {
        let GroupView { route, sums, .. } = self.group(group)?;
        after_delay(&sums.packet_count, self.delay_variation_fs(group, index)?)
            .ok_or_else(|| Unbounded::Overload(route.resources[index].clone()))
    }

    /// Returns the greatest delay variation of a group's packets at one of its servers, fs. It
    /// comes from earlier servers, and from hold times at this server.
    fn delay_variation_fs(&self, group: usize, index: usize) -> Result<u128, Unbounded> {
        let route = self.group(group)?.route;
        let held_fs = route.held_before(index + 1) - route.held_before(index);
        let late_fs = self.delay_before_fs(group, index)?.checked_add(held_fs);
        late_fs.ok_or_else(|| Unbounded::Overload(route.resources[index].clone()))
    }

    /// Returns the longest stay at a first-come, first-served server that works in batches, and the
    /// latency part of that stay, fs; `None` if unknown. Theorem 5 of `docs/guarantees/proofs.md`.
    pub(super) fn batch_stay(&self, server: usize) -> Result<Option<(u128, u128)>, Unbounded> {
        let compute = || {
            let Some(batch_server) = self.batch_server(server)? else {
                return Ok(None);
            };
            let all = self.total(server, self.order(server)?.0)?;
            let longest_fs = batch_server.max_stay_fs(&all.curve);
            Ok(longest_fs.zip(batch_server.latency_fs()))
        };
        self.get_or_compute(server, |cache| &mut cache.batch_stay, compute)
    }

    /// Returns all arrivals at a server, including upstream burstiness. If the order on the
    /// server's core is unknown, returns all work of that core.
    pub(super) fn total(&self, server: usize, order: Order) -> Result<Total, Unbounded> {
        let compute = || self.compute_total(server, order);
        self.get_or_compute(server, |cache| &mut cache.total, compute)
    }

    fn compute_total(&self, server: usize, order: Order) -> Result<Total, Unbounded> {
        let servers = match (self.resource(server)?, order) {
            (Resource::Worker { core, .. }, Order::Shared(_)) => self.workers_on(*core),
            _ => BTreeSet::from([server]),
        };
        let overload = || self.error_at(server, Unbounded::Overload);
        let mut sum = Total::default();
        for server in servers {
            for group in self.groups_at(server) {
                let GroupView {
                    route,
                    servers: path,
                    sums,
                } = self.group(group)?;
                if let Some(chain) = &sums.unpoliced {
                    return Err(Unbounded::Unpoliced {
                        chain: chain.clone(),
                        at: Box::new(self.resource(server)?.clone()),
                    });
                }
                let index = path
                    .iter()
                    .position(|visited| *visited == server)
                    .ok_or_else(overload)?;
                let mut arrived = self.arrivals(group, index)?;
                // A batch may have a single packet.
                if let Resource::Worker { batch_fs, .. } = &route.resources[index]
                    && !matches!(order, Order::Fcfs(_))
                {
                    let single_packets = self.packets(group, index)?.times(*batch_fs);
                    let single_packets = single_packets.ok_or_else(overload)?;
                    arrived = arrived.plus(&single_packets).ok_or_else(overload)?;
                }
                sum.curve = sum.curve.plus(&arrived).ok_or_else(overload)?;
                for _ in 1..route.passages(&route.resources[index]) {
                    sum.returning = sum.returning.plus(&arrived).ok_or_else(overload)?;
                }
            }
        }
        Ok(sum)
    }

    /// Returns the order and service of a server, and the server's service in any order.
    pub(super) fn order(&self, server: usize) -> Result<(Order, RateLatency), Unbounded> {
        let compute = || self.compute_order(server);
        self.get_or_compute(server, |cache| &mut cache.order, compute)
    }
}

/// Returns the longest delay of a packet in one passage of a server, fs.
pub(super) fn longest_delay(total: &Total, order: Order) -> Option<u128> {
    match order {
        Order::Fcfs(service) => delay(&total.curve, &service),
        Order::Any(service) | Order::Shared(service) => longest_busy_period(total, &service),
        Order::InRounds {
            service,
            is_fcfs,
            rounds_fs,
        } => {
            let first_fs = if is_fcfs {
                delay(&total.curve, &service)
            } else {
                longest_busy_period(total, &service)
            };
            first_fs?.checked_add(rounds_fs)
        }
        Order::Deadline { stay_fs, .. } => Some(stay_fs),
    }
}

/// Returns the longest busy period of a server, fs.
pub(super) fn longest_busy_period(total: &Total, service: &RateLatency) -> Option<u128> {
    busy_period(&total.curve, &total.returning, service)
}
