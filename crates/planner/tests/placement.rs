//! Tests that placements keep all constraints, and that `delay` finds good ones.

use std::collections::BTreeMap;

use myelin_packet::traffic::{Bucket, Profile};
use myelin_planner::admission::Work;
use myelin_planner::calculus::{ArrivalCurve, LeakyBucket, RateLatency, SECOND};
use myelin_planner::placement::{
    CoreRoom, Demand, LinkRoom, Network, NodeRoom, Placement, Refusal, Request, place,
};
use myelin_spec::PlacementAlgorithm::{
    self, Delay, LeastConnections, LoadBalancing, LoadBalancingLeastConnections, Optimal,
    RoundRobin,
};
use myelin_spec::{Effect, Space};
use proptest::prelude::*;

const ALL: [PlacementAlgorithm; 6] = [
    LoadBalancing,
    LeastConnections,
    LoadBalancingLeastConnections,
    RoundRobin,
    Optimal,
    Delay,
];
const US: u128 = SECOND / 1_000_000;
const MIB: u64 = 1 << 20;
/// The longest frame, bytes.
const LONGEST: u128 = 1518;

fn core(load_percent: u128) -> CoreRoom {
    CoreRoom {
        number: 0,
        service: RateLatency::core(20 * US),
        load: ArrivalCurve::of(LeakyBucket::new(
            load_percent * US / 10,
            SECOND / 100 * load_percent,
        )),
        longest_fs: None,
    }
}

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
    }
}

fn demand(name: &str, packet_ns: u128) -> Demand {
    Demand {
        name: name.to_owned(),
        work: Work {
            packet_fs: packet_ns * US / 1000,
            byte_fs: 0,
        },
        space: Space::Kernel,
        effect: Effect::default(),
        memory_bytes: 0,
        node: None,
        anti_affinity: None,
    }
}

/// A chain with 20 kpps between the two hosts of a star with this number of nodes.
fn request(functions: Vec<Demand>, nodes: usize) -> Request {
    Request {
        functions,
        profile: Profile {
            packets: Some(Bucket::new(20_000, 24).unwrap()),
            bits: None,
        },
        latency_ns: None,
        part: Work {
            packet_fs: US / 2,
            byte_fs: 0,
        },
        crossing: Work::default(),
        ingress: nodes,
        egress: nodes + 1,
        end_nodes: [None, None],
    }
}

fn four_functions() -> Vec<Demand> {
    ["a", "b", "c", "d"].map(|name| demand(name, 1000)).into()
}

