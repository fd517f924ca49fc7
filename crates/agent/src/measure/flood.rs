//! Floods chains while others are measured: what a flood of `measure` needs to know of a chain.

use myelin_measure::flood::{Counts, Load, Running};
use myelin_metrics::chain::Flood;

use crate::api::{ApiError, FloodRequest, ProbeOptions};
use crate::engine::Engine;
use crate::measure::{self, Target};
use crate::status;

/// Starts all of them, each with packets of the largest payload that the measurement asks for.
///
/// # Errors
/// A chain without end hosts, or one that takes no UDP; a socket or a thread that the system refused.
pub(crate) fn start(
    engine: &Engine,
    floods: &[FloodRequest],
    options: &ProbeOptions,
) -> Result<Vec<(String, Running)>, ApiError> {
    let rows = options.modes.len() * options.payloads.len();
    let limit = measure::deadline(options).saturating_mul(rows.try_into().unwrap_or(u32::MAX));
    let payload = options.payloads.iter().copied().max().unwrap_or_default();
    let start = |request: &FloodRequest| {
        let chain = &request.chain;
        let refuse = |cause: &dyn std::fmt::Display| {
            ApiError::failed(format!("cannot flood chain `{chain}`: {cause}"))
        };
        let target = Target::of(&engine.node, chain).map_err(|error| refuse(&error))?;
        let load = Load {
            chain: chain.clone(),
            profile: target.chain.sla.profile(),
            times: request.times,
            destination: target.destination(),
            payload_bytes: payload.into(),
            limit,
        };
        let sockets = target.sockets().map_err(|error| refuse(&error))?;
        let running = Running::start(load, sockets, counts(engine, chain)?);
        Ok((chain.clone(), running.map_err(|error| refuse(&error))?))
    };
    floods.iter().map(start).collect()
}

/// Ends them all; what became of each.
///
/// # Errors
/// A chain that was removed meanwhile; packets that could not be sent.
pub(crate) fn stop(
    engine: &Engine,
    floods: Vec<(String, Running)>,
) -> Result<Vec<Flood>, ApiError> {
    // All at once, so that none goes on while another settles.
    for (_, flood) in &floods {
        flood.end();
    }
    let stop = |(chain, flood): (String, Running)| {
        flood.stop(|| counts(engine, &chain))?.map_err(|error| {
            ApiError::failed(format!(
                "the flood of chain `{chain}` ended before its time: {error}"
            ))
        })
    };
    floods.into_iter().map(stop).collect()
}

fn counts(engine: &Engine, name: &str) -> Result<Counts, ApiError> {
    let running = engine.node.chains.expect_while("flooded", name)?;
    let status = status::of(&running, &engine.node.parts.plane);
    Ok(Counts {
        packets_in: status.packets_in,
        policed: status.policed,
        drops: status.drops,
        passed: status.packets_out,
    })
}
