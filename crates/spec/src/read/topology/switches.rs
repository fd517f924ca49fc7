//! Reads the switches of a topology.

use std::collections::BTreeMap;

use super::{Names, elements};
use crate::keys::field::{Field, Fields};
use crate::keys::{TEXT, keys, name};
use crate::openflow::ControllerAddress;
use crate::topology::{HostSpec, MAX_NODES};

keys! {
    /// Keys of a switch.
    SWITCH_KEYS {
        /// The name, unique among the hosts, nodes, routers and switches.
        "name" = TEXT.required();
        /// The controller of an OpenFlow switch: tcp:ADDRESS:PORT on this machine or beyond,
        /// tcp:HOST:PORT on the loopback of a host or node of this topology, or unix:PATH. The
        /// switch is Open vSwitch. Default: a kernel bridge that learns by itself.
        "openflow" = TEXT;
    }
}

/// The switches of a topology: their names, and the controllers of OpenFlow switches.
#[derive(Default)]
pub(super) struct Switches {
    pub(super) names: Vec<String>,
    pub(super) controllers: BTreeMap<String, ControllerAddress>,
}

pub(super) fn read(spec: &Fields<'_>, hosts: &[HostSpec], names: &mut Names) -> Switches {
    let field = spec.get("switches");
    let elements = field.map(|field| elements(&field, "switches", MAX_NODES));
    let mut switches = Switches::default();
    for element in elements.unwrap_or_default() {
        let (name, controller) = if element.is_mapping() {
            let Some(fields) = element.mapping(SWITCH_KEYS) else {
                continue;
            };
            let controller = fields.get("openflow");
            let controller = controller.and_then(|field| read_controller(&field, hosts));
            (name::read_required(&fields, "name", "s1"), controller)
        } else {
            (name::read_label(&element), None)
        };
        if let Some(name) = name {
            names.add(&name, true, &element);
            let controller = controller.map(|controller| (name.clone(), controller));
            switches.controllers.extend(controller);
            switches.names.push(name);
        }
    }
    switches
}

fn read_controller(field: &Field<'_>, hosts: &[HostSpec]) -> Option<ControllerAddress> {
    const EXPECTED: &str =
        "the address of a controller: tcp:ADDRESS:PORT, tcp:HOST:PORT or unix:PATH";
    field.parsed(EXPECTED, "write for example tcp:127.0.0.1:6653", |text| {
        ControllerAddress::parse(text, |name| hosts.iter().any(|host| host.name == name))
    })
}
