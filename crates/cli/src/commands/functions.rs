//! `myelin functions`: prints the catalogue of function kinds.

use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_report::terminal;
use myelin_spec::catalogue::{self, ConfigKey, Kind};
use serde_json::{Value, json};

use crate::output;

/// Arguments of `myelin functions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin functions             all kinds, a line each\n  \
    myelin functions firewall    its keys, counters, and an example chain"
)]
pub(crate) struct Arguments {
    /// Show this kind: its keys, counters, and an example chain.
    kind: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the list, or one kind.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let mut kinds: Vec<&Kind> = catalogue::kinds().collect();
    if let Some(name) = &arguments.kind {
        kinds.retain(|kind| kind.name == name);
        if kinds.is_empty() {
            return Err(ApiError::usage(format!(
                "no function kind `{name}`; `myelin functions` lists the kinds"
            )));
        }
    }
    if arguments.json {
        return output::print_json(&kinds.into_iter().map(to_json).collect::<Vec<_>>());
    }
    let style = output::style();
    if arguments.kind.is_some() {
        for kind in kinds {
            print_kind(kind, style);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let row = |kind: &Kind| {
        let (class, summary) = (kind.class.to_string(), kind.summary().to_owned());
        vec![kind.name.to_owned(), class, list_spaces(kind), summary]
    };
    let rows: Vec<_> = kinds.into_iter().map(row).collect();
    println!(
        "{} kinds; `myelin functions KIND` shows keys, counters and an example chain",
        rows.len()
    );
    let head = ["kind", "class", "spaces", "summary"];
    println!("{}", terminal::table(&head, &rows, style));
    Ok(ExitCode::SUCCESS)
}

fn list_spaces(kind: &Kind) -> String {
    let spaces: Vec<String> = kind.spaces().map(|space| space.to_string()).collect();
    spaces.join(", ")
}

/// Converts the catalogue's entry to JSON. An unknown cost is null.
fn to_json(kind: &Kind) -> Value {
    let mut entry = json!(kind);
    if kind.is_black_box() {
        entry["user"] = json!({
            "per_packet_ns": null,
            "per_byte_ns": null,
            "why": "the cost of the program is unknown, so no prediction contains it",
        });
    }
    entry
}

/// Prints the description, keys and counters of one kind, and an example chain file.
fn print_kind(kind: &Kind, style: terminal::Style) {
    let print = |head: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            println!("\n{}", terminal::table(head, &rows, style));
        }
    };
    println!(
        "{} (class {}; spaces: {})",
        kind.name,
        kind.class,
        list_spaces(kind)
    );
    println!("{}", terminal::wrap(kind.description, 0, output::width()));
    let guards = if kind.fails_closed {
        "; guards the chain (onFailure: drop)"
    } else {
        ""
    };
    println!(
        "Works on: {}. State: {}. Fragments: {}{guards}.",
        kind.works_on, kind.state, kind.fragments
    );
    let key = |(path, key): (String, &ConfigKey)| {
        let default = key.default.unwrap_or("-");
        let default = if key.required { "required" } else { default };
        vec![
            path,
            key.value.to_string(),
            default.to_owned(),
            key.doc.to_owned(),
        ]
    };
    let keys = catalogue::flatten(kind.config, "").into_iter().map(key);
    print(&["key", "value", "default", "meaning"], keys.collect());
    let counter = |(name, meaning): &(&str, &str)| vec![(*name).to_owned(), (*meaning).to_owned()];
    print(
        &["counter", "packets"],
        kind.counters.iter().map(counter).collect(),
    );
    println!(
        "\nAn example, for `myelin plan FILE`:\n\n{}",
        kind.chain_file().trim_end()
    );
}
