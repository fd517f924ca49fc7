//! Creates and removes the two hosts of a chain.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use myelin_linux::address;
use myelin_linux::ethtool::{Ethtool, Offload};
use myelin_linux::journal::{Journal, ResourceGuards};
use myelin_linux::link::{self, LinkId, Mac, VethEnd};
use myelin_linux::neighbour;
use myelin_linux::netlink::{Netlink, Request};
use myelin_linux::netns::{self, Netns};
use myelin_linux::{ErrorKind, process, route, sysctl};
use myelin_packet::Match;

use crate::addressing::{self, AddressPair};
use crate::names::{EndHostNames, Role};

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Name of a host's link inside the host.
const HOST_LINK: &str = "eth0";
/// The kernel makes a link operational in a separate work item, usually within a millisecond.
const OPERATIONAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Smallest MTU of IPv4 (RFC 791).
const MIN_MTU_V4: u32 = 68;
/// Smallest MTU of IPv6 (RFC 8200, 5).
const MIN_MTU_V6: u32 = 1280;
/// Largest MTU of a veth.
const MAX_MTU: u32 = 65_535;

/// The error of a failed creation of end hosts. All objects made for the hosts are removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot make end hosts for chain `{chain}`: {cause}")]
pub struct Error {
    chain: String,
    /// The match allows no addresses, the MTU is out of range, or the system refused.
    cause: Box<dyn std::error::Error + Send + Sync>,
}

/// The chain that needs end hosts.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    /// Identity of the run (agent). Objects of different runs have different names.
    pub run: &'a str,
    /// Name of the chain, unique in the run.
    pub chain: &'a str,
    /// The chain's match, which determines the addresses.
    pub matches: &'a Match,
    /// Largest packet without the link header, bytes.
    pub mtu: u32,
}

/// One of the two hosts.
#[derive(Debug)]
pub struct Host {
    /// Client or server.
    pub role: Role,
    /// The host's network namespace.
    pub netns: Netns,
    /// The host's link inside the namespace.
    pub link: LinkId,
    /// The link's MAC address.
    pub mac: Mac,
    /// The host's IP addresses, one for each family.
    pub addresses: Vec<IpAddr>,
    /// The other end of the link, in the namespace that called [`EndHosts::create`].
    pub port: LinkId,
    /// The port's MAC address.
    pub port_mac: Mac,
}

impl Host {
    /// Runs `f` on the host, on a new thread.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> myelin_linux::Result<T> {
        self.netns.enter(f)
    }

    /// Makes a command that runs on the host, with the caller's terminal.
    pub fn command(&self, program: impl AsRef<OsStr>) -> myelin_linux::Result<Command> {
        process::command_in(&self.netns, program)
    }

    /// Gives the host's link NAPI by turning GRO on. Without NAPI, the host does not receive frames
    /// that XDP redirects into the port. With NAPI, other packets need another soft interrupt. GRO
    /// also merges TCP segments, but only after the chain.
    pub fn set_napi(&self) -> myelin_linux::Result<()> {
        self.enter(|| Ethtool::open()?.set(HOST_LINK, &[Offload::GenericReceive], true))?
    }
}

/// A client and a server that no chain connects yet. Their ports are up. Dropping the value removes
/// both hosts. Programs that still run on a host continue without a link. If the removal of an
/// object fails, the object stays in the journal.
#[derive(Debug)]
pub struct EndHosts {
    /// Sends the chain's traffic.
    pub client: Host,
    /// Receives the chain's traffic.
    pub server: Host,
    _resources: ResourceGuards,
}

impl EndHosts {
    /// Makes both hosts. If a step fails, removes all objects.
    pub fn create(config: &Config<'_>, journal: &Journal) -> Result<Self> {
        let failed = |cause| Error {
            chain: config.chain.to_owned(),
            cause,
        };
        let pairs =
            addressing::choose_addresses(config.matches).map_err(|cause| failed(cause.into()))?;
        let min_mtu = if pairs.iter().any(|pair| pair.server.is_ipv6()) {
            MIN_MTU_V6
        } else {
            MIN_MTU_V4
        };
        let mtu = config.mtu;
        if !(min_mtu..=MAX_MTU).contains(&mtu) {
            let range = format!("{min_mtu} to {MAX_MTU}");
            let cause = format!("an MTU of {mtu} bytes is out of range ({range})");
            return Err(failed(cause.into()));
        }
        let builder = HostBuilder {
            config,
            names: EndHostNames::new(config.run, config.chain),
            pairs,
        };
        builder
            .create(journal)
            .map_err(|cause| failed(cause.into()))
    }

    /// Returns the host with this role.
    pub fn host(&self, role: Role) -> &Host {
        match role {
            Role::Client => &self.client,
            Role::Server => &self.server,
        }
    }
}

/// Inputs for the creation of both hosts.
struct HostBuilder<'a> {
    config: &'a Config<'a>,
    names: EndHostNames,
    pairs: Vec<AddressPair>,
}

