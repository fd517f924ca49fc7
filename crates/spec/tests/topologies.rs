//! Tests the values that the parser reads from valid topologies.

use myelin_spec::{
    LinkEmulation, Loss, NoFiles, PlacementAlgorithm, Source, Topology, parse_objects,
};

const LAB: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: lab, labels: { room: a } }
spec:
  hosts:
    - h1
    - { name: h2, address: [ 192.0.2.7/24, 'fd00::7/64' ], cpu: 500m, memory: 64MiB, cpus: [ 0-1, 3 ] }
    - { name: h3, address: 10.0.0.1/24 }
    - h4
  switches: [ s1, { name: s2, openflow: tcp:h4:6653 } ]
  links:
    - { ends: [ h1, s1 ] }
    - { ends: [ s1, s2 ], name: trunk, delay: 10ms, jitter: 1ms, bandwidth: 100Mbit, queue: 50, loss: { rate: 1%, burst: 4 } }
    - { ends: [ h2, s2 ], loss: 0.5% }
    - { ends: [ h1, h2 ], by: netem, delay: 3ms, back: { delay: 2ms, jitter: 1ms, bandwidth: 1Mbit, queue: 5, loss: 1% } }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: over-lab }
spec:
  match: {}
  functions: [ { name: f, kind: forward } ]
  ports: { ingress: lab/h1, egress: lab/h2 }
";

fn parse(text: &str) -> Vec<Topology> {
    let objects = parse_objects(text, &Source::new("lab.yaml"), &NoFiles);
    objects
        .unwrap_or_else(|errors| panic!("{errors}"))
        .topologies
}

#[test]
fn every_key_is_read() {
    let topologies = parse(LAB);
    let lab = &topologies[0];
    assert_eq!((lab.name.as_str(), lab.place.line), ("lab", 4));
    assert_eq!(lab.switches, ["s1", "s2"]);
    assert_eq!(lab.controllers["s2"].to_string(), "tcp:h4:6653");
    assert_eq!(lab.controllers.len(), 1);
    let addresses: Vec<String> = lab
        .hosts
        .iter()
        .flat_map(|host| &host.addresses)
        .map(ToString::to_string)
        .collect();
    // 10.0.0.1 is the address of h3, so the first free address is 10.0.0.2.
    assert_eq!(
        addresses,
        [
            "10.0.0.2/8",
            "192.0.2.7/24",
            "fd00::7/64",
            "10.0.0.1/24",
            "10.0.0.3/8"
        ]
    );
    let h2 = lab.host("h2").unwrap();
    assert_eq!(
        (h2.limits.cpu_millicores, h2.limits.memory_bytes),
        (Some(500), Some(64 << 20))
    );
    assert_eq!(h2.cpus, [0, 1, 3]);
    let names: Vec<&str> = lab.links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["h1-s1", "trunk", "h2-s2", "h1-h2"]);
    let trunk = lab.link("s2-s1").unwrap().impairments;
    assert_eq!((trunk.delay_ns, trunk.jitter_ns), (10_000_000, 1_000_000));
    assert_eq!(
        (trunk.rate_bps, trunk.queue_packets),
        (Some(100_000_000), Some(50))
    );
    assert_eq!(
        trunk.loss,
        Some(Loss {
            ppm: 10_000,
            burst: 4
        })
    );
    assert_eq!(
        lab.links[2].impairments.loss,
        Some(Loss {
            ppm: 5000,
            burst: 1
        })
    );
    assert!(lab.links[0].impairments.is_none() && !trunk.is_none());
    let by = [0, 3].map(|link: usize| lab.links[link].by);
    assert_eq!(by, [LinkEmulation::DelayLine, LinkEmulation::Netem]);
    assert_eq!(lab.port_link("h1").unwrap().name, "h1-s1");
    let back = lab.links[3].back.unwrap();
    assert_eq!((back.delay_ns, back.queue_packets), (2_000_000, Some(5)));
    assert_eq!(lab.links[3].directions()[0].delay_ns, 3_000_000);
    assert!(lab.links[..3].iter().all(|link| link.back.is_none()));
}

/// A file with as many nodes and links as a topology may have is read in a moment.
#[test]
fn a_great_topology_is_read() {
    let hosts: Vec<String> = (0..16_384).map(|n| format!("h{n}")).collect();
    let links: Vec<String> = hosts
        .iter()
        .map(|host| format!("{{ ends: [ {host}, s1 ] }}"))
        .collect();
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: star }}\n\
         spec:\n  switches: [ s1 ]\n  hosts: [ {} ]\n  links: [ {} ]\n",
        hosts.join(", "),
        links.join(", ")
    );
    let star = &parse(&text)[0];
    assert_eq!((star.hosts.len(), star.links.len()), (16_384, 16_384));
    assert_eq!(star.hosts[16_383].addresses[0].to_string(), "10.0.64.0/8");
}

/// Each key makes a chain one over nodes.
#[test]
fn keys_of_placement_are_read() {
    let parsed = |text: &str| {
        let objects = parse_objects(text, &Source::new("lab.yaml"), &NoFiles);
        let objects = objects.unwrap_or_else(|errors| panic!("{errors}"));
        objects.chains[0].clone()
    };
    let chain = parsed(LAB);
    assert_eq!(chain.placement, None);
    assert!(!chain.is_over_nodes());
    let placed = LAB
        .replace("  match: {}\n", "  match: {}\n  placement: round-robin\n")
        .replace(
            "kind: forward }",
            "kind: forward, node: n1, antiAffinity: copies }",
        );
    let chain = parsed(&placed);
    assert_eq!(chain.placement, Some(PlacementAlgorithm::RoundRobin));
    let function = &chain.functions[0];
    assert_eq!(function.node.as_deref(), Some("n1"));
    assert_eq!(function.anti_affinity.as_deref(), Some("copies"));
    assert!(chain.is_over_nodes());
}
