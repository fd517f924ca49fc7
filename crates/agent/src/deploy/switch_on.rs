//! Step 6 of the road: the front door leads packets to what stands behind it.
//!
//! A chain that comes up is entered into the classifier. One that changes is led to its next form in one step, so that each packet
//! is taken by exactly one of both and stays with it to the end: the front door stamps its generation, and everything behind it
//! is found by that. Until the whole file is switched on the way back is the same step the other way round.

use std::sync::Arc;
use std::time::Instant;

use myelin_dataplane::ChainRedirect;
use myelin_kernel::Plane;

use crate::api::ApiError;
use crate::deploy::lay_out::Laid;
use crate::deploy::retire;
use crate::node::chains::{Form, Place, Running};
use crate::node::layout::FrontDoor;
use crate::node::quiesce::Urgent;

/// A chain whose packets are led to its new form.
pub(crate) struct SwitchedOn {
    pub(crate) running: Arc<Running>,
    /// When packets could see the new form.
    pub(crate) since: Instant,
    /// Whether a form before it still stands.
    pub(crate) is_change: bool,
}

/// Leads the packets to what was laid out. On an error the chain is as it was before, and what was laid out is gone.
pub(crate) fn switch_on(plane: &Plane, laid: Laid) -> Result<SwitchedOn, ApiError> {
    let Laid {
        at_xdp,
        form,
        spi,
        place,
        running,
    } = laid;
    let Some(running) = running else {
        insert(&place, spi, &form)?;
        return Ok(SwitchedOn {
            running: Arc::new(Running::new(spi, place, form, at_xdp)),
            since: Instant::now(),
            is_change: false,
        });
    };
    let was = running.form();
    let since = lead(plane, &running, &was, &form)?;
    running.change(|versions| {
        versions.former = Some(std::mem::replace(&mut versions.form, Arc::new(form)));
        if at_xdp.is_some() {
            versions.at_xdp = at_xdp;
        }
        versions.is_led = true;
    });
    Ok(SwitchedOn {
        running,
        since,
        is_change: true,
    })
}

/// Undoes that, for a file that cannot be switched on as a whole. Returns a chain that came up, which is to go.
pub(crate) fn switch_back(plane: &Plane, done: SwitchedOn) -> Option<Arc<Running>> {
    let SwitchedOn {
        running, is_change, ..
    } = done;
    if !is_change {
        return Some(running);
    }
    let former = running.change(|versions| versions.former.clone())?;
    let form = running.form();
    match lead(plane, &running, &form, &former) {
        Ok(_) => running.change(|versions| {
            versions.former = Some(std::mem::replace(&mut versions.form, former));
        }),
        Err(error) => {
            // Whole, though not what the file's owner asked for.
            tracing::error!(chain = running.name, %error, "the change stays, it could not be undone");
        }
    }
    drop(form);
    retire::wait_for_packets(plane);
    retire::retire_former(plane, &running);
    None
}

/// Takes a chain out of its front door; false when no packets were led to it any more.
pub(crate) fn switch_off(running: &Running) -> bool {
    let is_led = running.change(|versions| std::mem::replace(&mut versions.is_led, false));
    if !is_led {
        return false;
    }
    let form = running.form();
    let removed = match form.layout.front_door() {
        FrontDoor::Kernel(_) => running.place.ports().and_then(|(_, port, _)| {
            let removed = port.door().remove(&form.chain.matches);
            removed.map(drop).map_err(ApiError::failed)
        }),
        FrontDoor::Worker(worker, ..) => {
            let unled = worker.entry().handle().stop_redirect(running.spi);
            unled.map_err(ApiError::failed)
        }
    };
    if let Err(error) = removed {
        tracing::warn!(chain = running.name, %error, "taking the chain out of the classifier failed");
    }
    true
}

/// Lets the packets of a chain that comes up in. Last, so that the first one finds everything in its place.
fn insert(place: &Place, spi: u32, form: &Form) -> Result<(), ApiError> {
    match form.layout.front_door() {
        FrontDoor::Kernel(entry) => {
            let (_, ingress, _) = place.ports()?;
            let inserted = ingress.door().insert(&form.chain.matches, entry);
            inserted.map_err(|error| match_error(form, &error))
        }
        FrontDoor::Worker(..) => lead_in_worker(spi, form),
    }
}

/// Leads the match from the form that runs to another one. Returns when packets could see that.
fn lead(plane: &Plane, running: &Running, from: &Form, to: &Form) -> Result<Instant, ApiError> {
    let (FrontDoor::Kernel(old), FrontDoor::Kernel(new)) =
        (from.layout.front_door(), to.layout.front_door())
    else {
        let since = Instant::now();
        lead_in_worker(running.spi, to)?;
        return Ok(since);
    };
    let (_, ingress, _) = running.place.ports()?;
    plane.keep_old_entry(new, old).map_err(ApiError::failed)?;
    let door = ingress.door();
    let _urgent = Urgent::begin();
    let since = Instant::now();
    door.redirect(&to.chain.matches, new)
        .map_err(|error| match_error(to, &error))?;
    if to.chain.matches == from.chain.matches {
        return Ok(since);
    }
    // A list of masks may be rewritten only when no program reads it.
    retire::wait_for_packets(plane);
    if let Err(error) = door.remove(&from.chain.matches) {
        if let Err(error) = door.remove(&to.chain.matches) {
            tracing::error!(chain = to.chain.name, %error, "a match stays");
        }
        retire::wait_for_packets(plane);
        return Err(match_error(from, &error));
    }
    retire::wait_for_packets(plane);
    Ok(since)
}

fn lead_in_worker(spi: u32, form: &Form) -> Result<(), ApiError> {
    let FrontDoor::Worker(worker, direction, policing) = form.layout.front_door() else {
        return Err(ApiError::failed(
            "a chain cannot change between the kernel and DPDK",
        ));
    };
    let led = worker.entry().handle().redirect_chain(ChainRedirect {
        matches: form.chain.matches,
        direction,
        policing,
        spi,
        generation: form.generation,
    });
    led.map_err(|error| {
        let (place, name) = (&form.chain.places.ports, &form.chain.name);
        ApiError::failed(format!("{place}: chain `{name}`: {error}"))
    })
}

/// An error at the chain's match in its file.
fn match_error(form: &Form, error: &myelin_kernel::Error) -> ApiError {
    let (place, name) = (&form.chain.places.matches, &form.chain.name);
    ApiError::failed(format!("{place}: chain `{name}`: {error}"))
}
