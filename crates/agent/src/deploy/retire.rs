//! Step 7: ends a live change. Drains the previous generation, keeps its counts and removes it.
//!
//! Two objects stay after their last use, because their removal would lose packets in a link's
//! ring: the front door at XDP (until the chain ends) and NAPI behind its egress (until its end
//! hosts end). The door at XDP lets packets of other chains pass.

use std::time::{Duration, Instant};

use myelin_kernel::{CounterLine, Plane};

use crate::control::actuator::RealtimeGuard;
use crate::deploy::switch_on::SwitchedOn;
use crate::node::chains::{Generation, RunningChain, kernel_hook};
use crate::node::layout::{FrontDoor, GenerationCounts};
use crate::node::quiesce;
use crate::pool::wait_until_unique;

/// Longest time that a packet waits between driver and tcx, in a CPU's backlog while softirqs wait
/// for a thread.
const BACKLOG_LIMIT: Duration = Duration::from_millis(10);
/// After this time without counter changes, missing packets count as lost. These counters do not
/// include losses at socket rings.
const QUIET_TIME: Duration = Duration::from_millis(30);
/// The quiet time of a chain with black boxes, whose programs may wait for a core.
const QUIET_TIME_WITH_BLACK_BOX: Duration = Duration::from_millis(300);
/// Longest wait for the previous generation, even while its counters change.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

/// Packet counts of one generation.
#[derive(Debug, PartialEq, Eq)]
struct DrainCounts {
    entered: u64,
    /// Packets that left at the egress or were dropped.
    left: u64,
    /// A sum of counters that grows with every step of a packet.
    steps: u64,
}

/// Waits until the previous generations of these chains are empty. Returns for each live change the
/// time since its switch to the new generation; `None` for a new chain.
pub(crate) fn drain_previous(plane: &Plane, switched: &[SwitchedOn]) -> Vec<Option<Duration>> {
    if !switched.iter().any(|chain| chain.is_change) {
        return vec![None; switched.len()];
    }
    // Wait once for all chains. If this fails, `drain` still waits for the counters of each chain.
    wait_for_packets(plane);
    let drained = switched.iter().map(|chain| {
        let previous = chain
            .running
            .change(|generations| generations.previous.clone())?;
        let current = chain.running.generation();
        if kernel_hook(&previous.plan) != kernel_hook(&current.plan) {
            std::thread::sleep(BACKLOG_LIMIT.saturating_sub(chain.since.elapsed()));
        }
        drain(plane, &previous);
        Some(chain.since.elapsed())
    });
    drained.collect()
}

/// Drains the previous generation of a chain, keeps its counts and frees it. Returns the packets
/// that left it, to the next node if it had another path.
pub(crate) fn retire_previous(plane: &Plane, running: &RunningChain) -> Option<u64> {
    let (previous, current) =
        running.change(|generations| (generations.previous.clone(), generations.current.clone()));
    let previous = previous?;
    drain(plane, &previous);
    let ends_path = previous.ports.made_by != current.ports.made_by;
    let sent = ends_path.then(|| drain_exit(plane, &previous)).flatten();
    if let FrontDoor::Kernel(loaded) = current.layout.front_door() {
        if let Err(error) = plane.drop_old_entry(loaded) {
            tracing::warn!(chain = running.name, %error, "cannot remove the entry of the previous generation: its late packets are dropped");
        }
        if let Ok(entrance) = current.entrance() {
            entrance.door.door().set_fast_path(loaded);
        }
    }
    let figures = previous.read(plane);
    let ended = running.change(|generations| {
        generations.ended.add(&previous, &figures, &current.plan);
        generations.previous.take()
    });
    drop(ended);
    drop(wait_until_unique(previous));
    Some(sent.unwrap_or(figures.packets_out))
}

/// Waits until the exit link of a drained generation is empty. Returns the packets that left to the
/// next node.
fn drain_exit(plane: &Plane, previous: &Generation) -> Option<u64> {
    let wires = previous.ports.circuit.as_ref()?.wires.as_ref()?;
    let mut exit = wires.exit()?;
    let mut last_change = Instant::now();
    while exit.total() < previous.read(plane).packets_out && last_change.elapsed() < QUIET_TIME {
        std::thread::sleep(CHECK_INTERVAL);
        let now = wires.exit()?;
        if now != exit {
            last_change = Instant::now();
        }
        exit = now;
    }
    Some(exit.sent.packets)
}

