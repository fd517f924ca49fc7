//! Reads `spec.ports`: two interfaces, or two devices of DPDK.

use super::field::{Field, Fields};
use super::name;
use crate::catalogue::{ConfigKey, TEXT, ValueType};
use crate::chain::{Hook, Mapping, PortDriver, Ports, WorkerSpec};
use crate::dpdk::DpdkDevice;
use crate::error::{Fault, Report};
use crate::keys::keys;
use crate::printable::Printable;

keys! {
    /// Keys of a port that is no interface.
    DPDK_KEYS {
        /// a device of DPDK: a PCI address, or a virtual device with a number and its arguments
        "dpdk" = TEXT.required();
    }
}

keys! {
    /// Keys of `spec.ports`.
    KEYS {
        /// the interface where its packets come in, or { dpdk: DEVICE }
        "ingress" = ConfigKey::new(ValueType::TextOrMap(DPDK_KEYS)).required();
        /// the interface where they leave, or { dpdk: DEVICE }
        "egress" = ConfigKey::new(ValueType::TextOrMap(DPDK_KEYS)).required();
    }
}

pub(super) fn read(field: &Field<'_>, report: &mut Report<'_>) -> Option<Ports> {
    let fields = field.map(report, KEYS)?;
    let mut port = |key: &str, example: &str| {
        let field = fields.required(report, key, "the name of an interface", example)?;
        one(&field, report)
    };
    let (ingress, egress) = (port("ingress", "eth1"), port("egress", "eth2"));
    let ((ingress, driver), (egress, other)) = (ingress?, egress?);
    if driver != other {
        let fault = Fault::new(
            "one port is an interface and the other a device of DPDK",
            "two interfaces or two devices",
            "write `dpdk: DEVICE` at both; an interface becomes a device by `dpdk: \"net_af_xdp0,iface=NAME\"`",
        );
        field.fault(report, fault);
        return None;
    }
    let ports = Ports {
        ingress,
        egress,
        driver,
    };
    if same(&ports) {
        let (message, expected) = match driver {
            PortDriver::Kernel => (
                format!("ingress and egress are both `{}`", ports.ingress),
                "two interfaces",
            ),
            PortDriver::Dpdk => (
                format!(
                    "`{}` and `{}` are the same device",
                    Printable(&ports.ingress),
                    Printable(&ports.egress)
                ),
                "two devices: net_tap0 and net_tap1",
            ),
        };
        let fault = Fault::new(
            message,
            expected,
            "name the interface that packets leave by, which is another than the one they come in by",
        );
        field.fault(report, fault);
    }
    Some(ports)
}

/// One port, and who drives it.
fn one(field: &Field<'_>, report: &mut Report<'_>) -> Option<(String, PortDriver)> {
    const EXPECTED: &str = "a PCI address, or a virtual device with a number and its arguments";
    const HELP: &str =
        "write for example \"0000:01:00.0\", \"net_tap0,iface=tap0\" or \"net_af_xdp0,iface=eth1\"";
    if !field.is_map() {
        return name::interface(field, report).map(|name| (name, PortDriver::Kernel));
    }
    let fields = field.map(report, DPDK_KEYS)?;
    let field = fields.required(
        report,
        "dpdk",
        "a device of DPDK",
        "\"net_tap0,iface=tap0\"",
    )?;
    let text = field.text(report, EXPECTED, HELP)?;
    match DpdkDevice::new(text) {
        Ok(device) => Some((device.into(), PortDriver::Dpdk)),
        Err(problem) => {
            let message = format!("`{}` {problem}", Printable(text));
            field.fault(report, Fault::new(message, EXPECTED, HELP));
            None
        }
    }
}

/// DPDK tells devices apart by the name in front of their arguments.
fn same(ports: &Ports) -> bool {
    let name = |port: &str| port.split(',').next().map(str::to_owned);
    name(&ports.ingress) == name(&ports.egress)
}

/// What fits devices of DPDK only, or does not fit them.
pub(super) fn check(
    spec: &Fields<'_>,
    ports: Option<&Ports>,
    worker: Option<&WorkerSpec>,
    report: &mut Report<'_>,
) {
    let over_dpdk = ports.is_some_and(|ports| ports.driver == PortDriver::Dpdk);
    let names_ports = spec.get("ports").is_some() || spec.get("reverse").is_some();
    if worker.is_some_and(|worker| worker.hugepages)
        && !over_dpdk
        && (ports.is_some() || !names_ports)
        && let Some(field) = spec.get("worker")
    {
        let fault = Fault::new(
            "`hugepages` has no effect without devices of DPDK",
            "`hugepages` only with `dpdk` in `spec.ports`",
            "remove `hugepages`",
        );
        field.fault(report, fault);
    }
    if !over_dpdk {
        return;
    }
    if let Some(field) = spec.get("hook")
        && field
            .plain_text()
            .is_some_and(|text| Some(text) != word(Hook::WORDS, Hook::Auto))
    {
        let fault = Fault::new(
            "a device of DPDK has no hook: its worker takes the packets",
            "no `hook`",
            "remove `hook`",
        );
        field.fault(report, fault);
    }
    if let Some(field) = spec.get("mapping")
        && let Some(text) = field.plain_text()
        && Some(text) != word(Mapping::WORDS, Mapping::Auto)
        && Some(text) != word(Mapping::WORDS, Mapping::Compact)
    {
        let fault = Fault::new(
            format!("`{}` is not for devices of DPDK", Printable(text)),
            "compact or auto: all functions run in the worker that has the devices",
            "write `mapping: compact`, or remove it",
        );
        field.fault(report, fault);
    }
    if let Some(field) = spec
        .get("worker")
        .filter(|_| worker.is_some_and(|worker| worker.busy_poll_ns.is_some()))
    {
        let fault = Fault::new(
            "`busyPoll` is of sockets; a device of DPDK is polled in any case",
            "no `busyPoll`",
            "remove `busyPoll`; `idle: spin` polls without a nap",
        );
        field.fault(report, fault);
    }
}

fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> Option<&'static str> {
    words
        .iter()
        .find(|(_, of)| *of == value)
        .map(|(word, _)| *word)
}
