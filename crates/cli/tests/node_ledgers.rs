//! Nodes on one machine share its cores: what one agent admits counts at the others, and placement
//! chooses a node with room.

mod common;

use common::{Myelin, kill, skip_unless_root, wait_for};
use serde_json::Value;

/// Nodes in a line, a host at each end. The workers of `n1` and `n2` share core 0.
const LINE: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @line }
spec:
  hosts: [ h1, h2 ]
  nodes: [ { name: n1, cpus: 0 }, { name: n2, cpus: 0 }, { name: n3, cpus: 1 }, n4 ]
  links:
    - { ends: [ h1, n1 ] }
    - { ends: [ n1, n2 ] }
    - { ends: [ n2, n3 ] }
    - { ends: [ n3, n4 ] }
    - { ends: [ n4, h2 ] }
";

/// Nothing limits the traffic of such a chain, and its worker takes as much time as it has packets.
const FREE: &str = "}\n  worker: { idle: sleep";

/// A chain of one user function between two interfaces of a node. Its worker polls.
fn on_node(name: &str, sla: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @{name} }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}\n  \
         functions: [ {{ name: flip, kind: xor, space: user, config: {{ key: 1 }} }} ]\n  \
         ports: {{ ingress: eth0, egress: eth1 }}\n  sla: {{ {sla} }}\n"
    )
}

/// A chain from one host to the other, whose second function has `place`.
fn over_nodes(name: &str, port: u16, place: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @{name} }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: {port} }}\n  functions:\n    \
         - {{ name: first, kind: monitor, node: n1, antiAffinity: apart, space: kernel }}\n    \
         - {{ name: middle, kind: xor, {place}antiAffinity: apart, space: user, config: {{ key: 1 }} }}\n    \
         - {{ name: last, kind: monitor, node: n4, antiAffinity: apart, space: kernel }}\n  \
         ports: {{ ingress: @line/h1, egress: @line/h2 }}\n  \
         sla: {{ rate: 10kpps, burst: 8, latency: 500ms }}\n"
    )
}

fn up(myelin: &Myelin, arguments: &[&str], text: &str) -> String {
    let file = myelin.write_file(text);
    myelin.run_ok(&[arguments, &["up", file.to_str().unwrap()]].concat())
}

fn refused(myelin: &Myelin, arguments: &[&str], text: &str) -> String {
    let file = myelin.write_file(text);
    myelin.run_failing(3, &[arguments, &["up", file.to_str().unwrap()]].concat())
}

fn node_pid(myelin: &Myelin, position: usize) -> Value {
    let status = myelin.run_json(&["ps", &myelin.chain_name("line"), "--json"]);
    status["hosts"][2 + position]["agent"]["pid"].clone()
}

/// Whether the machine has the two cores that [`LINE`] names.
fn has_two_cores() -> bool {
    let cores = myelin_linux::affinity::highest_core() + 1;
    if cores < 2 {
        println!("skipped: the test needs two cores");
    }
    cores >= 2
}

