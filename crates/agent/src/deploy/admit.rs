//! Step 3 of the road: whether the chains of a file fit beside all others. Nothing is made before this has said yes.

use myelin_planner::{Costs, Plan};
use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::deploy::plan::Planned;
use crate::node::ledger::{Admission, Candidate, NodeLedger};

/// Enters the chains of a file into the ledger, all or none. With `force` what is refused is deployed as best effort.
///
/// # Errors
/// A chain is refused.
pub(crate) fn admit(
    ledger: &NodeLedger,
    costs: &Costs,
    planned: &mut [Planned],
    force: bool,
    is_called_off: &dyn Fn() -> bool,
) -> Result<Admission, ApiError> {
    let candidates = planned.iter_mut().map(|planned| Candidate {
        chain: &planned.chain,
        plan: &mut planned.plan,
        machine: &planned.machine,
        site: &planned.site,
    });
    let mut candidates: Vec<_> = candidates.collect();
    ledger.admit(costs, &mut candidates, is_called_off, |chain, plan| {
        decide(chain, plan, force)
    })
}

/// Passes the admitted plan of a chain, and one that is not when `force` says so: as best effort.
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
        .unwrap_or("its contract cannot be kept");
    if force {
        tracing::info!(chain = plan.chain, reason, "deployed as best effort");
        plan.best_effort = true;
        return Ok(());
    }
    let instead = if plan.remedies.is_empty() {
        String::new()
    } else {
        format!(
            "; it would be admitted with {}",
            plan.remedies.join(", or ")
        )
    };
    Err(ApiError::refused(format!(
        "{}: chain `{}` is refused: {reason}{instead}; `--force` deploys it as best effort",
        chain.places.sla, chain.name
    )))
}
