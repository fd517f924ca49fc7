//! `myelin ps --flows`: the flow tables of functions.

mod common;

use common::{Myelin, skip_unless_root};
use serde_json::Value;

/// Formats a chain and its reverse chain with all functions in one space.
fn format_chain_pair(space: &str, more: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @f }}
spec:
  match: {{ protocol: udp }}
  reverse: @b
  functions:
    - {{ name: before, kind: monitor, space: {space}, config: {{ flows: 64 }} }}
    - {{ name: clock, kind: timestamp, space: {space} }}
    - {{ name: after, kind: monitor, space: {space} }}
    - {{ name: connections, kind: flow-tracker, space: {space} }}{more}
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @b }}
spec:
  match: {{ protocol: udp }}
  reverse: @f
  functions:
    - {{ name: answers, kind: flow-tracker, config: {{ reverseOf: connections }} }}
"
    )
}

fn assert_probe_loses_nothing(myelin: &Myelin) {
    let row = myelin.probe("f", 200, 50);
    assert_eq!(row["lost"], 0, "{row}");
}

/// Returns the only flow of a function, and the entry of the function.
fn find_only_flow(all: &Value, function: &str) -> (Value, Value) {
    let found = all
        .as_array()
        .expect("the JSON is a list")
        .iter()
        .find(|entry| entry["function"] == function)
        .unwrap_or_else(|| panic!("no {function} in {all}"));
    assert_eq!(found["flows"].as_array().unwrap().len(), 1, "{found}");
    (found["flows"][0].clone(), found.clone())
}

fn read_count(value: &Value) -> u64 {
    value.as_u64().expect("the text is a number")
}

#[test]
fn ps_flows_shows_flows_of_both_spaces_before_and_after_a_live_change() {
    if skip_unless_root() {
        return;
    }
    for space in ["kernel", "user"] {
        let myelin = Myelin::new();
        let file = myelin.write_file(&format_chain_pair(space, ""));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        assert_probe_loses_nothing(&myelin);
        let chain = myelin.chain_name("f");
        let flows = myelin.run_json(&["ps", &chain, "--flows", "--json"]);
        // `answers` and `connections` share one table, so `ps` shows the table once.
        let functions: Vec<&str> = flows
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["function"].as_str().unwrap())
            .collect();
        assert_eq!(functions, ["before", "after", "connections"], "{space}");
        assert_eq!(
            myelin
                .run_json(&["ps", "--flows", "--json"])
                .as_array()
                .unwrap()
                .len(),
            3
        );
        let (before, _) = find_only_flow(&flows, "before");
        let (after, _) = find_only_flow(&flows, "after");
        let (tracked, function) = find_only_flow(&flows, "connections");
        let packets = read_count(&before["packets"]);
        assert!(packets >= 50, "{flows}");
        assert_eq!(read_count(&after["packets"]), packets);
        assert_eq!(
            read_count(&after["bytes"]),
            read_count(&before["bytes"]) + 16 * packets,
            "the clock appends 16 bytes"
        );
        assert_eq!(tracked["state"], "established", "{tracked}");
        assert_eq!(tracked["packets"], tracked["reply_packets"]);
        assert_eq!(tracked["source"], "10.0.0.1");
        assert_eq!(function["space"], space);
        assert_eq!(
            (
                read_count(&function["begun"]),
                read_count(&function["evicted"])
            ),
            (1, 0)
        );
        let table = myelin.run_ok(&["ps", "--flows"]);
        assert!(table.contains("established"), "{table}");

        let more = format!("\n    - {{ name: further, kind: forward, space: {space} }}");
        let file = myelin.write_file(&format_chain_pair(space, &more));
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        assert_probe_loses_nothing(&myelin);
        let flows = myelin.run_json(&["ps", &chain, "--flows", "--json"]);
        let (before, function) = find_only_flow(&flows, "before");
        assert_eq!(read_count(&function["begun"]), 1, "{space}: {function}");
        assert!(
            read_count(&before["packets"]) >= packets + 50,
            "{space}: {before}"
        );
        myelin.run_ok(&["down", "--all"]);
        myelin.assert_clean();
    }
}

#[test]
fn ps_flows_says_that_no_function_keeps_flows() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    assert_eq!(
        myelin.run_json(&["ps", "--flows", "--json"]),
        Value::Array(vec![])
    );
    let error = myelin.run_failing(1, &["ps", "missing", "--flows"]);
    assert!(error.contains("no chain `missing` runs"), "{error}");
    let table = myelin.run_ok(&["ps", "--flows"]);
    assert!(table.contains("no function keeps flows"), "{table}");
}
