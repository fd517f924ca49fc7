//! Neighbour tables (ARP, NDP).

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;

use crate::Result;
use crate::address::family_of;
use crate::link::{LinkId, Mac};
use crate::netlink::{Netlink, Request};

/// Adds a permanent neighbour entry for `address` with `mac` on the link. The kernel then never
/// resolves the address.
pub fn add_permanent(link: &LinkId, address: IpAddr, mac: Mac) -> Request {
    let mut message = build_message(link, address);
    message.header.state = NeighbourState::Permanent;
    let lladdr = NeighbourAttribute::LinkLayerAddress(mac.0.to_vec());
    message.attributes.push(lladdr);
    let action = format!("set neighbour {address} to {mac} on link `{}`", link.name);
    Request::replace(action, RouteNetlinkMessage::NewNeighbour(message))
}

/// Asks the kernel to resolve `address` on the link, or to check the present entry.
pub fn resolve(link: &LinkId, address: IpAddr) -> Request {
    let mut message = build_message(link, address);
    message.header.state = NeighbourState::None;
    message.header.flags = NeighbourFlags::Use;
    let action = format!("resolve neighbour {address} on link `{}`", link.name);
    Request::replace(action, RouteNetlinkMessage::NewNeighbour(message))
}

fn build_message(link: &LinkId, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family_of(address);
    message.header.ifindex = link.index;
    message.header.kind = RouteType::Unicast;
    let destination = match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    };
    message.attributes = vec![NeighbourAttribute::Destination(destination)];
    message
}

/// An entry of a neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The Ethernet address.
    pub mac: Mac,
    /// Whether the kernel knows that the neighbour has this address now. An entry that is not
    /// confirmed still serves.
    pub is_confirmed: bool,
}

impl Netlink {
    /// Returns the entry of `address` on the link; `None` without a resolved entry.
    pub fn neighbour(&mut self, link: &LinkId, address: IpAddr) -> Result<Option<Neighbour>> {
        let mut message = build_message(link, address);
        // The kernel refuses any other type.
        message.header.kind = RouteType::Unspec;
        let message = RouteNetlinkMessage::GetNeighbour(message);
        let action = format!("find neighbour {address} on link `{}`", link.name);
        match self.get(&action, &message) {
            Ok(answer) => Ok(parse_neighbour(&answer)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn parse_neighbour(answer: &RouteNetlinkMessage) -> Option<Neighbour> {
    let RouteNetlinkMessage::NewNeighbour(entry) = answer else {
        return None;
    };
    let is_confirmed = match entry.header.state {
        NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp => true,
        NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe => false,
        _ => return None,
    };
    let mut attributes = entry.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Some(Neighbour {
            mac: Mac(bytes.as_slice().try_into().ok()?),
            is_confirmed,
        }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;
    use crate::tests::{Namespace, root_or_skip, stdout_of};

    #[test]
    fn ip_neighbour_shows_permanent_entries() {
        if !root_or_skip("ip_neighbour_shows_permanent_entries") {
            return;
        }
        let namespace = Namespace::new("neighbour");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        netlink
            .apply([link::create_bridge("br0").unwrap()])
            .unwrap();
        let bridge = netlink.link("br0").unwrap().id();
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let entries =
            ["10.9.0.2", "fd00::9"].map(|text| add_permanent(&bridge, text.parse().unwrap(), mac));
        netlink
            .apply(entries.into_iter().chain([link::set_up(&bridge)]))
            .unwrap();
        let shown = stdout_of(
            "ip",
            &[
                "-n",
                namespace.name().unwrap(),
                "neighbour",
                "show",
                "nud",
                "permanent",
            ],
        );
        assert!(
            shown.contains("10.9.0.2 dev br0 lladdr 02:00:00:00:00:09 PERMANENT"),
            "{shown}"
        );
        assert!(
            shown.contains("fd00::9 dev br0 lladdr 02:00:00:00:00:09 PERMANENT"),
            "{shown}"
        );
        let address = "10.9.0.2".parse().unwrap();
        let found = netlink.neighbour(&bridge, address).unwrap().unwrap();
        assert_eq!((found.mac, found.is_confirmed), (mac, true));
        let unknown = "10.9.0.3".parse().unwrap();
        assert_eq!(netlink.neighbour(&bridge, unknown).unwrap(), None);
        netlink.apply([resolve(&bridge, unknown)]).unwrap();
        // A second request for the same entry succeeds.
        netlink
            .apply([add_permanent(&bridge, "10.9.0.2".parse().unwrap(), mac)])
            .unwrap();
    }
}
