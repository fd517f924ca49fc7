//! `myelin plan` admits the file of `myelin init` and the example of each `myelin functions KIND`.

use std::path::Path;
use std::process::{Command, Output};

fn run_myelin(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_myelin"));
    command.args(arguments).current_dir(directory);
    command.output().expect("myelin runs")
}

fn expect_stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("the output is UTF-8")
}

#[test]
fn init_writes_a_valid_chain_file_and_overwrites_only_with_force() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let output = expect_stdout(&run_myelin(directory, &["init"]));
    assert!(output.contains("myelin plan chain.yaml"), "{output}");
    assert!(expect_stdout(&run_myelin(directory, &["plan", "chain.yaml"])).contains("admitted"));
    let text = std::fs::read_to_string(directory.join("chain.yaml")).unwrap();
    assert!(
        text.lines().count() <= 40 && text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert_eq!(
        text.lines().next(),
        Some("# yaml-language-server: $schema=chain.schema.json")
    );
    let schema = std::fs::read_to_string(directory.join("chain.schema.json")).unwrap();
    assert_eq!(
        schema,
        expect_stdout(&run_myelin(directory, &["schema", "chain"]))
    );

    std::fs::write(directory.join("chain.yaml"), "mine").unwrap();
    let refused = run_myelin(directory, &["init"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--force"),
        "{refused:?}"
    );
    expect_stdout(&run_myelin(directory, &["init", "--force"]));
    assert_eq!(
        std::fs::read_to_string(directory.join("chain.yaml")).unwrap(),
        text
    );
    assert_eq!(expect_stdout(&run_myelin(directory, &["init", "-"])), text);
}

#[test]
fn each_kind_has_an_example_that_plan_accepts() {
    let directory = tempfile::tempdir().unwrap();
    let list = expect_stdout(&run_myelin(directory.path(), &["functions"]));
    let kinds: Vec<serde_json::Value> = serde_json::from_str(&expect_stdout(&run_myelin(
        directory.path(),
        &["functions", "--json"],
    )))
    .unwrap();
    assert!(kinds.len() >= 20);
    for kind in kinds {
        let name = kind["name"].as_str().unwrap();
        assert!(list.contains(name), "{list}");
        let page = expect_stdout(&run_myelin(directory.path(), &["functions", name]));
        for key in kind["config"].as_array().unwrap() {
            assert!(page.contains(key["key"].as_str().unwrap()), "{page}");
        }
        let long_line = page
            .lines()
            .chain(list.lines())
            .find(|line| line.chars().count() > 100);
        assert_eq!(long_line, None, "{name}");
        let (_, example) = page.split_once("FILE`:\n\n").unwrap();
        std::fs::write(directory.path().join("example.yaml"), example).unwrap();
        let plan = run_myelin(directory.path(), &["plan", "example.yaml"]);
        assert!(plan.status.success(), "{name}: {plan:?}");
    }
}
