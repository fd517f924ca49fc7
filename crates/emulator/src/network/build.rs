//! Makes a network: hosts, limits, switches, links, addresses.
//!
//! The steps go over all objects of one kind at a time, with few messages to the kernel, and start
//! no process.

mod hosts;
mod openflow;

pub(super) use hosts::routes_of;

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::{Duration, Instant};

use myelin_linux::journal::{Journal, Resource};
use myelin_linux::link::group::{PlacedEnd, create_veth, describe_quiet};
use myelin_linux::link::{self, Link, LinkId, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{Error, ErrorKind, Result};
use myelin_spec::{LinkEmulation, LinkSpec, Topology};

use super::bridges::SwitchPorts;
use super::names::{NetworkNames, Side};
use super::{Attachment, LinkEnd, LinkEnds, Network, Switch};

/// The kernel makes links operational in a separate work item.
const OPERATIONAL_TIMEOUT: Duration = Duration::from_secs(20);

/// A host whose links are made: its namespace, and a socket inside.
type OpenHost = (Netns, Netlink);
/// The hosts whose links are made, by position.
type OpenHosts = BTreeMap<usize, OpenHost>;

/// Makes the hosts, switches and links that `topology` has and the network lacks. They are the last
/// ones of `topology`. After a failure, some may be left.
pub(super) fn build(network: &mut Network, topology: &Topology, journal: &Journal) -> Result<()> {
    let builder = Builder {
        topology,
        names: network.names.clone(),
        hosts: index(topology.hosts.iter().map(|host| host.name.as_str())),
        switches: index(topology.switches.iter().map(String::as_str)),
        made_hosts: network.topology.hosts.len(),
        made_switches: network.topology.switches.len(),
        made_links: network.links.len(),
        link_numbers: network.number_links(topology.links.len() - network.links.len()),
        interfaces: network.number_interfaces(topology),
        is_first: network.links_guard.is_none(),
    };
    builder.build(network, journal)
}

fn index<'n>(names: impl Iterator<Item = &'n str>) -> HashMap<&'n str, usize> {
    names
        .enumerate()
        .map(|(position, name)| (name, position))
        .collect()
}

struct Builder<'a> {
    topology: &'a Topology,
    names: NetworkNames,
    /// The position of each host.
    hosts: HashMap<&'a str, usize>,
    /// The position of each switch.
    switches: HashMap<&'a str, usize>,
    /// The hosts, switches and links that the network has already.
    made_hosts: usize,
    made_switches: usize,
    made_links: usize,
    /// The number of each new link.
    link_numbers: Vec<usize>,
    /// The number of each end of each new link at its host: 0 for `eth0`.
    interfaces: Vec<[usize; 2]>,
    /// Whether the network has nothing yet.
    is_first: bool,
}

/// A new link.
struct NewLink {
    /// The position in the topology.
    position: usize,
    /// The number in the names of its ends at switches.
    number: usize,
    /// The number of each end at its host.
    interfaces: [usize; 2],
    at: [Attachment; 2],
}

