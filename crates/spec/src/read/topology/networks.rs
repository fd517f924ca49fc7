//! Derives the networks of a topology: default addresses, gateways, and the routes of routers.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use myelin_packet::{Family, Prefix};

use super::hosts::HostPlace;
use crate::keys::field::Field;
use crate::topology::{
    HostAddress, HostRoute, HostSpec, MAX_NETWORKS, Networks, Segments, Topology,
};

/// The networks of the routers, and where each is in the file.
#[derive(Default)]
struct Derived<'a> {
    networks: Networks,
    places: Vec<Field<'a>>,
}

/// Gives the hosts of a topology their default addresses and their routes; logs faults.
/// `places` has the place of each host.
pub(super) fn complete(topology: &mut Topology, places: &[HostPlace<'_>]) {
    let segments: Vec<Vec<usize>> = {
        let mut by_name = Segments::new(topology).by_name(topology);
        let hosts = topology.hosts.iter();
        let of_host = |host: &HostSpec| by_name.remove(host.name.as_str());
        hosts.map(of_host).map(Option::unwrap_or_default).collect()
    };
    let derived = read_networks(&topology.hosts, &segments, places);
    let first = |host: usize| segments[host].first().copied();
    give_default_addresses(&mut topology.hosts, (&derived, places), &first);
    for (number, (host, place)) in topology.hosts.iter_mut().zip(places).enumerate() {
        if host.is_router {
            host.routes = derived.networks.routes(number);
        } else {
            check_addresses(host, place, (&derived, first(number)));
        }
    }
    for (number, place) in places.iter().enumerate() {
        let routes = find_gateways(&topology.hosts, number, place, &derived);
        topology.hosts[number].routes.extend(routes);
    }
}

/// Collects the networks of all routers. Logs routers without an address for each link, and
/// segments with common addresses.
fn read_networks<'a>(
    hosts: &[HostSpec],
    segments: &[Vec<usize>],
    places: &[HostPlace<'a>],
) -> Derived<'a> {
    let mut derived = Derived::default();
    for (number, host) in hosts.iter().enumerate().filter(|(_, host)| host.is_router) {
        let (place, links) = (&places[number], segments[number].len());
        if place.links != links {
            let name = &host.name;
            place.element.fault(
                format!(
                    "the router `{name}` has addresses for {} links and has {links} links",
                    place.links
                ),
                "an address, or a list of addresses, for each link of the router",
                "correct `addresses` or `links`",
            );
        }
        for (address, field) in host.addresses.iter().zip(&place.addresses) {
            let Some(segment) = segments[number].get(address.link) else {
                continue;
            };
            if derived.networks.all().len() == MAX_NETWORKS {
                field.fault(
                    format!("more than {MAX_NETWORKS} networks between routers"),
                    format!("at most {MAX_NETWORKS}"),
                    "split the topology",
                );
                return derived;
            }
            match derived.networks.add(number, address, *segment) {
                Ok(network) if network == derived.places.len() => {
                    derived.places.push(field.clone());
                }
                Ok(_) => {}
                Err(other) => {
                    let known = derived.networks.all()[other].prefix;
                    let line = derived.places[other].span.line;
                    field.fault(
                        format!(
                            "the network {} has addresses of the network {known} on line {line}, \
                             which is on another segment or has another length",
                            address.network()
                        ),
                        "networks without common addresses; routers on one segment with the same one",
                        "write an address of another network",
                    );
                }
            }
        }
    }
    derived
}

/// Gives each host without an address the next free one: of the network of the routers on its
/// segment, else of 10.0.0.0/8.
fn give_default_addresses(
    hosts: &mut [HostSpec],
    (derived, places): (&Derived<'_>, &[HostPlace<'_>]),
    first_segment: &dyn Fn(usize) -> Option<usize>,
) {
    let given = hosts.iter().flat_map(|host| &host.addresses);
    let mut taken: HashSet<IpAddr> = given.map(|address| address.address).collect();
    // IPv4 first.
    let mut networks: Vec<_> = derived.networks.all().iter().collect();
    networks.sort_by_key(|network| network.prefix.family());
    let mut of_segments: HashMap<usize, FreeAddresses> = HashMap::new();
    for network in networks.into_iter().rev() {
        of_segments.insert(network.segment, FreeAddresses::of(network.prefix));
    }
    let mut elsewhere = FreeAddresses {
        next: Ipv4Addr::new(10, 0, 0, 1).to_bits().into(),
        last: Ipv4Addr::new(10, 255, 255, 254).to_bits().into(),
        family: Family::V4,
        prefix_len: 8,
    };
    for (number, host) in hosts.iter_mut().enumerate() {
        if host.is_router || !host.addresses.is_empty() {
            continue;
        }
        let segment = first_segment(number);
        let free = segment.and_then(|segment| of_segments.get_mut(&segment));
        match free.unwrap_or(&mut elsewhere).take(&taken) {
            Some(address) => {
                taken.insert(address.address);
                host.addresses.push(address);
            }
            None => places[number].element.fault(
                format!("no address is free for the host `{}`", host.name),
                "an address for each host in the network of its router",
                "give the router's network a shorter prefix, or the host an `address`",
            ),
        }
    }
}

