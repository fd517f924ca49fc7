//! `myelin shell`: a shell for a network, from the Python package.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use myelin_api::{ApiError, RunDir};

use crate::output;

/// The module of the Python package.
const MODULE: &str = "myelin.shell";

/// Arguments of `myelin shell`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin shell                         a network of h1 - s1 - h2\n  \
    myelin shell examples/topology.yaml\n  myelin shell lab                     a network that runs\n\n\
    The words are those of Mininet: nodes, links, net, dump, pingall, iperf, link A B down, py, and the\n\
    name of a host before a command. Networks of files end with the shell.\n\
    Needs the Python package: `pip install ./python` in the repository of Myelin."
)]
pub(crate) struct Arguments {
    /// A topology file, or the name of a running topology.
    network: Option<String>,
}

/// Replaces this process by the shell.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let check = Command::new("python3")
        .args(["-c", &format!("import {MODULE}")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !check.is_ok_and(|status| status.success()) {
        return Err(ApiError::failed(
            "`python3` has no package `myelin`: run `pip install ./python` in the repository of Myelin, in the \
             environment of that python3",
        ));
    }
    let mut shell = Command::new("python3");
    shell.args(["-m", MODULE, "--run-dir"]).arg(run_dir.path());
    shell
        .args(&arguments.network)
        .env("MYELIN", output::program_path()?);
    let error = shell.exec();
    Err(ApiError::failed(format!("cannot run python3: {error}")))
}
