//! The contract of a chain over nodes.

use serde_json::Value;

use super::lab::{Lab, file};
use crate::common::conformance::Monitor;
use crate::common::{skip_unless_root, wait_for};

/// Each node keeps its share of the contract. The sojourn at the last node is that of the whole.
#[test]
fn a_contract_holds_from_the_first_node_to_the_last() {
    if skip_unless_root() {
        return;
    }
    let text = file(&[1, 2], 2, &[0x01, 0x02]);
    let text = text.replace(
        "  ports:",
        "  sla: { rate: 1kpps, burst: 4, latency: 200ms, loss: 1% }\n  ports:",
    );
    let lab = Lab::up(&text);
    lab.expect(0x40, 0x43);
    let latency = |status: &Value, part: usize| {
        let contract = &status["parts"][part]["sla"]["contract"];
        contract["latency_us"].as_f64().unwrap_or_default()
    };
    wait_for("a judged second of each part", || {
        lab.pass(0x40);
        let status = lab.status();
        [0, 1]
            .iter()
            .all(|part| status["parts"][*part]["sla"]["judged_s"].as_u64() > Some(0))
    });
    let status = lab.status();
    assert!(status["bound_ns"].as_u64() < Some(200_000_000), "{status}");
    assert_eq!(status["sojourn"]["source"], "measured", "{status}");
    assert_eq!(status["parts"][1]["sojourn_from"], 0, "{status}");
    let [first, last] = [0, 1].map(|part| latency(&status, part));
    assert!(first > 0.0 && first < last, "{status}");
    assert!((199_000.0..=200_000.0).contains(&last), "{status}");
    lab.end();
}

/// `conform` at the egress host takes the chain's profile, and counts its packets from the first
/// node to the last.
#[test]
fn conform_judges_the_whole_contract() {
    if skip_unless_root() {
        return;
    }
    let text = file(&[1, 2], 2, &[0x01, 0x02]);
    let text = text.replace(
        "  ports:",
        "  sla: { rate: 1kpps, burst: 64, latency: 2s, loss: 1%, enforce: policer }\n  ports:",
    );
    let lab = Lab::up(&text);
    lab.expect(0x40, 0x43);
    let over = lab.myelin.chain_name("over");
    let arguments = ["--chain", &over, "--tolerance", "1s", "--json"];
    let [kept, early] = [(); 2].map(|()| Monitor::start_chain(&lab.myelin, &arguments));
    for _ in 0..50 {
        assert_eq!(lab.pass(0x40), Some(0x43));
    }
    kept.interrupt();
    let (status, report) = kept.wait_for_report();
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(report["packets"], 50, "{report}");
    assert_eq!(
        report["match"],
        "protocol=17,destination=10.0.0.2,destinationPort=9000"
    );
    let contract = &report["contract"];
    assert_eq!(contract["packets_in"], 50, "{report}");
    assert_eq!(contract["packets_out"], 50, "{report}");
    assert_eq!(contract["loss_percent"], 0.0, "{report}");
    let latency = contract["latency_us"].as_f64().unwrap();
    assert!(latency > 0.0 && latency < 2e6, "{report}");

    // The link to the next node loses what the first node has sent.
    let link = format!("{}/n1-n2", lab.myelin.chain_name("line"));
    lab.myelin.run_ok(&["link", &link, "--down"]);
    for _ in 0..5 {
        lab.send(0x40);
    }
    wait_for("the packets at the first node", || {
        lab.status()["packets_in"].as_u64() >= Some(56)
    });
    early.interrupt();
    let (status, report) = early.wait_for_report();
    assert_eq!(status, Some(5), "{report}");
    assert_eq!(report["conforms"], true, "{report}");
    assert_eq!(report["contract"]["lost"], 5, "{report}");
    lab.end();
}

#[test]
fn conform_refuses_what_is_no_chain_over_nodes() {
    if skip_unless_root() {
        return;
    }
    let lab = Lab::up(&file(&[1], 1, &[0x01]));
    let refuse = |arguments: &[&str], words: &str| {
        let arguments = [&["conform"], arguments].concat();
        let error = lab.myelin.run_failing(2, &arguments);
        assert!(error.contains(words), "{error}");
    };
    refuse(&["--chain", "other"], "no chain over nodes `other` runs");
    let over = lab.myelin.chain_name("over");
    refuse(&["--chain", &over], "has no `sla.rate`");
    refuse(
        &["--chain", &over, "--rate", "1kpps"],
        "cannot be used with",
    );
    let refused = ["eth0", "--rate", "1kpps", "--host", "h7"];
    refuse(&refused, "no host `h7`");
    lab.end();
}

