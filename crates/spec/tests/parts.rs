//! Tests the parts of chains over several nodes.

use myelin_spec::{
    Match, NoFiles, PartSpec, PeerSpec, ServiceChain, Source, VxlanSpec, Way, parse,
};

/// Returns a chain of two functions. `spec` contains the other lines of `spec`.
fn chain(spec: &str) -> ServiceChain {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: a }}\nspec:\n  \
         functions: [ {{ name: f, kind: forward }}, {{ name: g, kind: forward }} ]\n{spec}"
    );
    let chains = parse(&text, &Source::new("a.yaml"), &NoFiles);
    chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

#[test]
fn the_first_part_has_match_and_ingress_port() {
    let chain = chain(
        "  match: { protocol: udp }\n  ports: { ingress: eth0 }\n  part: { path: 0x800001, first: 0, \
         length: 4, whole: c, before: 2ms, to: { interface: eth1, peer: \"02:00:00:00:00:02\" } }\n",
    );
    let to = PeerSpec {
        interface: "eth1".into(),
        way: Way::Ethernet("02:00:00:00:00:02".parse().unwrap()),
    };
    let part = PartSpec {
        reverse: None,
        path: 0x80_0001,
        first: 0,
        length: 4,
        whole: Some("c".into()),
        before_ns: Some(2_000_000),
        from: None,
        to: Some(to.clone()),
        split: Vec::new(),
    };
    assert_eq!(part.end(2), 2);
    assert_eq!(chain.part, Some(part));
    assert_eq!(chain.whole(), "c");
    assert_eq!((chain.from(), chain.to()), (None, Some(&to)));
    let ports = chain.ports.unwrap();
    assert_eq!((&*ports.ingress, &*ports.egress), ("eth0", "eth1"));
    assert_eq!(chain.places.part.to_string(), "a.yaml:8:3");
}

#[test]
fn a_middle_part_has_two_neighbours_and_takes_all_their_packets() {
    let chain = chain(
        "  part:\n    path: 16777215\n    first: 2\n    length: 254\n    \
         from: { interface: eth1, vxlan: { local: 10.0.0.2, remote: 10.0.0.1, vni: 7 } }\n    \
         to: { interface: eth1, vxlan: { local: 2001:db8::2, remote: 2001:db8::3, vni: 0xffffff, \
         destination: \"02:00:00:00:00:08\" } }\n",
    );
    let vxlan = |local: &str, remote: &str, vni, destination: Option<&str>| {
        Some(Way::Vxlan(VxlanSpec {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            vni,
            destination: destination.map(|mac| mac.parse().unwrap()),
        }))
    };
    let way = |peer: Option<&PeerSpec>| peer.map(|peer| peer.way);
    assert_eq!(way(chain.from()), vxlan("10.0.0.2", "10.0.0.1", 7, None));
    let host = Some("02:00:00:00:00:08");
    let to = vxlan("2001:db8::2", "2001:db8::3", 0xff_ffff, host);
    assert_eq!(way(chain.to()), to);
    assert_eq!(chain.matches, Match::default());
    let ports = chain.ports.unwrap();
    assert_eq!((&*ports.ingress, &*ports.egress), ("eth1", "eth1"));
}

#[test]
fn parts_of_one_neighbour_do_not_tie() {
    let part = |name: &str, path: u32| {
        format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\n\
             spec:\n  functions: [ {{ name: f, kind: forward }} ]\n  ports: {{ egress: eth2 }}\n  \
             part: {{ path: {path}, first: 1, length: 2, from: {{ interface: eth1, peer: \
             \"02:00:00:00:00:01\" }} }}\n---\n"
        )
    };
    let text = part("a", 8_388_609) + &part("b", 8_388_610);
    assert!(parse(&text, &Source::new("a.yaml"), &NoFiles).is_ok());
}
