//! Replicas of a function: each flow and its replies pass one of them, on real packets, also while
//! the number of replicas changes and after a node falls silent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use myelin_linux::netns::Netns;
use myelin_packet::maglev::MaglevTable;
use myelin_packet::{FiveTuple, FlowKey};
use serde_json::Value;

use super::lab::up;
use crate::common::traffic::Traffic;
use crate::common::{self, Myelin, skip_unless_root, wait_for};

const CLIENT: &str = "10.0.0.1";
const SERVER: &str = "10.0.0.2";

/// A node between both hosts, `nodes` further nodes, each behind it, and a chain to the server. Its
/// middle function has replicas.
fn star(nodes: usize, replicas: usize) -> String {
    let further: Vec<usize> = (2..2 + nodes).collect();
    let names = further.iter().map(|node| format!(", n{node}"));
    let names = names.collect::<Vec<_>>().concat();
    let links = further
        .iter()
        .map(|node| format!("    - {{ ends: [ n1, n{node} ] }}\n"));
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: @line }}\nspec:\n  \
         hosts: [ h1, h2 ]\n  nodes: [ n1{names} ]\n  links:\n    - {{ ends: [ h1, n1 ] }}\n    \
         - {{ ends: [ n1, h2 ] }}\n{}---\n{}",
        links.collect::<String>(),
        chain("over", "destination: 10.0.0.2/32", ("h1", "h2"), replicas),
    )
}

fn chain(name: &str, traffic: &str, (ingress, egress): (&str, &str), replicas: usize) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @{name} }}\nspec:\n  \
         match: {{ protocol: udp, {traffic} }}\n  functions:\n    \
         - {{ name: entry, kind: xor, node: n1, config: {{ key: 1 }}, space: kernel }}\n    \
         - {{ name: work, kind: xor, replicas: {replicas}, config: {{ key: 2 }}, space: kernel }}\n    \
         - {{ name: exit, kind: xor, node: n1, config: {{ key: 4 }}, space: user }}\n  \
         ports: {{ ingress: @line/{ingress}, egress: @line/{egress} }}\n"
    )
}

fn netns(myelin: &Myelin, host: &str) -> Netns {
    Netns::open(&format!("myelin-{}-{host}", myelin.chain_name("line"))).unwrap()
}

fn socket(myelin: &Myelin, host: &str, address: &str, port: u16) -> UdpSocket {
    let netns = netns(myelin, host);
    let socket = netns.enter(|| UdpSocket::bind((address, port)));
    let socket = socket.unwrap().unwrap();
    let timeout = Duration::from_millis(200);
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket
}

fn status(myelin: &Myelin, name: &str) -> Value {
    myelin.run_json(&["ps", &myelin.chain_name(name), "--json"])
}

/// The packets that entered each replica, by node, in the order of the paths.
fn replicas(status: &Value) -> Vec<(String, u64)> {
    let parts = status["parts"].as_array().unwrap().iter();
    let parts = parts.filter(|part| part["functions"][0] == "work");
    parts
        .map(|part| {
            assert_eq!(part["replica"], part["node"]);
            let node = part["node"].as_str().unwrap().to_owned();
            (node, part["packets_in"].as_u64().unwrap())
        })
        .collect()
}

/// The node whose replica takes a flow, as the reference chooses it.
fn expected_node(nodes: &[String], from: (&str, u16), to: (&str, u16)) -> String {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let flow = FlowKey::new(&FiveTuple {
        source: address(from.0),
        destination: address(to.0),
        protocol: 17,
        source_port: Some(from.1),
        destination_port: Some(to.1),
    });
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let number = MaglevTable::of_names(&names).look_up_either_way(&flow);
    nodes[usize::from(number.unwrap())].clone()
}

const PACKETS: u64 = 10;
/// A packet that has not arrived after this time is lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends the packets of a flow, each when the previous one has arrived. Returns the node whose
/// replica took all of them.
fn node_of_flow(myelin: &Myelin, chain: &str, from: &UdpSocket, to: &UdpSocket) -> String {
    let before = replicas(&status(myelin, chain));
    let target = to.local_addr().unwrap();
    to.set_read_timeout(Some(LOSS_TIMEOUT)).unwrap();
    for number in 0..PACKETS as u8 {
        from.send_to(&[number], target).unwrap();
        let mut byte = [0; 8];
        let arrived = to.recv(&mut byte);
        let flow = (chain, from.local_addr(), number);
        assert_eq!(arrived.ok(), Some(1), "a packet of {flow:?} is lost");
        assert_eq!(byte[0], number ^ 7, "a packet left out a function");
    }
    let now = || {
        let now = replicas(&status(myelin, chain)).into_iter().zip(&before);
        let grown = now.map(|((node, now), (_, before))| (node, now - before));
        grown.filter(|(_, packets)| *packets > 0).collect()
    };
    wait_for("the packets in the counts of a replica", || {
        let grown: Vec<(String, u64)> = now();
        grown.iter().map(|(_, packets)| packets).sum::<u64>() == PACKETS
    });
    let grown = now();
    assert_eq!(grown.len(), 1, "a flow passed several replicas: {grown:?}");
    grown[0].0.clone()
}

