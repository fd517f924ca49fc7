//! The chains without a worst-case bound.

use myelin_spec::{Mapping, ServiceChain, SharingPolicy};

use crate::plan::Plan;

/// Returns the reason why a planned chain has no bound, whatever its traffic.
pub(super) fn why_unbounded(chain: &ServiceChain, plan: &Plan) -> Option<String> {
    if let Some(hop) = plan.black_boxes().next() {
        return Some(format!(
            "the delay in `{}` is unknown (black box)",
            hop.name
        ));
    }
    let mut functions = chain.functions.iter();
    if let Some(function) =
        functions.find(|function| function.sandbox.limits.cpu_millicores.is_some())
    {
        return Some(format!(
            "the scheduler stops `{}` when it has used its `limits: {{ cpu }}`",
            function.name
        ));
    }
    if plan.mapping == Mapping::Pipeline && plan.own_processes > 0 {
        return Some(
            "in mapping `pipeline` packets return to the first core; `mapping: compact` has a bound".to_owned(),
        );
    }
    let (worker, sharing) = (plan.worker.as_ref()?, plan.sharing.as_ref()?);
    let has_longest_turn = match sharing.policy {
        SharingPolicy::Cooperative | SharingPolicy::RoundRobin => true,
        SharingPolicy::Deadline => chain.worker.sharing.longest_turn_ns.is_some(),
        _ => false,
    };
    if has_longest_turn && plan.mapping == Mapping::Compact {
        return None;
    }
    let other = if plan.mapping == Mapping::Compact {
        "`sharing: cooperative`, `round-robin`, `os`, and `{ policy: deadline, longestTurn: 200us }` have one"
    } else {
        "`mapping: compact` has one with `sharing: cooperative`"
    };
    Some(format!(
        "the workers of core {} take turns by `sharing: {}`, for which there is no bound; {other}",
        worker.core, sharing.policy
    ))
}
