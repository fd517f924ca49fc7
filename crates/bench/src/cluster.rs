//! A cluster of nodes on one machine, chains over it, and the chains of other systems on an equal
//! network (Xiang, dissertation, TU Dresden 2022, section 2.4).
//!
//! ```text
//!  c1 -- n1 -- v1        each node has a client and a server; the chain's client is that of its
//!         |              first node, its server that of its last node
//!         s -- n2 ...    each link to the switch or router: half of the delay between two nodes,
//!                        1 Gbit/s
//! ```

pub(crate) mod placements;
pub(crate) mod probe;
pub(crate) mod rivals;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use myelin_api::ApiError;
use myelin_linux::netns::Netns;
use myelin_metrics::stats::mean_ci;
use myelin_spec::Space;

use self::probe::Ends;
use crate::agents::AgentProcess;
use crate::figures::Subject;
use crate::{Error, Row};

/// Nodes of the cluster, and the delay between two of them, ns.
pub(crate) const NODES: usize = 4;
pub(crate) const DELAY_NS: u64 = 100_000;
/// Packets that may wait at a link. The probe has one on the way.
const QUEUE: u32 = 20;
/// Longest chain.
pub(crate) const LONGEST: usize = 10;
/// UDP port of the servers.
pub(crate) const PORT: u16 = 9000;
/// The published confidence of an interval.
const CONFIDENCE: f64 = 0.999;

/// What joins the nodes of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joint {
    /// A switch: NSH on Ethernet.
    Switch,
    /// A router with a network for each node: NSH in VXLAN.
    Router,
}

impl Joint {
    /// Describes the joint `s` of a topology.
    fn keys(self, nodes: usize) -> String {
        let addresses: Vec<_> = (1..=nodes)
            .map(|node| format!("10.{node}.0.254/24"))
            .collect();
        match self {
            Self::Switch => "switches: [ s ]".to_owned(),
            Self::Router => {
                format!(
                    "routers: [ {{ name: s, addresses: [ {} ] }} ]",
                    addresses.join(", ")
                )
            }
        }
    }

    /// The address of a host, by its place in the topology: clients first, then servers.
    fn address_of(self, nodes: usize, host: usize) -> Ipv4Addr {
        match self {
            Self::Switch => address_of(host),
            Self::Router => {
                Ipv4Addr::new(10, (host % nodes) as u8 + 1, 0, (host / nodes) as u8 + 1)
            }
        }
    }
}

/// A running cluster. A drop removes it with its chains.
pub(crate) struct Cluster {
    pub(crate) agent: AgentProcess,
    topology: String,
    chain: String,
    /// The network namespace of each host, clients first.
    hosts: Vec<String>,
    nodes: usize,
    joint: Joint,
}

/// The text of links that together delay each packet by `delay_ns`, and what they join.
fn impaired(ends: [&str; 2], delay_ns: u64) -> String {
    let [one, other] = ends;
    let half_ns = delay_ns / 2;
    format!(
        "    - {{ ends: [ {one}, {other} ], delay: {half_ns}ns, bandwidth: 1Gbit, queue: {QUEUE} }}\n"
    )
}

fn topology_header(name: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name} }}\nspec:\n"
    )
}

/// The text of a cluster. Without a delay between two nodes, its links have no limits.
fn cluster_text(name: &str, (nodes, delay_ns): (usize, u64), joint: Joint) -> String {
    let names = |letter: &str| {
        let all: Vec<_> = (1..=nodes).map(|node| format!("{letter}{node}")).collect();
        all.join(", ")
    };
    let mut text = topology_header(name);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "  hosts: [ {}, {} ]\n  nodes: [ {} ]\n  {}\n  links:",
        names("c"),
        names("v"),
        names("n"),
        joint.keys(nodes)
    );
    for node in 1..=nodes {
        let node_link = match delay_ns {
            0 => format!("    - {{ ends: [ n{node}, s ] }}\n"),
            _ => impaired([&format!("n{node}"), "s"], delay_ns),
        };
        text.push_str(&node_link);
        let _ = writeln!(text, "    - {{ ends: [ c{node}, n{node} ] }}");
        let _ = writeln!(text, "    - {{ ends: [ n{node}, v{node} ] }}");
    }
    text
}

/// The key of the function at a position. After each function the payload has another key: the
/// number of functions that it passed.
fn key(position: usize) -> usize {
    position ^ (position + 1)
}

/// The chain over the nodes with these numbers, from 0.
fn chain_text(
    [topology, chain]: [&str; 2],
    (nodes, joint): (usize, Joint),
    places: &[usize],
    space: Space,
) -> String {
    let (client, server) = ends_of(places);
    let server_address = joint.address_of(nodes, nodes + server);
    let (client, server) = (client + 1, server + 1);
    let mut text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {chain} }}\nspec:\n  \
         match: {{ protocol: udp, destination: {server_address}/32, destinationPort: {PORT} }}\n  \
         ports: {{ ingress: {topology}/c{client}, egress: {topology}/v{server} }}\n  functions:\n"
    );
    for (position, place) in places.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    - {{ name: f{position}, kind: xor, config: {{ key: {} }}, node: n{}, space: {space} }}",
            key(position),
            place + 1
        );
    }
    text
}