/// A node with a clock of its own compares no time with others: sojourns are added.
#[test]
fn sojourns_of_different_clocks_are_added() {
    if skip_unless_root() {
        return;
    }
    let text = file(&[1, 2, 3], 3, &[0x01, 0x02, 0x04]);
    let text = text
        .replace(
            "nodes: [ n1, n2, n3 ]",
            "nodes: [ n1, { name: n2, clock: own }, n3 ]",
        )
        .replace("ends: [ n1, n2 ]", "ends: [ n1, n2 ], delay: 20ms")
        .replace("ends: [ n2, n3 ]", "ends: [ n2, n3 ], delay: 30ms")
        .replace(
            "  ports:",
            "  sla: { rate: 1kpps, burst: 64, latency: 2s, enforce: policer }\n  ports:",
        );
    let lab = Lab::up(&text);
    lab.expect(0x40, 0x47);
    let status = lab.status();
    let from = |part: usize| status["parts"][part]["sojourn_from"].as_u64();
    assert_eq!([0, 1, 2].map(from), [Some(0), Some(1), Some(2)], "{status}");
    let sojourn = &status["sojourn"];
    assert_eq!(sojourn["source"], "added", "{status}");
    assert_eq!(sojourn["links_ns"], 50_000_000, "{status}");
    // The delays of both links are in no figure.
    assert!(sojourn["p50_us"].as_f64() < Some(50_000.0), "{status}");
    let over = lab.myelin.chain_name("over");
    let details = lab.myelin.run_ok(&["ps", &over]);
    assert!(
        details.contains("added of the figures at n1, n2, n3"),
        "{details}"
    );
    let monitor = Monitor::start_chain(
        &lab.myelin,
        &["--chain", &over, "--tolerance", "1s", "--json"],
    );
    assert_eq!(lab.pass(0x40), Some(0x47));
    monitor.interrupt();
    let (status, report) = monitor.wait_for_report();
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(report["contract"]["latency_source"], "added", "{report}");
    assert!(
        report["contract"]["latency_us"].as_f64() >= Some(50_000.0),
        "{report}"
    );
    lab.end();
}

/// The violation is an event of the whole, with the link that lost the packets. It ends.
fn check_event(lab: &Lab, over: &str) {
    let all = || lab.myelin.run_json(&["events", over, "--json"]);
    // Single datagrams lost before the burst may be a violation of their own.
    let find = |events: &serde_json::Value| {
        let mut events = events.as_array().unwrap().iter();
        let is_burst = |event: &&serde_json::Value| event["lost"].as_u64() > Some(10);
        events.find(is_burst).cloned()
    };
    wait_for("the end of the violation", || {
        find(&all()).is_some_and(|event| event["end"].is_string())
    });
    let events = all();
    let event = find(&events).unwrap();
    assert_eq!(event["chain"], over, "{events}");
    assert_eq!(event["terms"], serde_json::json!(["loss"]), "{events}");
    assert_eq!(event["cause"], "link", "{events}");
    assert_eq!(event["hop"], "links from n1 to n2", "{events}");
    assert!(event["start"].as_str() < event["end"].as_str(), "{events}");
}

/// No part loses a packet, and so each keeps the agreed loss. The link between them loses half.
#[test]
fn the_loss_of_the_whole_is_judged() {
    if skip_unless_root() {
        return;
    }
    let text = file(&[1, 2], 2, &[0x01, 0x02]);
    let text = text
        .replace("ends: [ n1, n2 ]", "ends: [ n1, n2 ], loss: 50%")
        .replace("  ports:", "  sla: { loss: 10% }\n  ports:");
    let lab = Lab::up(&text);
    lab.expect(0x40, 0x43);
    for _ in 0..100 {
        lab.send(0x40);
    }
    wait_for("the loss of the link", || {
        lab.status()["loss"]["lost_on_links"].as_u64() > Some(10)
    });
    let status = lab.status();
    let loss = &status["loss"];
    assert_eq!(loss["state"], "violated", "{status}");
    assert_eq!(loss["lost_in_parts"], 0, "{status}");
    assert!(loss["loss_percent"].as_f64() > Some(10.0), "{status}");
    for part in status["parts"].as_array().unwrap() {
        assert_eq!(part["sla"]["state"], "kept", "{status}");
    }
    let over = lab.myelin.chain_name("over");
    let details = lab.myelin.run_ok(&["ps", &over]);
    assert!(details.contains("of 10 % agreed, violated"), "{details}");
    check_event(&lab, &over);
    lab.end();
}
