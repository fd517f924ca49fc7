//! Faults of interfaces that a chain names as its ports.

use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;

/// Describes why a chain cannot process the packets of the interface, and the remedy.
pub(crate) fn find_header_fault(link: &Link) -> Option<String> {
    if link.has_ethernet_header {
        return None;
    }
    let name = &link.name;
    let kind = match link.kind.as_str() {
        "" => String::new(),
        kind => format!("kind {kind}, "),
    };
    // The front door would read addresses at wrong offsets and pass all packets unmatched.
    Some(format!(
        "interface {name} has no Ethernet header ({kind}link layer {}), and chains process Ethernet \
         frames: name an Ethernet interface, such as a veth, a tap or a bridge",
        link.link_layer
    ))
}

/// Describes why packets that leave at the egress arrive again at the ingress, and the remedy.
///
/// A VLAN and its lower link, or a bridge and its member, are no loop: neither receives what the
/// other transmits.
pub(crate) fn find_loop(links: [&Link; 2], netlink: &mut Netlink) -> Option<String> {
    describe_loop(links, links.map(|link| find_bridge_behind(link, netlink)))
}

/// `bridges_behind` has the index of the bridge of which the other end of each link is a member.
fn describe_loop(
    [ingress, egress]: [&Link; 2],
    bridges_behind: [Option<u32>; 2],
) -> Option<String> {
    // A bridge that is a port is promiscuous, so it receives what any member receives.
    let is_behind = |at: usize, bridge: &Link| bridges_behind[at] == Some(bridge.index);
    let why = if ingress.index == egress.index {
        "are two names of one interface"
    } else if are_veth_peers(ingress, egress) {
        "are the two ends of one veth pair"
    } else if is_macvlan_over(egress, ingress) {
        "are a macvlan in bridge mode and its lower interface"
    } else if are_macvlan_siblings(ingress, egress) {
        "are macvlans in bridge mode of one lower interface"
    } else if is_behind(1, ingress) || is_behind(0, egress) {
        "are a bridge and the other end of its member"
    } else {
        return None;
    };
    let (first, second) = (&ingress.name, &egress.name);
    Some(format!(
        "interfaces {first} and {second} {why}, so packets that leave at {second} arrive at {first} and \
         circle forever: name two interfaces of different links"
    ))
}

/// Returns the index of the bridge of which the other end of a veth is a member.
fn find_bridge_behind(link: &Link, netlink: &mut Netlink) -> Option<u32> {
    let is_here = link.kind == "veth" && link.peer_namespace.is_none();
    let peer = link.peer.filter(|_| is_here)?;
    netlink.link_by_index(peer).ok()?.master
}

fn are_veth_peers(one: &Link, other: &Link) -> bool {
    // Both links are in this namespace, so each names the other without a namespace identifier.
    let is_peer = |link: &Link, peer: &Link| {
        link.kind == "veth" && link.peer == Some(peer.index) && link.peer_namespace.is_none()
    };
    is_peer(one, other) && is_peer(other, one)
}

fn is_macvlan_over(link: &Link, lower: &Link) -> bool {
    link.is_macvlan_bridge && link.peer == Some(lower.index) && link.peer_namespace.is_none()
}

fn are_macvlan_siblings(one: &Link, other: &Link) -> bool {
    let lower = |link: &Link| (link.peer, link.peer_namespace);
    one.is_macvlan_bridge && other.is_macvlan_bridge && lower(one) == lower(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, peer: Option<u32>) -> Link {
        Link {
            index,
            name: name.to_owned(),
            kind: kind.to_owned(),
            peer,
            link_layer: "ETHER".to_owned(),
            has_ethernet_header: true,
            ..Link::default()
        }
    }

    fn macvlan(index: u32, name: &str, lower: u32) -> Link {
        Link {
            is_macvlan_bridge: true,
            ..link(index, name, "macvlan", Some(lower))
        }
    }

    #[test]
    fn a_link_without_ethernet_header_is_refused() {
        let good = link(5, "eth1", "", None);
        assert_eq!(find_header_fault(&good), None);
        for (kind, link_layer, words) in [
            ("wireguard", "NONE", "(kind wireguard, link layer NONE)"),
            ("", "PPP", "(link layer PPP)"),
        ] {
            let tunnel = Link {
                kind: kind.to_owned(),
                link_layer: link_layer.to_owned(),
                has_ethernet_header: false,
                ..good.clone()
            };
            let fault = find_header_fault(&tunnel).unwrap();
            let names_cause = fault.contains("eth1 has no Ethernet header");
            assert!(names_cause && fault.contains(words), "{fault}");
        }
    }

    #[test]
    fn links_that_return_packets_to_the_ingress_are_a_loop() {
        let [a, b] = [link(5, "a", "veth", Some(6)), link(6, "b", "veth", Some(5))];
        let lower = link(3, "eth1", "", None);
        let [m, n] = [macvlan(7, "m", 3), macvlan(8, "n", 3)];
        let bridge = link(9, "br0", "bridge", None);
        let end = link(10, "end", "veth", Some(11));
        let none = [None, None];
        for (ingress, egress, bridges, words) in [
            (&a, &a, none, "two names of one interface"),
            (&a, &b, none, "one veth pair"),
            (&b, &a, none, "one veth pair"),
            (&lower, &m, none, "its lower interface"),
            (&m, &n, none, "of one lower interface"),
            (&bridge, &end, [None, Some(9)], "a bridge and the other end"),
            (&end, &bridge, [Some(9), None], "a bridge and the other end"),
        ] {
            let fault = describe_loop([ingress, egress], bridges).expect(words);
            let (first, second) = (&ingress.name, &egress.name);
            let direction = format!("leave at {second} arrive at {first}");
            assert!(
                fault.contains(words) && fault.contains(&direction),
                "{fault}"
            );
        }
    }

    #[test]
    fn links_that_transmit_elsewhere_are_no_loop() {
        let a = link(5, "a", "veth", Some(6));
        // Indexes are unique only within a namespace.
        let mut far = link(6, "b", "veth", Some(5));
        far.peer_namespace = Some(0);
        let mut near = a.clone();
        near.peer_namespace = Some(0);
        let lower = link(3, "eth1", "", None);
        let vlan = link(9, "eth1.10", "vlan", Some(3));
        let mut private = macvlan(7, "m", 3);
        private.is_macvlan_bridge = false;
        let mut foreign = macvlan(8, "n", 3);
        foreign.peer_namespace = Some(0);
        for (ingress, egress) in [
            (&a, &lower),
            (&near, &far),
            (&lower, &vlan),
            (&vlan, &lower),
            (&lower, &private),
            (&macvlan(7, "m", 3), &lower),
            (&lower, &foreign),
            (&macvlan(7, "m", 3), &foreign),
            (&macvlan(7, "m", 3), &macvlan(8, "n", 4)),
        ] {
            assert_eq!(describe_loop([ingress, egress], [Some(20), None]), None);
        }
    }
}
