//! Faults of interfaces that a chain names as its ports.

use myelin_linux::link::Link;

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
pub(crate) fn find_loop([ingress, egress]: [&Link; 2]) -> Option<String> {
    let why = if ingress.index == egress.index {
        "are two names of one interface"
    } else if are_veth_peers(ingress, egress) {
        "are the two ends of one veth pair"
    } else if is_macvlan_over(egress, ingress) {
        "are a macvlan in bridge mode and its lower interface"
    } else if are_macvlan_siblings(ingress, egress) {
        "are macvlans in bridge mode of one lower interface"
    } else {
        return None;
    };
    let (first, second) = (&ingress.name, &egress.name);
    Some(format!(
        "interfaces {first} and {second} {why}, so packets that leave at {second} arrive at {first} and \
         circle forever: name two interfaces of different links"
    ))
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
        for (ingress, egress, words) in [
            (&a, &a, "two names of one interface"),
            (&a, &b, "one veth pair"),
            (&b, &a, "one veth pair"),
            (&lower, &m, "its lower interface"),
            (&m, &n, "of one lower interface"),
        ] {
            let fault = find_loop([ingress, egress]).expect(words);
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
            assert_eq!(find_loop([ingress, egress]), None);
        }
    }
}
