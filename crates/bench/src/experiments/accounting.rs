//! Part of `classifier`: the cost of counting, stamping and sojourn recording, and the clock's part
//! of it.

use std::os::fd::AsFd;

use myelin_kernel::Hook;

use crate::{Error, Findings, Row, Session, ebpf, frames};

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
    let programs = ebpf::load_accounting(hook)?;
    let fds: Vec<_> = programs.iter().map(AsFd::as_fd).collect();
    let _entries = ebpf::DispatcherEntries::add(hook, &fds)?;
    let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let stage = format!("accounting at {hook}");
    let mut rounds = session.measure(&stage, programs.len(), (40, 200), |subject| {
        ebpf::mean_ns(programs[subject].as_fd(), hook, &frame, RUNS)
    })?;
    let all = rounds.derive(ACCOUNTED, BARE, |with, without| with - without);
    let clock = rounds.derive(CLOCK, EMPTY, |with, without| {
        (with - without) / ebpf::CLOCK_READS
    });
    let beyond = rounds.derive(all, clock, |all, clock| all - 2.0 * clock);
    findings.add_row(
        Row::of("counting, stamping, sojourn")
            .with("hook", hook.to_string())
            .with_estimate("all", "_ns", rounds.median(all))
            .with("clock_read_ns", rounds.median(clock).map(|e| e.value))
            .with_estimate("beyond_two_reads", "_ns", rounds.median(beyond)),
    );
    findings.claim_median_at_most(
        format!("counting, stamping and sojourn beyond two clock reads, ns, {hook}"),
        rounds.median(beyond),
        BOUND_NS,
    );
    Ok(())
}
