//! Two hosts on links with the kernel's default offloads, as users bring them. A chain between such
//! links has an entry link.

use std::net::IpAddr;

use myelin_linux::link::{self, Mac, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{address, neighbour};

use super::direct::{CLIENT, SERVER};

/// The two hosts and the ports in front of them. The namespaces have no names, so the kernel
/// removes namespaces and links with this object, even if the process is killed.
pub(super) struct OwnLinks {
    pub(super) client: Netns,
    pub(super) server: Netns,
    /// The interface in front of the client, and that in front of the server.
    pub(super) ports: [String; 2],
}

impl OwnLinks {
    /// Makes both hosts and their links, and sets the links up.
    pub(super) fn create() -> myelin_linux::Result<Self> {
        let port = |side: &str| format!("my{}{side}", std::process::id());
        let hosts = [Netns::anonymous()?, Netns::anonymous()?];
        let ports = [port("oa"), port("ob")];
        let mut netlink = Netlink::open()?;
        for (host, port) in hosts.iter().zip(&ports) {
            let end = VethEnd {
                namespace: Some(host),
                ..VethEnd::named("eth0")
            };
            netlink.apply([link::create_veth(&VethEnd::named(port), &end)?])?;
            let port = netlink.link(port)?.id();
            netlink.apply([link::set_up(&port)])?;
        }
        let [client, server] = hosts;
        let macs = [read_mac(&client)?, read_mac(&server)?];
        configure(&client, CLIENT, (SERVER, macs[1]))?;
        configure(&server, SERVER, (CLIENT, macs[0]))?;
        Ok(Self {
            client,
            server,
            ports,
        })
    }
}

fn read_mac(host: &Netns) -> myelin_linux::Result<Option<Mac>> {
    Ok(Netlink::open_in(host)?.link("eth0")?.mac)
}

fn configure(
    host: &Netns,
    own: IpAddr,
    (peer, mac): (IpAddr, Option<Mac>),
) -> myelin_linux::Result<()> {
    let mut netlink = Netlink::open_in(host)?;
    let eth0 = netlink.link("eth0")?.id();
    netlink.apply([address::add(&eth0, own, 24), link::set_up(&eth0)])?;
    match mac {
        Some(mac) => netlink.apply([neighbour::add_permanent(&eth0, peer, mac)]),
        None => Ok(()),
    }
}
