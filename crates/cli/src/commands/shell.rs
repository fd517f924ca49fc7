//! `myelin shell`: a shell for a network, from the Python package.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use myelin_api::{ApiError, RunDir};
use myelin_bench::{find_python_package, prepend_to_search_path};

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
    Needs Python 3.10 or newer."
)]
pub(crate) struct Arguments {
    /// A topology file, or the name of a running topology.
    network: Option<String>,
}

/// Replaces this process by the shell.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let program = output::program_path()?;
    let search_path = find_python_package(&program);
    let search_path = search_path.map(|directory| prepend_to_search_path(&directory));
    let python = || {
        let mut python = Command::new("python3");
        python.envs(search_path.iter().map(|path| ("PYTHONPATH", path)));
        python
    };
    let check = python()
        .args(["-c", &format!("import {MODULE}")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !check.is_ok_and(|status| status.success()) {
        return Err(ApiError::failed(
            "no `python3` of version 3.10 or newer finds the package `myelin`: install python3, and the package with \
             `make install` or `pip install ./python` in the repository of Myelin",
        ));
    }
    let mut shell = python();
    shell.args(["-m", MODULE, "--run-dir"]).arg(run_dir.path());
    let error = shell
        .args(&arguments.network)
        .env("MYELIN", &program)
        .exec();
    Err(ApiError::failed(format!("cannot run python3: {error}")))
}
