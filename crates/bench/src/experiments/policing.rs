//! Part of `rate-overhead`: the cost of the policer in the front door.

use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_metrics::stats::Deployments;
use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::FunctionConfig;

use super::classifier::Door;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Findings, Row, Session, ebpf, frames};

const ONE_QUEUE: &str = "one queue";
const SEVERAL_CPUS: &str = "several CPUs";
/// The ports: hook, senders, and largest cost over a front door that only counts, ns.
const PORTS: [(Hook, &str, f64); 3] = [
    (Hook::Xdp, ONE_QUEUE, 40.0),
    (Hook::Xdp, SEVERAL_CPUS, 90.0),
    (Hook::Tcx, SEVERAL_CPUS, 90.0),
];
/// The front doors at each port: name, and rate and burst of the profile.
const DOORS: [(&str, Option<(u64, u64)>); 3] = [
    ("counting", None),
    (
        "policing, passed",
        Some((Bucket::MAX_RATE, Bucket::MAX_BURST)),
    ),
    ("policing, dropped", Some((1, 1))),
];
const COUNTING: usize = 0;
const PASSED: usize = 1;
const DROPPED: usize = 2;
/// Repeats in a test run.
const RUNS: u32 = 20_000;

/// A profile with equal limits in packets and bits.
fn profile((rate, burst): (u64, u64)) -> Profile {
    let bucket = Bucket::new(rate, burst).ok();
    Profile {
        packets: bucket,
        bits: bucket,
    }
}

pub(super) fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let sampling = Sampling::of("policing").rounds(5).share(0.3);
    let deploy = |turns: &mut Turns<'_>| {
        let mut doors = Vec::new();
        for (hook, queues, _) in PORTS {
            for (_, limits) in DOORS {
                let profile = limits.map(profile);
                let functions = [FunctionConfig::Forward];
                let door = Door::new(hook, queues == ONE_QUEUE, profile.as_ref(), &functions)?;
                doors.push((hook, door.port.program(hook)?, door));
            }
        }
        let at_xdp = doors.iter().filter(|(hook, ..)| *hook == Hook::Xdp);
        let at_xdp: Vec<_> = at_xdp.map(|(_, program, _)| program.as_fd()).collect();
        let _entries = ebpf::DispatcherEntries::add(Hook::Xdp, &at_xdp)?;
        turns.measure(doors.len(), |subject| {
            let (hook, program, _) = &doors[subject];
            ebpf::mean_ns(program.as_fd(), *hook, &frame, RUNS)
        })
    };
    let slot = |port: usize, door: usize| port * DOORS.len() + door;
    let difference = |samples: &Deployments, port, with, without| {
        samples.median_of(|round| round(slot(port, with)) - round(slot(port, without)))
    };
    let claims = |samples: &Deployments, (): &()| {
        let mut claims = Vec::new();
        for (port, (hook, queues, bound)) in PORTS.into_iter().enumerate() {
            claims.push(Claim::at_most(
                format!("policer over a counting front door, ns, {hook}, {queues}"),
                difference(samples, port, PASSED, COUNTING),
                bound,
            ));
            claims.push(Claim::at_most(
                format!("a dropped packet beyond a passed one, ns, {hook}, {queues}"),
                difference(samples, port, DROPPED, PASSED),
                0.0,
            ));
        }
        claims
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (port, (hook, queues, _)) in PORTS.into_iter().enumerate() {
        for (door, (name, _)) in DOORS.into_iter().enumerate() {
            let policer = difference(&samples, port, PASSED, COUNTING);
            let policer = policer.filter(|_| door == PASSED);
            findings.add_row(
                Row::of("policing, test runs")
                    .with("hook", hook.to_string())
                    .with("bucket", queues)
                    .with("door", name)
                    .with_estimate("packet", "_ns", samples.median(slot(port, door)))
                    .with("policer_ns", policer.map(|e| e.value)),
            );
        }
    }
    Ok(())
}
