//! `myelin schema`: prints JSON Schemas for other programs.

use std::process::ExitCode;

use clap::ValueEnum;
use myelin_api::ApiError;

use crate::output;

/// Arguments of `myelin schema`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin schema api > api.json              endpoints and types of the agent's socket\n  \
    myelin schema chain > chain.schema.json   for an editor that completes chain files"
)]
pub(crate) struct Arguments {
    /// The subject of the schema.
    subject: Subject,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Subject {
    /// The agent's socket: endpoints, requests, answers.
    Api,
    /// A chain file, with the configuration of each kind of function.
    Chain,
}

/// Prints the schema.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    match arguments.subject {
        Subject::Api => {
            print!("{}", myelin_api::SCHEMA);
            Ok(ExitCode::SUCCESS)
        }
        Subject::Chain => output::print_json(&myelin_spec::schema()),
    }
}
