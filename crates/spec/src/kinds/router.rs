//! `router`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use myelin_packet::Prefix;
use myelin_packet::routes::{MAX_ROUTES, Route};

use super::prelude::*;
use crate::error::Place;
use crate::keys::address::is_host;
use crate::keys::list_file::Listed;
use crate::keys::matching;

const ROUTES: Listed = Listed {
    keys: ["routes", "routesFile"],
    expected: "a list of routes such as { prefix: 10.0.0.0/8, mac: \"02:00:00:00:00:01\" }",
    file: "routes.yaml",
    most: MAX_ROUTES,
    of: "router",
    too_many: "merge neighbouring prefixes, or let a default route cover those that share its next hop",
};

const ROUTES_FILE: ConfigKey =
    FILE.named("routesFile", "a YAML file with a list of further routes");

config! {
    /// Configuration of a `router` function.
    pub struct RouterConfig {
        /// routes, the longest prefix wins: { prefix: PREFIX, mac: MAC, sourceMac: MAC }; `mac` is the next hop's Ethernet
        /// address and becomes the frame's destination, `sourceMac` its source; what is left out stays; at most 131072 with those of
        /// routesFile, of both address families
        "routes" routes: Vec<Route> = ConfigKey::new(ValueType::Routes(ROUTE_KEYS)).or("[]"), from routes, with ROUTES_FILE;
        /// the router's own addresses, at most one of each family: a router in user space tells the sender of a packet
        /// whose time ran out (ICMP time exceeded) from the one of the packet's family; without it, it does not
        "addresses" addresses: (Option<Ipv4Addr>, Option<Ipv6Addr>) = ConfigKey::new(ValueType::Addresses).or("[]"), from addresses;
        /// such messages a second at most; up to ten may go at once
        "icmpRate" icmp_rate: u32 = integer(0, 1_000_000, "messages a second").or("100");
    }
}

keys! {
    /// Keys of a route.
    ROUTE_KEYS {
        /// the destinations, an address or a prefix
        "prefix" = TEXT.required();
        /// the next hop's Ethernet address, which becomes the frame's destination
        "mac" = TEXT;
        /// what becomes the frame's Ethernet source
        "sourceMac" = TEXT;
    }
}

/// `router`.
pub static ROUTER: Kind = Kind {
    name: "router",
    class: Class::Basic,
    kernel: Some(Cost::new(10.0, 0.0)),
    user: Some(Cost::new(8.0, 0.0)),
    touches: Touches::Header,
    config: RouterConfig::KEYS,
    description: "Sends packets to the next hop of the longest prefix that holds their destination, and counts the time to live \
                  (hop limit) down. Drops packets without a route, and those whose time to live is used up; these \
                  senders are told from user space only.",
    example: "{ name: core, kind: router, config: { routes: [ { prefix: 0.0.0.0/0, mac: \"02:00:00:00:00:01\" } ] } }",
    read: |fields| FunctionConfig::Router(RouterConfig::of(fields)),
    effect: |_| Effect {
        answers_senders: true,
        ..Effect::default()
    },
    ..Kind::BASE
};

fn routes(fields: &Fields<'_>) -> Vec<Route> {
    // The prefixes that have a route already, and where.
    let mut seen: HashMap<Prefix, Place> = HashMap::new();
    ROUTES.read(fields, |item| {
        let route = route(item)?;
        if let Some(twin) = seen.insert(route.prefix, item.report.place(item.span)) {
            item.fault(
                format!("{} already has a route, {twin}", route.prefix),
                "each prefix once",
                "remove one of the two routes",
            );
        }
        Some(route)
    })
}

fn route(field: &Field<'_>) -> Option<Route> {
    let fields = field.map(ROUTE_KEYS)?;
    fields.required(
        "prefix",
        "the destinations, as an address or a prefix",
        "10.0.0.0/8",
    );
    let prefix = matching::prefix(&fields, "prefix");
    Some(Route {
        prefix: prefix?,
        mac: fields.of(ROUTE_KEYS, "mac"),
        source_mac: fields.of(ROUTE_KEYS, "sourceMac"),
    })
}

fn addresses(fields: &Fields<'_>) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    const LIST: &str = "a list of addresses, at most one of each family";
    const EXPECTED: &str = "an address of one host, IPv4 or IPv6";
    const HELP: &str = "write for example 10.0.0.254 or 2001:db8::1";
    let mut own = (None, None);
    let listed = fields.get("addresses").and_then(|field| field.list(LIST));
    for item in listed.unwrap_or_default() {
        let address = item.parsed(EXPECTED, HELP, |text| {
            let address = text.parse().ok().filter(is_host);
            address.ok_or_else(|| format!("`{}` is not an address of one host", Printable(text)))
        });
        let taken = match address {
            Some(IpAddr::V4(address)) => own.0.replace(address).is_some(),
            Some(IpAddr::V6(address)) => own.1.replace(address).is_some(),
            None => false,
        };
        if let (true, Some(text)) = (taken, item.node.text()) {
            let message = format!("`{}` is the second address of its family", Printable(text));
            item.fault(message, LIST, "remove one of the two");
        }
    }
    own
}
