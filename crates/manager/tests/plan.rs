//! Tests the plan of parts against random chains and topologies.

use std::time::Duration;

use myelin_api::ChainSource;
use myelin_manager::{Entrance, SpanPlan, SpanRequest, cut, find_route, join, plan, share_latency};
use myelin_packet::MacAddr;
use myelin_spec::cut::write_part;
use myelin_spec::{Objects, VxlanSpec, Way};
use proptest::prelude::*;

const NODES: usize = 4;

/// A line of nodes with a host at each, a chain of functions on these nodes, and its text.
fn lab(places: &[usize], latency: &str) -> (Objects, String) {
    let last = *places.last().unwrap();
    let functions: Vec<String> = (0..places.len())
        .map(|at| {
            format!(
                "{{ name: f{at}, kind: xor, config: {{ key: {at} }}, node: n{} }}",
                places[at]
            )
        })
        .collect();
    let links: Vec<String> = (0..NODES)
        .map(|at| {
            let next = if at + 1 < NODES {
                format!(", {{ ends: [ n{at}, n{} ], delay: 1ms }}", at + 1)
            } else {
                String::new()
            };
            format!("{{ ends: [ h{at}, n{at} ] }}{next}")
        })
        .collect();
    let names = |letter: char| {
        let names: Vec<String> = (0..NODES).map(|at| format!("{letter}{at}")).collect();
        names.join(", ")
    };
    // A host cannot be both ends.
    let egress = if last == places[0] {
        "x".to_owned()
    } else {
        format!("h{last}")
    };
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: lab }}\nspec:\n  \
         hosts: [ {}, x ]\n  nodes: [ {} ]\n  links: [ {}, {{ ends: [ n{last}, x ] }} ]\n---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: whole }}\nspec:\n  match: {{}}\n  \
         functions: [ {} ]\n  sla: {{ rate: 1kpps, burst: 4, latency: {latency} }}\n  \
         ports: {{ ingress: lab/h{}, egress: lab/{egress} }}\n",
        names('h'),
        names('n'),
        links.join(", "),
        functions.join(", "),
        places[0],
    );
    let source = ChainSource {
        name: "lab.yaml".to_owned(),
        text: text.clone(),
        ..ChainSource::default()
    };
    (source.parse_objects().unwrap(), text)
}

/// Numbers the interfaces of the nodes.
fn address(node: &str, interface: &str) -> Result<MacAddr, String> {
    let digit = |text: &str| text.bytes().last().unwrap_or_default();
    let text = format!("02:00:00:00:{:02x}:{:02x}", digit(node), digit(interface));
    text.parse().map_err(|_| "no address".to_owned())
}

/// A request to plan the only chain of these objects on its topology.
fn request<'a>(objects: &'a Objects, costs_ns: &'a [f64]) -> SpanRequest<'a> {
    SpanRequest {
        chain: &objects.chains[0],
        topology: &objects.topologies[0],
        path: 0x80_0001,
        replica: 0,
        generation: 0,
        previous: None,
        costs_ns,
        spaces: &[],
        address: &address,
    }
}

proptest! {
    #[test]
    fn parts_count_all_positions_and_meet_their_neighbours(
        places in prop::collection::vec(0..NODES, 1..=32),
    ) {
        let (objects, text) = lab(&places, "100ms");
        let sections = cut(&objects.chains[0]);
        let changes = places.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert_eq!(sections.len(), changes + 1);
        let costs = vec![100.0; places.len()];
        let planned = plan(&request(&objects, &costs)).unwrap();
        let mut position = 0;
        let mut budget = 0;
        for (number, (node, object)) in planned.parts.iter().enumerate() {
            prop_assert_eq!(object.functions.start, position);
            position = object.functions.end;
            for at in object.functions.clone() {
                prop_assert_eq!(node, &format!("n{}", places[at]));
            }
            let text = write_part(&text, "whole", object).unwrap();
            let source = ChainSource { name: "part".into(), text, ..ChainSource::default() };
            let part = source.parse().unwrap().remove(0);
            prop_assert_eq!(part.functions.len(), object.functions.len());
            if let Some(part) = &part.part {
                // A sojourn from the chain's ingress may take the budgets of earlier parts too.
                prop_assert_eq!(part.before_ns.is_some(), number > 0);
                let before = part.before_ns.unwrap_or(0);
                prop_assert!((budget..=budget + planned.links_ns()).contains(&before));
            }
            budget += part.sla.latency_ns.unwrap();
            let next = planned.parts.get(number + 1);
            prop_assert_eq!(part.to().is_some(), next.is_some());
            // Each end names the other's interface.
            if let (Some(to), Some((far, next))) = (part.to(), next) {
                let back = next.part.as_ref().and_then(|next| next.from.clone()).unwrap();
                prop_assert_eq!(to.way, Way::Ethernet(address(far, &back.interface).unwrap()));
                prop_assert_eq!(back.way, Way::Ethernet(address(node, &to.interface).unwrap()));
            }
        }
        prop_assert_eq!(position, places.len());
        prop_assert!(budget + planned.links_ns() <= 100_000_000);
    }

    #[test]
    fn shares_never_exceed_the_latency(
        latency in 1..u64::MAX / 2,
        links in 0..1_000_000_000_u64,
        costs in prop::collection::vec(0.0..1e9_f64, 1..32),
    ) {
        if let Some(shares) = share_latency(latency, links, &costs) {
            let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
            prop_assert!(sum + u128::from(links) <= u128::from(latency));
            prop_assert_eq!(shares.len(), costs.len());
        }
    }
}

