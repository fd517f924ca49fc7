//! The five header fields that identify a flow.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Addresses, protocol and ports of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FiveTuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family as the source.
    pub destination: IpAddr,
    /// IP protocol number; for IPv6, the number of the header after the last extension header.
    pub protocol: u8,
    /// Source port; `None` for a fragment and for any protocol but UDP and TCP.
    pub source_port: Option<u16>,
    /// Destination port; `None` exactly when `source_port` is `None`.
    pub destination_port: Option<u16>,
}

impl FiveTuple {
    /// Formats the protocol and the source endpoint: `udp 10.0.0.1:5000`.
    pub fn sender(&self) -> String {
        let source = format_endpoint(self.source, self.source_port);
        match self.protocol {
            TCP => format!("tcp {source}"),
            UDP => format!("udp {source}"),
            ICMP => format!("icmp {source}"),
            ICMPV6 => format!("icmpv6 {source}"),
            other => format!("protocol {other} {source}"),
        }
    }

    /// Returns the five-tuple of packets in the other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination = format_endpoint(self.destination, self.destination_port);
        write!(f, "{} > {destination}", self.sender())
    }
}

fn format_endpoint(address: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(
        || address.to_string(),
        |port| SocketAddr::new(address, port).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUPLE: FiveTuple = FiveTuple {
        source: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        destination: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 2)),
        protocol: UDP,
        source_port: Some(40_000),
        destination_port: Some(9_000),
    };

    #[test]
    fn display_shows_the_protocol_and_both_endpoints() {
        assert_eq!(TUPLE.to_string(), "udp 192.0.2.1:40000 > 198.51.100.2:9000");
        let fragment = FiveTuple {
            source_port: None,
            destination_port: None,
            protocol: 132,
            ..TUPLE
        };
        assert_eq!(
            fragment.to_string(),
            "protocol 132 192.0.2.1 > 198.51.100.2"
        );
    }

    #[test]
    fn reversed_swaps_endpoints_and_reverses_itself() {
        assert_eq!(
            TUPLE.reversed().to_string(),
            "udp 198.51.100.2:9000 > 192.0.2.1:40000"
        );
        assert_eq!(TUPLE.reversed().reversed(), TUPLE);
    }
}
