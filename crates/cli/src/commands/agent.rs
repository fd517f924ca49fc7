//! `myelin agent`: runs the privileged process in the foreground.

use std::process::ExitCode;
use std::time::Duration;

use myelin_agent::{NodeOptions, ServeOptions};
use myelin_api::{ApiError, RunDir};

use crate::output;

/// Arguments of `myelin agent`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sudo myelin agent\n  sudo myelin agent --idle-exit 60s\n\n\
                  Runs in the foreground until SIGINT or SIGTERM, then removes every chain. Needs root.\n\
                  Members of the group `myelin`, if it exists, may use the agent's socket.\n\
                  MYELIN_LOG=debug shows more."
)]
pub(crate) struct Arguments {
    /// Stop when no chain has run for this long, for example `60s`.
    #[arg(long, value_name = "TIME", value_parser = output::parse_duration)]
    idle_exit: Option<Duration>,
    /// Keep all control groups of this agent under PATH: `myelin-RUN/NAME`, below the root of each
    /// hierarchy.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// The name of this agent's clock: it compares no time with agents of another clock. For nodes
    /// of one machine that stand for several machines.
    #[arg(long, value_name = "NAME")]
    clock: Option<String>,
}

/// Serves the run directory until a signal ends the agent.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("MYELIN_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .init();
    let options = ServeOptions {
        idle_exit: arguments.idle_exit,
        node: NodeOptions {
            cgroup: arguments.cgroup.clone(),
            clock: arguments.clock.clone(),
        },
    };
    myelin_agent::serve(run_dir, &output::program_path()?, options)?;
    Ok(ExitCode::SUCCESS)
}
