//! Nodes of topologies: their agents, their share of the machine, chains on a node, and removal
//! after every fault.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::{Myelin, is_alive, kill, skip_unless_root, wait_for};
use myelin_linux::netns::Netns;
use serde_json::Value;

const LINE: &str = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @line }
spec:
  hosts: [ h1, h2 ]
  nodes: [ n1, { name: n2, cpu: 800m, memory: 1GiB, cpus: 0, address: 10.0.0.9/8 } ]
  links:
    - { ends: [ h1, n1 ] }
    - { ends: [ n1, n2 ] }
    - { ends: [ n2, h2 ] }
";

/// A chain between two interfaces of a node, whose functions need sandboxes and groups.
const ON_NODE: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @local }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  mapping: distributed
  functions:
    - { name: flip, kind: xor, space: user, config: { key: 0x01 }, limits: { memory: 64MiB } }
  ports: { ingress: eth0, egress: eth1 }
";

fn up(myelin: &Myelin, arguments: &[&str], text: &str) -> String {
    let file = myelin.write_file(text);
    myelin.run_ok(&[arguments, &["up", file.to_str().unwrap()]].concat())
}

/// The hosts and nodes of a running topology as `ps NAME --json` shows them.
fn hosts(myelin: &Myelin, name: &str) -> Vec<Value> {
    let status = myelin.run_json(&["ps", &myelin.chain_name(name), "--json"]);
    status["hosts"].as_array().unwrap().clone()
}

/// A UDP socket on a host.
fn socket(myelin: &Myelin, topology: &str, host: &str, address: &str) -> UdpSocket {
    let name = format!("myelin-{}-{host}", myelin.chain_name(topology));
    let netns = Netns::open(&name).unwrap();
    let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
    let timeout = Duration::from_millis(200);
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket
}

fn groups_of(pid: &Value) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

#[test]
fn each_node_runs_an_agent_in_its_namespace_and_group() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let out = up(&myelin, &[], LINE);
    assert!(out.contains("2 hosts, 2 nodes, 0 switches"), "{out}");
    let line = myelin.chain_name("line");
    let (h1, h2) = (
        socket(&myelin, "line", "h1", "10.0.0.1:0"),
        socket(&myelin, "line", "h2", "10.0.0.2:9000"),
    );
    let mut byte = [0; 8];
    let mut arrives = |sent: u8| {
        let _ = h1.send_to(&[sent], "10.0.0.2:9000");
        h2.recv(&mut byte).ok().map(|_| byte[0])
    };
    wait_for("a datagram over two nodes", || arrives(0x40) == Some(0x40));

    let nodes = hosts(&myelin, "line").split_off(2);
    for node in &nodes {
        assert!(is_alive(&node["agent"]["pid"]));
        let path = node["cgroup"].as_str().unwrap();
        assert!(groups_of(&node["agent"]["pid"]).contains(path), "{node}");
    }
    let allowed = format!("/proc/{}/status", nodes[1]["agent"]["pid"]);
    let allowed = std::fs::read_to_string(allowed).unwrap();
    assert!(allowed.contains("Cpus_allowed_list:\t0\n"), "{allowed}");
    let details = myelin.run_ok(&["ps", &line]);
    assert!(details.contains("agent "), "{details}");

    // Both nodes run a chain of the same name; the functions stay under the groups of their nodes.
    for node in ["n1", &*format!("{line}/n2")] {
        assert!(
            myelin
                .run_ok(&["--node", node, "ps"])
                .contains("no chain runs"),
            "{node}"
        );
        up(&myelin, &["--node", node], ON_NODE);
    }
    wait_for("a datagram that two functions have changed back", || {
        arrives(0x40) == Some(0x40)
            && ["n1", "n2"].iter().all(|node| {
                let chains = myelin.run_json(&["--node", node, "ps", "--json"]);
                chains[0]["account"]["packets_out"].as_u64() > Some(0)
            })
    });
    let name = myelin.chain_name("local");
    myelin.run_ok(&["--node", "n2", "down", &name]);
    wait_for("a changed datagram", || arrives(0x40) == Some(0x41));
    let status = myelin.run_json(&["--node", "n1", "ps", "--json"]);
    let worker = &status[0]["worker"]["pid"];
    let path = nodes[0]["cgroup"].as_str().unwrap();
    let group = path.strip_suffix("/programs").unwrap();
    assert!(groups_of(worker).contains(group), "{}", groups_of(worker));
    assert!(myelin.run_ok(&["ps"]).contains("no chain runs"));

    myelin.run_ok(&["--node", "n1", "down", &name]);
    // The second node has 0.8 of a core, so its work waits for the rest of the core's time.
    let owed = ON_NODE.replace(
        "  ports:",
        "  sla: { rate: 1kpps, burst: 4, latency: 3ms }\n  ports:",
    );
    let owed = owed.replace("@local", "@owed").replace("9000", "9001");
    let owed = owed.replace("mapping: distributed", "mapping: compact");
    let owed = owed
        .replace(", limits: { memory: 64MiB }", "")
        .replace("space: user", "space: kernel");
    up(&myelin, &["--node", "n1"], &owed);
    let file = myelin.write_file(&owed);
    let error = myelin.run_failing(3, &["--node", "n2", "up", file.to_str().unwrap()]);
    assert!(error.contains("is refused"), "{error}");

    let error = myelin.run_failing(2, &["--node", "n9", "ps"]);
    assert!(error.contains("no running topology has a node"), "{error}");
    drop((h1, h2));
    myelin.run_ok(&["down", &line]);
    assert!(nodes.iter().all(|node| !is_alive(&node["agent"]["pid"])));
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn nothing_remains_of_killed_agents() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let line = myelin.chain_name("line");
    up(&myelin, &[], LINE);
    up(&myelin, &["--node", "n1"], ON_NODE);
    let n1 = hosts(&myelin, "line")[2]["agent"]["pid"].clone();
    kill(&n1);
    wait_for("another agent in `ps`", || {
        let agent = &hosts(&myelin, "line")[2]["agent"];
        agent["restarts"] == 1 && is_alive(&agent["pid"])
    });
    let details = myelin.run_ok(&["ps", &line]);
    assert!(details.contains("started anew 1 times"), "{details}");
    // The new agent has removed what the ended one left.
    assert!(
        myelin
            .run_ok(&["--node", "n1", "ps"])
            .contains("no chain runs")
    );
    myelin.run_ok(&["down", &line]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();

    up(&myelin, &[], LINE);
    up(&myelin, &["--node", "n2"], ON_NODE);
    let nodes = hosts(&myelin, "line").split_off(2);
    myelin.kill_agent();
    for node in &nodes {
        kill(&node["agent"]["pid"]);
    }
    let recovered = myelin.run_ok(&["down", "--all"]);
    assert!(recovered.contains("recovered agent of"), "{recovered}");
    myelin.assert_clean();
    for milliseconds in [1, 20, 60, 120] {
        let file = myelin.write_file(LINE);
        myelin.kill_agent_during_up(&file, Duration::from_millis(milliseconds));
    }
}
