//! Creates the JSON Schema (2020-12) of a file from the keys that the reader uses.

use serde_json::{Map, Value, json};

use crate::chain::MAX_FUNCTIONS;
use crate::keys::{ConfigKey, ValueType};
use crate::kinds::catalogue::{Kind, kinds};
use crate::read;

/// Creates the schema of one document of a file: a ServiceChain, with the configuration of each
/// kind of function, or a Topology. `if` and `then` select the keys by the object's kind.
pub fn schema() -> Value {
    let objects = [
        ("ServiceChain", object(read::KEYS)),
        ("Topology", object(read::TOPOLOGY_KEYS)),
    ];
    let names = objects.each_ref().map(|(name, _)| *name);
    let by_kind = objects.map(|(name, mut object)| {
        object["title"] = json!(name);
        json!({
            "if": { "properties": { "kind": { "const": name } }, "required": ["kind"] },
            "then": object,
        })
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Myelin object",
        "type": "object",
        "properties": { "kind": { "enum": names } },
        "required": ["kind"],
        "allOf": by_kind,
    })
}

/// Creates the schema of a mapping with these keys and no others.
fn object(keys: &[ConfigKey]) -> Value {
    let properties: Map<_, _> = keys
        .iter()
        .map(|key| (key.key.to_owned(), property(key)))
        .collect();
    let required: Vec<_> = keys.iter().filter(|key| key.required).collect();
    let required: Vec<_> = required.iter().map(|key| key.key).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property(key: &ConfigKey) -> Value {
    let mut schema = value(key.value);
    schema["description"] = json!(key.doc);
    if let Some(default) = key.default {
        schema["default"] = match default {
            "[]" => json!([]),
            text => text
                .parse::<u64>()
                .map_or_else(|_| json!(text), |number| json!(number)),
        };
    }
    schema
}

fn value(value: ValueType) -> Value {
    let list = |items: Value| json!({ "type": "array", "items": items });
    // The parser reads a number as its text, and a text of digits as a number.
    let text = || json!({ "type": ["string", "number"] });
    let or = |first: Value, second: Value| json!({ "anyOf": [first, second] });
    match value {
        ValueType::Integer { min, max } => or(
            json!({ "type": "integer", "minimum": min, "maximum": max }),
            json!({ "type": "string", "pattern": "^(0[xX][0-9a-fA-F]+|[0-9]+)$" }),
        ),
        ValueType::Number { max } => or(
            json!({ "type": "number", "minimum": 0, "maximum": max }),
            json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,6})?$" }),
        ),
        ValueType::Choice(&["true", "false"]) => json!({ "enum": [true, false, "true", "false"] }),
        ValueType::Choice(words) => json!({ "enum": words }),
        ValueType::Duration => {
            json!({ "type": "string", "pattern": "^[0-9.]+ *(ns|us|µs|μs|ms|s)$" })
        }
        ValueType::Percent => json!({ "type": "string", "pattern": "^[0-9.]+ *%$" }),
        ValueType::Cpu => json!({ "type": "string", "pattern": "^[0-9.]+ *(m|cores|core)$" }),
        ValueType::Memory => json!({ "type": "string", "pattern": "^[0-9.]+ *([kMG]|[KMG]i)?B$" }),
        ValueType::File | ValueType::SecretFile | ValueType::Function => {
            json!({ "type": "string" })
        }
        ValueType::Text | ValueType::Ports => text(),
        ValueType::Addresses | ValueType::TextOrList => or(text(), list(text())),
        ValueType::Command => list(text()),
        ValueType::TextLists => list(or(text(), list(text()))),
        ValueType::Ends => {
            let mut ends = list(text());
            (ends["minItems"], ends["maxItems"]) = (json!(2), json!(2));
            ends
        }
        ValueType::Environment => json!({ "type": "object", "additionalProperties": text() }),
        ValueType::AnyMap => json!({ "type": "object" }),
        ValueType::Map(keys) | ValueType::Mirror(keys) => object(keys),
        ValueType::TextOrMap(keys) => or(text(), object(keys)),
        ValueType::Rules(keys)
        | ValueType::Routes(keys)
        | ValueType::Backends(keys)
        | ValueType::Branches(keys)
        | ValueType::Routers(keys)
        | ValueType::Links(keys) => list(object(keys)),
        ValueType::Hosts(keys) | ValueType::Patterns(keys) => list(or(text(), object(keys))),
        ValueType::Functions(keys) => {
            let mut functions = list(function(keys));
            functions["minItems"] = json!(1);
            functions["maxItems"] = json!(MAX_FUNCTIONS);
            functions
        }
    }
}

/// Creates the schema of an element of `spec.functions`. `if` and `then` select the configuration
/// by the kind, so editors name the faulty key. With `oneOf`, editors would only say that no kind
/// fits.
fn function(keys: &[ConfigKey]) -> Value {
    let mut function = object(keys);
    let names: Vec<_> = kinds().map(|kind| kind.name).collect();
    let descriptions: Vec<_> = kinds().map(|kind| kind.description).collect();
    function["properties"]["kind"]["enum"] = json!(names);
    // Not part of JSON Schema: yaml-language-server shows it next to each word.
    function["properties"]["kind"]["markdownEnumDescriptions"] = json!(descriptions);
    function["allOf"] = kinds().map(configuration).collect();
    function
}

/// Creates the schema of the configuration of a function of `kind`.
fn configuration(kind: &Kind) -> Value {
    let mut config = object(kind.config);
    // With `reverseOf`, the function takes the configuration of the named function.
    if kind.config.iter().any(|key| key.key == "reverseOf") {
        config["required"] = json!([]);
    }
    let needs_config = config["required"] != json!([]);
    config["title"] = json!(kind.name);
    config["description"] = json!(kind.description);
    json!({
        "if": { "properties": { "kind": { "const": kind.name } }, "required": ["kind"] },
        "then": {
            "properties": { "config": config },
            "required": if needs_config { vec!["config"] } else { vec![] },
        },
    })
}
