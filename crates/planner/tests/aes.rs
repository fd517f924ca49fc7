//! Tests plans of chains with encryption.

use std::collections::BTreeMap;

use myelin_planner::{Costs, Machine, Plan, plan};
use myelin_spec::{OnFailure, ServiceChain, Source, Space, parse};

const KEY: &str = "5ec2e7005ec2e7005ec2e7005ec2e700";

fn planned(cipher: &str) -> (ServiceChain, Plan) {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: private }}
spec:
  match: {{ protocol: udp }}
  functions:
    - {{ name: cipher, kind: aes-encrypt, config: {{ keyFile: a.key, cipher: {cipher} }} }}
    - {{ name: clear, kind: aes-decrypt, config: {{ keyFile: a.key, cipher: {cipher} }} }}
"
    );
    let files = BTreeMap::from([("a.key".to_owned(), KEY.to_owned())]);
    let chain = parse(&text, &Source::new("private.yaml"), &files)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .remove(0);
    let plan = plan(&chain, &Costs::default(), &Machine::with_end_hosts(2)).unwrap();
    (chain, plan)
}

#[test]
fn encryption_runs_in_user_space_and_drops_on_failure() {
    let (chain, plan) = planned("aes-128-gcm");
    assert!(plan.admitted && plan.warnings.is_empty());
    assert!(plan.hops.iter().all(|hop| hop.space == Space::User));
    assert_eq!(chain.effective_on_failure(), OnFailure::Drop);
}

#[test]
fn ciphers_without_authentication_give_a_warning() {
    let (_, plan) = planned("aes-128-ctr");
    assert_eq!(plan.warnings.len(), 2);
    for (warning, function) in plan.warnings.iter().zip(["`cipher`", "`clear`"]) {
        assert!(warning.contains("authenticates nothing") && warning.contains(function));
    }
}

#[test]
fn plans_and_debug_output_contain_no_key() {
    let (chain, plan) = planned("aes-128-gcm");
    let outputs = [
        serde_json::to_string(&plan).unwrap(),
        format!("{plan:?}"),
        format!("{chain:?}"),
    ];
    for text in outputs {
        assert!(!text.contains("5ec2"), "{text}");
        // The bytes as a list of numbers: 0x5e, 0xc2, 0xe7.
        assert!(!text.contains("94, 194"), "{text}");
    }
}
