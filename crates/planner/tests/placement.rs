//! Tests that placements keep all constraints, and that `delay` finds good ones.

#[allow(dead_code)]
#[path = "common/networks.rs"]
mod networks;

use myelin_packet::traffic::Profile;
use myelin_planner::placement::{
    CoreRoom, Demand, LinkRoom, Network, NodeRoom, Refusal, Request, place,
};
use myelin_spec::PlacementAlgorithm::{
    self, Delay, LeastConnections, LoadBalancing, LoadBalancingLeastConnections, Optimal,
    RoundRobin,
};
use networks::{MIB, US, check, core, demand, drawn, nodes_of, request};
use proptest::prelude::*;

const ALL: [PlacementAlgorithm; 6] = [
    LoadBalancing,
    LeastConnections,
    LoadBalancingLeastConnections,
    RoundRobin,
    Optimal,
    Delay,
];

/// Nodes with one core each around a switch. The ends are hosts at the switch.
fn star(cores: Vec<CoreRoom>, link_us: u128) -> Network {
    let nodes = cores.len();
    let link = |vertex: usize| LinkRoom {
        name: format!("l{vertex}"),
        ends: [vertex, nodes + 2],
        delay_fs: link_us * US,
        rate_bps: Some(1_000_000_000),
        load: Default::default(),
    };
    let node = |number: usize| NodeRoom {
        name: format!("n{number}"),
        cores: vec![number],
        memory_bytes: 64 * MIB,
    };
    Network {
        nodes: (0..nodes).map(node).collect(),
        others: 3,
        links: (0..nodes + 2).map(link).collect(),
        cores,
        ..Network::default()
    }
}

fn four_functions() -> Vec<Demand> {
    ["a", "b", "c", "d"].map(|name| demand(name, 1000)).into()
}

/// Four functions on two equal nodes (dissertation, Figure 2.2).
#[test]
fn published_algorithms_cross_as_published() {
    let network = star(vec![core(0), core(0)], 100);
    let request = request(four_functions(), 2);
    for (algorithm, crossings, nodes) in [
        (LoadBalancing, 3, ["n0", "n1", "n0", "n1"]),
        (LoadBalancingLeastConnections, 1, ["n0", "n0", "n1", "n1"]),
        (LeastConnections, 0, ["n0"; 4]),
        (RoundRobin, 3, ["n0", "n1", "n0", "n1"]),
        (Delay, 0, ["n0"; 4]),
    ] {
        let placement = place(&network, &request, algorithm, 1).unwrap();
        assert_eq!(nodes_of(&placement), nodes, "{algorithm}");
        assert_eq!(placement.crossings, crossings, "{algorithm}");
    }
    let best = place(&network, &request, Optimal, 1).unwrap();
    assert_eq!(best.crossings, 0);
}

/// Each node has memory for two functions. The application runs next to the egress, at the last of
/// three nodes in a row.
#[test]
fn least_connections_fills_the_nodes_of_the_application_and_then_draws() {
    let mut network = star(vec![core(0); 8], 100);
    for node in &mut network.nodes {
        node.memory_bytes = 2 * MIB;
    }
    network.links[5].delay_fs = US;
    let mut functions = four_functions();
    for function in &mut functions {
        function.memory_bytes = MIB;
    }
    let request = request(functions, 8);
    let placed = |seed| place(&network, &request, LeastConnections, seed).unwrap();
    assert_eq!(placed(1), placed(1));
    let mut seconds = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let placement = placed(seed);
        let nodes = nodes_of(&placement);
        assert_eq!(nodes[..2], ["n5", "n5"], "the application's node first");
        assert_eq!(nodes[2], nodes[3]);
        assert!(
            placement.functions[2]
                .why
                .contains("`n5`, which has no room")
        );
        seconds.insert(nodes[2].to_owned());
    }
    assert!(seconds.len() > 4, "drawn at random: {seconds:?}");
}

#[test]
fn keys_of_the_chain_file_are_kept() {
    let network = star(vec![core(0), core(50), core(80)], 100);
    let mut functions = four_functions();
    functions[1].node = Some("n2".to_owned());
    functions[0].anti_affinity = Some("copies".to_owned());
    functions[3].anti_affinity = Some("copies".to_owned());
    let request = request(functions, 3);
    for algorithm in ALL {
        let placement = place(&network, &request, algorithm, 7).unwrap();
        let nodes = nodes_of(&placement);
        assert_eq!(nodes[1], "n2", "{algorithm}");
        assert!(placement.functions[1].why.contains("chain file"));
        assert_ne!(nodes[0], nodes[3], "{algorithm}");
    }
}

