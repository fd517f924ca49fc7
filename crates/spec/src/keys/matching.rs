//! Reads the fields that select packets: prefixes, protocols, ports. Matches of chains and firewall
//! rules have these fields.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::prefix::PrefixError;
use myelin_packet::{FragmentHandling, Match, Prefix};

use super::field::{Field, Fields, whole_number};
use super::words::word_enum;
use super::{ConfigKey, Readable, TEXT, integer, keys};
use crate::printable::Printable;
use crate::suggest::nearest;

keys! {
    /// Keys of a match.
    KEYS {
        /// The source: an address or a prefix.
        "source" = TEXT;
        /// The destination: an address or a prefix.
        "destination" = TEXT;
        /// The protocol: udp, tcp, icmp, icmpv6, or an IP protocol number.
        "protocol" = TEXT;
        /// The source port. One port, no range.
        "sourcePort" = integer(0, 65535, "a port");
        /// The destination port. One port, no range.
        "destinationPort" = integer(0, 65535, "a port");
        /// IP fragments: follow (the chain of their first fragment; without it, dropped if the
        /// match names ports), drop (all that the match could take), or pass (by addresses and
        /// protocol only: past a match with ports).
        "fragments" = Fragments::KEY.with_default("follow");
    }
}

word_enum! {
    /// The words of `fragments`.
    #[derive(Default)]
    pub enum Fragments {
        /// The chain of the first fragment.
        #[default]
        Follow = "follow",
        /// Dropped.
        Drop = "drop",
        /// Classified by addresses and protocol.
        Pass = "pass",
    }
}

impl From<Fragments> for FragmentHandling {
    fn from(fragments: Fragments) -> Self {
        match fragments {
            Fragments::Follow => Self::Follow,
            Fragments::Drop => Self::Drop,
            Fragments::Pass => Self::Pass,
        }
    }
}

/// The remedy for a wildcard.
const ANY: &str = "remove the key: without it, every packet matches";

/// The protocols with names; a chain file has numbers for all others.
const PROTOCOLS: [(&str, u8); 4] = [
    ("udp", UDP),
    ("tcp", TCP),
    ("icmp", ICMP),
    ("icmpv6", ICMPV6),
];

/// `spec.match`.
impl Readable for Match {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        let before = field.faults.count();
        let fields = field.mapping(KEYS)?;
        let packets = read_packets(&fields, |key| read_port(&fields, key));
        let [source_port, destination_port] = packets.ports;
        let matches = Self {
            source: packets.source,
            destination: packets.destination,
            protocol: packets.protocol,
            source_port,
            destination_port,
            fragments: fields.read::<Fragments>(KEYS, "fragments").into(),
        };
        (field.faults.count() == before).then_some(matches)
    }
}

/// Fields that select packets. `P` is a port for chains, and a range of ports for firewalls.
pub(crate) struct PacketFields<P> {
    pub(crate) source: Option<Prefix>,
    pub(crate) destination: Option<Prefix>,
    pub(crate) protocol: Option<u8>,
    /// Source and destination.
    pub(crate) ports: [Option<P>; 2],
}

/// Reads the fields that select packets; `port` reads each port. Logs a fault if no packet can
/// match all fields.
pub(crate) fn read_packets<P>(
    fields: &Fields<'_>,
    port: impl Fn(&str) -> Option<P>,
) -> PacketFields<P> {
    let packets = PacketFields {
        source: read_prefix(fields, "source"),
        destination: read_prefix(fields, "destination"),
        protocol: read_protocol(fields),
        ports: ["sourcePort", "destinationPort"].map(port),
    };
    if let (Some(source), Some(destination), Some(at)) = (
        packets.source,
        packets.destination,
        fields.get("destination"),
    ) && source.family() != destination.family()
    {
        let families = [source.family(), destination.family()];
        at.fault(
            format!(
                "source {source} is {} but destination {destination} is {}",
                families[0], families[1]
            ),
            "source and destination of the same family",
            "correct or remove one of the two: no packet has both",
        );
    }
    if let (Some(protocol), true, Some(at)) = (
        packets.protocol,
        packets.ports.iter().any(Option::is_some),
        fields.get("protocol"),
    ) && protocol != TCP
        && protocol != UDP
    {
        at.fault(
            "packets of this protocol have no ports, but a port is given",
            "`protocol: udp` or `protocol: tcp` with a port",
            "write `protocol: udp` or `protocol: tcp`, or remove the ports",
        );
    }
    packets
}