impl Builder<'_> {
    fn build(self, network: &mut Network, journal: &Journal) -> Result<()> {
        let mut hosts = self.create_hosts(journal, &mut network.resources)?;
        self.open_hosts(&mut hosts)?;
        let groups = self.create_groups(journal, &mut network.resources)?;
        network.groups.extend(groups);
        if network.links_guard.is_none() {
            let links = Resource::Links(self.names.group.clone());
            network.links_guard = Some(journal.guard(links)?);
        }
        let mut netlink = Netlink::open()?;
        let ports = self.plan_ports();
        let numbers = network.number_bridges(ports.iter().map(SwitchPorts::bridges).sum());
        let switches = &mut network.switches;
        self.create_bridges(&mut netlink, &mut hosts, switches, (ports, &numbers))?;
        let plan = self.attach(switches)?;
        self.create_links(&mut netlink, &mut hosts, switches, &plan)?;
        let links = self.find_ends(&mut netlink, &mut hosts, &plan)?;
        self.bring_ports_up(&mut netlink, &links)?;
        self.configure_hosts(&mut hosts, &links)?;
        wait_until_operational(&mut netlink, &links)?;
        network.links.extend(links);
        network.topology = self.topology.clone();
        Ok(())
    }

    /// Returns the links to make, with their positions.
    fn new_links(&self) -> impl Iterator<Item = (usize, &LinkSpec)> {
        let links = self.topology.links.iter().enumerate();
        links.skip(self.made_links)
    }

    /// Opens the existing hosts that get links.
    fn open_hosts(&self, hosts: &mut OpenHosts) -> Result<()> {
        for end in self.new_links().flat_map(|(_, link)| &link.ends) {
            if let Some(position) = self.hosts.get(end.as_str())
                && !hosts.contains_key(position)
            {
                let netns = Netns::open(&self.names.netns(end))?;
                let netlink = Netlink::open_in(&netns)?;
                hosts.insert(*position, (netns, netlink));
            }
        }
        Ok(())
    }

    /// Makes the bridges of the new switches, joins those of a switch, and sets them up.
    fn create_bridges(
        &self,
        netlink: &mut Netlink,
        hosts: &mut OpenHosts,
        switches: &mut Vec<Switch>,
        (ports, mut numbers): (Vec<SwitchPorts>, &[usize]),
    ) -> Result<()> {
        let names = self.create_bare_bridges(netlink, numbers, &ports)?;
        let found = self.find_links(netlink)?;
        let mut bridges = names.iter().map(|name| find(&found, name).map(Link::id));
        let mut requests = Vec::new();
        let new = self.topology.switches.iter().enumerate();
        for ((position, name), ports) in new.skip(self.made_switches).zip(ports) {
            let own = bridges.by_ref().take(ports.bridges());
            let own: Vec<LinkId> = own.collect::<Result<_>>()?;
            let is_openflow = ports.is_openflow();
            let (own_numbers, rest) = numbers.split_at(own.len());
            numbers = rest;
            let alias = format!("{} {name}", self.topology.name);
            for bridge in &own {
                requests.extend([describe_quiet(bridge, &alias), link::set_up(bridge)]);
            }
            let joints = if is_openflow {
                self.join_openflow(netlink, hosts, (position, own_numbers), &own)?
            } else {
                for (bridge, number) in own.iter().zip(own_numbers).skip(1) {
                    let joint =
                        [Side::First, Side::Second].map(|side| self.names.joint(*number, side));
                    self.join_bridges(netlink, &joint, [&own[0], bridge])?;
                }
                Vec::new()
            };
            switches.push(Switch {
                bridges: own,
                numbers: own_numbers.to_vec(),
                ports,
                joints,
            });
        }
        netlink.apply(requests)
    }

    /// Plans the bridges of each new switch.
    fn plan_ports(&self) -> Vec<SwitchPorts> {
        let mut links_at = vec![0; self.topology.switches.len()];
        for end in self.topology.links.iter().flat_map(|link| &link.ends) {
            if let Some(switch) = self.switches.get(end.as_str()) {
                links_at[*switch] += 1;
            }
        }
        let switches = self.topology.switches.iter().zip(links_at);
        let switches = switches.skip(self.made_switches);
        let plan = |(name, links)| {
            if self.topology.controllers.contains_key(name) {
                SwitchPorts::openflow(links)
            } else {
                SwitchPorts::new(links)
            }
        };
        switches.map(plan).collect()
    }

    /// Makes the bridges of switches, and returns their names.
    fn create_bare_bridges(
        &self,
        netlink: &mut Netlink,
        numbers: &[usize],
        switches: &[SwitchPorts],
    ) -> Result<Vec<String>> {
        let group = &self.names.group;
        let of_switch = |ports: &SwitchPorts| vec![ports.is_openflow(); ports.bridges()];
        let is_relay = switches.iter().flat_map(of_switch);
        let named = numbers.iter().zip(is_relay);
        let named: Vec<(String, bool)> = named
            .map(|(number, is_relay)| (self.names.bridge(*number), is_relay))
            .collect();
        let create = |(name, is_relay): &(String, bool)| {
            if *is_relay {
                group.create_relay(name)
            } else {
                group.create_bridge(name)
            }
        };
        let requests: Vec<_> = named.iter().map(create).collect::<Result<_>>()?;
        netlink.apply(requests)?;
        Ok(named.into_iter().map(|(name, _)| name).collect())
    }

    /// Joins two bridges of a switch.
    fn join_bridges(
        &self,
        netlink: &mut Netlink,
        names: &[String; 2],
        bridges: [&LinkId; 2],
    ) -> Result<()> {
        let [first, second] = names.each_ref().map(|name| self.at_switch(name));
        netlink.apply([create_veth(&first, &second, Some(bridges[0]))?])?;
        let ends = [netlink.link(&names[0])?.id(), netlink.link(&names[1])?.id()];
        let alias = format!("{} joint", self.topology.name);
        netlink.apply([
            link::enslave(&ends[1], bridges[1]),
            describe_quiet(&ends[0], &alias),
            describe_quiet(&ends[1], &alias),
            link::set_up(&ends[0]),
            link::set_up(&ends[1]),
        ])
    }

    /// Returns an end in the caller's namespace.
    fn at_switch<'e>(&'e self, name: &'e str) -> PlacedEnd<'e> {
        PlacedEnd {
            end: VethEnd::named(name),
            group: Some(&self.names.group),
        }
    }

    /// Chooses where each end of each new link is.
    fn attach(&self, switches: &mut [Switch]) -> Result<Vec<NewLink>> {
        let mut attach = |end: &String| {
            if let Some(host) = self.hosts.get(end.as_str()) {
                return Ok(Attachment::Host(*host));
            }
            let switch = self.switches.get(end.as_str()).copied();
            let bridge = switch.and_then(|switch| switches[switch].ports.take());
            let attachment = switch.zip(bridge);
            attachment
                .map(|(switch, bridge)| Attachment::Switch { switch, bridge })
                .ok_or_else(|| {
                    let action = format!("attach a link to `{end}`");
                    Error::new(action, ErrorKind::NotFound, "no switch has that name")
                })
        };
        let numbers = self.link_numbers.iter().zip(&self.interfaces);
        let links = self.new_links().zip(numbers);
        links
            .map(|((position, link), (number, interfaces))| {
                Ok(NewLink {
                    position,
                    number: *number,
                    interfaces: *interfaces,
                    at: [attach(&link.ends[0])?, attach(&link.ends[1])?],
                })
            })
            .collect()
    }

    fn create_links(
        &self,
        netlink: &mut Netlink,
        hosts: &mut OpenHosts,
        switches: &[Switch],
        plan: &[NewLink],
    ) -> Result<()> {
        let mut requests = Vec::new();
        let mut trunks = Vec::new();
        for new in plan {
            let names = new.interfaces.map(|eth| format!("eth{eth}"));
            let inside = |side: usize, netns| PlacedEnd {
                end: VethEnd {
                    namespace: netns,
                    ..VethEnd::named(&names[side])
                },
                group: None,
            };
            let port = |side| self.names.port(new.number, side);
            match new.at {
                [Attachment::Host(one), Attachment::Host(other)]
                    if self.has_wires(new.position) =>
                {
                    let names = [port(Side::First), port(Side::Second)];
                    for (side, host) in [one, other].into_iter().enumerate() {
                        let far = inside(side, Some(&hosts[&host].0));
                        requests.push(create_veth(&self.at_switch(&names[side]), &far, None)?);
                    }
                }
                [Attachment::Host(one), Attachment::Host(other)] => {
                    let far = hosts[&other].0.try_clone()?;
                    let request = create_veth(&inside(0, None), &inside(1, Some(&far)), None)?;
                    socket_of(hosts, one)?.apply([request])?;
                }
                [
                    Attachment::Host(host),
                    Attachment::Switch { switch, bridge },
                ]
                | [
                    Attachment::Switch { switch, bridge },
                    Attachment::Host(host),
                ] => {
                    let side = usize::from(new.at[0] != Attachment::Host(host));
                    let name = port(Side::First);
                    let bridge = Some(&switches[switch].bridges[bridge]);
                    let far = inside(side, Some(&hosts[&host].0));
                    requests.push(create_veth(&self.at_switch(&name), &far, bridge)?);
                }
                [
                    Attachment::Switch { switch, bridge },
                    Attachment::Switch {
                        switch: far,
                        bridge: far_bridge,
                    },
                ] => {
                    let (near, other) = (port(Side::First), port(Side::Second));
                    let (one, two) = (self.at_switch(&near), self.at_switch(&other));
                    let bridge = Some(&switches[switch].bridges[bridge]);
                    requests.push(create_veth(&one, &two, bridge)?);
                    trunks.push((other, &switches[far].bridges[far_bridge]));
                }
            }
            // A request holds a descriptor until it is sent.
            if requests.len() == 64 {
                netlink.apply(requests.drain(..))?;
            }
        }
        netlink.apply(requests)?;
        for (name, bridge) in trunks {
            let end = netlink.link(&name)?.id();
            netlink.apply([link::enslave(&end, bridge)])?;
        }
        Ok(())
    }

    /// Sets the ends at switches up.
    fn bring_ports_up(&self, netlink: &mut Netlink, links: &[LinkEnds]) -> Result<()> {
        let mut requests = Vec::new();
        for ((_, spec), made) in self.new_links().zip(links) {
            let alias = format!("{} {}", self.topology.name, spec.name);
            for end in made.ends_here() {
                requests.extend([describe_quiet(end, &alias), link::set_up(end)]);
            }
        }
        netlink.apply(requests)
    }

    /// Whether a link between hosts has an end of its own for each host in the caller's namespace:
    /// only there a delay line can take its packets.
    fn has_wires(&self, position: usize) -> bool {
        let link = &self.topology.links[position];
        let is_host = |end: &String| self.hosts.contains_key(end.as_str());
        let is_delayed = link.is_impaired() && link.by == LinkEmulation::DelayLine;
        is_delayed && link.ends.iter().all(is_host)
    }

    /// Finds the ends in the caller's namespace of a link between hosts.
    fn find_wires(
        &self,
        found: &HashMap<String, Link>,
        new: &NewLink,
    ) -> Result<Option<[Link; 2]>> {
        if !self.has_wires(new.position) {
            return Ok(None);
        }
        let wire = |side| find(found, &self.names.port(new.number, side)).cloned();
        Ok(Some([wire(Side::First)?, wire(Side::Second)?]))
    }

    /// The names of a link's ends at switches.
    fn port_names(&self, new: &NewLink) -> [Option<String>; 2] {
        let is_port = |end: &Attachment| matches!(end, Attachment::Switch { .. });
        let port = |side| Some(self.names.port(new.number, side));
        match new.at.each_ref().map(is_port) {
            [false, false] => [None, None],
            [true, false] => [port(Side::First), None],
            [false, true] => [None, port(Side::First)],
            [true, true] => [port(Side::First), port(Side::Second)],
        }
    }

    /// Finds the ends of all links. One list has the ends at switches and the indices of the
    /// opposite ends.
    fn find_ends(
        &self,
        netlink: &mut Netlink,
        hosts: &mut OpenHosts,
        plan: &[NewLink],
    ) -> Result<Vec<LinkEnds>> {
        let found = self.find_links(netlink)?;
        let mut links = Vec::with_capacity(plan.len());
        for new in plan {
            let names = self.port_names(new);
            let wires = self.find_wires(&found, new)?;
            let mut end = |side: usize| {
                let opposite = match (&wires, &names[1 - side]) {
                    (Some(wires), _) => wires[side].peer,
                    (None, Some(opposite)) => find(&found, opposite)?.peer,
                    (None, None) => None,
                };
                let name = format!("eth{}", new.interfaces[side]);
                let link = match (&names[side], opposite, new.at[side]) {
                    (Some(port), ..) => find(&found, port)?.id(),
                    (None, Some(index), _) => LinkId { index, name },
                    (None, None, Attachment::Host(host)) => {
                        socket_of(hosts, host)?.link(&name)?.id()
                    }
                    // Not reached: an end at a switch has a name.
                    (None, None, Attachment::Switch { .. }) => find(&found, "")?.id(),
                };
                let at = new.at[side];
                Ok(LinkEnd { link, at })
            };
            links.push(LinkEnds {
                number: new.number,
                ends: [end(0)?, end(1)?],
                wires: wires.map(|wires| wires.map(|wire| wire.id())),
                is_down: false,
            });
        }
        Ok(links)
    }

    /// Returns the links of the network in the caller's namespace, by name.
    fn find_links(&self, netlink: &mut Netlink) -> Result<HashMap<String, Link>> {
        let links = self.names.group.links(netlink)?.into_iter();
        Ok(links.map(|link| (link.name.clone(), link)).collect())
    }
}

