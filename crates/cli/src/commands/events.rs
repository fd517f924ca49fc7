//! `myelin events`: lists violations of contracts.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use myelin_api::{ApiError, Client, RunDir, SlaEvent};
use myelin_report::sla;

use crate::output;

/// Time between two requests of `--follow`. The agent judges each chain once a second.
const INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `myelin events`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin events\n  myelin events -v               with the figures that show each cause\n  \
    myelin events tactile --follow\n  myelin events --json\n\n\
    A second violates the contract if its loss or its delay percentile exceeds the limit of the\n\
    chain's SLA. Consecutive seconds are one event. The agent keeps the last 1000 events of each\n\
    chain while it runs. --follow prints an event when it begins and when it ends."
)]
pub(crate) struct Arguments {
    /// Show the events of this chain only.
    chain: Option<String>,
    /// Print new events until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// Show more: the figures that show each cause.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON: a list, or with --follow one event a line.
    #[arg(long)]
    json: bool,
}

/// Prints the events.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let chain = arguments.chain.as_deref();
    if arguments.follow {
        return follow_events(run_dir, arguments);
    }
    let events = match (Client::connect(run_dir)?, chain) {
        (Some(client), _) => client.events(chain, 0)?,
        (None, None) => Vec::new(),
        (None, Some(name)) => return Err(output::not_running_error(name)),
    };
    if arguments.json {
        return output::print_json(&events);
    }
    println!(
        "{}",
        sla::events(&events, arguments.verbose, output::width())
    );
    Ok(ExitCode::SUCCESS)
}

fn follow_events(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let mut printed = PrintedEvents::default();
    loop {
        let Some(client) = Client::connect(run_dir)? else {
            return Err(ApiError::failed(format!(
                "no agent runs at {}; `myelin up` starts an agent",
                run_dir.path().display()
            )));
        };
        let events = client.events(arguments.chain.as_deref(), printed.resume_after_serial())?;
        for event in printed.select_unprinted(events) {
            if arguments.json {
                output::print_json_line(&event)?;
            } else {
                let width = output::width();
                println!("{}", sla::event(&event, arguments.verbose, width));
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The events that `--follow` printed.
#[derive(Default)]
struct PrintedEvents {
    last_serial: u64,
    /// Serials of printed events that have not ended.
    ongoing: BTreeSet<u64>,
}

impl PrintedEvents {
    /// Returns the serial before the first ongoing event. Later events are new, or may have ended.
    fn resume_after_serial(&self) -> u64 {
        self.ongoing
            .first()
            .map_or(self.last_serial, |first| first - 1)
    }

    /// Selects the events that are new, or that have ended since they were printed.
    fn select_unprinted(&mut self, events: Vec<SlaEvent>) -> Vec<SlaEvent> {
        // The agent forgets the events of a removed chain.
        let known: BTreeSet<u64> = events.iter().map(|event| event.serial).collect();
        self.ongoing.retain(|serial| known.contains(serial));
        let mut selected = Vec::new();
        for event in events {
            let is_new = event.serial > self.last_serial;
            self.last_serial = self.last_serial.max(event.serial);
            let has_ended = event.end.is_some() && self.ongoing.remove(&event.serial);
            if is_new && event.end.is_none() {
                self.ongoing.insert(event.serial);
            }
            if is_new || has_ended {
                selected.push(event);
            }
        }
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myelin_api::SlaCause;

    fn event(serial: u64, has_ended: bool) -> SlaEvent {
        SlaEvent {
            serial,
            chain: "c".to_owned(),
            start: String::new(),
            end: has_ended.then(String::new),
            seconds: 1,
            terms: Vec::new(),
            hop: String::new(),
            cause: SlaCause::Unknown,
            evidence: Vec::new(),
            lost: 0,
            worst_latency_us: None,
            worst_loss_percent: None,
        }
    }

    #[test]
    fn an_event_is_printed_when_it_begins_and_when_it_ends() {
        let mut printed = PrintedEvents::default();
        let serials = |events: Vec<SlaEvent>| -> Vec<u64> {
            events.iter().map(|event| event.serial).collect()
        };
        let all = vec![event(1, true), event(2, false), event(3, true)];
        assert_eq!(serials(printed.select_unprinted(all)), [1, 2, 3]);
        assert_eq!(printed.resume_after_serial(), 1);
        let again = vec![event(2, false), event(3, true)];
        assert!(printed.select_unprinted(again).is_empty());
        let ended = vec![event(2, true), event(3, true), event(4, false)];
        assert_eq!(serials(printed.select_unprinted(ended)), [2, 4]);
        assert_eq!(printed.resume_after_serial(), 3);
        // The chain is removed.
        assert!(printed.select_unprinted(Vec::new()).is_empty());
        assert_eq!(printed.resume_after_serial(), 4);
    }
}
