//! Reads addresses of hosts and of Ethernet stations.

use std::net::{IpAddr, Ipv4Addr};

use myelin_packet::MacAddr;

use super::field::{Field, Fields};
use super::{ConfigKey, Readable};
use crate::printable::Printable;

/// Whether the address is valid as source and as destination (RFC 1122, section 3.2.1.3; RFC 4291,
/// section 2.7).
pub(crate) fn is_host(address: &IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_multicast()
        && !address.is_loopback()
        && *address != IpAddr::from([255; 4])
}

/// Reads the required address of one host. If the address is faulty, returns the unspecified
/// address. `description` names the address in errors. The examples are for errors about a missing
/// key and about a wrong value.
pub(crate) fn read_host(
    fields: &Fields<'_>,
    key: &str,
    description: &str,
    (missing, wrong): (&str, &str),
) -> IpAddr {
    let expected = format!("{description}, IPv4 or IPv6");
    let help = format!("write for example {wrong}");
    let field = fields.required(key, &expected, missing);
    let address = field.and_then(|field| {
        field.parsed(&expected, &help, |text| {
            let address = text.parse().ok().filter(is_host);
            address.ok_or_else(|| format!("`{}` is not {description}", Printable(text)))
        })
    });
    address.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

/// The Ethernet address of one station.
impl Readable for MacAddr {
    fn read(field: &Field<'_>, _: &ConfigKey) -> Option<Self> {
        const EXPECTED: &str = "the Ethernet address of one station";
        const HELP: &str = "write for example \"02:00:00:00:00:01\"";
        field.parsed(EXPECTED, HELP, |text| match text.parse::<Self>() {
            Ok(mac) if mac.is_station() => Ok(mac),
            Ok(mac) => Err(format!("{mac} is a group address or zero")),
            Err(_) => Err(format!("`{}` is not an Ethernet address", Printable(text))),
        })
    }
}
