//! Chains that cannot keep what they are promised, or would take from others what those were promised, are refused.

mod common;

use common::{Myelin, skip_unless_root};

/// A chain in user space: it may burst so much, within so many us.
fn chain(name: &str, burst: u32, latency_us: u32, more: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @{name} }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}\n  \
         functions: [ {{ name: f, kind: forward, space: user }} ]\n  \
         sla: {{ rate: 1kpps, burst: {burst}, latency: {latency_us}us }}\n{more}"
    )
}

/// A promise that a stall of a busy machine and a slice of the scheduler are well below.
const PATIENT_US: u32 = 900_000;

#[test]
fn a_plan_shows_the_bound_and_what_would_be_admitted() {
    let myelin = Myelin::new();
    let file = myelin.file(&chain("p", 8, PATIENT_US, ""));
    let file = file.to_str().unwrap();
    let plan = myelin.json(&["plan", file, "--json"])[0].clone();
    let bound = &plan["bound"];
    let ns = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{plan}"));
    assert!(
        ns(&bound["bound_ns"]) <= ns(&bound["paper_sum_ns"]),
        "{bound}"
    );
    let shares: u64 = bound["hops"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hop| ns(&hop["share_ns"]))
        .sum();
    assert_eq!(shares + ns(&bound["latency_ns"]), ns(&bound["bound_ns"]));
    let text = myelin.ok(&["plan", "-v", file]);
    assert!(
        text.contains("worst case ") && text.contains("the worker on core "),
        "{text}"
    );

    let hasty = myelin.file(&chain("h", 1000, 900, ""));
    let hasty = hasty.to_str().unwrap();
    myelin.fails(3, &["plan", hasty]);
    let output = myelin.run(&["plan", hasty, "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan[0]["admitted"], false);
    let refusal = plan[0]["refusal"].as_str().unwrap();
    assert!(refusal.starts_with("the worst-case bound of "), "{refusal}");
    let remedies = plan[0]["remedies"].to_string();
    assert!(remedies.contains("`latency: "), "{remedies}");
}

#[test]
fn up_refuses_what_cannot_be_kept_and_deploys_it_by_force_as_best_effort() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let hasty = myelin.file(&chain("h", 1000, 900, ""));
    let hasty = hasty.to_str().unwrap();
    myelin.fails(3, &["run", hasty, "--count", "1", "--repeats", "1"]);
    let error = myelin.fails(3, &["up", hasty]);
    assert!(
        error.contains("is refused: the worst-case bound of ")
            && error.contains("it would be admitted with "),
        "{error}"
    );
    let place = format!("{hasty}:7:3: chain `");
    assert!(error.contains(&place), "{place} in {error}");
    assert_eq!(myelin.json(&["ps", "--json"]).as_array().unwrap().len(), 0);
    let up = myelin.json(&["up", hasty, "--force", "--json"]);
    assert_eq!(up[0]["plan"]["best_effort"], true);
    assert_eq!(up[0]["plan"]["admitted"], false);
    assert_eq!(myelin.status("h")["best_effort"], true);
    // A narrow table breaks between the words.
    let table = myelin.ok(&["ps"]);
    assert!(
        table.contains("best") && table.contains("effort"),
        "{table}"
    );
    assert_eq!(myelin.probe("h", 256, 100)["lost"], 0);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_promise_stands_when_another_chain_wants_the_same_core() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    // Two processes on one core take turns of milliseconds, far more than this chain leaves to others.
    let first = myelin.file(&chain("a", 8, PATIENT_US, ""));
    let up = myelin.json(&["up", first.to_str().unwrap(), "--json"]);
    let bound_us = up[0]["plan"]["bound"]["bound_ns"]
        .as_u64()
        .unwrap()
        .div_ceil(1000);
    assert_eq!(
        myelin.status("a")["bound_ns"],
        up[0]["plan"]["bound"]["bound_ns"]
    );
    // A live change to a promise that leaves hardly more than what it takes.
    let tight = myelin.file(&chain("a", 8, bound_us as u32 + 1000, ""));
    let changed = myelin.json(&["up", tight.to_str().unwrap(), "--json"]);
    assert_eq!(changed[0]["change"], "changed");

    let second = myelin.file(&chain("b", 8, PATIENT_US, ""));
    let second = second.to_str().unwrap();
    let error = myelin.fails(3, &["up", second]);
    assert!(error.contains("the promise to chain `"), "{error}");
    // What nothing holds to a rate is kept away as well.
    let free = chain("c", 8, PATIENT_US, "").replace("sla:", "# sla:");
    let free = myelin.file(&free);
    let error = myelin.fails(3, &["up", free.to_str().unwrap()]);
    assert!(error.contains("the promise to chain `"), "{error}");
    // A change that is refused leaves the ledger as it was.
    let wide = myelin.file(&chain("a", 8000, bound_us as u32 + 1000, ""));
    myelin.fails(3, &["up", wide.to_str().unwrap()]);
    assert!(
        myelin
            .fails(3, &["up", second])
            .contains("the promise to chain `")
    );
    myelin.ok(&["down", &myelin.chain("a")]);
    myelin.ok(&["up", second]);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}
