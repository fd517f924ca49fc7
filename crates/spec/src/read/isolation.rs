//! Reads the sandbox of a function: `isolation`, `limits` and `rootfs`.

use crate::chain::{Mapping, PortDriver, Ports};
use crate::error::{Fault, FaultLog};
use crate::function::{FunctionSpec, Space};
use crate::isolation::{Isolation, Limits, SandboxSpec};
use crate::keys::field::{Field, Fields};
use crate::kinds::EXTERNAL;
use crate::kinds::catalogue::Kind;
use crate::printable::Printable;

use super::function::KEYS;

/// Reads the sandbox of a function. `isolation` of the function overrides that of the chain.
pub(super) fn read(
    fields: &Fields<'_>,
    kind: Option<&Kind>,
    pin: Option<Space>,
    of_chain: Isolation,
) -> SandboxSpec {
    let own: Option<Isolation> = fields.read(KEYS, "isolation");
    let isolation = own.unwrap_or(of_chain);
    let limits: Limits = fields.read(KEYS, "limits");
    let rootfs = fields.get("rootfs");
    if let Some(field) = &rootfs {
        check_rootfs(field, kind, isolation);
    }
    let request = if own == Some(Isolation::Container) {
        fields
            .get("isolation")
            .map(|field| ("isolation: container", field))
    } else if limits.has_any() {
        fields.get("limits").map(|field| ("limits", field))
    } else {
        None
    };
    if let Some((key, field)) = &request {
        check_space(key, field, kind, pin);
    }
    SandboxSpec {
        isolation,
        limits,
        rootfs: rootfs.and_then(|field| read_rootfs(&field)),
        requested_at: request.map(|(_, field)| field.faults.place(field.span)),
    }
}

fn check_rootfs(field: &Field<'_>, kind: Option<&Kind>, isolation: Isolation) {
    if isolation == Isolation::Process {
        field.fault(
            "`rootfs` without a container",
            "`rootfs` only with `isolation: container`",
            "write `isolation: container`, or remove `rootfs`",
        );
    } else if let Some(kind) = kind.filter(|kind| **kind != EXTERNAL) {
        field.fault(
            format!("`rootfs` for a function of the kind `{}`", kind.name),
            format!(
                "`rootfs` only for the kind `{}`: Myelin's worker runs all others, with the host's files",
                EXTERNAL.name
            ),
            "remove `rootfs`",
        );
    }
}

/// Returns the key of a request for a sandbox or limits.
fn key_of(request: &str) -> &str {
    request.split(':').next().unwrap_or(request)
}

/// Logs a fault if a function in the kernel requests its own process.
fn check_space(request: &str, field: &Field<'_>, kind: Option<&Kind>, pin: Option<Space>) {
    let kernel_only = kind.is_some_and(|kind| kind.user.is_none());
    if pin != Some(Space::Kernel) && !kernel_only {
        return;
    }
    let move_help = if kernel_only {
        ""
    } else {
        "write `space: user`, or "
    };
    field.fault(
        format!("`{request}` for a function in the kernel"),
        "a function in user space: a kernel function has no process to contain or limit",
        format!("{move_help}remove `{}`", key_of(request)),
    );
}

/// Logs requests that contradict the chain's mapping and ports. `of_chain` is the location of a
/// `spec.isolation` that requests containers.
pub(super) fn check(
    functions: &[FunctionSpec],
    of_chain: Option<&Field<'_>>,
    mapping: Mapping,
    ports: Option<&Ports>,
    faults: &FaultLog<'_>,
) {
    let is_driven = ports.is_some_and(|ports| ports.driver != PortDriver::Kernel);
    let obstacle = match mapping {
        _ if is_driven => "`ports` of the worker, which runs all functions",
        Mapping::Compact => "`mapping: compact`, whose functions share a worker",
        Mapping::Pipeline => "`mapping: pipeline`, whose functions share a UMEM",
        Mapping::Auto | Mapping::Distributed => return,
    };
    let fault = |request: &str| {
        let help = if is_driven {
            "remove the key, or name interfaces in `spec.ports`"
        } else {
            "write `mapping: distributed` or `mapping: auto`, or remove the key"
        };
        let expected = "a sandbox for each function (`mapping: distributed`)";
        Fault::new(format!("`{request}` with {obstacle}"), expected, help)
    };
    if let Some(field) = of_chain {
        field.add(fault("isolation: container"));
    }
    for (index, function) in functions.iter().enumerate() {
        if let (Some(place), Some(request)) =
            (&function.sandbox.requested_at, function.sandbox.demand())
        {
            let key = format!("spec.functions[{index}].{}", key_of(request));
            faults.add(&key, faults.span(place), fault(request));
        }
    }
}

fn read_rootfs(field: &Field<'_>) -> Option<String> {
    let expected = "the path of a directory with a root file system";
    let text = field.text(expected, "write for example /srv/rootfs")?;
    if !text.starts_with('/') {
        // A relative path would start at the chain file's directory, which the agent does not know.
        field.fault(
            format!("`{}` is not an absolute path", Printable(text)),
            expected,
            "write an absolute path, because the agent runs in another directory",
        );
        return None;
    }
    Some(text.to_owned())
}
