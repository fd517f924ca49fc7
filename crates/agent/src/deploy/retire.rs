//! Step 7 of the road, the end of a live change: the last packets leave the former form, its figures are kept, and it goes.
//!
//! Two things stay when a chain no longer needs them, because to take them away would lose what waits in a link's ring:
//! the front door's place at XDP, until the chain goes, and NAPI behind its egress, until its end hosts go. The XDP door lets
//! pass what is not its own.

use std::time::{Duration, Instant};

use myelin_kernel::Plane;

use crate::deploy::switch_on::SwitchedOn;
use crate::node::chains::{Form, Running, kernel_hook};
use crate::node::layout::FrontDoor;
use crate::node::quiesce::{self, Urgent};
use crate::pool::alone;

/// How long packets on their way from the driver to tcx may take: a CPU's backlog when its softirqs wait for a thread.
const BACKLOG: Duration = Duration::from_millis(10);
/// Counters that stand still this long tell that what is missing was lost: a socket's ring that overflowed is counted nowhere.
const STILL: Duration = Duration::from_millis(30);
/// The same where a black box may have them: a program that waits for its turn on a busy machine.
const STILL_IN_BOX: Duration = Duration::from_millis(300);
/// Longest wait for the old generation, also when its counters never stand still.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Packets of one generation.
struct Tally {
    entered: u64,
    /// Out again: at the egress, or dropped.
    gone: u64,
    /// Grows with every step of a packet.
    steps: u64,
}

/// Waits until no packet is left in the former forms of these chains. Returns for each how long the exchange took, from the moment when
/// packets could see the new form; none for one that came up.
pub(crate) fn drain_former(plane: &Plane, all: &[SwitchedOn]) -> Vec<Option<Duration>> {
    if !all.iter().any(|one| one.is_change) {
        return vec![None; all.len()];
    }
    // Once for all of them. Should it fail, each waits for its own counters all the same.
    wait_for_packets(plane);
    let drained = all.iter().map(|one| {
        let former = one.running.change(|versions| versions.former.clone())?;
        let form = one.running.form();
        if kernel_hook(&former.plan) != kernel_hook(&form.plan) {
            std::thread::sleep(BACKLOG.saturating_sub(one.since.elapsed()));
        }
        drain(plane, &former);
        Some(one.since.elapsed())
    });
    drained.collect()
}

/// Keeps the figures of the former form of a chain, and frees it after its last packets.
pub(crate) fn retire_former(plane: &Plane, running: &Running) {
    let (former, form) =
        running.change(|versions| (versions.former.clone(), versions.form.clone()));
    let Some(former) = former else {
        return;
    };
    drain(plane, &former);
    if let FrontDoor::Kernel(entry) = form.layout.front_door() {
        if let Err(error) = plane.drop_old_entry(entry) {
            tracing::warn!(chain = running.name, %error, "late packets are dropped");
        }
        if let Ok((_, ingress, _)) = running.place.ports() {
            ingress.door().set_fast_path(entry);
        }
    }
    let figures = former.layout.read(plane);
    let kept = running.change(|versions| {
        versions.past.add(&former, &figures, &form.plan);
        versions.former.take()
    });
    drop(kept);
    drop(alone(former));
}

/// Waits until no packet is in a program any more that was led by what has changed since.
pub(crate) fn wait_for_packets(plane: &Plane) {
    if let Err(error) = quiesce::wait(plane) {
        // Programs run for microseconds.
        tracing::warn!(%error, "waiting instead");
        std::thread::sleep(STILL);
    }
}

fn drain(plane: &Plane, former: &Form) {
    let _urgent = Urgent::begin();
    let start = Instant::now();
    let mut last = tally(plane, former);
    let mut moved = start;
    // What a black box makes of a packet, none or several, is its own affair.
    let has_box = former.plan.black_boxes().next().is_some();
    let still = if has_box { STILL_IN_BOX } else { STILL };
    let is_inside =
        |tally: &Tally| tally.gone < tally.entered || has_box && tally.gone != tally.entered;
    while is_inside(&last) && moved.elapsed() < still && start.elapsed() < DRAIN_LIMIT {
        std::thread::sleep(LOOK_EVERY);
        let now = tally(plane, former);
        if now.steps != last.steps {
            moved = Instant::now();
        }
        last = now;
    }
}

fn tally(plane: &Plane, form: &Form) -> Tally {
    let figures = form.layout.read(plane);
    let (door, out) = (figures.door, figures.packets_out);
    let mut drops = figures.shaper.drops();
    if form.plan.qdisc_shaping().is_some() {
        // Counted out before they came into the queue.
        drops -= figures.shaper.full;
    }
    let mut tally = Tally {
        entered: door.packets,
        gone: door.drops + door.policed + out + drops,
        steps: door.packets + door.drops + out + drops + figures.shaper.delayed,
    };
    for hop in &figures.hops {
        // What a function makes has to leave like what came in; what a black box holds is still inside.
        let dropped = hop.drops - hop.held;
        tally.entered += hop.emitted;
        tally.gone += dropped;
        tally.steps += hop.packets_in + dropped + hop.emitted;
    }
    tally
}
