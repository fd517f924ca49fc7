//! The numbers in the names of new interfaces: the lowest that no other part of the network has.

use std::collections::{BTreeSet, HashMap};

use myelin_spec::Topology;

use super::{Attachment, Network};

impl Network {
    /// Returns numbers for this many new links.
    pub(super) fn number_links(&self, count: usize) -> Vec<usize> {
        let used = self.links.iter().map(|link| link.number);
        free_numbers(&used.collect()).take(count).collect()
    }

    /// Returns numbers for this many new bridges.
    pub(super) fn number_bridges(&self, count: usize) -> Vec<usize> {
        let used = self.switches.iter().flat_map(|switch| &switch.numbers);
        free_numbers(&used.copied().collect()).take(count).collect()
    }

    /// Numbers the interfaces of the links that `grown` has more, at each host in the order of its
    /// links: 0 for `eth0`. A host has a second `eth0` only after the loss of all its links.
    pub(super) fn number_interfaces(&self, grown: &Topology) -> Vec<[usize; 2]> {
        let mut next: HashMap<&str, usize> = HashMap::new();
        for end in self.links.iter().flat_map(|link| &link.ends) {
            let number = end.link.name.strip_prefix("eth").map(str::parse::<usize>);
            if let (Attachment::Host(host), Some(Ok(number))) = (end.at, number) {
                let next = next.entry(&self.topology.hosts[host].name).or_default();
                *next = (number + 1).max(*next);
            }
        }
        let mut take = |end| {
            let next = next.entry(end).or_default();
            *next += 1;
            *next - 1
        };
        let links = grown.links[self.topology.links.len()..].iter();
        links
            .map(|link| link.ends.each_ref().map(|end| take(end.as_str())))
            .collect()
    }
}

/// Returns the numbers from 0 on that are not used.
fn free_numbers(used: &BTreeSet<usize>) -> impl Iterator<Item = usize> {
    (0..).filter(|number| !used.contains(number))
}
