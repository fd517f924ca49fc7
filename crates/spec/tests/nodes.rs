//! Tests chains whose functions run on nodes, and their parts as objects of their own.

use myelin_spec::cut::{PartObject, write_part};
use myelin_spec::{BranchSpec, NoFiles, PartSpec, PeerSpec, ServiceChain, Source, Way, parse};

const WHOLE: &str = r#"
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: whole, namespace: lab, labels: { a: b } }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions:
    - { name: one, kind: xor, node: n1, config: { key: 0x01 } }
    - { name: two, kind: xor, node: n2, config: { key: "0x02" }, space: user }
    - { name: three, kind: firewall, node: n2, config: { rules: [ { action: deny, source: 10.9.0.0/16 } ] } }
  sla: { rate: 20kpps, burst: 24, latency: 350us, percentile: 99, loss: 0.1% }
  ports: { ingress: lab/h1, egress: lab/h2 }
"#;

fn read(text: &str) -> Result<ServiceChain, String> {
    let chains = parse(text, &Source::new("whole.yaml"), &NoFiles);
    chains
        .map(|mut chains| chains.remove(0))
        .map_err(|errors| errors.to_string())
}

#[test]
fn a_part_means_what_the_file_means() {
    let whole = read(WHOLE).unwrap();
    assert!(whole.is_over_nodes());
    let peer = PeerSpec {
        interface: "eth0".into(),
        way: Way::Ethernet("02:00:00:00:00:01".parse().unwrap()),
    };
    let part = PartSpec {
        path: 0x80_0001,
        first: 1,
        length: 3,
        whole: Some("whole-p0".to_owned()),
        reverse: None,
        before_ns: Some(100_000),
        from: Some(peer),
        to: None,
        split: Vec::new(),
    };
    let object = PartObject {
        name: "whole-p1".to_owned(),
        functions: 1..3,
        ingress: None,
        egress: Some("eth1".to_owned()),
        part: Some(part.clone()),
        latency_ns: Some(120_500),
        pairs: Vec::new(),
        reverse: None,
    };
    let text = write_part(WHOLE, "whole", &object).unwrap();
    let read = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(read.part, Some(part));
    assert!(!read.is_over_nodes());
    assert_eq!((&*read.name, read.owner()), ("whole-p1", "lab"));
    assert_eq!(read.sla.latency_ns, Some(120_500));
    assert_eq!(read.sla.rate_pps, whole.sla.rate_pps);
    let configs = |chain: &ServiceChain, positions: std::ops::Range<usize>| {
        let functions = chain.functions[positions].iter();
        let functions = functions.map(|function| (function.config.clone(), function.space));
        functions.collect::<Vec<_>>()
    };
    assert_eq!(configs(&read, 0..2), configs(&whole, 1..3));
    assert!(write_part(WHOLE, "other", &object).is_none());
}

