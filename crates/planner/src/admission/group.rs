//! Groups of chains with the same path.

use std::collections::{BTreeMap, BTreeSet};

use super::booking::Booking;
use super::path::Route;
use super::stages::Stages;
use crate::calculus::ArrivalCurve;

/// Chains with the same path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) route: Route,
    /// The servers of the path, by number.
    pub(super) servers: Vec<usize>,
    pub(super) sums: GroupSums,
    /// Cost of the most expensive packet of each chain at each server, fs, and the number of chains
    /// with it.
    packets: Vec<BTreeMap<u128, usize>>,
    /// Chains whose packets return to each server.
    returns: Vec<usize>,
    /// Promised delays minus hold times, fs; the tightest first.
    promises: BTreeSet<(u128, String)>,
    /// Longest times from the policer to the shaper for which the shaper has room, fs; the tightest
    /// first. Only of chains with a promise.
    rooms: BTreeSet<(u128, String)>,
    /// Delays in the contracts, ns, and the number of chains with each.
    budgets: BTreeMap<u64, usize>,
    /// Chains whose traffic nothing limits.
    unpoliced: BTreeSet<String>,
    chains: usize,
}

/// Sums over the chains of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GroupSums {
    /// Work of the chains at each server, without upstream burstiness.
    pub(super) curves: Vec<ArrivalCurve>,
    /// Work of the chains, with each packet's cost at its most expensive server.
    pub(super) max_work: ArrivalCurve,
    /// Work on the worker's core behind the first turn, in the rounds of pipelines, without
    /// upstream burstiness.
    pub(super) in_rounds: ArrivalCurve,
    /// Number of packets, without upstream burstiness.
    pub(super) packet_count: ArrivalCurve,
    /// The worker's work at departures from the chains' shapers.
    pub(super) at_departure: ArrivalCurve,
    /// The worker's work at the departure of one packet of each chain, fs.
    pub(super) departure_fs: u128,
    /// Cost of the most expensive packet at each server, fs.
    pub(super) packets_fs: Vec<u128>,
    /// Whether packets return to each server.
    pub(super) returns: Vec<bool>,
    /// The turns of the chains' stages.
    pub(super) stages: Stages,
    /// The least delay in a contract, ns.
    pub(super) least_budget_ns: Option<u64>,
    /// A chain whose traffic nothing limits.
    pub(super) unpoliced: Option<String>,
}

/// The part of a booking in the sums of its group.
#[derive(Debug, Clone)]
struct BookingShare {
    curves: Vec<ArrivalCurve>,
    max_work: ArrivalCurve,
    in_rounds: ArrivalCurve,
    packet_count: ArrivalCurve,
    at_departure: ArrivalCurve,
    departure_fs: u128,
}

impl BookingShare {
    /// Returns the share of a booking; `None` if nothing limits the chain's traffic.
    fn of(booking: &Booking) -> Option<Self> {
        if !booking.is_bounded() {
            return None;
        }
        let curves = booking.visits.iter().map(|visit| booking.work_curve(visit));
        let (at_departure, departure_fs) = booking.departure_curve()?;
        Some(Self {
            curves: curves.collect::<Option<_>>()?,
            max_work: booking.max_work_curve()?,
            in_rounds: booking.rounds_curve()?,
            packet_count: booking.packet_curve()?,
            at_departure,
            departure_fs,
        })
    }
}

impl GroupSums {
    /// Returns the sums with one more chain.
    pub(super) fn with(&self, booking: &Booking) -> Self {
        let mut sums = self.clone();
        if !sums.add(booking) {
            sums.unpoliced.get_or_insert_with(|| booking.chain.clone());
        }
        sums
    }

    /// Adds a chain. Returns `false` if nothing limits the chain's traffic, or for figures beyond
    /// 128 bits.
    fn add(&mut self, booking: &Booking) -> bool {
        let budgets = self.least_budget_ns.into_iter().chain(booking.budget_ns);
        self.least_budget_ns = budgets.min();
        self.stages = self.stages.plus(booking.stages);
        let servers = booking.visits.len();
        self.curves.resize(servers, ArrivalCurve::default());
        self.packets_fs.resize(servers, 0);
        self.returns.resize(servers, false);
        let servers = self.returns.iter_mut().zip(&mut self.packets_fs);
        for ((returns, packet_fs), visit) in servers.zip(&booking.visits) {
            *returns |= visit.returns;
            *packet_fs = visit.max_packet_fs().max(*packet_fs);
        }
        self.combine(booking, ArrivalCurve::plus, u128::checked_add)
            .is_some()
    }

    fn subtract(&mut self, booking: &Booking) -> bool {
        self.combine(booking, ArrivalCurve::minus, u128::checked_sub)
            .is_some()
    }