fn nodes_of(placement: &Placement) -> Vec<&str> {
    let functions = placement.functions.iter();
    functions.map(|function| function.node.as_str()).collect()
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

/// A network and a chain that a test draws.
#[derive(Debug, Clone)]
struct Drawn {
    network: Network,
    request: Request,
}

/// Nodes in a tree with switches at random places; some share cores.
fn drawn() -> impl Strategy<Value = Drawn> {
    let node = (1_usize..3, 1_u64..6, 0_usize..9);
    let of_core = (0_u128..90, prop::option::of(40_u128..400));
    let function = (
        100_u128..15_000,
        0_u64..3,
        prop::option::of(0_usize..9),
        prop::option::of(0_u8..2),
    );
    let link = (0_usize..9, 1_u128..200, prop::option::of(300_u64..1000));
    (
        prop::collection::vec(node, 1..=5),
        prop::collection::vec(of_core, 1..=5),
        prop::collection::vec(function, 1..=5),
        prop::collection::vec(link, 9),
        0_usize..9,
        0_usize..9,
    )
        .prop_map(|(nodes, cores, functions, links, ingress, egress)| {
            let count = nodes.len();
            let vertices = count + 3;
            let cores: Vec<_> = (0..)
                .zip(&cores)
                .map(|(number, (load, longest_us))| CoreRoom {
                    number,
                    longest_fs: longest_us.map(|us| us * US),
                    ..core(*load)
                })
                .collect();
            let nodes = nodes
                .iter()
                .enumerate()
                .map(|(number, (width, memory, first))| NodeRoom {
                    name: format!("n{number}"),
                    cores: (0..(*width).min(cores.len()))
                        .map(|more| (first + more) % cores.len())
                        .collect(),
                    memory_bytes: memory * MIB,
                });
            let link = |(vertex, (to, us, rate)): (usize, &(usize, u128, Option<u64>))| LinkRoom {
                name: format!("l{vertex}"),
                ends: [vertex, to % vertex],
                delay_fs: us * US,
                rate_bps: rate.map(|mbps| mbps * 1_000_000),
                load: Default::default(),
            };
            let functions =
                functions
                    .iter()
                    .enumerate()
                    .map(|(number, (ns, memory, node, key))| Demand {
                        memory_bytes: memory * MIB,
                        // Few functions are fixed.
                        node: node
                            .filter(|node| *node < count && number == 1)
                            .map(|node| format!("n{node}")),
                        anti_affinity: key.filter(|key| *key == 0).map(|_| "x".to_owned()),
                        ..demand(&format!("f{number}"), *ns)
                    });
            Drawn {
                request: Request {
                    ingress: ingress % vertices,
                    egress: egress % vertices,
                    ..request(functions.collect(), count)
                },
                network: Network {
                    nodes: nodes.collect(),
                    others: 3,
                    links: (1..vertices).zip(&links).map(link).collect(),
                    cores,
                },
            }
        })
}

/// Checks all constraints with plain sums.
fn check(drawn: &Drawn, placement: &Placement) {
    let Drawn { network, request } = drawn;
    let nodes = nodes_of(placement);
    let (mut memory, mut rates) = (BTreeMap::new(), BTreeMap::new());
    for (position, function) in request.functions.iter().enumerate() {
        let node = nodes[position];
        if let Some(fixed) = &function.node {
            assert_eq!(node, fixed);
        }
        let key = &function.anti_affinity;
        let same = (0..position).filter(|other| request.functions[*other].anti_affinity == *key);
        assert!(key.is_none() || same.into_iter().all(|other| nodes[other] != node));
        *memory.entry(node).or_insert(0) += function.memory_bytes;
    }
    for (node, bytes) in memory {
        let room = network.nodes.iter().find(|room| room.name == node).unwrap();
        assert!(bytes <= room.memory_bytes, "{node}: {bytes}");
    }
    let mut next = 0;
    for part in &placement.parts {
        assert_eq!(part.functions.start, next);
        next = part.functions.end;
        assert!(
            nodes[part.functions.clone()]
                .iter()
                .all(|node| *node == part.node)
        );
        let work = request.functions[part.functions.clone()].iter();
        let packet_fs = work.fold(request.part.packet_fs, |sum, one| {
            sum + one.work.frame_fs(LONGEST)
        });
        let room = network
            .nodes
            .iter()
            .find(|room| room.name == part.node)
            .unwrap();
        assert!(
            room.cores
                .iter()
                .any(|core| network.cores[*core].number == part.core)
        );
        *rates.entry(part.core).or_insert(0) += 20_000 * packet_fs;
        // A burst takes at least the time of its own work.
        assert!(u128::from(part.delay_ns) * US / 1000 >= 24 * packet_fs);
        let core = &network.cores[part.core as usize];
        let longest_fs = core.longest_fs.unwrap_or(u128::MAX);
        assert!(u128::from(part.delay_ns - 1) * US / 1000 <= longest_fs);
    }
    assert_eq!(next, request.functions.len());
    for (core, rate) in rates {
        let load = network.cores[core as usize].load.long().rate;
        assert!(load + rate <= SECOND, "core {core}");
    }
    let parts: u64 = placement.parts.iter().map(|part| part.delay_ns).sum();
    let sum = parts + placement.links_ns;
    assert!(placement.delay_ns.abs_diff(sum) <= placement.parts.len() as u64 + 1);
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
