//! Step 3: admission. Decides whether the chains of a file fit next to all admitted chains. Earlier
//! steps make nothing.

use myelin_planner::{Costs, Plan};
use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::deploy::plan::PlannedChain;
use crate::node::ledger::{Admission, Candidate, NodeLedger};

/// Books the chains of a file in the ledger, all or none. `force` deploys refused chains as best
/// effort.
///
/// # Errors
/// A chain is refused.
pub(crate) fn admit(
    ledger: &NodeLedger,
    costs: &Costs,
    planned: &mut [PlannedChain],
    force: bool,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Admission, ApiError> {
    let candidates = planned.iter_mut().map(|planned| Candidate {
        chain: &planned.chain,
        plan: &mut planned.plan,
        machine: &planned.machine,
        site: &planned.site,
        takes_over: &planned.takes_over,
    });
    let mut candidates: Vec<_> = candidates.collect();
    ledger.admit(costs, &mut candidates, is_cancelled, |chain, plan| {
        decide(chain, plan, force)
    })
}

/// Accepts an admitted plan. With `force`, accepts a refused plan as best effort.
///
/// # Errors
/// The chain is refused.
pub fn decide(chain: &ServiceChain, plan: &mut Plan, force: bool) -> Result<(), ApiError> {
    if plan.admitted {
        return Ok(());
    }
    let reason = plan
        .refusal
        .as_deref()
        .unwrap_or("the contract cannot be guaranteed");
    if force {
        tracing::info!(chain = plan.chain, reason, "deployed as best effort");
        plan.best_effort = true;
        return Ok(());
    }
    let remedies = if plan.remedies.is_empty() {
        String::new()
    } else {
        format!(
            "; the chain would be admitted with {}",
            plan.remedies.join(", or ")
        )
    };
    Err(ApiError::refused(format!(
        "{}: chain `{}` is refused: {reason}{remedies}; `--force` deploys the chain as best effort",
        chain.places.sla, chain.name
    )))
}