/// Waits until a part without new packets is empty, with its exit link.
pub(crate) fn drain_part(plane: &Plane, generation: &Generation) {
    wait_for_packets(plane);
    drain(plane, generation);
    drain_exit(plane, generation);
}

/// Waits until all programs that ran at the last change have ended.
pub(crate) fn wait_for_packets(plane: &Plane) {
    if let Err(error) = quiesce::wait_for_programs(plane) {
        // Programs run for microseconds.
        tracing::warn!(%error, "cannot wait for programs to end: sleeping instead");
        std::thread::sleep(QUIET_TIME);
    }
}

fn drain(plane: &Plane, previous: &Generation) {
    let _realtime = RealtimeGuard::begin();
    let start = Instant::now();
    let mut seen = read_counts(plane, previous);
    let mut last_change = start;
    // A black box may drop or multiply packets.
    let has_box = previous.plan.black_boxes().next().is_some();
    let stable = if has_box {
        QUIET_TIME_WITH_BLACK_BOX
    } else {
        QUIET_TIME
    };
    let has_packets = |counts: &DrainCounts| {
        counts.left < counts.entered || has_box && counts.left != counts.entered
    };
    while has_packets(&seen) && last_change.elapsed() < stable && start.elapsed() < DRAIN_LIMIT {
        std::thread::sleep(CHECK_INTERVAL);
        let now = read_counts(plane, previous);
        if now.steps != seen.steps {
            last_change = Instant::now();
        }
        seen = now;
    }
}

fn read_counts(plane: &Plane, generation: &Generation) -> DrainCounts {
    let mut figures = generation.read(plane);
    if generation.plan.qdisc_shaping().is_some() {
        // The program had counted these packets as sent before the full queue dropped them.
        figures.shaper.full = 0;
    }
    if generation.continues_door_counts() {
        enter_at_first_function(&mut figures);
    }
    count_packets(&figures)
}

/// Replaces the counts of a front door that all generations share: its packets enter the next
/// generation already. It passes a packet to the first function at once.
fn enter_at_first_function(figures: &mut GenerationCounts) {
    figures.entered = figures.hops.first().map_or(0, |first| first.packets_in);
    figures.door = CounterLine::default();
}

fn count_packets(figures: &GenerationCounts) -> DrainCounts {
    let (door, out, drops) = (figures.door, figures.packets_out, figures.shaper.drops());
    let mut counts = DrainCounts {
        entered: figures.entered,
        left: door.drops + door.policed + out + drops,
        steps: figures.entered + door.packets + door.drops + out + drops + figures.shaper.delayed,
    };
    for hop in &figures.hops {
        // Packets that a function creates must leave too. Packets held by a black box are still
        // inside.
        let dropped = hop.drops - hop.held;
        counts.entered += hop.emitted;
        counts.left += dropped;
        counts.steps += hop.packets_in + dropped + hop.emitted;
    }
    counts
}

#[cfg(test)]
mod tests {
    use myelin_packet::HopCounters;

    use super::*;

    #[test]
    fn a_shared_front_door_does_not_keep_a_drained_generation_alive() {
        let counts = |shared_packets: u64, packets_out: u64| {
            let first = HopCounters {
                packets_in: 40,
                drops: 1,
                ..HopCounters::default()
            };
            let mut figures = GenerationCounts {
                entered: shared_packets,
                door: CounterLine {
                    packets: shared_packets,
                    policed: 7,
                    ..CounterLine::default()
                },
                hops: vec![first],
                packets_out,
                ..GenerationCounts::default()
            };
            enter_at_first_function(&mut figures);
            count_packets(&figures)
        };
        let drained = counts(1000, 39);
        assert_eq!((drained.entered, drained.left), (40, 40));
        // Packets of the next generation are no step of this one.
        assert_eq!(counts(1100, 39), drained);
        let inside = counts(1000, 38);
        assert!(inside.left < inside.entered && inside != drained);
    }
}
