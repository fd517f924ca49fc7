//! What user functions count by names of their own.

use myelin_dataplane::NamedCount;
use myelin_spec::{FunctionSpec, ServiceChain};

use crate::node::chains::Form;

/// Whether a chain has functions that do: asking a worker disturbs it.
fn are_kept(chain: &ServiceChain) -> bool {
    let mut kinds = chain.functions.iter().map(FunctionSpec::kind);
    kinds.any(|kind| kind.kernel.is_none() && !kind.is_black_box())
}

/// All counts of a form's functions. A worker that does not answer, or that a request holds, is left out.
pub(super) fn of(spi: u32, form: &Form) -> Vec<NamedCount> {
    if !are_kept(&form.chain) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for worker in form.layout.workers() {
        let Some(mut entry) = worker.idle_entry() else {
            continue;
        };
        if worker.has_failed() {
            continue;
        }
        let counted = entry.handle().counters(spi, form.generation);
        all.extend(counted.unwrap_or_default());
        if let Some(pipeline) = entry.pipeline_mut(spi, form.generation) {
            for stage in pipeline.stages_mut() {
                let counted = stage.handle.counters(spi, form.generation);
                all.extend(counted.unwrap_or_default());
            }
        }
    }
    all
}
