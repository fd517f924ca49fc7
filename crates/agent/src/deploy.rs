//! The road of a chain, in the order of time: parse, plan, admit, place, lay out, switch on, retire. A file a step.
//!
//! All chains of a file change or none: each step is done for all of them before the next one, and what a step made is taken away
//! when a later one fails. Nothing is made before admission has said yes. A live change is the same road with a former form,
//! `down` the way back.
//!
//! A request reserves the names of its chains first (`node::chains`) and holds no lock that other requests need. A step that takes
//! long, such as a program that comes up or a worker that starts, delays only requests for the same chain or worker.

mod admit;
mod lay_out;
mod place;
mod plan;
mod retire;
mod revision;
mod switch_on;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use myelin_planner::Costs;
use myelin_spec::ServiceChain;

use crate::api::{
    ApiError, ChainSource, ChainUp, Change, FloodRequest, calibration_file, check_floods,
};
use crate::node::Node;
use crate::node::chains::Running;
use crate::node::cpu_latency;
use crate::node::quiesce::Urgent;
pub use admit::decide as admit;
pub use plan::{link_bps, link_mtu, port_kind};

/// How [`Engine::up`](crate::Engine::up) brings a file up.
#[derive(Clone, Copy, Default)]
pub struct UpOptions<'a> {
    /// Deploys what admission refuses as best effort.
    pub force: bool,
    /// Refuses chains that run already.
    pub only_new: bool,
    /// Chains of the file that are going to be flooded.
    pub floods: &'a [FloodRequest],
    /// Set when the client has gone.
    pub cancelled: Option<&'a AtomicBool>,
}

/// Brings all chains of a file into the form that it gives them, or none: those that do not run come up, those that run in another
/// form are changed under their traffic. Steps that may take long look whether it was called off.
///
/// # Errors
/// A bad file, a chain that is not admitted, a change that cannot be made live, or what the system refused; then everything is as it
/// was before.
pub(crate) fn up(
    node: &Node,
    source: &ChainSource,
    options: UpOptions<'_>,
    called_off: &dyn Fn() -> bool,
) -> Result<Vec<ChainUp>, ApiError> {
    let start = Instant::now();
    let chains = source.parse()?;
    check_floods(options.floods, &chains)?;
    let costs = load_costs()?;
    let names: Vec<String> = chains.iter().map(|chain| chain.name.clone()).collect();
    let reverses = chains.iter().filter_map(|chain| chain.reverse.clone());
    let worked_on = names.iter().cloned().chain(reverses).collect();
    let _reserved = node.chains.reserved.reserve(worked_on, called_off)?;
    let ports = chains.iter().filter_map(|chain| chain.ports.as_ref());
    let interfaces = ports.flat_map(|ports| [ports.ingress.clone(), ports.egress.clone()]);
    let interfaces = node.interfaces.reserve(interfaces.collect(), called_off)?;
    if options.only_new {
        none_may_run(node, &chains)?;
    }
    let surveyed = plan::Surveyed {
        chains: &node.chains,
        circuits: &node.parts.circuits,
        ports: &node.parts.ports,
    };
    let plan::Drafts {
        mut planned,
        unchanged,
    } = plan::plan(surveyed, chains, &costs)?;
    let admission = admit::admit(
        &node.ledger,
        &costs,
        &mut planned,
        options.force,
        called_off,
    )?;
    let latencies = cpu_latency::ask(planned.iter().map(|planned| &planned.chain))?;
    let placed = for_all(planned, |planned| place::place(&node.parts, planned))?;
    drop(interfaces);
    let source = Arc::new(source.clone());
    let laid = for_all(placed, |placed| {
        lay_out::lay_out(&node.parts, placed, &source, called_off)
    })?;
    let mut ups = switch_all_on(node, laid, start)?;
    admission.settle();
    node.latencies.hold(latencies);
    let as_they_are = unchanged.iter();
    ups.extend(as_they_are.map(|running| report(running, Change::Unchanged, 0.0)));
    ups.sort_by_key(|up| names.iter().position(|name| *name == up.chain));
    Ok(ups)
}

/// Takes a step for all chains of a file. If it fails for one, what was made for those before is dropped, the newest first: it may lie on
/// the ports of one before it.
fn for_all<T, U>(
    chains: Vec<T>,
    mut step: impl FnMut(T) -> Result<U, ApiError>,
) -> Result<Vec<U>, ApiError> {
    let mut done = Vec::with_capacity(chains.len());
    for chain in chains {
        match step(chain) {
            Ok(one) => done.push(one),
            Err(error) => {
                tracing::info!(%error, "not deployed");
                while done.pop().is_some() {}
                return Err(error);
            }
        }
    }
    Ok(done)
}

/// Leads the packets to all chains of a file, or to none, and retires the forms before. All of them stand by now: those that share a
/// state are apart for no longer than the steps at the front doors take.
fn switch_all_on(
    node: &Node,
    laid: Vec<lay_out::Laid>,
    start: Instant,
) -> Result<Vec<ChainUp>, ApiError> {
    let plane = &node.parts.plane;
    // From here on packets see it.
    let is_change = laid.iter().any(|laid| laid.running.is_some());
    let urgent = is_change.then(Urgent::begin);
    let mut switched = Vec::new();
    let mut rest = laid.into_iter();
    while let Some(laid) = rest.next() {
        match switch_on::switch_on(plane, laid) {
            Ok(done) => {
                node.chains.insert(Arc::clone(&done.running));
                switched.push(done);
            }
            Err(error) => {
                drop(urgent);
                tracing::info!(%error, "not deployed");
                rest.rev().for_each(drop);
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
    let report = |(done, took): (&switch_on::SwitchedOn, Option<Duration>)| {
        retire::retire_former(plane, &done.running);
        let change = if done.is_change {
            Change::Changed
        } else {
            Change::Created
        };
        let rendering_ms = (done.since - start).as_secs_f64() * 1e3;
        let mut up = report(&done.running, change, rendering_ms);
        up.exchange_ms = took.map(|took| took.as_secs_f64() * 1e3);
        tracing::info!(
            chain = up.chain,
            generation = up.generation,
            rendering_ms,
            exchange_ms = up.exchange_ms,
            "up"
        );
        up
    };
    Ok(switched.iter().zip(took).map(report).collect())
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
