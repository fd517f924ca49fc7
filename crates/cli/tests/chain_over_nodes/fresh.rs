//! Chains over nodes that come up and change right after their topology.

use super::lab::{function, up};
use crate::common::traffic::Traffic;
use crate::common::{Myelin, skip_unless_root};
use myelin_linux::netns::Netns;

/// Nodes at a switch behind links with delay, a host at the first node and one at the last.
fn topology(nodes: usize) -> String {
    let names: Vec<String> = (1..=nodes).map(|node| format!("n{node}")).collect();
    let links = names.iter().map(|name| {
        format!("    - {{ ends: [ {name}, s ], delay: 50us, bandwidth: 1Gbit, queue: 1000 }}\n")
    });
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: @line }}\nspec:\n  \
         hosts: [ h1, h2 ]\n  nodes: [ {} ]\n  switches: [ s ]\n  links:\n    \
         - {{ ends: [ h1, n1 ] }}\n    - {{ ends: [ n{nodes}, h2 ] }}\n{}",
        names.join(", "),
        links.collect::<String>()
    )
}

/// A chain of these functions, each with its node.
fn chain(functions: &[(u8, usize)]) -> String {
    let functions = functions.iter();
    let functions =
        functions.map(|(number, node)| function(*number, *node, &format!("key: {}", 1 << number)));
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @over }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}\n  functions:\n{}  \
         ports: {{ ingress: @line/h1, egress: @line/h2 }}\n",
        functions.collect::<String>()
    )
}

/// No packet is lost while the first chain of a new topology comes up, changes at once and goes.
#[test]
fn the_first_chain_of_a_new_topology_loses_no_packet() {
    if skip_unless_root() {
        return;
    }
    for round in 0..3 {
        let myelin = Myelin::new_shared();
        up(&myelin, &topology(3));
        let host = |name: &str, address: &str| {
            let netns = format!("myelin-{}-{name}", myelin.chain_name("line"));
            (Netns::open(&netns).unwrap(), address.parse().unwrap())
        };
        let traffic = Traffic::between(host("h1", "10.0.0.1"), (host("h2", "10.0.0.2"), 9000));
        traffic.wait_for_packets(100);
        up(&myelin, &chain(&[(0, 1), (2, 2), (4, 3)]));
        up(&myelin, &chain(&[(0, 1), (4, 2), (2, 3)]));
        traffic.wait_for_packets(100);
        myelin.run_ok(&["down", &myelin.chain_name("over")]);
        traffic.wait_for_packets(100);
        let (sent, arrivals) = traffic.stop();
        let missing: Vec<u64> = (0..sent)
            .filter(|number| !arrivals.keys.contains_key(number))
            .collect();
        assert_eq!(missing, [0; 0], "round {round}: of {sent}");
        assert_eq!((arrivals.duplicates, arrivals.damaged), (0, 0));
        let partly = |key: &&u8| ![0, 0b10101].contains(*key);
        assert_eq!(arrivals.keys.values().filter(partly).count(), 0);
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}
