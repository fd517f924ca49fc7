//! Reads `spec.ports`: two interfaces, or two devices of DPDK.

use crate::chain::{Hook, Mapping, PortDriver, Ports, WorkerSpec};
use crate::dpdk::DpdkDevice;
use crate::keys::field::{Field, Fields};
use crate::keys::{ConfigKey, Readable, TEXT, ValueType, keys, name};
use crate::printable::Printable;

keys! {
    /// Keys of a port of DPDK.
    DPDK_KEYS {
        /// The DPDK device: a PCI address, or a virtual device with a number and its arguments.
        "dpdk" = TEXT.required();
    }
}

keys! {
    /// Keys of `spec.ports`.
    KEYS {
        /// The interface where packets arrive, or { dpdk: DEVICE }.
        "ingress" = ConfigKey::new(ValueType::TextOrMap(DPDK_KEYS)).required();
        /// The interface where packets depart, or { dpdk: DEVICE }.
        "egress" = ConfigKey::new(ValueType::TextOrMap(DPDK_KEYS)).required();
    }
}

impl Readable for Ports {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        let fields = field.mapping(KEYS)?;
        let port = |key: &str, example: &str| {
            one(&fields.required(key, "the name of an interface", example)?)
        };
        let (ingress, egress) = (port("ingress", "eth1"), port("egress", "eth2"));
        let ((ingress, driver), (egress, other)) = (ingress?, egress?);
        if driver != other {
            field.fault(
                "one port is an interface and the other a device of DPDK",
                "two interfaces or two devices",
                "write `dpdk: DEVICE` at both; an interface becomes a device by `dpdk: \"net_af_xdp0,iface=NAME\"`",
            );
            return None;
        }
        // DPDK identifies a device by its name without arguments.
        let is_same = ingress.split(',').next() == egress.split(',').next();
        if is_same {
            let (one, other) = (Printable(&ingress), Printable(&egress));
            let (message, expected) = match driver {
                PortDriver::Kernel => (
                    format!("ingress and egress are both `{one}`"),
                    "two interfaces",
                ),
                PortDriver::Dpdk => (
                    format!("`{one}` and `{other}` are the same device"),
                    "two devices: net_tap0 and net_tap1",
                ),
            };
            let help = "name the interface that packets leave by, which is another than the one they come in by";
            field.fault(message, expected, help);
        }
        Some(Self {
            ingress,
            egress,
            driver,
        })
    }
}

/// Reads one port and its driver.
fn one(field: &Field<'_>) -> Option<(String, PortDriver)> {
    const EXPECTED: &str = "a PCI address, or a virtual device with a number and its arguments";
    const HELP: &str =
        "write for example \"0000:01:00.0\", \"net_tap0,iface=tap0\" or \"net_af_xdp0,iface=eth1\"";
    if !field.is_mapping() {
        return name::read_interface(field).map(|name| (name, PortDriver::Kernel));
    }
    let fields = field.mapping(DPDK_KEYS)?;
    let field = fields.required("dpdk", "a device of DPDK", "\"net_tap0,iface=tap0\"")?;
    let device = field.parsed(EXPECTED, HELP, |text| {
        DpdkDevice::new(text).map_err(|problem| format!("`{}` {problem}", Printable(text)))
    });
    device.map(|device| (device.into(), PortDriver::Dpdk))
}

/// Logs keys that only DPDK devices take, or that they do not take.
pub(super) fn check(spec: &Fields<'_>, ports: Option<&Ports>, worker: &WorkerSpec) {
    let over_dpdk = ports.is_some_and(|ports| ports.driver == PortDriver::Dpdk);
    let names_ports = spec.get("ports").is_some() || spec.get("reverse").is_some();
    let worker_field = spec.get("worker");
    let has_interfaces = !over_dpdk && (ports.is_some() || !names_ports);
    if let Some(field) = worker_field
        .as_ref()
        .filter(|_| worker.hugepages && has_interfaces)
    {
        field.fault(
            "`hugepages` has no effect without devices of DPDK",
            "`hugepages` only with `dpdk` in `spec.ports`",
            "remove `hugepages`",
        );
    }
    if !over_dpdk {
        return;
    }
    // The word at a key, unless it is one of `words`.
    let other = |key: &str, words: &[&str]| {
        let field = spec.get(key)?;
        let text = field.node.text().filter(|text| !words.contains(text))?;
        Some((field, text))
    };
    if let Some((field, _)) = other("hook", &[Hook::Auto.as_str()]) {
        field.fault(
            "a device of DPDK has no hook: its worker takes the packets",
            "no `hook`",
            "remove `hook`",
        );
    }
    let mappings = [Mapping::Auto.as_str(), Mapping::Compact.as_str()];
    if let Some((field, text)) = other("mapping", &mappings) {
        field.fault(
            format!("`{}` is not for devices of DPDK", Printable(text)),
            "compact or auto: all functions run in the worker that has the devices",
            "write `mapping: compact`, or remove it",
        );
    }
    if let Some(field) = worker_field.filter(|_| worker.busy_poll_ns.is_some()) {
        field.fault(
            "`busyPoll` is of sockets; a device of DPDK is polled in any case",
            "no `busyPoll`",
            "remove `busyPoll`; `idle: spin` polls without a nap",
        );
    }
}
