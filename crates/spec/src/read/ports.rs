//! Reads `spec.ports`: two interfaces, two DPDK devices, or two ports in memory.

use myelin_packet::Match;

use super::replay;
use crate::chain::{Hook, Mapping, PortDriver, Ports, WorkerSpec};
use crate::dpdk::DpdkDevice;
use crate::error::Span;
use crate::keys::field::{Field, Fields};
use crate::keys::{BOOLEAN, ConfigKey, Readable, TEXT, ValueType, keys, name};
use crate::part::{PartSpec, PeerSpec};
use crate::printable::Printable;
use crate::replay::ReplaySpec;
use crate::yaml::{Node, Value};

keys! {
    /// Keys of an ingress that is no interface.
    INGRESS_KEYS {
        /// The DPDK device: a PCI address, or a virtual device with a number and its arguments.
        "dpdk" = TEXT;
        /// The chain's worker makes the packets, or takes them from a file, to measure without
        /// devices. Needs `discard` at egress.
        "replay" = ConfigKey::new(ValueType::Map(replay::KEYS));
    }
}

keys! {
    /// Keys of an egress that is no interface.
    EGRESS_KEYS {
        /// The DPDK device: a PCI address, or a virtual device with a number and its arguments.
        "dpdk" = TEXT;
        /// `true`: the chain's worker counts the packets and frees them. Needs `replay` at ingress.
        "discard" = BOOLEAN;
    }
}

keys! {
    /// Keys of `spec.ports`.
    KEYS {
        /// The interface where packets arrive, TOPOLOGY/HOST, { dpdk: DEVICE } or
        /// { replay: {} }. Required, except in a part with `from`.
        "ingress" = ConfigKey::new(ValueType::TextOrMap(INGRESS_KEYS));
        /// The interface where packets depart, TOPOLOGY/HOST, { dpdk: DEVICE } or
        /// { discard: true }. Required, except in a part with `to`.
        "egress" = ConfigKey::new(ValueType::TextOrMap(EGRESS_KEYS));
    }
}

/// The name of a port that discards packets, in plans and in the status.
const DISCARD: &str = "discard";

/// One port.
struct Port {
    name: String,
    driver: PortDriver,
    replay: Option<ReplaySpec>,
}

impl Port {
    fn new(name: impl Into<String>, driver: PortDriver) -> Self {
        Self {
            name: name.into(),
            driver,
            replay: None,
        }
    }
}

/// Reads the ports of a chain with this match.
pub(super) fn read(field: &Field<'_>, matches: &Match) -> Option<Ports> {
    let fields = field.mapping(KEYS)?;
    let port = |key: &str, example: &str, keys| {
        read_port(
            &fields.required(key, "the name of an interface", example)?,
            keys,
            matches,
        )
    };
    let ingress = port("ingress", "eth1", INGRESS_KEYS);
    let egress = port("egress", "eth2", EGRESS_KEYS);
    let (ingress, egress) = (ingress?, egress?);
    if ingress.driver != egress.driver {
        let is_in_memory = |port: &Port| port.driver == PortDriver::Memory;
        if is_in_memory(&ingress) || is_in_memory(&egress) {
            field.fault(
                "one port is in memory and the other is not",
                "`replay` at ingress and `discard` at egress, or two interfaces, or two devices",
                "write `ports: { ingress: { replay: {} }, egress: { discard: true } }`",
            );
        } else {
            field.fault(
                "one port is an interface and the other a DPDK device",
                "two interfaces or two devices",
                "write `dpdk: DEVICE` at both; an interface becomes a device by `dpdk: \"net_af_xdp0,iface=NAME\"`",
            );
        }
        return None;
    }
    check_different(field, &ingress, &egress);
    Some(Ports {
        ingress: ingress.name,
        egress: egress.name,
        driver: ingress.driver,
        replay: ingress.replay,
    })
}

/// Refuses the same port twice.
fn check_different(field: &Field<'_>, ingress: &Port, egress: &Port) {
    // DPDK identifies a device by its name without arguments.
    let is_same = ingress.name.split(',').next() == egress.name.split(',').next();
    if !is_same {
        return;
    }
    let (first, second) = (Printable(&ingress.name), Printable(&egress.name));
    let (message, expected) = match ingress.driver {
        PortDriver::Kernel => (
            format!("ingress and egress are both `{first}`"),
            "two interfaces",
        ),
        PortDriver::Dpdk => (
            format!("`{first}` and `{second}` are the same device"),
            "two devices: net_tap0 and net_tap1",
        ),
        // The two have different names.
        PortDriver::Memory => return,
    };
    let help = "name two different ports: packets arrive at one and leave at the other";
    field.fault(message, expected, help);
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
            let keys = if key == "ingress" {
                INGRESS_KEYS
            } else {
                EGRESS_KEYS
            };
            let port = read_port(&field, keys, &Match::default())?;
            if port.driver != PortDriver::Kernel {
                let help = "name an interface";
                field.fault("a part of a chain is over interfaces", "an interface", help);
            }
            return Some(port.name);
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
        replay: None,
    })
}

