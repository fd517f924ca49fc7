//! The interfaces of OpenFlow switches. The agent runs the switches.

use myelin_spec::ControllerAddress;

use super::Network;

/// An OpenFlow switch that needs a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFlowPorts {
    /// The switch's name.
    pub name: String,
    /// Its position among all switches of the topology.
    pub position: usize,
    /// Its interfaces in [`Network::openflow_netns`]: those of its links, in the order of the file.
    pub interfaces: Vec<String>,
    /// Its controller.
    pub controller: ControllerAddress,
}

/// The interface of an OpenFlow switch for its link with this number: at most 13 characters.
pub(super) fn interface(switch: usize, port: usize) -> String {
    format!("s{}p{}", switch + 1, port + 1)
}

impl Network {
    /// Returns the network namespace of all OpenFlow switches; `None` if there are none.
    pub fn openflow_netns(&self) -> Option<String> {
        let has_any = !self.topology.controllers.is_empty();
        has_any.then(|| self.names.openflow_netns())
    }

    /// Returns the OpenFlow switches, in the order of the topology.
    pub fn openflow(&self) -> impl Iterator<Item = OpenFlowPorts> {
        let switches = self.topology.switches.iter().zip(&self.switches);
        switches
            .enumerate()
            .filter_map(|(position, (name, switch))| {
                let ports = 0..switch.bridges.len();
                Some(OpenFlowPorts {
                    name: name.clone(),
                    position,
                    interfaces: ports.map(|port| interface(position, port)).collect(),
                    controller: self.topology.controllers.get(name)?.clone(),
                })
            })
    }
}
