//! What may differ between a running chain and its next form.

use myelin_planner::Plan;
use myelin_spec::{ServiceChain, Space};

use crate::api::ApiError;
use crate::node::chains::Running;

/// Whether both say the same, wherever it stands in their files.
pub(crate) fn is_same(running: &ServiceChain, next: &ServiceChain) -> bool {
    let mut next = next.clone();
    next.places = running.places.clone();
    for (function, was) in next.functions.iter_mut().zip(&running.functions) {
        function.place = was.place.clone();
        if function.sandbox.requested_at.is_some() == was.sandbox.requested_at.is_some() {
            function
                .sandbox
                .requested_at
                .clone_from(&was.sandbox.requested_at);
        }
    }
    next == *running
}

/// A name belongs to the owner of the chain that runs under it.
pub(crate) fn same_owner(running: &ServiceChain, next: &ServiceChain) -> Result<(), ApiError> {
    if running.owner() == next.owner() {
        return Ok(());
    }
    let (name, owner) = (&next.name, running.owner());
    Err(ApiError::failed(format!(
        "{}: chain `{name}` runs already and belongs to owner `{owner}`: take another name, or remove that chain with \
         `myelin down {name}`",
        next.places.name
    )))
}

/// Refuses what cannot be changed while packets flow.
pub(crate) fn check(running: &Running, next: &ServiceChain) -> Result<(), ApiError> {
    let form = running.form();
    let was = &form.chain;
    if form.layout.has_failed() {
        return Err(refusal(
            next,
            &next.places.name,
            "its worker kept dying and was given up",
        ));
    }
    if was.ports != next.ports {
        return Err(refusal(
            next,
            &next.places.ports,
            "spec.ports cannot be changed while it runs",
        ));
    }
    if was.reverse != next.reverse {
        let reason = match &was.reverse {
            Some(reverse) => format!(
                "spec.reverse cannot be changed while it runs, and it is paired with `{reverse}` (both name each other, \
                 also where one file does not say so)"
            ),
            None => "spec.reverse cannot be changed while it runs".to_owned(),
        };
        return Err(refusal(next, &next.places.reverse, &reason));
    }
    let makes_hosts = was.ports.is_none() && running.place.made_by == was.name;
    if makes_hosts
        && myelin_emulator::choose(&was.matches).ok() != myelin_emulator::choose(&next.matches).ok()
    {
        return Err(refusal(
            next,
            &next.places.matches,
            "its end hosts have the addresses of the old match, which the new one does not lead to",
        ));
    }
    Ok(())
}

/// Refuses other settings for a worker that goes on.
pub(crate) fn check_worker(
    running: &Running,
    next: &ServiceChain,
    plan: &Plan,
) -> Result<(), ApiError> {
    let was = running.form();
    let goes_on = plan.uses(Space::User) && was.plan.uses(Space::User);
    if goes_on && was.chain.worker != next.worker {
        return Err(refusal(
            next,
            &next.places.worker,
            "spec.worker cannot be changed while its worker runs",
        ));
    }
    Ok(())
}

fn refusal(next: &ServiceChain, place: &myelin_spec::FileLocation, reason: &str) -> ApiError {
    let name = &next.name;
    ApiError::failed(format!(
        "{place}: chain `{name}`: {reason}: `myelin down {name}` first, then `up` again"
    ))
}