/// Reads an address or a prefix.
pub(crate) fn read_prefix(fields: &Fields<'_>, key: &str) -> Option<Prefix> {
    const EXPECTED: &str = "an address or a prefix, IPv4 or IPv6";
    const HELP: &str = "write for example 10.0.0.2, 10.0.0.0/24 or 2001:db8::/32";
    let field = fields.get(key)?;
    let text = field.text(EXPECTED, HELP)?;
    let shown = Printable(text);
    let (message, help) = match text.parse() {
        Ok(prefix) => return Some(prefix),
        Err(PrefixError::HostBits { addr, prefix }) => (
            format!("`{shown}` has address bits set after the prefix length"),
            format!("write {prefix} for the network, or {addr} for one address"),
        ),
        Err(PrefixError::Length { len, max, .. }) => (
            format!("`{shown}` has a prefix length of {len}"),
            format!("write a length from 0 to {max}"),
        ),
        Err(PrefixError::LengthText { max, .. }) => (
            format!("`{shown}` has no number after the `/`"),
            format!("write a length from 0 to {max}"),
        ),
        Err(PrefixError::Address { .. }) => {
            let port = text
                .rsplit_once(':')
                .filter(|(address, _)| address.parse::<Ipv4Addr>().is_ok());
            let help = match port {
                Some((address, port)) => format!("write `{key}: {address}, {key}Port: {port}`"),
                None if matches!(text, "*" | "any" | "all") => ANY.to_owned(),
                None => HELP.to_owned(),
            };
            (format!("`{shown}` is not an address"), help)
        }
    };
    field.fault(message, EXPECTED, help);
    None
}

/// Reads an IP protocol.
fn read_protocol(fields: &Fields<'_>) -> Option<u8> {
    let field = fields.get("protocol")?;
    let expected = "udp, tcp, icmp, icmpv6, or a protocol number from 0 to 255";
    let text = field.text(expected, "write for example udp")?;
    let named = PROTOCOLS.iter().find(|(name, _)| *name == text);
    let number = || whole_number(text).and_then(|number| u8::try_from(number).ok());
    let protocol = named.map(|(_, number)| *number).or_else(number);
    if protocol.is_none() {
        let names = PROTOCOLS.map(|(name, _)| name);
        let help = match nearest(text, &names) {
            Some(near) => format!("write `{near}`"),
            None if matches!(text, "*" | "any" | "all") => ANY.to_owned(),
            None => "write a name of these, or the IANA number of the protocol".to_owned(),
        };
        let message = format!("`{}` is not a protocol", Printable(text));
        field.fault(message, expected, help);
    }
    protocol
}

/// Reads the port of a match. Refuses a range: the classifier looks up one port per packet.
fn read_port(fields: &Fields<'_>, key: &str) -> Option<u16> {
    let is_range = |field: &Field<'_>| {
        field
            .node
            .text()
            .is_some_and(|text| text.contains(['-', ':', ',']))
    };
    if let Some(field) = fields.get(key).filter(is_range) {
        field.fault(
            "a match takes one port, not a range or a list",
            "a port, 0 to 65535",
            "remove the key, and let a `firewall` of the chain deny all other ports",
        );
        return None;
    }
    fields.read(KEYS, key)
}

/// Reads a port or a range of ports.
pub(crate) fn read_ports(fields: &Fields<'_>, key: &str) -> Option<RangeInclusive<u16>> {
    const EXPECTED: &str = "a port or a range of ports, 0 to 65535";
    const HELP: &str = "write for example 53 or \"1000-2000\"";
    fields.get(key)?.parsed(EXPECTED, HELP, |text| {
        let port = |text: &str| u16::try_from(whole_number(text.trim())?).ok();
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let shown = Printable(text);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(first..=last),
            (Some(_), Some(_)) => Err(format!("the range `{shown}` ends before it begins")),
            _ => Err(format!("`{shown}` is neither a port nor a range of ports")),
        }
    })
}
