//! Generates `docs/reference/api.md` from `schema.json`: endpoints, types, fields.
//!
//! `WRITE_DOCS=1 cargo test -p myelin-api --test reference` writes the page.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

const PAGE: &str = "../../docs/reference/api.md";
const INTRO: &str = "After this page you can write a program that talks to the agent, or read what `--json` prints: both have these types. \
    `myelin schema api` prints the same as JSON Schema. The page is generated (`WRITE_DOCS=1 cargo test -p myelin-api \
    --test reference`).";

/// Text in lines of at most 100 columns, those after the first behind `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let options = textwrap::Options::new(100)
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(
        &text.split_whitespace().collect::<Vec<_>>().join(" "),
        options,
    )
}

/// The name of a type, with links to the types of this page.
fn name_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or(name);
        return format!("[{name}](#{})", name.to_lowercase());
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(any) = schema[key].as_array() {
            let any = any.iter().filter(|one| one["type"] != "null").map(name_of);
            return any.collect::<Vec<_>>().join(" or ");
        }
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values = values.iter().filter(|value| !value.is_null());
        return values
            .map(|value| format!("`{value}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    if let Some(parts) = schema["prefixItems"].as_array() {
        let parts: Vec<_> = parts.iter().map(name_of).collect();
        return format!("[{}]", parts.join(", "));
    }
    let kind = match &schema["type"] {
        Value::String(kind) => kind.as_str(),
        Value::Array(kinds) => kinds
            .iter()
            .find_map(|kind| kind.as_str().filter(|kind| *kind != "null"))
            .unwrap_or("any"),
        _ => "any",
    };
    match kind {
        "array" => format!("list of {}", name_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", name_of(&schema["additionalProperties"]))
        }
        _ => schema["format"].as_str().unwrap_or(kind).to_owned(),
    }
}

/// Writes the fields of an object, one entry each.
fn fields(schema: &Value, indent: &str, page: &mut String) {
    let required: Vec<_> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let optional = if required.contains(&&Value::from(name.as_str())) {
            ""
        } else {
            ", optional"
        };
        let description = field["description"].as_str().unwrap_or_default();
        let entry = format!(
            "{indent}* `{name}` ({}{optional}): {description}",
            name_of(field)
        );
        let entry = wrapped(entry.trim_end_matches([':', ' ']), &format!("{indent}  "));
        writeln!(page, "{entry}").expect("a string");
    }
}

fn describe(name: &str, schema: &Value, page: &mut String) {
    let description = schema["description"].as_str().unwrap_or_default();
    write!(page, "\n### {name}\n\n{}\n", wrapped(description, "")).expect("a string");
    let variants = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if schema["properties"].is_object() || variants.is_some() {
        page.push('\n');
    }
    fields(schema, "", page);
    for variant in variants.into_iter().flatten() {
        let description = variant["description"].as_str().unwrap_or_default();
        let entry = if variant["properties"].is_object() {
            format!("* an object: {description}")
        } else {
            format!("* {}: {description}", name_of(variant))
        };
        writeln!(
            page,
            "{}",
            wrapped(entry.trim_end_matches([':', ' ']), "  ")
        )
        .expect("a string");
        fields(variant, "  ", page);
    }
    if variants.is_none() && !schema["properties"].is_object() {
        write!(page, "\n{}\n", wrapped(&name_of(schema), "")).expect("a string");
    }
}

fn page() -> String {
    let schema: Value = serde_json::from_str(myelin_api::SCHEMA).expect("JSON");
    let about = schema["description"].as_str().unwrap_or_default();
    let mut page = format!(
        "# API\n\n{}\n\n{}\n",
        wrapped(INTRO, ""),
        wrapped(about, "")
    );
    page.push_str("\n## Endpoints\n\n| method | path | request | answer |\n|---|---|---|---|\n");
    for endpoint in schema["endpoints"].as_array().into_iter().flatten() {
        let part = |key: &str| endpoint.get(key).map_or_else(|| "-".to_owned(), name_of);
        let word = |key: &str| endpoint[key].as_str().unwrap_or_default().to_owned();
        let request = part("request");
        let answer = match endpoint.get("lines") {
            Some(lines) => format!("{}, one a line", name_of(lines)),
            None => part("answer"),
        };
        writeln!(
            page,
            "| {} | `{}` | {request} | {answer} |",
            word("method"),
            word("path")
        )
        .expect("a string");
    }
    page.push_str("\n## Types\n");
    for (name, schema) in schema["$defs"].as_object().into_iter().flatten() {
        describe(name, schema, &mut page);
    }
    page
}

#[test]
fn the_page_matches_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, page()).expect("a page");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page(), "{} is not up to date", path.display());
}
