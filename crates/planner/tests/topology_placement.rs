//! Places chains on the nodes of topologies, as `plan` and the agent do.

use myelin_planner::admission::Ledger;
use myelin_planner::calculus::SECOND;
use myelin_planner::placement::{Placement, Refusal, Running, TopologyNetwork, place_on};
use myelin_planner::{Costs, Machine, Plan, plan};
use myelin_spec::{NoFiles, Objects, ServiceChain, Source, parse_objects};

/// A host at each end of three nodes in a row.
const FILE: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: lab }
spec:
  hosts: [ h1, h2 ]
  nodes: [ n1, n2, { name: n3, cpu: 250m, cpus: 1, memory: 64MiB } ]
  links:
    - { ends: [ h1, n1 ], delay: 1ms }
    - { ends: [ n1, n2 ], delay: 2ms, jitter: 1ms }
    - { ends: [ n2, n3 ], bandwidth: 100Mbit }
    - { ends: [ n3, h2 ] }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: over }
spec:
  match: {}
  placement: delay
  functions: [ { name: a, kind: forward }, { name: b, kind: forward }, { name: c, kind: forward } ]
  ports: { ingress: lab/h1, egress: lab/h2 }
  sla: { rate: 1kpps, burst: 8 }
";
const CORES: u32 = 2;
const MS: u64 = 1_000_000;

fn read(text: &str) -> Objects {
    let objects = parse_objects(text, &Source::new("lab.yaml"), &NoFiles);
    objects.unwrap_or_else(|errors| panic!("{errors}"))
}

fn placed(text: &str) -> Result<Placement, Refusal> {
    placed_beside(text, &[])
}

fn placed_beside(text: &str, chains: &[(&ServiceChain, &Plan)]) -> Result<Placement, Refusal> {
    let running = Running {
        ledger: &Ledger::default(),
        chains,
    };

    let Objects { chains, topologies } = read(text);
    let costs = Costs::default();
    let planned = plan(&chains[0], &costs, &Machine::with_end_hosts(CORES)).unwrap();
    place_on(
        &topologies[0],
        (&chains[0], &planned),
        &costs,
        CORES,
        running,
    )
}

fn nodes(placement: &Placement) -> Vec<&str> {
    let functions = placement.functions.iter();
    functions.map(|function| function.node.as_str()).collect()
}

#[test]
fn ends_are_next_to_their_hosts_and_links_count_in_full() {
    let placement = placed(FILE).unwrap();
    let nodes = nodes(&placement);
    assert_eq!((nodes[0], nodes[2]), ("n1", "n3"));
    // The node with a limit stands still for most of each period, so it runs no more than it must.
    assert_eq!(nodes[1], "n1");
    assert!(
        (5 * MS..6 * MS).contains(&placement.links_ns),
        "{placement:?}"
    );
    for algorithm in ["lb", "lc", "lblc", "round-robin", "optimal"] {
        let other = placed(&FILE.replace("placement: delay", &format!("placement: {algorithm}")));
        match other {
            Ok(other) => assert!(other.delay_ns >= placement.delay_ns, "{algorithm}"),
            // These do not look ahead to the last host.
            Err(refusal) => assert!(
                matches!(algorithm, "lc" | "lb" | "lblc") && refusal.to_string().contains("`c`"),
                "{algorithm}: {refusal}"
            ),
        }
    }
}

#[test]
fn refusals_name_function_and_host() {
    let fixed = FILE.replace("name: c, kind: forward", "name: c, kind: forward, node: n2");
    let refusal = placed(&fixed).unwrap_err().to_string();
    assert!(
        refusal.contains("function `c`") && refusal.contains("no link to the host"),
        "{refusal}"
    );
    let refusal = placed(&FILE.replace("rate: 1kpps", "rate: 20kpps")).unwrap_err();
    assert!(refusal.to_string().contains("bandwidth"), "{refusal}");
    let late = FILE.replace("burst: 8", "burst: 8, latency: 1ms");
    assert!(matches!(placed(&late), Err(Refusal::Latency { .. })));
}

