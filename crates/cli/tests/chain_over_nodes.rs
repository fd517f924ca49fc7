//! Chains over the nodes of a topology: real packets, live changes, faults, and removal.

mod common;
#[path = "chain_over_nodes/contract.rs"]
mod contract;
#[path = "chain_over_nodes/entrance.rs"]
mod entrance;
#[path = "chain_over_nodes/faults.rs"]
mod faults;
#[path = "chain_over_nodes/fresh.rs"]
mod fresh;
#[path = "chain_over_nodes/lab.rs"]
mod lab;
#[path = "chain_over_nodes/replicas.rs"]
mod replicas;
#[path = "chain_over_nodes/replies.rs"]
mod replies;
#[path = "chain_over_nodes/routed.rs"]
mod routed;

use std::collections::BTreeSet;

use common::traffic::Traffic;
use common::{Myelin, kill, skip_unless_root, wait_for};
use lab::{Lab, file, ordered, up};
use myelin_linux::netns::Netns;

/// The functions name no node: both hosts have a link to `n1`, so it runs all of them.
#[test]
fn placement_chooses_the_node_between_the_hosts() {
    if skip_unless_root() {
        return;
    }
    let text = file(&[1, 1], 2, &[0x01, 0x02])
        .replace("node: n1, ", "")
        .replace("  functions:\n", "  placement: delay\n  functions:\n")
        .replace("[ n2, h2 ]", "[ n1, h2 ]");
    let lab = Lab::up(&text);
    lab.expect(0x40, 0x43);
    assert_eq!([lab.chains_on(1), lab.chains_on(2)], [1, 0]);
    let file = lab.myelin.write_file(&text);
    let plan = lab.myelin.run_ok(&["plan", file.to_str().unwrap()]);
    assert!(plan.contains("delay, 0 crossings"), "{plan}");
    assert!(plan.contains("n1: least delay found"), "{plan}");
    let plan = lab
        .myelin
        .run_json(&["plan", "--json", file.to_str().unwrap()]);
    assert_eq!(plan[0]["placement"]["functions"][1]["node"], "n1", "{plan}");
    // No placement keeps two functions of a group apart and each next to its host.
    let apart = text.replace("kind: xor", "kind: xor, antiAffinity: copies");
    let file = lab.myelin.write_file(&apart);
    let error = lab.myelin.run_failing(3, &["up", file.to_str().unwrap()]);
    assert!(
        error.contains("no node can run the function `f1`"),
        "{error}"
    );
    lab.end();
}

#[test]
fn a_chain_on_one_node_changes_live_and_survives_its_agent() {
    if skip_unless_root() {
        return;
    }
    let lab = Lab::up(&file(&[1, 1], 1, &[0x01, 0x02]));
    lab.expect(0x40, 0x43);
    let over = lab.myelin.chain_name("over");
    let details = lab.myelin.run_ok(&["ps", &over]);
    assert!(
        details.contains("f0, f1") && details.contains("active"),
        "{details}"
    );
    assert!(lab.myelin.run_ok(&["ps"]).contains("chain over nodes"));

    let same = up(&lab.myelin, &file(&[1, 1], 1, &[0x01, 0x02]));
    assert!(same.contains("unchanged"), "{same}");
    let changed = up(&lab.myelin, &file(&[1, 1], 1, &[0x01, 0x04]));
    assert!(changed.contains("generation 1"), "{changed}");
    lab.expect(0x40, 0x45);
    let error = lab
        .myelin
        .run_failing(1, &["down", &lab.myelin.chain_name("line")]);
    assert!(error.contains(&format!("myelin down {over}")), "{error}");

    // The node loses its part with its agent. Both come back.
    kill(&lab.node_pid(1));
    lab.expect_restored(1);
    lab.expect(0x40, 0x45);
    kill(&lab.node_pid(1));
    lab.myelin.run_ok(&["down", &over]);
    assert!(lab.myelin.run_ok(&["ps"]).contains("no chain runs"));
    assert_eq!(lab.chains_on(1), 0);
    lab.end();
}

