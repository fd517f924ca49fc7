//! Starts and stops floods of chains while another chain is measured.

use myelin_measure::flood::{ChainCounters, FloodLoad, RunningFlood};
use myelin_metrics::chain::Flood;

use crate::api::{ApiError, FloodRequest, ProbeOptions};
use crate::engine::Engine;
use crate::measure::{self, ProbeTarget};
use crate::status;

/// Starts all floods. Packets have the largest payload of the measurement.
///
/// # Errors
/// A chain without end hosts, a chain that takes no UDP, or a system error.
pub(crate) fn start(
    engine: &Engine,
    floods: &[FloodRequest],
    options: &ProbeOptions,
) -> Result<Vec<(String, RunningFlood)>, ApiError> {
    let rows = options.modes.len() * options.payloads.len();
    let limit = measure::deadline(options).saturating_mul(rows.try_into().unwrap_or(u32::MAX));
    let payload = options.payloads.iter().copied().max().unwrap_or_default();
    let start = |request: &FloodRequest| {
        let chain = &request.chain;
        let refuse = |cause: &dyn std::fmt::Display| {
            ApiError::failed(format!("cannot flood chain `{chain}`: {cause}"))
        };
        let target = ProbeTarget::find(&engine.node, chain).map_err(|error| refuse(&error))?;
        let load = FloodLoad {
            chain: chain.clone(),
            profile: target.chain.sla.profile(),
            times: request.times,
            destination: target.destination(),
            payload_bytes: payload.into(),
            limit,
        };
        let sockets = target.bind_sockets().map_err(|error| refuse(&error))?;
        let running = RunningFlood::start(load, sockets, read_counts(engine, chain)?);
        Ok((chain.clone(), running.map_err(|error| refuse(&error))?))
    };
    floods.iter().map(start).collect()
}

/// Stops all floods and returns the packet counts of each chain.
///
/// # Errors
/// A chain was removed meanwhile, or packets could not be sent.
pub(crate) fn stop(
    engine: &Engine,
    floods: Vec<(String, RunningFlood)>,
) -> Result<Vec<Flood>, ApiError> {
    // Signal all floods before waiting for the first, so that no flood sends while another ends.
    for (_, flood) in &floods {
        flood.request_stop();
    }
    let stop = |(chain, flood): (String, RunningFlood)| {
        flood
            .stop(|| read_counts(engine, &chain))?
            .map_err(|error| {
                ApiError::failed(format!("the flood of chain `{chain}` ended early: {error}"))
            })
    };
    floods.into_iter().map(stop).collect()
}

fn read_counts(engine: &Engine, name: &str) -> Result<ChainCounters, ApiError> {
    let running = engine.node.chains.expect_during("flooded", name)?;
    let status = status::read(&running, &engine.node.parts.plane);
    Ok(ChainCounters {
        packets_in: status.packets_in,
        policed: status.policed,
        drops: status.drops,
        passed: status.packets_out,
    })
}
