//! Plans a chain and decides on its admission.

use myelin_spec::{FULL_FRAME, Idle, Mapping, ServiceChain, Space};

use super::booking::{Booking, book};
use super::decision::admit;
use super::ledger::Ledger;
use super::release;
use super::remedy::{Alternative, remedies};
use super::site::{Platform, Site};
use crate::costs::Costs;
use crate::error::PlanError;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::planning;

/// The node that admits a chain.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Packet costs of the node.
    pub costs: &'a Costs,
    /// Cores of the node, and the chain's ports.
    pub machine: &'a Machine,
    /// Admitted chains of the node.
    pub ledger: &'a Ledger,
}

/// Plans a chain for a machine: places each function, predicts the cost, and compares the cost with
/// the contract.
///
/// A chain whose contract the machine cannot keep gets a plan that is not
/// [`admitted`](Plan::admitted). [`plan`] assumes no other chain on the node; [`review`] considers
/// others.
pub fn plan(chain: &ServiceChain, costs: &Costs, machine: &Machine) -> Result<Plan, PlanError> {
    let mut plan = planning::plan_before_admission(chain, costs, machine)?;
    let site = Site::planned(chain, machine);
    review(
        &mut plan,
        chain,
        &Node {
            costs,
            machine,
            ledger: &Ledger::default(),
        },
        &site,
    );
    Ok(plan)
}

/// Decides on the admission of a planned chain, and writes bound, refusal and remedies into the
/// plan. Returns the booking for the node's ledger.
pub fn review(plan: &mut Plan, chain: &ServiceChain, node: &Node<'_>, site: &Site) -> Booking {
    let platform = Platform::new(node.costs);
    let mut booking = book(chain, plan, node.costs, site);
    let decision = admit(node.ledger, &booking, &platform);
    // A mean above the contract is always a refusal.
    let refusal = planning::refusal(plan).or(decision.refusal);
    let conflict = node.ledger.find_core_conflict(chain, plan);
    let has_remedies = refusal.is_some() && conflict.is_none();
    let refusal = conflict.or(refusal);
    // A shaper without room affects no other chain, and `room_refusal` names the remedy.
    let to_shaper_fs = decision.to_shaper_fs.unwrap_or(0);
    plan.refusal = refusal.or_else(|| release::room_refusal(chain, plan, to_shaper_fs));
    plan.admitted = plan.refusal.is_none();
    plan.best_effort = false;
    plan.bound = decision.bound;
    plan.no_bound = decision.no_bound;
    plan.remedies = if has_remedies {
        remedies(
            node.ledger,
            &booking,
            &alternatives(plan, chain, node, site),
            &platform,
        )
    } else {
        Vec::new()
    };
    let warn_of_lost_credit = release::warn_of_lost_credit(
        chain,
        plan,
        decision
            .late_fs
            .unwrap_or_else(|| booking.min_lateness_fs(&platform)),
    );
    for warning in [warn_short_burst(chain), warn_of_lost_credit]
        .into_iter()
        .flatten()
    {
        if !plan.warnings.contains(&warning) {
            plan.warnings.push(warning);
        }
    }
    if !plan.admitted {
        // A chain that is deployed with `--force` has no promise.
        booking.latency_ns = None;
    }
    booking
}

/// Returns bookings of the chain with other values of keys that may reduce the bound.
fn alternatives(
    plan: &Plan,
    chain: &ServiceChain,
    node: &Node<'_>,
    site: &Site,
) -> Vec<Alternative> {
    let mut all = Vec::new();
    let mut add = |key: String, chain: &ServiceChain| {
        let Ok(plan) = planning::plan_before_admission(chain, node.costs, node.machine) else {
            return;
        };
        if planning::refusal(&plan).is_none() {
            let booking = book(chain, &plan, node.costs, site);
            all.push(Alternative { key, booking });
        }
    };
    if plan.uses(Space::User) {
        let own = plan.worker.as_ref().map(|worker| worker.core);
        for core in (0..node.machine.cores).filter(|core| Some(*core) != own) {
            let mut moved = chain.clone();
            moved.worker.cores = vec![core];
            add(format!("`worker: {{ cores: [{core}] }}`"), &moved);
        }
        if chain.worker.idle != Idle::Spin {
            let mut spinning = chain.clone();
            spinning.worker.idle = Idle::Spin;
            add("`worker: { idle: spin }`".to_owned(), &spinning);
        }
    }
    if chain.sla.excess_queue_ns.is_some() {
        let mut dropping = chain.clone();
        dropping.sla.excess_queue_ns = None;
        add("no `excess`".to_owned(), &dropping);
    }
    for mapping in [Mapping::Compact, Mapping::Distributed] {
        if mapping != plan.mapping && !chain.is_driven_by_worker() {
            let mapped = ServiceChain {
                mapping,
                ..chain.clone()
            };
            add(format!("`mapping: {mapping}`"), &mapped);
        }
    }
    all
}

/// Warns of a burst in bits that is shorter than a full frame.
fn warn_short_burst(chain: &ServiceChain) -> Option<String> {
    let bits = chain.sla.policing_profile().bits?;
    (bits.burst() < FULL_FRAME * 8).then(|| {
        format!(
            "a burst of {} bits is less than a full frame of {FULL_FRAME} bytes: frames above {} bytes never conform",
            bits.burst(),
            bits.burst() / 8
        )
    })
}
