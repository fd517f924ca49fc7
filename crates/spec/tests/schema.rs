//! Tests that the schema of chain files and the parser accept the same keys and shapes.

use std::fs;
use std::path::Path;

use myelin_spec::{catalogue, schema};
use serde_json::{Value, json};

/// Validates a value. Implements the parts of JSON Schema that the schema uses.
fn accepts(schema: &Value, value: &Value) -> bool {
    let types = match &schema["type"] {
        Value::Null => vec![],
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        name => vec![name.as_str().unwrap()],
    };
    let is = |name: &&str| match *name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        other => panic!("{other}"),
    };
    if !types.is_empty() && !types.iter().any(is) {
        return false;
    }
    let all = |key: &str| schema[key].as_array().cloned().unwrap_or_default();
    let any_of = all("anyOf");
    let meets = |part: &Value| {
        part["if"].is_null() || !accepts(&part["if"], value) || accepts(&part["then"], value)
    };
    let words = all("enum");
    let in_range = value.as_f64().is_none_or(|number| {
        schema["minimum"]
            .as_f64()
            .is_none_or(|minimum| number >= minimum)
            && schema["maximum"]
                .as_f64()
                .is_none_or(|maximum| number <= maximum)
    });
    let as_written = schema["pattern"].as_str().is_none_or(|pattern| {
        let pattern = regex::Regex::new(pattern).unwrap();
        value.as_str().is_some_and(|text| pattern.is_match(text))
    });
    let members = value.as_object().is_none_or(|members| {
        let known = |(key, value): (&String, &Value)| match &schema["properties"][key] {
            Value::Null => schema["additionalProperties"] != json!(false),
            schema => accepts(schema, value),
        };
        let has = |key: &Value| members.contains_key(key.as_str().unwrap());
        members.iter().all(known) && all("required").iter().all(has)
    });
    let elements = value.as_array().is_none_or(|elements| {
        let counted = schema["minItems"].as_u64().unwrap_or(0)
            ..=schema["maxItems"].as_u64().unwrap_or(u64::MAX);
        counted.contains(&(elements.len() as u64))
            && elements
                .iter()
                .all(|element| accepts(&schema["items"], element))
    });
    in_range
        && as_written
        && members
        && elements
        && (any_of.is_empty() || any_of.iter().any(|schema| accepts(schema, value)))
        && all("allOf").iter().all(meets)
        && (words.is_empty() || words.contains(value))
        && (schema["const"].is_null() || schema["const"] == *value)
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

#[test]
fn schema_accepts_every_example() {
    let schema = schema();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut count = 0;
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            for document in documents(&fs::read_to_string(&path).unwrap()) {
                assert!(
                    accepts(&schema, &document),
                    "{}: {document}",
                    path.display()
                );
                count += 1;
            }
        }
    }
    assert!(count > 20);
}

#[test]
fn schema_accepts_the_example_of_every_kind() {
    let chain = &schema()["allOf"][0]["then"];
    let functions = &chain["properties"]["spec"]["properties"]["functions"];
    for kind in catalogue::kinds() {
        let example = json!(documents(kind.example));
        assert!(accepts(functions, &example), "{}", kind.name);
    }
}

/// These fixtures have wrong keys, words or shapes. The schema cannot express conditions between
/// several values.
#[test]
fn schema_refuses_wrong_keys_and_shapes() {
    let schema = schema();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    for name in [
        "choices",
        "function-config",
        "function-kind",
        "missing-parts",
        "unit-missing",
        "unknown-keys",
        "unknown-object-kind",
        "wrong-shapes",
        "no-functions",
        "too-many-functions",
        "api-version",
    ] {
        let text = fs::read_to_string(directory.join(format!("{name}.yaml"))).unwrap();
        for document in documents(&text) {
            assert!(!accepts(&schema, &document), "{name}");
        }
    }
}
