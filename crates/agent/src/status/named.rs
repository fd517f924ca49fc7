//! Reads the named counters of user functions.

use myelin_dataplane::NamedCount;
use myelin_spec::{FunctionSpec, ServiceChain};

use crate::node::chains::Generation;

/// Whether functions of a chain keep named counters. If not, the agent sends no query to the
/// worker.
fn has_named_counters(chain: &ServiceChain) -> bool {
    let mut kinds = chain.functions.iter().map(FunctionSpec::kind);
    kinds.any(|kind| kind.kernel.is_none() && !kind.is_black_box())
}

/// Reads all named counters of a generation. Skips a worker that does not answer or that a request
/// holds.
pub(super) fn read(spi: u32, generation: &Generation) -> Vec<NamedCount> {
    if !has_named_counters(&generation.chain) {
        return Vec::new();
    }
    let mut counters = Vec::new();
    for worker in generation.layout.workers() {
        let Some(mut state) = worker.try_lock_state() else {
            continue;
        };
        if worker.has_failed() {
            continue;
        }
        let counted = state.handle().counters(spi, generation.number);
        counters.extend(counted.unwrap_or_default());
        if let Some(pipeline) = state.pipeline_mut(spi, generation.number) {
            for stage in pipeline.stages_mut() {
                let counted = stage.handle.counters(spi, generation.number);
                counters.extend(counted.unwrap_or_default());
            }
        }
    }
    counters
}
