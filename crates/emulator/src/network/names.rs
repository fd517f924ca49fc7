//! Names of a topology's namespaces, groups and interfaces. The run and the topology determine
//! them.

use myelin_linux::link::group::LinkGroup;

use crate::names::hash_of;

/// The agent that makes a network.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Distinguishes the agents on a machine.
    pub id: &'a str,
    /// The control group under which all groups of the agent lie.
    pub cgroup: &'a str,
}

/// The interface of a host's first link, which has the host's addresses.
pub(super) const FIRST_INTERFACE: &str = "eth0";

/// The names of one topology.
#[derive(Debug, Clone)]
pub(super) struct NetworkNames {
    run: String,
    cgroup: String,
    topology: String,
    pub(super) group: LinkGroup,
}

/// The end of a link between switches, or the end of a joint: between two bridges of a switch, or
/// between a bridge and an OpenFlow switch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    First,
    Second,
}

impl NetworkNames {
    pub(super) fn new(run: Run<'_>, topology: &str) -> Self {
        let hash = hash_of(run.id, topology);
        Self {
            run: run.id.to_owned(),
            cgroup: run.cgroup.to_owned(),
            topology: topology.to_owned(),
            group: LinkGroup {
                // The kernel's group 0 holds all other links; `ip link` shows larger numbers as
                // negative ones.
                number: (hash & 0x7fff_ffff).max(1),
                prefix: format!("mt{hash:08x}"),
            },
        }
    }

    /// Returns the network namespace of a host: `myelin-TOPOLOGY-HOST`.
    pub(super) fn netns(&self, host: &str) -> String {
        format!("myelin-{}-{host}", self.topology)
    }

    /// Returns the network namespace of the OpenFlow switches. No host has a dot in its name.
    pub(super) fn openflow_netns(&self) -> String {
        format!("myelin-{}.openflow", self.topology)
    }

    /// Returns the owner that the namespaces record. Other topologies and chains have other owners.
    pub(super) fn owner(&self) -> String {
        format!("myelin run {} topology {}", self.run, self.topology)
    }

    /// Returns the control group of a node, or of a host with limits.
    pub(super) fn cgroup(&self, host: &str) -> String {
        format!("{}/host-{}.{host}", self.cgroup, self.topology)
    }

    /// Returns an end of the link with this number at a switch.
    pub(super) fn port(&self, link: usize, side: Side) -> String {
        let letter = match side {
            Side::First => 'a',
            Side::Second => 'b',
        };
        format!("{}{letter}{link:04x}", self.group.prefix)
    }

    /// Returns the bridge with this number, counted over all switches.
    pub(super) fn bridge(&self, number: usize) -> String {
        format!("{}s{number:04x}", self.group.prefix)
    }

    /// Returns an end of the joint between the bridge with this number and its switch's first
    /// bridge.
    pub(super) fn joint(&self, bridge: usize, side: Side) -> String {
        let letter = match side {
            Side::First => 'j',
            Side::Second => 'k',
        };
        format!("{}{letter}{bridge:04x}", self.group.prefix)
    }
}
