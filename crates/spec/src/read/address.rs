//! Reads addresses of hosts and of stations.

use std::net::IpAddr;

use myelin_packet::MacAddr;

use super::field::Fields;
use crate::error::{Fault, Report};
use crate::printable::Printable;

/// Whether packets may come from the address and go to it (RFC 1122, section 3.2.1.3; RFC 4291, section 2.7).
pub(crate) fn is_host(address: &IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_multicast()
        && !address.is_loopback()
        && *address != IpAddr::from([255; 4])
}

/// Reads the address of one host, which must be given. The examples are of what to add and of what to write instead.
pub(crate) fn host(
    fields: &Fields<'_>,
    key: &str,
    what: &str,
    (missing, wrong): (&str, &str),
    report: &mut Report<'_>,
) -> Option<IpAddr> {
    let expected = format!("{what}, IPv4 or IPv6");
    let help = format!("write for example {wrong}");
    let field = fields.required(report, key, &expected, missing)?;
    let text = field.text(report, &expected, &help)?;
    let address = text.parse().ok().filter(is_host);
    if address.is_none() {
        let message = format!("`{}` is not {what}", Printable(text));
        field.fault(report, Fault::new(message, expected, help));
    }
    address
}

/// Reads the Ethernet address of one station.
pub(crate) fn mac(fields: &Fields<'_>, key: &str, report: &mut Report<'_>) -> Option<MacAddr> {
    const EXPECTED: &str = "the Ethernet address of one station";
    const HELP: &str = "write for example \"02:00:00:00:00:01\"";
    let field = fields.get(key)?;
    let text = field.text(report, EXPECTED, HELP)?;
    let message = match text.parse::<MacAddr>() {
        Ok(mac) if mac.is_station() => return Some(mac),
        Ok(mac) => format!("{mac} is no station's: a group's address, or none at all"),
        Err(_) => format!("`{}` is not an Ethernet address", Printable(text)),
    };
    field.fault(report, Fault::new(message, EXPECTED, HELP));
    None
}
