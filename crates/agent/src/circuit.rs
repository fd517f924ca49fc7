//! A circuit: the two ports that a chain lies between, with the end hosts behind them where Myelin made them.
//! A chain and its reverse share one.

use std::path::Path;

use myelin_emulator::{Config, EndHosts, Role};
use myelin_kernel::{Opposite, Plane};
use myelin_linux::journal::Journal;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;
use myelin_planner::PortKind;
use myelin_spec::ServiceChain;

use crate::api::{ApiError, HostInfo};
use crate::ports::Ports;

/// Largest IP packet on the links that Myelin makes, bytes.
pub(crate) const MTU: u32 = 1500;

/// Two ports, and who needs them.
pub(crate) struct Circuit {
    /// Where the packets of the chain that made it come in.
    pub(crate) ingress: Link,
    /// Where they leave.
    pub(crate) egress: Link,
    pub(crate) hosts: Option<EndHosts>,
    users: u32,
    /// Whether the client's, the server's link has NAPI.
    napi: [bool; 2],
}

impl Circuit {
    /// Looks the named interfaces up, or makes end hosts, and makes both ends ports.
    pub(crate) fn create(
        chain: &ServiceChain,
        run_id: &str,
        plane: &Plane,
        ports: &mut Ports,
        journal: &mut Journal,
    ) -> Result<Self, ApiError> {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let (ingress, egress, hosts) = if let Some(named) = &chain.ports {
            let mut find = |name: &str| {
                let link = netlink.link(name).map_err(|error| place(chain, error))?;
                if link.up {
                    Ok(link)
                } else {
                    Err(place(
                        chain,
                        format!("interface {name} is down: set it up with `ip link set {name} up`"),
                    ))
                }
            };
            (find(&named.ingress)?, find(&named.egress)?, None)
        } else {
            let config = Config {
                run: run_id,
                chain: &chain.name,
                matches: &chain.matches,
                mtu: MTU,
                napi: &[],
            };
            let hosts = EndHosts::create(&config, journal).map_err(ApiError::failed)?;
            let link = |id: u32, netlink: &mut Netlink| netlink.link_by_index(id);
            let ends = link(hosts.client.port.index, &mut netlink)
                .and_then(|client| Ok((client, link(hosts.server.port.index, &mut netlink)?)));
            match ends {
                Ok((client, server)) => (client, server, Some(hosts)),
                Err(error) => {
                    let _ = hosts.destroy(journal);
                    return Err(ApiError::failed(error));
                }
            }
        };
        let circuit = Self {
            ingress,
            egress,
            hosts,
            users: 1,
            napi: [false; 2],
        };
        if let Err(error) = circuit.acquire_ports(plane, ports, journal) {
            circuit.remove(journal);
            return Err(error);
        }
        Ok(circuit)
    }

    fn acquire_ports(
        &self,
        plane: &Plane,
        ports: &mut Ports,
        journal: &mut Journal,
    ) -> Result<(), ApiError> {
        let opposite = |link: &Link| {
            self.hosts.is_some().then_some(Opposite {
                ifindex: link.index,
                peer: true,
            })
        };
        ports.acquire(plane, &self.ingress, opposite(&self.egress), journal)?;
        ports
            .acquire(plane, &self.egress, opposite(&self.ingress), journal)
            .inspect_err(|_| ports.release(self.ingress.index, journal))
    }

    /// One more chain lies on this circuit.
    pub(crate) fn share(&mut self) {
        self.users += 1;
    }

    /// One chain less; true when it was the last one and the circuit is to be destroyed.
    pub(crate) fn leave(&mut self) -> bool {
        self.users -= 1;
        self.users == 0
    }

    /// Removes the ports, and the hosts with everything in them.
    pub(crate) fn destroy(self, ports: &mut Ports, journal: &mut Journal) {
        ports.release(self.ingress.index, journal);
        ports.release(self.egress.index, journal);
        self.remove(journal);
    }

    fn remove(self, journal: &mut Journal) {
        if let Some(hosts) = self.hosts
            && let Err(error) = hosts.destroy(journal)
        {
            // It stays in the journal, so `down --all` will try again.
            tracing::warn!(%error, "end hosts stay");
        }
    }

    /// What the planner must know of the ends.
    pub(crate) fn port_kinds(&self) -> (PortKind, PortKind) {
        let kind = |link: &Link| {
            if self.hosts.is_some() {
                PortKind::EndHost
            } else {
                foreign_kind(link)
            }
        };
        (kind(&self.ingress), kind(&self.egress))
    }

    /// A frame that XDP redirects into a host's port arrives only when the host's link has NAPI. It keeps it: to switch
    /// it off would lose the packets that wait there.
    pub(crate) fn need_napi(&mut self, egress: u32) -> Result<(), ApiError> {
        let Some((role, index)) = self.role_behind(egress) else {
            return Ok(());
        };
        if !self.napi[index]
            && let Some(hosts) = &self.hosts
        {
            hosts.host(role).set_napi(true).map_err(ApiError::failed)?;
            self.napi[index] = true;
        }
        Ok(())
    }

    fn role_behind(&self, port: u32) -> Option<(Role, usize)> {
        self.hosts.as_ref()?;
        if port == self.ingress.index {
            Some((Role::Client, 0))
        } else {
            Some((Role::Server, 1))
        }
    }

    /// The hosts, as the API shows them.
    pub(crate) fn host_infos(&self) -> Vec<HostInfo> {
        let Some(hosts) = &self.hosts else {
            return Vec::new();
        };
        [("client", &hosts.client), ("server", &hosts.server)]
            .into_iter()
            .map(|(role, host)| HostInfo {
                role: role.to_owned(),
                netns: host.netns.name().unwrap_or_default().to_owned(),
                address: host
                    .addresses
                    .first()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                interface: host.link.name.clone(),
                link: host.port.name.clone(),
            })
            .collect()
    }
}

/// A network card has no kind; what has one (veth, bridge, tun) is virtual.
fn foreign_kind(link: &Link) -> PortKind {
    if link.kind.is_empty() {
        PortKind::Native
    } else {
        PortKind::Virtual
    }
}

/// What kind of port a named interface is, for a plan; one that is not here is taken for a network card.
pub fn port_kind(interface: &str) -> PortKind {
    Netlink::open()
        .and_then(|mut netlink| netlink.link(interface))
        .map_or(PortKind::Native, |link| foreign_kind(&link))
}

/// Speed of a network card's link, bits a second; `None` where the interface has none, or it is not up.
pub fn link_bps(interface: &str) -> Option<u64> {
    if port_kind(interface) != PortKind::Native {
        return None;
    }
    let path = Path::new("/sys/class/net").join(interface).join("speed");
    let mbit: i64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    u64::try_from(mbit)
        .ok()
        .filter(|mbit| *mbit > 0)?
        .checked_mul(1_000_000)
}

/// The longest IP packet that an interface takes in, bytes; `None` where there is no such interface.
pub fn link_mtu(interface: &str) -> Option<u32> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    link.ok().map(|link| link.mtu)
}

/// An error at the place in the chain file that names the interfaces.
fn place(chain: &ServiceChain, error: impl std::fmt::Display) -> ApiError {
    ApiError::failed(format!(
        "{}: chain `{}`: spec.ports: {error}",
        chain.places.ports, chain.name
    ))
}
