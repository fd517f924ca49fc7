//! Limits of the cores' idle states that running chains request (`spec.cpuLatency`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use myelin_linux::pm_qos::CpuLatency;
use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::control::actuator;
use crate::pool::lock;

/// The limits of running chains, by chain name. The kernel drops the limits when the agent ends.
#[derive(Default)]
pub(crate) struct CpuLatencies(Mutex<BTreeMap<String, CpuLatency>>);

/// The requested limits of a file's chains, before the chains are up.
pub(crate) struct RequestedLimits(Vec<(String, Option<CpuLatency>)>);

/// Requests the limits of a file's chains from the kernel.
pub(crate) fn request_limits<'a>(
    chains: impl Iterator<Item = &'a ServiceChain>,
) -> Result<RequestedLimits, ApiError> {
    let requested = chains.map(|chain| {
        let limit = chain
            .cpu_latency_ns
            .map(|ns| request_limit(chain, ns))
            .transpose()?;
        Ok((chain.name.clone(), limit))
    });
    requested.collect::<Result<_, _>>().map(RequestedLimits)
}

fn request_limit(chain: &ServiceChain, ns: u64) -> Result<CpuLatency, ApiError> {
    let limit_us = u32::try_from(ns.div_ceil(1000)).unwrap_or(u32::MAX);
    actuator::limit_wake_up(limit_us).map_err(|error| {
        let (place, name) = (&chain.places.chain, &chain.name);
        ApiError::failed(format!(
            "{place}: chain `{name}`: spec.cpuLatency: {error}; omit `cpuLatency` if the machine cannot provide it"
        ))
    })
}

impl CpuLatencies {
    /// Keeps the new limits of running chains, and drops their earlier limits.
    pub(crate) fn keep(&self, requested: RequestedLimits) {
        let mut held = lock(&self.0);
        for (chain, limit) in requested.0 {
            match limit {
                Some(limit) => held.insert(chain, limit),
                None => held.remove(&chain),
            };
        }
    }

    /// Drops the limit of a removed chain.
    pub(crate) fn release(&self, chain: &str) {
        lock(&self.0).remove(chain);
    }
}