impl HostBuilder<'_> {
    fn create(&self, journal: &Journal) -> myelin_linux::Result<EndHosts> {
        // If a step fails, dropping the guards removes the objects.
        let mut guards = ResourceGuards::default();
        let mut netlink = Netlink::open()?;
        let [client, server, client_link, server_link] = self.names.resources();
        let mut create_namespace = |role, resource| {
            let (guard, netns) = journal.make(resource, || self.create_namespace(role))?;
            guards.0.push(guard);
            myelin_linux::Result::Ok(netns)
        };
        let namespaces = [
            create_namespace(Role::Client, client)?,
            create_namespace(Role::Server, server)?,
        ];
        let links = Role::BOTH.into_iter().zip([client_link, server_link]);
        for ((role, resource), netns) in links.zip(&namespaces) {
            let request = self.veth_request(role, netns)?;
            let (guard, ()) = journal.make(resource, || netlink.apply([request]))?;
            guards.0.push(guard);
        }
        let [client, server] = namespaces;
        let hosts = [
            self.describe_host(&mut netlink, Role::Client, client)?,
            self.describe_host(&mut netlink, Role::Server, server)?,
        ];
        for host in &hosts {
            // With IPv6, the caller's stack would send packets to a port, among the chain's
            // packets.
            sysctl::disable_ipv6(&host.port.name, true)?;
            netlink.apply([
                link::disable_ipv6_autoconfiguration(&host.port),
                link::set_up(&host.port),
            ])?;
        }
        for host in &hosts {
            host.enter(|| self.configure(host))??;
        }
        wait_until_operational(&mut netlink, &hosts)?;
        let [client, server] = hosts;
        Ok(EndHosts {
            client,
            server,
            _resources: guards,
        })
    }

    fn create_namespace(&self, role: Role) -> myelin_linux::Result<Netns> {
        let chain = self.config.chain;
        let remedy = format!("a chain of that name is deployed: `myelin down {chain}` removes it");
        create_netns(&self.names.netns(role), &self.names.owner(), remedy)
    }

    /// Returns a request that makes the host's link and its port.
    fn veth_request(&self, role: Role, netns: &Netns) -> myelin_linux::Result<Request> {
        let mtu = Some(self.config.mtu);
        let port = VethEnd {
            name: &self.names.port(role),
            namespace: None,
            mac: Some(self.names.port_mac(role)),
            mtu,
        };
        let inside = VethEnd {
            name: HOST_LINK,
            namespace: Some(netns),
            mac: Some(self.names.host_mac(role)),
            mtu,
        };
        link::create_veth(&port, &inside)
    }

    fn describe_host(
        &self,
        netlink: &mut Netlink,
        role: Role,
        netns: Netns,
    ) -> myelin_linux::Result<Host> {
        let port = netlink.link(&self.names.port(role))?;
        Ok(Host {
            role,
            netns,
            link: LinkId {
                index: port.peer.unwrap_or_default(),
                name: HOST_LINK.to_owned(),
            },
            mac: self.names.host_mac(role),
            addresses: self
                .pairs
                .iter()
                .map(|pair| address_of(pair, role))
                .collect(),
            port: port.id(),
            port_mac: self.names.port_mac(role),
        })
    }

    /// Configures link, addresses and routes. Runs inside the host.
    fn configure(&self, host: &Host) -> myelin_linux::Result<()> {
        if host.addresses.iter().any(IpAddr::is_ipv6) {
            // For addresses that a user adds later. `address::add` skips the detection itself.
            sysctl::set_accept_dad(HOST_LINK, 0)?;
            sysctl::set_router_solicitations(HOST_LINK, 0)?;
        } else {
            sysctl::disable_ipv6(HOST_LINK, true)?;
        }
        let mut netlink = Netlink::open()?;
        let loopback = netlink.link("lo")?;
        let opposite = host.role.opposite();
        let mut requests = vec![
            link::set_up(&loopback.id()),
            link::disable_ipv6_autoconfiguration(&host.link),
        ];
        requests.extend(self.pairs.iter().map(|pair| {
            let own = address_of(pair, host.role);
            address::add(&host.link, own, host_prefix_len(own))
        }));
        requests.push(link::set_up(&host.link));
        let far_mac = self.names.host_mac(opposite);
        requests.extend(
            self.pairs
                .iter()
                .flat_map(|pair| routes_to(&host.link, address_of(pair, opposite), far_mac)),
        );
        netlink.apply(requests)
    }
}

/// Returns requests that make the far host a neighbour and the default gateway. So packets to any
/// address that a chain may match reach the far host.
fn routes_to(link: &LinkId, address: IpAddr, mac: Mac) -> [Request; 3] {
    [
        neighbour::add_permanent(link, address, mac),
        route::add_on_link(link, address, host_prefix_len(address)),
        route::add_default(link, address),
    ]
}

/// Makes a namespace of a chain for `owner`. If the namespace exists and belongs to `owner`, the
/// error contains `remedy`. If it belongs to another owner, the error names that owner.
pub fn create_netns(
    name: &str,
    owner: &str,
    remedy: impl Into<String>,
) -> myelin_linux::Result<Netns> {
    Netns::create_owned(name, owner).map_err(|error| match error.kind() {
        ErrorKind::Exists => match netns::owner(name) {
            Ok(Some(found)) if found == owner => error.remedy(remedy),
            Ok(Some(found)) => error.remedy(format!(
                "it belongs to another agent ({found}): rename the chain"
            )),
            _ => error,
        },
        _ => error,
    })
}

fn address_of(pair: &AddressPair, role: Role) -> IpAddr {
    match role {
        Role::Client => pair.client,
        Role::Server => pair.server,
    }
}

fn host_prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Waits until the ports are operational, because a port drops outgoing packets until then. The
/// hosts' links come up after their ports, so the kernel activates the hosts' links immediately.
fn wait_until_operational(netlink: &mut Netlink, hosts: &[Host]) -> myelin_linux::Result<()> {
    let deadline = Instant::now() + OPERATIONAL_TIMEOUT;
    for host in hosts {
        while !netlink.link_by_index(host.port.index)?.operational {
            if Instant::now() > deadline {
                let action = format!("bring link `{}` into operation", host.port.name);
                return Err(myelin_linux::Error::new(
                    action,
                    ErrorKind::Busy,
                    "the kernel did not report the link as operational within 2 s",
                ));
            }
            thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
