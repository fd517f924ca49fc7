//! Decides whether a running chain can change to its next description.

use std::sync::Arc;

use myelin_planner::Plan;
use myelin_spec::{ServiceChain, Space};

use crate::api::ApiError;
use crate::deploy::plan::PlannedChain;
use crate::node::chains::RunningChain;
use crate::node::workers::{Key, can_change};

/// Whether both descriptions are equal, except for their positions in the files.
pub(crate) fn is_same(running: &ServiceChain, next: &ServiceChain) -> bool {
    let mut next = next.clone();
    next.places = running.places.clone();
    for (function, previous) in next.functions.iter_mut().zip(&running.functions) {
        function.place = previous.place.clone();
        if function.sandbox.requested_at.is_some() == previous.sandbox.requested_at.is_some() {
            function
                .sandbox
                .requested_at
                .clone_from(&previous.sandbox.requested_at);
        }
    }
    next == *running
}

/// Refuses the name of a running chain of another owner.
pub(crate) fn check_owner(running: &ServiceChain, next: &ServiceChain) -> Result<(), ApiError> {
    if running.owner() == next.owner() {
        return Ok(());
    }
    let (name, owner) = (&next.name, running.owner());
    Err(ApiError::failed(format!(
        "{}: chain `{name}` runs already and belongs to owner `{owner}`: use another name, or remove that chain with \
         `myelin down {name}`",
        next.places.name
    )))
}

/// Refuses changes that are impossible under traffic.
pub(crate) fn check_change(running: &RunningChain, next: &ServiceChain) -> Result<(), ApiError> {
    let generation = running.generation();
    let previous = &generation.chain;
    if generation.layout.has_failed() {
        return Err(refusal(
            next,
            &next.places.name,
            "a process of the chain ended too often and is no longer restarted",
        ));
    }
    if !has_same_ports(previous, next) {
        let reason = if previous.replay().is_some() && next.replay().is_some() {
            "the frames of `replay`, which `match` decides too, cannot be changed while the chain runs"
        } else {
            "spec.ports cannot be changed while the chain runs"
        };
        return Err(refusal(next, &next.places.ports, reason));
    }
    if !keeps_ports(previous, next) && !starts_path(previous, next) {
        return Err(refusal(
            next,
            &next.places.part,
            "the first part of a chain can change its path with its next node and its positions, and no other part can \
             change these while it runs",
        ));
    }
    if previous.reverse != next.reverse {
        let reason = match &previous.reverse {
            Some(reverse) => format!(
                "spec.reverse cannot be changed while the chain runs, and the chain is paired with `{reverse}`, \
                even if only one file names the other chain"
            ),
            None => "spec.reverse cannot be changed while the chain runs".to_owned(),
        };
        return Err(refusal(next, &next.places.reverse, &reason));
    }
    let makes_hosts = previous.ports.is_none() && generation.ports.made_by == previous.name;
    if makes_hosts
        && myelin_emulator::choose_addresses(&previous.matches).ok()
            != myelin_emulator::choose_addresses(&next.matches).ok()
    {
        return Err(refusal(
            next,
            &next.places.matches,
            "the chain's end hosts have addresses that the new match does not cover",
        ));
    }
    Ok(())
}

/// Whether both descriptions have the same ports. The first part of a chain keeps its ingress only.
fn has_same_ports(running: &ServiceChain, next: &ServiceChain) -> bool {
    if running.part.is_none() && next.part.is_none() {
        return running.ports == next.ports;
    }
    let ingress = |chain: &ServiceChain| {
        let ports = chain.ports.as_ref();
        ports.map(|ports| (ports.ingress.clone(), ports.driver))
    };
    ingress(running) == ingress(next)
}

/// Whether a running chain keeps its circuit.
pub(crate) fn keeps_ports(running: &ServiceChain, next: &ServiceChain) -> bool {
    wires_of(running) == wires_of(next)
}

/// Whether packets enter a path at this chain, and the next description has another path. Packets
/// of both paths have wires of their own then.
fn starts_path(running: &ServiceChain, next: &ServiceChain) -> bool {
    let path = |chain: &ServiceChain| chain.part.as_ref().map(|part| part.path);
    running.from().is_none() && next.from().is_none() && path(running) != path(next)
}

/// The properties of a part that its wires depend on: path, neighbours, and the positions at which
/// frames arrive and leave.
fn wires_of(chain: &ServiceChain) -> Option<impl PartialEq + '_> {
    let part = chain.part.as_ref()?;
    let end = part.to.is_some().then(|| part.end(chain.functions.len()));
    let to = (&part.to, &part.split);
    Some((part.path, part.first, end, &part.from, to))
}

/// Refuses new settings for a worker that keeps running.
pub(crate) fn check_worker(
    running: &RunningChain,
    next: &ServiceChain,
    plan: &Plan,
) -> Result<(), ApiError> {
    let previous = running.generation();
    let keeps_worker = plan.uses(Space::User) && previous.plan.uses(Space::User);
    if previous.plan.super_packets != plan.super_packets {
        return Err(refusal(
            next,
            &next.places.worker,
            "spec.worker.superPackets cannot be changed while the chain runs",
        ));
    }
    if keeps_worker
        && previous.chain.worker != next.worker
        && (next.is_over_dpdk() || !can_change(&previous.chain.worker, &next.worker))
    {
        return Err(refusal(
            next,
            &next.places.worker,
            "only `sharing`, `cores`, `idle` and `spin` of spec.worker can be changed while the worker runs, and nothing for \
             DPDK devices",
        ));
    }
    Ok(())
}

/// Refuses new settings for a worker that a chain outside the file shares.
pub(crate) fn check_shared_worker(
    running: &[Arc<RunningChain>],
    planned: &[PlannedChain],
) -> Result<(), ApiError> {
    let key = |plan: &Plan| plan.worker.as_ref().map(Key::of);
    for PlannedChain { chain, plan, .. } in planned {
        let Some(own) = key(plan) else { continue };
        let is_other = |other: &ServiceChain| other.worker != chain.worker;
        let in_file = planned
            .iter()
            .find(|other| key(&other.plan).as_ref() == Some(&own) && is_other(&other.chain));
        let in_file = in_file.map(|other| other.chain.name.clone());
        let outside = running.iter().find(|running| {
            let generation = running.generation();
            let mut file = planned.iter();
            key(&generation.plan).as_ref() == Some(&own)
                && is_other(&generation.chain)
                && !file.any(|planned| planned.chain.name == running.name)
        });
        if let Some(name) = in_file.or_else(|| outside.map(|running| running.name.clone())) {
            return Err(ApiError::failed(format!(
                "{}: chain `{}`: spec.worker differs from spec.worker of chain `{name}`, which shares this worker (owner \
                 {}): make both equal, in one file, or give the chains different namespaces",
                chain.places.worker, chain.name, own.owner
            )));
        }
    }
    Ok(())
}

fn refusal(next: &ServiceChain, place: &myelin_spec::FileLocation, reason: &str) -> ApiError {
    let name = &next.name;
    ApiError::failed(format!(
        "{place}: chain `{name}`: {reason}: run `myelin down {name}`, then `up` again"
    ))
}
