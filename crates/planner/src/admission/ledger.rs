//! The admitted chains of a node.

use std::collections::BTreeMap;

use myelin_spec::ServiceChain;
use slab::Slab;

use super::booking::Booking;
use super::core_use::{CoreUse, CoreUses};
use super::group::Group;
use super::path::{Resource, Route};
use crate::plan::Plan;

/// The admitted chains of a node, grouped by path.
///
/// To all other chains, the chains of one path are one flow. Under first come, first served, the
/// chains of one path have the same delay. So the ledger keeps the sums and the tightest promise of
/// each path. All figures are integers, so removal of a chain subtracts exactly its part.
///
/// Servers and paths have numbers, so a decision compares no names.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    bookings: BTreeMap<String, Booking>,
    paths: BTreeMap<Route, usize>,
    groups: Slab<Group>,
    resources: BTreeMap<Resource, usize>,
    servers: Slab<Server>,
    core_uses: CoreUses,
}

/// A server and the groups that pass it.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) resource: Resource,
    /// The groups in the order of paths, so groups of one port are adjacent.
    pub(super) groups: Vec<usize>,
}

/// Ledgers are equal if they have the same chains, in any order.
impl PartialEq for Ledger {
    fn eq(&self, other: &Self) -> bool {
        let groups = |ledger: &Self| -> Vec<Group> {
            let numbers = ledger.paths.values();
            let groups = numbers.filter_map(|number| ledger.groups.get(*number));
            groups.cloned().map(Group::without_numbers).collect()
        };
        self.bookings == other.bookings && groups(self) == groups(other)
    }
}

impl Eq for Ledger {}

impl Ledger {
    /// Adds a chain. Replaces a chain with the same name.
    pub fn insert(&mut self, booking: Booking) {
        self.remove(&booking.chain);
        let route = booking.route();
        let number = match self.paths.get(&route) {
            Some(number) => *number,
            None => self.add_group(route),
        };
        if let Some(group) = self.groups.get_mut(number) {
            group.add(&booking);
        }
        for core_use in &booking.core_uses {
            self.core_uses.insert(&booking.chain, core_use);
        }
        self.bookings.insert(booking.chain.clone(), booking);
    }

    /// Creates the group of a new path.
    fn add_group(&mut self, route: Route) -> usize {
        let servers = route.resources.iter().map(|resource| {
            *self.resources.entry(resource.clone()).or_insert_with(|| {
                self.servers.insert(Server {
                    resource: resource.clone(),
                    groups: Vec::new(),
                })
            })
        });
        let servers: Vec<usize> = servers.collect();
        let number = self
            .groups
            .insert(Group::new(route.clone(), servers.clone()));
        let Self {
            groups,
            servers: ledger_servers,
            ..
        } = self;
        for server in servers {
            if let Some(server) = ledger_servers.get_mut(server) {
                let before =
                    |other: &usize| groups.get(*other).is_some_and(|other| other.route < route);
                let index = server.groups.partition_point(before);
                server.groups.insert(index, number);
            }
        }
        self.paths.insert(route, number);
        number
    }

    /// Removes a chain. Returns `None` if the ledger has no chain with this name.
    pub fn remove(&mut self, chain: &str) -> Option<Booking> {
        let booking = self.bookings.remove(chain)?;
        for core_use in &booking.core_uses {
            self.core_uses.remove(chain, core_use);
        }
        let number = self.paths.get(&booking.route()).copied()?;
        let group = self.groups.get_mut(number)?;
        group.subtract(&booking);
        if group.is_empty() {
            self.remove_group(number);
        }
        Some(booking)
    }

    fn remove_group(&mut self, number: usize) {
        let Some(group) = self.groups.try_remove(number) else {
            return;
        };
        self.paths.remove(&group.route);
        for server_number in group.servers {
            let Some(server) = self.servers.get_mut(server_number) else {
                continue;
            };
            server.groups.retain(|other| *other != number);
            if server.groups.is_empty()
                && let Some(server) = self.servers.try_remove(server_number)
            {
                self.resources.remove(&server.resource);
            }
        }
    }

    /// Returns why the worker or a black box of a planned chain cannot share its core with those
    /// there, which no remaining contract changes.
    pub fn find_core_conflict(&self, chain: &ServiceChain, plan: &Plan) -> Option<String> {
        let uses = CoreUse::of(chain, plan);
        let mut uses = uses.iter();
        uses.find_map(|core_use| self.core_uses.find_conflict(&chain.name, core_use))
    }

    /// Returns the booking of a chain.
    pub fn get(&self, chain: &str) -> Option<&Booking> {
        self.bookings.get(chain)
    }

    /// Returns the number of chains.
    pub fn len(&self) -> usize {
        self.bookings.len()
    }

    /// Whether the ledger has no chains.
    pub fn is_empty(&self) -> bool {
        self.bookings.is_empty()
    }

    /// Returns the number of the group with this path.
    pub(super) fn group_number(&self, route: &Route) -> Option<usize> {
        self.paths.get(route).copied()
    }

    pub(super) fn group(&self, number: usize) -> Option<&Group> {
        self.groups.get(number)
    }

    /// Returns the upper limit of group numbers.
    pub(super) fn groups_end(&self) -> usize {
        self.groups.capacity()
    }

    /// Returns the number of a server.
    pub(super) fn server_number(&self, resource: &Resource) -> Option<usize> {
        self.resources.get(resource).copied()
    }

    pub(super) fn server(&self, number: usize) -> Option<&Server> {
        self.servers.get(number)
    }

    /// Returns the upper limit of server numbers.
    pub(super) fn servers_end(&self) -> usize {
        self.servers.capacity()
    }

    /// Returns the numbers of a core's workers.
    pub(super) fn workers_on(&self, core: u32) -> impl Iterator<Item = usize> {
        let first = Resource::Worker {
            core,
            name: String::new(),
            polls: false,
            wake_up_fs: 0,
            batch: 0,
            batch_fs: 0,
            devices: false,
            rings: [0; 2],
            turn: None,
        };
        self.resources
            .range(first..)
            .take_while(move |(resource, _)| matches!(resource, Resource::Worker { core: on, .. } if *on == core))
            .map(|(_, number)| *number)
    }

    pub(super) fn bookings(&self) -> impl Iterator<Item = &Booking> {
        self.bookings.values()
    }
}
