//! A client and a server in separate network namespaces, joined by a cable or by a third namespace.
//!
//! The links equal those of emulated end hosts (`myelin-emulator`): no offloads, permanent
//! neighbours. The namespaces have no names, so the kernel removes them with this process, even if
//! it is killed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use myelin_kernel::Hook;
use myelin_linux::address;
use myelin_linux::ethtool::{Ethtool, Offload};
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

/// The client or the server.
#[derive(Debug)]
pub(crate) struct EndHost {
    pub(crate) netns: Netns,
    pub(crate) address: IpAddr,
    pub(crate) mac: Mac,
}

impl EndHost {
    fn new(number: u8) -> Result<Self, Error> {
        let netns = Netns::anonymous()?;
        disable_ipv6(&netns)?;
        Ok(Self {
            netns,
            address: Ipv4Addr::new(10, 0, 0, number).into(),
            mac: Mac([2, 0, 0, 0, 0, number]),
        })
    }

    /// Gives `eth0` its address and the route to the far end, via the link address `next`.
    fn configure(&self, far: &Self, next: Mac) -> Result<(), Error> {
        self.configure_address()?;
        self.configure_route("eth0", far, next)
    }

    fn configure_address(&self) -> Result<(), Error> {
        let link = set_up(&self.netns, "eth0")?;
        Netlink::open_in(&self.netns)?.apply([address::add(&link, self.address, 32)])?;
        Ok(())
    }

