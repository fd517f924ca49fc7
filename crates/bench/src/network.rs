//! A client and a server in separate network namespaces, joined by a cable or by a third namespace.
//!
//! The links equal those of emulated end hosts (`myelin-emulator`): no offloads unless stated,
//! permanent neighbours. The namespaces have no names, so the kernel removes them with this
//! process, even if it is killed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use myelin_kernel::Hook;
use myelin_linux::address;
use myelin_linux::ethtool::{self, Ethtool, Offload};
use myelin_linux::link::{self, LinkId, Mac, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::packet_socket::PacketSender;
use myelin_linux::{neighbour, route, sysctl};
use myelin_measure::Sockets;

use crate::{Error, ebpf};

/// UDP ports of the probe's server and client.
pub(crate) const SERVER_PORT: u16 = 9000;
pub(crate) const CLIENT_PORT: u16 = 9001;
/// Names of the links in the middle namespace.
pub(crate) const CLIENT_LINK: &str = "client";
pub(crate) const SERVER_LINK: &str = "server";
pub(crate) const CLIENT_PORT_MAC: Mac = Mac([2, 0, 0, 0, 1, 1]);
const SERVER_PORT_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
/// MTU of all links, as of end hosts, bytes.
const MTU: u32 = 1500;
/// The kernel makes a link operational in a separate work item, usually within a millisecond.
const OPERATIONAL_LIMIT: Duration = Duration::from_secs(2);

/// Offloads of the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offloads {
    Off,
    /// The kernel's defaults.
    Default,
}

/// An end of a link: its namespace, its name and its MAC address.
type LinkEnd<'a> = (&'a Netns, &'a str, Mac);

/// The client or the server.
#[derive(Debug)]
pub(crate) struct EndHost {
    pub(crate) netns: Netns,
    pub(crate) address: IpAddr,
    pub(crate) mac: Mac,
}

impl EndHost {
    fn new(number: u8) -> Result<Self, Error> {
        Ok(Self {
            netns: create_namespace()?,
            address: Ipv4Addr::new(10, 0, 0, number).into(),
            mac: Mac([2, 0, 0, 0, 0, number]),
        })
    }

    /// Its end of a link named `name`.
    fn end<'a>(&'a self, name: &'a str) -> LinkEnd<'a> {
        (&self.netns, name, self.mac)
    }

    /// Gives `eth0` its address, and `link` the route to the far end, via the link address `next`.
    fn configure(&self, link: &str, far: &Self, next: Mac) -> Result<(), Error> {
        let mut netlink = Netlink::open_in(&self.netns)?;
        let near = netlink.link("eth0")?.id();
        let link = netlink.link(link)?.id();
        netlink.apply([
            address::add(&near, self.address, 32),
            neighbour::add_permanent(&link, far.address, next),
            route::add_on_link(&link, far.address, 32),
        ])?;
        Ok(())
    }

    /// A sender of this frame.
    pub(crate) fn sender(&self, frame: &[u8]) -> Result<PacketSender, Error> {
        self.netns.enter(|| {
            let link = Netlink::open()?.link("eth0")?.id();
            Ok(PacketSender::new(link.index, frame)?)
        })?
    }
}

/// Both ends, joined by a third namespace.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) client: EndHost,
    pub(crate) server: EndHost,
    pub(crate) middle: MiddleNamespace,
}

/// The namespace between the ends, with a link to each.
#[derive(Debug)]
pub(crate) struct MiddleNamespace {
    pub(crate) netns: Netns,
    pub(crate) client: LinkId,
    pub(crate) server: LinkId,
}

impl MiddleNamespace {
    /// Adds a namespace with a link to this one: `name` here, `eth0` there.
    pub(crate) fn add_namespace(&self, name: &str) -> Result<Netns, Error> {
        let netns = create_namespace()?;
        let far = (&netns, "eth0", Mac([2, 0, 0, 0, 2, 0]));
        let near = (&self.netns, name, Mac([2, 0, 0, 0, 2, 1]));
        join(near, far, Offloads::Off)?;
        Ok(netns)
    }
}

/// Client and server on one veth pair.
pub(crate) fn create_cable(offloads: Offloads) -> Result<(EndHost, EndHost), Error> {
    let (client, server) = (EndHost::new(1)?, EndHost::new(2)?);
    join(client.end("eth0"), server.end("eth0"), offloads)?;
    client.configure("eth0", &server, server.mac)?;
    server.configure("eth0", &client, client.mac)?;
    Ok((client, server))
}

impl Network {
    /// Both ends with links to a third namespace, which does not forward yet. With `routed`, the
    /// ends send to that namespace's links, as to a router; otherwise to each other.
    pub(crate) fn create(routed: bool) -> Result<Self, Error> {
        Self::create_with(routed, Offloads::Off)
    }

