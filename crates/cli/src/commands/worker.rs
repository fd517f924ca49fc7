//! `myelin worker`: the process that runs user functions. The agent starts it, with a control socket as its
//! standard input.

use std::process::ExitCode;

use myelin_agent::api::ApiError;

/// Arguments of `myelin worker`: none.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

/// Runs until told to stop.
pub(crate) fn execute(_: &Arguments) -> Result<ExitCode, ApiError> {
    let control = myelin_dataplane::control_from_stdin()
        .map_err(|error| ApiError::failed(format!("worker: no control socket: {error}")))?;
    myelin_dataplane::worker_main(control)
}