#[test]
fn nodes_count_the_chains_of_all_nodes_on_their_core() {
    if skip_unless_root() || !has_two_cores() {
        return;
    }
    let myelin = Myelin::new_shared();
    let line = myelin.chain_name("line");
    up(&myelin, &[], LINE);
    let owed = on_node("owed", "rate: 1kpps, burst: 4, latency: 1s");
    let free = on_node("free", FREE);
    up(&myelin, &["--node", "n1"], &owed);

    let error = refused(&myelin, &["--node", "n2"], &free);
    for word in [
        format!("`{} on node {line}/n1`", myelin.chain_name("owed")),
        format!("`{}` is refused", myelin.chain_name("free")),
        format!("core 0 of node {line}/n2 also serves"),
    ] {
        assert!(error.contains(&word), "{word}: {error}");
    }
    // Alone, the chain would keep this promise; next to another worker it waits for slices.
    let tight = on_node("tight", "rate: 1kpps, burst: 4, latency: 2ms");
    let error = refused(&myelin, &["--node", "n2"], &tight);
    assert!(error.contains(&format!("on node {line}/n1`")), "{error}");
    let own = on_node("own", FREE)
        .replace("  ports: { ingress: eth0, egress: eth1 }\n", "")
        .replace("idle: sleep", "idle: sleep, cores: [0]");
    let error = refused(&myelin, &[], &own);
    assert!(error.contains("core 0 of the machine itself"), "{error}");
    // Another core, and a loose promise, have room.
    up(&myelin, &["--node", "n3"], &free);
    let loose = on_node("loose", "rate: 1kpps, burst: 4, latency: 900ms");
    up(&myelin, &["--node", "n2"], &loose);

    // A killed agent books nothing, and neither does a removed chain.
    myelin.run_ok(&["--node", "n2", "down", &myelin.chain_name("loose")]);
    kill(&node_pid(&myelin, 0));
    up(&myelin, &["--node", "n2"], &tight);
    wait_for("another agent of n1", || {
        let status = myelin.run_json(&["ps", &line, "--json"]);
        status["hosts"][2]["agent"]["restarts"] == 1
    });
    let error = refused(&myelin, &["--node", "n1"], &free);
    assert!(error.contains(&format!("on node {line}/n2`")), "{error}");

    // An unreadable file of a running agent: nothing is admitted.
    let file = myelin.run_dir().join("nodes").join(format!("{line}.n2"));
    let file = file.join("bookings.json");
    let kept = std::fs::read(&file).unwrap();
    std::fs::write(&file, "[{").unwrap();
    let other = myelin.write_file(&on_node("other", FREE));
    let error = myelin.run_failing(1, &["--node", "n3", "up", other.to_str().unwrap()]);
    assert!(error.contains("no chain is admitted"), "{error}");
    // A file with values that no agent writes.
    let mut bookings: Value = serde_json::from_slice(&kept).unwrap();
    bookings[0]["core_uses"][0]["core"] = 65_000.into();
    std::fs::write(&file, bookings.to_string()).unwrap();
    let error = myelin.run_failing(1, &["--node", "n3", "up", other.to_str().unwrap()]);
    for word in [
        "booking 0: core 65000 does not exist",
        "no chain is admitted",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    std::fs::write(&file, kept).unwrap();
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn two_nodes_that_decide_at_once_do_not_promise_the_same_time() {
    if skip_unless_root() || !has_two_cores() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin, &[], LINE);
    let tight = on_node("tight", "rate: 1kpps, burst: 4, latency: 2ms");
    let file = myelin.write_file(&tight);
    for _ in 0..4 {
        let clients = ["n1", "n2"].map(|node| {
            let arguments = ["--node", node, "up", file.to_str().unwrap()];
            let mut client = myelin.command(&arguments);
            let quiet = client.stdout(std::process::Stdio::null());
            (
                node,
                quiet.stderr(std::process::Stdio::null()).spawn().unwrap(),
            )
        });
        let codes = clients.map(|(node, mut client)| (node, client.wait().unwrap().code()));
        let admitted = codes.iter().filter(|(_, code)| *code == Some(0));
        let admitted: Vec<&str> = admitted.map(|(node, _)| *node).collect();
        assert_eq!(admitted.len(), 1, "{codes:?}");
        assert!(codes.iter().any(|(_, code)| *code == Some(3)), "{codes:?}");
        myelin.run_ok(&["--node", admitted[0], "down", &myelin.chain_name("tight")]);
    }
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// The node of the part with the second function.
fn middle_of(myelin: &Myelin, name: &str) -> String {
    let status = myelin.run_json(&["ps", &myelin.chain_name(name), "--json"]);
    assert_eq!(status["state"], "active", "{status}");
    status["parts"][1]["node"].as_str().unwrap().to_owned()
}

#[test]
fn a_second_chain_is_placed_where_room_is() {
    if skip_unless_root() || !has_two_cores() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin, &[], LINE);
    up(&myelin, &[], &over_nodes("one", 9000, ""));
    let first = middle_of(&myelin, "one");
    let other = if first == "n2" { "n3" } else { "n2" };
    up(&myelin, &[], &over_nodes("two", 9001, ""));
    assert_eq!(middle_of(&myelin, "two"), other);
    // The same description again moves nothing, although each node has the same load now.
    for (name, port) in [("one", 9000), ("two", 9001)] {
        let out = up(&myelin, &[], &over_nodes(name, port, ""));
        assert!(out.contains("unchanged"), "{out}");
    }
    // A part that a killed agent lost is booked again with its chain.
    let number: usize = first[1..].parse().unwrap();
    kill(&node_pid(&myelin, number - 1));
    wait_for("a restored chain", || {
        let status = myelin.run_json(&["ps", &myelin.chain_name("one"), "--json"]);
        status["restored"].is_string() && status["state"] == "active"
    });
    assert_eq!(middle_of(&myelin, "one"), first);
    let error = refused(&myelin, &["--node", "n1"], &on_node("free", FREE));
    let of_n2 = format!("on node {}/n2`", myelin.chain_name("line"));
    assert!(error.contains(&of_n2), "{error}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
