//! Chains on existing interfaces (`spec.ports`), of one owner and of several.

mod common;

use common::chains::{KERNEL, MIXED};
use common::port_pair::PortPair;
use common::{Myelin, skip_unless_root, wait_for};

#[test]
fn down_restores_the_interfaces_of_a_chain() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let before = ports.show_links();
    let file = myelin.write_file(&ports.add_to(KERNEL));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    ports.send_ten(9000);
    wait_for("ten packets", || {
        myelin.read_status("k")["packets_out"] == 10
    });
    assert_eq!(myelin.read_status("k")["packets_out"], 10);
    assert!(
        ports.show_links().contains("PROMISC"),
        "the port must receive frames for the address of the next hop"
    );
    let error = myelin.run_failing(1, &["probe", &myelin.chain_name("k")]);
    assert!(error.contains("spec.ports"), "{error}");
    myelin.run_ok(&["down", "--all"]);
    assert_eq!(ports.show_links(), before);
    // `down --all` also restores the interfaces after a killed agent.
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    myelin.kill_agent();
    myelin.run_ok(&["down", "--all"]);
    assert_eq!(ports.show_links(), before);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn chains_of_one_owner_share_port_and_worker_and_another_owner_is_distributed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let one = ports.add_to(MIXED);
    let other = one
        .replace("@m", "@n")
        .replace("10.77.0.2/32 }", "10.77.0.2/32, destinationPort: 9001 }");
    let file = myelin.write_file(&format!("{one}---{other}"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert_eq!(
        myelin.read_status("m")["worker"]["pid"],
        myelin.read_status("n")["worker"]["pid"]
    );
    // The more specific match has precedence.
    for (port, name) in [(9000, "m"), (9001, "n")] {
        ports.send_ten(port);
        wait_for("ten packets", || {
            myelin.read_status(name)["packets_out"] == 10
        });
        assert_eq!(myelin.read_status(name)["packets_out"], 10, "{name}");
    }
    let other_owner_chain = other
        .replace("@n", "@o")
        .replace("metadata: {", "metadata: { namespace: other-owner,")
        .replace("9001", "9002");
    let file = myelin.write_file(&other_owner_chain.replace("spec:", "spec:\n  mapping: compact"));
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    assert!(
        error.contains(&ports.ingress) && error.contains("owner") && error.contains("distributed"),
        "{error}"
    );
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        2
    );
    let up = myelin.run_json(&[
        "up",
        myelin.write_file(&other_owner_chain).to_str().unwrap(),
        "--json",
    ]);
    assert_eq!(up[0]["plan"]["mapping"], "distributed", "{up}");
    let why = up[0]["plan"]["mapping_why"].as_str().unwrap();
    assert!(why.contains("owners share no UMEM"), "{why}");
    let other_worker = myelin.read_status("o")["worker"]["pid"].clone();
    assert!(other_worker.is_number() && other_worker != myelin.read_status("m")["worker"]["pid"]);
    ports.send_ten(9002);
    wait_for("ten packets", || {
        myelin.read_status("o")["packets_out"] == 10
    });
    assert_eq!(myelin.read_status("o")["packets_out"], 10);
    assert_eq!(
        myelin.read_status("m")["packets_out"],
        10,
        "a chain received packets of another owner"
    );
    myelin.run_ok(&["down", &myelin.chain_name("o")]);
    // The removal of one chain leaves the other.
    myelin.run_ok(&["down", &myelin.chain_name("m")]);
    ports.send_ten(9001);
    wait_for("ten more packets", || {
        myelin.read_status("n")["packets_out"] == 20
    });
    assert_eq!(myelin.read_status("n")["packets_out"], 20);
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn another_owner_may_use_a_port_after_its_last_chain_is_removed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let (ports, other_ports) = (PortPair::new(), PortPair::new());
    let first_chain = ports.add_to(MIXED);
    // The second chain keeps the worker of the owner alive.
    let second_chain = other_ports.add_to(MIXED).replace("@m", "@n");
    let file = myelin.write_file(&format!("{first_chain}---{second_chain}"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let worker = myelin.read_status("n")["worker"]["pid"].clone();
    assert_eq!(myelin.read_status("m")["worker"]["pid"], worker);
    let other_owner_chain = first_chain
        .replace("@m", "@o")
        .replace("metadata: {", "metadata: { namespace: other-owner,")
        .replace("spec:", "spec:\n  mapping: compact");
    let other_owner_chain = myelin.write_file(&other_owner_chain);
    let error = myelin.run_failing(1, &["up", other_owner_chain.to_str().unwrap()]);
    assert!(error.contains(&ports.ingress), "{error}");
    myelin.run_ok(&["down", &myelin.chain_name("m")]);
    myelin.run_ok(&["up", other_owner_chain.to_str().unwrap()]);
    assert_ne!(myelin.read_status("o")["worker"]["pid"], worker);
    for (ports, name) in [(&ports, "o"), (&other_ports, "n")] {
        ports.send_ten(9000);
        wait_for("ten packets", || {
            myelin.read_status(name)["packets_out"] == 10
        });
        assert_eq!(myelin.read_status(name)["packets_out"], 10, "{name}");
    }
    // The same worker of the first owner binds to the port again.
    myelin.run_ok(&["down", &myelin.chain_name("o")]);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert_eq!(myelin.read_status("m")["worker"]["pid"], worker);
    ports.send_ten(9000);
    wait_for("ten packets", || {
        myelin.read_status("m")["packets_out"] == 10
    });
    assert_eq!(myelin.read_status("m")["packets_out"], 10);
    myelin.run_ok(&["down", "--all"]);
    drop((ports, other_ports));
    myelin.assert_clean();
}
