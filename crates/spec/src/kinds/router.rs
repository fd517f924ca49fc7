//! `router`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use myelin_packet::Prefix;
use myelin_packet::routes::{MAX_ROUTES, Route};

use super::prelude::*;
use crate::error::FileLocation;
use crate::keys::address::is_host;
use crate::keys::list_file::ListOrFile;
use crate::keys::matching;

const ROUTES: ListOrFile = ListOrFile {
    keys: ["routes", "routesFile"],
    expected: "a list of routes such as { prefix: 10.0.0.0/8, mac: \"02:00:00:00:00:01\" }",
    file: "routes.yaml",
    max_elements: MAX_ROUTES,
    kind: "router",
    too_many_help: "merge adjacent prefixes, or let a default route cover those that share its next hop",
};

const ROUTES_FILE: ConfigKey =
    FILE.named("routesFile", "A YAML file with a list of further routes.");

config! {
    /// Configuration of a `router` function.
    pub struct RouterConfig {
        /// The routes, of both address families; the longest matching prefix wins. At most 131072
        /// routes, with those of `routesFile`.
        "routes" routes: Vec<Route> = ConfigKey::new(ValueType::Routes(ROUTE_KEYS)).with_default("[]"), from read_routes, with ROUTES_FILE;
        /// The router's own addresses, at most one of each family. The router sends ICMP messages
        /// from the address of the packet's family. Without an address it sends none.
        "addresses" addresses: (Option<Ipv4Addr>, Option<Ipv6Addr>) = ConfigKey::new(ValueType::Addresses).with_default("[]"), from read_addresses;
        /// The longest IP packet of the next link, bytes; without the key, the MTU of the egress
        /// interface. The router drops a longer packet that must not be fragmented, and sends its
        /// sender ICMP packet too big (fragmentation needed).
        "mtu" mtu: Option<u32> = integer(68, 65_535, "bytes of an IP packet");
        /// The most ICMP messages a second. A burst holds up to ten.
        "icmpRate" icmp_rate: u32 = integer(0, 1_000_000, "messages a second").with_default("100");
    }
}

keys! {
    /// Keys of a route.
    ROUTE_KEYS {
        /// The destinations: an address or a prefix.
        "prefix" = TEXT.required();
        /// The next hop's Ethernet address: the new destination of the frame. Without it, the frame
        /// keeps its destination.
        "mac" = TEXT;
        /// The new Ethernet source of the frame. Without it, the frame keeps its source.
        "sourceMac" = TEXT;
    }
}

/// `router`.
pub static ROUTER: Kind = Kind {
    name: "router",
    class: Class::Basic,
    kernel: Some(Cost::new(10.0, 0.0)),
    user: Some(Cost::new(8.0, 0.0)),
    works_on: PacketParts::Header,
    takes_super_packets: true,
    user_takes_super_packets: true,
    config: RouterConfig::KEYS,
    description: "Forwards packets to the next hop of the longest matching prefix. Decrements the time to \
                  live (hop limit). Drops packets without a route, and packets with an expired time to \
                  live, with an ICMP message to the sender. IPv6 packets that stay on their link, such as \
                  neighbour discovery, pass unchanged.",
    example: "{ name: core, kind: router, config: { routes: [ { prefix: 0.0.0.0/0, mac: \"02:00:00:00:00:01\" } ] } }",
    read: |fields| FunctionConfig::Router(RouterConfig::from_fields(fields)),
    effect: |_| Effect {
        answers_senders: true,
        ..Effect::default()
    },
    ..Kind::BASE
};

fn read_routes(fields: &Fields<'_>) -> Vec<Route> {
    // The location of the route of each prefix.
    let mut seen: HashMap<Prefix, FileLocation> = HashMap::new();
    ROUTES.read(fields, |item| {
        let route = read_route(item)?;
        if let Some(first) = seen.insert(route.prefix, item.faults.place(item.span)) {
            item.fault(
                format!("{} already has a route, at {first}", route.prefix),
                "each prefix once",
                "remove one of the two routes",
            );
        }
        Some(route)
    })
}

fn read_route(field: &Field<'_>) -> Option<Route> {
    let fields = field.mapping(ROUTE_KEYS)?;
    fields.required(
        "prefix",
        "the destinations: an address or a prefix",
        "10.0.0.0/8",
    );
    let prefix = matching::read_prefix(&fields, "prefix");
    Some(Route {
        prefix: prefix?,
        mac: fields.read(ROUTE_KEYS, "mac"),
        source_mac: fields.read(ROUTE_KEYS, "sourceMac"),
    })
}

fn read_addresses(fields: &Fields<'_>) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
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
        let is_second = match address {
            Some(IpAddr::V4(address)) => own.0.replace(address).is_some(),
            Some(IpAddr::V6(address)) => own.1.replace(address).is_some(),
            None => false,
        };
        if let (true, Some(text)) = (is_second, item.node.text()) {
            let message = format!("`{}` is the second address of its family", Printable(text));
            item.fault(message, LIST, "remove one of the two");
        }
    }
    own
}
