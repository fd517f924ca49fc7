//! Reads `spec.worker`.

use super::field::Field;
use crate::chain::{Idle, WorkerSpec};
use crate::error::{Fault, Report};

pub(super) fn read(field: &Field<'_>, report: &mut Report<'_>) -> Option<WorkerSpec> {
    let fields = field.map(report, WorkerSpec::KEYS)?;
    let worker = WorkerSpec::read(&fields, report);
    if let Some(spin) = fields.get("spin").filter(|_| worker.idle != Idle::Adaptive) {
        let fault = Fault::new(
            format!("`spin` has no effect with `idle: {}`", worker.idle),
            "`spin` only with `idle: adaptive`",
            "remove `spin`, or write `idle: adaptive`",
        );
        spin.fault(report, fault);
    }
    Some(worker)
}
