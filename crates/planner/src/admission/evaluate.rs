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

/// Why a chain has no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unbounded {
    /// The agreed rates exceed the server's rate.
    Overload(Resource),
    /// Nothing limits the traffic of this chain.
    Unpoliced { chain: String, at: Resource },
    /// A packet returns to a core where another process polls, or a figure exceeds 128 bits.
    NotComputable(Resource),
    /// The chain's shaper may hold packets for any time.
    ShaperWait,
    /// The ledger does not have this path.
    UnknownPath,
    /// More packets can wait in a ring than it holds.
    Overflow {
        at: Resource,
        port: Box<Resource>,
        packets: u128,
        ring: u128,
    },
}

/// All arrivals at a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Total {
    pub(super) curve: ArrivalCurve,
    /// The part that functions hold back and that returns, once for each return.
    pub(super) returning: ArrivalCurve,
}

/// Cached results of one server.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerCache {
    order: Option<Result<(Order, RateLatency), Unbounded>>,
    total: Option<Result<Total, Unbounded>>,
    /// Delay of a packet in one passage of the server.
    delay_fs: Option<Result<u128, Unbounded>>,
    pub(super) late_fs: Option<Result<u128, Unbounded>>,
    /// Longest stay by batches, and the part of it that is latency, fs.
    pause: Option<Result<Option<(u128, u128)>, Unbounded>>,
}

/// The new chain.
struct Added<'a> {
    /// Its group: one of the ledger's, or a new one.
    group: usize,
    route: Route,
    servers: Vec<usize>,
    sums: GroupSums,
    /// Servers that are not in the ledger, numbered from its end.
    new: Vec<&'a Resource>,
}

/// A group of the ledger, or that of the new chain.
pub(super) struct View<'a> {
    pub(super) route: &'a Route,
    /// The servers of the path, by number.
    pub(super) servers: &'a [usize],
    pub(super) sums: &'a GroupSums,
}