    fn combine(
        &mut self,
        booking: &Booking,
        sum: impl Fn(&ArrivalCurve, &ArrivalCurve) -> Option<ArrivalCurve>,
        sum_fs: impl Fn(u128, u128) -> Option<u128>,
    ) -> Option<()> {
        let share = BookingShare::of(booking)?;
        let curves = self.curves.iter().zip(&share.curves);
        let curves = curves.map(|(all, own)| sum(all, own));
        let (curves, max_work, in_rounds, packet_count, at_departure, departure_fs) = (
            curves.collect::<Option<_>>()?,
            sum(&self.max_work, &share.max_work)?,
            sum(&self.in_rounds, &share.in_rounds)?,
            sum(&self.packet_count, &share.packet_count)?,
            sum(&self.at_departure, &share.at_departure)?,
            sum_fs(self.departure_fs, share.departure_fs)?,
        );
        (self.curves, self.max_work, self.packet_count) = (curves, max_work, packet_count);
        self.in_rounds = in_rounds;
        (self.at_departure, self.departure_fs) = (at_departure, departure_fs);
        Some(())
    }
}

impl Group {
    /// Creates an empty group.
    pub(super) fn new(route: Route, servers: Vec<usize>) -> Self {
        Self {
            route,
            servers,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chains == 0
    }

    /// Removes the server numbers, which differ between ledgers.
    pub(super) fn without_numbers(self) -> Self {
        Self {
            servers: Vec::new(),
            ..self
        }
    }

    pub(super) fn add(&mut self, booking: &Booking) {
        self.chains += 1;
        let chain = &booking.chain;
        if let Some(budget_ns) = booking.budget_ns {
            *self.budgets.entry(budget_ns).or_default() += 1;
        }
        if !self.sums.add(booking) {
            self.unpoliced.insert(chain.clone());
        } else if let Some(promise_fs) = booking.promise_fs() {
            self.promises.insert((promise_fs, chain.clone()));
            let room = booking.room_fs.map(|room_fs| (room_fs, chain.clone()));
            self.rooms.extend(room);
        }
        self.packets.resize(booking.visits.len(), BTreeMap::new());
        self.returns.resize(booking.visits.len(), 0);
        let servers = self.packets.iter_mut().zip(&mut self.returns);
        for ((packets, returns), visit) in servers.zip(&booking.visits) {
            *packets.entry(visit.max_packet_fs()).or_default() += 1;
            *returns += usize::from(visit.returns);
        }
        self.sums.unpoliced = self.unpoliced.first().cloned();
    }

    pub(super) fn subtract(&mut self, booking: &Booking) {
        self.chains -= 1;
        let chain = &booking.chain;
        self.sums.stages = self.sums.stages.minus(booking.stages);
        if !self.unpoliced.remove(chain) {
            let is_done = self.sums.subtract(booking);
            debug_assert!(is_done, "the sums include the booking");
            if let Some(promise_fs) = booking.promise_fs() {
                self.promises.remove(&(promise_fs, chain.clone()));
            }
            if let Some(room_fs) = booking.room_fs {
                self.rooms.remove(&(room_fs, chain.clone()));
            }
        }
        let servers = self.packets.iter_mut().zip(&mut self.returns);
        for ((packets, returns), visit) in servers.zip(&booking.visits) {
            let cost_fs = visit.max_packet_fs();
            let count = packets.entry(cost_fs).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                packets.remove(&cost_fs);
            }
            *returns -= usize::from(visit.returns);
        }
        let highest = |packets: &BTreeMap<u128, usize>| {
            packets.last_key_value().map_or(0, |(cost_fs, _)| *cost_fs)
        };
        if let Some(budget_ns) = booking.budget_ns
            && let Some(count) = self.budgets.get_mut(&budget_ns)
        {
            *count = count.saturating_sub(1);
            self.budgets.retain(|_, count| *count > 0);
        }
        self.sums.least_budget_ns = self.budgets.keys().next().copied();
        self.sums.packets_fs = self.packets.iter().map(highest).collect();
        self.sums.returns = self.returns.iter().map(|count| *count > 0).collect();
        self.sums.unpoliced = self.unpoliced.first().cloned();
    }

    /// Returns the tightest promise of at least `least_fs`, fs, and the chain's name.
    pub(super) fn tightest_promise(&self, least_fs: u128) -> Option<(u128, &str)> {
        first_from(&self.promises, least_fs)
    }

    /// Returns the least time of at least `least_fs` for which a shaper has room, fs, and the
    /// chain's name. Considers only chains with a promise.
    pub(super) fn least_room(&self, least_fs: u128) -> Option<(u128, &str)> {
        first_from(&self.rooms, least_fs)
    }
}

fn first_from(times: &BTreeSet<(u128, String)>, least_fs: u128) -> Option<(u128, &str)> {
    let (fs, chain) = times.range((least_fs, String::new())..).next()?;
    Some((*fs, chain))
}
