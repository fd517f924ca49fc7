//! `myelin top`: the running chains, second by second.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use myelin_api::{ApiError, ChainState, ChainStatus, Client, RunDir, SlaSojourn, SlaStatus};
use serde_json::json;

use crate::screen::Screen;
use crate::{output, sla};

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
            screen.draw(&format!("{}\n\nq ends", text(&chains)))?;
        } else {
            println!("{}", text(&chains));
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

fn text(chains: &[ChainStatus]) -> String {
    if chains.is_empty() {
        return "no chain runs".to_owned();
    }
    let headings = [
        "CHAIN",
        "STATE",
        "MAPPING",
        ">IN pps",
        ">IN bit/s",
        ">OUT pps",
        ">POLICED/s",
        ">LOSS %",
        ">p50 us",
        ">p99 us",
        ">max us",
        "SLA",
        ">CPU %",
        "LAST EVENT",
    ];
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(headings.map(|heading| heading.trim_start_matches('>')));
    for (index, heading) in headings.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if heading.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    for status in chains {
        table.add_row(row(status));
    }
    table.to_string()
}

fn row(status: &ChainStatus) -> [String; 14] {
    let none = || "-".to_owned();
    let told = status.sla.as_deref();
    let of =
        |figure: &dyn Fn(&SlaStatus) -> Option<String>| told.and_then(figure).unwrap_or_else(none);
    let sojourn = |figure: fn(&SlaSojourn) -> f64| {
        of(&|sla| {
            let sojourn = sla.second.sojourn.as_ref()?;
            Some(format!("{:.1}", figure(sojourn)))
        })
    };
    [
        status.chain.clone(),
        match status.state {
            ChainState::Active => "active".to_owned(),
            ChainState::Failed => "failed".to_owned(),
        },
        status.mapping.clone(),
        of(&|sla| Some(sla::short(sla.second.in_pps))),
        of(&|sla| Some(sla::short(sla.second.in_bps))),
        of(&|sla| Some(sla::short(sla.second.out_pps))),
        of(&|sla| {
            let seconds = sla.second.seconds;
            (seconds > 0.0).then(|| sla::short(sla.second.policed as f64 / seconds))
        }),
        of(&|sla| Some(format!("{:.3}", sla.second.loss_percent?))),
        sojourn(|sojourn| sojourn.p50_us),
        sojourn(|sojourn| sojourn.p99_us),
        sojourn(|sojourn| sojourn.max_us),
        sla::verdict(status),
        of(&|sla| Some(format!("{:.0}", sla.second.worker_cores? * 100.0))),
        of(&|sla| sla.last_event.as_ref().map(sla::brief)),
    ]
}
