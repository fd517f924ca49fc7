//! Validates values against a JSON Schema: only the keywords that the API's schema uses.

#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::{Map, Value};

/// Returns the first fault of `value` under `schema`, with the fault's position.
///
/// # Panics
/// The schema uses an unknown keyword.
pub(crate) fn find_fault(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    check(document, schema, value).err()
}

/// Checks that every keyword is known and every reference has a target.
pub(crate) fn assert_known_keywords(document: &Value, schema: &Value) {
    let Value::Object(keywords) = schema else {
        assert!(
            schema.is_boolean(),
            "neither an object nor a boolean: {schema}"
        );
        return;
    };
    for (keyword, argument) in keywords {
        match keyword.as_str() {
            "$ref" => assert!(
                resolve(document, argument).is_some(),
                "the reference has no target: {argument}"
            ),
            "properties" | "$defs" | "patternProperties" => {
                let schemas = argument.as_object().expect("named schemas").values();
                schemas.for_each(|schema| assert_known_keywords(document, schema));
            }
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                let schemas = argument.as_array().expect("schemas").iter();
                schemas.for_each(|schema| assert_known_keywords(document, schema));
            }
            "items" | "additionalProperties" | "unevaluatedProperties" => {
                assert_known_keywords(document, argument);
            }
            "type" | "enum" | "const" | "required" | "minimum" | "maximum" | "minItems"
            | "maxItems" | "title" | "description" | "format" | "default" => {}
            _ => panic!("the validator does not know keyword `{keyword}`: {schema}"),
        }
    }
}

fn resolve<'a>(document: &'a Value, reference: &Value) -> Option<&'a Value> {
    document.pointer(reference.as_str()?.strip_prefix('#')?)
}

fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return Err(format!("{value} is not allowed")),
    };
    let branches = |keyword: &str| keywords.get(keyword).and_then(Value::as_array);
    let fits = |branch: &&Value| check(document, branch, value).is_ok();
    if let Some(reference) = keywords.get("$ref") {
        check(
            document,
            resolve(document, reference).expect("a known type"),
            value,
        )?;
    }
    if let Some(types) = keywords.get("type") {
        let matches = |name: &Value| has_type(name.as_str().expect("a type's name"), value);
        let fits = types
            .as_array()
            .map_or_else(|| matches(types), |names| names.iter().any(matches));
        fits.then_some(())
            .ok_or_else(|| format!("{value} is not of type {types}"))?;
    }
    if let Some(allowed) = branches("enum").filter(|allowed| !allowed.contains(value)) {
        return Err(format!("{value} is none of {allowed:?}"));
    }
    if let Some(constant) = keywords.get("const").filter(|constant| *constant != value) {
        return Err(format!("{value} is not {constant}"));
    }
    if let Some(least) = keywords.get("minimum").and_then(Value::as_f64)
        && value.as_f64().is_some_and(|number| number < least)
    {
        return Err(format!("{value} is below {least}"));
    }
    for branch in branches("allOf").into_iter().flatten() {
        check(document, branch, value)?;
    }
    if branches("anyOf").is_some_and(|schemas| !schemas.iter().any(|branch| fits(&branch))) {
        return Err(format!("{value} fits none of {:?}", keywords["anyOf"]));
    }
    if branches("oneOf").is_some_and(|schemas| schemas.iter().filter(fits).count() != 1) {
        return Err(format!(
            "{value} does not fit exactly one of {:?}",
            keywords["oneOf"]
        ));
    }
    match value {
        Value::Object(fields) => check_fields(document, keywords, fields),
        Value::Array(items) => {
            let first = branches("prefixItems").map_or(&[][..], Vec::as_slice);
            let rest = keywords.get("items").unwrap_or(&Value::Bool(true));
            let schemas = first.iter().chain(std::iter::repeat(rest));
            schemas
                .zip(items)
                .try_for_each(|(schema, item)| check(document, schema, item))
        }
        _ => Ok(()),
    }
}

fn check_fields(
    document: &Value,
    keywords: &Map<String, Value>,
    fields: &Map<String, Value>,
) -> Result<(), String> {
    for required in keywords
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let key = required.as_str().expect("a key");
        if !fields.contains_key(key) {
            return Err(format!("`{key}` is missing"));
        }
    }
    let mut known = Map::new();
    collect_properties(document, keywords, &mut known);
    for (key, value) in fields {
        let closed = ["additionalProperties", "unevaluatedProperties"];
        let schema = known
            .get(key)
            .or_else(|| closed.iter().find_map(|keyword| keywords.get(*keyword)));
        if let Some(schema) = schema {
            check(document, schema, value).map_err(|fault| format!("{key}: {fault}"))?;
        } else if keywords.contains_key("properties") {
            // The types have a field that the schema lacks.
            return Err(format!("`{key}` is not in the schema"));
        }
    }
    Ok(())
}

/// Collects the properties of a schema and of its parts.
fn collect_properties(
    document: &Value,
    keywords: &Map<String, Value>,
    known: &mut Map<String, Value>,
) {
    if let Some(own) = keywords.get("properties").and_then(Value::as_object) {
        known.extend(own.clone());
    }
    if let Some(Value::Object(referenced)) =
        keywords.get("$ref").and_then(|to| resolve(document, to))
    {
        collect_properties(document, referenced, known);
    }
    for branch in keywords
        .get("allOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        collect_properties(document, branch.as_object().expect("a schema"), known);
    }
}

fn has_type(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        _ => panic!("unknown type name: {name}"),
    }
}
