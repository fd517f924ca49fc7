//! What packets cost that come in bursts and belong to several chains in turn, at one port, to the far end.
//!
//! A program that is run again and again has its code and state in the caches next to the core; a crowd of chains drives each other's out. So a function
//! costs more there than alone, and a bound must count on the crowd.

mod place;

use myelin_linux::affinity;
use myelin_planner::costs::InBurst;
use myelin_planner::{Cost, Machine};
use myelin_spec::Space;
use place::{Place, functions};

use super::bursts::Bursts;
use super::{Chains, FRAMES, Monitor, Result, at_least_nothing};
use crate::stall::CoreBlocker;

/// Chains of a crowd.
const CHAINS: usize = 8;
/// Functions of each chain of the one crowd and of the other.
const FUNCTIONS: [usize; 2] = [1, 16];
/// What was measured.
pub(super) struct Crowd {
    /// What packets in bursts cost.
    pub(super) in_burst: InBurst,
    /// By crowd and frame, how long the slowest of a round's long bursts takes, and the burst in the middle, ns.
    pub(super) slowest_ns: Vec<(f64, f64)>,
}

/// What is known of packets that come alone: of a function of that kind there, its call included; and from a frame's arrival at XDP to the door's end.
pub(super) struct Alone<'a> {
    pub(super) function: &'a dyn Fn(&str, Space) -> Cost,
    pub(super) to_door: [f64; FRAMES.len()],
}

/// Measures. `None` where one core is all there is, or the thread that keeps a core may not; or where receive work has no threads (before Linux 5.12).
pub(super) fn measure(
    chains: &dyn Chains,
    rounds: usize,
    alone: &Alone<'_>,
    monitor: &Monitor<'_>,
) -> Result<Option<Crowd>> {
    let core = Machine::with_end_hosts(affinity::cores()).default_core() as usize;
    let before = affinity::get(0)?;
    let Some(&here) = before.iter().find(|one| **one != core) else {
        return Ok(None);
    };
    let blocker = CoreBlocker::new(core, false);
    if blocker.block().is_err() {
        return Ok(None);
    }
    blocker.release();
    let of = |space| -> Result<Option<_>> {
        let Some(place) = Place::of(chains, space, core)? else {
            return Ok(None);
        };
        // The agent's own threads stay on all cores, and chains are told of these.
        affinity::set(0, &[here])?;
        let found = place.measure(&blocker, rounds, monitor);
        affinity::set(0, &before)?;
        found.map(Some)
    };
    let found = of(Space::Kernel).and_then(|kernel| Ok((kernel, of(Space::User)?)));
    let (Some((kernel, _)), Some((user, dropped_ns))) = found? else {
        return Ok(None);
    };
    let slowest_ns = kernel.iter().chain(&user);
    let slowest_ns = slowest_ns.flat_map(|bursts| bursts.slowest_ns);
    Ok(Some(Crowd {
        slowest_ns: slowest_ns.collect(),
        in_burst: in_burst(&kernel, &user, dropped_ns, alone),
    }))
}

/// By the crowds of a space, one after the other.
type Crowds = [Bursts; FUNCTIONS.len()];

fn in_burst(
    kernel: &Crowds,
    user: &Crowds,
    dropped_ns: [f64; FRAMES.len()],
    alone: &Alone<'_>,
) -> InBurst {
    let frames = || 0..FRAMES.len();
    let more = |crowds: &Crowds, space: Space| {
        let [few, many] = crowds;
        let figures = frames().map(|frame| {
            let functions = (many.each_ns[frame] - few.each_ns[frame]) * CHAINS as f64;
            let known = |count: usize| known_ns(alone, space, count, FRAMES[frame] as u64);
            let calls = (CHAINS * (FUNCTIONS[1] - FUNCTIONS[0])) as f64;
            (functions - known(FUNCTIONS[1]) + known(FUNCTIONS[0])) / calls
        });
        Cost::new(figures.fold(0.0, f64::max), 0.0)
    };
    let in_worker = |frame: usize| {
        let function_ns = known_ns(alone, Space::User, 1, FRAMES[frame] as u64);
        user[0].each_ns[frame] - function_ns / CHAINS as f64
    };
    // Up to the door as a packet that comes alone; and from there to the worker's ring.
    let at_port =
        |frame: usize| alone.to_door[frame] + (user[0].sent_ns[frame] - dropped_ns[frame]).max(0.0);
    InBurst {
        kernel: at_least_nothing(kernel[0].each_ns),
        port: at_least_nothing(std::array::from_fn(at_port)),
        worker: at_least_nothing(std::array::from_fn(in_worker)),
        kernel_function: more(kernel, Space::Kernel),
        user_function: more(user, Space::User),
    }
}

/// What the functions of all chains of a crowd cost alone, each chain with so many, ns.
fn known_ns(alone: &Alone<'_>, space: Space, count: usize, bytes: u64) -> f64 {
    let all = (0..CHAINS).flat_map(|chain| functions(chain, count));
    all.map(|(kind, _)| (alone.function)(kind, space).at_ns(bytes))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_a_crowd_costs_what_it_takes_more_than_alone() {
        let bursts = |each: f64| Bursts {
            sent_ns: [900.0; 2],
            each_ns: [each, each + 100.0],
            slowest_ns: [(1.0, 1.0); 2],
        };
        // 10 ns each alone, and 30 more in a crowd of chains with 15 more.
        let function = |kind: &str, _| {
            assert!(["forward", "xor", "firewall", "monitor", "flow-tracker"].contains(&kind));
            Cost::new(10.0, 0.0)
        };
        let alone = Alone {
            function: &function,
            to_door: [500.0; 2],
        };
        let many = 15.0 * (10.0 + 30.0);
        let crowds = |each: f64| [bursts(each), bursts(each + many)];
        let found = in_burst(&crowds(800.0), &crowds(700.0), [600.0; 2], &alone);
        let at = |cost: Cost| cost.at_ns(FRAMES[0] as u64).round() as u64;
        assert_eq!(
            (at(found.kernel_function), at(found.user_function)),
            (30, 30)
        );
        // One function is in the kernel's, none in the worker's.
        assert_eq!((at(found.kernel), at(found.worker)), (800, 690));
        assert_eq!(at(found.port), 500 + 300);
        // A crowd may seem cheaper: that is noise.
        let noise = in_burst(
            &[bursts(800.0), bursts(850.0)],
            &crowds(700.0),
            [600.0; 2],
            &alone,
        );
        assert_eq!(noise.kernel_function, Cost::default());
    }
}