    /// As [`Network::create`], with these offloads.
    pub(crate) fn create_with(routed: bool, offloads: Offloads) -> Result<Self, Error> {
        let network = Self::create_links(offloads)?;
        let (client, server) = (&network.client, &network.server);
        let (to_server, to_client) = if routed {
            (CLIENT_PORT_MAC, SERVER_PORT_MAC)
        } else {
            (server.mac, client.mac)
        };
        client.configure("eth0", server, to_server)?;
        server.configure("eth0", client, to_client)?;
        Ok(network)
    }

    /// As [`Network::create`] for frames to the server. Replies use a separate cable.
    pub(crate) fn with_reply_cable() -> Result<Self, Error> {
        let network = Self::create_links(Offloads::Off)?;
        let (client, server) = (&network.client, &network.server);
        join(client.end("eth1"), server.end("eth1"), Offloads::Off)?;
        for host in [client, server] {
            host.netns.enter(|| {
                // Packets arrive on a link without a route to their sender.
                ["all", "eth0", "eth1"]
                    .into_iter()
                    .try_for_each(|link| sysctl::set_rp_filter(link, 0))
            })??;
        }
        client.configure("eth0", server, server.mac)?;
        server.configure("eth1", client, client.mac)?;
        Ok(network)
    }

    /// Makes the links, without addresses.
    fn create_links(offloads: Offloads) -> Result<Self, Error> {
        let (client, server) = (EndHost::new(1)?, EndHost::new(2)?);
        let netns = create_namespace()?;
        let port =
            |name, host: &EndHost, mac| join((&netns, name, mac), host.end("eth0"), offloads);
        let middle = MiddleNamespace {
            client: port(CLIENT_LINK, &client, CLIENT_PORT_MAC)?,
            server: port(SERVER_LINK, &server, SERVER_PORT_MAC)?,
            netns,
        };
        Ok(Self {
            client,
            server,
            middle,
        })
    }

    /// Drops all frames in the server's driver, until the result is dropped.
    pub(crate) fn sink(&self) -> Result<OwnedFd, Error> {
        self.attach_at_server(ebpf::load_sink()?.as_fd())
    }

    /// Attaches an XDP program to the server's driver, until the result is dropped.
    pub(crate) fn attach_at_server(&self, program: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        enable_napi(&self.server.netns, "eth0")?;
        self.server.netns.enter(|| {
            let link = Netlink::open()?.link("eth0")?.id();
            ebpf::attach(program, Hook::Xdp, link.index)
        })?
    }

    /// The probe's sockets.
    pub(crate) fn sockets(&self) -> Result<Sockets, Error> {
        sockets(
            (&self.client.netns, self.client.address),
            (&self.server.netns, self.server.address),
        )
    }
}

/// The probe's sockets on client and server.
pub(crate) fn sockets(
    client: (&Netns, IpAddr),
    server: (&Netns, IpAddr),
) -> Result<Sockets, Error> {
    Ok(Sockets::bind(
        (Some(client.0), SocketAddr::new(client.1, CLIENT_PORT)),
        (Some(server.0), SocketAddr::new(server.1, SERVER_PORT)),
    )?)
}

/// Turns GRO of a link on, which enables NAPI. Without NAPI this end does not receive frames that
/// XDP redirects.
pub(crate) fn enable_napi(netns: &Netns, link: &str) -> Result<(), Error> {
    netns.enter(|| Ethtool::open()?.set(link, &[Offload::GenericReceive], true))??;
    Ok(())
}

/// A namespace without IPv6, so that only measured packets are sent.
fn create_namespace() -> Result<Netns, Error> {
    let netns = Netns::anonymous()?;
    netns.enter(|| {
        sysctl::disable_ipv6("all", true)?;
        sysctl::disable_ipv6(sysctl::NEW_LINKS, true)
    })??;
    Ok(netns)
}

fn veth_end((netns, name, mac): LinkEnd<'_>) -> VethEnd<'_> {
    VethEnd {
        namespace: Some(netns),
        mac: Some(mac),
        mtu: Some(MTU),
        ..VethEnd::named(name)
    }
}

/// Joins two namespaces by a veth pair that is up. Returns the near end.
fn join(near: LinkEnd<'_>, far: LinkEnd<'_>, offloads: Offloads) -> Result<LinkId, Error> {
    Netlink::open()?.apply([link::create_veth(&veth_end(near), &veth_end(far))?])?;
    set_up(far, offloads)?;
    let link = set_up(near, offloads)?;
    let mut netlink = Netlink::open_in(near.0)?;
    let deadline = Instant::now() + OPERATIONAL_LIMIT;
    // Until it is operational, it drops the frames to send.
    while !netlink.link(near.1)?.operational && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(link)
}

fn set_up((netns, name, _): LinkEnd<'_>, offloads: Offloads) -> Result<LinkId, Error> {
    netns.enter(|| {
        let mut netlink = Netlink::open()?;
        let link = netlink.link(name)?.id();
        match offloads {
            Offloads::Off => ethtool::set_up_without_offloads(&mut netlink, &link)?,
            Offloads::Default => netlink.apply([link::set_up(&link)])?,
        }
        Ok(link)
    })?
}
