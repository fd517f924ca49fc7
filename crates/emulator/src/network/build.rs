//! Makes a network: hosts, limits, switches, links, addresses.
//!
//! The steps go over all objects of one kind at a time, with few messages to the kernel, and start
//! no process.

mod hosts;
mod openflow;

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use myelin_linux::journal::{Journal, Resource, ResourceGuards};
use myelin_linux::link::group::{PlacedEnd, create_veth, describe_quiet};
use myelin_linux::link::{self, Link, LinkId, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{Error, ErrorKind, Result};
use myelin_spec::Topology;

use super::bridges::SwitchPorts;
use super::names::{NetworkNames, Run, Side};
use super::{Attachment, LinkEnd, LinkEnds, Network, Switch};

/// The kernel makes links operational in a separate work item.
const OPERATIONAL_TIMEOUT: Duration = Duration::from_secs(20);

/// A new host: its namespace, and a socket inside.
type NewHost = (Netns, Netlink);

/// Makes the network. The guards remove everything after a failure.
pub(super) fn build(run: Run<'_>, topology: &Topology, journal: &Journal) -> Result<Network> {
    let builder = Builder {
        topology,
        names: NetworkNames::new(run, &topology.name),
        hosts: index(topology.hosts.iter().map(|host| host.name.as_str())),
        switches: index(topology.switches.iter().map(String::as_str)),
    };
    builder.build(journal)
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
}

/// Where the ends of each link will be.
#[derive(Clone, Copy)]
struct LinkPlan<'a> {
    /// The number of each end at its host: 0 for `eth0`.
    interfaces: &'a [[u32; 2]],
    attachments: &'a [[Attachment; 2]],
}

