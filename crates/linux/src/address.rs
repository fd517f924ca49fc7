//! Addresses of links.

use std::net::IpAddr;

use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::link::LinkId;
use crate::netlink::Request;

/// Adds an address to the link. An IPv6 address is usable at once, without duplicate address
/// detection (RFC 4862, 5.4), which would take a second and send packets.
pub fn add(link: &LinkId, address: IpAddr, prefix_length: u8) -> Request {
    let mut message = AddressMessage::default();
    message.header.family = family_of(address);
    message.header.prefix_len = prefix_length;
    message.header.scope = AddressScope::Universe;
    message.header.index = link.index;
    message.header.flags = AddressHeaderFlags::Nodad;
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
        AddressAttribute::Flags(AddressFlags::Nodad),
    ];
    let action = format!(
        "give link `{}` the address {address}/{prefix_length}",
        link.name
    );
    Request::create(action, RouteNetlinkMessage::NewAddress(message))
}

pub(crate) fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::link;
    use crate::netlink::Netlink;
    use crate::tests::{Namespace, root_or_skip, stdout_of};

    #[test]
    fn addresses_of_both_families_are_usable_at_once() {
        if !root_or_skip("addresses_of_both_families_are_usable_at_once") {
            return;
        }
        let namespace = Namespace::new("address");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        netlink
            .apply([link::create_bridge("br0").unwrap()])
            .unwrap();
        let bridge = netlink.link("br0").unwrap().id();
        let wanted: [(IpAddr, u8); 2] = [
            ("10.9.0.1".parse().unwrap(), 24),
            ("fd00::9".parse().unwrap(), 128),
        ];
        netlink
            .apply([
                link::disable_ipv6_autoconfiguration(&bridge),
                link::set_up(&bridge),
            ])
            .unwrap();
        netlink
            .apply(wanted.map(|(address, length)| add(&bridge, address, length)))
            .unwrap();
        let name = namespace.name().unwrap();
        let shown = stdout_of("ip", &["-n", name, "-o", "address", "show", "br0"]);
        for address in ["inet 10.9.0.1/24 ", "inet6 fd00::9/128 "] {
            assert!(shown.contains(address), "{shown}");
        }
        assert!(!shown.contains("tentative"), "{shown}");
        let again = netlink.apply([add(&bridge, wanted[0].0, 24)]).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists);
        assert!(
            again.to_string().contains("`br0` the address 10.9.0.1/24"),
            "{again}"
        );
    }
}
