//! Reads `spec.ports`: two interfaces, or two DPDK devices.

use crate::chain::{Hook, Mapping, PortDriver, Ports, WorkerSpec};
use crate::dpdk::DpdkDevice;
use crate::error::Span;
use crate::keys::field::{Field, Fields};
use crate::keys::{ConfigKey, Readable, TEXT, ValueType, keys, name};
use crate::part::{PartSpec, PeerSpec};
use crate::printable::Printable;
use crate::yaml::{Node, Value};

keys! {
    /// Keys of a DPDK port.
    DPDK_KEYS {
        /// The DPDK device: a PCI address, or a virtual device with a number and its arguments.
        "dpdk" = TEXT.required();
    }
}

keys! {
    /// Keys of `spec.ports`.
    KEYS {
        /// The interface where packets arrive, TOPOLOGY/HOST, or { dpdk: DEVICE }. Required, except
        /// in a part with `from`.
        "ingress" = ConfigKey::new(ValueType::TextOrMap(DPDK_KEYS));
        /// The interface where packets depart, TOPOLOGY/HOST, or { dpdk: DEVICE }. Required, except
        /// in a part with `to`.
        "egress" = ConfigKey::new(ValueType::TextOrMap(DPDK_KEYS));
    }
}

impl Readable for Ports {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        let fields = field.mapping(KEYS)?;
        let port = |key: &str, example: &str| {
            read_port(&fields.required(key, "the name of an interface", example)?)
        };
        let (ingress, egress) = (port("ingress", "eth1"), port("egress", "eth2"));
        let ((ingress, driver), (egress, other)) = (ingress?, egress?);
        if driver != other {
            field.fault(
                "one port is an interface and the other a DPDK device",
                "two interfaces or two devices",
                "write `dpdk: DEVICE` at both; an interface becomes a device by `dpdk: \"net_af_xdp0,iface=NAME\"`",
            );
            return None;
        }
        // DPDK identifies a device by its name without arguments.
        let is_same = ingress.split(',').next() == egress.split(',').next();
        if is_same {
            let (first, second) = (Printable(&ingress), Printable(&egress));
            let (message, expected) = match driver {
                PortDriver::Kernel => (
                    format!("ingress and egress are both `{first}`"),
                    "two interfaces",
                ),
                PortDriver::Dpdk => (
                    format!("`{first}` and `{second}` are the same device"),
                    "two devices: net_tap0 and net_tap1",
                ),
            };
            let help = "name two different ports: packets arrive at one and leave at the other";
            field.fault(message, expected, help);
        }
        Some(Self {
            ingress,
            egress,
            driver,
        })
    }
}

/// Returns the ports of a part: at the side of a neighbour, the interface that leads to it.
pub(super) fn of_part(spec: &Fields<'_>, part: &PartSpec) -> Option<Ports> {
    let empty = Node {
        span: Span::START,
        value: Value::Map(Vec::new()),
    };
    let given = spec.get("ports");
    let absent = spec.field_at_mapping("ports", &empty);
    let fields = given.as_ref().unwrap_or(&absent).mapping(KEYS)?;
    let port = |key: &str, peer: Option<&PeerSpec>, side: &str, example: &str| {
        let Some(peer) = peer else {
            let field = fields.required(key, "the name of an interface", example)?;
            let (port, driver) = read_port(&field)?;
            if driver == PortDriver::Dpdk {
                let help = "name an interface";
                field.fault("a part of a chain is over interfaces", "an interface", help);
            }
            return Some(port);
        };
        if let Some(field) = fields.get(key) {
            field.fault(
                format!("`{key}` has no effect: the part has a neighbour in `part.{side}`"),
                format!("`{key}` or `part.{side}`"),
                format!("remove `{key}`"),
            );
        }
        Some(peer.interface.clone())
    };
    let ingress = port("ingress", part.from.as_ref(), "from", "eth0");
    let egress = port("egress", part.to.as_ref(), "to", "eth3");
    Some(Ports {
        ingress: ingress?,
        egress: egress?,
        driver: PortDriver::Kernel,
    })
}

/// Reads one port and its driver.
fn read_port(field: &Field<'_>) -> Option<(String, PortDriver)> {
    const EXPECTED: &str = "a PCI address, or a virtual device with a number and its arguments";
    const HELP: &str =
        "write for example \"0000:01:00.0\", \"net_tap0,iface=tap0\" or \"net_af_xdp0,iface=eth1\"";
    if !field.is_mapping() {
        let is_host = |text: &str| Ports::topology_host(text).is_some();
        let name = match field.node.text() {
            Some(text) if is_host(text) => Some(text.to_owned()),
            _ => name::read_interface(field),
        };
        return name.map(|name| (name, PortDriver::Kernel));
    }
    let fields = field.mapping(DPDK_KEYS)?;
    let field = fields.required("dpdk", "a DPDK device", "\"net_tap0,iface=tap0\"")?;
    let device = field.parsed(EXPECTED, HELP, |text| {
        DpdkDevice::new(text).map_err(|problem| format!("`{}` {problem}", Printable(text)))
    });
    device.map(|device| (device.into(), PortDriver::Dpdk))
}

/// Logs a fault for each key that only DPDK ports support, if the ports are interfaces, and for
/// each key that DPDK ports do not support.
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
            "`hugepages` has no effect without DPDK devices",
            "`hugepages` only with `dpdk` in `spec.ports`",
            "remove `hugepages`",
        );
    }
    if !over_dpdk {
        return;
    }
    // Returns the field of a key and its text, unless the text is one of `words`.
    let other_word = |key: &str, words: &[&str]| {
        let field = spec.get(key)?;
        let text = field.node.text().filter(|text| !words.contains(text))?;
        Some((field, text))
    };
    if let Some((field, _)) = other_word("hook", &[Hook::Auto.as_str()]) {
        field.fault(
            "DPDK devices have no hook: the worker receives their packets",
            "no `hook`",
            "remove `hook`",
        );
    }
    let mappings = [Mapping::Auto.as_str(), Mapping::Compact.as_str()];
    if let Some((field, text)) = other_word("mapping", &mappings) {
        field.fault(
            format!("`{}` does not support DPDK devices", Printable(text)),
            "compact or auto: all functions run in the worker that owns the devices",
            "write `mapping: compact`, or remove the key",
        );
    }
    let ring = worker_field.as_ref().and_then(|field| field.get("ring"));
    if let Some(field) = ring {
        field.fault(
            "the driver of DPDK devices has rings of its own",
            "no `ring`",
            "remove `ring`",
        );
    }
    if let Some(field) = worker_field.filter(|_| worker.busy_poll_ns.is_some()) {
        field.fault(
            "`busyPoll` applies to sockets; a worker always polls DPDK devices",
            "no `busyPoll`",
            "remove `busyPoll`; write `idle: spin` to poll without sleep",
        );
    }
}
