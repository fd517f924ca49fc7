//! What a changed description adds to a running topology and removes from it.

use std::collections::BTreeSet;

use super::{HostSpec, LinkSpec, Topology};

/// The way from a running topology to another description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyChange {
    /// The topology with all additions, before anything is removed. They follow the existing parts.
    pub grown: Topology,
    /// What goes afterwards.
    pub removal: Removal,
}

/// Names of parts that a topology loses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removal {
    /// Hosts. All their links go too.
    pub hosts: BTreeSet<String>,
    /// Switches. All their links go too.
    pub switches: BTreeSet<String>,
    /// Links, by their names in the running topology.
    pub links: BTreeSet<String>,
}

impl Removal {
    /// Whether nothing goes.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.switches.is_empty() && self.links.is_empty()
    }

    /// Returns a topology without these parts.
    pub fn apply(&self, topology: &Topology) -> Topology {
        let mut rest = topology.clone();
        rest.hosts.retain(|host| !self.hosts.contains(&host.name));
        rest.switches.retain(|name| !self.switches.contains(name));
        rest.links.retain(|link| !self.links.contains(&link.name));
        rest
    }
}

impl Topology {
    /// Compares this running topology with the description `wanted`. This is `declared` with live
    /// changes of its links.
    ///
    /// # Errors
    /// `wanted` changes a part, lacks a part whose programs run as long as the topology, or has a
    /// new link that closes a loop.
    pub fn change_to(&self, declared: &Self, wanted: &Self) -> Result<TopologyChange, String> {
        let mut removal = Removal::default();
        for host in &declared.hosts {
            if is_kept(host, wanted)? {
                continue;
            }
            removal.hosts.insert(host.name.clone());
        }
        for switch in &declared.switches {
            let controller = declared.controllers.get(switch);
            if wanted.has_switch(switch) {
                if wanted.controllers.get(switch) != controller {
                    return Err(format!(
                        "the switch `{switch}` has another controller, which a running switch keeps"
                    ));
                }
            } else if controller.is_some() {
                return Err(format!(
                    "the OpenFlow switch `{switch}` is missing: a running topology keeps it"
                ));
            } else {
                removal.switches.insert(switch.clone());
            }
        }
        // The position of a link does not change.
        let known: Vec<_> = declared.links.iter().zip(&self.links).collect();
        for (before, now) in &known {
            let mut same = wanted
                .links
                .iter()
                .filter(|link| is_known(link, (before, now)));
            if same.next().is_none() {
                self.check_lost_link((before, now), wanted)?;
                removal.links.insert(now.name.clone());
            }
            if let Some(second) = same.next() {
                return Err(format!("a link `{}` exists already", second.name));
            }
        }
        self.check_moved_links(&removal)?;
        let is_new = |link: &&LinkSpec| !known.iter().any(|(one, now)| is_known(link, (one, now)));
        let grown = self.grown(wanted, wanted.links.iter().filter(is_new))?;
        Ok(TopologyChange { grown, removal })
    }

    /// Refuses the loss of a link that `wanted` has with other keys, or whose end needs it.
    fn check_lost_link(
        &self,
        (before, now): (&LinkSpec, &LinkSpec),
        wanted: &Self,
    ) -> Result<(), String> {
        let name = &now.name;
        if wanted
            .links
            .iter()
            .any(|link| link.name == *name || link.name == before.name)
        {
            return Err(format!(
                "the link `{name}` is changed: `myelin link` changes links"
            ));
        }
        let is_fixed = |end: &&String| {
            let mut hosts = self.hosts.iter();
            hosts.any(|host| host.name == **end && (host.is_node || host.is_router))
                || self.controllers.contains_key(*end)
        };
        now.ends.iter().find(is_fixed).map_or(Ok(()), |end| {
            Err(format!(
                "the link `{name}` is missing, but nodes, routers and OpenFlow switches such as `{end}` keep their links"
            ))
        })
    }