/// Two chains of 5 kpps with the longest frames exceed 100 Mbit/s.
#[test]
fn running_chains_take_bandwidth_and_memory() {
    let text = FILE.replace("rate: 1kpps", "rate: 5kpps");
    let mut first = read(&text).chains.remove(0);
    let planned = plan(&first, &Costs::default(), &Machine::with_end_hosts(CORES)).unwrap();
    let placement = placed(&text).unwrap();
    for (function, place) in first.functions.iter_mut().zip(placement.functions) {
        function.node = Some(place.node);
    }
    let beside = |chain: &ServiceChain, text: &str| placed_beside(text, &[(chain, &planned)]);
    let refusal = beside(&first, &text).unwrap_err().to_string();
    assert!(refusal.contains("bandwidth"), "{refusal}");
    assert!(beside(&first, &FILE.replace("burst: 8", "burst: 9")).is_ok());

    // The last function must run on `n3`, which has 64 MiB.
    let needs = |mib: u64| {
        let limit = format!("name: c, kind: forward, limits: {{ memory: {mib}MiB }}");
        FILE.replace("name: c, kind: forward", &limit)
    };
    first.functions[2].sandbox.limits.memory_bytes = Some(40 << 20);
    assert!(beside(&first, &needs(24)).is_ok());
    let refusal = beside(&first, &needs(25)).unwrap_err().to_string();
    assert!(refusal.contains("memory"), "{refusal}");
}

#[test]
fn nodes_without_a_limit_share_the_cores_of_the_machine() {
    let Objects { chains, topologies } = read(FILE);
    let running = (&Ledger::default(), &chains[0].sla);
    let lab = TopologyNetwork::new(&topologies[0], &Costs::default(), CORES, running);
    let [n1, n2, n3] = &lab.network.nodes[..] else {
        panic!("{lab:?}");
    };
    assert_eq!((&n1.cores, &n2.cores), (&vec![0, 1], &vec![0, 1]));
    let own = &lab.network.cores[n3.cores[0]];
    assert_eq!((own.number, own.service.rate), (1, SECOND / 4));
    assert!(own.service.latency_fs > SECOND / 20);
    assert_eq!((n1.memory_bytes, n3.memory_bytes), (u64::MAX, 64 << 20));
    assert_eq!(lab.vertex("h1"), Some(3));
    assert_eq!(lab.neighbours(3), [0]);
    assert_eq!(lab.vertex("h9"), None);
}

/// Returns the delay of the links of a chain from h1 over n1 and n2 to h2.
fn links_ns(parts: &str) -> u64 {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: lab }}\nspec:\n{parts}---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: over }}\nspec:\n  match: {{}}\n  \
         placement: delay\n  functions: [ {{ name: a, kind: forward, node: n1 }}, \
         {{ name: b, kind: forward, node: n2 }} ]\n  ports: {{ ingress: lab/h1, egress: lab/h2 }}\n  \
         sla: {{ rate: 1kpps, burst: 8 }}\n"
    );
    placed(&text)
        .unwrap_or_else(|refusal| panic!("{refusal}"))
        .links_ns
}

/// The way over r3 has less delay, but the routes of the routers pass as few networks as possible.
#[test]
fn links_over_routers_are_those_of_the_ip_routes() {
    let lab = "  hosts: [ h1, h2 ]\n  nodes: [ n1, n2 ]\n  routers:\n    \
               - { name: r1, addresses: [ 10.1.0.254/24, 10.2.0.1/24, 10.3.0.1/24 ] }\n    \
               - { name: r2, addresses: [ 10.2.0.2/24, 10.4.0.2/24, 10.5.0.254/24 ] }\n    \
               - { name: r3, addresses: [ 10.3.0.3/24, 10.4.0.3/24 ] }\n  links:\n    \
               - { ends: [ h1, n1 ] }\n    - { ends: [ n1, r1 ], delay: 1ms }\n    \
               - { ends: [ r1, r2 ], delay: 10ms, back: { delay: 3ms } }\n    - { ends: [ r1, r3 ] }\n    \
               - { ends: [ r3, r2 ] }\n    - { ends: [ r2, n2 ], delay: 2ms }\n    - { ends: [ n2, h2 ] }\n";
    assert_eq!(links_ns(lab), 13 * MS);
    let slow = lab.replace("[ r3, r2 ]", "[ r3, r2 ], delay: 90ms");
    assert_eq!(links_ns(&slow), 13 * MS);
    let narrow = lab.replace("[ n2, h2 ]", "[ n2, h2 ], delay: 4ms");
    assert_eq!(links_ns(&narrow), 17 * MS);
}

/// A host with two links forwards nothing.
#[test]
fn no_path_passes_a_host() {
    let lab = "  hosts: [ h1, h2, h3 ]\n  nodes: [ n1, n2 ]\n  switches: [ s ]\n  links:\n    \
               - { ends: [ h1, n1 ] }\n    - { ends: [ n1, h3 ] }\n    - { ends: [ h3, n2 ] }\n    \
               - { ends: [ n1, s ], delay: 5ms }\n    - { ends: [ s, n2 ] }\n    - { ends: [ n2, h2 ] }\n";
    assert_eq!(links_ns(lab), 5 * MS);
}
