//! `myelin completions`: prints a completion script for a shell.

use std::process::ExitCode;

use clap::CommandFactory;
use myelin_api::ApiError;

/// Arguments of `myelin completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin completions bash > /etc/bash_completion.d/myelin")]
pub(crate) struct Arguments {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Prints the script.
#[expect(clippy::unnecessary_wraps, reason = "every command has this form")]
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let mut command = crate::Arguments::command();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "myelin", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}
