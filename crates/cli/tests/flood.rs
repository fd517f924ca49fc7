//! `run --flood` sends one chain more than its rate and measures another chain.

mod common;

use common::load::{count_never_answered, read_count};
use common::{Myelin, repository_root, skip_unless_root};

/// The run measures `good` and floods `bad`. Both have a user function.
const CHAINS: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @good }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions: [ { name: a, kind: xor, space: user, config: { key: 0x21 } } ]
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @bad }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions: [ { name: b, kind: xor, space: user, config: { key: 0x21 } } ]
  sla: { rate: 500pps, burst: 8@enforce }
";

const PROBE: [&str; 9] = [
    "--mode",
    "inline",
    "--payload",
    "100,256",
    "--count",
    "500",
    "--repeats",
    "1",
    "--json",
];

fn run_with_flood(myelin: &Myelin, enforce: &str) -> serde_json::Value {
    let file = myelin.write_file(&CHAINS.replace("@enforce", enforce));
    let flood = format!("{}=8", myelin.chain_name("bad"));
    let mut arguments = vec!["run", file.to_str().unwrap(), "--flood", &flood];
    arguments.extend(PROBE);
    let report = myelin.run_json(&arguments);
    myelin.expect_chains(0);
    report
}

#[test]
fn a_flood_is_policed_and_the_measured_chain_loses_no_packet() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let report = run_with_flood(&myelin, "");
    assert_eq!(
        report["experiment"],
        myelin.chain_name("good"),
        "the flooded chain has no report"
    );
    for row in report["rows"].as_array().expect("the report lists rows") {
        let answered = read_count(&row["received"]) + read_count(&row["late"]);
        assert_eq!((answered, count_never_answered(row)), (500, 0), "{row}");
    }
    assert_eq!(report["floods"].as_array().map(Vec::len), Some(1));
    let flood = &report["floods"][0];
    let figure_of = |name: &str| {
        flood[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {flood}"))
    };
    assert_eq!(flood["chain"], myelin.chain_name("bad"));
    for (name, figure) in [
        ("times", 8.0),
        ("agreed_pps", 500.0),
        ("payload_bytes", 256.0),
    ] {
        assert!((figure_of(name) - figure).abs() < 1e-9, "{name}: {flood}");
    }
    // The flood lasts as long as the measurement and never exceeds its rate.
    assert!(figure_of("duration_s") >= 1.0, "{flood}");
    assert!(
        figure_of("sent") > 100.0 && figure_of("sent_pps") <= 4000.0,
        "{flood}"
    );
    assert_eq!(flood["packets_in"], flood["sent"], "{flood}");
    // The policer passes at most the rate times the duration plus the burst.
    let max_passed = figure_of("duration_s") * figure_of("agreed_pps") + 8.0;
    assert!(
        figure_of("policed") > 0.0 && figure_of("passed") <= max_passed + 1.0,
        "{flood}"
    );
    // After a stall of the worker, more packets come at once than the shaper's queue holds.
    let accounted = figure_of("policed") + figure_of("passed") + figure_of("drops");
    assert!((accounted - figure_of("sent")).abs() < 0.5, "{flood}");
    let share = figure_of("passed") / figure_of("duration_s") / figure_of("agreed_pps");
    assert!((figure_of("profile_share") - share).abs() < 1e-6, "{flood}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn enforce_none_polices_no_packet_of_a_flood() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let flood = run_with_flood(&myelin, ", enforce: none")["floods"][0].clone();
    assert_eq!(flood["policed"], 0, "{flood}");
    assert!(flood["sent"].as_u64() > Some(100), "{flood}");
    assert!(flood["passed"].as_u64() > Some(100), "{flood}");
}

#[test]
fn text_and_page_of_the_isolation_example_show_the_flood() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let text = std::fs::read_to_string(repository_root().join("examples/isolation.yaml"))
        .expect("the example is readable");
    let text = text
        .replace("name: control", "name: @control")
        .replace("name: noisy", "name: @noisy");
    let file = myelin.write_file(&text);
    let page = myelin.run_dir().with_extension("html");
    let noisy = myelin.chain_name("noisy");
    let output = myelin.run(&[
        "run",
        file.to_str().unwrap(),
        "--flood",
        &noisy,
        "--count",
        "200",
        "--repeats",
        "1",
        "--report",
        page.to_str().unwrap(),
    ]);
    // Status 5: the SLA was not met, which may happen on a loaded machine.
    assert!(matches!(output.status.code(), Some(0 | 5)), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    let line = format!("{noisy} x 10");
    let page = std::fs::read_to_string(page).expect("the page is readable");
    assert!(
        shown.contains("flooded chain") && shown.contains(&line),
        "{shown}"
    );
    assert!(page.contains("Flooded chains") && page.contains(&line));
    let reports = |chain: &str| shown.matches(&format!("chain {chain}: SLA ")).count();
    assert_eq!(
        (reports(&myelin.chain_name("control")), reports(&noisy)),
        (1, 0),
        "{shown}"
    );
}

#[test]
fn a_flood_and_its_chains_end_when_the_client_is_killed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(&CHAINS.replace("@enforce", ""));
    let bad = myelin.chain_name("bad");
    let mut run = myelin
        .command(&[
            "run",
            file.to_str().unwrap(),
            "--flood",
            &bad,
            "--count",
            "1000000",
        ])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the client starts");
    let count_floods = || {
        let pid = myelin.read_agent_pid();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "flood").count()
    };
    common::wait_for("the flood", || count_floods() == 1);
    run.kill().expect("the process is killed");
    let _ = run.wait();
    common::wait_for("the end of the flood", || count_floods() == 0);
    common::wait_for("the end of the chains", || {
        myelin
            .run_json(&["ps", "--json"])
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    assert_eq!(count_floods(), 0);
    myelin.expect_chains(0);
}

#[test]
fn an_invalid_flood_is_refused_before_an_agent_starts() {
    let myelin = Myelin::new();
    let file = myelin.write_file(&CHAINS.replace("@enforce", ""));
    let (good, bad) = (myelin.chain_name("good"), myelin.chain_name("bad"));
    let zero = format!("{bad}=0");
    for (flood, expected) in [
        ("missing", "this file has no chain `missing`"),
        (&*good, "has no rate"),
        (&*zero, "`0` is not a number above 0"),
    ] {
        let error = myelin.run_failing(2, &["run", file.to_str().unwrap(), "--flood", flood]);
        assert!(error.contains(expected), "{error}");
    }
    assert!(!myelin.run_dir().join("agent.sock").exists());
}