    fn configure_route(&self, link: &str, far: &Self, next: Mac) -> Result<(), Error> {
        let mut netlink = Netlink::open_in(&self.netns)?;
        let link = netlink.link(link)?.id();
        netlink.apply([
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

    /// Turns GRO on, which enables NAPI. Without NAPI this end does not receive frames that XDP
    /// redirects.
    pub(crate) fn enable_napi(&self) -> Result<(), Error> {
        self.netns
            .enter(|| Ethtool::open()?.set("eth0", &[Offload::GenericReceive], true))??;
        Ok(())
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
        let netns = Netns::anonymous()?;
        disable_ipv6(&netns)?;
        let inner = VethEnd {
            namespace: Some(&netns),
            ..veth_end("eth0", None, Mac([2, 0, 0, 0, 2, 0]))
        };
        let mut netlink = Netlink::open_in(&self.netns)?;
        netlink.apply([link::create_veth(
            &veth_end(name, None, Mac([2, 0, 0, 0, 2, 1])),
            &inner,
        )?])?;
        set_up(&self.netns, name)?;
        set_up(&netns, "eth0")?;
        wait_until_operational(&mut netlink, name)?;
        Ok(netns)
    }
}

/// Client and server on one veth pair.
pub(crate) fn create_cable() -> Result<(EndHost, EndHost), Error> {
    let (client, server) = (EndHost::new(1)?, EndHost::new(2)?);
    let mut netlink = Netlink::open_in(&client.netns)?;
    netlink.apply([link::create_veth(
        &veth_end("eth0", None, client.mac),
        &veth_end("eth0", Some(&server), server.mac),
    )?])?;
    client.configure(&server, server.mac)?;
    server.configure(&client, client.mac)?;
    wait_until_operational(&mut netlink, "eth0")?;
    Ok((client, server))
}

impl Network {
    /// Both ends with links to a third namespace, which does not forward yet. With `routed`, the
    /// ends send to that namespace's links, as to a router; otherwise to each other.
    pub(crate) fn create(routed: bool) -> Result<Self, Error> {
        let network = Self::create_links()?;
        let (client, server) = (&network.client, &network.server);
        client.configure(server, if routed { CLIENT_PORT_MAC } else { server.mac })?;
        server.configure(client, if routed { SERVER_PORT_MAC } else { client.mac })?;
        network.wait_operational()
    }

    /// As [`Network::create`] for frames to the server. Replies use a separate cable.
    pub(crate) fn with_reply_cable() -> Result<Self, Error> {
        let network = Self::create_links()?;
        let (client, server) = (&network.client, &network.server);
        let mut netlink = Netlink::open_in(&client.netns)?;
        netlink.apply([link::create_veth(
            &veth_end("eth1", None, client.mac),
            &veth_end("eth1", Some(server), server.mac),
        )?])?;
        for host in [client, server] {
            set_up(&host.netns, "eth1")?;
            host.netns.enter(|| {
                // Packets arrive on a link without a route to their sender.
                ["all", "eth0", "eth1"]
                    .into_iter()
                    .try_for_each(|link| sysctl::set_rp_filter(link, 0))
            })??;
        }
        client.configure(server, server.mac)?;
        server.configure_address()?;
        server.configure_route("eth1", client, client.mac)?;
        wait_until_operational(&mut netlink, "eth1")?;
        network.wait_operational()
    }

    /// Makes the links, without addresses.
    fn create_links() -> Result<Self, Error> {
        let (client, server) = (EndHost::new(1)?, EndHost::new(2)?);
        let netns = Netns::anonymous()?;
        disable_ipv6(&netns)?;
        let mut netlink = Netlink::open_in(&netns)?;
        netlink.apply([
            link::create_veth(
                &veth_end(CLIENT_LINK, None, CLIENT_PORT_MAC),
                &veth_end("eth0", Some(&client), client.mac),
            )?,
            link::create_veth(
                &veth_end(SERVER_LINK, None, SERVER_PORT_MAC),
                &veth_end("eth0", Some(&server), server.mac),
            )?,
        ])?;
        let middle = MiddleNamespace {
            client: set_up(&netns, CLIENT_LINK)?,
            server: set_up(&netns, SERVER_LINK)?,
            netns,
        };
        Ok(Self {
            client,
            server,
            middle,
        })
    }

    /// Waits until the links in the middle are operational.
    fn wait_operational(self) -> Result<Self, Error> {
        let mut netlink = Netlink::open_in(&self.middle.netns)?;
        for port in [CLIENT_LINK, SERVER_LINK] {
            wait_until_operational(&mut netlink, port)?;
        }
        Ok(self)
    }

    /// Drops all frames in the server's driver, until the result is dropped.
    pub(crate) fn sink(&self) -> Result<OwnedFd, Error> {
        self.attach_at_server(ebpf::load_sink()?.as_fd())
    }

    /// Attaches an XDP program to the server's driver, until the result is dropped.
    pub(crate) fn attach_at_server(&self, program: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        self.server.enable_napi()?;
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

/// Turns IPv6 off in the namespace, so that only measured packets are sent.
fn disable_ipv6(netns: &Netns) -> Result<(), Error> {
    netns.enter(|| {
        sysctl::disable_ipv6("all", true)?;
        sysctl::disable_ipv6(sysctl::NEW_LINKS, true)
    })??;
    Ok(())
}

/// Turns off the offloads of a link in the namespace, and sets it up.
fn set_up(netns: &Netns, name: &str) -> Result<LinkId, Error> {
    netns.enter(|| Ethtool::open()?.disable_offloads(name))??;
    let mut netlink = Netlink::open_in(netns)?;
    let link = netlink.link(name)?.id();
    netlink.apply([link::set_up(&link)])?;
    Ok(link)
}

fn veth_end<'a>(name: &'a str, host: Option<&'a EndHost>, mac: Mac) -> VethEnd<'a> {
    VethEnd {
        namespace: host.map(|host| &host.netns),
        mac: Some(mac),
        mtu: Some(MTU),
        ..VethEnd::named(name)
    }
}

/// Waits until the link is operational. Until then it drops the frames to send.
fn wait_until_operational(netlink: &mut Netlink, link: &str) -> Result<(), Error> {
    let deadline = Instant::now() + OPERATIONAL_LIMIT;
    while !netlink.link(link)?.operational && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}
