//! Addresses of links.

use std::net::IpAddr;

use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::error::Result;
use crate::link::LinkId;
use crate::netlink::{Mode, Netlink, Request};

/// An address as a link has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Index of the link.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of the link's prefix, bits.
    pub prefix_length: u8,
    /// IPv6: still being checked for duplicates, so not usable yet.
    pub tentative: bool,
}

/// Gives the link an address. An IPv6 address is usable at once: no duplicate address detection (RFC 4862, 5.4), which
/// would take a second and send packets.
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
    Request::new(
        action,
        Mode::Create,
        RouteNetlinkMessage::NewAddress(message),
    )
}

impl Netlink {
    /// All addresses of a link.
    pub fn addresses(&mut self, link: &LinkId) -> Result<Vec<Address>> {
        let action = format!("list the addresses of link `{}`", link.name);
        let objects = self.dump(
            &action,
            &RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        )?;
        Ok(objects
            .iter()
            .filter_map(address_of)
            .filter(|address| address.link == link.index)
            .collect())
    }
}

pub(crate) fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn address_of(message: &RouteNetlinkMessage) -> Option<Address> {
    let RouteNetlinkMessage::NewAddress(message) = message else {
        return None;
    };
    let of = |local: bool| {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Local(address) if local => Some(*address),
                AddressAttribute::Address(address) if !local => Some(*address),
                _ => None,
            })
    };
    Some(Address {
        link: message.header.index,
        // On a point-to-point link IFA_ADDRESS is the other side's.
        address: of(true).or_else(|| of(false))?,
        prefix_length: message.header.prefix_len,
        tentative: message.header.flags.contains(AddressHeaderFlags::Tentative),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::link;
    use crate::testing::{Namespace, root_or_skip};

    #[test]
    fn both_families_are_usable_at_once() {
        if !root_or_skip("both_families_are_usable_at_once") {
            return;
        }
        let namespace = Namespace::new("address");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        netlink.apply([link::bridge("br0").unwrap()]).unwrap();
        let bridge = netlink.link("br0").unwrap().id();
        let wanted: [(IpAddr, u8); 2] = [
            ("10.9.0.1".parse().unwrap(), 24),
            ("fd00::9".parse().unwrap(), 128),
        ];
        netlink
            .apply([link::no_ipv6_autoconfiguration(&bridge), link::up(&bridge)])
            .unwrap();
        netlink
            .apply(wanted.map(|(address, length)| add(&bridge, address, length)))
            .unwrap();
        let found = netlink.addresses(&bridge).unwrap();
        assert_eq!(
            found
                .iter()
                .map(|found| (found.address, found.prefix_length))
                .collect::<Vec<_>>(),
            wanted
        );
        assert!(found.iter().all(|address| !address.tentative));
        let again = netlink.apply([add(&bridge, wanted[0].0, 24)]).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists);
        assert!(
            again.to_string().contains("`br0` the address 10.9.0.1/24"),
            "{again}"
        );
    }
}
