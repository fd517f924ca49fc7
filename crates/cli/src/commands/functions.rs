//! `myelin functions`: the catalogue of function kinds.

use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_spec::catalogue::{self, Kind, ValueType};
use serde_json::{Value, json};

use crate::output;

/// Arguments of `myelin functions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin functions\n  myelin functions firewall    its configuration and an example"
)]
pub(crate) struct Arguments {
    /// Show this kind's configuration.
    kind: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Shows.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let mut kinds: Vec<&Kind> = catalogue::kinds().collect();
    if let Some(name) = &arguments.kind {
        kinds.retain(|kind| kind.name == name);
        if kinds.is_empty() {
            return Err(ApiError::usage(format!(
                "no function kind `{name}`; `myelin functions` lists them"
            )));
        }
    }
    if arguments.json {
        return output::json(&kinds.into_iter().map(described).collect::<Vec<_>>());
    }
    let mut table = output::table([
        "kind",
        "class",
        "spaces",
        "touches",
        "state",
        "what it does",
    ]);
    for kind in &kinds {
        let spaces: Vec<String> = kind.spaces().map(|space| space.to_string()).collect();
        table.add_row([
            kind.name.to_owned(),
            kind.class.to_string(),
            spaces.join(", "),
            kind.touches.to_string(),
            kind.state.to_string(),
            kind.description.to_owned(),
        ]);
    }
    println!("{table}");
    if arguments.kind.is_some() {
        for kind in &kinds {
            details(kind);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The catalogue's entry, without a figure where nobody knows one.
fn described(kind: &Kind) -> Value {
    let mut entry = json!(kind);
    if kind.is_black_box() {
        entry["user"] = json!({
            "per_packet_ns": null,
            "per_byte_ns": null,
            "why": "nothing is known of the program, so no prediction contains it",
        });
    }
    entry
}

fn details(kind: &Kind) {
    if !kind.config.is_empty() {
        let mut table = output::table(["key", "value", "default", "what it is for"]);
        for key in kind.config {
            table.add_row([
                key.key.to_owned(),
                value(key.value),
                if key.required {
                    "required".to_owned()
                } else {
                    key.default.unwrap_or("-").to_owned()
                },
                key.doc.to_owned(),
            ]);
        }
        println!("{table}");
    }
    println!("example:\n  {}", kind.example);
}

/// What a configuration value looks like.
fn value(value: ValueType) -> String {
    match value {
        ValueType::Integer { min, max } => format!("{min} to {max}"),
        ValueType::Choice(words) => words.join(" | "),
        ValueType::Rules => format!("list of rules: {}", catalogue::RULE_KEYS.join(", ")),
        ValueType::Backends => {
            format!("list of backends: {}", catalogue::BACKEND_KEYS.join(", "))
        }
        ValueType::Routes => format!("list of routes: {}", catalogue::ROUTE_KEYS.join(", ")),
        ValueType::Addresses => "list of addresses".to_owned(),
        ValueType::Ports => "port or \"FROM-TO\"".to_owned(),
        ValueType::Duration => "time".to_owned(),
        ValueType::Command => "list: program, arguments".to_owned(),
        ValueType::Environment => "NAME: VALUE pairs".to_owned(),
        ValueType::Function => "name of a function".to_owned(),
        ValueType::File => "path of a file".to_owned(),
        ValueType::SecretFile => "path of a file that only its owner has access to".to_owned(),
        ValueType::Percent => "percentage, such as 5%".to_owned(),
        ValueType::Patterns => format!("list of patterns: {}", catalogue::PATTERN_KEYS.join(", ")),
        ValueType::Mirror => catalogue::MIRROR_KEYS.join(", "),
        ValueType::Number { max } => format!("number, 0 to {max}"),
    }
}
