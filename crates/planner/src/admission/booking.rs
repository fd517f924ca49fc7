//! What a chain takes of a node, and what it is promised.

use myelin_packet::traffic::Profile;
use myelin_spec::{Enforce, ServiceChain, Space};

use super::flow::{self, Growth, Work};
use super::release;
use super::site::{NS, Platform, Site};
use super::way::{self, Hold, HopWork, Resource, Route, Visit, Way};
use crate::calculus::ArrivalCurve;
use crate::costs::Costs;
use crate::plan::Plan;

/// A chain as the ledger sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    /// The chain's name.
    pub chain: String,
    /// The delay that it is promised, ns.
    pub latency_ns: Option<u64>,
    /// What it may send; nothing is agreed where it has neither rate.
    pub profile: Profile,
    /// Whether a policer holds it to that.
    pub policed: bool,
    /// The servers on its way, in order; none where it has no bound.
    pub visits: Vec<Visit>,
    /// Why it has no bound whatever it sends.
    pub unbounded: Option<String>,
    pub(super) hops: Vec<HopWork>,
    pub(super) hold: Hold,
    pub(super) port_turn: u16,
    /// What of the worker's work is done when a packet leaves its shaper, where it has one.
    pub(super) at_departure: Option<Work>,
    /// For how long a packet may be under way before that shaper, so that those that cluster meanwhile have room in it, fs.
    pub(super) room_fs: Option<u128>,
    /// What functions, and a shaper that is stricter than the policer, hold a packet back on purpose, fs.
    pub(super) held_fs: u128,
}

/// What a planned chain takes where it stands.
pub fn book(chain: &ServiceChain, plan: &Plan, costs: &Costs, site: &Site) -> Booking {
    let sla = &chain.sla;
    let policed = matches!(
        sla.enforce,
        Enforce::Auto | Enforce::Both | Enforce::Policer
    );
    let profile = sla.policing_profile();
    let (way, unbounded) = match way::way(chain, plan, costs, site) {
        Ok(way) => (way, None),
        Err(why) => {
            let nowhere = Way {
                visits: where_it_stands(chain, plan, site),
                ..Way::default()
            };
            (nowhere, Some(why))
        }
    };
    let held_fs = way
        .hold
        .for_fs
        .saturating_add(release::held_fs(chain, plan));
    Booking {
        chain: chain.name.clone(),
        latency_ns: sla.latency_ns,
        profile,
        policed: policed && !profile.is_unlimited(),
        visits: way.visits,
        unbounded,
        hops: way.hops,
        hold: way.hold,
        port_turn: way.port_turn,
        room_fs: way.at_departure.and_then(|_| release::room_fs(chain, plan)),
        at_departure: way.at_departure,
        held_fs,
    }
}

/// What it is in the way of all the same.
fn where_it_stands(chain: &ServiceChain, plan: &Plan, site: &Site) -> Vec<Visit> {
    let visit = |resource| Visit {
        resource,
        work: Work::default(),
        returns: true,
        growth: Growth::none(site.longest()),
    };
    let port = (!chain.is_over_dpdk()).then(|| visit(site.port()));
    let worker = visit(Resource::Worker {
        core: site.core,
        name: site.worker.clone(),
        polls: true,
        wake_up_fs: 0,
        batch: chain.worker.batch,
        batch_fs: 0,
        devices: chain.is_over_dpdk(),
    });
    let worker = plan.uses(Space::User).then_some(worker);
    port.into_iter().chain(worker).collect()
}

impl Booking {
    /// Its work at one of its servers.
    pub(super) fn curve(&self, visit: &Visit) -> Option<ArrivalCurve> {
        flow::curve(&self.profile, &visit.work, &visit.growth)
    }

    /// Its work where each packet counts with what it costs at the server that is dearest for it.
    pub(super) fn most(&self) -> Option<ArrivalCurve> {
        let visits = self.visits.iter();
        let work = visits
            .clone()
            .fold(Work::default(), |most, visit| most.or_more(visit.work));
        flow::curve(&self.profile, &work, &visits.last()?.growth)
    }

    /// Its packets, as many as may come to a worker's sockets.
    pub(super) fn count(&self) -> Option<ArrivalCurve> {
        const EACH: Work = Work {
            packet_fs: 1,
            byte_fs: 0,
        };
        // What a worker makes of them comes to its sockets where packets return to it.
        let returns = self.visits.iter().any(|visit| visit.returns);
        let visit = if returns {
            self.visits.last()
        } else {
            self.visits.first()
        };
        flow::curve(&self.profile, &EACH, &visit?.growth)
    }

    /// The worker's work at departures from its shaper, and that of one packet, fs; nothing where it has none.
    pub(super) fn at_departure(&self) -> Option<(ArrivalCurve, u128)> {
        let Some(work) = &self.at_departure else {
            return Some(Default::default());
        };
        let is_worker = |visit: &&Visit| matches!(visit.resource, Resource::Worker { .. });
        let growth = &self.visits.iter().find(is_worker)?.growth;
        let curve = flow::curve(&self.profile, work, growth)?;
        Some((curve, work.of_fs(growth.longest)))
    }

    /// How late its worker may let a packet go that it shapes when it has nothing else to do, fs.
    pub(super) fn least_late_fs(&self, platform: &Platform) -> u128 {
        let late = self.visits.iter().map(|visit| match &visit.resource {
            Resource::Worker {
                core, wake_up_fs, ..
            } => platform.stall_fs(*core).saturating_add(*wake_up_fs),
            _ => 0,
        });
        late.max().unwrap_or(0)
    }

    /// Whether it has a worst case at all, as far as it alone goes.
    pub(super) fn is_bounded(&self) -> bool {
        self.policed && self.unbounded.is_none()
    }

    /// Whether it is promised a delay, fs.
    pub(super) fn promise_fs(&self) -> Option<u128> {
        let latency_ns = self.latency_ns.filter(|_| self.is_bounded())?;
        Some((u128::from(latency_ns) * NS).saturating_sub(self.held_fs))
    }

    pub(super) fn route(&self) -> Route {
        let resources = self.visits.iter().map(|visit| visit.resource.clone());
        Route {
            resources: resources.collect(),
            hold: self.hold,
            port_turn: self.port_turn,
            is_shaped: self.at_departure.is_some(),
        }
    }
}
