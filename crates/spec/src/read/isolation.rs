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

/// Reads the sandbox of a function. Its own keys precede the isolation of its chain.
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
    let asked = if own == Some(Isolation::Container) {
        fields
            .get("isolation")
            .map(|field| ("isolation: container", field))
    } else if limits.any() {
        fields.get("limits").map(|field| ("limits", field))
    } else {
        None
    };
    if let Some((what, field)) = &asked {
        check_space(what, field, kind, pin);
    }
    SandboxSpec {
        isolation,
        limits,
        rootfs: rootfs.and_then(|field| read_rootfs(&field)),
        requested_at: asked.map(|(_, field)| field.faults.place(field.span)),
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
                "`rootfs` only for the kind `{}`: all others run in Myelin's own worker, from the host's files",
                EXTERNAL.name
            ),
            "remove `rootfs`",
        );
    }
}

/// The key that requests a sandbox or limits.
fn key_of(what: &str) -> &str {
    what.split(':').next().unwrap_or(what)
}

/// Logs a kernel function that requests its own process.
fn check_space(what: &str, field: &Field<'_>, kind: Option<&Kind>, pin: Option<Space>) {
    let kernel_only = kind.is_some_and(|kind| kind.user.is_none());
    if pin != Some(Space::Kernel) && !kernel_only {
        return;
    }
    let move_it = if kernel_only {
        ""
    } else {
        "write `space: user`, or "
    };
    field.fault(
        format!("`{what}` for a function in the kernel"),
        "a function in user space: one in the kernel runs in the thread that brings the packet and has no process of its \
         own, to be contained or limited",
        format!("{move_it}remove `{}`", key_of(what)),
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
            "remove it, or put the chain between interfaces"
        } else {
            "write `mapping: distributed` or `mapping: auto`, or remove it"
        };
        let expected = "a sandbox for each function (`mapping: distributed`)";
        Fault::new(format!("`{what}` with {obstacle}"), expected, help)
    };
    if let Some(field) = of_chain {
        field.add(fault("isolation: container"));
    }
    for (index, function) in functions.iter().enumerate() {
        if let (Some(place), Some(what)) =
            (&function.sandbox.requested_at, function.sandbox.demand())
        {
            let key = format!("spec.functions[{index}].{}", key_of(what));
            faults.add(&key, faults.span(place), fault(what));
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
            "write the path from / on: the agent looks there, and it runs in another directory than you",
        );
        return None;
    }
    Some(text.to_owned())
}
