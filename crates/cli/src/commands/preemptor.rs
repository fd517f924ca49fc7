//! `myelin preemptor`: the process that gives black boxes their turns on a shared core. The agent
//! starts it, with its set-up as standard input.

use std::process::ExitCode;

use myelin_api::ApiError;

/// Arguments of `myelin preemptor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The name by which the journal finds the process.
    #[arg(long)]
    name: String,
    /// Give the tasks of a preemptor back to the kernel when it ends.
    #[arg(long)]
    guardian: bool,
}

/// Runs until the agent stops it, or until no task is left.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    myelin_agent::run_preemptor(&arguments.name, arguments.guardian).map_err(ApiError::failed)
}
