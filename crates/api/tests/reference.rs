//! Generates `docs/reference/api.md` from `schema.json`: endpoints, types, write_fields.
//!
//! `WRITE_DOCS=1 cargo test -p myelin-api --test reference` writes the page.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

const PAGE: &str = "../../docs/reference/api.md";
const INTRO: &str = "After this page you can write a program that talks to the agent, or read the output of `--json`. The API and `--json` use the same types. \
    `myelin schema api` prints these types as JSON Schema. A test generates this page (`WRITE_DOCS=1 cargo test -p \
    myelin-api --test reference`).";

/// Breaks text into lines of at most 100 columns. `indent` begins all lines after the first.
fn wrap_text(text: &str, indent: &str) -> String {
    let options = textwrap::Options::new(100)
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(
        &text.split_whitespace().collect::<Vec<_>>().join(" "),
        options,
    )
}

/// Formats a type's name, with a link if the type is on this page.
fn format_type(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or(name);
        return format!("[{name}](#{})", name.to_lowercase());
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(any) = schema[key].as_array() {
            let any = any
                .iter()
                .filter(|branch| branch["type"] != "null")
                .map(format_type);
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
        let parts: Vec<_> = parts.iter().map(format_type).collect();
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
        "array" => format!("list of {}", format_type(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", format_type(&schema["additionalProperties"]))
        }
        _ => schema["format"].as_str().unwrap_or(kind).to_owned(),
    }
}

/// Writes the write_fields of an object, one entry each.
fn write_fields(schema: &Value, indent: &str, page: &mut String) {
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
            format_type(field)
        );
        let entry = wrap_text(entry.trim_end_matches([':', ' ']), &format!("{indent}  "));
        writeln!(page, "{entry}").expect("a String accepts all text");
    }
}

/// Writes the section of a type.
fn write_type(name: &str, schema: &Value, page: &mut String) {
    let description = schema["description"].as_str().unwrap_or_default();
    write!(page, "\n### {name}\n\n{}\n", wrap_text(description, ""))
        .expect("a String accepts all text");
    let variants = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if schema["properties"].is_object() || variants.is_some() {
        page.push('\n');
    }
    write_fields(schema, "", page);
    for variant in variants.into_iter().flatten() {
        let description = variant["description"].as_str().unwrap_or_default();
        let entry = if variant["properties"].is_object() {
            format!("* an object: {description}")
        } else {
            format!("* {}: {description}", format_type(variant))
        };
        writeln!(
            page,
            "{}",
            wrap_text(entry.trim_end_matches([':', ' ']), "  ")
        )
        .expect("a String accepts all text");
        write_fields(variant, "  ", page);
    }
    if variants.is_none() && !schema["properties"].is_object() {
        write!(page, "\n{}\n", wrap_text(&format_type(schema), ""))
            .expect("a String accepts all text");
    }
}

fn render_page() -> String {
    let schema: Value = serde_json::from_str(myelin_api::SCHEMA).expect("the schema is JSON");
    let about = schema["description"].as_str().unwrap_or_default();
    let mut page = format!(
        "# API\n\n{}\n\n{}\n",
        wrap_text(INTRO, ""),
        wrap_text(about, "")
    );
    page.push_str("\n## Endpoints\n\n| method | path | request | answer |\n|---|---|---|---|\n");
    for endpoint in schema["endpoints"].as_array().into_iter().flatten() {
        let part = |key: &str| {
            endpoint
                .get(key)
                .map_or_else(|| "-".to_owned(), format_type)
        };
        let word = |key: &str| endpoint[key].as_str().unwrap_or_default().to_owned();
        let request = part("request");
        let answer = match endpoint.get("lines") {
            Some(lines) => format!("{}, one a line", format_type(lines)),
            None => part("answer"),
        };
        writeln!(
            page,
            "| {} | `{}` | {request} | {answer} |",
            word("method"),
            word("path")
        )
        .expect("a String accepts all text");
    }
    page.push_str("\n## Types\n");
    for (name, schema) in schema["$defs"].as_object().into_iter().flatten() {
        write_type(name, schema, &mut page);
    }
    page
}

#[test]
fn the_page_matches_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, render_page()).expect("the page is writable");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == render_page(),
        "{} differs from the schema: run with WRITE_DOCS=1",
        path.display()
    );
}
