//! From a plan to its decision.

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

/// Where a chain is to be admitted.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// What packets cost there.
    pub costs: &'a Costs,
    /// The machine, and the chain's ports.
    pub machine: &'a Machine,
    /// What was admitted there.
    pub ledger: &'a Ledger,
}

/// Plans a chain for a machine: places each function, predicts the cost, compares it with the contract.
///
/// A chain whose contract cannot be honoured still gets a plan, which is not [`admitted`](Plan::admitted). It is alone on its node here;
/// [`review`] looks at it beside others.
pub fn plan(chain: &ServiceChain, costs: &Costs, machine: &Machine) -> Result<Plan, PlanError> {
    let mut plan = planning::place(chain, costs, machine)?;
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

/// Decides whether a planned chain is admitted on a node, and writes that into its plan: bound, refusal and remedies. Returns what
/// to enter into the node's ledger when the chain is deployed.
pub fn review(plan: &mut Plan, chain: &ServiceChain, node: &Node<'_>, site: &Site) -> Booking {
    let platform = Platform::new(node.costs);
    let mut booking = book(chain, plan, node.costs, site);
    let decision = admit(node.ledger, &booking, &platform);
    // The mean is compared with what was agreed in any case: it is no promise, but a mean above it cannot be kept.
    let refusal = planning::refusal(plan).or(decision.refusal);
    let try_others = refusal.is_some();
    // A shaper without room does not concern the promises of others: the refusal has its remedy.
    let to_shaper_fs = decision.to_shaper_fs.unwrap_or(0);
    plan.refusal = refusal.or_else(|| release::no_room(chain, plan, to_shaper_fs));
    plan.admitted = plan.refusal.is_none();
    plan.best_effort = false;
    plan.bound = decision.bound;
    plan.no_bound = decision.no_bound;
    plan.remedies = if try_others {
        remedies(
            node.ledger,
            &booking,
            &alternatives(plan, chain, node, site),
            &platform,
        )
    } else {
        Vec::new()
    };
    let too_slow = release::too_slow(
        chain,
        plan,
        decision
            .late_fs
            .unwrap_or_else(|| booking.least_late_fs(&platform)),
    );
    for warning in [short_burst(chain), too_slow].into_iter().flatten() {
        if !plan.warnings.contains(&warning) {
            plan.warnings.push(warning);
        }
    }
    if !plan.admitted {
        // A chain that is deployed nevertheless gets no promise.
        booking.latency_ns = None;
    }
    booking
}

/// The chain in other forms that may be cheaper.
fn alternatives(
    plan: &Plan,
    chain: &ServiceChain,
    node: &Node<'_>,
    site: &Site,
) -> Vec<Alternative> {
    let mut all = Vec::new();
    let mut consider = |what: String, chain: &ServiceChain, site: &Site| {
        let Ok(plan) = planning::place(chain, node.costs, node.machine) else {
            return;
        };
        if planning::refusal(&plan).is_none() {
            let booking = book(chain, &plan, node.costs, site);
            all.push(Alternative { what, booking });
        }
    };
    if plan.uses(Space::User) {
        for core in (0..node.machine.cores).filter(|core| *core != site.core) {
            let site = Site {
                core,
                ..site.clone()
            };
            consider(format!("`worker: {{ core: {core} }}`"), chain, &site);
        }
        if chain.worker.idle != Idle::Spin {
            let mut awake = chain.clone();
            awake.worker.idle = Idle::Spin;
            consider("`worker: { idle: spin }`".to_owned(), &awake, site);
        }
    }
    for mapping in [Mapping::Compact, Mapping::Distributed] {
        if mapping != plan.mapping && !chain.is_over_dpdk() {
            let mapped = ServiceChain {
                mapping,
                ..chain.clone()
            };
            consider(format!("`mapping: {mapping}`"), &mapped, site);
        }
    }
    all
}

/// A bucket of bits that holds less than a full frame never lets one pass.
fn short_burst(chain: &ServiceChain) -> Option<String> {
    let bits = chain.sla.policing_profile().bits?;
    (bits.burst() < FULL_FRAME * 8).then(|| {
        format!(
            "a burst of {} bits is less than a full frame of {FULL_FRAME} bytes: frames above {} bytes never conform",
            bits.burst(),
            bits.burst() / 8
        )
    })
}
