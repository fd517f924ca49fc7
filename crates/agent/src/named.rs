//! What user functions count by names of their own.

use myelin_dataplane::NamedCount;
use myelin_spec::{FunctionSpec, ServiceChain};

use crate::deploy::Deployed;
use crate::node::Node;

/// Whether a chain has functions that do: asking a worker disturbs it.
pub(crate) fn are_kept(chain: &ServiceChain) -> bool {
    let mut kinds = chain.functions.iter().map(FunctionSpec::kind);
    kinds.any(|kind| kind.kernel.is_none() && !kind.is_black_box())
}

/// All counts of a chain's functions. A worker that does not answer, or is being started again, has counted nothing.
pub(crate) fn of(deployed: &Deployed, node: &Node) -> Vec<NamedCount> {
    let form = &deployed.form;
    if !are_kept(&form.chain) {
        return Vec::new();
    }
    let (spi, generation) = (deployed.spi, form.generation);
    let mut all = Vec::new();
    for key in form.layout.workers() {
        if let Some(mut entry) = node.workers.get(key).filter(|entry| !entry.failed) {
            all.extend(entry.handle.counters(spi, generation).unwrap_or_default());
        }
    }
    form.layout.read_pipeline(node, &mut |pipeline| {
        for stage in pipeline.stages_mut() {
            all.extend(stage.handle.counters(spi, generation).unwrap_or_default());
        }
    });
    all
}
