//! Step 6: the front door redirects packets to the new generation.
//!
//! The classifier gets an entry for a new chain. A change replaces the entry in one step, so each
//! packet belongs to exactly one generation. The front door stamps the generation, and all later
//! lookups use the stamp. Until the whole file is switched on, the same step reverts a change.

use std::sync::Arc;
use std::time::Instant;

use myelin_dataplane::ChainRedirect;
use myelin_kernel::Plane;

use crate::api::ApiError;
use crate::control::actuator::RealtimeGuard;
use crate::deploy::layout::BuiltChain;
use crate::deploy::retire;
use crate::node::chains::{Generation, RunningChain};
use crate::node::layout::FrontDoor;
use crate::node::workers::WorkerChange;

/// A chain whose packets go to its new generation.
pub(crate) struct SwitchedOn {
    pub(crate) running: Arc<RunningChain>,
    /// The time of the switch to the new generation.
    pub(crate) since: Instant,
    /// Whether a previous generation still exists.
    pub(crate) is_change: bool,
    /// The new settings of the worker, until all chains of the file are switched on.
    pub(crate) worker_change: WorkerChange,
}

/// Redirects packets to a new generation. After an error the chain is unchanged and the new
/// generation is removed.
pub(crate) fn switch_on(plane: &Plane, built: BuiltChain) -> Result<SwitchedOn, ApiError> {
    let BuiltChain {
        xdp,
        generation,
        spi,
        running,
        worker_change,
    } = built;
    let Some(running) = running else {
        redirect_to_new_chain(spi, &generation)?;
        return Ok(SwitchedOn {
            running: Arc::new(RunningChain::new(spi, generation, xdp)),
            since: Instant::now(),
            is_change: false,
            worker_change,
        });
    };
    let previous = running.generation();
    let since = redirect(plane, &running, &previous, &generation)?;
    running.change(|generations| {
        generations.previous = Some(std::mem::replace(
            &mut generations.current,
            Arc::new(generation),
        ));
        generations.xdp.extend(xdp);
        generations.is_classified = true;
    });
    Ok(SwitchedOn {
        running,
        since,
        is_change: true,
        worker_change,
    })
}

/// Reverts [`switch_on`] when a later chain of the file fails. Returns a new chain, which the
/// caller removes.
pub(crate) fn switch_back(plane: &Plane, done: SwitchedOn) -> Option<Arc<RunningChain>> {
    let SwitchedOn {
        running, is_change, ..
    } = done;
    if !is_change {
        return Some(running);
    }
    let previous = running.change(|generations| generations.previous.clone())?;
    let generation = running.generation();
    match redirect(plane, &running, &generation, &previous) {
        Ok(_) => running.change(|generations| {
            generations.previous = Some(std::mem::replace(&mut generations.current, previous));
        }),
        Err(error) => {
            // The chain works, but in the new generation.
            tracing::error!(chain = running.name, %error, "cannot revert the change: the new generation stays");
        }
    }
    drop(generation);
    retire::wait_for_packets(plane);
    retire::retire_previous(plane, &running);
    None
}

/// Removes a chain's match from its front door. Waits until the packets inside the first part of a
/// chain over nodes have left, because other nodes wait for them.
pub(crate) fn switch_off(plane: &Plane, running: &RunningChain) {
    let was_redirected =
        running.change(|generations| std::mem::replace(&mut generations.is_classified, false));
    if !was_redirected {
        return;
    }
    let generation = running.generation();
    let (chain, entrance) = (&generation.chain, generation.entrance.as_ref());
    let rule = &chain.matches;
    let closed = entrance.map_or(Ok(()), |entrance| entrance.remove_at_ingress(rule));
    if chain.part.is_some() && chain.from().is_none() {
        retire::drain_part(plane, &generation);
    }
    let removed = entrance.map_or(Ok(()), |entrance| entrance.remove_behind_link(rule));
    let removed = closed.and(removed).map_err(ApiError::failed);
    let stopped = match generation.layout.front_door() {
        FrontDoor::Kernel(_) => Ok(()),
        FrontDoor::Worker(worker, ..) => worker.state().handle().stop_redirect(running.spi),
    };
    if let Err(error) = removed.and(stopped.map_err(ApiError::failed)) {
        tracing::warn!(chain = running.name, %error, "cannot remove the match of the chain from the classifier");
    }
}

