//! `myelin image`: the stored images of containers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use myelin_api::{ApiError, Client, ImageRequest, ImageStatus, RunDir};
use myelin_report::terminal::Column;

use crate::output;

/// Arguments of `myelin image`.
#[derive(Debug, clap::Subcommand)]
#[command(
    after_help = "Examples:\n  myelin image import debian debian.tar\n  myelin image ls\n  myelin image rm debian\n\n\
    Archives are OCI archives: of `skopeo copy docker://debian:stable-slim oci-archive:debian.tar`, or of \
    `docker save` (from Docker 25 on). Myelin asks no registry."
)]
pub(crate) enum Arguments {
    /// Store the image of an OCI archive.
    Import(ImportArguments),
    /// List the stored images.
    Ls(ListArguments),
    /// Remove a stored image.
    Rm(RemoveArguments),
}

/// Arguments of `myelin image import`.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArguments {
    /// The new name.
    name: String,
    /// The archive.
    archive: PathBuf,
}

/// Arguments of `myelin image ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `myelin image rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArguments {
    /// The image's name.
    name: String,
}

/// Runs the command.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let client = Client::connect_or_start(run_dir, &output::program_path()?)?;
    match arguments {
        Arguments::Import(arguments) => import(&client, &arguments.name, &arguments.archive),
        Arguments::Ls(arguments) => list(&client, arguments.json),
        Arguments::Rm(arguments) => {
            client.remove_image(&arguments.name)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn import(client: &Client, name: &str, archive: &Path) -> Result<ExitCode, ApiError> {
    let absolute = archive.canonicalize().map_err(|error| {
        ApiError::usage(format!(
            "cannot read the archive {}: {error}",
            archive.display()
        ))
    })?;
    let stored = client.import_image(&ImageRequest {
        name: name.to_owned(),
        archive: absolute.display().to_string(),
    })?;
    println!(
        "image {name}: {} layers, {} files, {} MiB",
        stored.layers,
        stored.files,
        stored.bytes >> 20
    );
    Ok(ExitCode::SUCCESS)
}

fn list(client: &Client, is_json: bool) -> Result<ExitCode, ApiError> {
    let all = client.images()?;
    if is_json {
        return output::print_json(&all);
    }
    if all.is_empty() {
        println!("no image is stored");
        return Ok(ExitCode::SUCCESS);
    }
    let columns: [Column<ImageStatus>; 4] = [
        ("image", |image| image.name.clone()),
        (">files", |image| image.files.to_string()),
        (">size", |image| format!("{} MiB", image.bytes >> 20)),
        ("program", |image| image.command.join(" ")),
    ];
    println!("{}", output::format_table(&columns, &all));
    Ok(ExitCode::SUCCESS)
}