    /// Refuses the loss of a switch to which a link that stays has moved.
    fn check_moved_links(&self, removal: &Removal) -> Result<(), String> {
        let rest = removal.apply(self);
        for link in &rest.links {
            let mut ends = link.ends.iter();
            if let Some(end) = ends.find(|end| removal.switches.contains(*end)) {
                return Err(format!(
                    "the switch `{end}` is missing, but the link `{}` has moved to it: move the link away first",
                    link.name
                ));
            }
        }
        Ok(())
    }

    /// Returns this topology with what `wanted` has more.
    fn grown<'l>(
        &self,
        wanted: &Self,
        new_links: impl Iterator<Item = &'l LinkSpec>,
    ) -> Result<Self, String> {
        let mut grown = self.clone();
        let new_hosts = wanted.hosts.iter();
        let new_hosts = new_hosts.filter(|host| self.host(&host.name).is_none());
        grown.hosts.extend(new_hosts.cloned());
        let new_switches = wanted.switches.iter();
        for switch in new_switches.filter(|switch| !self.has_switch(switch)) {
            grown.switches.push(switch.clone());
            let controller = wanted.controllers.get_key_value(switch);
            grown
                .controllers
                .extend(controller.map(|(name, at)| (name.clone(), at.clone())));
        }
        for link in new_links {
            if grown.links.iter().any(|other| other.name == link.name) {
                return Err(format!("a link `{}` exists already", link.name));
            }
            let ends = link.ends.each_ref().map(String::as_str);
            // Parts to remove still forward while the new ones come.
            if let Some(path) = grown.find_loop(ends, grown.links.len()) {
                let path = path.join(" - ");
                return Err(format!("the new link would close a loop: {path}"));
            }
            grown.links.push(link.clone());
        }
        Ok(grown)
    }
}

/// Whether `wanted` has a host. Refuses another description of the host, and the loss of a node.
fn is_kept(host: &HostSpec, wanted: &Topology) -> Result<bool, String> {
    let name = &host.name;
    match wanted.host(name) {
        Some(same) if same == host => Ok(true),
        Some(other) if other.addresses != host.addresses => {
            let own = host.addresses.iter();
            let own = own.map(|own| format!("{}/{}", own.address, own.prefix_len));
            let own: Vec<_> = own.collect();
            Err(format!(
                "the host `{name}` has another address: write `address: [ {} ]`, which the running host keeps",
                own.join(", ")
            ))
        }
        Some(other) if other.routes != host.routes => Err(format!(
            "the host `{name}` has other routes: a running topology keeps its routers and their networks"
        )),
        Some(_) => Err(format!(
            "the host `{name}` is changed: a running host keeps its keys"
        )),
        None if host.is_node => Err(format!(
            "the node `{name}` is missing: a running topology keeps its nodes"
        )),
        None if host.is_router => Err(format!(
            "the router `{name}` is missing: a running topology keeps its routers"
        )),
        None => Ok(false),
    }
}

/// Whether a link is the one that was declared as the first and now is the second.
fn is_known(link: &LinkSpec, (before, now): (&LinkSpec, &LinkSpec)) -> bool {
    let is_there = |one: &LinkSpec| one.name == link.name && one.ends == link.ends;
    let impairments = [before.directions(), now.directions()];
    (is_there(before) || is_there(now))
        && impairments.contains(&link.directions())
        && before.by == link.by
}

#[cfg(test)]
mod tests {
    use super::super::tests::lab;
    use super::super::{Impairments, LinkEmulation};
    use super::*;

    fn new(one: &str, other: &str) -> LinkSpec {
        LinkSpec {
            name: format!("{one}-{other}"),
            ends: [one.to_owned(), other.to_owned()],
            impairments: Impairments::default(),
            back: None,
            by: LinkEmulation::default(),
        }
    }

    fn names(links: &[LinkSpec]) -> Vec<&str> {
        links.iter().map(|link| link.name.as_str()).collect()
    }