/// Redirects packets to a new chain, after everything behind the front door is ready.
fn redirect_to_new_chain(spi: u32, generation: &Generation) -> Result<(), ApiError> {
    match generation.layout.front_door() {
        FrontDoor::Kernel(loaded) => {
            let entrance = generation.entrance()?;
            let inserted = entrance.redirect(&generation.chain.matches, loaded, true);
            inserted.map_err(|error| match_error(generation, &error))?;
            entrance.door.door().set_fast_path(loaded);
            Ok(())
        }
        FrontDoor::Worker(..) => {
            redirect_in_worker(spi, generation)?;
            redirect_to_worker(generation).inspect_err(|_| stop_in_worker(spi, generation))
        }
    }
}

/// Redirects the match from one generation to another. Returns the first time at which packets
/// could see the change.
fn redirect(
    plane: &Plane,
    running: &RunningChain,
    from: &Generation,
    to: &Generation,
) -> Result<Instant, ApiError> {
    let (FrontDoor::Kernel(old), FrontDoor::Kernel(new)) =
        (from.layout.front_door(), to.layout.front_door())
    else {
        let since = Instant::now();
        redirect_in_worker(running.spi, to)?;
        if let Err(error) = redirect_to_worker(to) {
            redirect_in_worker(running.spi, from)?;
            return Err(error);
        }
        if !from.chain.matches.has_same_fields(&to.chain.matches) && to.entrance.is_some() {
            retire::wait_for_packets(plane);
            let removed = from.entrance()?.remove(&from.chain.matches);
            removed.map_err(|error| match_error(from, &error))?;
            retire::wait_for_packets(plane);
        }
        return Ok(since);
    };
    let (entry, earlier_entry) = (to.entrance()?, from.entrance()?);
    let (rule, earlier_rule) = (&to.chain.matches, &from.chain.matches);
    let leaves_link = earlier_entry.is_over_link() && !entry.is_over_link();
    let is_new =
        !rule.has_same_fields(earlier_rule) || entry.is_over_link() != earlier_entry.is_over_link();
    plane.keep_old_entry(new, old).map_err(ApiError::failed)?;
    let _realtime = RealtimeGuard::begin();
    let since = Instant::now();
    entry
        .redirect(rule, new, is_new)
        .map_err(|error| match_error(to, &error))?;
    if rule.has_same_fields(earlier_rule) && !leaves_link {
        return Ok(since);
    }
    // The classifier may rewrite its mask list only while no program reads it. Meanwhile the
    // packets on an entry link reach their front door.
    retire::wait_for_packets(plane);
    let removed = if rule.has_same_fields(earlier_rule) {
        earlier_entry.remove_behind_link(earlier_rule)
    } else {
        earlier_entry.remove(earlier_rule)
    };
    if let Err(error) = removed {
        if let Err(error) = entry.remove(rule) {
            tracing::error!(chain = to.chain.name, %error, "cannot remove the match of the new generation");
        }
        retire::wait_for_packets(plane);
        return Err(match_error(from, &error));
    }
    retire::wait_for_packets(plane);
    Ok(since)
}

/// Redirects packets at the ingress port to the worker with the front door, if they come over an
/// entry link.
fn redirect_to_worker(generation: &Generation) -> Result<(), ApiError> {
    let redirected = generation.entrance.as_ref().map_or(Ok(()), |entrance| {
        entrance.redirect_to_worker(&generation.chain.matches)
    });
    redirected.map_err(|error| match_error(generation, &error))
}

/// Stops the redirect of a chain that could not be switched on.
fn stop_in_worker(spi: u32, generation: &Generation) {
    if let FrontDoor::Worker(worker, ..) = generation.layout.front_door()
        && let Err(error) = worker.state().handle().stop_redirect(spi)
    {
        tracing::warn!(chain = generation.chain.name, %error, "cannot stop the redirect of a chain in its worker");
    }
}

fn redirect_in_worker(spi: u32, generation: &Generation) -> Result<(), ApiError> {
    let FrontDoor::Worker(worker, ingress, policing) = generation.layout.front_door() else {
        return Err(ApiError::failed(
            "a chain cannot change between the kernel and ports of its worker",
        ));
    };
    let redirected = worker.state().handle().redirect_chain(ChainRedirect {
        matches: generation.chain.matches,
        ingress,
        policing,
        spi,
        generation: generation.number,
    });
    redirected.map_err(|error| {
        let (place, name) = (&generation.chain.places.ports, &generation.chain.name);
        ApiError::failed(format!("{place}: chain `{name}`: {error}"))
    })
}

/// Adds the position of the chain's match in its file to an error.
fn match_error(generation: &Generation, error: &myelin_kernel::Error) -> ApiError {
    let (place, name) = (&generation.chain.places.matches, &generation.chain.name);
    ApiError::failed(format!("{place}: chain `{name}`: {error}"))
}
