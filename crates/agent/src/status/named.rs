//! Reads the counters that kinds describe, of user and kernel functions.

use myelin_dataplane::NamedCount;
use myelin_kernel::Plane;
use myelin_spec::{FunctionSpec, ServiceChain, Space};

use crate::node::chains::Generation;
use crate::node::layout::FrontDoor;

/// Whether functions of a chain keep named counters. If not, the agent sends no query to the
/// worker.
fn has_named_counters(chain: &ServiceChain) -> bool {
    let mut kinds = chain.functions.iter().map(FunctionSpec::kind);
    kinds.any(|kind| !kind.counters.is_empty())
}

/// Reads all named counters of a generation. Skips a worker that does not answer or that a request
/// holds.
pub(super) fn read(spi: u32, generation: &Generation, plane: &Plane) -> Vec<NamedCount> {
    if !has_named_counters(&generation.chain) {
        return Vec::new();
    }
    let mut counters = kernel_counters(generation, plane);
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

/// Reads the counters of kernel functions. A program keeps the first counter that its kind
/// describes.
fn kernel_counters(generation: &Generation, plane: &Plane) -> Vec<NamedCount> {
    let FrontDoor::Kernel(loaded) = generation.layout.front_door() else {
        return Vec::new();
    };
    let hops = generation.plan.hops.iter().zip(&generation.chain.functions);
    hops.filter(|(hop, _)| hop.space == Space::Kernel)
        .filter_map(|(hop, function)| {
            let (name, _) = function.kind().counters.first()?;
            let line = plane.counters().read(loaded.counter_slot(hop.position)?);
            Some(NamedCount {
                position: hop.position,
                name: (*name).to_owned(),
                count: line.special(),
            })
        })
        .collect()
}