#[test]
fn a_plan_names_what_is_missing() {
    let (mut objects, _) = lab(&[0, 1, 3], "100ms");
    let route = find_route(&objects.topologies[0], "n0", "n3").unwrap();
    assert_eq!(route.delay_ns, Duration::from_millis(3).as_nanos() as u64);
    assert_eq!((&*route.out, &*route.into), ("eth1", "eth0"));
    let fail = |objects: &Objects, words: &str| {
        let error = plan(&request(objects, &[])).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    fail(&lab(&[0, 3], "3ms").0, "raise `sla.latency`");
    objects.chains[0].functions[1].node = Some("n9".into());
    fail(&objects, "no node `n9`: its nodes are n0, n1");
    objects.chains[0].functions[1].node = Some("n1".into());
    objects.chains[0].functions[0].node = Some("n2".into());
    fail(&objects, "no link joins the host `h0` and the node `n2`");
    objects.chains[0].functions[0].node = Some("n0".into());
    objects.topologies[0]
        .links
        .retain(|link| link.name != "n0-n1");
    fail(
        &objects,
        "no links and no routes join the nodes `n0` and `n1`",
    );
}

/// The plans of a chain on each of these paths, in a line of nodes.
fn plans(paths: &[&[usize]]) -> Vec<SpanPlan> {
    let of_path = |(replica, places): (usize, &&[usize])| {
        let (objects, _) = lab(places, "100ms");
        let costs = vec![100.0; places.len()];
        plan(&SpanRequest {
            path: 0x80_0001 + replica as u32,
            replica,
            ..request(&objects, &costs)
        })
        .unwrap()
    };
    paths.iter().enumerate().map(of_path).collect()
}

#[test]
fn paths_of_replicas_share_the_parts_in_front() {
    let paths = [&[0, 0, 1, 2][..], &[0, 0, 2, 2], &[0, 0, 3, 2]];
    let separate = plans(&paths);
    let joined = join(separate.clone(), 2).unwrap();
    let nodes: Vec<&str> = joined.parts.iter().map(|(node, _)| &**node).collect();
    assert_eq!(nodes, ["n0", "n1", "n2", "n2", "n3", "n2"]);
    assert_eq!(joined.branches, [1, 3, 4]);
    assert_eq!(joined.links_ns(), 4_000_000, "the slowest path");
    let split = &joined.parts[0].1.part.as_ref().unwrap().split;
    let branches: Vec<_> = split
        .iter()
        .map(|branch| (&*branch.name, branch.path))
        .collect();
    assert_eq!(
        branches,
        [("n1", 0x80_0001), ("n2", 0x80_0002), ("n3", 0x80_0003)]
    );
    let names: std::collections::BTreeSet<_> = joined
        .parts
        .iter()
        .map(|(_, object)| &object.name)
        .collect();
    assert_eq!(names.len(), joined.parts.len(), "{names:?}");
    // Each path keeps its latency.
    for (path, (first, own)) in separate.iter().zip([(1, 2), (3, 1), (4, 2)]) {
        let parts = joined.parts[..1]
            .iter()
            .chain(&joined.parts[first..first + own]);
        let sum: u64 = parts.map(|(_, object)| object.latency_ns.unwrap()).sum();
        assert!(sum + path.links_ns() <= 100_000_000);
    }
    let error = join(plans(&[&[0, 1, 2], &[0, 0, 2]]), 1).unwrap_err();
    assert!(error.contains("in front of it"), "{error}");
    let error = join(plans(&[&[0, 1, 2], &[0, 1, 2]]), 1).unwrap_err();
    assert!(
        error.contains("two replicas are on the node `n1`"),
        "{error}"
    );
}

/// A part takes the shares of earlier parts only as far as its stamps reach back.
#[test]
fn stamps_of_another_clock_are_not_compared() {
    let (mut objects, _) = lab(&[0, 1, 2, 3], "100ms");
    let costs = [100.0; 4];
    let before = |objects: &Objects| {
        let planned = plan(&request(objects, &costs)).unwrap();
        assert_eq!(planned.delays_ns, [0, 1_000_000, 1_000_000, 1_000_000]);
        let parts = planned.parts.into_iter();
        let before = parts.map(|(_, object)| object.part.unwrap().before_ns);
        before.collect::<Vec<_>>()
    };
    let all = before(&objects);
    assert_eq!(all[0], None);
    let node = objects.topologies[0].hosts.iter_mut();
    for node in node.filter(|host| host.name == "n1") {
        node.clock = myelin_spec::NodeClock::Own;
    }
    let own = before(&objects);
    assert_eq!(own[..3], [None, None, None]);
    // The stamp of n3 is that of n2.
    assert!(own[3].is_some() && own[3] < all[3], "{own:?}");
}

/// Its functions keep their state and their workers by the name of the whole.
#[test]
fn a_chain_of_one_part_names_its_whole_where_its_entrance_moved() {
    let (objects, _) = lab(&[0], "100ms");
    let whole = |previous: Option<&Entrance>| {
        let planned = plan(&SpanRequest {
            generation: 2,
            previous,
            ..request(&objects, &[1.0])
        });
        let planned = planned.unwrap();
        let part = planned.parts[0].1.part.clone();
        part.and_then(|part| part.whole)
    };
    assert_eq!(whole(None), None);
    let elsewhere = Entrance {
        node: "n9".into(),
        interface: "eth0".into(),
        part: "whole-p0".into(),
    };
    assert_eq!(whole(Some(&elsewhere)).as_deref(), Some("whole-p0"));
}

#[test]
fn the_first_part_is_new_where_packets_enter_at_another_place() {
    let (objects, _) = lab(&[0, 1], "100ms");
    let name = |previous: Option<&Entrance>| {
        let planned = plan(&SpanRequest {
            generation: 2,
            previous,
            ..request(&objects, &[1.0, 1.0])
        });
        let planned = planned.unwrap();
        let first = &planned.parts[0].1;
        assert_eq!(first.name, planned.entrance.part);
        // Functions keep their state and their workers by the name of the whole.
        let whole = first.part.as_ref().and_then(|part| part.whole.clone());
        assert_eq!(whole.as_deref(), Some("whole-p0"));
        planned.entrance.part
    };
    let at = |node: &str, interface: &str, part: &str| Entrance {
        node: node.into(),
        interface: interface.into(),
        part: part.into(),
    };
    assert_eq!(name(None), "whole-p0");
    assert_eq!(name(Some(&at("n0", "eth0", "whole-p0"))), "whole-p0");
    assert_eq!(name(Some(&at("n0", "eth0", "whole-g1p0"))), "whole-g1p0");
    assert_eq!(name(Some(&at("n1", "eth0", "whole-p0"))), "whole-g2p0");
    assert_eq!(name(Some(&at("n0", "eth7", "whole-p0"))), "whole-g2p0");
}

/// `h1 - n1 - r1 - s - r2 - n2 - h2`, with a second way from r1 to r2 that is longer.
fn routed_lab(n1: &str) -> Objects {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: lab }}\nspec:\n  \
         hosts: [ h1, h2 ]\n  nodes: [ {n1}, {{ name: n2, address: [ 10.3.0.2/24, 'fd03::2/64' ] }}, n3 ]\n  \
         routers:\n    - {{ name: r1, addresses: [ [ 10.1.0.254/24, 'fd01::1/64' ], [ 10.2.0.1/24, 'fd02::1/64' ], \
         10.8.0.1/24 ] }}\n    - {{ name: r2, addresses: [ [ 10.2.0.2/24, 'fd02::2/64' ], \
         [ 10.3.0.254/24, 'fd03::1/64' ] ] }}\n    - {{ name: r3, addresses: [ 10.8.0.2/24, 10.3.0.253/24 ] }}\n  \
         switches: [ s, t ]\n  links:\n    - {{ ends: [ h1, n1 ] }}\n    - {{ ends: [ n1, r1 ], delay: 1ms }}\n    \
         - {{ ends: [ r1, s ], delay: 2ms, back: {{ delay: 7ms }} }}\n    - {{ ends: [ r1, r3 ] }}\n    \
         - {{ ends: [ s, r2 ], delay: 4ms }}\n    - {{ ends: [ r2, t ] }}\n    - {{ ends: [ r3, t ] }}\n    \
         - {{ ends: [ t, n2 ], delay: 8ms }}\n    - {{ ends: [ n2, h2 ] }}\n---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: whole }}\nspec:\n  match: {{}}\n  \
         functions: [ {{ name: a, kind: xor, config: {{ key: 1 }}, node: n1 }}, \
         {{ name: b, kind: xor, config: {{ key: 2 }}, node: n2 }} ]\n  \
         ports: {{ ingress: lab/h1, egress: lab/h2 }}\n"
    );
    let text = text.replace(
        "'fd03::2/64' ]",
        "'fd03::2/64' ], gateway: [ 10.3.0.254, 'fd03::1' ]",
    );
    let text = text.replace(
        "hosts: [ h1, h2 ]",
        "hosts: [ h1, { name: h2, gateway: 10.3.0.254, address: 10.3.0.9/24 } ]",
    );
    let source = ChainSource {
        name: "lab.yaml".to_owned(),
        text,
        ..ChainSource::default()
    };
    source.parse_objects().unwrap()
}