    #[test]
    fn a_topology_gets_more_but_changes_nothing() {
        let (lab, mut wanted) = (lab(), lab());
        let moved = lab.with_moved_link("h1-s1", "s3").unwrap();
        wanted.hosts.push(HostSpec {
            name: "h3".to_owned(),
            ..HostSpec::default()
        });
        wanted.switches.insert(0, "s4".to_owned());
        wanted.links.insert(0, new("h3", "s4"));
        wanted.links.push(new("s4", "s1"));
        let change = moved.change_to(&lab, &wanted).unwrap();
        assert_eq!(
            names(&change.grown.links),
            ["h1-s3", "s1-s2", "s2-s3", "h1-h2", "h3-s4", "s4-s1"]
        );
        assert_eq!(change.grown.switches, ["s1", "s2", "s3", "s4"]);
        assert!(change.removal.is_empty());
        let refused = |change: &dyn Fn(&mut Topology), words: &str| {
            let mut other = wanted.clone();
            change(&mut other);
            let error = moved.change_to(&lab, &other).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        refused(&|t| t.links.push(new("s4", "s3")), "loop: ");
        refused(&|t| t.hosts[1].cpus = vec![0], "the host `h2` is changed");
        refused(
            &|t| {
                t.hosts[1].addresses.push(super::super::HostAddress {
                    address: [10, 0, 0, 9].into(),
                    prefix_len: 8,
                    link: 0,
                });
            },
            "the host `h2` has another address: write `address: [  ]`",
        );
        refused(&|t| t.links[2].impairments.delay_ns = 5, "the link `s1-s2`");
        refused(&|t| t.links.push(new("h1", "s3")), "a link `h1-s3` exists");
    }

    #[test]
    fn a_topology_loses_what_its_description_lacks() {
        let (lab, mut wanted) = (lab(), lab());
        let moved = lab.with_moved_link("h1-s1", "s2").unwrap();
        wanted.hosts.remove(1);
        wanted.switches.truncate(2);
        wanted.links.truncate(2);
        let change = moved.change_to(&lab, &wanted).unwrap();
        assert_eq!(change.grown, moved);
        let removal = change.removal;
        assert_eq!(Vec::from_iter(&removal.hosts), ["h2"]);
        assert_eq!(Vec::from_iter(&removal.switches), ["s3"]);
        assert_eq!(Vec::from_iter(&removal.links), ["h1-h2", "s2-s3"]);
        let rest = removal.apply(&moved);
        assert_eq!(names(&rest.links), ["h1-s2", "s1-s2"]);
        assert_eq!((rest.hosts.len(), rest.switches.len()), (1, 2));
        let moved = lab.with_moved_link("h1-s1", "s3").unwrap();
        let error = moved.change_to(&lab, &wanted).unwrap_err();
        assert!(error.contains("`h1-s3` has moved to it"), "{error}");

        let mut of_node = lab.clone();
        of_node.hosts[0].is_node = true;
        let refused = |change: &dyn Fn(&mut Topology), words: &str| {
            let mut other = of_node.clone();
            change(&mut other);
            let error = of_node.change_to(&of_node, &other).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        refused(&|t| drop(t.hosts.remove(0)), "the node `h1` is missing");
        refused(&|t| drop(t.links.remove(0)), "such as `h1` keep");
        (of_node.hosts[0].is_node, of_node.hosts[0].is_router) = (false, true);
        let refused = |change: &dyn Fn(&mut Topology), words: &str| {
            let mut other = of_node.clone();
            change(&mut other);
            let error = of_node.change_to(&of_node, &other).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        refused(&|t| drop(t.hosts.remove(0)), "the router `h1` is missing");
        refused(&|t| drop(t.links.remove(0)), "such as `h1` keep");
        let route = super::super::HostRoute {
            prefix: "10.9.0.0/24".parse().unwrap(),
            gateway: [10, 0, 0, 9].into(),
        };
        refused(&|t| t.hosts[1].routes.push(route), "`h2` has other routes");
    }
}
