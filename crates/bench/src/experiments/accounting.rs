//! Part of `classifier`: the cost of counting, stamping and sojourn recording, and the clock's part
//! of it.

use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_metrics::stats::Deployments;

use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Findings, Row, Session, ebpf, frames};

/// Largest cost beyond two reads of the clock, ns.
const BOUND_NS: f64 = 40.0;
/// Repeats in a test run.
const RUNS: u32 = 50_000;
/// Indices of the programs of `accounting.bpf.c`.
const ACCOUNTED: usize = 0;
const BARE: usize = 1;
const CLOCK: usize = 2;
const EMPTY: usize = 3;

pub(super) fn run(hook: Hook, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let sampling = Sampling::of(format!("accounting at {hook}"))
        .rounds(5)
        .share(0.1);
    let deploy = |turns: &mut Turns<'_>| {
        let programs = ebpf::load_accounting(hook)?;
        let fds: Vec<_> = programs.iter().map(AsFd::as_fd).collect();
        let _entries = ebpf::DispatcherEntries::add(hook, &fds)?;
        turns.measure(programs.len(), |subject| {
            ebpf::mean_ns(fds[subject], hook, &frame, RUNS)
        })
    };
    let beyond = |samples: &Deployments| {
        samples.median_of(|round| accounting_ns(round) - 2.0 * clock_read_ns(round))
    };
    let claims = |samples: &Deployments, (): &()| {
        let id = format!("counting, stamping and sojourn beyond two clock reads, ns, {hook}");
        vec![Claim::at_most(id, beyond(samples), BOUND_NS)]
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    findings.add_row(
        Row::of("counting, stamping, sojourn")
            .with("hook", hook.to_string())
            .with_estimate("all", "_ns", samples.median_of(accounting_ns))
            .with(
                "clock_read_ns",
                samples.median_of(clock_read_ns).map(|e| e.value),
            )
            .with_estimate("beyond_two_reads", "_ns", beyond(&samples)),
    );
    Ok(())
}

fn accounting_ns(round: &dyn Fn(usize) -> f64) -> f64 {
    round(ACCOUNTED) - round(BARE)
}

fn clock_read_ns(round: &dyn Fn(usize) -> f64) -> f64 {
    (round(CLOCK) - round(EMPTY)) / ebpf::CLOCK_READS
}