/// The first and the last node of a chain.
fn ends_of(places: &[usize]) -> (usize, usize) {
    let end = |place: Option<&usize>| place.copied().unwrap_or_default();
    (end(places.first()), end(places.last()))
}

/// The address of a host without `address`, by its place in the topology.
pub(crate) fn address_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

/// The network namespaces of a running topology's hosts.
fn namespaces(agent: &AgentProcess, topology: &str) -> Result<Vec<String>, Error> {
    let all = agent.client.topologies()?;
    let found = all.into_iter().find(|found| found.name == topology);
    let found = found.ok_or_else(|| ApiError::failed("the topology does not run"))?;
    Ok(found.hosts.into_iter().map(|host| host.netns).collect())
}

/// Opens a UDP socket on a host.
fn socket(netns: &str, port: u16) -> Result<UdpSocket, Error> {
    let bound = Netns::open(netns)?.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))?;
    bound.map_err(|cause| Error::system("open a socket on a host", cause))
}

impl Cluster {
    /// Makes a cluster with this delay between two nodes.
    pub(crate) fn start(program: &Path, nodes: usize, delay_ns: u64) -> Result<Self, Error> {
        Self::start_joined(program, (nodes, delay_ns), Joint::Switch)
    }

    /// Makes a cluster with this delay between two nodes, and this joint.
    pub(crate) fn start_joined(
        program: &Path,
        (nodes, delay_ns): (usize, u64),
        joint: Joint,
    ) -> Result<Self, Error> {
        let agent = AgentProcess::start(program)?;
        let topology = agent.dir.chain_name("net");
        agent.up(cluster_text(&topology, (nodes, delay_ns), joint))?;
        let hosts = namespaces(&agent, &topology)?;
        Ok(Self {
            chain: agent.dir.chain_name("over"),
            agent,
            topology,
            hosts,
            nodes,
            joint,
        })
    }

    /// Brings a chain of `xor` up, with its functions on these nodes.
    pub(crate) fn up(&self, places: &[usize], space: Space) -> Result<(), Error> {
        let names = [self.topology.as_str(), &self.chain];
        let shape = (self.nodes, self.joint);
        self.agent.up(chain_text(names, shape, places, space))
    }

    /// Removes the chain.
    pub(crate) fn down(&self) -> Result<(), Error> {
        self.agent.client.down(&self.chain)?;
        Ok(())
    }

    /// Sockets of the client and the server of a chain with these places. A packet has passed
    /// between them.
    pub(crate) fn ends(&self, places: &[usize]) -> Result<Ends, Error> {
        let (client, server) = ends_of(places);
        let server = self.nodes + server;
        let host = |host: usize| self.hosts.get(host).map_or("", String::as_str);
        let sockets = (socket(host(client), 0)?, socket(host(server), PORT)?);
        Ends::connect(sockets, self.joint.address_of(self.nodes, server))
    }
}

/// Adds the mean of a figure over all rounds, and half of its published interval (Student's t).
pub(crate) fn with_mean<O>(row: Row, name: &str, unit: &str, subject: &Subject<'_, O>) -> Row {
    let values: Vec<f64> = subject.values(name).collect();
    let mean = mean_ci(&values, CONFIDENCE);
    let half = mean.and_then(|mean| mean.half_width());
    row.with(&format!("{name}_mean{unit}"), mean.map(|mean| mean.value))
        .with(&format!("{name}_mean_half{unit}"), half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_and_chains_are_valid() {
        for joint in [Joint::Switch, Joint::Router] {
            check_cluster(joint, DELAY_NS);
            check_cluster(joint, 0);
        }
    }

    fn check_cluster(joint: Joint, delay_ns: u64) {
        let text = format!(
            "{}---\n{}",
            cluster_text("net", (NODES, delay_ns), joint),
            chain_text(["net", "over"], (NODES, joint), &[1, 1, 3], Space::User)
        );
        let objects = crate::agents::chain_source(text).parse_objects().unwrap();
        let cluster = &objects.topologies[0];
        assert_eq!(cluster.nodes().count(), NODES);
        assert_eq!(
            cluster.routers().count(),
            usize::from(joint == Joint::Router)
        );
        assert_eq!(cluster.links[0].impairments.delay_ns, delay_ns / 2);
        for (number, host) in cluster.hosts[..2 * NODES].iter().enumerate() {
            assert_eq!(host.addresses[0].address, joint.address_of(NODES, number));
        }
        let chain = &objects.chains[0];
        let ports = chain.ports.as_ref().unwrap();
        assert_eq!([&ports.ingress, &ports.egress], ["net/c2", "net/v4"]);
        assert_eq!(chain.functions[2].node.as_deref(), Some("n4"));
    }

    #[test]
    fn each_function_gives_another_key() {
        let mut now = 0;
        for position in 0..LONGEST {
            now ^= key(position);
            assert_eq!(now, position + 1);
        }
    }
}
