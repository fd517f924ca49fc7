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
