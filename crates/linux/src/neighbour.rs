//! Neighbour tables (ARP, NDP).

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;

use crate::address::family_of;
use crate::link::{LinkId, Mac};
use crate::netlink::Request;

/// Adds a permanent neighbour entry for `address` with `mac` on the link. The kernel then never
/// resolves the address.
pub fn add_permanent(link: &LinkId, address: IpAddr, mac: Mac) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = family_of(address);
    message.header.ifindex = link.index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unicast;
    let destination = match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    };
    message.attributes = vec![
        NeighbourAttribute::Destination(destination),
        NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()),
    ];
    let action = format!("set neighbour {address} to {mac} on link `{}`", link.name);
    Request::replace(action, RouteNetlinkMessage::NewNeighbour(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;
    use crate::netlink::Netlink;
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
        // A second request for the same entry succeeds.
        netlink
            .apply([add_permanent(&bridge, "10.9.0.2".parse().unwrap(), mac)])
            .unwrap();
    }
}
