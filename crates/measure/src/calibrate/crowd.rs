//! Measures bursts at one port whose packets alternate between several chains, a crowd.
//!
//! A program that runs repeatedly has its code and state in the caches. The chains of a crowd evict
//! the code and state of each other. So a function costs more in a crowd, and a bound must use this
//! cost.

mod testbed;

use myelin_linux::affinity;
use myelin_planner::costs::InBurst;
use myelin_planner::{Cost, Machine};
use myelin_spec::Space;
use testbed::{Testbed, functions};

use super::bursts::BurstCosts;
use super::{Chains, FRAMES, Monitor, Result, fit_clamped};
use crate::stall::CoreBlocker;

/// Chains of a crowd.
const CHAINS: usize = 8;
/// Functions of each chain in the two crowds.
const FUNCTIONS: [usize; 2] = [1, 16];

/// Costs in crowds.
pub(super) struct CrowdCosts {
    /// Costs of packets in bursts.
    pub(super) in_burst: InBurst,
    /// By crowd and frame, the slowest long burst of a round and the median long burst, ns.
    pub(super) slowest_ns: Vec<(f64, f64)>,
}

/// Known costs of single packets.
pub(super) struct SinglePacketCosts<'a> {
    /// Cost of a function by kind and space, including its call.
    pub(super) function: &'a dyn Fn(&str, Space) -> Cost,
    /// Cost from a frame's arrival at XDP to the end of the front door, ns.
    pub(super) to_door: [f64; FRAMES.len()],
}

/// Measures the costs. `None` with only one core, without real-time priority, or without threads
/// for receive work (before Linux 5.12).
pub(super) fn measure(
    chains: &dyn Chains,
    rounds: usize,
    single: &SinglePacketCosts<'_>,
    monitor: &Monitor<'_>,
) -> Result<Option<CrowdCosts>> {
    let core = Machine::with_end_hosts(affinity::count_cores()).default_core() as usize;
    let before = affinity::get(0)?;
    let Some(&here) = before.iter().find(|one| **one != core) else {
        return Ok(None);
    };
    let blocker = CoreBlocker::new(core, false);
    if blocker.block().is_err() {
        return Ok(None);
    }
    blocker.release();
    let bursts_in = |space| -> Result<Option<_>> {
        let Some(testbed) = Testbed::new(chains, space, core)? else {
            return Ok(None);
        };
        // Changes only this thread: the agent's own cores decide the cores of chains.
        affinity::set(0, &[here])?;
        let measured = testbed.measure(&blocker, rounds, monitor);
        affinity::set(0, &before)?;
        measured.map(Some)
    };
    let figures = bursts_in(Space::Kernel).and_then(|kernel| Ok((kernel, bursts_in(Space::User)?)));
    let (Some((kernel, _)), Some((user, dropped_ns))) = figures? else {
        return Ok(None);
    };
    let slowest_ns = kernel.iter().chain(&user);
    let slowest_ns = slowest_ns.flat_map(|bursts| bursts.slowest_ns);
    Ok(Some(CrowdCosts {
        slowest_ns: slowest_ns.collect(),
        in_burst: in_burst(&kernel, &user, dropped_ns, single),
    }))
}

/// Costs of both crowds of a space.
type Crowds = [BurstCosts; FUNCTIONS.len()];

fn in_burst(
    kernel: &Crowds,
    user: &Crowds,
    dropped_ns: [f64; FRAMES.len()],
    single: &SinglePacketCosts<'_>,
) -> InBurst {
    let frames = || 0..FRAMES.len();
    let extra_cost = |crowds: &Crowds, space: Space| {
        let [few, many] = crowds;
        let figures = frames().map(|frame| {
            let functions = (many.each_ns[frame] - few.each_ns[frame]) * CHAINS as f64;
            let known = |count: usize| known_ns(single, space, count, FRAMES[frame] as u64);
            let calls = (CHAINS * (FUNCTIONS[1] - FUNCTIONS[0])) as f64;
            (functions - known(FUNCTIONS[1]) + known(FUNCTIONS[0])) / calls
        });
        Cost::new(figures.fold(0.0, f64::max), 0.0)
    };
    let in_worker = |frame: usize| {
        let function_ns = known_ns(single, Space::User, 1, FRAMES[frame] as u64);
        user[0].each_ns[frame] - function_ns / CHAINS as f64
    };
    // Up to the front door the cost of a single packet, then the cost up to the worker's ring.
    let at_port = |frame: usize| {
        single.to_door[frame] + (user[0].sent_ns[frame] - dropped_ns[frame]).max(0.0)
    };
    InBurst {
        kernel: fit_clamped(kernel[0].each_ns),
        port: fit_clamped(std::array::from_fn(at_port)),
        worker: fit_clamped(std::array::from_fn(in_worker)),
        kernel_function: extra_cost(kernel, Space::Kernel),
        user_function: extra_cost(user, Space::User),
    }
}

/// Cost of the functions of all chains of a crowd for single packets, ns. Each chain has `count`.
fn known_ns(single: &SinglePacketCosts<'_>, space: Space, count: usize, bytes: u64) -> f64 {
    let all = (0..CHAINS).flat_map(|chain| functions(chain, count));
    all.map(|(kind, _)| (single.function)(kind, space).at_ns(bytes))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_cost_is_the_difference_to_single_packets() {
        let bursts = |each: f64| BurstCosts {
            sent_ns: [900.0; 2],
            each_ns: [each, each + 100.0],
            slowest_ns: [(1.0, 1.0); 2],
        };
        // A function costs 10 ns for a single packet and 30 ns more in a crowd; the larger crowd
        // has 15 more in each chain.
        let function = |kind: &str, _| {
            assert!(["forward", "xor", "firewall", "monitor", "flow-tracker"].contains(&kind));
            Cost::new(10.0, 0.0)
        };
        let single = SinglePacketCosts {
            function: &function,
            to_door: [500.0; 2],
        };
        let many = 15.0 * (10.0 + 30.0);
        let crowds = |each: f64| [bursts(each), bursts(each + many)];
        let costs = in_burst(&crowds(800.0), &crowds(700.0), [600.0; 2], &single);
        let at = |cost: Cost| cost.at_ns(FRAMES[0] as u64).round() as u64;
        assert_eq!(
            (at(costs.kernel_function), at(costs.user_function)),
            (30, 30)
        );
        // The kernel's cost contains one function, the worker's none.
        assert_eq!((at(costs.kernel), at(costs.worker)), (800, 690));
        assert_eq!(at(costs.port), 500 + 300);
        // With noise, a crowd may appear to cost less.
        let noise = in_burst(
            &[bursts(800.0), bursts(850.0)],
            &crowds(700.0),
            [600.0; 2],
            &single,
        );
        assert_eq!(noise.kernel_function, Cost::default());
    }
}
