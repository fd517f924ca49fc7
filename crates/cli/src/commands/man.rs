//! `myelin man`: writes the manual pages, for `make install` and packages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use myelin_api::ApiError;

/// Arguments of `myelin man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin man /usr/local/share/man/man1")]
pub(crate) struct Arguments {
    /// The directory of the pages. It must exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes myelin.1, and myelin-COMMAND.1 for each visible command.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let directory = &arguments.directory;
    clap_mangen::generate_to(crate::Arguments::command(), directory).map_err(|error| {
        ApiError::failed(format!(
            "cannot write manual pages to {}: {error}; name a directory that exists",
            directory.display()
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}