/// Waits until the new ends at switches are operational, because they drop packets until then. The
/// hosts' ends came up last, so the kernel activated them at once.
///
/// The kernel activates about 100 links a second by itself, and at once each link that somebody
/// reads alone (`linkwatch_sync_dev` in `rtnl_getlink`, since Linux 6.6).
fn wait_until_operational(netlink: &mut Netlink, links: &[LinkEnds]) -> Result<()> {
    let deadline = Instant::now() + OPERATIONAL_TIMEOUT * (1 + links.len() as u32 / 1000);
    for port in links.iter().flat_map(LinkEnds::ends_here) {
        while !netlink.link_by_index(port.index)?.operational {
            if Instant::now() > deadline {
                let name = &port.name;
                return Err(Error::new(
                    format!("bring link `{name}` into operation"),
                    ErrorKind::Busy,
                    "the kernel has not reported the link as operational",
                ));
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}

/// Returns the socket in a host.
fn socket_of(hosts: &mut OpenHosts, host: usize) -> Result<&mut Netlink> {
    let open = hosts.get_mut(&host).map(|(_, netlink)| netlink);
    open.ok_or_else(|| {
        let action = format!("find host {host}");
        Error::new(action, ErrorKind::NotFound, "it was not opened")
    })
}

fn find<'l>(links: &'l HashMap<String, Link>, name: &str) -> Result<&'l Link> {
    links.get(name).ok_or_else(|| {
        Error::new(
            format!("find link `{name}`"),
            ErrorKind::NotFound,
            "another program removed or renamed the link",
        )
    })
}
