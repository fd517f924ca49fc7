//! `myelin schema` prints JSON Schema whose references resolve, and the examples match it.

mod common;

use serde_json::Value;

/// Runs `myelin schema NAME`, which needs neither root nor an agent; returns the schema.
fn read_schema(name: &str) -> Value {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_myelin"))
        .args(["schema", name])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Collects all `$ref` of a schema.
fn collect_references<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    match schema {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields
                .values()
                .for_each(|value| collect_references(value, found));
        }
        Value::Array(values) => values
            .iter()
            .for_each(|value| collect_references(value, found)),
        _ => {}
    }
}

#[test]
fn both_schemas_name_draft_2020_12_and_their_references_resolve() {
    for name in ["chain", "api"] {
        let schema = read_schema(name);
        assert_eq!(
            schema["$schema"], "https://json-schema.org/draft/2020-12/schema",
            "{name}"
        );
        assert!(schema["title"].is_string(), "{name}");
        let mut found = Vec::new();
        collect_references(&schema, &mut found);
        for reference in found {
            let place = reference.strip_prefix('#').unwrap();
            assert!(schema.pointer(place).is_some(), "{name}: {reference}");
        }
    }
}

/// `crates/spec/tests/schema.rs` checks the values.
#[test]
fn the_schema_has_each_key_of_spec_in_the_examples() {
    let schema = read_schema("chain");
    // Each object's schema by its kind, as in `kind: ServiceChain`.
    let objects: std::collections::HashMap<&str, &Value> = schema["allOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| {
            let spec = &part["then"]["properties"]["spec"]["properties"];
            (part["then"]["title"].as_str().unwrap(), spec)
        })
        .collect();
    let mut documents = 0;
    for file in std::fs::read_dir(common::repository_root().join("examples")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for document in text.split("\n---") {
            // Keys of `spec` are indented by two columns.
            let (head, rest) = document.split_once("\nspec:").unwrap();
            let (_, kind) = head.split_once("\nkind: ").unwrap();
            let spec = objects[kind.lines().next().unwrap().trim()];
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

/// Editors check the examples against the committed schema.
#[test]
fn the_committed_schema_is_current_and_each_example_names_it() {
    let path = common::repository_root().join("schema/chain.json");
    let printed = serde_json::to_string_pretty(&read_schema("chain")).unwrap() + "\n";
    if std::env::var_os("WRITE_SCHEMA").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == printed,
        "{} is not up to date: WRITE_SCHEMA=1 writes it",
        path.display()
    );
    for file in std::fs::read_dir(common::repository_root().join("examples")).unwrap() {
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
