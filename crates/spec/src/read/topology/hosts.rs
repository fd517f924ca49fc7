//! Reads the hosts, nodes and routers of a topology.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{Names, elements};
use crate::isolation::Limits;
use crate::keys::address::is_host;
use crate::keys::cores::read_cores;
use crate::keys::field::{Field, Fields};
use crate::keys::{ConfigKey, TEXT, ValueType, keys, name};
use crate::printable::Printable;
use crate::topology::{HostAddress, HostSpec, MAX_NODES, MAX_ROUTERS, NodeClock};
use crate::units;

keys! {
    /// Keys of a host or node.
    HOST_KEYS {
        /// The name, unique among the hosts, nodes, routers and switches.
        "name" = TEXT.required();
        /// The address with its prefix length, or a list of addresses: of the first link, eth0, or
        /// of the bridge br0 of a node with several links. Default: beside a router the next free
        /// address of the router's network, else the next free address of 10.0.0.0/8, from
        /// 10.0.0.1/8 on.
        "address" = ConfigKey::new(ValueType::TextOrList);
        /// The gateway of the default route, or one of each family. Default: the only router in
        /// the network of the address.
        "gateway" = ConfigKey::new(ValueType::TextOrList);
        /// The processor time of all its programs together: 10m to 4096cores.
        "cpu" = ConfigKey::new(ValueType::Cpu);
        /// The memory of all its programs together: at least 16MiB.
        "memory" = ConfigKey::new(ValueType::Memory);
        /// The cores of its programs: a number, a range FROM-TO, or a list of both.
        "cpus" = ConfigKey::new(ValueType::TextOrList);
        /// The clock of a node: shared with the other nodes of the machine, or its own, as on a
        /// machine of its own.
        "clock" = NodeClock::KEY.with_default("shared");
    }
}

keys! {
    /// Keys of a router.
    ROUTER_KEYS {
        /// The name, unique among the hosts, nodes, routers and switches.
        "name" = TEXT.required();
        /// For each link of the router, in the order of `links`: its address with the prefix
        /// length of its network, or a list of addresses. Two segments have no common addresses.
        "addresses" = ConfigKey::new(ValueType::TextLists).required();
    }
}

/// The places of a host in the file, for faults.
pub(super) struct HostPlace<'a> {
    /// The host.
    pub(super) element: Field<'a>,
    /// Its addresses.
    pub(super) addresses: Vec<Field<'a>>,
    /// Its gateways, with their places.
    pub(super) gateways: Vec<(IpAddr, Field<'a>)>,
    /// The number of links for which a router has addresses.
    pub(super) links: usize,
}

impl<'a> HostPlace<'a> {
    fn new(element: &Field<'a>) -> Self {
        Self {
            element: element.clone(),
            addresses: Vec::new(),
            gateways: Vec::new(),
            links: 0,
        }
    }
}

/// A host with its place.
pub(super) type Placed<'a> = (HostSpec, HostPlace<'a>);

/// Reads the hosts, then the nodes, then the routers.
pub(super) fn read_all<'a>(spec: &Fields<'a>, names: &mut Names) -> Vec<Placed<'a>> {
    let mut taken = HashMap::new();
    let mut hosts = Vec::new();
    let of_hosts = spec.required("hosts", "the hosts", "[ h1, h2 ]");
    for (field, is_node) in [(of_hosts, false), (spec.get("nodes"), true)] {
        let Some(field) = field else {
            continue;
        };
        let what = if is_node { "nodes" } else { "hosts" };
        for element in elements(&field, what, MAX_NODES) {
            let host = if element.is_mapping() {
                element
                    .mapping(HOST_KEYS)
                    .filter(|fields| is_node || has_no_clock(fields))
                    .and_then(|fields| read_host(&element, &fields, &mut taken))
            } else {
                read_bare(&element)
            };
            if let Some((host, place)) = host {
                names.add(&host.name, is_node, &element);
                hosts.push((HostSpec { is_node, ..host }, place));
            }
        }
    }
    let routers = spec.get("routers");
    let routers = routers.map(|field| elements(&field, "routers", MAX_ROUTERS));
    for element in routers.unwrap_or_default() {
        let fields = element.mapping(ROUTER_KEYS);
        let router = fields.and_then(|fields| read_router(&element, &fields, &mut taken));
        if let Some(router) = router {
            names.add(&router.0.name, false, &element);
            hosts.push(router);
        }
    }
    hosts
}

fn read_bare<'a>(element: &Field<'a>) -> Option<Placed<'a>> {
    let host = HostSpec {
        name: name::read_label(element)?,
        ..HostSpec::default()
    };
    Some((host, HostPlace::new(element)))
}

