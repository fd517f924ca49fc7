//! What running chains ask of the cores' idle states (`spec.cpuLatency`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use myelin_linux::pm_qos::{self, CpuLatency};
use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::pool::lock;

/// The limits of the chains that have one, by the chain's name. The kernel gives them back when the agent ends, however it ends.
#[derive(Default)]
pub(crate) struct CpuLatencies(Mutex<BTreeMap<String, CpuLatency>>);

/// The limits of the chains of a file, not held for them yet.
pub(crate) struct Asked(Vec<(String, Option<CpuLatency>)>);

/// Asks the kernel for what the chains of a file want.
pub(crate) fn ask<'a>(chains: impl Iterator<Item = &'a ServiceChain>) -> Result<Asked, ApiError> {
    let asked = chains.map(|chain| {
        let limit = chain
            .cpu_latency_ns
            .map(|ns| limit(chain, ns))
            .transpose()?;
        Ok((chain.name.clone(), limit))
    });
    asked.collect::<Result<_, _>>().map(Asked)
}

fn limit(chain: &ServiceChain, ns: u64) -> Result<CpuLatency, ApiError> {
    let limit_us = u32::try_from(ns.div_ceil(1000)).unwrap_or(u32::MAX);
    pm_qos::idle_driver()
        .and_then(|_| CpuLatency::limit(limit_us))
        .map_err(|error| {
            let (place, name) = (&chain.places.chain, &chain.name);
            ApiError::failed(format!(
                "{place}: chain `{name}`: spec.cpuLatency: {error}; leave it out where nothing can be done about it"
            ))
        })
}

impl CpuLatencies {
    /// The chains are up: from now on these limits are theirs, instead of those they had.
    pub(crate) fn hold(&self, asked: Asked) {
        let mut held = lock(&self.0);
        for (chain, limit) in asked.0 {
            match limit {
                Some(limit) => held.insert(chain, limit),
                None => held.remove(&chain),
            };
        }
    }

    /// The chain is down.
    pub(crate) fn release(&self, chain: &str) {
        lock(&self.0).remove(chain);
    }
}
