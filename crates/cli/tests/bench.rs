//! `myelin bench`: exit statuses, envelopes, comparisons, pages and figures.

mod common;

use common::{Myelin, skip_unless_root};

#[test]
fn paths_that_cannot_be_written_are_refused_before_the_measurement() {
    let myelin = Myelin::new();
    let directory = tempfile::tempdir().unwrap();
    for path in [
        directory.path().join("none/page.html"),
        directory.path().to_owned(),
        "/dev/null".into(),
    ] {
        let path = path.to_string_lossy();
        let output = myelin.run(&["bench", "deploy", "--quick", "--report", &path]);
        let error = String::from_utf8_lossy(&output.stderr).replace("\n       ", " ");
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains(&*path) && error.contains("cannot write there"),
            "{error}"
        );
        // A run prints its claims before it writes the page.
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    let error = myelin.run_failing(2, &["bench", "deploy", "--quick", "--figures", "/dev/null"]);
    assert!(error.contains("--figures /dev/null: "), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_quick_run_prints_json_and_writes_its_page() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("framework.html");
    let figures = directory.path().join("figures");
    // One deployment decides no claim.
    let arguments = [
        "bench",
        "framework",
        "--quick",
        "--deployments",
        "1",
        "--json",
        "--report-only",
        "--report",
    ];
    let paths = [
        path.to_str().unwrap(),
        "--figures",
        figures.to_str().unwrap(),
    ];
    let arguments = [&arguments[..], &paths].concat();
    let report = myelin.run_json(&arguments);
    assert_eq!(report["environment"]["settings"]["effort"], "quick");
    let page = std::fs::read_to_string(&path).unwrap();
    let claims = report["claims"].as_array().unwrap();
    assert!(claims.len() >= 2, "{claims:?}");
    for claim in claims {
        let id = claim["id"].as_str().unwrap();
        assert!(page.contains(id), "{id}");
    }
    for text in [
        "<title>Experiment framework - Myelin</title>",
        "sudo myelin bench framework --quick<",
        "a user function and packet, ns, batch 32",
        "packets a window",
        "id=\"envelope\"",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("NaN") && !page.contains("<script"));
    for plot in ["chains-in-user-space", "each-further-function"] {
        let file = figures.join(format!("framework-{plot}.svg"));
        let svg = std::fs::read_to_string(&file).unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("sudo myelin bench framework --quick<"));
    }
    assert_eq!(std::fs::read_dir(&figures).unwrap().count(), 2);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn an_undecided_claim_has_exit_status_4() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let arguments = ["bench", "rings", "--quick", "--deployments", "1", "--json"];
    let output = myelin.command(&arguments).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let Some(claim) = report["claims"].get(0) else {
        println!("SKIP: {}", report["rows"]);
        return;
    };
    assert_eq!(output.status.code(), Some(4), "{report}");
    assert!(claim["holds"].is_null(), "{claim}");
    assert_eq!(
        claim["undecided"], "too few deployments for an interval: 1",
        "{claim}"
    );
    myelin.run_ok(&[&arguments[..5], &["--report-only"]].concat());
}

#[test]
fn a_report_is_compared_with_an_envelope() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results");
    let file = results.join("framework.json");
    let file_text = file.to_str().unwrap();
    let more = ["--report-only", "--results", results.to_str().unwrap()];
    let arguments = [
        &[
            "bench",
            "framework",
            "--quick",
            "--deployments",
            "1",
            "--revision",
            "v1",
        ],
        &more[..],
    ]
    .concat();
    let text = myelin.run_ok(&arguments);
    assert!(text.contains(&format!("envelope: {file_text}")), "{text}");
    let envelope = std::fs::read_to_string(&file).unwrap();
    let json: serde_json::Value = serde_json::from_str(&envelope).unwrap();
    let settings = &json["environment"]["settings"];
    assert_eq!(settings["revision"], "v1");
    for setting in ["quiet", "steal_share", "program_sha256", "effort"] {
        assert!(settings[setting].is_string(), "{setting}: {settings}");
    }
    let compare = [
        "bench",
        "framework",
        "--quick",
        "--deployments",
        "1",
        "--report-only",
        "--compare",
    ];
    let text = myelin.run_ok(&[&compare[..], &[file_text]].concat());
    assert!(text.contains(" verdicts changed; "), "{text}");
    let json = myelin.run_json(&[&compare[..], &[file_text, "--json"]].concat());
    let change = &json["compared"][0];
    assert_eq!(change["id"], json["claims"][0]["id"]);
    assert!(
        change["figure_before"].is_f64() && change["before"].is_string(),
        "{change}"
    );
    let other = ["bench", "rings", "--quick", "--compare", file_text];
    let error = myelin.run_failing(2, &other);
    assert!(error.contains("of experiment `framework`"), "{error}");
    // An altered envelope is no evidence.
    for (text, cause) in [
        (
            envelope.replacen("\"holds\":", "\"held\":", 1),
            "was altered or cut",
        ),
        (
            envelope.replacen("\"format\":2", "\"format\":1", 1),
            "it has format 1",
        ),
        ("{}".to_owned(), "no envelope"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = myelin.run_failing(2, &[&compare[..], &[file_text]].concat());
        assert!(
            error.contains(file_text) && error.contains(cause),
            "{error}"
        );
    }
}

#[test]
fn wrong_faults_and_intervals_are_refused() {
    let myelin = Myelin::new();
    let error = myelin.run_failing(2, &["bench", "rings", "--fault", "none"]);
    assert!(error.contains("slow-ring"), "{error}");
    let error = myelin.run_failing(2, &["bench", "rings", "--fault", "slow-program"]);
    assert!(error.contains("one of experiment `deploy`"), "{error}");
    let error = myelin.run_failing(2, &["bench", "rings", "--interval", "5"]);
    assert!(error.contains("--interval"), "{error}");
    myelin.run_failing(2, &["bench", "--all"]);
}