#[test]
fn a_way_over_routers_is_a_tunnel_with_all_its_delays() {
    let objects = routed_lab("n1");
    let (chain, topology) = (&objects.chains[0], &objects.topologies[0]);
    let there = find_route(topology, "n1", "n2").unwrap();
    assert_eq!(there.delay_ns, 15_000_000);
    // Both nodes have several links.
    assert_eq!((&*there.out, &*there.into), ("br0", "br0"));
    let back = find_route(topology, "n2", "n1").unwrap();
    assert_eq!(back.delay_ns, 20_000_000);
    let addresses = there.addresses.map(|pair| pair.map(|own| own.to_string()));
    assert_eq!(addresses.unwrap(), ["10.1.0.2", "10.3.0.2"]);
    let planned = plan(&SpanRequest {
        chain,
        topology,
        path: 0x80_0009,
        replica: 0,
        generation: 0,
        previous: None,
        costs_ns: &[1.0, 1.0],
        spaces: &[],
        address: &address,
    })
    .unwrap();
    assert_eq!(planned.links_ns(), 15_000_000);
    let [first, second] = [0, 1].map(|part: usize| planned.parts[part].1.part.clone().unwrap());
    let [near, far] = ["10.1.0.2", "10.3.0.2"].map(|text| text.parse().unwrap());
    let to = first.to.unwrap();
    assert_eq!(to.interface, "br0");
    let tunnel = |local, remote, destination| {
        Way::Vxlan(VxlanSpec {
            local,
            remote,
            vni: 0x80_0009,
            destination,
        })
    };
    assert_eq!(
        to.way,
        tunnel(near, far, Some(address("h2", "eth0").unwrap()))
    );
    assert_eq!(second.from.unwrap().way, tunnel(far, near, None));
    assert_eq!(planned.parts[1].1.egress.as_deref(), Some("eth1"));

    // Only IPv6 joins both.
    let objects = routed_lab("{ name: n1, address: 'fd01::2/64' }");
    let there = find_route(&objects.topologies[0], "n1", "n2").unwrap();
    let addresses = there.addresses.map(|pair| pair.map(|own| own.to_string()));
    assert_eq!(addresses.unwrap(), ["fd01::2", "fd03::2"]);
    let error = find_route(&objects.topologies[0], "n1", "n3").unwrap_err();
    assert!(error.contains("no links and no routes join"), "{error}");
}
