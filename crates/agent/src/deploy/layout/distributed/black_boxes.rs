//! The black boxes of a chain in mapping `distributed`.

use std::collections::BTreeSet;
use std::sync::Arc;

use myelin_kernel::BlackBoxSlots;
use myelin_planner::Hop;
use myelin_spec::{FunctionConfig, FunctionSpec};

use crate::api::ApiError;
use crate::deploy::layout::LayoutJob;
use crate::node::Parts;
use crate::node::black_box::{self, BlackBox, BlackBoxDirs, BlackBoxLease, BlackBoxTurns};
use crate::node::sandbox::Sandbox;

/// The cores whose turns the chain's black boxes take.
pub(super) fn shared_cores(job: LayoutJob<'_>) -> BTreeSet<u32> {
    let functions = job.chain.functions.iter();
    let core = |function: &FunctionSpec| match &function.config {
        FunctionConfig::External(config) if config.sharing.hands_over() => config.core,
        _ => None,
    };
    functions.filter_map(core).collect()
}

/// Starts a black box, which takes turns if its function names a policy. `counters` are those of
/// the packets that enter and leave it.
pub(super) fn start_black_box(
    parts: &Parts,
    job: LayoutJob<'_>,
    hop: &Hop,
    sandbox: &Sandbox,
    (entered, slots): (Option<u32>, BlackBoxSlots),
) -> Result<BlackBoxLease, ApiError> {
    let function = &job.chain.functions[usize::from(hop.position)];
    let (FunctionConfig::External(config), Some(entered)) = (&function.config, entered) else {
        return Err(ApiError::failed(format!(
            "`{}` is not a black box",
            hop.name
        )));
    };
    let key = black_box::Key {
        spi: job.spi,
        generation: job.generation,
        position: hop.position,
    };
    let dirs = BlackBoxDirs {
        run_dir: &parts.run_dir,
        cgroup: &parts.cgroup,
        journal: &parts.journal,
    };
    let chain = &job.chain.name;
    let turns = BlackBoxTurns {
        cores: Arc::clone(&parts.cores),
        owner: job.chain.owner().to_owned(),
        name: format!("{chain}.{}", hop.name),
        core: config.core,
        sharing: config.sharing.clone(),
        key,
        group: String::new(),
        entered,
        left: [slots.out, slots.back],
        ring: config.ring,
        cost_ps: measured_cost_ps(job, &hop.name),
        budget_ns: job.plan.sla.latency_ns,
        has_quota: function.sandbox.limits.cpu_millicores.is_some(),
    };
    let black_box = parts.black_boxes.acquire(&key, || {
        BlackBox::start(dirs, (chain, function, config), turns, sandbox)
    })?;
    if config.sharing.hands_over() {
        parts.cores.join(&(black_box.shared() as Arc<_>));
    }
    Ok(black_box)
}

/// The measured cost of a packet in a black box that takes turns, ps.
fn measured_cost_ps(job: LayoutJob<'_>, function: &str) -> Option<u64> {
    let mut plans = job.plan.black_box_sharing.iter();
    let plan = plans.find(|plan| plan.function == function)?;
    plan.cost_ns.map(|ns| (ns * 1e3).round() as u64)
}