/// Waits until a packet passes the whole chain.
fn wait_until_up(from: &UdpSocket, to: &UdpSocket) {
    let target = to.local_addr().unwrap();
    wait_for("a packet through the chain", || {
        let mut byte = [0; 8];
        let _ = from.send_to(&[0x40], target);
        to.recv(&mut byte).is_ok() && byte[0] == 0x47
    });
    // A late packet of an earlier attempt.
    to.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    while to.recv(&mut [0; 8]).is_ok() {}
}

#[test]
fn each_flow_and_its_replies_pass_one_replica() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let back = chain(
        "back",
        "source: 10.0.0.2/32, sourcePort: 9000",
        ("h2", "h1"),
        2,
    );
    up(&myelin, &format!("{}---\n{back}", star(2, 2)));
    let server = socket(&myelin, "h2", SERVER, 9000);
    let clients: Vec<UdpSocket> = (0..16)
        .map(|number| socket(&myelin, "h1", CLIENT, 20_000 + number))
        .collect();
    wait_until_up(&clients[0], &server);
    wait_until_up(&server, &clients[0]);
    let nodes = replicas(&status(&myelin, "over"));
    let nodes: Vec<String> = nodes.into_iter().map(|(node, _)| node).collect();
    assert_eq!(
        nodes.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        BTreeSet::from(["n2", "n3"])
    );
    let mut flows: BTreeMap<String, usize> = BTreeMap::new();
    for client in &clients {
        let port = client.local_addr().unwrap().port();
        let node = node_of_flow(&myelin, "over", client, &server);
        let expected = expected_node(&nodes, (CLIENT, port), (SERVER, 9000));
        assert_eq!(node, expected, "port {port}");
        *flows.entry(node.clone()).or_default() += 1;
        let reply = node_of_flow(&myelin, "back", &server, client);
        assert_eq!(reply, node, "replies to port {port}");
    }
    assert_eq!(flows.len(), 2, "{flows:?}");
    let whole = status(&myelin, "over");
    let sum: u64 = replicas(&whole).iter().map(|(_, packets)| packets).sum();
    let count = |key: &str| whole[key].as_u64().unwrap();
    assert_eq!((count("packets_in"), count("packets_out")), (sum, sum));
    let details = myelin.run_ok(&["ps", &myelin.chain_name("over")]);
    assert!(details.contains("n1 after n2"), "{details}");
    let list = myelin.run_ok(&["ps"]);
    assert!(list.contains(" | "), "{list}");
    drop((clients, server));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// The number of replicas changes while packets of several flows pass. None is lost, and each
/// passes all functions once.
#[test]
fn the_number_of_replicas_changes_under_traffic() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin, &star(3, 2));
    let traffics: Vec<Traffic> = (9000..9004)
        .map(|port| {
            let (client, server) = (netns(&myelin, "h1"), netns(&myelin, "h2"));
            let (from, to) = (CLIENT.parse().unwrap(), SERVER.parse().unwrap());
            Traffic::between((client, from), ((server, to), port))
        })
        .collect();
    let wait = || traffics.iter().for_each(|one| one.wait_for_packets(300));
    wait();
    for (generation, count) in [3, 2, 1, 2].into_iter().enumerate() {
        let before = parts_of(&myelin);
        let out = up(&myelin, &star(3, count));
        let expected = format!("generation {}", generation + 1);
        assert!(out.contains(&expected), "{out}");
        let now = parts_of(&myelin);
        assert_eq!(now.len(), count, "{now:?}");
        let nodes_stay = now.is_subset(&before) || before.is_subset(&now);
        assert!(nodes_stay || generation > 1, "{now:?}");
        wait();
    }
    assert!(up(&myelin, &star(3, 2)).contains("unchanged"));
    let mut all = 0;
    for traffic in traffics {
        let (sent, arrivals) = traffic.stop();
        assert_eq!(arrivals.keys.len() as u64, sent, "lost packets");
        assert_eq!((arrivals.duplicates, arrivals.damaged), (0, 0));
        assert!(arrivals.keys.values().all(|key| *key == 7));
        all += sent;
    }
    wait_for("all packets in the counts of the whole", || {
        let status = status(&myelin, "over");
        [&status["packets_in"], &status["packets_out"]]
            .iter()
            .all(|count| count.as_u64().is_some_and(|count| count >= all))
    });
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// The nodes of the replicas, or of the only instance.
fn parts_of(myelin: &Myelin) -> BTreeSet<String> {
    let status = status(myelin, "over");
    let parts = status["parts"].as_array().unwrap().iter();
    let has_work = |part: &&Value| {
        let mut functions = part["functions"].as_array().unwrap().iter();
        functions.any(|function| function == "work")
    };
    let parts = parts.filter(has_work);
    parts
        .map(|part| part["node"].as_str().unwrap().to_owned())
        .collect()
}