impl Builder<'_> {
    fn build(self, journal: &Journal) -> Result<Network> {
        let mut resources = ResourceGuards::default();
        let mut hosts = self.create_hosts(journal, &mut resources)?;
        let groups = self.create_groups(journal, &mut resources)?;
        let links = Resource::Links(self.names.group.clone());
        resources.0.push(journal.guard(links)?);
        let mut netlink = Netlink::open()?;
        let mut switches = self.create_bridges(&mut netlink, &mut hosts)?;
        let interfaces = self.number_interfaces();
        let attachments = self.attach(&mut switches)?;
        let plan = LinkPlan {
            interfaces: &interfaces,
            attachments: &attachments,
        };
        self.create_links(&mut netlink, &mut hosts, &switches, plan)?;
        let links = self.find_ends(&mut netlink, &mut hosts, plan)?;
        self.bring_ports_up(&mut netlink, &links)?;
        self.configure_hosts(&mut hosts, &links)?;
        wait_until_operational(&mut netlink, &links)?;
        Ok(Network {
            topology: self.topology.clone(),
            names: self.names,
            switches,
            links,
            _groups: groups,
            _resources: resources,
        })
    }

    /// Makes the bridges of all switches, joins those of a switch, and sets them up.
    fn create_bridges(&self, netlink: &mut Netlink, hosts: &mut [NewHost]) -> Result<Vec<Switch>> {
        let ports = self.plan_ports();
        let names = self.create_bare_bridges(netlink, &ports)?;
        let found = self.find_links(netlink)?;
        let mut bridges = names.iter().map(|name| find(&found, name).map(Link::id));
        let mut switches = Vec::with_capacity(ports.len());
        let mut requests = Vec::new();
        for (position, (name, ports)) in self.topology.switches.iter().zip(ports).enumerate() {
            let first: usize = switches
                .iter()
                .map(|switch: &Switch| switch.bridges.len())
                .sum();
            let own = bridges.by_ref().take(ports.bridges());
            let own: Vec<LinkId> = own.collect::<Result<_>>()?;
            let is_openflow = ports.is_openflow();
            for (bridge, number) in own.iter().zip(first..) {
                let alias = format!("{} {name}", self.topology.name);
                requests.extend([describe_quiet(bridge, &alias), link::set_up(bridge)]);
                if number > first && !is_openflow {
                    let joint =
                        [Side::First, Side::Second].map(|side| self.names.joint(number, side));
                    self.join_bridges(netlink, &joint, [&own[0], bridge])?;
                }
            }
            let joints = if is_openflow {
                self.join_openflow(netlink, hosts, (position, first), &own)?
            } else {
                Vec::new()
            };
            switches.push(Switch {
                bridges: own,
                ports,
                joints,
            });
        }
        netlink.apply(requests)?;
        Ok(switches)
    }

    /// Plans the bridges of each switch.
    fn plan_ports(&self) -> Vec<SwitchPorts> {
        let mut links_at = vec![0; self.topology.switches.len()];
        for end in self.topology.links.iter().flat_map(|link| &link.ends) {
            if let Some(switch) = self.switches.get(end.as_str()) {
                links_at[*switch] += 1;
            }
        }
        let switches = self.topology.switches.iter().zip(links_at);
        let plan = |(name, links)| {
            if self.topology.controllers.contains_key(name) {
                SwitchPorts::openflow(links)
            } else {
                SwitchPorts::new(links)
            }
        };
        switches.map(plan).collect()
    }

    /// Makes the bridges of all switches, and returns their names.
    fn create_bare_bridges(
        &self,
        netlink: &mut Netlink,
        switches: &[SwitchPorts],
    ) -> Result<Vec<String>> {
        let group = &self.names.group;
        let of_switch = |ports: &SwitchPorts| vec![ports.is_openflow(); ports.bridges()];
        let is_relay = switches.iter().flat_map(of_switch);
        let named = is_relay.enumerate();
        let named: Vec<(String, bool)> = named
            .map(|(number, is_relay)| (self.names.bridge(number), is_relay))
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

    /// Numbers the interfaces of each host in the order of the links.
    fn number_interfaces(&self) -> Vec<[u32; 2]> {
        let mut counts = vec![0; self.topology.hosts.len()];
        let mut number = |end: &String| {
            let host = self.hosts.get(end.as_str());
            host.map_or(0, |host| {
                counts[*host] += 1;
                counts[*host] - 1
            })
        };
        let links = self.topology.links.iter();
        links
            .map(|link| [number(&link.ends[0]), number(&link.ends[1])])
            .collect()
    }

    /// Chooses where each end of each link is.
    fn attach(&self, switches: &mut [Switch]) -> Result<Vec<[Attachment; 2]>> {
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
        let links = self.topology.links.iter();
        links
            .map(|link| Ok([attach(&link.ends[0])?, attach(&link.ends[1])?]))
            .collect()
    }

    fn create_links(
        &self,
        netlink: &mut Netlink,
        hosts: &mut [NewHost],
        switches: &[Switch],
        plan: LinkPlan<'_>,
    ) -> Result<()> {
        let mut requests = Vec::new();
        let mut trunks = Vec::new();
        let ends = plan.attachments.iter().zip(plan.interfaces);
        for (number, (ends, eth)) in ends.enumerate() {
            let names = eth.map(|eth| format!("eth{eth}"));
            let inside = |side: usize, netns| PlacedEnd {
                end: VethEnd {
                    namespace: netns,
                    ..VethEnd::named(&names[side])
                },
                group: None,
            };
            let port = |side| self.names.port(number, side);
            match *ends {
                [Attachment::Host(one), Attachment::Host(other)] if self.has_wires(number) => {
                    let names = [port(Side::First), port(Side::Second)];
                    for (side, host) in [one, other].into_iter().enumerate() {
                        let far = inside(side, Some(&hosts[host].0));
                        requests.push(create_veth(&self.at_switch(&names[side]), &far, None)?);
                    }
                }
                [Attachment::Host(one), Attachment::Host(other)] => {
                    let far = hosts[other].0.try_clone()?;
                    let request = create_veth(&inside(0, None), &inside(1, Some(&far)), None)?;
                    hosts[one].1.apply([request])?;
                }
                [
                    Attachment::Host(host),
                    Attachment::Switch { switch, bridge },
                ]
                | [
                    Attachment::Switch { switch, bridge },
                    Attachment::Host(host),
                ] => {
                    let side = usize::from(ends[0] != Attachment::Host(host));
                    let name = port(Side::First);
                    let bridge = Some(&switches[switch].bridges[bridge]);
                    let far = inside(side, Some(&hosts[host].0));
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
        for (spec, made) in self.topology.links.iter().zip(links) {
            let alias = format!("{} {}", self.topology.name, spec.name);
            for end in made.ends_here() {
                requests.extend([describe_quiet(end, &alias), link::set_up(end)]);
            }
        }
        netlink.apply(requests)
    }

    /// Whether a link between hosts has an end of its own for each host in the caller's namespace:
    /// only there a delay line can take its packets.
    fn has_wires(&self, number: usize) -> bool {
        let link = &self.topology.links[number];
        let is_host = |end: &String| self.hosts.contains_key(end.as_str());
        !link.impairments.is_none() && link.ends.iter().all(is_host)
    }

    /// Finds the ends in the caller's namespace of a link between hosts.
    fn find_wires(
        &self,
        found: &HashMap<String, Link>,
        number: usize,
    ) -> Result<Option<[Link; 2]>> {
        if !self.has_wires(number) {
            return Ok(None);
        }
        let wire = |side| find(found, &self.names.port(number, side)).cloned();
        Ok(Some([wire(Side::First)?, wire(Side::Second)?]))
    }

    /// The names of a link's ends at switches.
    fn port_names(&self, number: usize, ends: &[Attachment; 2]) -> [Option<String>; 2] {
        let is_port = |end: &Attachment| matches!(end, Attachment::Switch { .. });
        let port = |side| Some(self.names.port(number, side));
        match [is_port(&ends[0]), is_port(&ends[1])] {
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
        hosts: &mut [NewHost],
        plan: LinkPlan<'_>,
    ) -> Result<Vec<LinkEnds>> {
        let found = self.find_links(netlink)?;
        let mut links = Vec::with_capacity(plan.attachments.len());
        for (number, (at, eth)) in plan.attachments.iter().zip(plan.interfaces).enumerate() {
            let names = self.port_names(number, at);
            let wires = self.find_wires(&found, number)?;
            let mut end = |side: usize| {
                let opposite = match (&wires, &names[1 - side]) {
                    (Some(wires), _) => wires[side].peer,
                    (None, Some(opposite)) => find(&found, opposite)?.peer,
                    (None, None) => None,
                };
                let name = format!("eth{}", eth[side]);
                let link = match (&names[side], opposite, at[side]) {
                    (Some(port), ..) => find(&found, port)?.id(),
                    (None, Some(index), _) => LinkId { index, name },
                    (None, None, Attachment::Host(host)) => hosts[host].1.link(&name)?.id(),
                    // Not reached: an end at a switch has a name.
                    (None, None, Attachment::Switch { .. }) => find(&found, "")?.id(),
                };
                let at = at[side];
                Ok(LinkEnd { link, at })
            };
            links.push(LinkEnds {
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

/// Waits until all ends at switches are operational, because they drop packets until then. The
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

fn find<'l>(links: &'l HashMap<String, Link>, name: &str) -> Result<&'l Link> {
    links.get(name).ok_or_else(|| {
        Error::new(
            format!("find link `{name}`"),
            ErrorKind::NotFound,
            "another program removed or renamed the link",
        )
    })
}
