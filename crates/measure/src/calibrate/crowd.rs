//! Measures bursts at one port. The packets of a burst alternate between several chains, a *crowd*.
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

/// Number of chains in a crowd.
const CHAINS: usize = 8;
/// Number of functions of each chain, for each of the two crowds.
const FUNCTIONS: [usize; 2] = [1, 16];

/// Costs in crowds.
pub(super) struct CrowdCosts {
    /// Costs of packets in bursts.
    pub(super) in_burst: InBurst,
    /// By crowd and frame: the slowest long burst of a round, and the median long burst, ns.
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
    let core = Machine::with_end_hosts(affinity::highest_core() + 1).default_core() as usize;
    let before = affinity::get(0)?;
    let Some(&here) = before.iter().find(|candidate| **candidate != core) else {
        return Ok(None);
    };
    let blocker = CoreBlocker::new(core, false);
    if blocker.block().is_err() {
        return Ok(None);
    }
    blocker.release();
    let measure_space = |space| -> Result<Option<_>> {
        let Some(testbed) = Testbed::new(chains, space, core)? else {
            return Ok(None);
        };
        // Changes only this thread: the agent's own cores decide the cores of chains.
        affinity::set(0, &[here])?;
        let measured = testbed.measure(&blocker, rounds, monitor);
        affinity::set(0, &before)?;
        measured.map(Some)
    };
    let figures =
        measure_space(Space::Kernel).and_then(|kernel| Ok((kernel, measure_space(Space::User)?)));
    let (Some((kernel, _)), Some((user, dropped_ns))) = figures? else {
        return Ok(None);
    };
    let slowest_ns = kernel.iter().chain(&user);
    let slowest_ns = slowest_ns.flat_map(|bursts| bursts.slowest_ns);
    Ok(Some(CrowdCosts {
        slowest_ns: slowest_ns.collect(),
        in_burst: compute_burst_costs(&kernel, &user, dropped_ns, single),
    }))
}

/// Costs of both crowds in one space.
type Crowds = [BurstCosts; FUNCTIONS.len()];

fn compute_burst_costs(
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
            let known =
                |count: usize| sum_single_costs_ns(single, space, count, FRAMES[frame] as u64);
            let calls = (CHAINS * (FUNCTIONS[1] - FUNCTIONS[0])) as f64;
            (functions - known(FUNCTIONS[1]) + known(FUNCTIONS[0])) / calls
        });
        Cost::new(figures.fold(0.0, f64::max), 0.0)
    };
    let worker_cost = |frame: usize| {
        let function_ns = sum_single_costs_ns(single, Space::User, 1, FRAMES[frame] as u64);
        user[0].each_ns[frame] - function_ns / CHAINS as f64
    };
    // The cost of a single packet up to the front door, plus the cost from there to the worker's
    // ring.
    let port_cost = |frame: usize| {
        single.to_door[frame] + (user[0].sent_ns[frame] - dropped_ns[frame]).max(0.0)
    };
    InBurst {
        kernel: fit_clamped(kernel[0].each_ns),
        port: fit_clamped(std::array::from_fn(port_cost)),
        worker: fit_clamped(std::array::from_fn(worker_cost)),
        kernel_function: extra_cost(kernel, Space::Kernel),
        user_function: extra_cost(user, Space::User),
    }
}

/// Sums the costs of a single packet in all functions of a crowd, ns. Each chain has `count`
/// functions.
fn sum_single_costs_ns(
    single: &SinglePacketCosts<'_>,
    space: Space,
    count: usize,
    bytes: u64,
) -> f64 {
    let functions = (0..CHAINS).flat_map(|chain| functions(chain, count));
    functions
        .map(|(kind, _)| (single.function)(kind, space).at_ns(bytes))
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
        // A function costs 10 ns for a single packet, and 30 ns more in a crowd. The larger crowd
        // has 15 more functions in each chain.
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
        let costs = compute_burst_costs(&crowds(800.0), &crowds(700.0), [600.0; 2], &single);
        let at = |cost: Cost| cost.at_ns(FRAMES[0] as u64).round() as u64;
        assert_eq!(
            (at(costs.kernel_function), at(costs.user_function)),
            (30, 30)
        );
        // The kernel's cost contains one function, the worker's cost contains no function.
        assert_eq!((at(costs.kernel), at(costs.worker)), (800, 690));
        assert_eq!(at(costs.port), 500 + 300);
        // With noise, a crowd may appear to cost less.
        let noise = compute_burst_costs(
            &[bursts(800.0), bursts(850.0)],
            &crowds(700.0),
            [600.0; 2],
            &single,
        );
        assert_eq!(noise.kernel_function, Cost::default());
    }
}
