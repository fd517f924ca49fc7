//! What each server does for all that comes to it, of what the ledger holds and one chain more.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::booking::Booking;
use super::group::Sums;
use super::ledger::Ledger;
use super::order::Order;
use super::site::Platform;
use super::way::{Resource, Route};
use crate::calculus::{ArrivalCurve, RateLatency, after_delay, busy_period, delay};

/// Why there is no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unbounded {
    /// More is promised than the server can do.
    Full(Resource),
    /// Nothing bounds what this chain sends.
    Unpoliced { chain: String, at: Resource },
    /// A packet comes back to a core whose other processes poll, or the figures are beyond all measure.
    Beyond(Resource),
    /// It is no way of the ledger.
    Nobody,
    /// More packets may wait in a ring than it holds.
    Overflow {
        at: Resource,
        port: Box<Resource>,
        packets: u128,
        ring: u128,
    },
}

/// All that comes to a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Total {
    pub(super) curve: ArrivalCurve,
    /// Of that, what is held back there and comes again, as often as it does.
    pub(super) again: ArrivalCurve,
}

/// What was found out about a server.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    order: Option<Result<(Order, RateLatency), Unbounded>>,
    total: Option<Result<Total, Unbounded>>,
    /// The delay of a packet that passes the server once.
    delay_fs: Option<Result<u128, Unbounded>>,
    pub(super) late_fs: Option<Result<u128, Unbounded>>,
    /// The longest that anybody stays there, by its batches, and what of that is no work.
    pause: Option<Result<Option<(u128, u128)>, Unbounded>>,
}

/// The chain that is tried.
struct Added<'a> {
    /// Its group: one of the ledger's, or a new one.
    group: usize,
    route: Route,
    servers: Vec<usize>,
    sums: Sums,
    /// Servers that the ledger does not have, numbered from its end.
    new: Vec<&'a Resource>,
}

/// A group of the ledger, or that of the chain that is tried.
pub(super) struct View<'a> {
    pub(super) route: &'a Route,
    /// The servers of the way, by number.
    pub(super) servers: &'a [usize],
    pub(super) sums: &'a Sums,
}

