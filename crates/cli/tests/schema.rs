//! `myelin schema`: what it prints is JSON Schema whose references lead somewhere, and chain files
//! are what it says.

mod common;

use serde_json::Value;

/// What it prints, without an agent and without root.
fn printed(of: &str) -> Value {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_myelin"))
        .args(["schema", of])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All references within a schema.
fn references<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    match schema {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn both_are_schemas_of_the_same_draft() {
    for of in ["chain", "api"] {
        let schema = printed(of);
        assert_eq!(
            schema["$schema"], "https://json-schema.org/draft/2020-12/schema",
            "{of}"
        );
        assert!(schema["title"].is_string(), "{of}");
        let mut found = Vec::new();
        references(&schema, &mut found);
        for reference in found {
            let place = reference.strip_prefix('#').unwrap();
            assert!(schema.pointer(place).is_some(), "{of}: {reference}");
        }
    }
}

/// The values are held against it where it is made (`crates/spec/tests/schema.rs`); here it is what
/// a user gets.
#[test]
fn the_examples_have_no_other_keys() {
    let chain = printed("chain");
    let spec = &chain["properties"]["spec"]["properties"];
    let mut documents = 0;
    for file in std::fs::read_dir(common::root().join("examples")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for document in text.split("\n---") {
            // Keys of `spec` stand two columns from the margin.
            let (_, rest) = document.split_once("\nspec:").unwrap();
            let keys = rest.lines().filter_map(|line| {
                let line = line.strip_prefix("  ")?;
                let is_key = line.starts_with(|first: char| first.is_ascii_alphabetic());
                Some(line.split_once(':')?.0).filter(|_| is_key)
            });
            for key in keys {
                assert!(!spec[key].is_null(), "{}: {key}", path.display());
            }
            documents += 1;
        }
    }
    assert!(documents >= 20, "{documents}");
}

/// Editors complete and check the examples by the schema that is committed.
#[test]
fn committed_schema_is_the_printed_one_and_every_example_names_it() {
    let path = common::root().join("schema/chain.json");
    let printed = serde_json::to_string_pretty(&printed("chain")).unwrap() + "\n";
    if std::env::var_os("WRITE_SCHEMA").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == printed,
        "{} is not up to date: WRITE_SCHEMA=1 writes it",
        path.display()
    );
    for file in std::fs::read_dir(common::root().join("examples")).unwrap() {
        let path = file.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let modeline = "# yaml-language-server: $schema=../schema/chain.json\n";
            assert!(text.starts_with(modeline), "{}", path.display());
        }
    }
}
