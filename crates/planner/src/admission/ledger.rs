//! What was admitted on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::booking::Booking;
use super::way::Resource;
use crate::calculus::ArrivalCurve;

/// The servers of a way, in order.
pub(super) type Route = Arc<[Resource]>;

/// What was admitted on a node, by what it shares.
///
/// Chains with the same way are one flow to everybody else, and wait equally long: first come, first served. So their sums are kept
/// and not they themselves, and of their promises the tightest counts. All is in whole numbers, so whoever leaves takes away
/// exactly what was added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    bookings: BTreeMap<String, Booking>,
    groups: BTreeMap<Route, Group>,
    at: BTreeMap<Resource, BTreeSet<Route>>,
}

/// Chains with the same way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) sums: Sums,
    /// What the dearest packet of each chain costs at each server, fs, and how many have that.
    packets: Vec<BTreeMap<u128, usize>>,
    /// Chains whose packets come back to each server.
    returns: Vec<usize>,
    /// What chains were promised, fs, without what is held back on purpose; the tightest first.
    promises: BTreeSet<(u128, String)>,
    /// Those of which nothing bounds what they send.
    unpoliced: BTreeSet<String>,
    chains: usize,
}

/// What chains with the same way are to each other and to everybody else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Their work at each server, as they send it.
    pub(super) curves: Vec<ArrivalCurve>,
    /// Their work where each packet counts with what it costs at the server that is dearest for it.
    pub(super) most: ArrivalCurve,
    /// Packets, as they are sent.
    pub(super) count: ArrivalCurve,
    /// The dearest packet at each server, fs.
    pub(super) packets_fs: Vec<u128>,
    /// Whether packets come back to each server.
    pub(super) returns: Vec<bool>,
    /// One of which nothing bounds what it sends.
    pub(super) unpoliced: Option<String>,
}

/// What a booking adds to its group.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub(super) curves: Vec<ArrivalCurve>,
    pub(super) most: ArrivalCurve,
    pub(super) count: ArrivalCurve,
}

impl Booking {
    /// `None` where nothing bounds what it brings.
    pub(super) fn share(&self) -> Option<Share> {
        if !self.is_bounded() {
            return None;
        }
        let curves = self.visits.iter().map(|visit| self.curve(visit));
        Some(Share {
            curves: curves.collect::<Option<_>>()?,
            most: self.most()?,
            count: self.count()?,
        })
    }
}

impl Ledger {
    /// Enters a chain, in place of one of the same name.
    pub fn insert(&mut self, booking: Booking) {
        self.remove(&booking.chain);
        let route: Route = booking.route().into();
        for resource in &*route {
            let routes = self.at.entry(resource.clone()).or_default();
            routes.insert(Arc::clone(&route));
        }
        self.groups.entry(route).or_default().add(&booking);
        self.bookings.insert(booking.chain.clone(), booking);
    }

    /// Takes a chain out. `None`: there is none of that name.
    pub fn remove(&mut self, chain: &str) -> Option<Booking> {
        let booking = self.bookings.remove(chain)?;
        let route: Route = booking.route().into();
        if let Some(group) = self.groups.get_mut(&route) {
            group.take(&booking);
            if group.chains == 0 {
                self.groups.remove(&route);
                for resource in &*route {
                    if let Some(routes) = self.at.get_mut(resource) {
                        routes.remove(&route);
                        if routes.is_empty() {
                            self.at.remove(resource);
                        }
                    }
                }
            }
        }
        Some(booking)
    }

    /// The chain of that name.
    pub fn get(&self, chain: &str) -> Option<&Booking> {
        self.bookings.get(chain)
    }

    /// How many chains there are.
    pub fn len(&self) -> usize {
        self.bookings.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bookings.is_empty()
    }

    pub(super) fn group(&self, route: &[Resource]) -> Option<&Group> {
        self.groups.get(route)
    }

    /// The ways that pass a server.
    pub(super) fn routes_at(&self, resource: &Resource) -> impl Iterator<Item = &Route> {
        self.at.get(resource).into_iter().flatten()
    }

