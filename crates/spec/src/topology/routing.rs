//! The IP networks between the routers of a topology, and the routes to them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use myelin_packet::{Family, Prefix};

use super::{HostAddress, HostRoute, Topology};

/// The Ethernet segment of each link. Broadcasts pass switches and nodes, and end at hosts and
/// routers.
pub(crate) struct Segments(Vec<usize>);

impl Segments {
    /// Finds the segments of a topology.
    pub(crate) fn new(topology: &Topology) -> Self {
        let nodes = topology.nodes().map(|node| &node.name);
        let names = topology.switches.iter().chain(nodes).map(String::as_str);
        let numbers: HashMap<&str, usize> = names.zip(0..).collect();
        let mut parents: Vec<usize> = (0..numbers.len()).collect();
        let number = |end: &String| numbers.get(end.as_str()).copied();
        for link in &topology.links {
            if let [Some(one), Some(other)] = link.ends.each_ref().map(number) {
                let (one, other) = (find_root(&mut parents, one), find_root(&mut parents, other));
                parents[one] = other;
            }
        }
        // A link without a switch or node is a segment of its own.
        let mut own = numbers.len()..;
        let segment = |ends: &[String; 2]| match ends.iter().find_map(number) {
            Some(at) => find_root(&mut parents, at),
            None => own.next().unwrap_or_default(),
        };
        let ends = topology.links.iter().map(|link| &link.ends);
        Self(ends.map(segment).collect())
    }

    /// Returns the segments of the links of each host and switch, in the order of the links.
    pub(crate) fn by_name<'t>(&self, topology: &'t Topology) -> HashMap<&'t str, Vec<usize>> {
        let mut segments: HashMap<&str, Vec<usize>> = HashMap::new();
        for (link, segment) in topology.links.iter().zip(&self.0) {
            for end in &link.ends {
                segments.entry(end).or_default().push(*segment);
            }
        }
        segments
    }
}

/// Returns the number that stands for a set, and shortens the way to it.
fn find_root(parents: &mut [usize], mut at: usize) -> usize {
    while parents[at] != at {
        parents[at] = parents[parents[at]];
        at = parents[at];
    }
    at
}

/// A network: the routers on one segment that have addresses of one prefix.
pub(crate) struct Network {
    /// The prefix.
    pub(crate) prefix: Prefix,
    /// The segment.
    pub(crate) segment: usize,
    /// Each router's number, with its address.
    pub(crate) routers: Vec<(usize, IpAddr)>,
}

/// The networks of all routers. No two have a common address.
#[derive(Default)]
pub(crate) struct Networks {
    all: Vec<Network>,
    /// The number of each network, by its first address.
    by_first: BTreeMap<(Family, u128), usize>,
    /// The numbers of each router's networks.
    of_routers: BTreeMap<usize, Vec<usize>>,
}

impl Networks {
    /// Adds the address of a router on a segment.
    ///
    /// # Errors
    /// Another network has addresses of the prefix: its number.
    pub(crate) fn add(
        &mut self,
        router: usize,
        address: &HostAddress,
        segment: usize,
    ) -> Result<usize, usize> {
        let prefix = address.network();
        let number = if let Some(other) = self.find_overlap(prefix) {
            let known = &self.all[other];
            if (known.prefix, known.segment) != (prefix, segment) {
                return Err(other);
            }
            other
        } else {
            let key = (prefix.family(), prefix.range().0);
            self.by_first.insert(key, self.all.len());
            self.all.push(Network {
                prefix,
                segment,
                routers: Vec::new(),
            });
            self.all.len() - 1
        };
        self.all[number].routers.push((router, address.address));
        self.of_routers.entry(router).or_default().push(number);
        Ok(number)
    }

    /// Returns the number of a network with addresses of this prefix.
    fn find_overlap(&self, prefix: Prefix) -> Option<usize> {
        let (first, last) = prefix.range();
        let family = prefix.family();
        // The networks have no common address, so the nearest one decides.
        let mut before = self.by_first.range((family, 0)..=(family, last));
        let number = *before.next_back()?.1;
        (self.all[number].prefix.range().1 >= first).then_some(number)
    }

    /// Returns the number of the network with this address.
    pub(crate) fn find(&self, address: IpAddr) -> Option<usize> {
        self.find_overlap(Prefix::host(address))
    }

    /// Returns all networks, in the order of the file.
    pub(crate) fn all(&self) -> &[Network] {
        &self.all
    }

    /// Returns the routes of a router to all networks that it reaches over others. A way passes as
    /// few networks as possible; of equal ways, the one whose routers come first in the file.
    pub(crate) fn routes(&self, router: usize) -> Vec<HostRoute> {
        let families = [Family::V4, Family::V6].into_iter();
        families
            .flat_map(|family| self.routes_of_family(router, family))
            .collect()
    }

    fn routes_of_family(&self, router: usize, family: Family) -> Vec<HostRoute> {
        let networks_of = |router: &usize| {
            let all = self.of_routers.get(router).into_iter().flatten().copied();
            all.filter(|number| self.all[*number].prefix.family() == family)
        };
        // Breadth first: each network with the gateway to it; none to the router's own networks.
        let mut open: VecDeque<(usize, Option<IpAddr>)> =
            networks_of(&router).map(|own| (own, None)).collect();
        let mut reached: BTreeSet<usize> = networks_of(&router).collect();
        let mut seen = BTreeSet::from([router]);
        let mut routes = Vec::new();
        while let Some((number, before)) = open.pop_front() {
            for (next, address) in &self.all[number].routers {
                if !seen.insert(*next) {
                    continue;
                }
                let gateway = before.unwrap_or(*address);
                for network in networks_of(next) {
                    if reached.insert(network) {
                        let prefix = self.all[network].prefix;
                        routes.push(HostRoute { prefix, gateway });
                        open.push_back((network, Some(gateway)));
                    }
                }
            }
        }
        routes
    }
}
