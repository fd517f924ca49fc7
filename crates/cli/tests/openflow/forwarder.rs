//! Open vSwitch as a service function forwarder between nodes, and as a classifier in front of one.

use std::net::UdpSocket;
use std::time::Instant;

use myelin_linux::netns::Netns;
use serde_json::Value;

use super::common::{Myelin, repository_root, sh, skip_unless_root, skip_without, wait_for};
use super::{assert_silent, bind_in};

/// The key of all functions of the example.
const KEY: u8 = 0x20;
const SENT: u8 = b'A';

/// The example `open-vswitch-forwarder.yaml`, with its parts behind the switch.
struct Lab {
    myelin: Myelin,
    h1: UdpSocket,
    h3: UdpSocket,
    /// The ports of h2: of the chain, of the paths that the switch classifies, of no chain.
    h2: [UdpSocket; 3],
}

impl Lab {
    fn up() -> Self {
        let myelin = Myelin::new();
        let example = |name: &str| {
            let file = repository_root().join("examples").join(name);
            file.to_str().unwrap().to_owned()
        };
        myelin.run_ok(&["up", &example("open-vswitch-forwarder.yaml")]);
        let classified = example("openflow/classified.yaml");
        myelin.run_ok(&["--node", "n2", "up", &classified]);
        let bind = |host: &str, address: &str| {
            let netns = Netns::open(&format!("myelin-forwarder-{host}")).unwrap();
            bind_in(&netns, address)
        };
        let at_h2 = |port: u16| bind("h2", &format!("10.0.0.2:{port}"));
        Self {
            h1: bind("h1", "10.0.0.1:0"),
            h3: bind("h3", "10.0.0.3:0"),
            h2: [9000, 9001, 9002].map(at_h2),
            myelin,
        }
    }

    /// Gives the switch the flows of the example.
    fn give_flows(&self) {
        let script = repository_root().join("examples/openflow/forwarder");
        let myelin = self.myelin.command(&[]);
        sh(&format!(
            "MYELIN={} MYELIN_RUN_DIR={} {}",
            myelin.get_program().to_str().unwrap(),
            self.myelin.run_dir().display(),
            script.display()
        ));
    }

    fn ofctl(&self, command: &str) -> String {
        let directory = self.myelin.run_dir().join("forwarder.openflow");
        let (name, flow) = command.split_once(' ').unwrap_or((command, ""));
        sh(&format!(
            "cd {} && OVS_RUNDIR=. ovs-ofctl -O OpenFlow13 {name} unix:s1.mgmt '{flow}'",
            directory.display()
        ))
    }

    /// Packets that took the flow whose description contains `text`.
    fn packets_of_flow(&self, text: &str) -> u64 {
        let flows = self.ofctl("dump-flows");
        let mut lines = flows.lines();
        let flow = lines.find(|line| line.contains(text));
        let flow = flow.unwrap_or_else(|| panic!("{text}: {flows}"));
        let (_, rest) = flow.split_once("n_packets=").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    }

    /// The status of a part behind the switch.
    fn part(&self, name: &str) -> Value {
        let list = self.myelin.run_json(&["--node", "n2", "ps", "--json"]);
        let mut chains = list.as_array().unwrap().iter();
        chains.find(|chain| chain["chain"] == name).unwrap().clone()
    }
}

/// Sends a byte to a socket; returns the byte that arrives.
fn pass(from: &UdpSocket, to: &UdpSocket) -> Option<u8> {
    let mut byte = [0; 8];
    let _ = from.send_to(&[SENT], to.local_addr().unwrap());
    to.recv(&mut byte).ok().map(|_| byte[0])
}

fn expect(from: &UdpSocket, to: &UdpSocket, byte: u8) {
    wait_for("a datagram that the functions changed", || {
        pass(from, to) == Some(byte)
    });
}

#[test]
fn open_vswitch_forwards_by_path_and_classifies() {
    if skip_unless_root() || skip_without("ovs-vswitchd") {
        return;
    }
    let started = Instant::now();
    let lab = Lab::up();
    let [chained, classified, plain] = &lab.h2;
    // The switch has no flows.
    for to in [chained, plain] {
        assert_silent(&lab.h1, to);
    }
    lab.give_flows();
    expect(&lab.h1, chained, SENT ^ KEY);
    assert!(lab.packets_of_flow("dec_nsh_ttl") > 0);
    // Frames of others pass unchanged.
    expect(&lab.h1, plain, SENT);
    expect(&lab.h3, plain, SENT);

    // The switch classifies. Its frames have no stamp: the node stamps them at arrival.
    expect(&lab.h3, classified, SENT ^ KEY);
    let part = lab.part("from-the-switch");
    let count = |key: &str| part["part"][key].as_u64().unwrap();
    assert!(count("received") > 0, "{part}");
    assert_eq!(count("stamped"), 0, "{part}");
    let longest = part["sojourn"]["p99_us"].as_f64().unwrap();
    assert!(longest < started.elapsed().as_secs_f64() * 1e6, "{part}");

    // The switch takes the headers off what the node sends back.
    expect(classified, &lab.h3, SENT ^ KEY);
    assert!(lab.packets_of_flow("decap()") > 0);
    let part = lab.part("to-the-switch");
    assert!(part["part"]["sent"].as_u64().unwrap() > 0, "{part}");

    // The path decides: with the flow of another path, the frames of this one pass no more.
    let whole = lab.myelin.run_json(&["ps", "over-the-switch", "--json"]);
    let path = whole["path"].as_u64().unwrap();
    lab.ofctl("add-flow priority=15,dl_type=0x894f,actions=drop");
    expect(&lab.h1, chained, SENT ^ KEY);
    lab.ofctl(&format!(
        "mod-flows dl_type=0x894f,nsh_spi={path},nsh_si=254,actions=drop"
    ));
    assert_silent(&lab.h1, chained);
    expect(&lab.h1, plain, SENT);
    let Lab { myelin, .. } = lab;
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
