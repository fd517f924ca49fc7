//! `myelin bench`: pages and figures.

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
        let start = std::time::Instant::now();
        let error = myelin.run_failing(2, &["bench", "deploy", "--quick", "--report", &path]);
        assert!(
            error.contains(&*path) && error.contains("cannot write there"),
            "{error}"
        );
        // A quick run takes many times longer.
        assert!(start.elapsed() < std::time::Duration::from_secs(20));
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
    let arguments = ["bench", "framework", "--quick", "--json", "--report"];
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
        "sudo myelin bench framework --quick --json",
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
