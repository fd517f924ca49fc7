//! Joins the paths of a chain with replicas of a function. All paths share the parts in front of
//! the replicas; the last of these splits the flows. Pure.

use myelin_spec::BranchSpec;
use myelin_spec::cut::PartObject;

use crate::plan::SpanPlan;

/// Joins the plans of all paths, which have the same nodes for the functions in front of the
/// function at `position`. Each path keeps its parts from that function on.
///
/// # Errors
/// A replica is on the node of the function in front of it, or two replicas are on one node.
pub fn join(paths: Vec<SpanPlan>, position: usize) -> Result<SpanPlan, String> {
    let mut joined = SpanPlan::default();
    let mut branches: Vec<BranchSpec> = Vec::new();
    for mut path in paths {
        let mut parts = path.parts.iter();
        let at = parts.position(|(_, object)| object.functions.start == position);
        let own = path.parts.split_off(at.unwrap_or_default());
        let own_delays = path.delays_ns.split_off(path.parts.len());
        let branch = find_branch(&path.parts, &own);
        let branch = branch.ok_or("a replica is on the node of the function in front of it")?;
        if branches.iter().any(|other| other.name == branch.name) {
            return Err(format!("two replicas are on the node `{}`", branch.name));
        }
        branches.push(branch);
        if joined.parts.is_empty() {
            joined.parts = path.parts;
            joined.delays_ns = path.delays_ns;
            joined.entrance = path.entrance;
        } else {
            keep_least_latency(&mut joined, &path);
        }
        joined.branches.push(joined.parts.len());
        joined.parts.extend(own);
        joined.delays_ns.extend(own_delays);
    }
    let split = joined.branches.first().and_then(|at| at.checked_sub(1));
    let split = split.and_then(|at| joined.parts.get_mut(at));
    if let Some(part) = split.and_then(|(_, object)| object.part.as_mut()) {
        part.split = branches;
    }
    Ok(joined)
}

/// Describes the branch of a path: its first own part, and how the last common part reaches it.
fn find_branch(
    common: &[(String, PartObject)],
    own: &[(String, PartObject)],
) -> Option<BranchSpec> {
    let (node, first) = own.first()?;
    let (_, last) = common.last()?;
    Some(BranchSpec {
        name: node.clone(),
        path: first.part.as_ref()?.path,
        peer: last.part.as_ref()?.to.clone()?,
    })
}

/// Gives the common parts the least share of the latency of all paths, so that each path keeps its
/// contract.
fn keep_least_latency(joined: &mut SpanPlan, path: &SpanPlan) {
    for ((_, object), (_, other)) in joined.parts.iter_mut().zip(&path.parts) {
        object.latency_ns = object.latency_ns.min(other.latency_ns);
        if let Some((own, other)) = object.part.as_mut().zip(other.part.as_ref()) {
            own.before_ns = own.before_ns.min(other.before_ns);
        }
    }
}
