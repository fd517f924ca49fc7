//! Routes of the main table.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};

use crate::Result;
use crate::address::family_of;
use crate::link::LinkId;
use crate::netlink::{Netlink, Request};

/// Adds a route to a `destination` that is directly on the link.
pub fn add_on_link(link: &LinkId, destination: IpAddr, prefix_length: u8) -> Request {
    let action = format!(
        "add the route to {destination}/{prefix_length} on link `{}`",
        link.name
    );
    let mut message = build_message(link, destination);
    message.header.destination_prefix_length = prefix_length;
    message.header.scope = if destination.is_ipv4() {
        RouteScope::Link
    } else {
        RouteScope::Universe
    };
    message
        .attributes
        .push(RouteAttribute::Destination(RouteAddress::from(destination)));
    Request::create(action, RouteNetlinkMessage::NewRoute(message))
}

/// Adds the default route of `gateway`'s address family. `gateway` is directly on the link, even if
/// no route leads to its address.
pub fn add_default(link: &LinkId, gateway: IpAddr) -> Request {
    let action = format!(
        "add the default route via {gateway} on link `{}`",
        link.name
    );
    let message = build_gateway(link, gateway);
    Request::create(action, RouteNetlinkMessage::NewRoute(message))
}

/// Sets the route to a network. `gateway` is directly on the link, even if no route leads to its
/// address. A route to the same network goes.
pub fn set_gateway(
    link: &LinkId,
    (network, prefix_length): (IpAddr, u8),
    gateway: IpAddr,
) -> Request {
    let action = format!(
        "add the route to {network}/{prefix_length} via {gateway} on link `{}`",
        link.name
    );
    let mut message = build_gateway(link, gateway);
    message.header.destination_prefix_length = prefix_length;
    if prefix_length > 0 {
        let destination = RouteAttribute::Destination(RouteAddress::from(network));
        message.attributes.push(destination);
    }
    Request::replace(action, RouteNetlinkMessage::NewRoute(message))
}

fn build_gateway(link: &LinkId, gateway: IpAddr) -> RouteMessage {
    let mut message = build_message(link, gateway);
    message.header.flags = RouteFlags::Onlink;
    message
        .attributes
        .push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    message
}

impl Netlink {
    /// Returns the next hop on the way to `destination` over the link: a gateway, or `destination`
    /// itself.
    ///
    /// # Errors
    /// No route leads there over this link.
    pub fn next_hop(&mut self, link: &LinkId, destination: IpAddr) -> Result<IpAddr> {
        let mut message = RouteMessage::default();
        message.header.address_family = family_of(destination);
        message.header.destination_prefix_length = if destination.is_ipv4() { 32 } else { 128 };
        message.attributes = vec![
            RouteAttribute::Destination(RouteAddress::from(destination)),
            RouteAttribute::Oif(link.index),
        ];
        let action = format!("find the route to {destination} over link `{}`", link.name);
        let answer = self.get(&action, &RouteNetlinkMessage::GetRoute(message))?;
        let RouteNetlinkMessage::NewRoute(route) = answer else {
            return Ok(destination);
        };
        let gateway = route
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => Some(IpAddr::V4(*gateway)),
                RouteAttribute::Gateway(RouteAddress::Inet6(gateway)) => Some(IpAddr::V6(*gateway)),
                _ => None,
            });
        Ok(gateway.unwrap_or(destination))
    }
}

fn build_message(link: &LinkId, address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(address);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![RouteAttribute::Oif(link.index)];
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Namespace, root_or_skip, stdout_of};
    use crate::{address, link};

    #[test]
    fn ip_route_shows_added_routes() {
        if !root_or_skip("ip_route_shows_added_routes") {
            return;
        }
        let namespace = Namespace::new("route");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        netlink
            .apply([link::create_bridge("br0").unwrap()])
            .unwrap();
        let bridge = netlink.link("br0").unwrap().id();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        netlink
            .apply([
                link::set_up(&bridge),
                address::add(&bridge, ip("10.9.0.1"), 32),
                address::add(&bridge, ip("fd00::9:1"), 128),
                add_on_link(&bridge, ip("10.9.0.2"), 32),
                add_on_link(&bridge, ip("fd00::9:2"), 128),
                add_default(&bridge, ip("10.9.0.2")),
                add_default(&bridge, ip("fd00::9:2")),
                set_gateway(&bridge, (ip("10.8.0.0"), 16), ip("10.9.0.9")),
                set_gateway(&bridge, (ip("10.8.0.0"), 16), ip("10.9.0.2")),
                set_gateway(&bridge, (ip("0.0.0.0"), 0), ip("10.9.0.2")),
                set_gateway(&bridge, (ip("fd08::"), 64), ip("fd00::9:2")),
            ])
            .unwrap();
        let name = namespace.name().unwrap();
        let v4 = stdout_of("ip", &["-n", name, "route"]);
        assert!(
            v4.contains("10.9.0.2 dev br0 proto static scope link"),
            "{v4}"
        );
        assert!(
            v4.contains("default via 10.9.0.2 dev br0 proto static onlink"),
            "{v4}"
        );
        assert!(
            v4.contains("10.8.0.0/16 via 10.9.0.2 dev br0 proto static onlink"),
            "{v4}"
        );
        assert!(!v4.contains("10.9.0.9"), "{v4}");
        let v6 = stdout_of("ip", &["-n", name, "-6", "route"]);
        assert!(v6.contains("fd00::9:2 dev br0 proto static"), "{v6}");
        assert!(
            v6.contains("default via fd00::9:2 dev br0 proto static"),
            "{v6}"
        );
        assert!(
            v6.contains("fd08::/64 via fd00::9:2 dev br0 proto static"),
            "{v6}"
        );
    }
}
