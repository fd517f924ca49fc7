//! IPv6 packets that belong to one link. A router on that link changes none of them.

use crate::five_tuple::ICMPV6;

/// Length of the IPv6 header.
const HEADER: usize = 40;
/// Router solicitation, router advertisement, neighbour solicitation, neighbour advertisement,
/// redirect (RFC 4861, 4).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// Whether an IPv6 packet, from its header on, stays on its link: its source or destination is
/// link-local (RFC 4291, 2.5.6), its destination is a group of the interface or of the link (2.7),
/// or it is neighbour discovery, which is invalid unless its hop limit is 255 (RFC 4861, 7.1).
pub fn stays_on_link(packet: &[u8]) -> bool {
    let Some(header) = packet.first_chunk::<HEADER>() else {
        return false;
    };
    let is_link_local = |at: usize| header[at] == 0xfe && header[at + 1] & 0xc0 == 0x80;
    let is_group_of_link = header[24] == 0xff && matches!(header[25] & 0xf, 1 | 2);
    let is_discovery = header[6] == ICMPV6
        && header[7] == u8::MAX
        && packet
            .get(HEADER)
            .is_some_and(|kind| NEIGHBOUR_DISCOVERY.contains(kind));
    is_link_local(8) || is_link_local(24) || is_group_of_link || is_discovery
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(source: &str, destination: &str, next: u8, hop_limit: u8, kind: u8) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 1, next, hop_limit];
        for address in [source, destination] {
            let address: std::net::Ipv6Addr = address.parse().unwrap();
            packet.extend(address.octets());
        }
        packet.push(kind);
        packet
    }

    #[test]
    fn only_packets_of_the_link_stay_on_it() {
        let (one, other) = ("fd00::1", "fd00::2");
        for (stays, source, destination, next, hop_limit, kind) in [
            (true, "fe80::1", other, 17, 64, 0),
            (true, one, "febf::1", 17, 64, 0),
            (false, one, "fec0::1", 17, 64, 0),
            (true, one, "ff02::1:ff00:2", 58, 255, 135),
            (true, one, "ff01::1", 17, 1, 0),
            (false, one, "ff05::2", 17, 64, 0),
            (true, one, other, 58, 255, 133),
            (true, one, other, 58, 255, 137),
            (false, one, other, 58, 254, 136),
            (false, one, other, 58, 255, 128),
            (false, one, other, 17, 255, 135),
        ] {
            let packet = packet(source, destination, next, hop_limit, kind);
            assert_eq!(
                stays_on_link(&packet),
                stays,
                "{source} {destination} {kind}"
            );
        }
        assert!(!stays_on_link(&packet("fe80::1", other, 17, 64, 0)[..39]));
    }
}
