//! A circuit: the two ports of a chain, and the end hosts behind the ports if Myelin made hosts. A
//! chain and its reverse share one circuit.

use std::net::IpAddr;

use myelin_emulator::{Config, EndHosts, Host, Role};
use myelin_kernel::{Opposite, Plane};
use myelin_linux::journal::Journal;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;
use myelin_linux::process;
use myelin_spec::ServiceChain;

use crate::api::{ApiError, HostInfo};
use crate::node::Parts;
use crate::node::mtu::MTU;
use crate::node::port_faults::{find_header_fault, find_loop};
use crate::node::ports::{Port, PortKey, PortLease, Ports};
use crate::node::wire::Wires;
use crate::pool::Lease;

/// A chain's lease on a circuit. The key is [`key_of_circuit`] of the chain that made the circuit.
pub(crate) type CircuitLease = Lease<String, Circuit>;

/// The key of the circuit that a chain makes: its name. A part has a circuit for each path, because
/// its old and its new path have wires of their own while it changes.
pub(crate) fn key_of_circuit(chain: &ServiceChain) -> String {
    match &chain.part {
        Some(part) => format!("{} on path {}", chain.name, part.path),
        None => chain.name.clone(),
    }
}

/// Two ports and the hosts behind the ports. Dropping the circuit removes the hosts, and each port
/// without other users.
pub(crate) struct Circuit {
    // Fields drop in this order.
    /// The ingress port of the chain that made the circuit.
    pub(crate) ingress: PortLease,
    /// The egress port of that chain.
    pub(crate) egress: PortLease,
    /// The wires to other nodes, of a part of a chain.
    pub(crate) wires: Option<Wires>,
    /// End hosts that Myelin made.
    hosts: Option<EndHosts>,
}

/// Programs on the end hosts end with them.
impl Drop for Circuit {
    fn drop(&mut self) {
        let hosts = self.hosts().into_iter().flatten();
        let hosts = hosts.map(|host| host.netns.try_clone());
        let ended = hosts
            .collect::<Result<Vec<_>, _>>()
            .and_then(|hosts| process::kill_in_namespaces(&hosts));
        if let Err(error) = ended {
            tracing::warn!(%error, "programs of a chain's end hosts go on");
        }
    }
}

impl Circuit {
    /// Makes the end hosts of a chain without named interfaces, and turns both interfaces into
    /// ports.
    pub(crate) fn create(chain: &ServiceChain, parts: &Parts) -> Result<Self, ApiError> {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let Parts {
            run_id,
            host_prefix,
            journal,
            ..
        } = parts;
        let (plane, ports) = (&*parts.plane, &parts.ports);
        if let Some(part) = &chain.part {
            let links = find_named_links(chain, &mut netlink)?;
            let ends = [&links[0], &links[1]];
            let (ingress, egress, wires) = Wires::open(chain, part, ends, parts)?;
            return Ok(Self {
                ingress,
                egress,
                wires: Some(wires),
                hosts: None,
            });
        }
        if chain.ports.is_some() {
            let [ingress, egress] = find_named_links(chain, &mut netlink)?;
            return Self::open_ports((plane, ports), [&ingress, &egress], None, journal);
        }
        let config = Config {
            run: run_id,
            chain: &format!("{host_prefix}{}", chain.name),
            matches: &chain.matches,
            mtu: MTU,
        };
        let hosts = EndHosts::create(&config, journal).map_err(ApiError::failed)?;
        let mut link = |role| {
            let port = hosts.host(role).port.index;
            netlink.link_by_index(port).map_err(ApiError::failed)
        };
        let (client, server) = (link(Role::Client)?, link(Role::Server)?);
        Self::open_ports((plane, ports), [&client, &server], Some(hosts), journal)
    }

    /// Opens both interfaces as ports. Frames that match no chain go to the opposite interface, if
    /// Myelin made the hosts.
    fn open_ports(
        (plane, ports): (&Plane, &Ports),
        [ingress, egress]: [&Link; 2],
        hosts: Option<EndHosts>,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let port = |link: &Link, opposite: &Link, role| {
            let opposite = Opposite {
                ifindex: opposite.index,
                peer: true,
            };
            let made = hosts.as_ref().map(|hosts| (opposite, hosts.host(role)));
            let key = PortKey::Interface(link.index);
            ports.acquire(&key, || Port::open(plane, link, made, journal))
        };
        let ingress_port = port(ingress, egress, Role::Client)?;
        let egress_port = port(egress, ingress, Role::Server)?;
        Ok(Self {
            ingress: ingress_port,
            egress: egress_port,
            wires: None,
            hosts,
        })
    }

