//! A chain over nodes whose packets enter at another host after a change.

use std::collections::BTreeSet;

use super::lab::{self, Lab, function, up};
use crate::common::traffic::{Arrivals, Traffic};
use crate::common::{Myelin, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;

/// A line of three nodes: `h1` is at the first, `h2` at the last, `h3` and `h4` are at the second.
fn file(ingress: &str, functions: &[(u8, usize)]) -> String {
    let functions = functions.iter();
    let functions =
        functions.map(|(number, node)| function(*number, *node, &format!("key: {}", 1 << number)));
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: @line }}\nspec:\n  \
         hosts: [ h1, h2, h3, h4 ]\n  nodes: [ n1, n2, n3 ]\n  links:\n    - {{ ends: [ h1, n1 ] }}\n    \
         - {{ ends: [ h3, n2 ] }}\n    - {{ ends: [ h4, n2 ] }}\n    - {{ ends: [ n1, n2 ] }}\n    \
         - {{ ends: [ n2, n3 ] }}\n    - {{ ends: [ n3, h2 ] }}\n---\n\
         apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @over }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32 }}\n  functions:\n{}  \
         ports: {{ ingress: @line/{ingress}, egress: @line/h2 }}\n",
        functions.collect::<String>(),
    )
}

/// Numbered packets from a host to a port of `h2`.
fn traffic_from(myelin: &Myelin, host: usize) -> Traffic {
    let open = |number: usize| {
        let netns = format!("myelin-{}-h{number}", myelin.chain_name("line"));
        let address = format!("10.0.0.{number}").parse().unwrap();
        (Netns::open(&netns).unwrap(), address)
    };
    Traffic::between(open(host), (open(2), 9000 + host as u16))
}

/// The ingress moves to a host at another node, then to another host at the same node, and back.
/// Packets of each host pass all functions of one description, or none while it is no ingress.
#[test]
fn packets_enter_at_another_host_after_a_change() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let long: &[(u8, usize)] = &[(0, 1), (1, 2), (2, 3)];
    let short: &[(u8, usize)] = &[(3, 2), (2, 3)];
    up(&myelin, &file("h1", long));
    let hosts = [1, 3, 4];
    let streams = hosts.map(|host| traffic_from(&myelin, host));
    let wait = || {
        for stream in &streams {
            stream.wait_for_packets(300);
        }
    };
    wait();
    let steps = [("h3", short), ("h4", short), ("h3", short), ("h1", long)];
    for (number, (ingress, functions)) in steps.into_iter().enumerate() {
        let out = up(&myelin, &file(ingress, functions));
        assert!(out.contains(&format!("generation {}", number + 1)), "{out}");
        wait();
    }
    let arrived = streams.map(|stream| {
        let (sent, arrivals) = stream.stop();
        assert_eq!(arrivals.keys.len() as u64, sent, "lost packets");
        assert_eq!((arrivals.duplicates, arrivals.damaged), (0, 0));
        arrivals
    });
    let keys = |arrivals: &Arrivals| arrivals.keys.values().copied().collect::<BTreeSet<u8>>();
    let seen = arrived.each_ref().map(keys);
    assert_eq!(seen, [[0, 7].into(), [0, 12].into(), [0, 12].into()]);
    let all = arrived.iter().flat_map(|arrivals| arrivals.keys.values());
    let chained = all.filter(|key| **key != 0).count() as u64;
    let over = myelin.chain_name("over");
    wait_for("all packets in the counts of the whole", || {
        let status = myelin.run_json(&["ps", &over, "--json"]);
        [&status["packets_in"], &status["packets_out"]]
            .iter()
            .all(|count| count.as_u64() == Some(chained))
    });
    // No part of an earlier path remains.
    let parts = |node: usize| {
        let list = myelin.run_json(&["--node", &format!("n{node}"), "ps", "--json"]);
        list.as_array().unwrap().len()
    };
    assert_eq!([parts(1), parts(2), parts(3)], [1, 1, 1]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// A node refuses a part of the new path: packets enter where they did.
#[test]
fn a_refused_change_leaves_the_entrance_where_it_was() {
    if skip_unless_root() {
        return;
    }
    let lab = Lab::up(&file("h1", &[(0, 1), (2, 3)]));
    lab.expect(0x40, 0x45);
    let absent = file("h3", &[(0, 2), (2, 3)]).replace(
        "kind: xor, node: n2, config: { key: 1 }, space: kernel",
        "kind: external, node: n2, config: { command: [ /absent/program ] }",
    );
    let absent = lab.myelin.write_file(&absent);
    let error = lab.myelin.run_failing(1, &["up", absent.to_str().unwrap()]);
    assert!(error.contains("node `n2`"), "{error}");
    // A host at no link of the node of the first function.
    let far = lab.myelin.write_file(&file("h3", &[(0, 1), (2, 3)]));
    let error = lab.myelin.run_failing(1, &["up", far.to_str().unwrap()]);
    assert!(
        error.contains("no link joins the host `h3` and the node `n1`"),
        "{error}"
    );
    lab.expect(0x40, 0x45);
    assert_eq!([1, 2, 3].map(|node| lab.chains_on(node)), [1, 0, 1]);
    lab.end();
}

/// The second chain of a file is refused, which undoes the change of the first one. All its packets
/// stay in the counts after the next change.
#[test]
fn packets_before_an_undone_change_stay_counted() {
    if skip_unless_root() {
        return;
    }
    let text = |places: &[usize]| {
        let keys = &[0x01, 0x02, 0x04][..places.len()];
        lab::file(places, 2, keys).replace("[ n2, h2 ]", "[ n1, h2 ]")
    };
    let lab = Lab::up(&text(&[1]));
    for _ in 0..20 {
        lab.expect(0x40, 0x41);
    }
    let next = text(&[1, 2, 1]);
    let refused = next.split("---\n").nth(1).unwrap();
    let refused = refused
        .replace("@over", "@refused")
        .replace("destinationPort: 9000", "destinationPort: 9001")
        .replace(
            "kind: xor, node: n2, config: { key: 2 }",
            "kind: external, node: n2, config: { command: [ /absent/program ] }",
        );
    let file = lab.myelin.write_file(&format!("{next}---\n{refused}"));
    let error = lab.myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    assert!(error.contains("/absent/program"), "{error}");
    lab.expect(0x40, 0x41);
    let left = || lab.status()["packets_out"].as_u64().unwrap();
    wait_for("all packets in the counts", || left() >= 21);
    let before = left();
    up(&lab.myelin, &next);
    lab.expect(0x40, 0x47);
    assert!(left() > before, "{before} {}", lab.status());
    lab.end();
}