/// The addresses of a network that no host has yet.
struct FreeAddresses {
    next: u128,
    last: u128,
    family: Family,
    prefix_len: u8,
}

impl FreeAddresses {
    fn of(prefix: Prefix) -> Self {
        let (first, last) = prefix.range();
        // The first address names the network, the last one of IPv4 is for broadcasts.
        let has_ends = prefix.len() + 1 < prefix.family().bits();
        let ends = u128::from(has_ends);
        Self {
            next: first + ends,
            last: last - ends,
            family: prefix.family(),
            prefix_len: prefix.len(),
        }
    }

    fn take(&mut self, taken: &HashSet<IpAddr>) -> Option<HostAddress> {
        while self.next <= self.last {
            let address = match self.family {
                Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(self.next as u32)),
                Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(self.next)),
            };
            // The end of the last network of IPv6 is no address of a host.
            self.next = self.next.checked_add(1)?;
            if !taken.contains(&address) {
                return Some(HostAddress {
                    address,
                    prefix_len: self.prefix_len,
                    link: 0,
                });
            }
        }
        None
    }
}

/// Logs addresses of a host that lie in the network of another segment.
fn check_addresses(
    host: &HostSpec,
    place: &HostPlace<'_>,
    (derived, segment): (&Derived<'_>, Option<usize>),
) {
    for (address, field) in host.addresses.iter().zip(&place.addresses) {
        let Some(number) = derived.networks.find(address.address) else {
            continue;
        };
        let network = &derived.networks.all()[number];
        if segment.is_some_and(|own| own != network.segment) {
            let line = derived.places[number].span.line;
            field.fault(
                format!(
                    "{} is in the network {} on line {line}, which is on another segment",
                    address.address, network.prefix
                ),
                "an address of a network on the segment of the host's first link",
                "correct the address, or the links",
            );
        }
    }
}

/// Returns the default routes of a host, at most one of each family; logs faults.
fn find_gateways(
    hosts: &[HostSpec],
    number: usize,
    place: &HostPlace<'_>,
    derived: &Derived<'_>,
) -> Vec<HostRoute> {
    let host = &hosts[number];
    if host.is_router {
        return Vec::new();
    }
    let mut routes: Vec<HostRoute> = Vec::new();
    let has_route = |routes: &[HostRoute], to: IpAddr| {
        let mut routes = routes.iter();
        routes.any(|route| route.gateway.is_ipv4() == to.is_ipv4())
    };
    for (gateway, field) in &place.gateways {
        if host.address_near(*gateway).is_none() {
            field.fault(
                format!("the gateway {gateway} is in no network of the host"),
                "an address in the network of an address of the host",
                "correct `gateway` or `address`",
            );
        } else if has_route(&routes, *gateway) {
            field.fault(
                format!("{gateway} is the second gateway of its family"),
                "one gateway of each family",
                "remove one of the two",
            );
        } else {
            routes.push(default_route(*gateway));
        }
    }
    for address in &host.addresses {
        let found = derived.networks.find(address.address);
        let network = found.map(|number| &derived.networks.all()[number]);
        let routers = network.map(|network| network.routers.iter());
        let mut routers = routers
            .into_iter()
            .flatten()
            .filter(|(_, gateway)| address.network().contains(*gateway));
        let Some((first, gateway)) = routers.next() else {
            continue;
        };
        if has_route(&routes, *gateway) {
            continue;
        }
        if let Some((second, _)) = routers.next() {
            place.element.fault(
                format!(
                    "the routers `{}` and `{}` are in the network of the host `{}`",
                    hosts[*first].name, hosts[*second].name, host.name
                ),
                "`gateway` where several routers are in the network of a host",
                format!("write for example `gateway: {gateway}`"),
            );
        }
        routes.push(default_route(*gateway));
    }
    routes
}

fn default_route(gateway: IpAddr) -> HostRoute {
    let any: IpAddr = match gateway {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    HostRoute {
        prefix: Prefix::new(any, 0).unwrap_or_else(|_| Prefix::host(any)),
        gateway,
    }
}
