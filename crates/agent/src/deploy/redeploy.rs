//! Deploys chains again after their interfaces changed: takes a chain down but keeps its name, its
//! file and its booking, and deploys it when all its interfaces are there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use myelin_spec::OnFailure;

use crate::api::{ApiError, ChainStatus};
use crate::deploy::{deploy, take_down};
use crate::node::Node;
use crate::node::chains::RunningChain;
use crate::node::ingress_block::IngressBlock;
use crate::node::waiting::{NamedLinks, WaitingChain};
use crate::pool::lock;

/// Takes these chains down, drops the packets of chains that must not be bypassed, and deploys all
/// chains whose interfaces are there. Does nothing while a request works on one of the chains.
/// `find_links` finds the interfaces of a chain, and says whether the chain should be deployed.
///
/// All chains go down before the first comes up, because chains that share a broken link keep that
/// link.
pub(crate) fn redeploy(
    node: &Node,
    running: &[(String, u32)],
    waiting: &[String],
    read_status: impl Fn(&Arc<RunningChain>) -> ChainStatus,
    mut find_links: impl FnMut(&WaitingChain) -> Option<(NamedLinks, bool)>,
) {
    let is_cancelled = node.watch_cancellation();
    let names = running.iter().map(|(name, _)| name).chain(waiting);
    let names: BTreeSet<String> = names.cloned().collect();
    let Ok(_reserved) = node.chains.reserved.reserve(names.clone(), &|| true) else {
        return;
    };
    for (name, spi) in running {
        let found = node.chains.get(name);
        if let Some(running) = found.filter(|running| running.spi == *spi) {
            let status = read_status(&running);
            suspend(node, running, status);
        }
    }
    let chains = names
        .iter()
        .filter_map(|name| node.chains.get_waiting(name));
    let ready = chains.filter_map(|chain| {
        let (links, is_ready) = find_links(&chain)?;
        chain.guard(&node.parts, links[0].1.as_ref());
        is_ready.then_some((chain, links))
    });
    let mut ready: Vec<_> = ready.collect();
    while let Some((first, _)) = ready.first() {
        let first = Arc::clone(first);
        let is_of_same_file = |chain: &WaitingChain| {
            Arc::ptr_eq(&chain.source, &first.source) && chain.is_forced == first.is_forced
        };
        let (of_file, others) = ready
            .into_iter()
            .partition(|(chain, _)| is_of_same_file(chain));
        ready = others;
        resume_file(node, of_file, &is_cancelled);
    }
}

/// Takes a chain down until the agent can deploy it again.
fn suspend(node: &Node, running: Arc<RunningChain>, status: ChainStatus) {
    let generation = running.generation();
    let Ok((_, ingress, egress)) = generation.ports.kernel_ports() else {
        return;
    };
    let indices = [ingress.ifindex, egress.ifindex];
    tracing::warn!(
        chain = running.name,
        faults = status.port_faults.join("; "),
        "the agent takes a chain down until it can deploy the chain again"
    );
    let must_drop = generation.plan.on_failure == OnFailure::Drop;
    let block = (must_drop && lock(&running.links).keeps_ingress)
        .then(|| IngressBlock::replace(&node.parts, &running));
    let block = block.transpose().unwrap_or_else(|error| {
        tracing::error!(chain = running.name, %error, "cannot drop the packets of a waiting chain");
        None
    });
    let waiting = WaitingChain::new(&generation, status, indices, block);
    drop(generation);
    node.chains.insert_waiting(waiting);
    take_down(node, running);
}

/// Deploys chains of one file, together if possible, because they may share functions. Records
/// failures.
fn resume_file(
    node: &Node,
    chains: Vec<(Arc<WaitingChain>, NamedLinks)>,
    is_cancelled: &dyn Fn() -> bool,
) {
    let all: Vec<_> = chains.iter().map(|(chain, _)| &**chain).collect();
    if all.len() > 1 && resume(node, &all, is_cancelled).is_ok() {
        return;
    }
    for (chain, links) in chains {
        if let Err(error) = resume(node, &[&chain], is_cancelled) {
            tracing::warn!(chain = chain.chain.name, %error, "cannot deploy a chain again");
            chain.record_failure(&error.message, links);
        }
    }
}

fn resume(
    node: &Node,
    waiting: &[&WaitingChain],
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), ApiError> {
    let Some(first) = waiting.first() else {
        return Ok(());
    };
    let mut chains = first.source.parse()?;
    chains.retain(|chain| {
        waiting
            .iter()
            .any(|waiting| waiting.chain.name == chain.name)
    });
    let start = Instant::now();
    deploy(
        node,
        chains,
        &first.source,
        first.is_forced,
        (start, is_cancelled),
    )
    .map(drop)
}
