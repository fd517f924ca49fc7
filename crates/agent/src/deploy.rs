//! The road of a chain, in the order of time: parse, plan, admit, place, lay out, switch on, retire. A file a step.
//!
//! All chains of a file change or none: each step is done for all of them before the next one, and what a step made is taken away
//! when a later one fails. Nothing is made before admission has said yes. A live change is the same road with a former form,
//! `down` the way back.
//!
//! A request reserves the names of its chains first (`node::chains`), and works without any lock that others wait for: what takes long,
//! a program that comes up or a worker that starts, holds up nobody but requests that need the same chain or worker.

mod admit;
mod lay_out;
mod place;
mod plan;
mod retire;
mod revision;
mod switch_on;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use myelin_planner::Costs;
use myelin_spec::ServiceChain;

use crate::api::calibration_file;
use crate::api::{ApiError, ChainSource, ChainUp, Change, FloodRequest, check_floods};
use crate::node::Node;
use crate::node::chains::Running;
use crate::node::cpu_latency;
use crate::node::quiesce::Urgent;
pub use admit::decide as admit;
pub use plan::{link_bps, link_mtu, port_kind};

/// How a file is brought up.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) source: &'a ChainSource,
    /// Whether what admission refuses is deployed as best effort.
    pub(crate) force: bool,
    /// Whether none of its chains may run already.
    pub(crate) only_new: bool,
    /// Chains of the file that are going to be flooded.
    pub(crate) floods: &'a [FloodRequest],
    /// Whether it is not wanted any more; steps that may take long look at it.
    pub(crate) is_called_off: &'a dyn Fn() -> bool,
}

/// Brings all chains of a file into the form that it gives them, or none: those that do not run come up, those that run in another
/// form are changed under their traffic.
///
/// # Errors
/// A bad file, a chain that is not admitted, a change that cannot be made live, or what the system refused; then everything is as it
/// was before.
pub(crate) fn up(node: &Node, order: Order<'_>) -> Result<Vec<ChainUp>, ApiError> {
    let start = Instant::now();
    let chains = order.source.parse()?;
    check_floods(order.floods, &chains)?;
    let costs = load_costs()?;
    let called_off = order.is_called_off;
    let names = chains
        .iter()
        .flat_map(|chain| [Some(chain.name.clone()), chain.reverse.clone()]);
    let names = names.flatten().collect();
    let reserved = node.chains.reserved.reserve(names, called_off)?;
    let ports = chains.iter().filter_map(|chain| chain.ports.as_ref());
    let interfaces = ports.flat_map(|ports| [ports.ingress.clone(), ports.egress.clone()]);
    let interfaces = node.interfaces.reserve(interfaces.collect(), called_off)?;
    if order.only_new {
        none_may_run(node, &chains)?;
    }
    let surveyed = plan::Surveyed {
        chains: &node.chains,
        circuits: &node.parts.circuits,
        ports: &node.parts.ports,
    };
    let mut drafts = plan::plan(surveyed, chains, &costs)?;
    let admission = admit::admit(&node.ledger, &costs, &mut drafts, order.force, called_off)?;
    let latencies = cpu_latency::ask(drafts.iter().filter_map(plan::Draft::chain))?;
    let placed = place::place_all(&node.parts, drafts)?;
    drop(interfaces);
    let source = Arc::new(order.source.clone());
    let laid = lay_out_all(node, placed, &source, called_off)?;
    let ups = switch_all_on(node, laid, start)?;
    admission.settle();
    node.latencies.hold(latencies);
    drop(reserved);
    Ok(ups)
}

/// A chain of a file behind its front door.
enum Stands {
    Unchanged(Arc<Running>),
    Laid(Box<lay_out::Laid>),
}

/// Lays out all chains of a file before packets are led to one of them: those that share a state must not be apart for longer than the
/// steps at the front doors take.
fn lay_out_all(
    node: &Node,
    placed: Vec<place::Placed>,
    source: &Arc<ChainSource>,
    is_called_off: &dyn Fn() -> bool,
) -> Result<Vec<Stands>, ApiError> {
    let mut all = Vec::with_capacity(placed.len());
    for one in placed {
        let stands = match one {
            place::Placed::Unchanged(running) => Ok(Stands::Unchanged(running)),
            place::Placed::At(planned, place, claims) => {
                let laid = lay_out::lay_out(&node.parts, *planned, place, source, is_called_off);
                drop(claims);
                laid.map(|laid| Stands::Laid(Box::new(laid)))
            }
        };
        match stands {
            Ok(stands) => all.push(stands),
            Err(error) => {
                tracing::info!(%error, "not deployed");
                // The newest first: it may lie on the ports of one before it.
                while all.pop().is_some() {}
                return Err(error);
            }
        }
    }
    Ok(all)
}

