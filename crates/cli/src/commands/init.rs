//! `myelin init`: writes a first chain file.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use myelin_api::ApiError;

const FIRST_CHAIN: &str = include_str!("first-chain.yaml");
/// The schema that the modeline of the chain file names, for editors.
const SCHEMA: &str = "chain.schema.json";

/// Arguments of `myelin init`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin init                  chain.yaml, and chain.schema.json for editors\n  \
    myelin init edge.yaml        another name\n  myelin init -                print it only"
)]
pub(crate) struct Arguments {
    /// The file to write; `-` prints it.
    #[arg(default_value = "chain.yaml")]
    file: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
}

/// Writes the file, and the JSON Schema next to it.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let file = &arguments.file;
    let name = file.display().to_string();
    let text = FIRST_CHAIN.replace("FILE", if name == "-" { "chain.yaml" } else { &name });
    if name == "-" {
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    write(file, &text, arguments.force)?;
    let schema = serde_json::to_string_pretty(&myelin_spec::schema())
        .map_err(|error| ApiError::failed(format!("cannot write JSON: {error}")))?;
    // The schema is the same for every chain file, so it replaces an older schema.
    write(&file.with_file_name(SCHEMA), &(schema + "\n"), true)?;
    println!("wrote {name} and {SCHEMA}; next: myelin plan {name}");
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), ApiError> {
    let mut options = OpenOptions::new();
    options.write(true).truncate(true);
    if force {
        options.create(true);
    } else {
        options.create_new(true);
    }
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => ApiError::usage(format!(
            "{} exists: name another file, or overwrite this file with --force",
            path.display()
        )),
        _ => ApiError::usage(format!("cannot write {}: {error}", path.display())),
    })
}
