//! `myelin functions`: the catalogue of function kinds.

use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_report::terminal::Column;
use myelin_spec::catalogue::{self, ConfigKey, Kind};
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
    let columns: [Column<&Kind>; 6] = [
        ("kind", |kind| kind.name.to_owned()),
        ("class", |kind| kind.class.to_string()),
        ("spaces", |kind| {
            let spaces: Vec<String> = kind.spaces().map(|space| space.to_string()).collect();
            spaces.join(", ")
        }),
        ("touches", |kind| kind.touches.to_string()),
        ("state", |kind| kind.state.to_string()),
        ("what it does", |kind| kind.description.to_owned()),
    ];
    println!("{}", output::listing(&columns, &kinds));
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
        let columns: [Column<ConfigKey>; 4] = [
            ("key", |key| key.key.to_owned()),
            ("value", |key| key.value.to_string()),
            ("default", |key| {
                let default = key.default.unwrap_or("-");
                if key.required { "required" } else { default }.to_owned()
            }),
            ("what it is for", |key| key.doc.to_owned()),
        ];
        println!("{}", output::listing(&columns, kind.config));
    }
    println!("example:\n  {}", kind.example);
}
