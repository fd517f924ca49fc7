//! The removal of hosts, switches and links from a running network.

use myelin_linux::journal::Resource;
use myelin_linux::link::{self, LinkId};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{Error, Result, address};
use myelin_spec::{HostSpec, LinkSpec, Removal};

use super::build::routes_of;
use super::names::{FIRST_INTERFACE, Side};
use super::{Attachment, LinkEnd, LinkEnds, Network, NetworkError, Switch};

impl Network {
    /// Returns the interfaces at switches that go with these parts.
    pub fn ports_of<'n>(&'n self, removal: &'n Removal) -> impl Iterator<Item = &'n str> {
        let links = self.topology.links.iter().zip(&self.links);
        let links = links.filter(|(spec, _)| removal.links.contains(&spec.name));
        links.flat_map(|(_, made)| made.ends_here().map(|end| end.name.as_str()))
    }

    /// Removes parts: first links, then switches and hosts. All links of the hosts and switches are
    /// among the links. Nodes and OpenFlow switches are not among the parts.
    ///
    /// # Errors
    /// System errors. What could be removed is removed.
    pub fn remove(&mut self, removal: &Removal) -> std::result::Result<(), NetworkError> {
        let failed = self.remove_links(removal);
        let failed = failed.into_iter().chain(self.move_addresses(removal));
        let failed = failed.chain(self.remove_bridges(removal));
        let failed: Vec<Error> = failed.collect();
        for name in &removal.hosts {
            self.remove_host(name);
        }
        self.forget(removal);
        self.all(&failed)
    }

    fn remove_links(&self, removal: &Removal) -> Vec<Error> {
        let links = self.topology.links.iter().zip(&self.links);
        let removed = links.filter(|(spec, _)| removal.links.contains(&spec.name));
        removed
            .filter_map(|(_, made)| self.remove_link(made).err())
            .collect()
    }

    fn remove_link(&self, made: &LinkEnds) -> Result<()> {
        let mut here = made.ends_here().cloned().peekable();
        if here.peek().is_some() {
            return remove_each(&mut Netlink::open()?, here);
        }
        let end = &made.ends[0];
        let Attachment::Host(host) = end.at else {
            return Ok(());
        };
        let netns = Netns::open(&self.names.netns(&self.topology.hosts[host].name))?;
        remove_each(&mut Netlink::open_in(&netns)?, [end.link.clone()])
    }

    /// Gives hosts that have lost their `eth0` their addresses on the first interface that is left.
    fn move_addresses(&self, removal: &Removal) -> Vec<Error> {
        let links = self.topology.links.iter().zip(&self.links);
        let (gone, kept): (Vec<_>, Vec<_>) =
            links.partition(|(spec, _)| removal.links.contains(&spec.name));
        let ends = |links: Vec<(&LinkSpec, &'_ LinkEnds)>| {
            let ends = links.into_iter().flat_map(|(_, made)| made.ends.clone());
            ends.collect::<Vec<LinkEnd>>()
        };
        let (gone, kept) = (ends(gone), ends(kept));
        let gone = gone.iter().filter(|end| end.link.name == FIRST_INTERFACE);
        let moved = gone.filter_map(|end| {
            let Attachment::Host(host) = end.at else {
                return None;
            };
            let first = kept.iter().find(|other| other.at == end.at)?;
            Some((&self.topology.hosts[host], &first.link))
        });
        let add = |(host, link): (&HostSpec, &LinkId)| {
            let netns = Netns::open(&self.names.netns(&host.name))?;
            let addresses = host.addresses.iter();
            let add = addresses.map(|own| address::add(link, own.address, own.prefix_len));
            let routes = routes_of(host, &|_| Some(link));
            Netlink::open_in(&netns)?.apply(add.chain(routes))
        };
        moved.filter_map(|moved| add(moved).err()).collect()
    }

    fn remove_bridges(&self, removal: &Removal) -> Vec<Error> {
        let switches = self.topology.switches.iter().zip(&self.switches);
        let removed = switches.filter(|(name, _)| removal.switches.contains(*name));
        let remove = |switch: &Switch| {
            let mut netlink = Netlink::open()?;
            let joints = switch.numbers.iter().skip(1);
            let joints = joints.map(|number| self.names.joint(*number, Side::First));
            let joints = joints.filter_map(|name| netlink.link(&name).ok());
            let joints: Vec<LinkId> = joints.map(|link| link.id()).collect();
            remove_each(&mut netlink, joints)?;
            remove_each(&mut netlink, switch.bridges.iter().cloned())
        };
        removed
            .filter_map(|(_, switch)| remove(switch).err())
            .collect()
    }

    /// Removes a host's group, which ends its programs, and its namespace.
    fn remove_host(&mut self, name: &str) {
        let group = self.names.cgroup(name);
        self.groups.retain(|own| own.path() != group);
        let own = [
            Resource::Cgroup { path: group },
            Resource::Netns {
                name: self.names.netns(name),
                owner: self.names.owner(),
            },
        ];
        for resource in &own {
            self.resources.release(resource);
        }
    }

    /// Forgets removed parts. Those after them move up.
    fn forget(&mut self, removal: &Removal) {
        let rest = removal.apply(&self.topology);
        let links = self.topology.links.iter().zip(&self.links);
        let removed = links.filter(|(spec, _)| removal.links.contains(&spec.name));
        for end in removed.flat_map(|(_, made)| &made.ends) {
            if let Attachment::Switch { switch, bridge } = end.at {
                self.switches[switch].ports.free(bridge);
            }
        }
        let mut specs = self.topology.links.iter();
        let is_kept = |link: &str| !removal.links.contains(link);
        self.links
            .retain(|_| specs.next().is_none_or(|spec| is_kept(&spec.name)));
        let new_position = |is_gone: Vec<bool>| {
            let mut next = 0;
            let place = |is_gone: bool| {
                let own = next;
                next += usize::from(!is_gone);
                own
            };
            is_gone.into_iter().map(place).collect::<Vec<usize>>()
        };
        let hosts = self.topology.hosts.iter();
        let hosts = hosts.map(|host| removal.hosts.contains(&host.name));
        let hosts = new_position(hosts.collect());
        let names = self.topology.switches.iter();
        let are_gone: Vec<bool> = names.map(|name| removal.switches.contains(name)).collect();
        let mut gone = are_gone.iter();
        self.switches.retain(|_| gone.next() != Some(&true));
        let switches = new_position(are_gone);
        for end in self.links.iter_mut().flat_map(|link| &mut link.ends) {
            match &mut end.at {
                Attachment::Host(host) => *host = hosts[*host],
                Attachment::Switch { switch, .. } => *switch = switches[*switch],
            }
        }
        self.topology = rest;
    }

    /// Joins all failures to one error.
    pub(super) fn all(&self, failed: &[Error]) -> std::result::Result<(), NetworkError> {
        if failed.is_empty() {
            return Ok(());
        }
        let causes: Vec<String> = failed.iter().map(Error::to_string).collect();
        Err(self.failed(causes.join("; ")))
    }
}

/// Deletes links, also after a failure. The first failure is the result. A link that another
/// program has removed is no failure.
pub(super) fn remove_each(
    netlink: &mut Netlink,
    links: impl IntoIterator<Item = LinkId>,
) -> Result<()> {
    let mut result = Ok(());
    for link in links {
        if netlink.link_by_index(link.index).is_err() {
            continue;
        }
        let removed = netlink.apply([link::delete(&link)]);
        result = result.and(removed);
    }
    result
}
