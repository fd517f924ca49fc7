//! Receive queues that an interface gets while a chain runs. The front door is at the interface, as
//! at a network card.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::port_pair::PortPair;
use common::{Myelin, sh, skip_unless_root, skip_without, wait_for};
use myelin_agent::{Engine, UpOptions};
use myelin_api::{ChainSource, ChainState, RunDir};

const PATIENCE: Duration = Duration::from_secs(60);
const CHAIN: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: queues }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions:
    - { name: watch, kind: monitor, space: user }
";

#[test]
fn a_chain_gets_sockets_for_added_receive_queues() {
    if skip_unless_root() || skip_without("ethtool") {
        return;
    }
    // Shares the machine with tests that measure.
    let _machine = Myelin::new_shared();
    let ports = PortPair::new();
    let directory = tempfile::tempdir().unwrap();
    let run_dir = RunDir::resolve(Some(directory.path()));
    let engine = Engine::open(&run_dir, env!("CARGO_BIN_EXE_myelin").into()).unwrap();
    let client = ports.open_client();
    let client = client.name().unwrap();
    sh(&format!("ip netns exec {client} ethtool -K eth0 tx off"));
    engine.declare_links_whole();
    let source = ChainSource {
        name: "queues.yaml".to_owned(),
        text: ports.add_to(CHAIN),
        ..ChainSource::default()
    };
    let up = engine.up(&source, UpOptions::default()).unwrap();
    assert!(!up[0].plan.entry_link);
    sh(&format!(
        "ethtool -L {} rx 2; ip netns exec {client} ethtool -L eth0 tx 2",
        ports.ingress
    ));
    wait_for("a deployment with two queues", || {
        let status = engine.list().remove(0);
        status.spi != up[0].spi && status.state == ChainState::Active
    });
    let bind = || UdpSocket::bind("10.77.0.2:9000").unwrap();
    let server = ports.open_server().enter(bind).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    // The hash of a flow chooses its queue.
    ports.run_on_client(
        "import socket
for i in range(40):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(bytes([i]) * 100, (\"10.77.0.2\", 9000))",
    );
    let mut arrived = Vec::new();
    let mut buffer = [0; 200];
    for _ in 0..40 {
        let length = server.recv(&mut buffer).unwrap();
        assert_eq!(length, 100);
        arrived.push(buffer[0]);
    }
    arrived.sort_unstable();
    assert_eq!(arrived, (0..40).collect::<Vec<u8>>());
    engine.down("queues").unwrap();
    engine.close();
}
