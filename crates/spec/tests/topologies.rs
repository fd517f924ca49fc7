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

/// Two segments behind `r1`, a third one behind `r2`, and a way of `r3` around `r2`.
const ROUTED: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: routed }
spec:
  hosts: [ h1, { name: h2, gateway: GATEWAY, address: [ 10.2.0.7/24, 'fd02::7/64' ] }, h3, h4 ]
  nodes: [ n1, { name: n2, address: 10.3.0.2/24 } ]
  routers:
    - { name: r1, addresses: [ 10.1.0.254/24, [ 10.2.0.254/24, 'fd02::254/64' ] ] }
    - { name: r2, addresses: [ [ 10.2.0.253/24, 'fd02::253/64' ], [ 10.3.0.254/24, 'fd03::1/64' ] ] }
    - { name: r3, addresses: [ 10.3.0.253/24, 10.4.0.1/30 ] }
  switches: [ s1, s2 ]
  links:
    - { ends: [ h1, n1 ] }
    - { ends: [ n1, r1 ] }
    - { ends: [ r1, s1 ] }
    - { ends: [ r2, s1 ] }
    - { ends: [ h2, s1 ] }
    - { ends: [ r2, s2 ] }
    - { ends: [ r3, s2 ] }
    - { ends: [ n2, s2 ] }
    - { ends: [ r3, h3 ] }
";

/// Several routers are beside h2 and n2, so both have a `gateway`.
fn routed_text(gateway_of_h2: &str) -> String {
    let text = ROUTED.replace("10.3.0.2/24", "10.3.0.2/24, gateway: 10.3.0.254");
    text.replace("GATEWAY", gateway_of_h2)
}

#[test]
fn hosts_and_routers_get_their_routes() {
    let text = routed_text("[ 10.2.0.253, 'fd02::254' ]");
    let routed = &parse(&text)[0];
    let routes = |name: &str| {
        let routes = routed.host(name).unwrap().routes.iter();
        let routes = routes.map(|route| format!("{} {}", route.prefix, route.gateway));
        routes.collect::<Vec<_>>().join(", ")
    };
    let addresses = |name: &str| {
        let addresses = routed.host(name).unwrap().addresses.iter();
        let addresses = addresses.map(ToString::to_string);
        addresses.collect::<Vec<_>>().join(", ")
    };
    // The node forwards frames, so h1 is in the network of r1.
    assert_eq!(addresses("h1"), "10.1.0.1/24");
    assert_eq!(addresses("n1"), "10.1.0.2/24");
    assert_eq!(addresses("h3"), "10.4.0.2/30");
    assert_eq!(addresses("h4"), "10.0.0.1/8", "beside no router");
    assert_eq!(routes("h1"), "0.0.0.0/0 10.1.0.254");
    assert_eq!(routes("h2"), "0.0.0.0/0 10.2.0.253, ::/0 fd02::254");
    assert_eq!(routes("n2"), "0.0.0.0/0 10.3.0.254");
    assert_eq!(routes("h3"), "0.0.0.0/0 10.4.0.1");
    assert_eq!(routes("h4"), "");
    assert_eq!(
        routes("r1"),
        "10.3.0.0/24 10.2.0.253, 10.4.0.0/30 10.2.0.253, fd03::/64 fd02::253"
    );
    assert_eq!(
        routes("r2"),
        "10.1.0.0/24 10.2.0.254, 10.4.0.0/30 10.3.0.253"
    );
    assert_eq!(
        routes("r3"),
        "10.2.0.0/24 10.3.0.254, 10.1.0.0/24 10.3.0.254"
    );
    let links: Vec<usize> = routed
        .host("r2")
        .unwrap()
        .addresses
        .iter()
        .map(|own| own.link)
        .collect();
    assert_eq!(links, [0, 0, 1, 1]);
    assert_eq!(routed.address_interface("n1"), "br0");
    assert_eq!(routed.address_interface("n2"), "eth0");
}

/// h2 names one of its two gateways of IPv4. The other family still needs a choice.
#[test]
fn each_family_needs_one_gateway() {
    for (given, gateway) in [("10.2.0.253", "fd02::254"), ("'fd02::253'", "10.2.0.254")] {
        let text = routed_text(given);
        let errors = parse_objects(&text, &Source::new("a.yaml"), &NoFiles).unwrap_err();
        let error = errors.to_string();
        assert!(
            error.contains("the routers `r1` and `r2` are in the network"),
            "{error}"
        );
        assert!(error.contains(&format!("`gateway: {gateway}`")), "{error}");
    }
}

/// Routers end broadcasts, so links over them may form a loop.
#[test]
fn a_loop_over_a_router_is_no_loop() {
    let text = "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: { name: loop }\nspec:\n  \
                hosts: [ h1 ]\n  routers: [ { name: r1, addresses: [ 10.1.0.1/24, 10.2.0.1/24 ] }, \
                { name: r2, addresses: [ 10.1.0.2/24, 10.2.0.2/24 ] } ]\n  switches: [ s1, s2 ]\n  \
                links: [ { ends: [ r1, s1 ] }, { ends: [ r1, s2 ] }, { ends: [ r2, s1 ] }, { ends: [ r2, s2 ] } ]\n";
    let topologies = parse(text);
    assert_eq!(topologies[0].routers().count(), 2);
    assert!(
        topologies[0]
            .routers()
            .all(|router| router.routes.is_empty())
    );
}
