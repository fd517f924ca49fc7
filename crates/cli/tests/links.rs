//! Interfaces that change under a running chain: deleted, made again, renamed, down, another MTU or
//! number of queues.

mod common;

use common::chains::{KERNEL, MIXED, USER};
use common::port_chains::{
    assert_untouched, faults, pass_flows, pass_ten, wait_for_fault, wait_until_active,
};
use common::port_pair::PortPair;
use common::{Myelin, sh, skip_unless_root, wait_for};

/// Waits until the agent has taken the chain down, and the chain waits for an interface.
fn wait_until_taken_down(myelin: &Myelin, name: &str) {
    wait_for("the end of the deployment", || {
        let status = myelin.read_status(name);
        status["state"] == "waiting" && status["up_s"] == 0.0
    });
}

#[test]
fn a_chain_is_deployed_again_when_its_interface_is_made_again() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    for (text, name) in [(KERNEL, "k"), (MIXED, "m")] {
        let ports = PortPair::new();
        let file = myelin.write_file(&ports.add_to(text));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        pass_ten(&myelin, &ports, name);
        let first = myelin.read_status(name)["spi"].clone();
        ports.delete_ingress();
        let gone = format!("interface {} (index", ports.ingress);
        wait_for_fault(&myelin, name, "waiting", &gone);
        assert!(faults(&myelin.read_status(name)).contains("is gone"));
        let text = myelin.run_ok(&["ps"]);
        assert!(text.contains("is gone"), "{text}");
        ports.make_ingress();
        let second = wait_until_active(&myelin, name)["spi"].clone();
        assert_ne!(first, second);
        pass_ten(&myelin, &ports, name);
        ports.delete_egress();
        ports.make_egress();
        wait_for("the second redeployment", || {
            myelin.read_status(name)["spi"] != second
        });
        wait_until_active(&myelin, name);
        pass_ten(&myelin, &ports, name);
        myelin.run_ok(&["down", "--all"]);
        assert_untouched(&ports);
    }
    myelin.assert_clean();
}

#[test]
fn a_guarding_chain_drops_its_packets_while_it_waits_for_its_egress() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    for (text, name) in [(KERNEL, "k"), (MIXED, "m")] {
        let ports = PortPair::new();
        let file = myelin.write_file(&ports.add_to(text));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        // Packets for this machine's stack would be counted there: no other chain drops them.
        sh(&format!(
            "ip link set {} name {}n",
            ports.egress, ports.egress
        ));
        sh(&format!("ip link del {}n", ports.egress));
        wait_for_fault(&myelin, name, "waiting", "is gone");
        wait_until_taken_down(&myelin, name);
        ports.send_ten(9000);
        wait_for("ten dropped packets", || {
            myelin.read_status(name)["account"]["lost"]["door"] == 10
        });
        // A new ingress is guarded before the egress is back.
        ports.delete_ingress();
        ports.make_ingress();
        wait_for("the guard of the new ingress", || {
            sh(&format!("ip link show {}", ports.ingress)).contains("PROMISC")
        });
        // The interface is promiscuous some milliseconds before its front door drops packets.
        wait_for("dropped packets at the new ingress", || {
            ports.send_ten(9000);
            myelin.read_status(name)["account"]["lost"]["door"].as_u64() >= Some(20)
        });
        ports.make_egress();
        wait_until_active(&myelin, name);
        pass_ten(&myelin, &ports, name);
        myelin.run_ok(&["down", "--all"]);
        assert_untouched(&ports);
        // `down` removes a guard too.
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        ports.delete_egress();
        wait_until_taken_down(&myelin, name);
        myelin.run_ok(&["down", &myelin.chain_name(name)]);
        myelin.expect_chains(0);
        ports.make_egress();
        assert_untouched(&ports);
        myelin.run_ok(&["down", "--all"]);
    }
    myelin.assert_clean();
}

