//! Fields that pick out packets: prefixes, protocols, ports. Chains and firewall rules share them.

use std::ops::RangeInclusive;

use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::prefix::PrefixError;
use myelin_packet::{Match, Prefix};

use super::field::{Field, Fields, whole_number};
use super::{ConfigKey, Readable, TEXT, integer, keys};
use crate::printable::Printable;
use crate::suggest::nearest;

keys! {
    /// Keys of a match.
    KEYS {
        /// source address or prefix
        "source" = TEXT;
        /// destination address or prefix
        "destination" = TEXT;
        /// udp, tcp, icmp, icmpv6, or the number of a protocol
        "protocol" = TEXT;
        /// source port
        "sourcePort" = integer(0, 65535, "a port");
        /// destination port
        "destinationPort" = integer(0, 65535, "a port");
    }
}

/// Protocols that have names; all others are written as numbers.
const PROTOCOLS: [(&str, u8); 4] = [
    ("udp", UDP),
    ("tcp", TCP),
    ("icmp", ICMP),
    ("icmpv6", ICMPV6),
];

/// `spec.match`.
impl Readable for Match {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        let before = field.report.count();
        let fields = field.map(KEYS)?;
        let packets = packets(&fields, |key| fields.of(KEYS, key));
        let [source_port, destination_port] = packets.ports;
        let matches = Self {
            source: packets.source,
            destination: packets.destination,
            protocol: packets.protocol,
            source_port,
            destination_port,
        };
        (field.report.count() == before).then_some(matches)
    }
}

/// What picks out packets. Chains have single ports here, and firewalls ranges.
pub(crate) struct Packets<P> {
    pub(crate) source: Option<Prefix>,
    pub(crate) destination: Option<Prefix>,
    pub(crate) protocol: Option<u8>,
    /// Source and destination.
    pub(crate) ports: [Option<P>; 2],
}

/// Reads what picks out packets, `port` by `port`, and reports fields that no packet can satisfy together.
pub(crate) fn packets<P>(fields: &Fields<'_>, port: impl Fn(&str) -> Option<P>) -> Packets<P> {
    let packets = Packets {
        source: prefix(fields, "source"),
        destination: prefix(fields, "destination"),
        protocol: protocol(fields),
        ports: ["sourcePort", "destinationPort"].map(port),
    };
    if let (Some(source), Some(destination), Some(at)) = (
        packets.source,
        packets.destination,
        fields.get("destination"),
    ) && source.family() != destination.family()
    {
        let (one, other) = (source.family(), destination.family());
        at.fault(
            format!("source {source} is {one} but destination {destination} is {other}"),
            "source and destination of the same family",
            "no packet has both: correct one of the two, or remove it",
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
            "a port is named, but packets of this protocol have no ports",
            "protocol udp or tcp where a port is named",
            "write `protocol: udp` or `protocol: tcp`, or remove the ports",
        );
    }
    packets
}

/// Reads an address prefix.
pub(crate) fn prefix(fields: &Fields<'_>, key: &str) -> Option<Prefix> {
    const EXPECTED: &str = "an address or a prefix, IPv4 or IPv6";
    const HELP: &str = "write for example 10.0.0.2, 10.0.0.0/24 or 2001:db8::/32";
    let field = fields.get(key)?;
    let text = field.text(EXPECTED, HELP)?;
    let shown = Printable(text);
    let (message, help) = match text.parse() {
        Ok(prefix) => return Some(prefix),
        Err(PrefixError::HostBits { addr, prefix }) => (
            format!("`{shown}` has bits set after its prefix"),
            format!("write {prefix} for the network, or {addr} for the one address"),
        ),
        Err(PrefixError::Length { len, max, .. }) => (
            format!("`{shown}` has a prefix of {len} bits"),
            format!("write a length from 0 to {max}"),
        ),
        Err(PrefixError::LengthText { max, .. }) => (
            format!("`{shown}` has no number after the slash"),
            format!("write a length from 0 to {max}"),
        ),
        Err(PrefixError::Address { .. }) => {
            (format!("`{shown}` is not an address"), HELP.to_owned())
        }
    };
    field.fault(message, EXPECTED, help);
    None
}

/// Reads an IP protocol.
fn protocol(fields: &Fields<'_>) -> Option<u8> {
    let field = fields.get("protocol")?;
    let expected = "udp, tcp, icmp, icmpv6, or a protocol number from 0 to 255";
    let text = field.text(expected, "write for example udp")?;
    let named = PROTOCOLS.iter().find(|(name, _)| *name == text);
    let number = || whole_number(text).and_then(|number| u8::try_from(number).ok());
    let protocol = named.map(|(_, number)| *number).or_else(number);
    if protocol.is_none() {
        let names = PROTOCOLS.map(|(name, _)| name);
        let help = nearest(text, &names).map_or_else(
            || "write one of the names, or the number IANA assigned to the protocol".to_owned(),
            |near| format!("write `{near}`"),
        );
        let message = format!("`{}` is not a protocol", Printable(text));
        field.fault(message, expected, help);
    }
    protocol
}

/// Reads a port or a range of ports.
pub(crate) fn ports(fields: &Fields<'_>, key: &str) -> Option<RangeInclusive<u16>> {
    const EXPECTED: &str = "a port or a range of ports, 0 to 65535";
    const HELP: &str = "write for example 53 or \"1000-2000\"";
    fields.get(key)?.parsed(EXPECTED, HELP, |text| {
        let port = |text: &str| u16::try_from(whole_number(text.trim())?).ok();
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let shown = Printable(text);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(first..=last),
            (Some(_), Some(_)) => Err(format!("the range `{shown}` runs backwards")),
            _ => Err(format!("`{shown}` is neither a port nor a range of ports")),
        }
    })
}
