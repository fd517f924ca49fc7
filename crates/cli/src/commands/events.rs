//! `myelin events`: lists violations of contracts, and events of nodes.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use myelin_api::{ApiError, Client, NodeEvent, RunDir, SlaEvent};
use myelin_report::{sla, span};
use serde::Serialize;

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
    chain while it runs. --follow prints an event when it begins and when it ends.\n\n\
    Behind them: events of the nodes of topologies. An agent is silent, ended, is back, or has\n\
    failed; a chain over nodes was restored, with the functions that were placed anew. The agent\n\
    keeps the last 1000. With CHAIN: those of the chain."
)]
pub(crate) struct Arguments {
    /// Show the events of this chain only, or of this chain over nodes.
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
    let (events, of_nodes) = match (Client::connect(run_dir)?, chain) {
        (Some(client), _) => (
            client.events(chain, 0)?,
            select_of_chain(client.node_events(0)?, chain),
        ),
        (None, None) => Default::default(),
        (None, Some(name)) => return Err(output::not_running_error(name)),
    };
    if arguments.json {
        let of_nodes = of_nodes.iter().map(AnyEvent::OfNode);
        let all = events.iter().map(AnyEvent::Violation).chain(of_nodes);
        return output::print_json(&all.collect::<Vec<_>>());
    }
    let width = output::width();
    println!("{}", sla::events(&events, arguments.verbose, width));
    for event in &of_nodes {
        println!("{}", span::node_event(event, width));
    }
    Ok(ExitCode::SUCCESS)
}

/// An event in JSON. Those of nodes alone have `node`.
#[derive(Serialize)]
#[serde(untagged)]
enum AnyEvent<'e> {
    Violation(&'e SlaEvent),
    OfNode(&'e NodeEvent),
}

/// Keeps the events of a chain, if one is named.
fn select_of_chain(mut events: Vec<NodeEvent>, chain: Option<&str>) -> Vec<NodeEvent> {
    events.retain(|event| chain.is_none() || event.chain.as_deref() == chain);
    events
}

fn follow_events(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let mut printed = PrintedEvents::default();
    let mut last_of_nodes = 0;
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
        let of_nodes = client.node_events(last_of_nodes)?;
        last_of_nodes = of_nodes.last().map_or(last_of_nodes, |last| last.serial);
        for event in select_of_chain(of_nodes, arguments.chain.as_deref()) {
            if arguments.json {
                output::print_json_line(&event)?;
            } else {
                println!("{}", span::node_event(&event, output::width()));
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
