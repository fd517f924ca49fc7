//! `myelin events`: violations of contracts.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use myelin_api::{ApiError, Client, RunDir, SlaEvent};
use myelin_report::sla;

use crate::output;

/// How often an agent is asked for new ones: it looks at each chain once a second.
const INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `myelin events`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin events\n  myelin events tactile --follow\n  myelin events --json\n\nA second in which more was lost, or the percentile of the time in the chain was higher, than its contract allows is a\nviolation; seconds that follow each other are one event. The agent keeps the last 1000 of each chain while it runs.\nWith --follow an event is printed when it begins, and again when it is over."
)]
pub(crate) struct Arguments {
    /// Show those of this chain.
    chain: Option<String>,
    /// Go on with new ones until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// Print JSON: a list, or with --follow one event a line.
    #[arg(long)]
    json: bool,
}

/// Lists, and follows.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let chain = arguments.chain.as_deref();
    if arguments.follow {
        return follow(run_dir, arguments);
    }
    let events = match (Client::connect(run_dir)?, chain) {
        (Some(client), _) => client.events(chain, 0)?,
        (None, None) => Vec::new(),
        (None, Some(name)) => return Err(output::not_running(name)),
    };
    if arguments.json {
        return output::json(&events);
    }
    if events.is_empty() {
        println!("no contract was violated");
    }
    for event in &events {
        println!("{}", sla::line(event));
    }
    Ok(ExitCode::SUCCESS)
}

fn follow(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let mut printed = Printed::default();
    loop {
        let Some(client) = Client::connect(run_dir)? else {
            return Err(ApiError::failed(format!(
                "no agent runs at {}; `myelin up` starts one",
                run_dir.path().display()
            )));
        };
        let events = client.events(arguments.chain.as_deref(), printed.after())?;
        for event in printed.take(events) {
            if arguments.json {
                output::json_line(&event)?;
            } else {
                println!("{}", sla::line(&event));
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// What was printed already.
#[derive(Default)]
struct Printed {
    last: u64,
    /// Those that were not over.
    lasting: BTreeSet<u64>,
}

impl Printed {
    /// Above which number events are of interest.
    fn after(&self) -> u64 {
        self.lasting.first().map_or(self.last, |first| first - 1)
    }

    /// Those of them that are new or are now over.
    fn take(&mut self, events: Vec<SlaEvent>) -> Vec<SlaEvent> {
        // One that lasted and is told no longer went with its chain.
        let told: BTreeSet<u64> = events.iter().map(|event| event.serial).collect();
        self.lasting.retain(|serial| told.contains(serial));
        let mut news = Vec::new();
        for event in events {
            let is_new = event.serial > self.last;
            self.last = self.last.max(event.serial);
            let ended = event.end.is_some() && self.lasting.remove(&event.serial);
            if is_new && event.end.is_none() {
                self.lasting.insert(event.serial);
            }
            if is_new || ended {
                news.push(event);
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myelin_api::SlaCause;

    fn event(serial: u64, is_over: bool) -> SlaEvent {
        SlaEvent {
            serial,
            chain: "c".to_owned(),
            start: String::new(),
            end: is_over.then(String::new),
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
    fn each_event_is_printed_when_it_begins_and_when_it_is_over() {
        let mut printed = Printed::default();
        let serials = |events: Vec<SlaEvent>| -> Vec<u64> {
            events.iter().map(|event| event.serial).collect()
        };
        let all = vec![event(1, true), event(2, false), event(3, true)];
        assert_eq!(serials(printed.take(all)), [1, 2, 3]);
        assert_eq!(printed.after(), 1);
        let again = vec![event(2, false), event(3, true)];
        assert!(printed.take(again).is_empty());
        let over = vec![event(2, true), event(3, true), event(4, false)];
        assert_eq!(serials(printed.take(over)), [2, 4]);
        assert_eq!(printed.after(), 3);
        // Its chain went down.
        assert!(printed.take(Vec::new()).is_empty());
        assert_eq!(printed.after(), 4);
    }
}