#[test]
fn a_chain_over_nodes_names_two_hosts() {
    for (from, to, words) in [
        ("lab/h2", "other/h2", "two hosts of one topology"),
        (
            "egress: lab/h2",
            "egress: eth0",
            "two hosts of one topology",
        ),
        (
            "  ports",
            "  reverse: back\n  ports",
            "no chain of this file is called `back`",
        ),
        (
            "  ports: { ingress: lab/h1, egress: lab/h2 }\n",
            "",
            "two hosts of one topology",
        ),
        ("node: n1", "node: \"a b\"", "a b"),
    ] {
        let error = read(&WHOLE.replace(from, to)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

/// A chain whose function `two` has other keys in place of its node.
fn with_replicas(of_two: &str) -> String {
    let two = "{ name: two, kind: xor, node: n2, ";
    assert!(WHOLE.contains(two));
    WHOLE.replace(two, &format!("{{ name: two, kind: xor, {of_two}, "))
}

#[test]
fn replicas_are_numbers_behind_another_function() {
    let chain = read(&with_replicas("replicas: 3")).unwrap();
    assert!(chain.is_over_nodes());
    assert_eq!(chain.replicated(), Some((1, 3)));
    assert_eq!(
        read(&with_replicas("replicas: 1")).unwrap().replicated(),
        None
    );
    let fail = |text: &str, words: &str| {
        let error = read(text).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    fail(
        &with_replicas("replicas: 0"),
        "write a whole number from 1 to 16",
    );
    fail(
        &with_replicas("replicas: 17"),
        "write a whole number from 1 to 16",
    );
    fail(
        &with_replicas("replicas: 2, node: n2"),
        "remove `node`, or `replicas`",
    );
    fail(
        &with_replicas("replicas: 2, antiAffinity: apart"),
        "remove `antiAffinity`, or `replicas`",
    );
    fail(
        &WHOLE.replace("node: n1", "replicas: 2"),
        "put a function in front",
    );
    let both = with_replicas("replicas: 2");
    fail(
        &both.replace("kind: firewall, node: n2", "kind: firewall, replicas: 2"),
        "another function has replicas too",
    );
    let without_nodes = "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: a }\nspec:\n  \
         match: {}\n  functions: [ { name: f, kind: forward }, { name: g, kind: forward, replicas: 2 } ]\n";
    fail(without_nodes, "two hosts of the topology of the nodes");
}

#[test]
fn a_part_that_splits_flows_names_its_branches() {
    let branch = |name: &str, path: u32, last: u8| BranchSpec {
        name: name.to_owned(),
        path,
        peer: PeerSpec {
            interface: format!("eth{last}"),
            way: Way::Ethernet(format!("02:00:00:00:00:0{last}").parse().unwrap()),
        },
    };
    let split = vec![branch("n2", 0x80_0001, 1), branch("n3", 0x80_0002, 2)];
    let part = PartSpec {
        path: 0x80_0001,
        first: 0,
        length: 3,
        whole: Some("whole-p0".to_owned()),
        reverse: None,
        before_ns: None,
        from: None,
        to: Some(split[0].peer.clone()),
        split,
    };
    let object = PartObject {
        name: "whole-p0".to_owned(),
        functions: 0..1,
        ingress: Some("eth0".to_owned()),
        egress: None,
        part: Some(part.clone()),
        latency_ns: None,
        pairs: Vec::new(),
        reverse: None,
    };
    let text = write_part(&with_replicas("replicas: 2"), "whole", &object).unwrap();
    let chain = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(chain.part, Some(part));
    assert_eq!(chain.ports.unwrap().egress, "eth1");
    let fail = |from: &str, to: &str, words: &str| {
        let error = read(&text.replace(from, to)).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    fail("\"n3\"", "\"n2\"", "the same name or the same path");
    fail("8388610", "8388609", "the same name or the same path");
    fail(
        "\"split\":",
        "\"to\":{\"interface\":\"eth1\",\"peer\":\"02:00:00:00:00:01\"},\"split\":",
        "both `to` and `split`",
    );
}

const PAIR: &str = r"
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: there }
spec:
  match: { protocol: udp, destination: 10.0.0.2 }
  functions:
    - { name: masquerade, kind: nat, node: n1, config: { address: 198.51.100.7, ports: 20000-60000 } }
    - { name: last, kind: forward, node: n2 }
  reverse: back
  ports: { ingress: lab/h1, egress: lab/h2 }
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: back }
spec:
  match: { source: 10.0.0.2, destination: 198.51.100.7 }
  functions:
    - { name: first, kind: forward }
    - { name: restore, kind: nat, config: { reverseOf: masquerade } }
";

#[test]
fn replies_follow_to_the_nodes_of_the_functions_that_they_undo() {
    let parse_pair = |text: &str| parse(text, &Source::new("pair.yaml"), &NoFiles);
    let pair = parse_pair(PAIR).unwrap();
    let (there, back) = (&pair[0], &pair[1]);
    assert!(back.is_over_nodes(), "the chain of the replies too");
    assert_eq!(
        back.ports,
        there.ports.as_ref().map(myelin_spec::Ports::reversed)
    );
    let mut followed = back.clone();
    assert!(followed.follows_reverse());
    followed.follow(there);
    let nodes = followed
        .functions
        .iter()
        .map(|function| function.node.as_deref());
    assert_eq!(nodes.collect::<Vec<_>>(), [None, Some("n1")]);

    // The part has all that its node needs to know of the other chain.
    let object = PartObject {
        name: "back-p1".to_owned(),
        functions: 1..2,
        ingress: None,
        egress: Some("eth0".to_owned()),
        part: Some(PartSpec {
            path: 0x80_0002,
            first: 1,
            length: 2,
            whole: Some("back-p0".to_owned()),
            reverse: Some("there-p0".to_owned()),
            before_ns: None,
            from: Some(PeerSpec {
                interface: "eth1".into(),
                way: Way::Ethernet("02:00:00:00:00:02".parse().unwrap()),
            }),
            to: None,
            split: Vec::new(),
        }),
        latency_ns: None,
        pairs: vec![(1, myelin_spec::Space::Kernel)],
        reverse: Some("there".to_owned()),
    };
    let text = write_part(PAIR, "back", &object).unwrap();
    let part = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(part.functions[0].config, there.functions[0].config);
    assert_eq!(part.functions[0].space, Some(myelin_spec::Space::Kernel));
    let state = part.instances(0..1)[0].state.clone().unwrap();
    assert_eq!(
        (&*state.chain, &*state.function),
        ("there-p0", "masquerade")
    );

    for (from, to, words) in [
        ("kind: forward }", "kind: forward, node: n1 }", ""),
        (
            "last, kind: forward, node: n2",
            "last, kind: forward, replicas: 2",
            "remove `replicas`, or `reverse`",
        ),
        (
            "restore, kind: nat,",
            "restore, kind: nat, node: n2,",
            "not on the same `node`",
        ),
        (
            "lab/h1, egress: lab/h2",
            "eth0, egress: eth1",
            "two hosts of one topology",
        ),
        (
            "  ports: { ingress: lab/h1, egress: lab/h2 }\n",
            "",
            "neither chain of the pair",
        ),
    ] {
        match parse_pair(&PAIR.replace(from, to)) {
            Ok(_) => assert_eq!(words, ""),
            Err(error) => {
                let error = error.to_string();
                assert!(!words.is_empty() && error.contains(words), "{error}");
            }
        }
    }
}