    /// Whether Myelin made end hosts behind the ports.
    pub(crate) fn has_hosts(&self) -> bool {
        self.hosts.is_some()
    }

    /// The client and the server, if Myelin made them.
    pub(crate) fn hosts(&self) -> Option<[&Host; 2]> {
        let hosts = self.hosts.as_ref()?;
        Some([&hosts.client, &hosts.server])
    }

    /// Enables NAPI on the host behind this port, because XDP can redirect frames only into a veth
    /// with NAPI. NAPI stays enabled, because disabling would lose waiting packets.
    pub(crate) fn enable_napi(&self, port: &Port) -> Result<(), ApiError> {
        let Some(hosts) = &self.hosts else {
            return Ok(());
        };
        let role = if port.ifindex == self.ingress.ifindex {
            Role::Client
        } else {
            Role::Server
        };
        hosts.host(role).set_napi().map_err(ApiError::failed)
    }

    /// The hosts, as the API shows them.
    pub(crate) fn host_infos(&self) -> Vec<HostInfo> {
        let hosts = self.hosts().into_iter().flatten();
        let info = |host: &Host| HostInfo {
            role: host.role.to_string(),
            netns: host.netns.name().unwrap_or_default().to_owned(),
            address: host
                .addresses
                .first()
                .map(IpAddr::to_string)
                .unwrap_or_default(),
            interface: host.link.name.clone(),
            link: host.port.name.clone(),
        };
        hosts.map(info).collect()
    }
}

/// Finds the interfaces that a chain names: ingress, then egress.
///
/// # Errors
/// The chain names no interfaces; an interface is missing, is down, or has no Ethernet header;
/// packets that leave at the egress arrive again at the ingress. The error has the position in the
/// chain file.
pub(crate) fn find_named_links(
    chain: &ServiceChain,
    netlink: &mut Netlink,
) -> Result<[Link; 2], ApiError> {
    let ports = chain.ports.as_ref();
    let ports = ports.ok_or_else(|| refuse_ports(chain, &"the chain names no interfaces"))?;
    let mut find = |name: &str| {
        let link = check_up(chain, netlink.link(name))?;
        let fault = find_header_fault(&link);
        fault.map_or(Ok(link), |fault| Err(refuse_ports(chain, &fault)))
    };
    let links = [find(&ports.ingress)?, find(&ports.egress)?];
    // Frames between nodes do not circle: each part takes its own path and index only.
    let fault = find_loop([&links[0], &links[1]], netlink).filter(|_| chain.part.is_none());
    fault.map_or(Ok(links), |fault| Err(refuse_ports(chain, &fault)))
}

/// Finds the interfaces of a running chain: ingress, then egress. An administrator may have renamed
/// an interface and given the name to another one, so the index identifies the interface.
///
/// # Errors
/// An interface is missing or down. The error has the position in the chain file.
pub(crate) fn find_links_of_ports(
    chain: &ServiceChain,
    [ingress, egress]: [&Port; 2],
    netlink: &mut Netlink,
) -> Result<[Link; 2], ApiError> {
    let mut find = |port: &Port| check_up(chain, netlink.link_by_index(port.ifindex));
    Ok([find(ingress)?, find(egress)?])
}

fn check_up(chain: &ServiceChain, found: myelin_linux::Result<Link>) -> Result<Link, ApiError> {
    let link = found.map_err(|error| refuse_ports(chain, &error))?;
    if link.up {
        return Ok(link);
    }
    let name = &link.name;
    let down = format!("interface {name} is down: set it up with `ip link set {name} up`");
    Err(refuse_ports(chain, &down))
}

fn refuse_ports(chain: &ServiceChain, reason: &dyn std::fmt::Display) -> ApiError {
    let (place, name) = (&chain.places.ports, &chain.name);
    ApiError::failed(format!("{place}: chain `{name}`: spec.ports: {reason}"))
}
