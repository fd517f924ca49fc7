//! The share of a node that a chain uses, and the delay that the node promises.

use myelin_packet::traffic::Profile;
use myelin_spec::ServiceChain;
use serde::{Deserialize, Serialize};

use super::core_use::CoreUse;
use super::flow::{self, Growth, Work};
use super::path::{self, Hold, HopWork, Resource, Route, ServerPath, Visit};
use super::release;
use super::site::{NS, Platform, Site};
use super::stages::Stages;
use crate::calculus::ArrivalCurve;
use crate::costs::Costs;
use crate::plan::Plan;
use crate::planning::core_uses;

/// A chain's entry in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    /// The chain's name.
    pub chain: String,
    /// Of a part of a chain over nodes: the name of the whole, and its path.
    pub part: Option<(String, u32)>,
    /// The promised delay, ns.
    pub latency_ns: Option<u64>,
    /// The delay in the contract, from which turns by deadline have their deadlines, ns.
    pub(super) budget_ns: Option<u64>,
    /// The policer's profile; unlimited without an agreed rate.
    pub profile: Profile,
    /// How the chain's workers share their core; `None` without a worker.
    pub(super) core_uses: Vec<CoreUse>,
    /// Whether a policer enforces the profile.
    pub policed: bool,
    /// Whether traffic above the agreed profile waits, within [`profile`](Self::profile).
    pub queues_excess: bool,
    /// The servers on the chain's path, in order. If the chain has no bound, only the servers that
    /// it shares.
    pub visits: Vec<Visit>,
    /// The reason why the chain has no bound for any traffic.
    pub unbounded: Option<String>,
    pub(super) hops: Vec<HopWork>,
    pub(super) hold: Hold,
    pub(super) port_turn: u16,
    /// The turns of the stages of a pipeline.
    #[serde(default)]
    pub(super) stages: Stages,
    /// Times that a packet comes back to the first process of a pipeline.
    #[serde(default)]
    pub(super) rounds: u32,
    /// The worker's work when a packet leaves the chain's shaper; `None` without a shaper.
    pub(super) at_departure: Option<Work>,
    /// Longest time from the policer to the shaper, fs, for which the shaper's queue has room.
    pub(super) room_fs: Option<u128>,
    /// Time that functions and a shaper stricter than the policer hold a packet back, fs; `None`
    /// without a bound.
    pub(super) held_fs: Option<u128>,
}

/// Creates the booking of a planned chain at its site.
pub fn book(chain: &ServiceChain, plan: &Plan, costs: &Costs, site: &Site) -> Booking {
    let sla = &chain.sla;
    let profile = plan.policing.unwrap_or_else(|| sla.policing_profile());
    let path = if plan.super_packets {
        Err(
            "a super-packet takes the time of many packets; without `superPackets` it has a bound"
                .into(),
        )
    } else {
        path::server_path(chain, plan, costs, site)
    };
    let (path, unbounded) = match path {
        Ok(path) => (path, None),
        Err(why) => {
            let path = ServerPath {
                visits: shared_servers(chain, plan, costs, site),
                ..ServerPath::default()
            };
            (path, Some(why))
        }
    };
    let held_fs = release::shaper_hold_fs(chain, plan);
    let held_fs = held_fs.map(|held_fs| held_fs.saturating_add(path.hold.for_fs));
    Booking {
        chain: chain.name.clone(),
        part: chain
            .part
            .as_ref()
            .map(|part| (chain.whole().to_owned(), part.path)),
        latency_ns: sla.latency_ns,
        budget_ns: plan.sla.latency_ns,
        profile,
        policed: plan.policing.is_some(),
        core_uses: CoreUse::of(chain, plan),
        queues_excess: sla.excess_queue_ns.is_some(),
        visits: path.visits,
        unbounded,
        hops: path.hops,
        hold: path.hold,
        port_turn: path.port_turn,
        stages: path.turns.stages,
        rounds: path.turns.rounds,
        room_fs: path
            .at_departure
            .and_then(|_| release::room_fs(chain, plan)),
        at_departure: path.at_departure,
        held_fs,
    }
}

