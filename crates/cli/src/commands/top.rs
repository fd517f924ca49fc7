//! `myelin top`: shows the running chains each second.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use myelin_api::{ApiError, ChainStatus, Client, CoreStatus, RunDir, SpanStatus};
use myelin_report::{span, status};
use serde_json::json;

use crate::output;
use crate::screen::Screen;

/// Arguments of `myelin top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin top\n  myelin top tactile --interval 5s\n  \
    myelin top --count 2 --json\n\n\
    Rates, losses and times are those of the last full second. Cores whose workers take turns\n\
    (`worker: { sharing: NAME }`) have a table of their own. `q` or Ctrl-C ends the command.\n\
    In a pipe each interval prints the table again."
)]
pub(crate) struct Arguments {
    /// Show these chains only.
    chains: Vec<String>,
    /// Time between two tables.
    #[arg(long, default_value = "1s", value_parser = output::parse_duration, value_name = "TIME")]
    interval: Duration,
    /// End after N tables.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Show more.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

/// Shows the chains until a key, a signal or `--count` ends the command.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let is_live = std::io::stdout().is_terminal() && !arguments.json;
    // The first request precedes the alternate screen, which would hide its error.
    let mut reading = Reading::request(run_dir, arguments)?;
    let mut before = Vec::new();
    let mut screen = if is_live { Some(Screen::open()?) } else { None };
    let mut shown = 0;
    loop {
        let next = Instant::now() + arguments.interval;
        if arguments.json {
            output::print_json_line(&to_json(&reading))?;
        } else if let Some(screen) = &mut screen {
            screen.draw(&format!(
                "{}\n\nq ends",
                format_table(&reading, &before, arguments)
            ))?;
        } else {
            println!("{}", format_table(&reading, &before, arguments));
        }
        shown += 1;
        if arguments.count.is_some_and(|count| shown >= count) {
            return Ok(ExitCode::SUCCESS);
        }
        let wait = next.saturating_duration_since(Instant::now());
        match &mut screen {
            Some(screen) if screen.wait_for_end(wait)? => return Ok(ExitCode::SUCCESS),
            Some(_) => {}
            None => std::thread::sleep(wait),
        }
        before = reading.cores;
        reading = Reading::request(run_dir, arguments)?;
    }
}

/// What the agent says at one moment.
struct Reading {
    chains: Vec<ChainStatus>,
    spans: Vec<SpanStatus>,
    cores: Vec<CoreStatus>,
}

impl Reading {
    fn request(run_dir: &RunDir, arguments: &Arguments) -> Result<Self, ApiError> {
        let client = Client::connect(run_dir)?;
        let client = client.as_ref();
        let wanted = &arguments.chains;
        let mut spans = client.map_or(Ok(Vec::new()), Client::spans)?;
        spans.retain(|span| wanted.is_empty() || wanted.contains(&span.chain));
        Ok(Self {
            chains: request_chains(client, wanted, &spans)?,
            spans,
            cores: client.map_or(Ok(Vec::new()), Client::cores)?,
        })
    }
}

fn format_table(reading: &Reading, before: &[CoreStatus], arguments: &Arguments) -> String {
    let (chains, verbose) = (&reading.chains, arguments.verbose);
    let width = output::width();
    let mut table = status::last_second(chains, width);
    if !reading.spans.is_empty() {
        let spans = span::last_second(&reading.spans, width);
        table = if chains.is_empty() {
            spans
        } else {
            format!("{table}\n\n{spans}")
        };
    }
    if verbose && !chains.is_empty() {
        table = format!("{table}\n\n{}", status::last_second_details(chains, width));
    }
    let seconds = arguments.interval.as_secs_f64();
    let cores = status::cores(before, &reading.cores, seconds, width);
    // The first table has no earlier reading.
    if !cores.is_empty() && !before.is_empty() {
        table = format!("{table}\n\n{cores}");
    }
    table
}

fn request_chains(
    client: Option<&Client>,
    wanted: &[String],
    spans: &[SpanStatus],
) -> Result<Vec<ChainStatus>, ApiError> {
    let mut chains = client.map_or(Ok(Vec::new()), Client::list)?;
    let runs = |name: &&String| {
        chains.iter().any(|status| status.chain == **name)
            || spans.iter().any(|span| span.chain == **name)
    };
    if let Some(name) = wanted.iter().find(|name| !runs(name)) {
        return Err(output::not_running_error(name));
    }
    chains.retain(|status| wanted.is_empty() || wanted.contains(&status.chain));
    Ok(chains)
}

fn to_json(
    Reading {
        chains,
        spans,
        cores,
    }: &Reading,
) -> serde_json::Value {
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
    json!({ "at_unix_s": at.map_or(0.0, |at| at.as_secs_f64()), "chains": chains, "spans": spans, "cores": cores })
}
