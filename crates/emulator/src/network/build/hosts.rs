//! Makes the hosts and nodes: namespaces, control groups, addresses, the bridges of nodes.

use std::collections::BTreeMap;

use myelin_linux::cgroup::{Cgroup, Limits};
use myelin_linux::journal::{Journal, Resource, ResourceGuards};
use myelin_linux::link::{self, LinkId};
use myelin_linux::netlink::{Netlink, Request};
use myelin_linux::{ErrorKind, Result, address, netns, route, sysctl};
use myelin_spec::{HostAddress, HostSpec, NODE_BRIDGE};

use super::super::{Attachment, LinkEnds, has_group};
use super::{Builder, OpenHosts, socket_of};

/// Index of the loopback link of each namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK_INDEX: u32 = 1;

impl Builder<'_> {
    pub(super) fn create_hosts(
        &self,
        journal: &Journal,
        resources: &mut ResourceGuards,
    ) -> Result<OpenHosts> {
        let hosts = &self.topology.hosts[self.made_hosts..];
        let owner = self.names.owner();
        let names = hosts.iter().map(|host| self.names.netns(&host.name));
        let has_openflow = self.is_first && !self.topology.controllers.is_empty();
        // Last: [`Builder::join_openflow`] finds it there.
        let openflow = has_openflow.then(|| self.names.openflow_netns());
        let names: Vec<String> = names.chain(openflow).collect();
        for name in &names {
            let (name, owner) = (name.clone(), owner.clone());
            resources
                .0
                .push(journal.guard(Resource::Netns { name, owner })?);
        }
        let prepare = |position: usize| {
            let has_ipv6 = hosts.get(position).is_some_and(uses_ipv6);
            if hosts.get(position).is_some_and(|host| host.is_router) {
                sysctl::forward_packets(has_ipv6)?;
            }
            if has_ipv6 {
                // The addresses are usable at once, and stay while the link is down.
                sysctl::set_accept_dad(sysctl::NEW_LINKS, 0)?;
                sysctl::set_router_solicitations(sysctl::NEW_LINKS, 0)?;
                sysctl::keep_ipv6_addresses(sysctl::NEW_LINKS)?;
            } else {
                sysctl::disable_ipv6(sysctl::NEW_LINKS, true)?;
            }
            let mut netlink = Netlink::open()?;
            let loopback = LinkId {
                index: LOOPBACK_INDEX,
                name: "lo".to_owned(),
            };
            netlink.apply([link::set_up(&loopback)])?;
            Ok(netlink)
        };
        let made = netns::create_many(&names, &owner, prepare);
        let made = made.map_err(|error| match error.kind() {
            ErrorKind::Exists => error.remedy("or rename the topology"),
            _ => error,
        })?;
        Ok((self.made_hosts..).zip(made).collect())
    }

    pub(super) fn create_groups(
        &self,
        journal: &Journal,
        resources: &mut ResourceGuards,
    ) -> Result<Vec<Cgroup>> {
        let mut groups = Vec::new();
        let hosts = self.topology.hosts[self.made_hosts..].iter();
        for host in hosts.filter(|host| has_group(host)) {
            let path = self.names.cgroup(&host.name);
            let resource = Resource::Cgroup { path: path.clone() };
            resources.0.push(journal.guard(resource)?);
            let limits = Limits {
                cpu_millicores: host.limits.cpu_millicores,
                memory_bytes: host.limits.memory_bytes,
                is_real_time: false,
            };
            let mut group = Cgroup::create(&path, &limits)?;
            if !host.cpus.is_empty() {
                group.set_cores(&host.cpus)?;
            }
            groups.push(group);
        }
        Ok(groups)
    }

    /// Sets the new interfaces of the hosts up, and gives each host its addresses: on `eth0`, on
    /// the bridge of a node with several links, or on all interfaces of a router. Then the routes.
    pub(super) fn configure_hosts(&self, hosts: &mut OpenHosts, links: &[LinkEnds]) -> Result<()> {
        let mut interfaces: BTreeMap<usize, Vec<&LinkId>> = BTreeMap::new();
        for end in links.iter().flat_map(|made| &made.ends) {
            if let Attachment::Host(host) = end.at {
                interfaces.entry(host).or_default().push(&end.link);
            }
        }
        for (position, links) in interfaces {
            let (host, netlink) = (&self.topology.hosts[position], socket_of(hosts, position)?);
            let bridge = if host.is_node && links.len() > 1 {
                Some(self.create_node_bridge(netlink, &links)?)
            } else {
                None
            };
            let interface = |address: &HostAddress| {
                let name = address.interface();
                let own = || links.iter().copied().find(|link| link.name == name);
                bridge.as_ref().or_else(own)
            };
            let addresses = host.addresses.iter().filter_map(|own| {
                let at = interface(own)?;
                Some(address::add(at, own.address, own.prefix_len))
            });
            let up = links.iter().copied().chain(&bridge).map(link::set_up);
            let routes = routes_of(host, &interface);
            netlink.apply(addresses.chain(up).chain(routes))?;
        }
        Ok(())
    }

    /// Makes the bridge that forwards frames between the links of a node.
    fn create_node_bridge(&self, netlink: &mut Netlink, links: &[&LinkId]) -> Result<LinkId> {
        netlink.apply([self.names.group.create_bridge(NODE_BRIDGE)?])?;
        let made = netlink.link(NODE_BRIDGE)?;
        let bridge = made.id();
        // The address that the bridge has now stays. Else it would take that of a port, and a
        // frame to the bridge would be one to that port.
        let own = made.mac.map(|mac| link::set_mac(&bridge, mac));
        netlink.apply(own)?;
        netlink.apply(links.iter().map(|link| link::enslave(link, &bridge)))?;
        Ok(bridge)
    }
}

/// Returns the requests that set the routes of a host over these interfaces.
pub(in super::super) fn routes_of<'l>(
    host: &HostSpec,
    interface: &dyn Fn(&HostAddress) -> Option<&'l LinkId>,
) -> Vec<Request> {
    let routes = host.routes.iter().filter_map(|own| {
        let at = interface(host.address_near(own.gateway)?)?;
        let network = (own.prefix.addr(), own.prefix.len());
        Some(route::set_gateway(at, network, own.gateway))
    });
    routes.collect()
}

fn uses_ipv6(host: &HostSpec) -> bool {
    host.addresses.iter().any(|own| own.address.is_ipv6())
}