/// Reads one port, of these keys if it is no interface.
fn read_port(field: &Field<'_>, keys: &'static [ConfigKey], matches: &Match) -> Option<Port> {
    const EXPECTED: &str = "a PCI address, or a virtual device with a number and its arguments";
    const HELP: &str =
        "write for example \"0000:01:00.0\", \"net_tap0,iface=tap0\" or \"net_af_xdp0,iface=eth1\"";
    if !field.is_mapping() {
        let is_host = |text: &str| Ports::topology_host(text).is_some();
        let name = match field.node.text() {
            Some(text) if is_host(text) => Some(text.to_owned()),
            _ => name::read_interface(field),
        };
        return name.map(|name| Port::new(name, PortDriver::Kernel));
    }
    let fields = field.mapping(keys)?;
    let (dpdk, replay) = (fields.get("dpdk"), fields.get("replay"));
    let discard = fields.get("discard");
    match (dpdk, replay, discard) {
        (Some(field), None, None) => {
            let device = field.parsed(EXPECTED, HELP, |text| {
                DpdkDevice::new(text).map_err(|problem| format!("`{}` {problem}", Printable(text)))
            });
            device.map(|device| Port::new(device, PortDriver::Dpdk))
        }
        (None, Some(field), None) => {
            let replay = replay::read(&field, matches)?;
            Some(Port {
                replay: Some(replay.clone()),
                ..Port::new(replay.to_string(), PortDriver::Memory)
            })
        }
        (None, None, Some(field)) => {
            if !bool::read(&field, &BOOLEAN)? {
                let help = "write `discard: true`, or the name of an interface instead";
                field.fault("a port that discards nothing", "`true`", help);
                return None;
            }
            Some(Port::new(DISCARD, PortDriver::Memory))
        }
        (None, None, None) => {
            field.fault(
                "the port has no key",
                "`dpdk`, or `replay` at ingress and `discard` at egress",
                "write an interface, `{ dpdk: \"net_tap0,iface=tap0\" }`, `{ replay: {} }` or `{ discard: true }`",
            );
            None
        }
        _ => {
            let help = "remove one of the two keys";
            field.fault(
                "one port has two drivers",
                "one of `dpdk`, `replay`, `discard`",
                help,
            );
            None
        }
    }
}

/// Logs a fault for each key that only DPDK ports support, if the ports are interfaces, and for
/// each key that ports of the chain's worker do not support.
pub(super) fn check(spec: &Fields<'_>, ports: Option<&Ports>, worker: &WorkerSpec) {
    let driver = ports.map(|ports| ports.driver);
    let over_dpdk = driver == Some(PortDriver::Dpdk);
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
    let names = match driver {
        None | Some(PortDriver::Kernel) => return,
        Some(PortDriver::Dpdk) => "DPDK devices",
        Some(PortDriver::Memory) => "ports in memory",
    };
    // Returns the field of a key and its text, unless the text is one of `words`.
    let other_word = |key: &str, words: &[&str]| {
        let field = spec.get(key)?;
        let text = field.node.text().filter(|text| !words.contains(text))?;
        Some((field, text))
    };
    if let Some((field, _)) = other_word("hook", &[Hook::Auto.as_str()]) {
        field.fault(
            format!("{names} have no hook: the worker receives their packets"),
            "no `hook`",
            "remove `hook`",
        );
    }
    let mappings = [Mapping::Auto.as_str(), Mapping::Compact.as_str()];
    if let Some((field, text)) = other_word("mapping", &mappings) {
        field.fault(
            format!("`{}` does not support {names}", Printable(text)),
            "compact or auto: all functions run in the worker that owns the ports",
            "write `mapping: compact`, or remove the key",
        );
    }
    let ring = worker_field.as_ref().and_then(|field| field.get("ring"));
    if let Some(field) = ring.filter(|_| over_dpdk) {
        field.fault(
            "the driver of DPDK devices has rings of its own",
            "no `ring`",
            "remove `ring`",
        );
    }
    if let Some(field) = worker_field.filter(|_| worker.busy_poll_ns.is_some()) {
        field.fault(
            format!("`busyPoll` applies to sockets, and {names} have none"),
            "no `busyPoll`",
            "remove `busyPoll`; write `idle: spin` to poll without sleep",
        );
    }
}
