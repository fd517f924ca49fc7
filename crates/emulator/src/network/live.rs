//! Changes of a network under traffic.

use myelin_linux::link::group::{describe_quiet, forget_stations};
use myelin_linux::link::{self, LinkId};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;

use myelin_spec::{HostAddress, Impairments, NODE_BRIDGE};

use super::build::routes_of;
use super::{Attachment, Network, NetworkError};

impl Network {
    /// Sets a link up or down. A link that is down carries no packet in either direction.
    ///
    /// # Errors
    /// No such link, or a system error.
    pub fn set_link_up(&mut self, name: &str, is_up: bool) -> Result<(), NetworkError> {
        let number = self.find_link(name)?;
        // An end at a switch has no addresses and routes that the kernel could forget.
        let ends = &self.links[number].ends;
        let end = ends.iter().find(|end| end.is_port()).unwrap_or(&ends[0]);
        let wire = self.links[number].wires.as_ref().map(|wires| &wires[0]);
        let changed = wire.unwrap_or(&end.link);
        let set = |link: &LinkId| {
            if is_up {
                link::set_up(link)
            } else {
                link::set_down(link)
            }
        };
        // An OpenFlow switch sees the state of its own interface.
        let joints = ends.iter().filter_map(|end| self.joint_of(end.at));
        let requests: Vec<_> = [changed].into_iter().chain(joints).map(set).collect();
        let apply = || -> myelin_linux::Result<()> {
            let host = match end.at {
                Attachment::Host(host) if wire.is_none() => &self.topology.hosts[host],
                _ => return Netlink::open()?.apply(requests),
            };
            // The kernel has forgotten the routes over an interface of a host that was down.
            let is_here = |own: &HostAddress| is_up && own.interface() == end.link.name;
            let interface = |own: &HostAddress| is_here(own).then_some(&end.link);
            // A node with several links keeps its routes: its bridge stays up.
            let is_bridged = self.topology.address_interface(&host.name) == NODE_BRIDGE;
            let routes = if is_bridged {
                Vec::new()
            } else {
                routes_of(host, &interface)
            };
            let netns = Netns::open(&self.names.netns(&host.name))?;
            Netlink::open_in(&netns)?.apply(requests.into_iter().chain(routes))
        };
        apply().map_err(|error| self.failed(error))?;
        self.links[number].is_down = !is_up;
        Ok(())
    }

    /// Moves the end of a link to another switch. The other end keeps its interface and addresses.
    ///
    /// # Errors
    /// No such link or switch, a link between hosts, a loop, or a system error.
    pub fn move_link(&mut self, name: &str, to: &str) -> Result<(), NetworkError> {
        let number = self.find_link(name)?;
        let moved = self.topology.with_moved_link(name, to);
        let moved = moved.map_err(|cause| self.failed(cause))?;
        let (before, after) = (&self.topology.links[number].ends, &moved.links[number].ends);
        let Some(side) = (0..2).find(|side| before[*side] != after[*side]) else {
            return Ok(());
        };
        let mut names = self.topology.switches.iter();
        let target = names.position(|switch| switch == to).unwrap_or_default();
        let end = self.links[number].ends[side].clone();
        let Some(bridge) = self.switches[target].ports.take() else {
            let why = if self.topology.controllers.contains_key(to) {
                "an OpenFlow switch has the ports of its links in the file: move one away first"
            } else {
                "its bridges are full, make a larger topology"
            };
            return Err(self.failed(format!("the switch `{to}` has no free port: {why}")));
        };
        let alias = format!("{} {}", moved.name, moved.links[number].name);
        let port: &LinkId = &end.link;
        // Other switches remember the old way to the stations behind the link.
        let bridges = self.switches.iter().flat_map(|switch| &switch.bridges);
        let requests = [
            link::enslave(port, &self.switches[target].bridges[bridge]),
            describe_quiet(port, &alias),
        ];
        let requests: Vec<_> = requests
            .into_iter()
            .chain(bridges.map(forget_stations))
            .collect();
        let applied = Netlink::open().and_then(|mut netlink| netlink.apply(requests));
        if let Err(error) = applied {
            self.switches[target].ports.free(bridge);
            return Err(self.failed(error));
        }
        if let Attachment::Switch { switch, bridge } = end.at {
            self.switches[switch].ports.free(bridge);
        }
        self.links[number].ends[side].at = Attachment::Switch {
            switch: target,
            bridge,
        };
        self.topology = moved;
        Ok(())
    }

    /// Returns the joint of the OpenFlow switch at this end of a link.
    fn joint_of(&self, at: Attachment) -> Option<&LinkId> {
        match at {
            Attachment::Switch { switch, bridge } => self.switches[switch].joints.get(bridge),
            Attachment::Host(_) => None,
        }
    }

    /// Records delay, rate and loss of both directions of the link at this position of the
    /// topology, after the caller has changed them.
    pub fn describe_impairments(&mut self, position: usize, directions: [Impairments; 2]) {
        if let Some(link) = self.topology.links.get_mut(position) {
            link.set_directions(directions);
        }
    }

    pub(super) fn find_link(&self, name: &str) -> Result<usize, NetworkError> {
        let found = self.topology.link(name);
        let mut links = self.topology.links.iter();
        found
            .and_then(|found| links.position(|link| link.name == found.name))
            .ok_or_else(|| self.failed(self.topology.no_link(name)))
    }

    pub(super) fn failed(
        &self,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> NetworkError {
        NetworkError {
            topology: self.topology.name.clone(),
            cause: cause.into(),
        }
    }
}
