//! Part of `rate-overhead`: the cost of the policer in the front door.

use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::FunctionConfig;

use super::lookup::Door;
use crate::{Error, Findings, Row, Session, ebpf, frames};

/// Largest cost over a front door that only counts, ns.
const ALONE_BOUND_NS: f64 = 40.0;
const SHARED_BOUND_NS: f64 = 90.0;
/// Repeats in a test run.
const RUNS: u32 = 20_000;

/// A front door to compare.
struct Subject {
    door: &'static str,
    hook: Hook,
    single_queue: bool,
    profile: Option<Profile>,
}

/// A profile with equal limits in packets and bits.
fn profile(rate: u64, burst: u64) -> Profile {
    let bucket = Bucket::new(rate, burst).ok();
    Profile {
        packets: bucket,
        bits: bucket,
    }
}

fn subjects() -> Vec<Subject> {
    let wide = profile(Bucket::MAX_RATE, Bucket::MAX_BURST);
    let narrow = profile(1, 1);
    let (counting, passed, dropped) = ("counting", "policing, passed", "policing, dropped");
    let mut subjects = Vec::new();
    for (hook, single_queue) in [(Hook::Xdp, true), (Hook::Xdp, false), (Hook::Tcx, false)] {
        for (door, profile) in [
            (counting, None),
            (passed, Some(wide)),
            (dropped, Some(narrow)),
        ] {
            subjects.push(Subject {
                door,
                hook,
                single_queue,
                profile,
            });
        }
    }
    subjects
}

pub(super) fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let subjects = subjects();
    let doors = subjects
        .iter()
        .map(|subject| {
            let profile = subject.profile.as_ref();
            Door::new(
                subject.hook,
                subject.single_queue,
                profile,
                &[FunctionConfig::Forward],
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    let programs = subjects
        .iter()
        .zip(&doors)
        .map(|(subject, door)| Ok(door.port.program(subject.hook)?))
        .collect::<Result<Vec<_>, Error>>()?;
    let at_xdp: Vec<_> = subjects
        .iter()
        .zip(&programs)
        .filter(|(subject, _)| subject.hook == Hook::Xdp)
        .map(|(_, program)| program.as_fd())
        .collect();
    let _entries = ebpf::DispatcherEntries::add(Hook::Xdp, &at_xdp)?;
    let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let mut rounds = session.measure("policing", programs.len(), (40, 200), |subject| {
        ebpf::mean_ns(
            programs[subject].as_fd(),
            subjects[subject].hook,
            &frame,
            RUNS,
        )
    })?;
    for (group, doors) in subjects.chunks(3).enumerate() {
        let [counting, passed, dropped] = [0, 1, 2].map(|which| 3 * group + which);
        let more = rounds.derive(passed, counting, |with, without| with - without);
        let spared = rounds.derive(dropped, passed, |dropped, passed| dropped - passed);
        let (hook, alone) = (doors[0].hook, doors[0].single_queue);
        let queues = if alone { "one queue" } else { "several CPUs" };
        for (subject, door) in (counting..).zip(doors) {
            findings.add_row(
                Row::of("policing, test runs")
                    .with("hook", hook.to_string())
                    .with("bucket", queues)
                    .with("door", door.door)
                    .with_estimate("packet", "_ns", rounds.median(subject))
                    .with(
                        "policer_ns",
                        (subject == passed).then(|| rounds.median(more).map(|e| e.value)),
                    ),
            );
        }
        let bound = if alone {
            ALONE_BOUND_NS
        } else {
            SHARED_BOUND_NS
        };
        findings.claim_median_at_most(
            format!("policer over a counting front door, ns, {hook}, {queues}"),
            rounds.median(more),
            bound,
        );
        findings.claim_median_at_most(
            format!("a dropped packet beyond a passed one, ns, {hook}, {queues}"),
            rounds.median(spared),
            0.0,
        );
    }
    Ok(())
}
