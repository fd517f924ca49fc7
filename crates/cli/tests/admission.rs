//! Admission refuses a chain whose contract this machine cannot keep, and a chain that would break
//! the contract of a running chain.

mod common;

use common::{Myelin, skip_unless_root};

/// Formats a chain of one user function. `burst` is in packets, `latency_us` in us.
fn format_chain(name: &str, burst: u32, latency_us: u32, more: &str) -> String {
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: @{name} }}\nspec:\n  \
         match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}\n  \
         functions: [ {{ name: f, kind: forward, space: user }} ]\n  \
         sla: {{ rate: 1kpps, burst: {burst}, latency: {latency_us}us }}\n{more}"
    )
}

/// Longer than a stall of a busy machine and than a time slice of the scheduler.
const LONG_LATENCY_US: u32 = 900_000;

#[test]
fn a_plan_shows_the_bound_and_the_remedies_of_a_refused_contract() {
    let myelin = Myelin::new();
    let file = myelin.write_file(&format_chain("p", 8, LONG_LATENCY_US, ""));
    let file = file.to_str().unwrap();
    let plan = myelin.run_json(&["plan", file, "--json"])[0].clone();
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
    let text = myelin.run_ok(&["plan", "-v", file]);
    assert!(
        text.contains("worst case ") && text.contains("the worker on core "),
        "{text}"
    );

    let strict = myelin.write_file(&format_chain("h", 1000, 900, ""));
    let strict = strict.to_str().unwrap();
    myelin.run_failing(3, &["plan", strict]);
    let output = myelin.run(&["plan", strict, "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan[0]["admitted"], false);
    let refusal = plan[0]["refusal"].as_str().unwrap();
    assert!(refusal.starts_with("the worst-case bound of "), "{refusal}");
    let remedies = plan[0]["remedies"].to_string();
    assert!(remedies.contains("`latency: "), "{remedies}");
}

#[test]
fn up_refuses_an_impossible_contract_and_deploys_it_with_force_as_best_effort() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let strict = myelin.write_file(&format_chain("h", 1000, 900, ""));
    let strict = strict.to_str().unwrap();
    myelin.run_failing(3, &["run", strict, "--count", "1", "--repeats", "1"]);
    let error = myelin.run_failing(3, &["up", strict]);
    assert!(
        error.contains("is refused: the worst-case bound of ")
            && error.contains("the chain would be admitted with "),
        "{error}"
    );
    let location = format!("{strict}:7:3: chain `");
    assert!(error.contains(&location), "{location} in {error}");
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        0
    );
    let up = myelin.run_json(&["up", strict, "--force", "--json"]);
    assert_eq!(up[0]["plan"]["best_effort"], true);
    assert_eq!(up[0]["plan"]["admitted"], false);
    assert_eq!(myelin.read_status("h")["best_effort"], true);
    // A narrow table puts the two words on two lines.
    let table = myelin.run_ok(&["ps"]);
    assert!(
        table.contains("best") && table.contains("effort"),
        "{table}"
    );
    assert_eq!(myelin.probe("h", 256, 100)["lost"], 0);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn a_chain_that_would_break_the_contract_of_another_on_its_core_is_refused() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    // Two processes on one core alternate in time slices of milliseconds: longer than the slack of
    // this chain.
    let first = myelin.write_file(&format_chain("a", 8, LONG_LATENCY_US, ""));
    let up = myelin.run_json(&["up", first.to_str().unwrap(), "--json"]);
    let bound_us = up[0]["plan"]["bound"]["bound_ns"]
        .as_u64()
        .unwrap()
        .div_ceil(1000);
    assert_eq!(
        myelin.read_status("a")["bound_ns"],
        up[0]["plan"]["bound"]["bound_ns"]
    );
    // The live change lowers the latency to the bound plus 1 ms.
    let tight = myelin.write_file(&format_chain("a", 8, bound_us as u32 + 1000, ""));
    let changed = myelin.run_json(&["up", tight.to_str().unwrap(), "--json"]);
    assert_eq!(changed[0]["change"], "changed");

    let second = myelin.write_file(&format_chain("b", 8, LONG_LATENCY_US, ""));
    let second = second.to_str().unwrap();
    let error = myelin.run_failing(3, &["up", second]);
    assert!(error.contains("the promise to chain `"), "{error}");
    // A chain without a rate has no arrival curve.
    let without_rate = format_chain("c", 8, LONG_LATENCY_US, "").replace("sla:", "# sla:");
    let without_rate = myelin.write_file(&without_rate);
    let error = myelin.run_failing(3, &["up", without_rate.to_str().unwrap()]);
    assert!(error.contains("the promise to chain `"), "{error}");
    // A refused change leaves the ledger unchanged.
    let large_burst = myelin.write_file(&format_chain("a", 8000, bound_us as u32 + 1000, ""));
    myelin.run_failing(3, &["up", large_burst.to_str().unwrap()]);
    assert!(
        myelin
            .run_failing(3, &["up", second])
            .contains("the promise to chain `")
    );
    myelin.run_ok(&["down", &myelin.chain_name("a")]);
    myelin.run_ok(&["up", second]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