pub(super) struct Evaluator<'a> {
    ledger: &'a Ledger,
    pub(super) platform: &'a Platform,
    added: Option<Added<'a>>,
    /// Index of each server in `cache`, from 1; 0 for none.
    places: RefCell<Vec<u32>>,
    known: RefCell<Vec<ServerCache>>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(
        ledger: &'a Ledger,
        platform: &'a Platform,
        booking: Option<&'a Booking>,
    ) -> Self {
        let added = booking.map(|booking| {
            let route = booking.route();
            let group = ledger.number_of(&route);
            let sums = match group.and_then(|group| ledger.group(group)) {
                Some(group) => group.sums.with(booking),
                None => GroupSums::default().with(booking),
            };
            let mut new = Vec::new();
            let servers = booking.visits.iter().map(|visit| {
                let known = ledger.server_of(&visit.resource);
                known.unwrap_or_else(|| {
                    new.push(&visit.resource);
                    ledger.servers_end() + new.len() - 1
                })
            });
            Added {
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
            places: RefCell::new(vec![0; servers]),
            known: RefCell::default(),
        }
    }

    /// The group of the new chain.
    pub(super) fn own(&self) -> Option<usize> {
        self.added.as_ref().map(|added| added.group)
    }

    fn added_as(&self, group: usize) -> Option<&Added<'a>> {
        self.added.as_ref().filter(|added| added.group == group)
    }

    pub(super) fn group(&self, group: usize) -> Result<View<'_>, Unbounded> {
        let (route, servers, sums) = if let Some(added) = self.added_as(group) {
            (&added.route, &added.servers, &added.sums)
        } else {
            let group = self.ledger.group(group).ok_or(Unbounded::UnknownPath)?;
            (&group.route, &group.servers, &group.sums)
        };
        Ok(View {
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

    /// The groups that pass a server; the new chain's new group comes last.
    pub(super) fn groups_at(&self, server: usize) -> impl Iterator<Item = usize> + '_ {
        let known = self.ledger.server(server).into_iter();
        let new = self.added.iter().filter(move |added| {
            added.group == self.ledger.groups_end() && added.servers.contains(&server)
        });
        let groups = known.flat_map(|server| &server.groups).copied();
        groups.chain(new.map(|added| added.group))
    }

    /// The workers of a core, with that of the new chain.
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
    pub(super) fn cached<T: Clone>(
        &self,
        server: usize,
        field: impl Fn(&mut ServerCache) -> &mut Option<T>,
        find: impl FnOnce() -> T,
    ) -> T {
        let place = {
            let mut places = self.places.borrow_mut();
            let mut known = self.known.borrow_mut();
            if places[server] == 0 {
                known.push(ServerCache::default());
                places[server] = known.len() as u32;
            }
            places[server] as usize - 1
        };
        if let Some(found) = field(&mut self.known.borrow_mut()[place]) {
            return found.clone();
        }
        let found = find();
        *field(&mut self.known.borrow_mut()[place]) = Some(found.clone());
        found
    }

    /// The groups whose delay the new chain changes: those that share a server or a worker's core
    /// with it, and those behind that share a server with these, because they arrive in other
    /// clusters. In no order.
    pub(super) fn affected(&self) -> Result<Vec<usize>, Unbounded> {
        let Some(added) = &self.added else {
            return Ok(Vec::new());
        };
        let mut groups = vec![added.group];
        let mut is_found = vec![false; self.ledger.groups_end() + 1];
        is_found[added.group] = true;
        let mut is_seen = vec![false; self.places.borrow().len()];
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
                let further = path.skip_while(|one| **one != server).skip(1);
                open.extend(further.filter(|one| !is_seen[**one]));
            }
        }
        Ok(groups)
    }

    /// Longest stay of any packet at a server, in each passage, fs.
    pub(super) fn delay_at(&self, server: usize) -> Result<u128, Unbounded> {
        let find = || {
            let (order, _) = self.order(server)?;
            let total = self.total(server, order)?;
            let in_order_fs = longest(&total, order);
            let in_order_fs =
                in_order_fs.ok_or_else(|| self.error_at(server, Unbounded::Overload))?;
            let pause = self.batch_stay(server)?;
            let delay_fs = pause.map_or(in_order_fs, |(stay_fs, _)| in_order_fs.min(stay_fs));
            self.check_rings(server, delay_fs)?;
            Ok(delay_fs)
        };
        self.cached(server, |known| &mut known.delay_fs, find)
    }

    /// An error with the server as its place.
    pub(super) fn error_at(&self, server: usize, why: impl Fn(Resource) -> Unbounded) -> Unbounded {
        match self.resource(server) {
            Ok(resource) => why(resource.clone()),
            Err(nobody) => nobody,
        }
    }

    /// Longest time of a group's packets before one of its servers, fs, with the hold times of
    /// functions before it.
    pub(super) fn delay_before_fs(&self, group: usize, index: usize) -> Result<u128, Unbounded> {
        let View {
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

    /// Aggregate arrival curve of a group at one of its servers, with upstream burstiness and with
    /// the hold times there, because held packets return.
    pub(super) fn arrivals(&self, group: usize, index: usize) -> Result<ArrivalCurve, Unbounded> {
        let View { route, sums, .. } = self.group(group)?;
        let full = || Unbounded::Overload(route.resources[index].clone());
        after_delay(&sums.curves[index], self.delay_variation_fs(group, index)?).ok_or_else(full)
    }

    /// Greatest delay variation of its packets at a server, fs: from the path before, and from hold
    /// times there.
    fn delay_variation_fs(&self, group: usize, index: usize) -> Result<u128, Unbounded> {
        let route = self.group(group)?.route;
        let held_fs = route.held_before(index + 1) - route.held_before(index);
        let late_fs = self.delay_before_fs(group, index)?.checked_add(held_fs);
        late_fs.ok_or_else(|| Unbounded::Overload(route.resources[index].clone()))
    }

    /// Longest stay at a first-come, first-served server that works in batches, and the part of it
    /// that is latency, fs. `None` if unknown. Theorem 5 of `docs/guarantees/proofs.md`.
    pub(super) fn batch_stay(&self, server: usize) -> Result<Option<(u128, u128)>, Unbounded> {
        let find = || {
            let Some(batches) = self.batches(server)? else {
                return Ok(None);
            };
            let all = self.total(server, self.order(server)?.0)?;
            let longest_fs = batches.max_stay_fs(&all.curve);
            Ok(longest_fs.zip(batches.latency_fs()))
        };
        self.cached(server, |known| &mut known.pause, find)
    }

    /// All arrivals at a server, with upstream burstiness. If the order is unknown, with all work
    /// of its core.
    pub(super) fn total(&self, server: usize, order: Order) -> Result<Total, Unbounded> {
        let find = || self.compute_total(server, order);
        self.cached(server, |known| &mut known.total, find)
    }

    fn compute_total(&self, server: usize, order: Order) -> Result<Total, Unbounded> {
        let servers = match (self.resource(server)?, order) {
            (Resource::Worker { core, .. }, Order::Shared(_)) => self.workers_on(*core),
            _ => BTreeSet::from([server]),
        };
        let full = || self.error_at(server, Unbounded::Overload);
        let mut sum = Total::default();
        for server in servers {
            for group in self.groups_at(server) {
                let View {
                    route,
                    servers: path,
                    sums,
                } = self.group(group)?;
                if let Some(chain) = &sums.unpoliced {
                    return Err(Unbounded::Unpoliced {
                        chain: chain.clone(),
                        at: self.resource(server)?.clone(),
                    });
                }
                let index = path
                    .iter()
                    .position(|one| *one == server)
                    .ok_or_else(full)?;
                let mut arrived = self.arrivals(group, index)?;
                // A batch may have a single packet.
                if let (Resource::Worker { batch_fs, .. }, Order::Any(_) | Order::Shared(_)) =
                    (&route.resources[index], order)
                {
                    let late_fs = self.delay_variation_fs(group, index)?;
                    let alone = after_delay(&sums.count, late_fs)
                        .and_then(|count| count.times(*batch_fs))
                        .ok_or_else(full)?;
                    arrived = arrived.plus(&alone).ok_or_else(full)?;
                }
                sum.curve = sum.curve.plus(&arrived).ok_or_else(full)?;
                for _ in 1..route.passages(&route.resources[index]) {
                    sum.returning = sum.returning.plus(&arrived).ok_or_else(full)?;
                }
            }
        }
        Ok(sum)
    }

    /// The order and service of a server, and its service in any order.
    pub(super) fn order(&self, server: usize) -> Result<(Order, RateLatency), Unbounded> {
        let find = || self.compute_order(server);
        self.cached(server, |known| &mut known.order, find)
    }
}

pub(super) fn longest(total: &Total, order: Order) -> Option<u128> {
    match order {
        Order::Fcfs(service) => delay(&total.curve, &service),
        Order::Any(service) | Order::Shared(service) => longest_busy(total, &service),
    }
}

/// The longest busy period of a server, fs.
pub(super) fn longest_busy(total: &Total, service: &RateLatency) -> Option<u128> {
    busy_period(&total.curve, &total.returning, service)
}