/// Leads the packets to all chains of a file, or to none, and retires the forms before.
fn switch_all_on(
    node: &Node,
    stands: Vec<Stands>,
    start: Instant,
) -> Result<Vec<ChainUp>, ApiError> {
    let plane = &node.parts.plane;
    let is_change = stands.iter().any(|one| match one {
        Stands::Laid(laid) => laid.running.is_some(),
        Stands::Unchanged(_) => false,
    });
    // From here on packets see it.
    let urgent = is_change.then(Urgent::begin);
    let mut switched = Vec::new();
    let mut ups = Vec::new();
    let mut stands = stands.into_iter();
    while let Some(one) = stands.next() {
        let laid = match one {
            Stands::Unchanged(running) => {
                ups.push(report(&running, Change::Unchanged, 0.0));
                continue;
            }
            Stands::Laid(laid) => *laid,
        };
        match switch_on::switch_on(plane, laid) {
            Ok(done) => {
                let (change, until) = if done.is_change {
                    (Change::Changed, done.since)
                } else {
                    (Change::Created, Instant::now())
                };
                let rendering_ms = (until - start).as_secs_f64() * 1e3;
                ups.push(report(&done.running, change, rendering_ms));
                node.chains.insert(Arc::clone(&done.running));
                switched.push(done);
            }
            Err(error) => {
                drop(urgent);
                tracing::info!(%error, "not deployed");
                let mut rest: Vec<_> = stands.collect();
                while rest.pop().is_some() {}
                for done in switched.into_iter().rev() {
                    if let Some(running) = switch_on::switch_back(plane, done) {
                        take_down(node, running);
                    }
                }
                return Err(error);
            }
        }
    }
    let took = retire::drain_former(plane, &switched);
    drop(urgent);
    for (done, took) in switched.iter().zip(took) {
        retire::retire_former(plane, &done.running);
        let name = &done.running.name;
        let exchange_ms = took.map(|took| took.as_secs_f64() * 1e3);
        if let Some(up) = ups.iter_mut().find(|up| up.chain == *name) {
            up.exchange_ms = exchange_ms;
            tracing::info!(chain = name, generation = up.generation, exchange_ms, "up");
        }
    }
    Ok(ups)
}

/// Removes a chain; false when there is none of that name.
///
/// # Errors
/// The agent is stopping.
pub(crate) fn down(node: &Node, name: &str) -> Result<bool, ApiError> {
    let names = BTreeSet::from([name.to_owned()]);
    let _reserved = node.chains.reserved.reserve(names, &|| false)?;
    let Some(running) = node.chains.get(name) else {
        return Ok(false);
    };
    take_down(node, running);
    node.ledger.remove(name);
    Ok(true)
}

/// Removes all chains of a node where nothing can be reserved any more.
pub(crate) fn down_all(node: &Node) {
    for running in node.chains.all() {
        take_down(node, running);
    }
}

/// Takes a chain out of service and frees all that only it needed. Its name is reserved.
fn take_down(node: &Node, running: Arc<Running>) {
    switch_on::switch_off(&running);
    let name = running.name.clone();
    node.latencies.release(&name);
    node.chains.remove(&name);
    running.end();
    tracing::info!(chain = name, "down");
}

/// Refuses chains that run already: what `run` takes down at its end must be what it has brought up.
fn none_may_run(node: &Node, chains: &[ServiceChain]) -> Result<(), ApiError> {
    let mut chains = chains.iter();
    let running = chains.find(|chain| node.chains.get(&chain.name).is_some());
    running.map_or(Ok(()), |chain| {
        let name = &chain.name;
        Err(ApiError::failed(format!(
            "{}: chain `{name}` runs already: `myelin probe {name}` measures it as it is, `myelin down {name}` removes it",
            chain.places.name
        )))
    })
}

/// The error of a step, with the chain that it is about where it does not name that itself.
fn about(chain: &ServiceChain, error: ApiError) -> ApiError {
    let name = format!("`{}`", chain.name);
    if error.message.contains(&name) {
        return error;
    }
    ApiError {
        message: format!("{}: chain {name}: {}", chain.places.chain, error.message),
        ..error
    }
}

fn report(running: &Running, change: Change, rendering_ms: f64) -> ChainUp {
    let form = running.form();
    ChainUp {
        chain: running.name.clone(),
        owner: form.chain.owner().to_owned(),
        change,
        spi: running.spi,
        generation: form.generation,
        plan: form.plan.clone(),
        ingress: running.place.ingress.clone(),
        egress: running.place.egress.clone(),
        hosts: running.place.hosts.clone(),
        rendering_ms,
        exchange_ms: None,
    }
}

/// The costs measured on this machine, or the built-in ones when none were.
///
/// # Errors
/// The calibration file is there but not usable.
pub fn load_costs() -> Result<Costs, ApiError> {
    let path = calibration_file();
    match std::fs::read_to_string(&path) {
        Ok(text) => Costs::from_json(&text)
            .map_err(|error| ApiError::failed(format!("{}: {error}", path.display()))),
        Err(_) => Ok(Costs::default()),
    }
}