pub(super) struct Evaluator<'a> {
    ledger: &'a Ledger,
    pub(super) platform: &'a Platform,
    added: Option<Added<'a>>,
    /// Where each server is in `known`, from 1; 0 is nowhere.
    places: RefCell<Vec<u32>>,
    known: RefCell<Vec<Known>>,
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
                None => Sums::default().with(booking),
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

    /// The group of the chain that is tried.
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
            let group = self.ledger.group(group).ok_or(Unbounded::Nobody)?;
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
            .ok_or(Unbounded::Nobody)
    }

    /// Those that pass a server; where it is the first one that the added chain alone has, it stands last.
    pub(super) fn groups_at(&self, server: usize) -> impl Iterator<Item = usize> + '_ {
        let known = self.ledger.server(server).into_iter();
        let new = self.added.iter().filter(move |added| {
            added.group == self.ledger.groups_end() && added.servers.contains(&server)
        });
        let groups = known.flat_map(|server| &server.groups).copied();
        groups.chain(new.map(|added| added.group))
    }

    /// The workers of a core, the added chain's included.
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

    /// What is known of a server, found out by `find` where it is not.
    pub(super) fn known<T: Clone>(
        &self,
        server: usize,
        field: impl Fn(&mut Known) -> &mut Option<T>,
        find: impl FnOnce() -> T,
    ) -> T {
        let place = {
            let mut places = self.places.borrow_mut();
            let mut known = self.known.borrow_mut();
            if places[server] == 0 {
                known.push(Known::default());
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

    /// The groups whose delay the added chain changes: those that meet it at a server or at a worker's core, and those that meet them further on,
    /// since they arrive there in other clusters. In no order.
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
                let way = self.group(group)?.servers.iter();
                let further = way.skip_while(|one| **one != server).skip(1);
                open.extend(further.filter(|one| !is_seen[**one]));
            }
        }
        Ok(groups)
    }

    /// The longest that anybody's packet stays at a server, each time that it is there.
    pub(super) fn delay_at(&self, server: usize) -> Result<u128, Unbounded> {
        let find = || {
            let (order, _) = self.order(server)?;
            let total = self.total(server, order)?;
            let in_order_fs = longest(&total, order);
            let in_order_fs = in_order_fs.ok_or_else(|| self.at(server, Unbounded::Full))?;
            let pause = self.without_pause(server)?;
            let delay_fs = pause.map_or(in_order_fs, |(pause_fs, _)| in_order_fs.min(pause_fs));
            self.check_rings(server, delay_fs)?;
            Ok(delay_fs)
        };
        self.known(server, |known| &mut known.delay_fs, find)
    }

    /// Why there is no bound, at that server.
    pub(super) fn at(&self, server: usize, why: impl Fn(Resource) -> Unbounded) -> Unbounded {
        match self.resource(server) {
            Ok(resource) => why(resource.clone()),
            Err(nobody) => nobody,
        }
    }

    /// The longest that packets of a group were under way before they come to one of its servers, fs; what functions before it hold
    /// back on purpose included.
    pub(super) fn before_fs(&self, group: usize, index: usize) -> Result<u128, Unbounded> {
        let View {
            route,
            servers: way,
            ..
        } = self.group(group)?;
        let mut before_fs = route.held_before(index);
        for (server, resource) in way[..index].iter().zip(&route.resources) {
            let stays_fs = self
                .delay_at(*server)?
                .checked_mul(route.passages(resource));
            before_fs = stays_fs
                .and_then(|stays_fs| before_fs.checked_add(stays_fs))
                .ok_or_else(|| Unbounded::Full(resource.clone()))?;
        }
        Ok(before_fs)
    }

    /// What a group brings to one of its servers, as clustered as it is there: what functions of a worker hold back comes to it again.
    pub(super) fn arrived(&self, group: usize, index: usize) -> Result<ArrivalCurve, Unbounded> {
        let View { route, sums, .. } = self.group(group)?;
        let full = || Unbounded::Full(route.resources[index].clone());
        after_delay(&sums.curves[index], self.late_there(group, index)?).ok_or_else(full)
    }

    /// By how much its packets may be late there, fs: on the way, or held back there.
    fn late_there(&self, group: usize, index: usize) -> Result<u128, Unbounded> {
        let route = self.group(group)?.route;
        let held_fs = route.held_before(index + 1) - route.held_before(index);
        let late_fs = self.before_fs(group, index)?.checked_add(held_fs);
        late_fs.ok_or_else(|| Unbounded::Full(route.resources[index].clone()))
    }

    /// The longest that a packet stays at a server that is first come, first served by batches, however clustered its chain comes there, and what of it is no
    /// work; fs. `None` where that is not known.
    pub(super) fn without_pause(&self, server: usize) -> Result<Option<(u128, u128)>, Unbounded> {
        let find = || {
            let Some(batches) = self.batches(server)? else {
                return Ok(None);
            };
            let all = self.total(server, self.order(server)?.0)?;
            let longest_fs = batches.longest(&all.curve);
            Ok(longest_fs.zip(batches.latency_fs()))
        };
        self.known(server, |known| &mut known.pause, find)
    }

    /// All that comes to a server, as clustered as it is there. Where the order is not known all that its core has to do counts.
    pub(super) fn total(&self, server: usize, order: Order) -> Result<Total, Unbounded> {
        let find = || self.sum_up(server, order);
        self.known(server, |known| &mut known.total, find)
    }

    fn sum_up(&self, server: usize, order: Order) -> Result<Total, Unbounded> {
        let servers = match (self.resource(server)?, order) {
            (Resource::Worker { core, .. }, Order::Shared(_)) => self.workers_on(*core),
            _ => BTreeSet::from([server]),
        };
        let full = || self.at(server, Unbounded::Full);
        let mut sum = Total::default();
        for server in servers {
            for group in self.groups_at(server) {
                let View {
                    route,
                    servers: way,
                    sums,
                } = self.group(group)?;
                if let Some(chain) = &sums.unpoliced {
                    return Err(Unbounded::Unpoliced {
                        chain: chain.clone(),
                        at: self.resource(server)?.clone(),
                    });
                }
                let index = way.iter().position(|one| *one == server).ok_or_else(full)?;
                let mut arrived = self.arrived(group, index)?;
                // Batches may be of one packet each.
                if let (Resource::Worker { batch_fs, .. }, Order::Any(_) | Order::Shared(_)) =
                    (&route.resources[index], order)
                {
                    let late_fs = self.late_there(group, index)?;
                    let alone = after_delay(&sums.count, late_fs)
                        .and_then(|count| count.times(*batch_fs))
                        .ok_or_else(full)?;
                    arrived = arrived.plus(&alone).ok_or_else(full)?;
                }
                sum.curve = sum.curve.plus(&arrived).ok_or_else(full)?;
                for _ in 1..route.passages(&route.resources[index]) {
                    sum.again = sum.again.plus(&arrived).ok_or_else(full)?;
                }
            }
        }
        Ok(sum)
    }

    /// What a server does: in which order, and whatever the order.
    pub(super) fn order(&self, server: usize) -> Result<(Order, RateLatency), Unbounded> {
        let find = || self.find_order(server);
        self.known(server, |known| &mut known.order, find)
    }
}

pub(super) fn longest(total: &Total, order: Order) -> Option<u128> {
    match order {
        Order::Fcfs(service) => delay(&total.curve, &service),
        Order::Any(service) | Order::Shared(service) => longest_busy(total, &service),
    }
}

/// The longest that a server works without a pause.
pub(super) fn longest_busy(total: &Total, service: &RateLatency) -> Option<u128> {
    busy_period(&total.curve, &total.again, service)
}
