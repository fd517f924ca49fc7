//! The chains without a worst-case bound.

use myelin_spec::{Mapping, ServiceChain, SharingMechanism, SharingPolicy};

use super::site::Site;
use super::stages::why_no_rounds;
use crate::plan::Plan;

/// Returns the reason why a planned chain has no bound, whatever its traffic.
pub(super) fn why_unbounded(chain: &ServiceChain, plan: &Plan, site: &Site) -> Option<String> {
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
    if let Some(why) = why_no_rounds(chain, plan, site) {
        return Some(why);
    }
    let (worker, sharing) = (plan.worker.as_ref()?, plan.sharing.as_ref()?);
    if sharing.mechanism != SharingMechanism::Auto {
        return Some(format!(
            "a preemptor (mechanism `{}`) ends the turns of the workers of core {} at any time; workers that hand the \
             core over have a bound: remove `mechanism`",
            sharing.mechanism, worker.core
        ));
    }
    let has_longest_turn = match sharing.policy {
        SharingPolicy::Cooperative | SharingPolicy::RoundRobin => true,
        SharingPolicy::Deadline => chain.worker.sharing.longest_turn_ns.is_some(),
        _ => false,
    };
    if has_longest_turn && plan.mapping != Mapping::Distributed {
        return None;
    }
    let other = if plan.mapping == Mapping::Distributed {
        "`mapping: compact` has one with `sharing: cooperative`"
    } else {
        "`sharing: cooperative`, `round-robin`, `os`, and `{ policy: deadline, longestTurn: 200us }` have one"
    };
    Some(format!(
        "the workers of core {} take turns by `sharing: {}`, for which there is no bound; {other}",
        worker.core, sharing.policy
    ))
}