    /// The workers of a core.
    pub(super) fn workers_on(&self, core: u32) -> impl Iterator<Item = &Resource> {
        let first = Resource::Worker {
            core,
            name: String::new(),
            polls: false,
            wake_up_fs: 0,
            batch: 0,
            batch_fs: 0,
            devices: false,
        };
        self.at
            .range(first..)
            .map(|(resource, _)| resource)
            .take_while(move |resource| matches!(resource, Resource::Worker { core: on, .. } if *on == core))
    }
}

impl Sums {
    /// With one chain more.
    pub(super) fn with(&self, booking: &Booking) -> Self {
        let mut sums = self.clone();
        if !sums.add(booking) {
            sums.unpoliced.get_or_insert_with(|| booking.chain.clone());
        }
        sums
    }

    /// False when nothing bounds what the chain brings, or that is more than can be counted.
    fn add(&mut self, booking: &Booking) -> bool {
        let servers = booking.visits.len();
        self.curves.resize(servers, ArrivalCurve::default());
        self.packets_fs.resize(servers, 0);
        self.returns.resize(servers, false);
        for (returns, visit) in self.returns.iter_mut().zip(&booking.visits) {
            *returns |= visit.returns;
        }
        for (packet_fs, visit) in self.packets_fs.iter_mut().zip(&booking.visits) {
            *packet_fs = visit.work.most_fs().max(*packet_fs);
        }
        self.combine(booking, ArrivalCurve::plus).is_some()
    }

    fn combine(
        &mut self,
        booking: &Booking,
        sum: impl Fn(&ArrivalCurve, &ArrivalCurve) -> Option<ArrivalCurve>,
    ) -> Option<()> {
        let share = booking.share()?;
        let curves = self.curves.iter().zip(&share.curves);
        let curves = curves.map(|(all, own)| sum(all, own));
        let (curves, most, count) = (
            curves.collect::<Option<_>>()?,
            sum(&self.most, &share.most)?,
            sum(&self.count, &share.count)?,
        );
        (self.curves, self.most, self.count) = (curves, most, count);
        Some(())
    }
}

impl Group {
    fn add(&mut self, booking: &Booking) {
        self.chains += 1;
        if !self.sums.add(booking) {
            self.unpoliced.insert(booking.chain.clone());
        } else if let Some(promise_fs) = booking.promise_fs() {
            self.promises.insert((promise_fs, booking.chain.clone()));
        }
        self.packets.resize(booking.visits.len(), BTreeMap::new());
        self.returns.resize(booking.visits.len(), 0);
        for (packets, visit) in self.packets.iter_mut().zip(&booking.visits) {
            *packets.entry(visit.work.most_fs()).or_default() += 1;
        }
        for (returns, visit) in self.returns.iter_mut().zip(&booking.visits) {
            *returns += usize::from(visit.returns);
        }
        self.sums.unpoliced = self.unpoliced.first().cloned();
    }

    fn take(&mut self, booking: &Booking) {
        self.chains -= 1;
        if !self.unpoliced.remove(&booking.chain) {
            let taken = self.sums.combine(booking, ArrivalCurve::minus);
            debug_assert!(taken.is_some(), "what was added can be taken out");
            if let Some(promise_fs) = booking.promise_fs() {
                self.promises.remove(&(promise_fs, booking.chain.clone()));
            }
        }
        for (packets, visit) in self.packets.iter_mut().zip(&booking.visits) {
            let cost_fs = visit.work.most_fs();
            let count = packets.entry(cost_fs).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                packets.remove(&cost_fs);
            }
        }
        for (returns, visit) in self.returns.iter_mut().zip(&booking.visits) {
            *returns -= usize::from(visit.returns);
        }
        let dearest = |packets: &BTreeMap<u128, usize>| {
            packets.last_key_value().map_or(0, |(cost_fs, _)| *cost_fs)
        };
        self.sums.packets_fs = self.packets.iter().map(dearest).collect();
        self.sums.returns = self.returns.iter().map(|count| *count > 0).collect();
        self.sums.unpoliced = self.unpoliced.first().cloned();
    }

    /// The tightest promise, fs, and whose it is.
    pub(super) fn tightest(&self) -> Option<(u128, &str)> {
        let (promise_fs, chain) = self.promises.first()?;
        Some((*promise_fs, chain))
    }
}
