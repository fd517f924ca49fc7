//! Reads the configuration of a `router`.

use std::collections::HashMap;
use std::net::IpAddr;

use myelin_packet::routes::{MAX_ROUTES, Route};
use myelin_packet::{MacAddr, Prefix};

use super::field::{Field, Fields};
use super::list_file::{self, Described};
use super::matching;
use crate::catalogue::ROUTE_KEYS;
use crate::error::{Fault, Place, Report};
use crate::files::FileResolver;
use crate::printable::Printable;
use crate::router::RouterConfig;

const ROUTES: &str = "a list of routes such as { prefix: 10.0.0.0/8, mac: \"02:00:00:00:00:01\" }";
const ROUTES_FILE: Described = Described {
    list: ROUTES,
    file: "routes.yaml",
    one_list: "put all routes into one list",
};

pub(super) fn read(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> RouterConfig {
    let listed = fields.get("routes");
    let filed = fields.get("routesFile");
    let mut seen = HashMap::new();
    let mut routes = listed
        .as_ref()
        .map_or_else(Vec::new, |field| route_list(field, &mut seen, report));
    if let Some(field) = &filed {
        routes.extend(list_file::read(
            field,
            files,
            report,
            &ROUTES_FILE,
            |field, report| route_list(field, &mut seen, report),
        ));
    }
    if let Some(field) = filed.or(listed).filter(|_| routes.len() > MAX_ROUTES) {
        let fault = Fault::new(
            format!("{} routes", routes.len()),
            format!("at most {MAX_ROUTES} routes in one router"),
            "merge neighbouring prefixes, or let a default route cover those that share its next hop",
        );
        field.fault(report, fault);
    }
    let mut config = RouterConfig {
        routes,
        address_v4: None,
        address_v6: None,
        icmp_rate: RouterConfig::DEFAULT_ICMP_RATE,
    };
    if let Some(field) = fields.get("addresses") {
        addresses(&field, &mut config, report);
    }
    if let Some(rate) = fields
        .get("icmpRate")
        .and_then(|field| field.integer(report, 0..=1_000_000, "messages a second"))
    {
        config.icmp_rate = rate as u32;
    }
    config
}

/// `seen` are the prefixes that have a route already, and where.
fn route_list(
    field: &Field<'_>,
    seen: &mut HashMap<Prefix, Place>,
    report: &mut Report<'_>,
) -> Vec<Route> {
    let items = field.list(report, ROUTES).unwrap_or_default();
    let mut routes = Vec::with_capacity(items.len());
    for item in &items {
        let Some(route) = route(item, report) else {
            continue;
        };
        if let Some(twin) = seen.insert(route.prefix, report.place(item.span)) {
            let fault = Fault::new(
                format!("{} already has a route, {twin}", route.prefix),
                "each prefix once",
                "remove one of the two routes",
            );
            item.fault(report, fault);
        }
        routes.push(route);
    }
    routes
}

fn route(field: &Field<'_>, report: &mut Report<'_>) -> Option<Route> {
    let fields = field.map(report, ROUTE_KEYS)?;
    fields.required(
        report,
        "prefix",
        "the destinations, as an address or a prefix",
        "10.0.0.0/8",
    );
    let prefix = matching::prefix(&fields, "prefix", report);
    Some(Route {
        prefix: prefix?,
        mac: mac(&fields, "mac", report),
        source_mac: mac(&fields, "sourceMac", report),
    })
}

/// Reads the Ethernet address of one station.
pub(super) fn mac(fields: &Fields<'_>, key: &str, report: &mut Report<'_>) -> Option<MacAddr> {
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

/// Reads the router's own addresses.
fn addresses(field: &Field<'_>, config: &mut RouterConfig, report: &mut Report<'_>) {
    const LIST: &str = "a list of addresses, at most one of each family";
    const EXPECTED: &str = "an address of one host, IPv4 or IPv6";
    const HELP: &str = "write for example 10.0.0.254 or 2001:db8::1";
    for item in field.list(report, LIST).unwrap_or_default() {
        let Some(text) = item.text(report, EXPECTED, HELP) else {
            continue;
        };
        let address = text.parse::<IpAddr>().ok().filter(is_host);
        let taken = match address {
            Some(IpAddr::V4(address)) => config.address_v4.replace(address).is_some(),
            Some(IpAddr::V6(address)) => config.address_v6.replace(address).is_some(),
            None => {
                let message = format!("`{}` is not an address of one host", Printable(text));
                item.fault(report, Fault::new(message, EXPECTED, HELP));
                continue;
            }
        };
        if taken {
            let message = format!("`{}` is the second address of its family", Printable(text));
            item.fault(report, Fault::new(message, LIST, "remove one of the two"));
        }
    }
}

/// Whether a packet may come from the address (RFC 1122, section 3.2.1.3; RFC 4291, section 2.7).
pub(super) fn is_host(address: &IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_multicast()
        && !address.is_loopback()
        && *address != IpAddr::from([255; 4])
}
