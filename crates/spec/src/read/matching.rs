//! Fields that pick out packets: prefixes, protocols, ports. Chains and firewall rules share them.

use std::ops::RangeInclusive;

use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::prefix::PrefixError;
use myelin_packet::{Match, Prefix};

use super::field::{Field, Fields, whole_number};
use crate::catalogue::{TEXT, integer};
use crate::error::{Fault, Report};
use crate::keys::keys;
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
const PROTOCOLS: &[(&str, u8)] = &[
    ("udp", UDP),
    ("tcp", TCP),
    ("icmp", ICMP),
    ("icmpv6", ICMPV6),
];

/// Reads `spec.match`.
pub(crate) fn read(field: &Field<'_>, report: &mut Report<'_>) -> Option<Match> {
    let before = report.count();
    let fields = field.map(report, KEYS)?;
    let port = |key: &str, report: &mut Report<'_>| {
        let port = fields.get(key)?.integer(report, 0..=65535, "a port")?;
        Some(port as u16)
    };
    let matches = Match {
        source: prefix(&fields, "source", report),
        destination: prefix(&fields, "destination", report),
        protocol: protocol(&fields, report),
        source_port: port("sourcePort", report),
        destination_port: port("destinationPort", report),
    };
    let names_ports = matches.source_port.is_some() || matches.destination_port.is_some();
    check(
        &fields,
        matches.source,
        matches.destination,
        matches.protocol,
        names_ports,
        report,
    );
    (report.count() == before).then_some(matches)
}

/// Reads an address prefix.
pub(crate) fn prefix(fields: &Fields<'_>, key: &str, report: &mut Report<'_>) -> Option<Prefix> {
    const EXPECTED: &str = "an address or a prefix, IPv4 or IPv6";
    const HELP: &str = "write for example 10.0.0.2, 10.0.0.0/24 or 2001:db8::/32";
    let field = fields.get(key)?;
    let text = field.text(report, EXPECTED, HELP)?;
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
    field.fault(report, Fault::new(message, EXPECTED, help));
    None
}

/// Reads an IP protocol.
pub(crate) fn protocol(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<u8> {
    const EXPECTED: &str = "udp, tcp, icmp, icmpv6, or a protocol number from 0 to 255";
    let field = fields.get("protocol")?;
    let text = field.text(report, EXPECTED, "write for example udp")?;
    let named = PROTOCOLS.iter().find(|(name, _)| *name == text);
    let number = || whole_number(text).and_then(|number| u8::try_from(number).ok());
    let protocol = named.map(|(_, number)| *number).or_else(number);
    if protocol.is_none() {
        let names: Vec<_> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
        let help = nearest(text, &names).map_or_else(
            || "write one of the names, or the number IANA assigned to the protocol".to_owned(),
            |near| format!("write `{near}`"),
        );
        let message = format!("`{}` is not a protocol", Printable(text));
        field.fault(report, Fault::new(message, EXPECTED, help));
    }
    protocol
}

/// Reads a port or a range of ports.
pub(crate) fn ports(
    fields: &Fields<'_>,
    key: &str,
    report: &mut Report<'_>,
) -> Option<RangeInclusive<u16>> {
    const EXPECTED: &str = "a port or a range of ports, 0 to 65535";
    const HELP: &str = "write for example 53 or \"1000-2000\"";
    let field = fields.get(key)?;
    let text = field.text(report, EXPECTED, HELP)?;
    let port = |text: &str| u16::try_from(whole_number(text.trim())?).ok();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let shown = Printable(text);
    let message = match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => return Some(first..=last),
        (Some(_), Some(_)) => format!("the range `{shown}` runs backwards"),
        _ => format!("`{shown}` is neither a port nor a range of ports"),
    };
    field.fault(report, Fault::new(message, EXPECTED, HELP));
    None
}

/// Reports fields that no packet can satisfy together.
pub(crate) fn check(
    fields: &Fields<'_>,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    protocol: Option<u8>,
    names_ports: bool,
    report: &mut Report<'_>,
) {
    if let (Some(source), Some(destination), Some(at)) =
        (source, destination, fields.get("destination"))
        && source.family() != destination.family()
    {
        let fault = Fault::new(
            format!(
                "source {source} is {} but destination {destination} is {}",
                source.family(),
                destination.family()
            ),
            "source and destination of the same family",
            "no packet has both: correct one of the two, or remove it",
        );
        at.fault(report, fault);
    }
    if let (Some(protocol), true, Some(at)) = (protocol, names_ports, fields.get("protocol"))
        && protocol != TCP
        && protocol != UDP
    {
        let fault = Fault::new(
            "a port is named, but packets of this protocol have no ports".to_owned(),
            "protocol udp or tcp where a port is named",
            "write `protocol: udp` or `protocol: tcp`, or remove the ports",
        );
        at.fault(report, fault);
    }
}