/// Logs a fault for the clock of a host: only nodes stamp packets.
fn has_no_clock(fields: &Fields<'_>) -> bool {
    let Some(field) = fields.get("clock") else {
        return true;
    };
    field.fault(
        "the clock of a host has no effect: only nodes stamp packets",
        "no `clock` at a host",
        "remove `clock`, or move the host to `nodes`",
    );
    false
}

/// Reads a host. `taken` has the addresses of earlier hosts with their names.
fn read_host<'a>(
    element: &Field<'a>,
    fields: &Fields<'a>,
    taken: &mut HashMap<IpAddr, String>,
) -> Option<Placed<'a>> {
    let name = name::read_required(fields, "name", "h1");
    let limits = Limits::from_fields(fields);
    let cpus = fields.get("cpus").map(|field| read_cpus(&field));
    let cpus = cpus.unwrap_or_default();
    if let (Some(cpu), Some(field)) = (limits.cpu_millicores, fields.get("cpu"))
        && !cpus.is_empty()
        && u64::from(cpu) > cpus.len() as u64 * 1000
    {
        let cores = units::CPU.format(cpus.len() as u64 * 1000);
        field.fault(
            format!("{} on {cores} of `cpus`", units::CPU.format(cpu.into())),
            format!("at most {cores}"),
            format!("write {cores} or less, or give the host more `cpus`"),
        );
    }
    let mut host = HostSpec {
        name: name.clone().unwrap_or_default(),
        limits,
        cpus,
        clock: fields.read(HOST_KEYS, "clock"),
        ..HostSpec::default()
    };
    let mut place = HostPlace::new(element);
    let given = fields.get("address");
    for field in given.iter().flat_map(|field| field.one_or_list(ADDRESS)) {
        add_address(&mut host, &mut place, (&field, 0), taken);
    }
    let gateways = fields.get("gateway");
    for field in gateways.iter().flat_map(|field| field.one_or_list(GATEWAY)) {
        let gateway = field.parsed(GATEWAY, "write for example 10.0.0.254", |text| {
            let address = text.parse().ok().filter(is_host);
            address.ok_or_else(|| format!("`{}` is not an address of a host", Printable(text)))
        });
        place
            .gateways
            .extend(gateway.map(|gateway: IpAddr| (gateway, field)));
    }
    name.map(|_| (host, place))
}

/// Reads a router.
fn read_router<'a>(
    element: &Field<'a>,
    fields: &Fields<'a>,
    taken: &mut HashMap<IpAddr, String>,
) -> Option<Placed<'a>> {
    const LIST: &str = "a list: the addresses of each link of the router";
    let name = name::read_required(fields, "name", "r1");
    let mut router = HostSpec {
        name: name.clone().unwrap_or_default(),
        is_router: true,
        ..HostSpec::default()
    };
    let mut place = HostPlace::new(element);
    let example = "[ 10.1.0.254/24, 10.2.0.254/24 ]";
    let links = fields.required("addresses", LIST, example)?.list(LIST)?;
    place.links = links.len();
    for (link, field) in links.iter().enumerate() {
        for field in field.one_or_list(ADDRESS) {
            add_address(&mut router, &mut place, (&field, link), taken);
        }
    }
    name.map(|_| (router, place))
}

/// Reads an address of a host; logs a fault if another host has it.
fn add_address<'a>(
    host: &mut HostSpec,
    place: &mut HostPlace<'a>,
    (field, link): (&Field<'a>, usize),
    taken: &mut HashMap<IpAddr, String>,
) {
    let Some(address) = read_address(field) else {
        return;
    };
    if let Some(other) = taken.insert(address.address, host.name.clone()) {
        field.fault(
            format!("the host `{other}` has the address {} too", address.address),
            "addresses that differ",
            "give one of the hosts another address",
        );
    }
    host.addresses.push(HostAddress { link, ..address });
    place.addresses.push(field.clone());
}

const GATEWAY: &str = "the address of the gateway, IPv4 or IPv6";
const ADDRESS: &str = "the address of a host with its prefix length, IPv4 or IPv6";

fn read_address(field: &Field<'_>) -> Option<HostAddress> {
    field.parsed(ADDRESS, "write for example 10.0.0.1/24", |text| {
        let shown = Printable(text);
        let Some((address, length)) = text.split_once('/') else {
            return Err(format!("`{shown}` has no prefix length"));
        };
        let address: Option<IpAddr> = address.parse().ok().filter(is_host);
        let address = address.ok_or_else(|| format!("`{shown}` is not the address of a host"))?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let length = length
            .parse()
            .ok()
            .filter(|length| (1..=max).contains(length));
        let prefix_len =
            length.ok_or_else(|| format!("the prefix length of `{shown}` is not 1 to {max}"))?;
        Ok(HostAddress {
            address,
            prefix_len,
            link: 0,
        })
    })
}

fn read_cpus(field: &Field<'_>) -> Vec<u32> {
    let mut cores = read_cores(field);
    cores.sort_unstable();
    cores
}
