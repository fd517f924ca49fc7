//! Places the replicas of a function on nodes of a topology.

use std::collections::BTreeSet;

use myelin_planner::admission::Ledger;
use myelin_planner::placement::{Paths, Placement, Refusal, Running, place_on, place_paths};
use myelin_planner::{Costs, Machine, plan};
use myelin_spec::{NoFiles, Objects, Source, parse_objects};

/// Four nodes around a node with both hosts; `n5` is far away.
const FILE: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: lab }
spec:
  hosts: [ h1, h2 ]
  nodes: [ n1, n2, n3, n4, n5 ]
  links:
    - { ends: [ h1, n1 ] }
    - { ends: [ n1, h2 ] }
    - { ends: [ n1, n2 ] }
    - { ends: [ n1, n3 ] }
    - { ends: [ n1, n4 ] }
    - { ends: [ n1, n5 ], delay: 5ms }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: over }
spec:
  match: {}
  functions:
    - { name: a, kind: forward }
    - { name: b, kind: forward, replicas: 3 }
    - { name: c, kind: forward }
  ports: { ingress: lab/h1, egress: lab/h2 }
  sla: { rate: 1kpps, burst: 8 }
";

/// Places the chain, on nodes other than `silent`, where `kept` have replicas.
fn placed(text: &str, kept: &[&str], silent: &[&str]) -> Result<Vec<Placement>, Refusal> {
    let objects = parse_objects(text, &Source::new("lab.yaml"), &NoFiles);
    let Objects { chains, topologies } = objects.unwrap_or_else(|errors| panic!("{errors}"));
    let costs = Costs::default();
    let planned = plan(&chains[0], &costs, &Machine::with_end_hosts(2)).unwrap();
    let is_trusted = |name: &str| !silent.contains(&name);
    let trusted = topologies[0].with_nodes(&is_trusted);
    let running = Running {
        ledger: &Ledger::default(),
        chains: &[],
    };
    place_paths(&Paths {
        chain: &chains[0],
        nodes: topologies[0].nodes().map(|node| &*node.name).collect(),
        kept: kept.iter().map(|name| (*name).to_owned()).collect(),
        is_trusted: &is_trusted,
        place: &|chain| place_on(&trusted, (chain, &planned), &costs, 2, running),
    })
}

/// The nodes of the replicas. All other functions are on `n1` on each path.
fn replicas(paths: &[Placement]) -> BTreeSet<&str> {
    let nodes = paths.iter().map(|path| {
        let nodes: Vec<&str> = path.functions.iter().map(|one| one.node.as_str()).collect();
        assert_eq!((nodes[0], nodes[2]), ("n1", "n1"));
        nodes[1]
    });
    nodes.collect()
}

#[test]
fn replicas_are_on_the_nearest_nodes_and_stay_there() {
    let free = placed(FILE, &[], &[]).unwrap();
    assert_eq!(replicas(&free), BTreeSet::from(["n2", "n3", "n4"]));
    let kept = placed(FILE, &["n3", "n5"], &[]).unwrap();
    assert_eq!(kept.len(), 3);
    assert!(replicas(&kept).is_superset(&BTreeSet::from(["n3", "n5"])));
    // A node that is silent has no replica, whatever it had.
    let silent = placed(FILE, &["n2", "n3", "n4"], &["n3"]).unwrap();
    assert_eq!(replicas(&silent), BTreeSet::from(["n2", "n4", "n5"]));
    // Fewer nodes answer than the chain has replicas.
    let few = placed(FILE, &["n2", "n3", "n4"], &["n3", "n4", "n5"]).unwrap();
    assert_eq!(replicas(&few), BTreeSet::from(["n2"]));
}

#[test]
fn refusals_name_the_function_and_the_nodes() {
    let error = placed(&FILE.replace("replicas: 3", "replicas: 5"), &[], &[]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("the function `b` has 5 replicas"), "{text}");
    assert!(text.contains("write `replicas: 4` or less"), "{text}");
    // Only `n1` has a link to the egress host.
    let last = FILE.replace("    - { name: c, kind: forward }\n", "");
    let text = placed(&last, &[], &[]).unwrap_err().to_string();
    assert!(text.contains("no link to the host"), "{text}");
    let single = placed(&FILE.replace("replicas: 3", "replicas: 1"), &[], &[]).unwrap();
    assert_eq!((single.len(), single[0].crossings), (1, 0));
}
