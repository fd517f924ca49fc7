//! `myelin top`: the running chains, second by second.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use myelin_api::{ApiError, ChainStatus, Client, RunDir};
use myelin_report::status;
use serde_json::json;

use crate::output;
use crate::screen::Screen;

/// Arguments of `myelin top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin top\n  myelin top tactile --interval 5s\n  myelin top --count 2 --json\n\nRates, losses and times are those of the last full second. `q` or Ctrl-C ends. In a pipe the table is printed again and\nagain."
)]
pub(crate) struct Arguments {
    /// Show these chains only.
    chains: Vec<String>,
    /// Time between two looks.
    #[arg(long, default_value = "1s", value_parser = output::duration, value_name = "TIME")]
    interval: Duration,
    /// End after so many looks.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Show more.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON, one object a line and look.
    #[arg(long)]
    json: bool,
}

/// Shows until it is told to end.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let is_live = std::io::stdout().is_terminal() && !arguments.json;
    // Faults of the first look belong on the plain terminal.
    let mut chains = look(run_dir, arguments)?;
    let mut screen = if is_live { Some(Screen::open()?) } else { None };
    let mut looks = 0;
    loop {
        let next = Instant::now() + arguments.interval;
        if arguments.json {
            output::json_line(&object(&chains))?;
        } else if let Some(screen) = &mut screen {
            screen.draw(&format!("{}\n\nq ends", table(&chains, arguments.verbose)))?;
        } else {
            println!("{}", table(&chains, arguments.verbose));
        }
        looks += 1;
        if arguments.count.is_some_and(|count| looks >= count) {
            return Ok(ExitCode::SUCCESS);
        }
        let wait = next.saturating_duration_since(Instant::now());
        match &mut screen {
            Some(screen) if screen.ends_within(wait)? => return Ok(ExitCode::SUCCESS),
            Some(_) => {}
            None => std::thread::sleep(wait),
        }
        chains = look(run_dir, arguments)?;
    }
}

fn table(chains: &[ChainStatus], verbose: bool) -> String {
    let width = output::width();
    let mut table = status::live(chains, width);
    if verbose && !chains.is_empty() {
        table = format!("{table}\n\n{}", status::live_details(chains, width));
    }
    table
}

fn look(run_dir: &RunDir, arguments: &Arguments) -> Result<Vec<ChainStatus>, ApiError> {
    let mut chains = match Client::connect(run_dir)? {
        Some(client) => client.list()?,
        None => Vec::new(),
    };
    let wanted = &arguments.chains;
    if let Some(name) = wanted
        .iter()
        .find(|name| chains.iter().all(|status| status.chain != **name))
    {
        return Err(output::not_running(name));
    }
    chains.retain(|status| wanted.is_empty() || wanted.contains(&status.chain));
    Ok(chains)
}

fn object(chains: &[ChainStatus]) -> serde_json::Value {
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let chains: Vec<_> = chains
        .iter()
        .map(|status| {
            json!({
                "chain": status.chain,
                "owner": status.owner,
                "state": status.state,
                "mapping": status.mapping,
                "sla": status.sla,
            })
        })
        .collect();
    json!({ "at_unix_s": at.map_or(0.0, |at| at.as_secs_f64()), "chains": chains })
}
