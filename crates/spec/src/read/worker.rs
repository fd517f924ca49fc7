//! Reads `spec.worker`.

use super::field::Field;
use crate::chain::{Idle, WorkerSpec};
use crate::error::{Fault, Report};
use crate::units::parse_duration_ns;

const KEYS: &[&str] = &["batch", "idle", "spin", "core", "busyPoll", "hugepages"];

pub(super) const YES_NO: &[(&str, bool)] = &[("true", true), ("false", false)];

/// Beyond any machine; what this one has is checked when the worker starts.
const MAX_CORE: u64 = 4095;

pub(super) fn read(field: &Field<'_>, report: &mut Report<'_>) -> Option<WorkerSpec> {
    let fields = field.map(report, KEYS)?;
    let default = WorkerSpec::default();
    let idle = fields
        .get("idle")
        .and_then(|field| field.word(report, Idle::WORDS))
        .unwrap_or(default.idle);
    let spin = fields.get("spin");
    if let Some(spin) = spin.as_ref().filter(|_| idle != Idle::Adaptive) {
        let fault = Fault::new(
            format!("`spin` has no effect with `idle: {idle}`"),
            "`spin` only with `idle: adaptive`",
            "remove `spin`, or write `idle: adaptive`",
        );
        spin.fault(report, fault);
    }
    let batch = fields
        .get("batch")
        .and_then(|field| field.integer(report, 1..=256, "a number of packets"));
    let core = fields
        .get("core")
        .and_then(|field| field.integer(report, 0..=MAX_CORE, "the number of a core"));
    Some(WorkerSpec {
        batch: batch.map_or(default.batch, |batch| batch as u16),
        idle,
        spin_ns: spin
            .and_then(|field| field.quantity(report, parse_duration_ns, "50us"))
            .unwrap_or(default.spin_ns),
        core: core.map(|core| core as u32),
        busy_poll_ns: fields
            .get("busyPoll")
            .and_then(|field| field.quantity(report, parse_duration_ns, "20us")),
        hugepages: fields
            .get("hugepages")
            .and_then(|field| field.word(report, YES_NO))
            .unwrap_or(default.hugepages),
    })
}
