//! Reads all that the monitor needs of a chain, from the counters of the kernel, its workers and its interfaces.

use myelin_dataplane::{Idle, WorkerHandle};
use myelin_linux::netlink::Netlink;
use myelin_linux::schedstat;
use myelin_planner::Plan;
use myelin_policy::sla::{Binding, Counts, Crossing, HopCounts, Reading, Station, WorkerTimes};
use myelin_spec::{OnFailure, Space};

use crate::deploy::Deployed;
use crate::exchange::Form;
use crate::node::Node;
use crate::shaper;

/// Reads a chain. `netlink` tells what interfaces have lost; without it they have lost nothing.
pub(super) fn of(deployed: &Deployed, node: &Node, netlink: Option<&mut Netlink>) -> Reading {
    let form = &deployed.form;
    let hops = hops(form, node);
    // What a black box has now may come out yet.
    let settled: Vec<HopCounts> = hops
        .iter()
        .map(|hop| HopCounts {
            counted: hop.counted.settled(),
            ..hop.clone()
        })
        .collect();
    let door = node.plane.counters().read(form.layout.entry().door_slot());
    let (_, mut sections) = deployed.departures(node);
    let mut counts = deployed.past.counts.clone();
    counts.add(&ends(form, node));
    counts.add_hops(&settled);
    let shaped = form.layout.shaper(node);
    counts.shaper = deployed.past.shaper.drops() + shaped.drops();
    if form.plan.qdisc_shaping().is_some() {
        counts.packets_out = shaper::out(counts.packets_out, &shaped);
    }
    Reading {
        name: form.chain.name.clone(),
        spi: deployed.spi,
        generation: form.generation,
        sla: form.chain.sla.clone(),
        up_s: deployed.started.elapsed().as_secs_f64(),
        counts,
        tells_bytes_out: form.layout.bytes_out(node).is_some(),
        entered: door.packets.saturating_sub(door.policed + door.drops),
        hops,
        waiting: shaped.waiting,
        sojourn: if sections.len() == 1 {
            sections.pop()
        } else {
            None
        },
        crossings: crossings(deployed, node, netlink),
        workers: workers(form, node),
        may_pass_by: form.plan.on_failure == OnFailure::Pass,
    }
}

/// What a form of a chain has counted that is to be freed, whatever is still in it.
pub(crate) fn form_counts(form: &Form, node: &Node) -> Counts {
    let mut counts = ends(form, node);
    counts.add_hops(&hops(form, node));
    counts
}

/// At the front door and at the way out.
fn ends(form: &Form, node: &Node) -> Counts {
    let door = node.plane.counters().read(form.layout.entry().door_slot());
    let (packets_out, _) = form.layout.departures(node);
    Counts {
        packets_in: door.packets,
        bytes_in: door.bytes,
        policed: door.policed,
        policed_bytes: door.policed_bytes,
        door: door.drops,
        packets_out,
        bytes_out: form.layout.bytes_out(node).unwrap_or_default(),
        ..Counts::default()
    }
}

fn hops(form: &Form, node: &Node) -> Vec<HopCounts> {
    let hops = form.plan.hops.iter();
    hops.map(|hop| HopCounts {
        name: hop.name.clone(),
        kind: hop.kind.clone(),
        position: hop.position,
        is_black_box: hop.is_black_box(),
        counted: form.layout.hop(node, hop),
    })
    .collect()
}

fn crossings(deployed: &Deployed, node: &Node, netlink: Option<&mut Netlink>) -> Vec<Crossing> {
    let mut crossings = deployed.form.layout.crossings(node);
    let egress = deployed.place.egress;
    let Some(netlink) = netlink else {
        crossings.retain(|crossing| crossing.station.is_ring());
        return crossings;
    };
    for crossing in &mut crossings {
        if let Station::Inner { interface } = crossing.station {
            crossing.lost = netlink.transmit_losses(interface).unwrap_or_default();
        }
    }
    // One that has been taken away has lost nothing more.
    if let (Ok(port), Ok(lost)) = (node.ports.get(egress), netlink.transmit_losses(egress)) {
        crossings.push(Crossing {
            station: Station::Egress {
                interface: egress,
                name: port.name.clone(),
            },
            leads_to: None,
            lost,
        });
    }
    crossings
}

fn workers(form: &Form, node: &Node) -> Vec<WorkerTimes> {
    let mut firsts = first_functions(&form.plan).into_iter();
    let mut workers = Vec::new();
    for key in form.layout.workers() {
        if let Some(entry) = node.workers.get(key) {
            workers.push(times(&entry.handle, firsts.next()));
        }
    }
    form.layout.read_pipeline(node, &mut |pipeline| {
        for stage in pipeline.stages() {
            workers.push(times(&stage.handle, Some(stage.position)));
        }
    });
    workers
}

/// The function at which packets come to each worker of a chain.
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

fn times(handle: &WorkerHandle, first: Option<u8>) -> WorkerTimes {
    let pid = handle.pid();
    // One that has just ended has no time.
    let scheduled = schedstat::of_process(pid).unwrap_or_default();
    WorkerTimes {
        pid,
        core: handle.config().core,
        polls: handle.config().idle == Idle::Spin,
        restarts: handle.restarts(),
        run_ns: scheduled.run.as_nanos() as u64,
        waited_ns: scheduled.waited.as_nanos() as u64,
        first,
        binding: Binding::Kept,
    }
}
