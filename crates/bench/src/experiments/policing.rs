//! Part of `rate-overhead`: the cost of the policer in the front door.

use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_metrics::stats::Deployments;
use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::FunctionConfig;

use super::lookup::Door;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Findings, Row, Session, ebpf, frames};

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

impl Subject {
    fn queues(&self) -> &'static str {
        if self.single_queue {
            "one queue"
        } else {
            "several CPUs"
        }
    }
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
    let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let sampling = Sampling::of("policing").rounds(5).share(0.3);
    let deploy = |turns: &mut Turns<'_>| {
        let doors = subjects
            .iter()
            .map(|subject| {
                let profile = subject.profile.as_ref();
                let functions = [FunctionConfig::Forward];
                Door::new(subject.hook, subject.single_queue, profile, &functions)
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
        turns.measure(programs.len(), |subject| {
            let hook = subjects[subject].hook;
            ebpf::mean_ns(programs[subject].as_fd(), hook, &frame, RUNS)
        })
    };
    // A group of three doors: counting, policing and passed, policing and dropped.
    let difference = |samples: &Deployments, group: usize, with: usize, without: usize| {
        samples.median_of(|round| round(3 * group + with) - round(3 * group + without))
    };
    let claims = |samples: &Deployments, (): &()| {
        let mut claims = Vec::new();
        for (group, doors) in subjects.chunks(3).enumerate() {
            let (hook, queues) = (doors[0].hook, doors[0].queues());
            let bound = if doors[0].single_queue {
                ALONE_BOUND_NS
            } else {
                SHARED_BOUND_NS
            };
            claims.push(Claim::at_most(
                format!("policer over a counting front door, ns, {hook}, {queues}"),
                difference(samples, group, 1, 0),
                bound,
            ));
            claims.push(Claim::at_most(
                format!("a dropped packet beyond a passed one, ns, {hook}, {queues}"),
                difference(samples, group, 2, 1),
                0.0,
            ));
        }
        claims
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (index, subject) in subjects.iter().enumerate() {
        let policer = difference(&samples, index / 3, 1, 0).filter(|_| index % 3 == 1);
        findings.add_row(
            Row::of("policing, test runs")
                .with("hook", subject.hook.to_string())
                .with("bucket", subject.queues())
                .with("door", subject.door)
                .with_estimate("packet", "_ns", samples.median(index))
                .with("policer_ns", policer.map(|e| e.value)),
        );
    }
    Ok(())
}