/// The refusal names the constraint and the number of nodes that it excludes.
#[test]
fn refusals_name_the_constraint() {
    let network = star(vec![core(0), core(95)], 100);
    let refused = |change: &dyn Fn(&mut Network, &mut Request), algorithm| {
        let (mut network, mut request) = (network.clone(), request(four_functions(), 2));
        change(&mut network, &mut request);
        place(&network, &request, algorithm, 1)
            .unwrap_err()
            .to_string()
    };
    for algorithm in ALL {
        let says = |change: &dyn Fn(&mut Network, &mut Request), words: &[&str]| {
            let refusal = refused(change, algorithm);
            for word in words {
                assert!(refusal.contains(word), "{algorithm}: {refusal}");
            }
        };
        says(
            &|_, request| request.functions[2].memory_bytes = 65 * MIB,
            &["function `c`", "free memory (2 nodes)"],
        );
        says(
            &|_, request| request.functions[3].work.packet_fs = 60 * US,
            &[
                "function `d`",
                "processor time for the agreed rate (2 nodes)",
            ],
        );
        says(
            &|_, request| request.functions[0].node = Some("n7".to_owned()),
            &["`node: n7`", "name one of n0, n1"],
        );
        says(
            &|_, request| {
                for function in &mut request.functions[..3] {
                    function.anti_affinity = Some("x".to_owned());
                }
            },
            &["function `c`", "`antiAffinity` with `a` (1 node)"],
        );
        says(
            &|_, request| request.latency_ns = Some(100_000),
            &["above the agreed latency of 100us", "on links"],
        );
        says(
            &|network, _| network.links[3].rate_bps = Some(200_000_000),
            &["no path with enough free bandwidth"],
        );
        says(
            &|network, _| {
                for core in &mut network.cores {
                    core.longest_fs = Some(30 * US);
                }
            },
            &["function `a`", "promise to an admitted chain"],
        );
    }
    let many = |_: &mut Network, request: &mut Request| {
        request.functions = (0..32).map(|n| demand(&format!("f{n}"), 1)).collect();
    };
    assert!(refused(&many, Optimal).contains("write `placement: delay`"));
    let faulty = |network: &mut Network, _: &mut Request| network.links[0].ends[1] = 99;
    assert!(refused(&faulty, Delay).contains("`l0` has an unknown end"));
}

/// Two emulated nodes share a core, so functions on both add up.
#[test]
fn nodes_with_one_core_share_its_capacity() {
    let mut network = star(vec![core(0), core(0)], 100);
    network.nodes[1].cores = vec![0];
    // 20 kpps of 30 us each are 0.6 of a core.
    let request = request(vec![demand("a", 30_000), demand("b", 30_000)], 2);
    for algorithm in ALL {
        let refusal = place(&network, &request, algorithm, 1).unwrap_err();
        assert!(matches!(refusal, Refusal::NoNode { .. }), "{refusal}");
    }
    network.nodes[1].cores = vec![1];
    for algorithm in ALL {
        let placement = place(&network, &request, algorithm, 1).unwrap();
        assert_eq!(placement.crossings, 1, "{algorithm}");
    }
}

/// A core with a promise takes less than it could carry.
#[test]
fn promises_to_admitted_chains_are_kept() {
    let mut network = star(vec![core(10), core(60)], 1);
    let request = request(four_functions(), 2);
    let placement = place(&network, &request, Delay, 1).unwrap();
    assert_eq!(nodes_of(&placement), ["n0"; 4]);
    network.cores[0].longest_fs = Some(placement.parts[0].delay_ns as u128 * US / 1000 - US);
    let placement = place(&network, &request, Delay, 1).unwrap();
    assert_ne!(nodes_of(&placement), ["n0"; 4]);
}

/// A chain without a rate is placed by the delay of a single packet, and has no refusal by latency.
#[test]
fn chain_without_a_rate_is_placed() {
    let network = star(vec![core(50), core(0)], 100);
    let mut request = request(four_functions(), 2);
    request.profile = Profile::default();
    request.latency_ns = Some(1);
    for algorithm in ALL {
        place(&network, &request, algorithm, 1).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No algorithm breaks a constraint, `delay` is never worse than `lblc`, and `optimal` is never
    /// worse than any.
    #[test]
    fn constraints_hold_and_the_order_of_the_algorithms_too(drawn in drawn(), seed: u64) {
        let placed = ALL.map(|algorithm| place(&drawn.network, &drawn.request, algorithm, seed));
        for placement in placed.iter().flatten() {
            check(&drawn, placement);
        }
        let [_, _, lblc, _, optimal, delay] = &placed;
        match (delay, lblc) {
            (Ok(delay), Ok(lblc)) => prop_assert!(delay.delay_ns <= lblc.delay_ns),
            (Err(refusal), Ok(_)) => prop_assert!(false, "refused: {}", refusal),
            (_, Err(_)) => {}
        }
        match optimal {
            Ok(optimal) => {
                for other in placed.iter().flatten() {
                    prop_assert!(optimal.delay_ns <= other.delay_ns, "{:?}", other);
                }
                let delay = delay.as_ref().unwrap();
                prop_assert!(delay.delay_ns <= optimal.delay_ns + optimal.delay_ns / 4);
            }
            Err(_) => prop_assert!(placed.iter().all(Result::is_err)),
        }
    }

    /// `lblc` keeps the number of functions of each node that `lb` chooses, and has no more
    /// crossings.
    #[test]
    fn lblc_exchanges_functions_only(drawn in drawn()) {
        let placed = [LoadBalancing, LoadBalancingLeastConnections]
            .map(|algorithm| place(&drawn.network, &drawn.request, algorithm, 0));
        if let [Ok(lb), Ok(lblc)] = &placed {
            let counts = |placement| {
                let mut nodes = nodes_of(placement);
                nodes.sort_unstable();
                nodes.into_iter().map(str::to_owned).collect::<Vec<_>>()
            };
            prop_assert_eq!(counts(lb), counts(lblc));
            prop_assert!(lblc.crossings <= lb.crossings);
        } else {
            prop_assert!(placed[1].is_err() || placed[0].is_ok());
        }
    }
}