/// The flows of a silent node go to the other replicas, and return to it when its agent answers
/// again. Flows of the others stay. No packet is lost on the way back.
#[test]
fn other_replicas_take_the_flows_of_a_silent_node_until_it_answers() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    up(&myelin, &star(3, 3));
    let server = socket(&myelin, "h2", SERVER, 9000);
    let clients: Vec<UdpSocket> = (0..12)
        .map(|number| socket(&myelin, "h1", CLIENT, 30_000 + number))
        .collect();
    wait_until_up(&clients[0], &server);
    let nodes_of_flows = || -> Vec<String> {
        let flows = clients.iter();
        flows
            .map(|client| node_of_flow(&myelin, "over", client, &server))
            .collect()
    };
    let before = nodes_of_flows();
    let line = myelin.chain_name("line");
    let hosts = myelin.run_json(&["ps", &line, "--json"]);
    let pid = &hosts["hosts"][4]["agent"]["pid"];
    assert_eq!(hosts["hosts"][4]["name"], "n3", "{hosts}");
    common::sh(&format!("kill -STOP {pid}"));
    wait_for("the chain without the silent node", || {
        let status = status(&myelin, "over");
        status["restored"].is_string()
            && status["state"] == "active"
            && !parts_of(&myelin).contains("n3")
    });
    assert_eq!(parts_of(&myelin).len(), 2);
    let after = nodes_of_flows();
    for (before, after) in before.iter().zip(&after) {
        assert_ne!(after, "n3");
        assert!(before == "n3" || before == after, "{before} {after}");
    }
    let (from, to) = (CLIENT.parse().unwrap(), SERVER.parse().unwrap());
    let ends = ((netns(&myelin, "h1"), from), (netns(&myelin, "h2"), to));
    let traffic = Traffic::between(ends.0, (ends.1, 9001));
    wait_for("the replica of the node that was silent", || {
        parts_of(&myelin).contains("n3")
    });
    traffic.wait_for_packets(300);
    let (sent, arrivals) = traffic.stop();
    assert_eq!(arrivals.keys.len() as u64, sent, "lost packets");
    assert!(arrivals.keys.values().all(|key| *key == 7));
    assert_eq!(nodes_of_flows(), before);
    let restored = status(&myelin, "over")["restored"].to_string();
    assert!(restored.contains("takes a replica"), "{restored}");
    drop((clients, server));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn replicas_that_the_nodes_cannot_hold_are_refused() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(&star(2, 3));
    let file = file.to_str().unwrap();
    for command in [["up", file], ["plan", file]] {
        let output = myelin.run(&command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(error.contains("write `replicas: 2` or less"), "{error}");
    }
    let good = myelin.write_file(&star(2, 2));
    let plan = myelin.run_json(&["plan", "--json", good.to_str().unwrap()]);
    let node = |placement: &Value| placement["functions"][1]["node"].clone();
    let nodes = [node(&plan[0]["placement"]), node(&plan[0]["replicas"][0])];
    assert!(
        nodes[0] != nodes[1] && nodes.iter().all(|node| node != "n1"),
        "{plan}"
    );
    assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn the_example_shares_its_flows() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = common::repository_root().join("examples/replicas.yaml");
    let file = file.to_str().unwrap();
    myelin.run_ok(&["up", file]);
    let send = "for flow in 1 2 3 4 5 6 7 8; do echo hello > /dev/udp/10.0.0.2/9000; done";
    wait_for("packets of flows in both replicas", || {
        myelin.run_ok(&["exec", "h1", "--", "bash", "-c", send]);
        let shared = replicas(&myelin.run_json(&["ps", "shared", "--json"]));
        shared.len() == 2 && shared.iter().all(|(_, packets)| *packets > 0)
    });
    myelin.run_ok(&["down", file]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// Each replica is booked with the whole rate. The bound is that of the slowest path.
#[test]
fn each_replica_keeps_the_whole_contract() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let sla = "  sla: { rate: 1kpps, burst: 4, latency: 200ms }\n  ports:";
    up(&myelin, &star(2, 2).replace("  ports:", sla));
    let whole = status(&myelin, "over");
    let parts = whole["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 5, "{whole}");
    let bound = |part: &Value| part["bound_ns"].as_u64().unwrap();
    // The monitor of a part begins a moment later.
    wait_for("the whole rate in the contract of each part", || {
        let whole = status(&myelin, "over");
        let mut parts = whole["parts"].as_array().unwrap().iter();
        parts.all(|part| part["sla"]["contract"]["rate_pps"].as_f64() == Some(1000.0))
    });
    let path = |node: &str| -> u64 {
        let own = parts.iter().filter(|part| part["replica"] == node);
        own.map(bound).sum()
    };
    let links = whole["links_ns"].as_u64().unwrap();
    let slowest = path("n2").max(path("n3"));
    assert_eq!(bound(&whole), bound(&parts[0]) + slowest + links, "{whole}");
    assert!(bound(&whole) <= 200_000_000);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
