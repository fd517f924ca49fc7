//! Two hosts joined by one link without a chain: the baseline of all other measurements.

use std::net::{IpAddr, Ipv4Addr};

use myelin_linux::address;
use myelin_linux::ethtool::Ethtool;
use myelin_linux::link::{self, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;

/// The two hosts. Their namespaces have no names, so the kernel removes namespaces and link with
/// this object, even if the process is killed.
pub(super) struct DirectLink {
    pub(super) client: Netns,
    pub(super) server: Netns,
}

/// The client's address.
pub(super) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// The server's address.
pub(super) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

impl DirectLink {
    /// Makes both hosts and their link, and sets the link up.
    pub(super) fn create() -> myelin_linux::Result<Self> {
        let (client, server) = (Netns::anonymous()?, Netns::anonymous()?);
        let end = |namespace| VethEnd {
            namespace: Some(namespace),
            ..VethEnd::named("eth0")
        };
        Netlink::open_in(&client)?
            .apply([link::create_veth(&VethEnd::named("eth0"), &end(&server))?])?;
        for (host, own) in [(&client, CLIENT), (&server, SERVER)] {
            host.enter(|| -> myelin_linux::Result<()> {
                let mut netlink = Netlink::open()?;
                let eth0 = netlink.link("eth0")?;
                netlink.apply([address::add(&eth0.id(), own, 24), link::set_up(&eth0.id())])?;
                Ethtool::open()?.disable_offloads("eth0")
            })??;
        }
        Ok(Self { client, server })
    }
}