#[test]
fn a_failed_redeployment_is_reported_and_tried_again() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let ports = PortPair::new();
    let file = myelin.write_file(&ports.add_to(USER));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    ports.delete_ingress();
    wait_for_fault(&myelin, "u", "waiting", "is gone");
    ports.make_ingress_with("mtu 9000");
    wait_for_fault(&myelin, "u", "waiting", "has an MTU of 9000");
    let error = myelin.run_failing(1, &["probe", &myelin.chain_name("u")]);
    assert!(error.contains("waits for its interfaces"), "{error}");
    sh(&format!("ip link set {} mtu 1500", ports.ingress));
    wait_until_active(&myelin, "u");
    pass_ten(&myelin, &ports, "u");
    // `up` deploys a waiting chain that the user changed, and `down` removes one.
    ports.delete_ingress();
    wait_for_fault(&myelin, "u", "waiting", "is gone");
    ports.make_ingress_with("mtu 9000");
    wait_for_fault(&myelin, "u", "waiting", "has an MTU of 9000");
    let in_kernel = ports.add_to(&USER.replace("space: user", "space: kernel"));
    let in_kernel = myelin.write_file(&in_kernel);
    myelin.run_ok(&["up", in_kernel.to_str().unwrap()]);
    assert_eq!(myelin.expect_chains(1)[0]["state"], "active");
    pass_ten(&myelin, &ports, "u");
    ports.delete_ingress();
    wait_for_fault(&myelin, "u", "waiting", "is gone");
    myelin.run_ok(&["down", &myelin.chain_name("u")]);
    myelin.expect_chains(0);
    ports.make_ingress();
    myelin.run_ok(&["down", "--all"]);
    assert_untouched(&ports);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn chains_of_both_directions_return_from_another_namespace_with_their_interface() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let ports = PortPair::new();
    let functions =
        "[ { name: a, kind: firewall, space: kernel }, { name: b, kind: monitor, space: user } ]";
    let file = myelin.write_file(&ports.both_ways(functions, ""));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let spis = || ["there", "back"].map(|name| myelin.read_status(name)["spi"].clone());
    let first = spis();
    let index = || sh(&format!("cat /sys/class/net/{}/ifindex", ports.ingress));
    let before = index();
    // The interface keeps its index, and its programs and sockets end.
    let client = ports.open_client();
    let client = client.name().unwrap();
    sh(&format!(
        "ip link set {one} netns {client}
         ip netns exec {client} ip link set {one} netns {pid}
         ip link set {one} up",
        one = ports.ingress,
        pid = std::process::id()
    ));
    assert_eq!(index(), before);
    wait_for("both redeployments", || {
        let now = spis();
        now[0] != first[0] && now[1] != first[1]
    });
    for name in ["there", "back"] {
        wait_until_active(&myelin, name);
    }
    pass_ten(&myelin, &ports, "there");
    let status = myelin.read_status("there");
    assert_eq!(
        status["worker"]["pid"],
        myelin.read_status("back")["worker"]["pid"]
    );
    myelin.run_ok(&["down", "--all"]);
    assert_untouched(&ports);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn ps_shows_the_present_name_of_an_interface_and_whether_it_is_down() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let ports = PortPair::new();
    let file = myelin.write_file(&ports.add_to(MIXED));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let spi = myelin.read_status("m")["spi"].clone();
    let (old, new) = (&ports.ingress, format!("{}n", ports.ingress));
    sh(&format!("ip link set {old} down"));
    wait_for_fault(&myelin, "m", "waiting", "is down: set it up with `ip link");
    sh(&format!(
        "ip link set {old} name {new}; ip link set {new} up"
    ));
    wait_for("the new name", || {
        myelin.read_status("m")["ingress"] == new.as_str()
    });
    wait_until_active(&myelin, "m");
    pass_ten(&myelin, &ports, "m");
    // Another link gets the old name, and the chain stays.
    sh(&format!(
        "ip link add {old} type bridge; ip link set {old} up"
    ));
    sh(&format!("ip link set {new} down"));
    wait_for_fault(&myelin, "m", "waiting", &format!("interface {new}"));
    sh(&format!("ip link set {new} up"));
    let status = wait_until_active(&myelin, "m");
    assert_eq!(status["spi"], spi, "the chain was deployed again");
    pass_ten(&myelin, &ports, "m");
    myelin.run_ok(&["down", "--all"]);
    let show = |name: &str| sh(&format!("ip -d link show {name}"));
    for name in [old, &new] {
        assert!(!show(name).contains("PROMISC"), "{}", show(name));
    }
    sh(&format!("ip link del {old}"));
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn ps_says_that_the_mtu_exceeds_the_limit_of_the_chain() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let ports = PortPair::new();
    let file = myelin.write_file(&ports.add_to(USER));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    sh(&format!("ip link set {} mtu 9000", ports.ingress));
    wait_for_fault(&myelin, "u", "active", "the MTU is now 9000, above 3400");
    pass_ten(&myelin, &ports, "u");
    sh(&format!("ip link set {} mtu 1500", ports.ingress));
    wait_until_active(&myelin, "u");
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn packets_of_added_receive_queues_pass_a_chain_in_user_space() {
    if skip_unless_root() || common::skip_without("ethtool") {
        return;
    }
    let myelin = Myelin::new_shared();
    let ports = PortPair::new();
    let file = myelin.write_file(&ports.add_to(USER));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    // A veth uses one queue of those that it has for each CPU.
    let client = ports.open_client();
    sh(&format!(
        "ethtool -L {} rx 2; ip netns exec {} ethtool -L eth0 tx 2",
        ports.ingress,
        client.name().unwrap()
    ));
    pass_flows(&ports);
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn a_deleted_entry_link_is_made_again() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let ports = PortPair::new();
    let file = myelin.write_file(&ports.add_to(USER));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    pass_ten(&myelin, &ports, "u");
    let first = myelin.read_status("u")["spi"].clone();
    let entry_links = myelin.list_journaled_links();
    assert_eq!(entry_links.len(), 1, "{entry_links:?}");
    sh(&format!("ip link del {}", entry_links[0]));
    wait_for("the redeployment", || {
        myelin.read_status("u")["spi"] != first
    });
    wait_until_active(&myelin, "u");
    pass_ten(&myelin, &ports, "u");
    let log = myelin.read_agent_log();
    assert!(log.contains("the entry link of interface"), "{log}");
    myelin.run_ok(&["down", "--all"]);
    assert_untouched(&ports);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn a_deleted_link_of_an_end_host_is_reported() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    let file = myelin.write_file(KERNEL);
    let file = file.to_str().unwrap();
    myelin.run_ok(&["up", file]);
    let status = myelin.read_status("k");
    sh(&format!(
        "ip link del {}",
        status["egress"].as_str().unwrap()
    ));
    wait_for_fault(
        &myelin,
        "k",
        "waiting",
        "with `myelin down` and `myelin up`",
    );
    myelin.run_ok(&["down", &myelin.chain_name("k")]);
    myelin.run_ok(&["up", file]);
    wait_until_active(&myelin, "k");
    assert_eq!(myelin.probe("k", 64, 10)["lost"], 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn down_removes_a_chain_whose_interface_is_gone() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new_shared();
    for (text, name) in [(KERNEL, "k"), (MIXED, "m")] {
        let ports = PortPair::new();
        let file = myelin.write_file(&ports.add_to(text));
        let file = file.to_str().unwrap();
        myelin.run_ok(&["up", file]);
        ports.delete_ingress();
        wait_for_fault(&myelin, name, "waiting", "is gone");
        // An unrelated link has the old name, and is down.
        sh(&format!("ip link add {} type bridge", ports.ingress));
        wait_for_fault(&myelin, name, "waiting", "is down");
        myelin.run_ok(&["down", &myelin.chain_name(name)]);
        assert_untouched(&ports);
        sh(&format!("ip link del {}", ports.ingress));
        // The interface goes while the chain goes.
        ports.make_ingress();
        myelin.run_ok(&["up", file]);
        std::thread::scope(|scope| {
            scope.spawn(|| sh(&format!("ip link del {}", ports.ingress)));
            let mut down = myelin.command(&["down", &myelin.chain_name(name)]);
            assert!(down.status().unwrap().success());
        });
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}