/// Returns the servers that a chain without a bound shares. A black box counts as a worker without
/// a batch.
fn shared_servers(chain: &ServiceChain, plan: &Plan, costs: &Costs, site: &Site) -> Vec<Visit> {
    let visit = |resource| Visit {
        resource,
        work: Work::default(),
        returns: true,
        growth: Growth::none(site.longest_frame()),
    };
    let port = (!chain.is_driven_by_worker()).then(|| visit(site.port(costs)));
    let worker = plan.worker.as_ref().map(|worker| {
        visit(Resource::Worker {
            core: worker.core,
            name: worker.name(),
            polls: true,
            wake_up_fs: 0,
            batch: chain.worker.batch,
            batch_fs: 0,
            devices: chain.is_driven_by_worker(),
            rings: [1, 2].map(|queues| chain.worker.receive_ring(queues)),
            turn: None,
            pause_fs: super::site::pause_fs(costs),
        })
    });
    let boxes = core_uses(chain).map(|(name, core, _)| {
        visit(Resource::Worker {
            core,
            name: format!("black box {}/{name}", chain.name),
            polls: true,
            wake_up_fs: 0,
            batch: 0,
            batch_fs: 0,
            devices: true,
            rings: [0; 2],
            turn: None,
            pause_fs: 0,
        })
    });
    port.into_iter().chain(worker).chain(boxes).collect()
}

impl Booking {
    /// Returns the arrival curve of the chain's work at one of its servers.
    pub(super) fn work_curve(&self, visit: &Visit) -> Option<ArrivalCurve> {
        flow::work_curve(&self.profile, &visit.work, &visit.growth)
    }

    /// Returns the arrival curve of the chain's work, with each packet's cost at its most expensive
    /// server.
    pub(super) fn max_work_curve(&self) -> Option<ArrivalCurve> {
        let visits = self.visits.iter();
        let work = visits
            .clone()
            .fold(Work::default(), |work, visit| work.max_of_each(visit.work));
        flow::work_curve(&self.profile, &work, &visits.last()?.growth)
    }

    /// Returns the arrival curve of the chain's work in the rounds of a pipeline, behind the first
    /// turn. Zero without stages.
    pub(super) fn rounds_curve(&self) -> Option<ArrivalCurve> {
        let steps = self.hops.iter().filter(|hop| hop.in_rounds);
        let Some(visit) = steps.clone().find_map(|hop| self.visits.get(hop.visit)) else {
            return Some(ArrivalCurve::default());
        };
        let work = steps.fold(Work::default(), |work, hop| work.plus(hop.work));
        flow::work_curve(&self.profile, &work, &visit.growth)
    }

    /// Returns the arrival curve of the chain's packets at the worker's sockets.
    pub(super) fn packet_curve(&self) -> Option<ArrivalCurve> {
        const ONE_PER_PACKET: Work = Work {
            packet_fs: 1,
            byte_fs: 0,
        };
        // If packets return, those that the worker created also arrive at its sockets.
        let returns = self.visits.iter().any(|visit| visit.returns);
        let visit = if returns {
            self.visits.last()
        } else {
            self.visits.first()
        };
        flow::work_curve(&self.profile, &ONE_PER_PACKET, &visit?.growth)
    }

    /// Returns the arrival curve of the worker's work at departures from the chain's shaper, and
    /// the work of one packet, fs. Both are zero without a shaper.
    pub(super) fn departure_curve(&self) -> Option<(ArrivalCurve, u128)> {
        let Some(work) = &self.at_departure else {
            return Some(Default::default());
        };
        let is_worker = |visit: &&Visit| matches!(visit.resource, Resource::Worker { .. });
        let growth = &self.visits.iter().find(is_worker)?.growth;
        let curve = flow::work_curve(&self.profile, work, growth)?;
        Some((curve, work.frame_fs(growth.longest)))
    }

    /// Returns the lateness of the chain's shaper if the worker has no other work, fs.
    pub(super) fn min_lateness_fs(&self, platform: &Platform) -> u128 {
        let late = self.visits.iter().map(|visit| match &visit.resource {
            Resource::Worker {
                core,
                wake_up_fs,
                pause_fs,
                ..
            } => {
                let late_fs = platform.stall_fs(*core).saturating_add(*wake_up_fs);
                late_fs.saturating_add(*pause_fs)
            }
            _ => 0,
        });
        late.max().unwrap_or(0)
    }

    /// Whether the chain's own work has a bound.
    pub(super) fn is_bounded(&self) -> bool {
        self.policed && self.unbounded.is_none()
    }

    /// Returns the promised delay minus the hold times, fs; `None` without a promise.
    pub(super) fn promise_fs(&self) -> Option<u128> {
        let latency_ns = self.latency_ns.filter(|_| self.is_bounded())?;
        Some((u128::from(latency_ns) * NS).saturating_sub(self.held_fs?))
    }

    pub(super) fn route(&self) -> Route {
        let resources = self.visits.iter().map(|visit| visit.resource.clone());
        Route {
            resources: resources.collect(),
            hold: self.hold,
            port_turn: self.port_turn,
            rounds: self.rounds,
            is_shaped: self.at_departure.is_some(),
        }
    }
}
