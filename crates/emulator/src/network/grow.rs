//! Additions to a running network, and their undo.

use std::collections::HashSet;

use myelin_linux::journal::Journal;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::{Error, Result};
use myelin_spec::Topology;

use super::bridges::SwitchPorts;
use super::remove::remove_each;
use super::{Network, NetworkError, build, check};

/// A network before an addition, for the undo.
#[derive(Debug)]
pub struct Growth {
    topology: Topology,
    groups: usize,
    resources: usize,
    ports: Vec<SwitchPorts>,
    /// Indices of the links in the caller's namespace.
    links_here: HashSet<u32>,
    /// The number of each end of each new link at its host.
    interfaces: Vec<[usize; 2]>,
}

impl Growth {
    /// The number of links before the addition. The new ones follow.
    pub fn links_before(&self) -> usize {
        self.topology.links.len()
    }
}

impl Network {
    /// Adds the hosts, switches and links that `grown` has and this network lacks. They are the
    /// last ones of `grown`. After a failure, the network is as before.
    ///
    /// # Errors
    /// An addition that a running network cannot have, or a system error.
    pub fn grow(
        &mut self,
        grown: &Topology,
        journal: &Journal,
    ) -> std::result::Result<Growth, NetworkError> {
        check(grown).map_err(|cause| self.failed(cause))?;
        self.check_growth(grown)
            .map_err(|cause| self.failed(cause))?;
        let before = self.before(grown).map_err(|error| self.failed(error))?;
        let built = build::build(self, grown, journal);
        if let Err(error) = built {
            let error = self.failed(error);
            self.shrink(&before, grown)?;
            return Err(error);
        }
        Ok(before)
    }

    /// Removes what `grow` has added. No other change may lie between.
    ///
    /// # Errors
    /// A system error. What could be removed is removed.
    pub fn undo(&mut self, growth: &Growth) -> std::result::Result<(), NetworkError> {
        let grown = self.topology.clone();
        self.shrink(growth, &grown)
    }

    /// Refuses additions to nodes, routers and OpenFlow switches, which start with the topology.
    fn check_growth(&self, grown: &Topology) -> std::result::Result<(), String> {
        let mut new_hosts = grown.hosts.iter().skip(self.topology.hosts.len());
        if let Some(node) = new_hosts.find(|host| host.is_node) {
            return Err(format!(
                "a running topology gets no node: `myelin down {}` first, or make `{}` a host",
                self.topology.name, node.name
            ));
        }
        let mut new_hosts = grown.hosts.iter().skip(self.topology.hosts.len());
        if let Some(router) = new_hosts.find(|host| host.is_router) {
            return Err(format!(
                "a running topology gets no router: `myelin down {}` first, or remove `{}`",
                self.topology.name, router.name
            ));
        }
        let new_links = grown.links.iter().skip(self.topology.links.len());
        let mut ends = new_links.flat_map(|link| &link.ends);
        let fixed = |name: &str| {
            let host = grown.host(name)?;
            let kinds = [(host.is_node, "node"), (host.is_router, "router")];
            kinds.into_iter().find(|(is_one, _)| *is_one)
        };
        if let Some((end, (_, kind))) = ends.find_map(|end| Some((end, fixed(end)?))) {
            return Err(format!(
                "the running {kind} `{end}` gets no new link: `myelin down {}` first",
                self.topology.name
            ));
        }
        let mut new_switches = grown.switches.iter().skip(self.topology.switches.len());
        if let Some(switch) = new_switches.find(|name| grown.controllers.contains_key(*name)) {
            return Err(format!(
                "a running topology gets no OpenFlow switch: `myelin down {}` first, or remove `openflow` from `{switch}`",
                self.topology.name
            ));
        }
        let new_links = grown.links.iter().skip(self.topology.links.len());
        let mut ends = new_links.flat_map(|link| &link.ends);
        if let Some(switch) = ends.find(|end| grown.controllers.contains_key(*end)) {
            return Err(format!(
                "the running OpenFlow switch `{switch}` gets no new link: `myelin down {}` first",
                self.topology.name
            ));
        }
        Ok(())
    }

    fn before(&self, grown: &Topology) -> Result<Growth> {
        let links = self.names.group.links(&mut Netlink::open()?)?;
        let ports = self.switches.iter().map(|switch| switch.ports.clone());
        Ok(Growth {
            topology: self.topology.clone(),
            groups: self.groups.len(),
            resources: self.resources.0.len(),
            ports: ports.collect(),
            links_here: links.iter().map(|link| link.index).collect(),
            interfaces: self.number_interfaces(grown),
        })
    }

    /// Goes back to an earlier state, also after a part of an addition.
    fn shrink(
        &mut self,
        before: &Growth,
        grown: &Topology,
    ) -> std::result::Result<(), NetworkError> {
        let removed = self.remove_new_links(before, grown);
        self.links.truncate(before.topology.links.len());
        self.switches.truncate(before.ports.len());
        for (switch, ports) in self.switches.iter_mut().zip(&before.ports) {
            switch.ports = ports.clone();
        }
        self.groups.truncate(before.groups);
        // The newest first.
        while self.resources.0.len() > before.resources {
            self.resources.0.pop();
        }
        self.topology = before.topology.clone();
        self.all(&removed)
    }

    /// Removes all new links, also after a failure.
    fn remove_new_links(&self, before: &Growth, grown: &Topology) -> Vec<Error> {
        let mut failed = Vec::new();
        let mut keep = |removed: Result<()>| failed.extend(removed.err());
        keep(Netlink::open().and_then(|mut netlink| {
            let mut links = self.names.group.links(&mut netlink)?;
            links.retain(|link| !before.links_here.contains(&link.index));
            // The other end of a pair goes with the first one.
            remove_each(&mut netlink, links.iter().map(Link::id))
        }));
        // A link between two hosts has no end here. It goes with a new host.
        let is_old = |end: &String| before.topology.host(end).is_some();
        let new_links = grown.links.iter().skip(before.topology.links.len());
        for (spec, interfaces) in new_links.zip(&before.interfaces) {
            if !spec.ends.iter().all(is_old) {
                continue;
            }
            keep(
                Netns::open(&self.names.netns(&spec.ends[0])).and_then(|netns| {
                    let mut inside = Netlink::open_in(&netns)?;
                    let found = inside.link(&format!("eth{}", interfaces[0]));
                    remove_each(&mut inside, found.ok().map(|link| link.id()))
                }),
            );
        }
        failed
    }
}
