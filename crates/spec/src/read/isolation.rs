//! Reads what keeps a function apart: `isolation`, `limits` and `rootfs`.

use super::field::{Field, Fields};
use crate::EXTERNAL;
use crate::catalogue::Kind;
use crate::chain::{Mapping, PortDriver, Ports};
use crate::error::{Fault, Place, Report};
use crate::function::{FunctionSpec, Space};
use crate::isolation::{Isolation, Limits, SandboxSpec};
use crate::printable::Printable;

/// What a function says, on top of its chain's isolation.
pub(super) fn read(
    fields: &Fields<'_>,
    kind: Option<&Kind>,
    pin: Option<Space>,
    of_chain: Isolation,
    report: &mut Report<'_>,
) -> SandboxSpec {
    let isolation = fields.get("isolation");
    let own = isolation
        .as_ref()
        .and_then(|field| field.word(report, Isolation::WORDS));
    let limits = fields.get("limits");
    let sandbox = SandboxSpec {
        isolation: own.unwrap_or(of_chain),
        limits: limits
            .as_ref()
            .and_then(|field| field.map(report, Limits::KEYS))
            .map(|fields| Limits::read(&fields, report))
            .unwrap_or_default(),
        rootfs: fields
            .get("rootfs")
            .and_then(|field| read_rootfs(&field, report)),
        asked_at: None,
    };
    if let (Some(field), Isolation::Process) = (fields.get("rootfs"), sandbox.isolation) {
        let fault = Fault::new(
            "`rootfs` without a container",
            "`rootfs` only with `isolation: container`",
            "write `isolation: container`, or remove `rootfs`",
        );
        field.fault(report, fault);
    } else if let (Some(field), Some(kind)) = (fields.get("rootfs"), kind)
        && kind.name != EXTERNAL.name
    {
        let fault = Fault::new(
            format!("`rootfs` for a function of the kind `{}`", kind.name),
            format!(
                "`rootfs` only for the kind `{}`: all others run in Myelin's own worker, from the host's files",
                EXTERNAL.name
            ),
            "remove `rootfs`",
        );
        field.fault(report, fault);
    }
    let asked = isolation
        .filter(|_| own == Some(Isolation::Container))
        .map(|field| ("isolation: container", field))
        .or_else(|| {
            limits
                .filter(|_| sandbox.limits.any())
                .map(|field| ("limits", field))
        });
    if let Some((what, field)) = &asked {
        check_space(what, field, kind, pin, report);
    }
    SandboxSpec {
        asked_at: asked.map(|(_, field)| report.place(field.span)),
        ..sandbox
    }
}

/// Who asks for a process of its own cannot stand in the kernel.
fn check_space(
    what: &str,
    field: &Field<'_>,
    kind: Option<&Kind>,
    pin: Option<Space>,
    report: &mut Report<'_>,
) {
    let kernel_only = kind.is_some_and(|kind| kind.user.is_none());
    if pin != Some(Space::Kernel) && !kernel_only {
        return;
    }
    let help = if kernel_only {
        format!("remove `{}`", what.split(':').next().unwrap_or(what))
    } else {
        format!(
            "write `space: user`, or remove `{}`",
            what.split(':').next().unwrap_or(what)
        )
    };
    let fault = Fault::new(
        format!("`{what}` for a function in the kernel"),
        "a function in user space: one in the kernel runs in the thread that brings the packet and has no process of its \
         own, to be contained or limited",
        help,
    );
    field.fault(report, fault);
}

/// What does not go with the chain's mapping and ports. `of_chain` is where `spec.isolation` asks for a container.
pub(super) fn check(
    functions: &[FunctionSpec],
    of_chain: Option<&Field<'_>>,
    mapping: Mapping,
    ports: Option<&Ports>,
    report: &mut Report<'_>,
) {
    let over_dpdk = ports.is_some_and(|ports| ports.driver == PortDriver::Dpdk);
    let obstacle = match mapping {
        _ if over_dpdk => "`ports` of DPDK, whose worker runs all functions of the chain",
        Mapping::Compact => "`mapping: compact`, where all functions of a chain share a worker",
        Mapping::Pipeline => {
            "`mapping: pipeline`, where the functions of a chain share their packets' memory"
        }
        Mapping::Auto | Mapping::Distributed => return,
    };
    let fault = |what: &str| {
        let help = if over_dpdk {
            "remove it, or put the chain between interfaces".to_owned()
        } else {
            "write `mapping: distributed` or `mapping: auto`, or remove it".to_owned()
        };
        let message = format!("`{what}` with {obstacle}");
        Fault::new(
            message,
            "a sandbox for each function (`mapping: distributed`)",
            help,
        )
    };
    if let Some(field) = of_chain {
        field.fault(report, fault("isolation: container"));
    }
    for (index, function) in functions.iter().enumerate() {
        if let (Some(place), Some(what)) = (&function.sandbox.asked_at, function.sandbox.demand()) {
            report_at(report, index, what, place, fault(what));
        }
    }
}

fn report_at(report: &mut Report<'_>, index: usize, what: &str, place: &Place, fault: Fault) {
    let key = what.split(':').next().unwrap_or(what);
    report.add(
        &format!("spec.functions[{index}].{key}"),
        report.span(place),
        fault,
    );
}

fn read_rootfs(field: &Field<'_>, report: &mut Report<'_>) -> Option<String> {
    let expected = "the path of a directory with a root file system";
    let text = field.text(report, expected, "write for example /srv/rootfs")?;
    if !text.starts_with('/') {
        // Only files that the client reads are found from the chain file.
        let fault = Fault::new(
            format!("`{}` is not an absolute path", Printable(text)),
            expected,
            "write the path from / on: the agent looks there, and it runs in another directory than you",
        );
        field.fault(report, fault);
        return None;
    }
    Some(text.to_owned())
}
