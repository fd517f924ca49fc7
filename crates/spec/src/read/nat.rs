//! Reads the configuration of a `nat`.

use std::net::IpAddr;

use super::field::{Field, Fields};
use super::matching;
use crate::error::{Fault, Report};
use crate::nat::{MAX_ADDRESSES, MAX_FLOWS, NatConfig};
use crate::printable::Printable;
use crate::units::parse_duration_ns;

const ADDRESSES: &str = "the external address, or a list of them, IPv4 or IPv6";
const EXAMPLE: &str = "write for example 198.51.100.7 or [198.51.100.7, 2001:db8::7]";

/// `None` when there is no usable address; what else is wrong is reported.
pub(super) fn read(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<NatConfig> {
    let field = fields.get("address")?;
    let addresses = addresses(&field, report);
    let default = NatConfig::default();
    let ports = matching::ports(fields, "ports", report);
    if let (Some(field), Some(0)) = (fields.get("ports"), ports.as_ref().map(|p| *p.start())) {
        let fault = Fault::new(
            "port 0 is no port of a packet",
            "a port or a range of ports, 1 to 65535",
            "begin the range at 1 or above",
        );
        field.fault(report, fault);
    }
    let (first_port, last_port) = ports.map_or((default.first_port, default.last_port), |ports| {
        (*ports.start(), *ports.end())
    });
    let mut duration = |key: &str, default: u64| {
        fields
            .get(key)
            .and_then(|field| field.quantity(report, parse_duration_ns, "120s"))
            .unwrap_or(default)
    };
    let (timeout_ns, tcp_timeout_ns) = (
        duration("timeout", default.timeout_ns),
        duration("tcpTimeout", default.tcp_timeout_ns),
    );
    let flows = fields
        .get("flows")
        .and_then(|field| field.integer(report, 1..=MAX_FLOWS, "a number of mappings"));
    Some(NatConfig {
        addresses: addresses?,
        first_port,
        last_port,
        timeout_ns,
        tcp_timeout_ns,
        flows: flows.map_or(default.flows, |flows| flows as u32),
    })
}

fn addresses(field: &Field<'_>, report: &mut Report<'_>) -> Option<Vec<IpAddr>> {
    if !field.is_list() {
        return Some(vec![address(field, report)?]);
    }
    let items = field.list(report, ADDRESSES)?;
    if items.is_empty() || items.len() > MAX_ADDRESSES {
        let fault = Fault::new(
            format!("{} addresses", items.len()),
            format!("1 to {MAX_ADDRESSES} external addresses"),
            EXAMPLE,
        );
        field.fault(report, fault);
        return None;
    }
    let mut addresses = Vec::new();
    for item in &items {
        let address = address(item, report)?;
        if addresses.contains(&address) {
            let fault = Fault::new(
                format!("{address} is named twice"),
                "addresses that differ",
                "remove one of the two",
            );
            item.fault(report, fault);
        }
        addresses.push(address);
    }
    Some(addresses)
}

fn address(field: &Field<'_>, report: &mut Report<'_>) -> Option<IpAddr> {
    let text = field.text(report, ADDRESSES, EXAMPLE)?;
    let message = match text.parse() {
        Ok(address) if is_host(address) => return Some(address),
        Ok(address) => format!("{address} is not the address of a host"),
        Err(_) => format!("`{}` is not an address", Printable(text)),
    };
    field.fault(report, Fault::new(message, ADDRESSES, EXAMPLE));
    None
}

/// Whether others can send to it.
fn is_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast)
}
