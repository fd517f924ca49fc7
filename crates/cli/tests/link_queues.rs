//! Receive queues that an interface gets while a chain runs. The front door is at the interface, as
//! at a network card.

mod common;

use common::chains::USER;
use common::port_chains::pass_flows;
use common::port_pair::PortPair;
use common::{Myelin, sh, skip_unless_root, skip_without, wait_for};
use myelin_agent::{Engine, UpOptions};
use myelin_api::{ChainSource, ChainState, RunDir};

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
        text: ports.add_to(&USER.replace("@u", "queues")),
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
    pass_flows(&ports);
    engine.down("queues").unwrap();
    engine.close();
}