#[test]
fn wrong_chains_over_nodes_make_nothing() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let good = file(&[1, 2], 2, &[1, 2]);
    let refuse = |status: i32, text: &str, words: &str| {
        let file = myelin.write_file(text);
        let error = myelin.run_failing(status, &["up", file.to_str().unwrap()]);
        assert!(error.contains(words), "{error}");
        assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    };
    refuse(1, &good.replace("node: n2", "node: n7"), "no node `n7`");
    refuse(
        1,
        &file(&[2, 2], 2, &[1, 2]),
        "no link joins the host `h1` and the node `n2`",
    );
    // The second part cannot come up, so the first does not either.
    let absent = good.replace(
        "kind: xor, node: n2, config: { key: 2 }",
        "kind: external, node: n2, config: { command: [ /absent/program ] }",
    );
    refuse(1, &absent, "node `n2`");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn packets_pass_the_functions_of_several_nodes() {
    if skip_unless_root() {
        return;
    }
    for (places, nodes) in [(&[1, 2][..], 2), (&[1, 2, 1, 2], 2), (&[1, 2, 2, 3, 4], 4)] {
        let keys = [0x01, 0x02, 0x04, 0x08, 0x10];
        let all = keys[..places.len()].iter().fold(0, |all, key| all ^ key);
        let lab = Lab::up(&file(places, nodes, &keys));
        lab.expect(0x40, 0x40 ^ all);
        let list = lab.myelin.run_json(&["ps", "--json"]);
        let status = &list[0];
        let parts = status["parts"].as_array().unwrap();
        let changes = places.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(parts.len(), changes + 1);
        for part in parts {
            assert!(part["packets_out"].as_u64() > Some(0), "{status}");
            assert!(part["sojourn"]["packets"].as_u64() > Some(0), "{status}");
        }
        let top = lab.myelin.run_ok(&["top", "--count", "1"]);
        assert!(top.contains("CHAIN OVER NODES"), "{top}");
        lab.myelin.run_ok(&["down", &lab.myelin.chain_name("over")]);
        assert!((1..=nodes).all(|node| lab.chains_on(node) == 0));
        // The nodes forward what no chain takes.
        lab.expect(0x40, 0x40);
        lab.end();
    }
}

/// The workers of a node's user functions, by process number.
fn workers_of(myelin: &Myelin, node: usize) -> BTreeSet<u64> {
    let chains = myelin.run_json(&["--node", &format!("n{node}"), "ps", "--json"]);
    let chains = chains.as_array().unwrap().iter();
    chains
        .filter_map(|chain| chain["worker"]["pid"].as_u64())
        .collect()
}

/// Order, nodes and number of the functions change while packets pass. Each packet passes all
/// functions of one description.
#[test]
fn a_chain_over_nodes_changes_under_traffic() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let first: &[(u8, usize)] = &[(0, 1), (1, 2), (2, 1), (3, 2), (4, 3)];
    up(&myelin, &ordered(first));
    let host = |name: &str, address: &str| {
        let netns = format!("myelin-{}-{name}", myelin.chain_name("line"));
        (Netns::open(&netns).unwrap(), address.parse().unwrap())
    };
    let traffic = Traffic::between(host("h1", "10.0.0.1"), (host("h2", "10.0.0.2"), 9000));
    traffic.wait_for_packets(500);
    let workers = workers_of(&myelin, 2);
    assert_eq!(workers.len(), 1);
    let changes: [&[(u8, usize)]; 6] = [
        // Another order.
        &[(0, 1), (3, 2), (2, 1), (1, 2), (4, 3)],
        // A function moves to another node.
        &[(0, 1), (3, 2), (2, 1), (1, 3), (4, 3)],
        // Functions go, and with them a node.
        &[(0, 1), (4, 3)],
        // Functions come, also in front.
        &[(5, 1), (0, 1), (6, 2), (4, 3), (3, 3)],
        // One function changes its key at its place, in a new generation of all parts.
        &[(5, 1), (0, 1), (6, 2), (4, 3), (1, 3)],
        first,
    ];
    let mut keys = BTreeSet::new();
    let key_of = |functions: &[(u8, usize)]| {
        let keys = functions.iter().map(|(number, _)| 1_u8 << number);
        keys.fold(0, |all, key| all ^ key)
    };
    keys.insert(key_of(first));
    for (number, functions) in changes.into_iter().enumerate() {
        let out = up(&myelin, &ordered(functions));
        assert!(out.contains(&format!("generation {}", number + 1)), "{out}");
        keys.insert(key_of(functions));
        if number == 0 {
            assert_eq!(workers_of(&myelin, 2), workers, "started anew");
        }
        traffic.wait_for_packets(500);
    }
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "lost packets");
    assert_eq!((arrivals.duplicates, arrivals.damaged), (0, 0));
    let seen: BTreeSet<u8> = arrivals.keys.values().copied().collect();
    assert_eq!(seen, keys);
    let over = myelin.chain_name("over");
    wait_for("all packets in the counts of the whole", || {
        let status = myelin.run_json(&["ps", &over, "--json"]);
        [&status["packets_in"], &status["packets_out"]]
            .iter()
            .all(|count| count.as_u64() == Some(sent))
    });
    // No part of an earlier path remains.
    let parts: usize = (1..=3)
        .map(|node| {
            let list = myelin.run_json(&["--node", &format!("n{node}"), "ps", "--json"]);
            list.as_array().unwrap().len()
        })
        .sum();
    assert_eq!(parts, 5);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_example_runs_as_it_stands() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = common::repository_root().join("examples/chain-over-nodes.yaml");
    let file = file.to_str().unwrap();
    assert!(
        myelin
            .run_ok(&["plan", file])
            .contains("topology line: 2 hosts, 2 nodes")
    );
    myelin.run_ok(&["up", file]);
    wait_for("a packet that left the last node", || {
        myelin.run_ok(&[
            "exec",
            "h1",
            "--",
            "bash",
            "-c",
            "echo x > /dev/udp/10.0.0.2/9000",
        ]);
        let status = myelin.run_json(&["ps", "h1-to-h2", "--json"]);
        status["packets_out"].as_u64() > Some(0)
    });
    myelin.run_ok(&["down", file]);
    assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
