//! Reads the counters of a chain for the SLA monitor: kernel, workers and interfaces.

use myelin_dataplane::{Idle, WorkerFacts};
use myelin_kernel::{PartArrival, Plane};
use myelin_linux::netlink::Netlink;
use myelin_linux::schedstat;
use myelin_planner::Plan;
use myelin_policy::sla::{Binding, LossCounter, LossPlace, Reading, WorkerTimes};
use myelin_spec::{OnFailure, Sla, Space};

use crate::control::sensor::WorkerSensor;
use crate::node::chains::{Generation, RunningChain};
use crate::node::entrance::Entrance;
use crate::node::wire::Wires;

/// Reads a chain. `netlink` reads the losses of interfaces. Without `netlink` these losses count as
/// zero.
pub(crate) fn read_chain(
    running: &RunningChain,
    plane: &Plane,
    netlink: Option<&mut Netlink>,
) -> Reading {
    let view = running.read(plane);
    let (generation, figures) = (&view.generation, &view.figures);
    let door = figures.door;
    let mut sections = view.sections();
    Reading {
        name: running.name.clone(),
        spi: running.spi,
        generation: generation.number,
        sla: judged_contract(generation),
        up_s: running.started.elapsed().as_secs_f64(),
        counts: view.counts(),
        counts_bytes_out: figures.bytes_out.is_some(),
        missed_at_entry: figures.entered.saturating_sub(door.packets),
        passed_door: door.packets.saturating_sub(door.policed + door.drops),
        hops: generation.hops(figures),
        in_shaper: figures.shaper.waiting,
        sojourn: if sections.len() == 1 {
            sections.pop()
        } else {
            None
        },
        loss_counters: read_loss_counters(generation, netlink),
        workers: read_worker_times(generation),
        // DPDK devices report no losses, so missing packets prove nothing.
        may_bypass: generation.plan.on_failure == OnFailure::Pass
            || generation.chain.is_over_dpdk(),
    }
}

/// The contract for sojourns as they are measured: those of a part begin where packets entered the
/// whole chain, if they carry their time.
fn judged_contract(generation: &Generation) -> Sla {
    let mut sla = generation.chain.sla.clone();
    let part = generation.chain.part.as_ref();
    let circuit = generation.ports.circuit.as_ref();
    let wires = circuit.and_then(|circuit| circuit.wires.as_ref());
    let arrival = wires.and_then(Wires::arrival);
    if arrival.is_some_and(PartArrival::is_stamped)
        && let Some(latency_ns) = sla.latency_ns
        && let Some(before_ns) = part.and_then(|part| part.before_ns)
    {
        sla.latency_ns = Some(latency_ns.saturating_add(before_ns));
    }
    sla
}

fn read_loss_counters(generation: &Generation, netlink: Option<&mut Netlink>) -> Vec<LossCounter> {
    let mut loss_counters = generation.layout.loss_counters();
    let entrance = generation.entrance.as_ref();
    if let Some(interface) = entrance.and_then(Entrance::near) {
        loss_counters.push(LossCounter {
            place: LossPlace::Entry { interface },
            next_position: None,
            lost: 0,
        });
    }
    let Some(netlink) = netlink else {
        loss_counters.retain(|counter| counter.place.is_ring());
        return loss_counters;
    };
    for counter in &mut loss_counters {
        if let LossPlace::Entry { interface } | LossPlace::Inner { interface } = counter.place {
            counter.lost = netlink.transmit_losses(interface).unwrap_or_default();
        }
    }
    let Ok((_, _, egress)) = generation.ports.kernel_ports() else {
        return loss_counters;
    };
    if generation.plan.super_packets {
        // The worker has counted what the interface refused.
        return loss_counters;
    }
    // A removed interface loses no more packets.
    if let Ok(lost) = egress.read_losses(netlink) {
        loss_counters.push(LossCounter {
            place: LossPlace::Egress {
                interface: egress.ifindex,
                name: egress.name.clone(),
            },
            next_position: None,
            lost,
        });
    }
    loss_counters
}

fn read_worker_times(generation: &Generation) -> Vec<WorkerTimes> {
    let mut firsts = first_functions(&generation.plan).into_iter();
    let workers = generation.layout.workers().into_iter();
    let mut times: Vec<_> = workers
        .map(|worker| read_times(&worker.facts, firsts.next()))
        .collect();
    if let Some(pipeline) = generation.layout.pipeline() {
        let stages = pipeline.stages();
        times.extend(stages.map(|(position, facts)| read_times(facts, Some(position))));
    }
    times
}

/// Returns the position of the first function of each worker.
fn first_functions(plan: &Plan) -> Vec<u8> {
    let segments = plan.segments.iter();
    let user = segments.filter(|segment| segment.space == Space::User);
    let positions = user.map(|segment| segment.first_position);
    let is_box = |position: &u8| {
        let mut hops = plan.hops.iter();
        hops.any(|hop| hop.position == *position && hop.is_black_box())
    };
    positions.filter(|position| !is_box(position)).collect()
}

fn read_times(facts: &WorkerFacts, first_position: Option<u8>) -> WorkerTimes {
    let pid = facts.pid();
    // A process that has just ended reports no times.
    let scheduled = schedstat::read_process(pid).unwrap_or_default();
    WorkerTimes {
        pid,
        core: facts.core(),
        is_polling: facts.idle() == Idle::Spin,
        restarts: facts.restarts(),
        run_ns: scheduled.run.as_nanos() as u64,
        waited_ns: scheduled.waited.as_nanos() as u64,
        turn_wait_ns: WorkerSensor::open(facts).read().stats.wait_ns,
        first_position,
        binding: Binding::Kept,
    }
}
