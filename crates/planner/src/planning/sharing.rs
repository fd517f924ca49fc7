//! The turns of a chain's worker, if it hands its core over to other workers.

use myelin_spec::{Mapping, ServiceChain, SharingPolicy, Space};

use crate::admission::RING;
use crate::error::PlanError;
use crate::plan::{Hop, Plan, SharingPlan};

/// A number with decimals is in millionths.
const MILLION: u64 = 1_000_000;

/// Plans the turns. Returns `None` for a chain without turns.
///
/// # Errors
/// The workers of the chain cannot hand their core over.
pub(super) fn plan(plan: &Plan, chain: &ServiceChain) -> Result<Option<SharingPlan>, PlanError> {
    let policy = resolve(chain);
    if policy == SharingPolicy::Os || !plan.uses(Space::User) {
        return Ok(None);
    }
    let problem = if chain.is_over_dpdk() {
        "DPDK ports poll without a pause"
    } else if chain.worker.super_packets {
        "packet sockets tell no other worker how many packets wait"
    } else {
        let (longest_turn_ns, why) = longest_turn(plan, chain);
        return Ok(Some(SharingPlan {
            policy,
            longest_turn_ns,
            why,
        }));
    };
    let problem = format!(": spec.worker.sharing: {problem}; write `sharing: os`");
    Err(PlanError::new(chain, &chain.places.worker, problem))
}

/// Returns the policy that `auto` stands for.
pub(crate) fn resolve(chain: &ServiceChain) -> SharingPolicy {
    match chain.worker.sharing.policy {
        SharingPolicy::Auto if chain.is_over_dpdk() || chain.worker.super_packets => {
            SharingPolicy::Os
        }
        SharingPolicy::Auto => SharingPolicy::Deadline,
        policy => policy,
    }
}

/// Returns the longest turn of the chain's processes, ns, and the reason.
fn longest_turn(plan: &Plan, chain: &ServiceChain) -> (Option<u64>, String) {
    let spec = &chain.worker.sharing;
    let hops = plan.hops.iter().filter(|hop| hop.space == Space::User);
    let costs = hops.map(Hop::total_ns);
    let packet_ns = if plan.mapping == Mapping::Compact {
        costs.sum()
    } else {
        costs.fold(0.0, f64::max)
    };
    let turn_ns = |packets: u64| Some((packet_ns * packets as f64).round() as u64);
    match spec.policy {
        SharingPolicy::Os => (None, String::new()),
        SharingPolicy::Cooperative => {
            let (reads, batch) = (u64::from(spec.reads), u64::from(chain.worker.batch));
            let why = format!("{reads} batches of up to {batch} packets");
            (turn_ns(reads * batch), why)
        }
        SharingPolicy::RoundRobin => (Some(spec.slice_ns), "the slice".to_owned()),
        SharingPolicy::Unis => {
            let packets = u64::from(RING) * u64::from(spec.gamma) / MILLION;
            let why = format!("{packets} packets, the share `gamma` of a ring");
            (turn_ns(packets), why)
        }
        SharingPolicy::Deadline | SharingPolicy::Auto => {
            let why = "as long as the deadlines of the others' packets allow".to_owned();
            (None, why)
        }
    }
}
