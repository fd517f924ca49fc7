use super::*;

fn link(index: u32, name: &str) -> LinkState {
    LinkState {
        index,
        name: name.to_owned(),
        is_up: true,
        has_carrier: true,
        mtu: 1500,
        queues: 1,
    }
}

fn port(index: u32, name: &str) -> PortView {
    PortView {
        named: Some(name.to_owned()),
        deployed: link(index, name),
        was_removed: false,
        now: Some(link(index, name)),
        namesake: Some(link(index, name)),
        limits_mtu: false,
        needs_all_queues: false,
        bounds_mtu: false,
    }
}

fn ports() -> [PortView; 2] {
    [port(5, "in"), port(6, "out")]
}

/// Returns the only fault, which must contain these words.
fn expect_fault(links: &ChainLinks, words: &[&str]) {
    assert_eq!(links.faults.len(), 1, "{links:?}");
    for word in words {
        assert!(links.faults[0].contains(word), "no `{word}`: {links:?}");
    }
}

#[test]
fn unchanged_interfaces_have_no_fault() {
    let links = judge(&ports(), None);
    let expected = ChainLinks {
        names: vec!["in".to_owned(), "out".to_owned()],
        keeps_ingress: true,
        ..ChainLinks::default()
    };
    assert_eq!(links, expected);
}

#[test]
fn a_chain_is_taken_down_when_an_interface_is_gone_and_keeps_its_ingress_port() {
    for (gone, keeps_ingress) in [(0, false), (1, true)] {
        let mut ports = ports();
        (ports[gone].now, ports[gone].namesake) = (None, None);
        let links = judge(&ports, None);
        assert!(links.is_waiting && links.must_redeploy);
        assert_eq!(links.keeps_ingress, keeps_ingress);
        expect_fault(&links, &["is gone", "set it up", "myelin down"]);
        ports[gone].namesake = Some(link(9, "next"));
        let links = judge(&ports, None);
        assert!(links.is_waiting && links.must_redeploy);
        expect_fault(&links, &["is gone", "(index 9)"]);
    }
}

#[test]
fn an_interface_that_returns_with_its_index_is_another_interface() {
    let mut ports = ports();
    ports[0].was_removed = true;
    let links = judge(&ports, None);
    assert!(links.is_waiting && links.must_redeploy && !links.keeps_ingress);
}

#[test]
fn a_renamed_interface_keeps_its_chain_and_a_stranger_with_the_old_name_gets_none() {
    let mut ports = ports();
    ports[0].now.as_mut().unwrap().name = "new".to_owned();
    for namesake in [None, Some(link(9, "in"))] {
        ports[0].namesake = namesake;
        let links = judge(&ports, None);
        assert_eq!(links.names, ["new", "out"]);
        assert!(links.faults.is_empty() && !links.is_waiting, "{links:?}");
        assert!(!links.must_redeploy);
    }
    // The chain would not find the interface again, and it works.
    ports[0].needs_all_queues = true;
    ports[0].now.as_mut().unwrap().queues = 4;
    let links = judge(&ports, None);
    assert!(!links.must_redeploy && links.faults.len() == 2, "{links:?}");
    assert!(links.faults[1].contains("is now named new"), "{links:?}");
    ports[1].now = None;
    assert!(judge(&ports, None).must_redeploy);
}

#[test]
fn a_chain_waits_while_an_interface_is_down_and_reports_a_lost_carrier() {
    let mut ports = ports();
    ports[1].now.as_mut().unwrap().is_up = false;
    let links = judge(&ports, None);
    assert!(links.is_waiting && !links.must_redeploy);
    expect_fault(&links, &["out (index 6) is down", "ip link set out up"]);
    ports[1].now.as_mut().unwrap().is_up = true;
    ports[1].now.as_mut().unwrap().has_carrier = false;
    let links = judge(&ports, None);
    assert!(!links.is_waiting);
    expect_fault(&links, &["no carrier"]);
    ports[1].deployed.has_carrier = false;
    assert!(judge(&ports, None).faults.is_empty());
}

#[test]
fn a_larger_mtu_is_a_fault_where_longer_packets_are_lost() {
    let mut ports = ports();
    ports[0].now.as_mut().unwrap().mtu = 9000;
    assert!(judge(&ports, None).faults.is_empty());
    ports[0].bounds_mtu = true;
    expect_fault(&judge(&ports, None), &["now 9000", "admitted for 1500"]);
    ports[0].limits_mtu = true;
    let links = judge(&ports, None);
    assert!(!links.is_waiting && !links.must_redeploy);
    expect_fault(&links, &["now 9000", "above 3400", "mtu 1500"]);
    ports[0].now.as_mut().unwrap().mtu = 2000;
    expect_fault(&judge(&ports, None), &["now 2000", "deployed for 1500"]);
}

#[test]
fn a_chain_with_sockets_is_deployed_again_for_more_queues() {
    let mut ports = ports();
    ports[0].now.as_mut().unwrap().queues = 4;
    assert!(!judge(&ports, None).must_redeploy);
    ports[0].needs_all_queues = true;
    let links = judge(&ports, None);
    assert!(!links.is_waiting && links.must_redeploy && !links.keeps_ingress);
    expect_fault(&links, &["4 receive queues", "sockets at 1"]);
}

#[test]
fn a_missing_internal_link_is_made_again_only_between_named_interfaces() {
    let mut ports = ports();
    let links = judge(&ports, Some("the entry link of in".to_owned()));
    assert!(links.is_waiting && links.must_redeploy);
    expect_fault(
        &links,
        &["the entry link of in is gone", "deploys the chain"],
    );
    for port in &mut ports {
        port.named = None;
    }
    let links = judge(&ports, Some("link my7".to_owned()));
    assert!(links.is_waiting && !links.must_redeploy);
    expect_fault(&links, &["myelin down"]);
}

#[test]
fn a_waiting_chain_names_each_missing_interface() {
    let mut down = link(9, "out");
    down.is_up = false;
    let ports = [("in".to_owned(), None), ("out".to_owned(), Some(down))];
    let faults = judge_waiting(&ports, [5, 6]);
    assert!(
        faults[0].contains("in (index 5) is gone") && faults[1].contains("out (index 9) is down")
    );
    let there = ["in", "out"].map(|name| (name.to_owned(), Some(link(7, name))));
    assert_eq!(judge_waiting(&there, [5, 6]), Vec::<String>::new());
}
