//! Counters of a link: packets lost at transmission, and received packets (`IFLA_STATS64`,
//! if_link.h).

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, Stats64};

use crate::error::{Error, ErrorKind, Result};
use crate::netlink::Netlink;

impl Netlink {
    /// Returns the number of packets that the link with that index dropped or failed to transmit
    /// since the link's creation. On a veth this number includes redirected packets for which the
    /// other end's ring had no room. A qdisc counts its drops separately.
    ///
    /// # Errors
    /// The link does not exist.
    pub fn transmit_losses(&mut self, index: u32) -> Result<u64> {
        let stats = self.link_counters(index)?;
        Ok(stats.tx_dropped + stats.tx_errors)
    }

    /// Returns the number of packets that the link with that index has received since the link's
    /// creation.
    ///
    /// # Errors
    /// The link does not exist.
    pub fn received_packets(&mut self, index: u32) -> Result<u64> {
        Ok(self.link_counters(index)?.rx_packets)
    }

    fn link_counters(&mut self, index: u32) -> Result<Stats64> {
        let action = format!("read the counters of the link with index {index}");
        let mut message = LinkMessage::default();
        message.header.index = index;
        let answer = self.get(&action, &RouteNetlinkMessage::GetLink(message))?;
        parse_counters(answer)
            .ok_or_else(|| Error::new(action, ErrorKind::Other, "the kernel reported no counters"))
    }
}

fn parse_counters(message: RouteNetlinkMessage) -> Option<Stats64> {
    let RouteNetlinkMessage::NewLink(message) = message else {
        return None;
    };
    message
        .attributes
        .into_iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Stats64(stats) => Some(stats),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::link::{self, Mac, VethEnd};
    use crate::tests::{Namespace, root_or_skip};
    use crate::{address, neighbour, sysctl};

    #[test]
    fn packets_that_a_veth_cannot_transmit_are_counted() {
        if !root_or_skip("packets_that_a_veth_cannot_transmit_are_counted") {
            return;
        }
        let (here, there) = (Namespace::new("lossa"), Namespace::new("lossb"));
        let mut netlink = Netlink::open_in(&here).unwrap();
        let far = VethEnd {
            name: "eth0",
            namespace: Some(&there),
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            mtu: Some(600),
        };
        netlink
            .apply([link::create_veth(&VethEnd::named("near"), &far).unwrap()])
            .unwrap();
        let near = netlink.link("near").unwrap().id();
        let mut other = Netlink::open_in(&there).unwrap();
        let inner = other.link("eth0").unwrap().id();
        // Packets of IPv6 would change the counts at any time. The other end's MTU is too small for
        // IPv6.
        let ipv6 = here.enter(|| sysctl::disable_ipv6("near", true));
        ipv6.unwrap().unwrap();
        other.apply([link::set_up(&inner)]).unwrap();
        netlink.apply([link::set_up(&near)]).unwrap();
        netlink
            .apply([
                address::add(&near, "10.9.9.1".parse().unwrap(), 24),
                neighbour::add_permanent(
                    &near,
                    "10.9.9.2".parse().unwrap(),
                    Mac([2, 0, 0, 0, 0, 9]),
                ),
            ])
            .unwrap();
        let start = netlink.transmit_losses(near.index).unwrap();
        let send = |bytes: usize| {
            let sent = here.enter(|| {
                let socket = UdpSocket::bind("10.9.9.1:0").unwrap();
                socket.send_to(&vec![0; bytes], "10.9.9.2:9")
            });
            sent.unwrap().unwrap();
        };
        let received = other.received_packets(inner.index).unwrap();
        send(100);
        assert_eq!(netlink.transmit_losses(near.index).unwrap(), start);
        assert_eq!(other.received_packets(inner.index).unwrap(), received + 1);
        // These packets are longer than the MTU of the other end.
        (0..3).for_each(|_| send(1000));
        assert_eq!(netlink.transmit_losses(near.index).unwrap(), start + 3);
        assert!(
            netlink
                .transmit_losses(u32::MAX >> 1)
                .unwrap_err()
                .is_not_found()
        );
    }
}
